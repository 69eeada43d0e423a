"""Usage after take and give back is unchanged; snapshots share unchanged parts; reservations follow their table."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.allocation.nodes import ChangeLog
from extender.api.nodes import NodeSelection, decode_node, only_node
from extender.api.object_meta import ObjectKey
from extender.api.pod_groups import GroupKey, GroupSource
from extender.api.resource_claims import Allocation, Claim, Consumer, Reservation, ReservationState, Result
from extender.api.resource_slices import DeviceId, PoolKey, Slice, SliceDecoder
from extender.cache import ClusterCache
from extender.cache.allocated_devices import (
    TRANSITIONS,
    AllocatedDevices,
    InvalidTransition,
    ReservationEvent,
    Reservations,
)
from extender.cache.slice_index import CacheTimers
from extender.runtime.informers import expire_holds
from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import gpu_slice, node_object
from tests.worlds.filled_caches import machine_nodes, put
from tests.worlds.skipping_loop import in_virtual_time

POOL = PoolKey("d", "p")


def filled() -> ClusterCache:
    return machine_nodes(n1="t4-4", n2="dgx1-v100", n3="t4-4")


def held(device: str) -> tuple[Result, ...]:
    return (Result("r", DeviceId("gpu.nvidia.com", "n1", device)),)


def test_only_touched_views_are_built_again() -> None:
    cache = filled()
    before = cache.snapshot()
    assert cache.snapshot() is before
    version, node_infos = before.version, dict(before.node_infos)
    cache.apply_claim(ObjectKey("x", "c"), Claim(ObjectKey("x", "c"), "u1", "5", allocation=Allocation(held("gpu-1"))))
    after = cache.snapshot()
    assert after.changed_since(version) == ["n1"]
    assert after.node_infos["n2"] is node_infos["n2"]
    assert after.node_infos["n1"] is not node_infos["n1"]
    assert after.node_infos["n1"].busy == 0b10
    cache.apply_claim(ObjectKey("x", "c"), None)
    assert cache.snapshot().node_infos["n1"].state.allocation_signature == node_infos["n1"].state.allocation_signature


def test_nodes_whose_counters_have_other_amounts_are_in_other_states() -> None:
    """Such nodes once shared a status: if the first of them had no room for a partition, none had."""
    cache = ClusterCache()
    for name, amount in (("n1", "1"), ("n2", "2"), ("n3", "2")):
        put(cache, {"kind": "Node", "metadata": {"name": name}})
        consumes = [{"counterSet": "s", "counters": {"c": {"value": "2"}}}]
        for part in (
            {"devices": [{"name": "partition", "consumesCounters": consumes}]},
            {"sharedCounters": [{"name": "s", "counters": {"c": {"value": amount}}}]},
        ):
            pool = {"name": name, "generation": 1, "resourceSliceCount": 2}
            spec = {"driver": "d", "nodeName": name, "pool": pool, **part}
            metadata = {"name": f"{name}-{next(iter(part)).lower()}"}
            put(cache, {"kind": "ResourceSlice", "metadata": metadata, "spec": spec})
    node_infos = cache.snapshot().node_infos
    assert node_infos["n1"].state is not node_infos["n2"].state
    assert node_infos["n2"].state is node_infos["n3"].state


def test_hold_and_bind_and_confirmation() -> None:
    """A hold becomes a reservation, the watch confirms it by content, and the device is in use throughout."""
    cache = filled()
    cache.hold({"u1": Reservation("pod", "n1", held("gpu-0"), 10.0)})
    assert cache.snapshot().node_infos["n1"].held == 1
    cache.assume("u1", "pod", "n1", held("gpu-0"))
    cache.release("pod")
    assert cache.snapshot().node_infos["n1"].busy == 1
    assert cache.snapshot().node_infos["n1"].held == 0
    cache.apply_claim(ObjectKey("x", "c"), Claim(ObjectKey("x", "c"), "u1", "5", allocation=Allocation(held("gpu-0"))))
    assert not cache.reservations.in_flight
    assert cache.snapshot().node_infos["n1"].busy == 1


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 9)), max_size=12))
def test_holds_end_at_their_deadline_in_any_order(steps: list[tuple[int, int, int]]) -> None:
    cache, now, deadlines = filled(), 0.0, {}
    for name, lasting, later in steps:
        cache.release(f"pod-{name}")
        cache.hold({f"claim-{name}": Reservation(f"pod-{name}", "n1", held(f"gpu-{name}"), now + lasting)})
        deadlines[name] = now + lasting
        now += later
        cache.expire(now)
        deadlines = {pod: deadline for pod, deadline in deadlines.items() if deadline > now}
        assert cache.reservations.holds == len(deadlines)
        assert cache.timers.next <= min(deadlines.values(), default=float("inf"))


def test_every_state_has_a_way_out() -> None:
    """The table is closed: each state but NONE can end, and only known states are reached."""
    assert set(TRANSITIONS.values()) <= set(ReservationState)
    for state in (ReservationState.HELD, ReservationState.BINDING):
        assert any(start is state and end is ReservationState.NONE for (start, _), end in TRANSITIONS.items())
    assert {event for _, event in TRANSITIONS} <= set(ReservationEvent)


def reserved(state: ReservationState = ReservationState.HELD, deadline: float = 10.0) -> Reservation:
    return Reservation("pod", "n1", held("gpu-0"), deadline, state)


NEW = {
    ReservationEvent.HOLD: reserved(ReservationState.HELD),
    ReservationEvent.ASSUME: reserved(ReservationState.BINDING),
}


@pytest.mark.parametrize("state", list(ReservationState))
@pytest.mark.parametrize("event", list(ReservationEvent))
def test_the_table_has_the_running_transitions(state: ReservationState, event: ReservationEvent) -> None:
    """Each event in each state leads to the state in the table, or it is an error."""
    reservations = Reservations(AllocatedDevices(), CacheTimers())
    for first, new in NEW.items():
        if state is new.state:
            reservations.apply(first, "c", new)
    after = TRANSITIONS.get((state, event))
    if after is None:
        with pytest.raises(InvalidTransition, match=event.value):
            reservations.apply(event, "c", NEW.get(event))
    else:
        reservations.apply(event, "c", NEW.get(event))
    found = reservations.by_claim.get("c")
    now = found.state if found is not None else ReservationState.NONE
    assert now is (after or state)
    assert bool(reservations.in_flight) is (now is ReservationState.BINDING)
    assert reservations.holds == (now is ReservationState.HELD)


@pytest.mark.parametrize("last", [None, Slice("s", PoolKey("d", "other"), 1, 1)])
def test_a_groups_claim_moves_with_the_slices_of_its_pool(last: Slice | None) -> None:
    """The slice of the new node may come before the old one ends, and no later event changes the pool's node."""
    cache = ClusterCache()
    claim = Claim(
        ObjectKey("a", "c"), "u", "1", group="job", allocation=Allocation((Result("r", DeviceId(*POOL, "0")),))
    )
    cache.apply_slice("s", Slice("s", POOL, 1, 1, NodeSelection("n1")))
    cache.apply_claim(claim.key, claim)
    cache.apply_slice("t", Slice("t", POOL, 1, 1, NodeSelection("n2")))
    cache.apply_slice("s", last)
    group = GroupKey("a", GroupSource.BERTH, "job")
    assert cache.snapshot().claims_of_group(group) == {claim.key: "n2"}
    cache.apply_slice("t", None)
    assert cache.snapshot().claims_of_group(group) == {claim.key: "n2"}, "an updated driver deletes its slices"


