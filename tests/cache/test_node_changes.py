"""Drivers and agents that change slices again and again: of their node, or in the name of a pool that others see."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from extender.allocation.nodes import Pool
from extender.api.nodes import Node, NodeSelection, Taint
from extender.api.resource_claims import Result
from extender.api.resource_slices import CounterSet, CounterUse, Device, DeviceId, PoolKey, Slice, TaintRule
from extender.base.timers import Cooldown
from extender.cache import ClusterCache
from extender.cache.slice_index import NODE_BURST as BURST
from extender.cache.slice_index import NODE_SECONDS as SECONDS
from extender.cache.slice_index import POOL_SECONDS, CacheTimers, TimerKind
from extender.topology.agent_slices import DRIVER
from tests.worlds.cache_worlds import Freed
from tests.worlds.shared_pool_worlds import allocated_claim

POOL = PoolKey("gpu", "n1")


def published(devices: int, name: str = "s", node: str = "n1", count: int = 1) -> Slice:
    found = tuple(Device(f"{name}-{number}") for number in range(devices))
    return Slice(name, PoolKey("gpu", node), 1, count, NodeSelection(node), devices=found)


def with_nodes(*names: str) -> tuple[ClusterCache, Freed]:
    freed = Freed()
    cache = ClusterCache()
    cache.listeners.append(freed)
    for name in names:
        cache.apply_node(name, Node(name))
        cache.apply_slice(f"s-{name}", published(1, f"s-{name}", name))
    cache.snapshot()
    return cache, freed


def devices(cache: ClusterCache, node: str = "n1") -> int:
    return len(cache.snapshot().node_infos[node].inventory.devices)


def test_a_driver_that_changes_its_devices_again_and_again_has_its_node_built_every_few_seconds() -> None:
    """1,024 GPUs of ever new products, written 20 times a second, left pods with matchAttribute 13 % of their rate."""
    cache, freed = with_nodes("n1", "n2")
    built, deadlines = 0, list[float]()
    cache.timers.on_earlier = lambda: deadlines.append(cache.timers.next)
    for number in range(200):
        before = cache.snapshot().node_infos["n1"]
        cache.apply_slice("s-n1", published(2 + number % 100, "s-n1"), 1 + number / 200)
        built += cache.snapshot().node_infos["n1"] is not before
    assert built == BURST
    assert devices(cache) == 1 + BURST
    (deadline,) = deadlines
    assert 1 + SECONDS < deadline < 2 + SECONDS
    cache.expire(deadline)
    assert devices(cache) == 101
    assert freed.count == 1
    assert cache.timers.next == inf


def test_an_agents_slice_without_a_node_has_no_node_built() -> None:
    cache, _ = with_nodes("n1")
    before = cache.snapshot().node_infos["n1"]
    cache.apply_slice("lost", Slice("lost", PoolKey(DRIVER, "n1"), 1, 1, NodeSelection(all_nodes=True)), 1.0)
    assert cache.backlog <= 1
    assert cache.snapshot().node_infos["n1"] is before


def test_a_driver_that_starts_writes_many_slices_at_once() -> None:
    cache, _ = with_nodes("n1")
    cache.apply_slice("s-n1", None, 1.0)
    for number in range(60):
        cache.apply_slice(f"s{number}", published(2, f"s{number}", count=60), 1.0)
    assert devices(cache) == 120
    assert cache.timers.next == inf


def test_a_node_that_waits_is_built_at_once_if_something_else_changes_it() -> None:
    cache, _ = with_nodes("n1")
    for number in range(50):
        cache.apply_slice("s-n1", published(2 + number, "s-n1"), 1.0)
        cache.snapshot()
    assert devices(cache) < 51
    cache.apply_node("n1", Node("n1", labels={"a": "b"}))
    assert devices(cache) == 51


def test_counters_of_a_slice_that_was_deleted_are_not_free_on_a_node_that_waits() -> None:
    """Attack: have searches repeated, scores computed or the node built again for each write of a slice, with devices
    or memory data that change again and again."""
    one = (CounterUse("s", (("c", 1),)),)
    counted = Slice("c", POOL, 1, 3, NodeSelection("n1"), counter_sets=(CounterSet("s", {"c": 1}),))
    parts = [replace(published(1, name, count=3), devices=(Device(name, consumes=one),)) for name in ("x", "y")]
    cache, _ = with_nodes()
    cache.apply_node("n1", Node("n1"))
    for slice_ in (counted, *parts):
        cache.apply_slice(slice_.name, slice_)
    cache.snapshot()
    for number in range(50):
        cache.apply_slice("y", replace(parts[1], resource_version=str(number)), 1.0)
        cache.snapshot()
    for key, device in (("a", "x"), ("b", "y")):
        claim = allocated_claim(key, 1, Result("r", DeviceId(*POOL, device)))
        cache.apply_claim(claim.key, claim)
        if key == "a":
            cache.apply_slice("x", None, 1.0)
    info = cache.snapshot().node_infos["n1"]
    (pool,) = info.inventory.pools
    assert pool.incomplete or info.allocated_state.left(pool)["s", "c"] < 0


def test_the_nodes_with_recent_changes_are_bounded() -> None:
    changes = Cooldown(CacheTimers(), TimerKind.NODE_CHANGES, 16, 5.0)
    for number in range(10_000):
        assert changes.try_accept(f"n{number}", 1.0)
    assert len(changes) <= 8192


FABRIC = PoolKey("net", "fabric")
NODES = [f"n{number}" for number in range(100)]


def of_pool(name: str, node: str = "", pool: PoolKey = FABRIC, devices: int = 1) -> Slice:
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
    cache, freed = fleet(of_pool("all"))
    own, built = of_pool("own", "n7"), 0
    for number in range(100):
        before = cache.snapshot().node_infos["n1"]
        cache.apply_slice("own", own if number % 2 == 0 else None, 1 + number / 100)
        built += cache.snapshot().node_infos["n1"] is not before
        if number < BURST:
            assert pool_of(cache, "n7").incomplete == (number % 2 == 1), "the node of the driver sees its newest slices"
    assert built == 1
    assert not pool_of(cache, "n1").incomplete
    assert cache.timers.next == pytest.approx(1 + POOL_SECONDS)
    cache.expire(1 + POOL_SECONDS)
    assert pool_of(cache, "n1").incomplete
    assert freed.count == 1
    assert cache.timers.next == inf, "the driver's own node waited for a shorter time"


def test_one_update_is_one_change() -> None:
    cache, _ = fleet(of_pool("all"), of_pool("own", "n7"))
    cache.expire(POOL_SECONDS)
    for number in range(2, 5):
        update = replace(of_pool("own", "n7", devices=number), slice_count=number)
        cache.apply_slice("own", update, POOL_SECONDS * number)
        assert len(pool_of(cache, "n7").origin) == 2
        assert cache.timers.next == inf


def test_many_pools_do_not_have_the_nodes_built_more_often() -> None:
    """Attack: have all nodes, or those of a rack, built again for each write of a slice, in the name of a pool that
    they see."""
    pools = [PoolKey("net", f"fabric-{number}") for number in range(10)]
    cache, _ = fleet(*(of_pool(f"all-{pool.name}", pool=pool) for pool in pools))
    cache.snapshot()
    for pool in pools:
        cache.apply_slice(f"own-{pool.name}", of_pool(f"own-{pool.name}", "n7", pool), 1.0)
    assert [pool.incomplete for pool in cache.snapshot().node_infos["n7"].inventory.pools] == [False] * 10
    assert sum(not pool.incomplete for pool in cache.snapshot().node_infos["n1"].inventory.pools) == 10
    cache.apply_slice(f"own-{pools[0].name}", None, 2.0)
    assert not cache.snapshot().node_infos["n1"].inventory.pools[0].incomplete
    cache.expire(1 + POOL_SECONDS)
    assert [pool.incomplete for pool in cache.snapshot().node_infos["n1"].inventory.pools] == [True] + [False] * 9


def test_a_driver_of_all_nodes_is_seen_at_once() -> None:
    cache, _ = fleet(of_pool("all"), of_pool("more"))
    for second in range(4):
        cache.apply_slice("more", None, 1.0 + second)
        assert pool_of(cache, "n1").incomplete
        cache.apply_slice("more", of_pool("more"), 1.5 + second)
        assert not pool_of(cache, "n1").incomplete
    assert cache.timers.next == inf


def test_a_pool_of_a_few_nodes_is_seen_at_once() -> None:
    """A rack of nodes may share a pool with a slice for each of them."""
    rack = PoolKey("net", "rack")
    slices = [replace(of_pool(node, node, rack), slice_count=18) for node in NODES[:18]]
    cache, _ = fleet(*slices)
    for number in range(4):
        cache.apply_slice("n7", None if number % 2 == 0 else slices[7], 1.0)
        assert pool_of(cache, "n1").incomplete == (number % 2 == 0)
    assert cache.timers.next == inf


def test_a_taint_rule_does_not_let_the_next_change_wait_without_a_deadline() -> None:
    """The pool waited from the rule on, with a deadline in the past of which nothing told the task that ends waits."""
    cache, _ = fleet(of_pool("all"), of_pool("own", "n7"))
    cache.apply_rule("r", TaintRule("r", Taint("broken", "", "NoSchedule"), driver="net"))
    cache.snapshot()
    assert cache.timers.next == inf
    cache.apply_slice("own", None, 10 * POOL_SECONDS)
    assert pool_of(cache, "n1").incomplete


def test_a_slice_of_one_node_in_a_shared_pool_moves_no_claim_of_a_group() -> None:
    claim = replace(allocated_claim("c", 1, Result("r", DeviceId(*FABRIC, "all-0"))), group="g")
    cache, _ = fleet(of_pool("all"))
    cache.apply_claim(claim.key, claim)
    cache.apply_slice("own", of_pool("own", "n7"), 1.0)
    assert not cache.store.of_groups.claims


def test_a_change_that_waits_does_not_wait_for_later_changes() -> None:
    """The event loop may apply a change after the deadline and before the task that ends the wait."""
    first, other = PoolKey("net", "first"), PoolKey("net", "other")
    of_first = [replace(of_pool(node, node, first), slice_count=70) for node in NODES[:70]]
    cache, _ = fleet(*of_first, *(of_pool(f"{node}-other", node, other) for node in NODES[30:]))
    cache.apply_slice("more", of_pool("more", "n99", other), POOL_SECONDS)
    cache.apply_slice("n0", None, POOL_SECONDS + 1)
    cache.apply_slice("more", None, 2 * POOL_SECONDS)
    cache.expire(2 * POOL_SECONDS)
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
            cache.expire(POOL_SECONDS)
            cache.snapshot()
            cache.apply_slice("n7", None, POOL_SECONDS + 1)
            assert cache.timers.next < inf, "the other nodes do not see it yet"
    pool = pool_of(cache, "n1")
    left = cache.snapshot().node_infos["n1"].allocated_state.left(pool)
    assert pool.incomplete or left["s", "c"] < 0


def test_a_driver_that_flips_the_pool_of_a_rack_has_its_nodes_built_again_every_few_seconds() -> None:
    """20 writes a second in the name of the pool of 60 nodes took a quarter of serve's time, 100 of them two thirds."""
    racks = [PoolKey("net", f"rack-{number}") for number in range(2)]
    slices = [
        replace(of_pool(f"{node}-{rack.name}", node, rack), slice_count=50)
        for number, rack in enumerate(racks)
        for node in NODES[50 * number :][:50]
    ]
    cache, _ = fleet(*slices)
    built = 0
    for number in range(100):
        rack = racks[number // 2 % 2]
        before = [cache.snapshot().node_infos[node] for node in NODES]
        cache.apply_slice("own", of_pool("own", "n7", rack) if number % 2 == 0 else None, number / 100)
        built += sum(cache.snapshot().node_infos[node] is not old for node, old in zip(NODES, before, strict=True))
    assert built < 700
    while cache.timers.next < inf:
        cache.expire(cache.timers.next)
    assert [pool_of(cache, node).incomplete for node in ("n1", "n99")] == [False, False]
