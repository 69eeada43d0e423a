"""A driver of one node that writes in the name of a pool that other nodes see."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from extender.allocation.nodes import Pool
from extender.api.nodes import Node, NodeSelection, Taint
from extender.api.resource_claims import Result
from extender.api.resource_slices import CounterSet, CounterUse, Device, DeviceId, PoolKey, Slice, TaintRule
from extender.cache import ClusterCache
from extender.cache.slice_index import NODE_BURST as BURST
from extender.cache.slice_index import POOL_SECONDS as SECONDS
from tests.worlds.cache_worlds import Freed
from tests.worlds.shared_pool_worlds import allocated_claim

FABRIC = PoolKey("net", "fabric")
NODES = [f"n{number}" for number in range(100)]


def published(name: str, node: str = "", pool: PoolKey = FABRIC, devices: int = 1) -> Slice:
    found = tuple(Device(f"{name}-{number}") for number in range(devices))
    return Slice(name, pool, 1, 2, NodeSelection(node, all_nodes=not node), devices=found)


def fleet(*slices: Slice) -> tuple[ClusterCache, Freed]:
    freed = Freed()
    cache = ClusterCache()
    cache.listeners.append(freed)
    for name in NODES:
        cache.apply_node(name, Node(name))
    for slice_ in slices:
        cache.apply_slice(slice_.name, slice_, 0.0)
    cache.snapshot()
    return cache, freed


def pools_of(cache: ClusterCache, node: str) -> dict[PoolKey, Pool]:
    return {pool.key: pool for pool in cache.snapshot().node_infos[node].inventory.pools}


def pool_of(cache: ClusterCache, node: str) -> Pool:
    (found,) = pools_of(cache, node).values()
    return found


def test_a_driver_that_flips_a_pool_of_all_nodes_has_them_built_again_every_few_seconds() -> None:
    """20 writes a second of one node's driver stalled serve for 0.3 s each, with 4,000 nodes: 1 bind a second."""
    cache, freed = fleet(published("all"))
    own, built = published("own", "n7"), 0
    for number in range(100):
        before = cache.snapshot().node_infos["n1"]
        cache.apply_slice("own", own if number % 2 == 0 else None, 1 + number / 100)
        built += cache.snapshot().node_infos["n1"] is not before
        if number < BURST:
            assert pool_of(cache, "n7").incomplete == (number % 2 == 1), "the node of the driver sees its newest slices"
    assert built == 1
    assert not pool_of(cache, "n1").incomplete
    assert cache.timers.next == pytest.approx(1 + SECONDS)
    cache.expire(1 + SECONDS)
    assert pool_of(cache, "n1").incomplete
    assert freed.count == 1
    assert cache.timers.next == inf, "the driver's own node waited for a shorter time"


def test_one_update_is_one_change() -> None:
    cache, _ = fleet(published("all"), published("own", "n7"))
    cache.expire(SECONDS)
    for number in range(2, 5):
        cache.apply_slice("own", replace(published("own", "n7", devices=number), slice_count=number), SECONDS * number)
        assert len(pool_of(cache, "n7").origin) == 2
        assert cache.timers.next == inf


def test_many_pools_do_not_have_the_nodes_built_more_often() -> None:
    """Attack: have all nodes, or those of a rack, built again for each write of a slice, in the name of a pool that
    they see."""
    pools = [PoolKey("net", f"fabric-{number}") for number in range(10)]
    cache, _ = fleet(*(published(f"all-{pool.name}", pool=pool) for pool in pools))
    cache.snapshot()
    for pool in pools:
        cache.apply_slice(f"own-{pool.name}", published(f"own-{pool.name}", "n7", pool), 1.0)
    assert [pool.incomplete for pool in cache.snapshot().node_infos["n7"].inventory.pools] == [False] * 10
    assert sum(not pool.incomplete for pool in cache.snapshot().node_infos["n1"].inventory.pools) == 10
    cache.apply_slice(f"own-{pools[0].name}", None, 2.0)
    assert not cache.snapshot().node_infos["n1"].inventory.pools[0].incomplete
    cache.expire(1 + SECONDS)
    assert [pool.incomplete for pool in cache.snapshot().node_infos["n1"].inventory.pools] == [True] + [False] * 9


def test_a_driver_of_all_nodes_is_seen_at_once() -> None:
    cache, _ = fleet(published("all"), published("more"))
    for second in range(4):
        cache.apply_slice("more", None, 1.0 + second)
        assert pool_of(cache, "n1").incomplete
        cache.apply_slice("more", published("more"), 1.5 + second)
        assert not pool_of(cache, "n1").incomplete
    assert cache.timers.next == inf


