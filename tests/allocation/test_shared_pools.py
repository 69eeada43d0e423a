"""Pools that many nodes reach: a change of their use or of their rules gives what a new cache would have built."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given

from extender.allocation import NodeInfo
from extender.api.nodes import Taint
from extender.api.resource_claims import Reservation, Result
from extender.api.resource_slices import DeviceId, PoolKey, SliceDecoder, TaintRule
from extender.cache import ClusterCache
from tests.worlds.cache_worlds import CountingBuilder
from tests.worlds.filled_caches import device_slice, put
from tests.worlds.shared_pool_worlds import (
    GPU,
    NET,
    OTHER_SIDE,
    SELECTOR,
    apply,
    described,
    filled,
    hold,
    node_of,
    slice_object,
    steps,
    two_nodes,
)


def partition(cache: ClusterCache) -> set[tuple[str, ...]]:
    """The nodes by state. Each node's NodeInfo names the state that lists it."""
    snapshot = cache.snapshot()
    by_state = {number: tuple(state.names) for number, state in snapshot.states.items() if number == state.number}
    for name, info in snapshot.node_infos.items():
        assert name in by_state[info.state.number]
    assert sorted(name for names in by_state.values() for name in names) == sorted(snapshot.node_infos)
    return set(by_state.values())


def marks_gains(cache: ClusterCache, version: int, before: dict[str, NodeInfo]) -> None:
    """Every node that has a device which it did not have before is among the nodes that gained."""
    snapshot = cache.snapshot()
    gained = set(snapshot.gained_since(version) or ())
    for name, info in snapshot.node_infos.items():
        old = before.get(name)
        free = {one.id for bit, one in enumerate(info.inventory.devices) if not info.busy >> bit & 1}
        if old is None or free - {one.id for bit, one in enumerate(old.inventory.devices) if not old.busy >> bit & 1}:
            assert name in gained


@given(steps)
@example([("hold", 0, [Result("r", DeviceId(NET, "all", "d0"))]), ("slice", 8, None)])
def test_many_changes_give_what_a_new_cache_would_have_built(sequence: list[tuple[str, int, Any]]) -> None:
    """One cache takes a snapshot after each change, one reads all nodes, one builds a few nodes, one does nothing."""
    followed, late, read, partly = filled(), filled(), filled(), filled()
    partly.snapshot()
    for step in sequence:
        before = read.snapshot()
        version, infos = before.version, dict(before.node_infos)
        for cache in (followed, late, read, partly):
            apply(cache, step)
        followed.snapshot()
        partly.rebuild(2)
        marks_gains(read, version, infos)
    for cache in (followed, late, read, partly):
        cache.expire(9.0)  # changes of pools that others see may wait; the holds go on
    assert described(followed) == described(late) == described(read) == described(partly)
    assert partition(followed) == partition(late) == partition(read) == partition(partly)


def test_the_use_of_a_pool_that_stays_incomplete_follows_its_claims() -> None:
    """A pool of one node's slice becomes one of a slice for all nodes, and no write completes it."""
    own, everywhere = (
        SliceDecoder().decode(slice_object("part", 2, **nodes, devices=[{"name": "d0"}]))
        for nodes in ({"nodeName": "n0"}, {"allNodes": True})
    )
    changed, new = filled(), filled()
    changed.apply_slice(own.name, own)
    changed.snapshot()
    for cache in (changed, new):
        cache.apply_slice(everywhere.name, everywhere)
        cache.snapshot()
        hold(cache, "part", "d0")
    assert described(changed) == described(new)


def test_a_claim_on_a_shared_pool_builds_no_node() -> None:
    cache = filled()
    builder = CountingBuilder(cache)
    version = cache.snapshot().version
    builder.built.clear()
    hold(cache, "all", "d0")
    after = cache.snapshot()
    assert sorted(after.changed_since(version) or ()) == [f"n{number}" for number in range(6)]
    assert all(info.busy.bit_count() == info.held.bit_count() == 1 for info in after.node_infos.values())
    assert not builder.built


def test_only_nodes_that_reach_a_pool_change_with_its_use() -> None:
    cache = filled()
    version = cache.snapshot().version
    hold(cache, "left", "d0")
    assert sorted(cache.snapshot().changed_since(version) or ()) == ["n0", "n2", "n4"]


def before_a_failing_build() -> ClusterCache:
    """The next build of n0 fails, whose label has changed."""
    cache = filled()
    builder = CountingBuilder(cache)
    cache.snapshot()
    builder.next_fails = True
    cache.apply_node("n0", node_of(0, "right"))
    return cache


def test_a_node_whose_build_fails_still_has_the_use_of_shared_pools() -> None:
    cache = before_a_failing_build()
    hold(cache, "all", "d0")
    infos = cache.snapshot().node_infos
    assert cache.failed_nodes.keys() == {"n0"}
    assert [info.busy.bit_count() for info in infos.values()] == [1] * 6
    hold(cache, "all", "d1")
    assert [info.busy.bit_count() for info in cache.snapshot().node_infos.values()] == [2] * 6


