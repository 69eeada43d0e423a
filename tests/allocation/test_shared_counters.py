"""The consumed counters of a pool that many nodes see are computed once, not once for each node."""

from __future__ import annotations

from typing import Any

from extender.allocation import NodeInfo
from extender.api.nodes import decode_node
from extender.api.resource_claims import Reservation, Result
from extender.api.resource_slices import DeviceId, PoolKey
from extender.cache import ClusterCache
from tests.worlds.filled_caches import put
from tests.worlds.shared_pool_worlds import NET, slice_object

NODES = [f"n{number}" for number in range(4)]
POOL = PoolKey(NET, "counted")
CONSUMES = [{"counterSet": "s", "counters": {"c": {"value": "1"}}}]
COUNTERS = [{"name": "s", "counters": {"c": {"value": "2"}}}]


def filled() -> ClusterCache:
    cache = ClusterCache()
    for name in NODES:
        put_node(cache, name)
    put(cache, counted(), counters())
    cache.hold({"c": Reservation("p", "n0", (Result("r", DeviceId(NET, "counted", "d0")),), 10.0)})
    return cache


def put_node(cache: ClusterCache, name: str, **labels: str) -> None:
    cache.apply_node(name, decode_node({"metadata": {"name": name, "labels": labels}}))


def counted(devices: int = 2) -> dict[str, Any]:
    found = [{"name": f"d{number}", "consumesCounters": CONSUMES} for number in range(devices)]
    return slice_object("counted", 2, devices=found, allNodes=True)


def counters() -> dict[str, Any]:
    return slice_object("counted", 2, "counters", sharedCounters=COUNTERS, allNodes=True)


def consumed(info: NodeInfo) -> Any:
    (pool,) = info.inventory.pools
    return info.allocated_state.counters(pool)


def test_a_changed_slice_computes_the_counters_once() -> None:
    cache = filled()
    cache.snapshot()
    put(cache, counted(3))
    found = [consumed(info) for info in cache.snapshot().node_infos.values()]
    assert found[0] == {("s", "c"): 10**9}
    assert all(one is found[0] for one in found)


def test_the_counters_of_a_pool_that_all_nodes_see_may_be_in_a_slice_of_one_node() -> None:
    """The other nodes once had an invalid pool, where `berth allocate` and the in-tree scheduler have a usable one."""
    cache = filled()
    slice_ = {**counters(), "spec": {**counters()["spec"], "allNodes": False, "nodeName": "n1"}}
    put(cache, slice_)
    for info in cache.snapshot().node_infos.values():
        assert [(pool.trouble, len(pool.slices)) for pool in info.inventory.pools] == [("", 1)]
        assert consumed(info) == {("s", "c"): 10**9}
