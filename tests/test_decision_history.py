"""The decision history is bounded by pods and by bytes."""

from __future__ import annotations

from extender.console import DecisionHistory
from extender.model import ObjectKey
from extender.records import Attempted, Bound
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
