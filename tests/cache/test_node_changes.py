"""The drivers and the agent of a node that change their slices again and again."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from extender.api.nodes import Node, NodeSelection
from extender.api.resource_claims import Result
from extender.api.resource_slices import CounterSet, CounterUse, Device, DeviceId, PoolKey, Slice
from extender.base.timers import Cooldown
from extender.cache import ClusterCache
from extender.cache.slice_index import NODE_BURST as BURST
from extender.cache.slice_index import NODE_SECONDS as SECONDS
from extender.cache.slice_index import CacheTimers, TimerKind
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
