"""Take and give back are inverse; snapshots share what did not change; the ledger keeps to its table."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.allocation.problem import UNUSED
from extender.mirror.ledger import TRANSITIONS, Event, InvalidTransition, Ledger
from extender.allocation.view import ChangeLog
from extender.mirror.mirror import Mirror
from extender.mirror.usage import UsageBook
from extender.model.claim import Allocation, Claim, Node, ObjectKey, Result
from extender.model.device import DeviceId, PoolKey
from extender.model.reservation import State
from extender.model.quantity import from_int
from extender.sandbox.machines import carried_machines, fabric_slice, gpu_slice, node_object
from extender.wire.core import decode_node
from extender.wire.slices import SliceDecoder

POOL = PoolKey("d", "p")
results = st.builds(
    lambda device, share, amount: Result("r", DeviceId("d", "p", device), share_id=share, consumed={"memory": from_int(amount)} if share else None),
    st.sampled_from("abc"), st.sampled_from(["", "s1", "s2"]), st.integers(0, 50),
)
steps = st.lists(st.tuples(st.sampled_from(["1", "2", "3"]), st.lists(results, max_size=3)), max_size=12)


@given(steps)
def test_usage_ends_where_it_began(sequence: list) -> None:
    """Whatever holders put, after each is dropped nothing is in use."""
    book = UsageBook()
    for holder, held in sequence:
        book.put(("claim", holder), held)
    for holder in "123":
        book.drop(("claim", holder))
    assert book.pool(POOL) == UNUSED and not book.pools()


@given(steps, st.randoms(use_true_random=False))
def test_usage_does_not_depend_on_order(sequence: list, rng: random.Random) -> None:
    """Only the last word of each holder counts, in whatever order they speak."""
    last = dict(sequence)
    first, second = UsageBook(), UsageBook()
    for holder, held in sequence:
        first.put(("claim", holder), held)
    items = list(last.items())
    rng.shuffle(items)
    for holder, held in items:
        second.put(("claim", holder), held)
    assert first.pool(POOL) == second.pool(POOL)


def filled() -> Mirror:
    mirror, decoder = Mirror(), SliceDecoder()
    for name, kind in (("n1", "t4-4"), ("n2", "dgx1-v100"), ("n3", "t4-4")):
        machine = carried_machines()[kind]
        mirror.apply_node(name, decode_node(node_object(name, machine, {})))
        for obj in (gpu_slice(name, machine), fabric_slice(name, machine)):
            slice_ = decoder.decode(obj)
            mirror.apply_slice(slice_.name, slice_)
    return mirror


def held(device: str) -> tuple[Result, ...]:
    return (Result("r", DeviceId("gpu.nvidia.com", "n1", device)),)


def test_only_touched_views_are_built_again() -> None:
    mirror = filled()
    before = mirror.snapshot()
    assert mirror.snapshot() is before
    version, views = before.version, dict(before.views)
    mirror.apply_claim(ObjectKey("x", "c"), Claim(ObjectKey("x", "c"), "u1", "5", allocation=Allocation(held("gpu-1"))))
    after = mirror.snapshot()
    assert after.changed_since(version) == ["n1"]
    assert after.views["n2"] is views["n2"] and after.views["n1"] is not views["n1"]
    assert after.views["n1"].busy == 0b10
    mirror.apply_claim(ObjectKey("x", "c"), None)
    assert mirror.snapshot().views["n1"].state.signature == views["n1"].state.signature


def test_equal_nodes_have_equal_signatures() -> None:
    views = filled().snapshot().views
    assert views["n1"].state.signature == views["n3"].state.signature != views["n2"].state.signature


def test_hold_and_bind_and_confirmation() -> None:
    """A hold becomes a reservation, the watch confirms it by content, and the device is in use throughout."""
    mirror = filled()
    mirror.hold("u1", "pod", "n1", held("gpu-0"), 10.0)
    assert mirror.snapshot().views["n1"].held == 1
    mirror.assume("u1", "pod", "n1", held("gpu-0"))
    mirror.release("pod")
    assert mirror.snapshot().views["n1"].busy == 1 and mirror.snapshot().views["n1"].held == 0
    mirror.apply_claim(ObjectKey("x", "c"), Claim(ObjectKey("x", "c"), "u1", "5", allocation=Allocation(held("gpu-0"))))
    assert not mirror.ledger.in_flight
    assert mirror.snapshot().views["n1"].busy == 1


def test_holds_expire() -> None:
    mirror = filled()
    mirror.hold("c", "pod", "n1", held("gpu-0"), 10.0)
    mirror.expire(9.9)
    assert mirror.snapshot().views["n1"].busy == 1
    mirror.expire(10.0)
    assert mirror.snapshot().views["n1"].busy == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 9)), max_size=12))
def test_holds_end_at_their_deadline_in_whatever_order_they_came(steps: list[tuple[int, int, int]]) -> None:
    mirror, now, deadlines = filled(), 0.0, {}
    for who, lasting, later in steps:
        mirror.release(f"pod-{who}")
        mirror.hold(f"claim-{who}", f"pod-{who}", "n1", held(f"gpu-{who}"), now + lasting)
        deadlines[who] = now + lasting
        now += later
        mirror.expire(now)
        deadlines = {pod: deadline for pod, deadline in deadlines.items() if deadline > now}
        assert mirror.ledger.holds == len(deadlines)
        assert mirror.next_deadline <= min(deadlines.values(), default=float("inf"))


def test_a_hold_is_found_by_its_deadline_and_ended_ones_leave_nothing() -> None:
    """Ten thousand holds that ended early: the next deadline is that of the one which is left."""
    ledger = Ledger(UsageBook())
    ledger.hold("kept", "kept", "n1", held("gpu-0"), 5.0)
    ledger.expire(4.0)
    for number in range(10_000):
        ledger.hold("c", "pod", "n1", held("gpu-1"), 20.0 + number)
        ledger.release("pod")
        assert len(ledger._deadlines) < 100
    assert ledger.soonest == 5.0
    ledger.expire(5.0)
    assert ledger.holds == 0 and ledger.soonest == float("inf")


def test_every_state_has_a_way_out() -> None:
    """The table is closed: each state but NONE can end, and only known states are reached."""
    assert set(TRANSITIONS.values()) <= set(State)
    for state in (State.HELD, State.BINDING):
        assert any(start is state and end is State.NONE for (start, _), end in TRANSITIONS.items())
    assert {event for _, event in TRANSITIONS} <= set(Event)


def in_state(state: State) -> Ledger:
    ledger = Ledger(UsageBook())
    if state is State.HELD:
        ledger.hold("c", "pod", "n1", held("gpu-0"), 10.0)
    elif state is State.BINDING:
        ledger.assume("c", "pod", "n1", held("gpu-0"))
    return ledger


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("event", list(Event))
def test_the_table_is_what_runs(state: State, event: Event) -> None:
    """Each event in each state: it leads where the table says, or it is an error, or there is nothing that it could
    happen to."""
    ledger = in_state(state)
    happens = {
        Event.HOLD: lambda: ledger.hold("c", "other", "n2", held("gpu-1"), 20.0),
        Event.ASSUME: lambda: ledger.assume("c", "other", "n2", held("gpu-1")),
        Event.EXPIRE: lambda: ledger.expire(10.0), Event.RELEASE: lambda: ledger.release_claim("c"),
        Event.CONFIRM: lambda: ledger.confirm("c"), Event.GONE: lambda: ledger.gone("c"),
        Event.UNDO: lambda: ledger.undo("c"),
    }
    after = TRANSITIONS.get((state, event))
    if after is None and event in (Event.HOLD, Event.ASSUME):
        with pytest.raises(InvalidTransition, match=event.value):
            happens[event]()
        after = state
    else:
        happens[event]()
    assert ledger.state("c") is (after or state)
    assert bool(ledger.in_flight) is (ledger.state("c") is State.BINDING)
    assert ledger.holds == (ledger.state("c") is State.HELD)


@given(st.permutations(range(6)))
def test_order_of_events_does_not_matter(order: list[int]) -> None:
    """The same objects in any order give the same views."""
    machine = carried_machines()["a100-pcie-8-bridged"]
    decoder = SliceDecoder()
    node = decode_node(node_object("n", machine, {}))
    claim = Claim(ObjectKey("x", "c"), "u", "1", allocation=Allocation((Result("r", DeviceId("gpu.nvidia.com", "n", "gpu-3")),)))
    other = Claim(ObjectKey("x", "d"), "v", "1", allocation=Allocation((Result("r", DeviceId("gpu.nvidia.com", "n", "gpu-4")),)))
    mirror = Mirror()
    gpus, fabric = decoder.decode(gpu_slice("n", machine)), decoder.decode(fabric_slice("n", machine))
    events = [
        lambda: mirror.apply_node("n", node), lambda: mirror.apply_slice(gpus.name, gpus), lambda: mirror.apply_slice(fabric.name, fabric),
        lambda: mirror.apply_claim(claim.key, claim), lambda: mirror.apply_claim(other.key, other), lambda: mirror.apply_claim(other.key, None),
    ]
    if order.index(5) < order.index(4):
        order = [*order, 5]
    for position in order:
        events[position]()
        mirror.snapshot()
    view = mirror.snapshot().views["n"]
    assert view.busy == 0b1000 and len(view.gpu_bits) == 8


@given(st.lists(st.sets(st.sampled_from("abcdefgh"), min_size=1), max_size=30), st.integers(1, 8), st.integers(0, 30))
def test_changes_are_known_or_said_to_be_unknown(noted: list[set[str]], kept: int, version: int) -> None:
    changes = ChangeLog(known_since=0)
    for number, nodes in enumerate(noted, 1):
        changes.note(number, nodes)
        changes.forget(kept)
    found, truth = changes.since(version), set().union(*noted[version:])
    assert found is None or (set(found) == truth and len(found) == len(truth))
    assert found is not None or len(set().union(*noted)) > kept
    assert ChangeLog().since(0) is None