def test_a_pool_of_a_few_nodes_is_seen_at_once() -> None:
    """A rack of nodes may share a pool with a slice for each of them."""
    rack = PoolKey("net", "rack")
    slices = [replace(published(node, node, rack), slice_count=18) for node in NODES[:18]]
    cache, _ = fleet(*slices)
    for number in range(4):
        cache.apply_slice("n7", None if number % 2 == 0 else slices[7], 1.0)
        assert pool_of(cache, "n1").incomplete == (number % 2 == 0)
    assert cache.timers.next == inf


def test_a_taint_rule_does_not_let_the_next_change_wait_without_a_deadline() -> None:
    """The pool waited from the rule on, with a deadline in the past of which nothing told the task that ends waits."""
    cache, _ = fleet(published("all"), published("own", "n7"))
    cache.apply_rule("r", TaintRule("r", Taint("broken", "", "NoSchedule"), driver="net"))
    cache.snapshot()
    assert cache.timers.next == inf
    cache.apply_slice("own", None, 10 * SECONDS)
    assert pool_of(cache, "n1").incomplete


def test_a_slice_of_one_node_in_a_shared_pool_moves_no_claim_of_a_group() -> None:
    claim = replace(allocated_claim("c", 1, Result("r", DeviceId(*FABRIC, "all-0"))), group="g")
    cache, _ = fleet(published("all"))
    cache.apply_claim(claim.key, claim)
    cache.apply_slice("own", published("own", "n7"), 1.0)
    assert not cache.store.of_groups.claims


def test_a_change_that_waits_does_not_wait_for_later_changes() -> None:
    """The event loop may apply a change after the deadline and before the task that ends the wait."""
    first, other = PoolKey("net", "first"), PoolKey("net", "other")
    of_first = [replace(published(node, node, first), slice_count=70) for node in NODES[:70]]
    cache, _ = fleet(*of_first, *(published(f"{node}-other", node, other) for node in NODES[30:]))
    cache.apply_slice("more", published("more", "n99", other), SECONDS)
    cache.apply_slice("n0", None, SECONDS + 1)
    cache.apply_slice("more", None, 2 * SECONDS)
    cache.expire(2 * SECONDS)
    assert pool_of(cache, "n1").incomplete


def test_counters_of_a_slice_that_is_deleted_are_not_free_before_the_nodes_see_it() -> None:
    """The device of a node is in use; its driver deletes its slice. The others gave its counters away for 5 s."""
    amount, one = {"c": 1}, (CounterUse("s", (("c", 1),)),)
    all_slices = [
        Slice(node, FABRIC, 1, 101, NodeSelection(node), devices=(Device(f"of-{node}", consumes=one),))
        for node in NODES
    ]
    counted = Slice("s", FABRIC, 1, 101, NodeSelection(all_nodes=True), counter_sets=(CounterSet("s", amount),))
    cache, _ = fleet(counted, *all_slices)
    for key, device in (("a", "of-n7"), ("b", "of-n8")):
        claim = allocated_claim(key, 1, Result("r", DeviceId(*FABRIC, device)))
        cache.apply_claim(claim.key, claim)
        if key == "a":
            cache.expire(SECONDS)
            cache.snapshot()
            cache.apply_slice("n7", None, SECONDS + 1)
            assert cache.timers.next < inf, "the other nodes do not see it yet"
    pool = pool_of(cache, "n1")
    left = cache.snapshot().node_infos["n1"].allocated_state.left(pool)
    assert pool.incomplete or left["s", "c"] < 0


def test_a_driver_that_flips_the_pool_of_a_rack_has_its_nodes_built_again_every_few_seconds() -> None:
    """20 writes a second in the name of the pool of 60 nodes took a quarter of serve's time, 100 of them two thirds."""
    racks = [PoolKey("net", f"rack-{number}") for number in range(2)]
    slices = [
        replace(published(f"{node}-{rack.name}", node, rack), slice_count=50)
        for number, rack in enumerate(racks)
        for node in NODES[50 * number :][:50]
    ]
    cache, _ = fleet(*slices)
    built = 0
    for number in range(100):
        rack = racks[number // 2 % 2]
        before = [cache.snapshot().node_infos[node] for node in NODES]
        cache.apply_slice("own", published("own", "n7", rack) if number % 2 == 0 else None, number / 100)
        built += sum(cache.snapshot().node_infos[node] is not old for node, old in zip(NODES, before, strict=True))
    assert built < 700
    while cache.timers.next < inf:
        cache.expire(cache.timers.next)
    assert [pool_of(cache, node).incomplete for node in ("n1", "n99")] == [False, False]
