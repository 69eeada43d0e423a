"""The consumed counters of a pool that many nodes see are computed once, not once for each node."""

from __future__ import annotations

from typing import Any

from extender.allocation import NodeInfo
from extender.cache import ClusterCache
from extender.model import DeviceId, PoolKey, Result
from extender.wire import SliceDecoder, decode_node
from tests.test_shared_pools import NET, slice_object

NODES = [f"n{number}" for number in range(4)]
POOL = PoolKey(NET, "counted")
CONSUMES = [{"counterSet": "s", "counters": {"c": {"value": "1"}}}]
COUNTERS = [{"name": "s", "counters": {"c": {"value": "2"}}}]


def filled(*objects: dict[str, Any]) -> ClusterCache:
    cache = ClusterCache()
    for name in NODES:
        put_node(cache, name)
    for one in objects:
        put(cache, one)
    cache.hold("c", "p", "n0", (Result("r", DeviceId(NET, "counted", "d0")),), 10.0)
    return cache


def put_node(cache: ClusterCache, name: str, **labels: str) -> None:
    cache.apply_node(name, decode_node({"metadata": {"name": name, "labels": labels}}))


def put(cache: ClusterCache, obj: dict[str, Any]) -> None:
    slice_ = SliceDecoder().decode(obj)
    cache.apply_slice(slice_.name, slice_)


def counted(devices: int = 2, **where: Any) -> dict[str, Any]:
    """A pool with counters in the slice of its devices, as in 1.34."""
    found = [{"name": f"d{number}", "consumesCounters": CONSUMES} for number in range(devices)]
    return slice_object("counted", sharedCounters=COUNTERS, devices=found, **where)


def consumed(info: NodeInfo) -> Any:
    (pool,) = info.inventory.pools
    return info.allocated_state.counters(pool)


def test_a_changed_slice_computes_the_counters_once() -> None:
    cache = filled(counted(allNodes=True))
    cache.snapshot()
    put(cache, counted(3, allNodes=True))
    found = [consumed(info) for info in cache.snapshot().node_infos.values()]
    assert found[0] == {("s", "c"): 10**9}
    assert all(one is found[0] for one in found)


def test_nodes_that_see_two_generations_in_turn_compute_each_once() -> None:
    """A driver moves a pool from all nodes to two of them: the others see no slice of the new generation yet."""
    cache = filled(counted(allNodes=True))
    for number, counters in ((1, COUNTERS), (3, None)):
        device = {"name": f"d{number}", "consumesCounters": CONSUMES}
        more = {"sharedCounters": counters} if counters else {}
        new = slice_object("counted", 2, f"of-n{number}", nodeName=f"n{number}", devices=[device], **more)
        new["spec"]["pool"]["generation"] = 2
        put(cache, new)
    for name in NODES:
        put_node(cache, name, touched="yes")
        cache.snapshot()
    infos = cache.snapshot().node_infos
    assert [infos[name].inventory.pools[0].slices[0].generation for name in NODES] == [1, 2, 1, 2]
    assert consumed(infos["n0"]) is consumed(infos["n2"])
    assert consumed(infos["n1"]) is consumed(infos["n3"])