def test_a_claim_on_a_shared_pool_builds_all_of_a_node_whose_build_failed() -> None:
    """A build of the use alone would end the failure, and the node would keep its old labels and slices."""
    cache = before_a_failing_build()
    assert cache.snapshot().node_infos["n0"].node.labels["side"] == "left"
    hold(cache, "counted", "d0")
    info = cache.snapshot().node_infos["n0"]
    assert PoolKey(NET, "left") not in {pool.key for pool in info.inventory.pools}
    assert not cache.failed_nodes


def test_nodes_that_see_other_slices_of_a_pool_are_in_other_states() -> None:
    """Else a claim on the device of one of them would move both."""
    cache = two_nodes(
        slice_object("split", 2, "left", nodeSelector=SELECTOR, devices=[{"name": "l0"}]),
        slice_object("split", 2, "right", nodeSelector=OTHER_SIDE, devices=[{"name": "r0"}]),
    )
    infos = cache.snapshot().node_infos
    assert infos["a"].state is not infos["b"].state
    hold(cache, "split", "r0")
    assert {name: info.busy for name, info in cache.snapshot().node_infos.items()} == {"a": 0, "b": 1}


def test_nodes_in_one_state_may_report_other_memory_of_a_shared_gpu() -> None:
    """While a claim has the GPU, its memory in use says nothing. Afterwards one node reports a use without a claim."""
    gpu = {"name": "d0", "attributes": {"uuid": {"string": "GPU-x"}}}

    def agent(node: str, free: int) -> dict[str, Any]:
        numbers = {"memoryTotalMiB": 80_000, "memoryFreeMiB": free, "memoryReservedMiB": 0}
        attributes = {"uuid": {"string": "GPU-x"}, **{name: {"int": value} for name, value in numbers.items()}}
        return device_slice(node, "fabric.berth.dev", [{"name": "gpu-0", "attributes": attributes}])

    published = slice_object("all", driver=GPU, allNodes=True, devices=[gpu])
    cache = two_nodes(published, agent("a", 10_000), agent("b", 80_000))
    cache.hold({"d0": Reservation("d0", "n0", (Result("r", DeviceId(GPU, "all", "d0")),), 10.0)})
    infos = cache.snapshot().node_infos
    assert infos["a"].state is infos["b"].state
    cache.release("d0")
    infos = cache.snapshot().node_infos
    assert {name: (info.drift, tuple(info.state.names)) for name, info in infos.items()} == {
        "a": (1, ("a",)),
        "b": (0, ("b",)),
    }


def test_a_rule_for_one_pool_changes_the_nodes_of_that_pool() -> None:
    cache = filled()
    for pool, changed in (("n1", ["n1"]), ("left", ["n0", "n2", "n4"]), ("nowhere", [])):
        version = cache.snapshot().version
        for rule in (TaintRule("r", Taint("k"), pool=pool), None):
            cache.apply_rule("r", rule)
            marked = set(cache.snapshot().changed_since(version) or ())
            tainted = {
                name
                for name, info in cache.snapshot().node_infos.items()
                if any(pool_device.device.taints for pool_device in info.inventory.devices)
            }
            assert tainted == (set(changed) if rule is not None else set())
            assert marked >= set(changed)


def test_a_slice_that_moves_to_another_pool_is_found_by_the_rules_of_that_pool() -> None:
    cache = filled()
    moved = slice_object("new", suffix="x", allNodes=True, devices=[{"name": "d0"}])
    moved["metadata"]["name"] = "all-devices"
    found = SliceDecoder().decode(moved)
    cache.apply_slice(found.name, found)
    cache.apply_rule("old", TaintRule("old", Taint("old"), pool="all"))
    cache.apply_rule("new", TaintRule("new", Taint("new"), pool="new"))
    cache.snapshot()
    (device,) = cache.slices.pools.by_pool[PoolKey(NET, "new")]["all-devices"].devices
    assert [taint.key for taint in device.taints] == ["new"]


def test_a_node_keeps_its_fabric_if_another_driver_publishes_its_gpu() -> None:
    """A new slice for all nodes changes no GPU, and the node's own driver publishes the GPU, too."""
    cache = filled()
    fabric = cache.snapshot().node_infos["n0"].fabric
    assert fabric is not None
    stolen = {"name": "d0", "attributes": {"uuid": {"string": fabric.uuids[0]}}}
    for number, devices in enumerate(([{"name": "d0"}], [stolen])):
        objects = [
            slice_object("stolen", suffix=f"x{number}", driver=GPU, nodeName="n5", devices=devices),
            slice_object(f"more-{number}", allNodes=True, devices=[{"name": "d0"}]),
        ]
        put(cache, *objects)
        assert cache.snapshot().node_infos["n0"].fabric is fabric
    assert not cache.agent_problems