def test_slices_of_other_nodes_in_its_pool_hide_no_claim_of_a_group() -> None:
    """Any driver may publish slices of its node in any pool; with an older generation the pool stays usable."""
    cache, group = ClusterCache(), GroupKey("a", GroupSource.BERTH, "job")
    result, user = Result("r", DeviceId(*POOL, "0")), Consumer("u-p", "p")
    known = Claim(ObjectKey("a", "known"), "u", "1", group="job", allocation=Allocation((result,)))
    at_node = Allocation((result,), node_selector=only_node("n1"))
    later = Claim(ObjectKey("a", "later"), "v", "1", group="job", allocation=at_node)
    cache.apply_slice("s", Slice("s", POOL, 2, 1, NodeSelection("n1")))
    cache.apply_claim(known.key, known)
    for node in ("n2", "n3"):
        cache.apply_slice(node, Slice(node, POOL, 1, 1, NodeSelection(node)))
    cache.apply_claim(known.key, replace(known, resource_version="2", reserved_for=(user,)))
    cache.apply_claim(later.key, later)
    assert cache.snapshot().claims_of_group(group) == {known.key: "n1", later.key: "n1"}
    assert cache.snapshot().users_of_group(group) == {"u-p": "n1"}
    other = Allocation((Result("r", DeviceId("d", "unknown", "0")),))
    cache.apply_claim(known.key, replace(known, resource_version="3", allocation=other))
    assert cache.snapshot().claims_of_group(group) == {later.key: "n1"}, "other devices may be on another node"


@given(st.permutations(range(4)))
def test_a_groups_claim_is_at_its_node_in_any_order_of_the_pools_slices(order: list[int]) -> None:
    """Attack: hide the claims of a group from its other pods, with a slice of one's own node in their pool."""
    cache = ClusterCache()
    allocation = Allocation((Result("r", DeviceId(*POOL, "0")),), node_selector=only_node("n1"))
    claim = Claim(ObjectKey("a", "c"), "u", "1", group="job", allocation=allocation)
    slices = [Slice(node, POOL, 1, 3, NodeSelection(node)) for node in ("n1", "n2", "n3")]
    events = [partial(cache.apply_claim, claim.key, claim)]
    events += [partial(cache.apply_slice, slice_.name, slice_) for slice_ in slices]
    for position in order:
        events[position]()
    assert cache.snapshot().claims_of_group(GroupKey("a", GroupSource.BERTH, "job")) == {claim.key: "n1"}


