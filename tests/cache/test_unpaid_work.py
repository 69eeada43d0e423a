"""The work of a filter request that no budget covers, counted in calls of Python functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from extender.api.nodes import Node
from extender.api.object_meta import ObjectKey
from extender.api.pods import Pod, decode_pod
from extender.api.resource_claims import PodClaim
from extender.api.resource_slices import CounterSet, CounterUse, Device
from extender.cache import ClusterCache
from extender.runtime.informers import WatchProgress
from extender.serve.write_barrier import WriteBarrier
from tests.worlds.counted_work import calls_of, lines_of
from tests.worlds.evaluation_worlds import Fleet, allocated, apply
from tests.worlds.gang_worlds import SPINE
from tests.worlds.running_berth import claim
from tests.worlds.running_berth import pod as pod_object
from tests.worlds.shared_pool_worlds import a_slice, allocated_claim, use


def pod_elsewhere(nodes: int, claims: int, pins: int, users: int) -> tuple[Fleet, Pod, list[str]]:
    """A pod whose claims have devices on the first `pins` nodes. `names` are the other nodes."""
    fleet = Fleet(nodes=nodes)
    keys = apply(fleet, *(allocated(f"c{i}", f"n{i % pins}", users=users) for i in range(claims)))
    pod = Pod(ObjectKey("default", "p"), "uid-p", tuple(PodClaim(f"g-{key.name}", key.name) for key in keys))
    fleet.cache.apply_pod(pod.uid, pod)
    return fleet, pod, fleet.names[pins:]


def member(nodes: int) -> tuple[Fleet, Pod, list[str]]:
    """A pod whose group has a running member; all nodes are near it."""
    fleet = Fleet(nodes=nodes, kinds=1)
    for name in fleet.names:
        fleet.cache.apply_node(name, Node(name, {SPINE: "s"}))
    apply(fleet, allocated("runs", "n1", "g"), claim("c"))
    waits = pod_object("p", "c", annotations={"berth.dev/group": "g"})
    waits["metadata"]["uid"] = "uid-p"
    pod = decode_pod(waits)
    fleet.cache.apply_pod(pod.uid, pod)
    return fleet, pod, fleet.names


def pod_of_shared_devices(nodes: int) -> tuple[Fleet, Pod, list[str]]:
    """A pod with 64 claims, each of another device that all nodes can use."""
    fleet = Fleet(nodes=nodes)
    for name in fleet.names:
        fleet.cache.apply_node(name, Node(name, {f"k{i}": "v" for i in range(64)}))
    found = [allocated(f"c{i}", "shared") for i in range(64)]
    for i, one in enumerate(found):
        wanted = [{"key": f"k{i}", "operator": "Exists"}]
        one["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"] = [{"matchExpressions": wanted}]
    keys = apply(fleet, *found)
    pod = Pod(ObjectKey("default", "p"), "uid-p", tuple(PodClaim(f"g-{key.name}", key.name) for key in keys))
    fleet.cache.apply_pod(pod.uid, pod)
    return fleet, pod, fleet.names


def calls_for_each_node(world: Callable[[int], tuple[Fleet, Pod, list[str]]]) -> float:
    """By how many calls a filter request grows with each node, when all evaluations are known."""
    found = []
    for nodes in (50, 150):
        fleet, pod, names = world(nodes)
        assert not fleet.filter_service.filter(pod, names).error
        found.append(calls_of(partial(fleet.filter_service.filter, pod, names)))
    return (found[1] - found[0]) / 100


@pytest.mark.parametrize("users", [0, 1])
@pytest.mark.parametrize("pins", [1, 2])
@pytest.mark.parametrize("claims", [1, 64])
def test_nodes_are_not_compared_with_the_selectors_of_allocated_claims(claims: int, pins: int, users: int) -> None:
    """With 5,000 nodes a pod of one such claim took 49 ms of each filter request, and one of 64 took 570 ms."""
    assert calls_for_each_node(partial(pod_elsewhere, claims=claims, pins=min(pins, claims), users=users)) <= 3


def test_a_member_is_not_scored_on_each_node_near_its_group() -> None:
    """With 5,000 nodes of one spine each member took 47 ms of a filter request."""
    assert calls_for_each_node(member) <= 1


def test_nodes_are_compared_once_with_the_selectors_of_shared_devices() -> None:
    """With 1,000 nodes and 64 claims of eight conditions this took 0.12 s of each filter request."""
    assert calls_for_each_node(pod_of_shared_devices) <= 8


def test_the_write_barrier_reads_a_pool_once_for_a_claim() -> None:
    """64 claims of 32 devices each in a pool of 2,048 took 190 ms in each of the two checks of a bind."""
    assert lines_of_a_check(devices=16, pool=512) <= lines_of_a_check(devices=1, pool=512) + 16 * 150


def lines_of_a_check(devices: int, pool: int) -> int:
    """The lines that the check of a claim runs: its partitions are the last ones of a pool with 50 earlier claims."""
    cache, uses = ClusterCache(), (CounterUse("gpu", (("mem", 1),)),)
    parts = [Device(f"d{i}", consumes=uses) for i in range(pool)]
    cache.apply_slice("a", a_slice("a", CounterSet("gpu", {"mem": pool}), *parts))
    for i in range(50):
        cache.apply_claim(ObjectKey("ns", f"e{i}"), allocated_claim(f"e{i}", 10, use(f"d{i}")))
    mine = allocated_claim("mine", 20, *(use(f"d{pool - 1 - i}") for i in range(devices)))
    cache.apply_claim(mine.key, mine)
    return lines_of(lambda: WriteBarrier(cache, WatchProgress(), lambda: "", "test").require_kept(mine))
