"""The decision history is bounded by pods and by bytes."""

from __future__ import annotations

from extender.console.hold_times import HoldTimes
from extender.records import Attempted, Bound, Released, Reserved

from extender.console import DecisionHistory
from extender.model import Code, ObjectKey, Reason, ReservationState
from extender.scheduling import Attempt, Decision, ScoredNode
from extender.scoring import ScorePart


def candidate(text: str) -> ScoredNode:
    return ScoredNode("n", 1.0, (text,), 0.0, 0.0, "", (ScorePart("link", 1.0, text),))


def refused(name: str, uid: str, reason: str) -> Attempted:
    return Attempted(ObjectKey("x", name), uid, Attempt("", 0, 1, ((reason, 1),)))


def test_the_decision_history_is_bounded_by_pods_and_by_bytes() -> None:
    few = DecisionHistory(pods=3)
    for number in range(5):
        few.record_attempt(refused(f"p{number}", f"u{number}", "why"))
    assert [entry.uid for entry in few.recent(9)] == ["u4", "u3", "u2"]
    assert few.newest(ObjectKey("x", "p1")) is None
    small = DecisionHistory(limit_bytes=100_000)
    for number in range(20):
        for attempt in range(10):
            small.record_attempt(refused(f"p{number}", f"u{number}", f"{attempt}" * 1000))
        small.record_decision(Bound(ObjectKey("x", f"p{number}"), f"u{number}", Decision("", candidate("y" * 500))))
    kept = small.recent(99)
    assert 5 <= len(kept) <= 9
    assert sum(entry.size for entry in kept) <= 100_000
    assert {len(entry.attempts) for entry in kept} == {8}
    small.record_attempt(refused("large", "large", "z" * 200_000))
    assert [entry.uid for entry in small.recent(9)] == ["large"], "the newest stays, however large"


def test_the_pods_of_one_namespace_do_not_hide_the_explanations_of_another() -> None:
    """2,100 attempts of one namespace once dropped all entries of the others."""
    for history, text in ((DecisionHistory(pods=50), "why"), (DecisionHistory(limit_bytes=100_000), "w" * 20_000)):
        for number in range(3):
            history.record_attempt(refused(f"p{number}", f"honest{number}", "no room"))
        for number in range(100):
            attempt = Attempt("", 0, 1, ((text, 1),))
            history.record_attempt(Attempted(ObjectKey("tenant", f"p{number}"), f"u{number}", attempt))
        kept = [entry.uid for entry in history.recent(99)]
        assert kept[0] == "u99"
        assert kept[-3:] == ["honest2", "honest1", "honest0"]


def test_a_pod_uid_has_one_name_in_the_decision_history() -> None:
    history = DecisionHistory()
    for number in range(5):
        history.record_attempt(refused(f"p{number}", "uid", "why"))
    assert [number for number in range(5) if history.newest(ObjectKey("x", f"p{number}"))] == [4]


def test_the_decision_history_counts_objects_and_wide_characters() -> None:
    history = DecisionHistory()
    devices = tuple("%02x" % (number % 256) for number in range(1000))
    parts = tuple(ScorePart("é" * 20, 1.0, "\N{GRINNING FACE}" * 1000) for _ in range(10))
    for name, chosen in (
        ("devices", ScoredNode("n", 1.0, devices, 0.0, 0.0, "", ())),
        ("parts", ScoredNode("n", 1.0, (), 0.0, 0.0, "", parts)),
    ):
        history.record_decision(Bound(ObjectKey("x", name), name, Decision("", chosen)))
    sizes = {entry.uid: entry.size for entry in history.recent(9)}
    assert sizes["devices"] >= 1000 * 51, "a text of two letters is an object of 51 bytes"
    assert sizes["parts"] >= 10 * 4000, "four bytes per character"


def test_the_first_attempt_stays_known_and_so_does_the_first_one_since_the_group_is_complete() -> None:
    history, told = DecisionHistory(), str(Reason(Code.GANG_INCOMPLETE, ("job", "4")))
    times = []
    for minute, reason in enumerate((told, told, *["no room"] * 20, told, *["no room"] * 20)):
        attempt = Attempt(f"10:{minute:02}", 0, 1, ((reason, 1),))
        history.record_attempt(Attempted(ObjectKey("x", "p"), "p", attempt))
        entry = history.entry("p")
        assert entry is not None
        times.append((entry.first_at, entry.complete_at))
    assert {first for first, _ in times} == {"10:00"}
    complete = [at for _, at in times]
    assert complete == ["", "", *["10:02"] * 20, "", *["10:23"] * 20], "a group can lose a pod, and be complete again"


def test_the_times_of_holds_are_bounded_and_end_with_the_hold() -> None:
    clock = iter(f"10:{minute:02}" for minute in range(99))
    times = HoldTimes(lambda: next(clock), limit=3)

    def record(claim: str, state: ReservationState) -> None:
        times.apply(Reserved(claim, "pod", "node", (), state, 1.0))

    for claim in "abcd":
        record(claim, ReservationState.HELD)
    assert dict(times.by_claim) == {"b": "10:01", "c": "10:02", "d": "10:03"}
    record("b", ReservationState.BINDING)
    record("c", ReservationState.HELD)
    times.apply(Released("d"))
    times.apply(Released("unknown"))
    assert dict(times.by_claim) == {"b": "10:01", "c": "10:04"}


def test_an_attempt_that_finds_nodes_does_not_say_that_the_others_fit() -> None:
    history = DecisionHistory()
    changes = []
    for fitting, reasons in ((0, (("no room", 3),)), (0, (("no room", 2),)), (1, ())):
        history.record_attempt(Attempted(ObjectKey("x", "p"), "p", Attempt("10:00", fitting, 3, reasons)))
        entry = history.entry("p")
        assert entry is not None
        changes.append(entry.change())
    assert changes == ["", "'no room' on 2 nodes instead of 3", ""]