@given(st.permutations(range(6)))
def test_order_of_events_does_not_matter(order: list[int]) -> None:
    """The same objects in any order give the same views."""
    machine = carried_machines()["a100-pcie-8-bridged"]
    decoder = SliceDecoder()
    node = decode_node(node_object("n", machine, {}))
    allocation = Allocation((Result("r", DeviceId("gpu.nvidia.com", "n", "gpu-3")),))
    claim = Claim(ObjectKey("x", "c"), "u", "1", allocation=allocation, group="job")
    other = Claim(
        ObjectKey("x", "d"), "v", "1", allocation=Allocation((Result("r", DeviceId("gpu.nvidia.com", "n", "gpu-4")),))
    )
    cache = ClusterCache()
    gpus, fabric = decoder.decode(gpu_slice("n", machine)), decoder.decode(fabric_slice("n", machine))
    events = [
        lambda: cache.apply_node("n", node),
        lambda: cache.apply_slice(gpus.name, gpus),
        lambda: cache.apply_slice(fabric.name, fabric),
        lambda: cache.apply_claim(claim.key, claim),
        lambda: cache.apply_claim(other.key, other),
        lambda: cache.apply_claim(other.key, None),
    ]
    if order.index(5) < order.index(4):
        order = [*order, 5]
    for position in order:
        events[position]()
        cache.snapshot()
    snapshot = cache.snapshot()
    assert snapshot.node_infos["n"].busy == 0b1000
    assert len(snapshot.node_infos["n"].gpu_bits) == 8
    assert snapshot.claims_of_group(GroupKey("x", GroupSource.BERTH, "job")) == {claim.key: "n"}


@given(st.lists(st.sets(st.sampled_from("abcdefgh"), min_size=1), max_size=30), st.integers(1, 8), st.integers(0, 30))
def test_changes_are_known_or_said_to_be_unknown(noted: list[set[str]], kept: int, version: int) -> None:
    changes = ChangeLog(known_since=0)
    for number, nodes in enumerate(noted, 1):
        changes.note(number, nodes, kept)
    found, truth = changes.since(version), set().union(*noted[version:])
    assert found is None or (set(found) == truth and len(found) == len(truth))
    assert found is not None or len(set().union(*noted)) > kept
    assert ChangeLog().since(0) is None


def test_an_agent_becomes_silent_on_time_though_no_other_event_comes() -> None:
    """The first report of an agent starts the timer, and a policy with a shorter time moves it."""

    async def run() -> None:
        clock = asyncio.get_running_loop().time
        cache = ClusterCache()
        cache.slices.agents.use_seconds(900.0)
        machine = carried_machines()["t4-4"]
        slices = {name: SliceDecoder().decode(fabric_slice(name, machine)) for name in ("n1", "n2")}
        for name in slices:
            cache.apply_node(name, decode_node(node_object(name, machine, {})))
        task = asyncio.create_task(expire_holds(cache, clock))
        await asyncio.sleep(1)  # the task waits, and has no deadline
        cache.apply_slice(slices["n1"].name, slices["n1"], clock())
        await asyncio.sleep(899)
        assert not cache.slices.agents.silent
        await asyncio.sleep(2)
        assert cache.slices.agents.silent == {"n1"}
        cache.apply_slice(slices["n2"].name, slices["n2"], clock())
        await asyncio.sleep(1)  # the task waits until the deadline of this report
        cache.slices.agents.use_seconds(100.0)
        await asyncio.sleep(100)
        assert cache.slices.agents.silent == {"n1", "n2"}
        task.cancel()

    in_virtual_time(run())


def test_holds_end_on_time_beside_earlier_ones_that_ended_before_theirs() -> None:
    """As of a pod that is filtered again and again: each request ends its hold and begins a later one."""

    async def run() -> None:
        clock, cache = asyncio.get_running_loop().time, filled()
        task = asyncio.create_task(expire_holds(cache, clock))

        async def hold(pod: str, seconds: float) -> None:
            cache.release(pod)
            cache.hold({f"claim-{pod}": Reservation(pod, "n1", held(f"gpu-{pod}"), clock() + seconds)})
            await asyncio.sleep(1)

        for _ in range(9):
            await hold("again", 30)
        await asyncio.sleep(28)
        assert cache.reservations.holds == 1
        await asyncio.sleep(2)
        assert not cache.reservations.holds
        await hold("later", 30)
        await hold("earlier", 5)
        await asyncio.sleep(4)
        assert [reservation.pod_uid for reservation in cache.reservations.by_claim.values()] == ["later"]
        task.cancel()

    in_virtual_time(run())
