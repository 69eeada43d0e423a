"""Nodes that reach shared pools, and random changes of these pools."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st

from extender.api.nodes import Node, NodeSelection, Taint, decode_node
from extender.api.object_meta import ObjectKey
from extender.api.quantity import from_int
from extender.api.resource_claims import Allocation, Claim, Reservation, Result
from extender.api.resource_slices import CounterSet, Device, DeviceId, PoolKey, Slice, SliceDecoder, TaintRule
from extender.cache import ClusterCache
from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import gpu_slice, node_object
from tests.worlds.filled_caches import put

NET, GPU = "net.example.com", "gpu.nvidia.com"
KINDS = ("t4-4", "t4-4", "dgx1-v100", "t4-4", "dgx1-v100", "t4-4")
SELECTOR = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "side", "operator": "In", "values": ["left"]}]}]}
OTHER_SIDE = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "side", "operator": "NotIn", "values": ["left"]}]}]}
# Every node reaches "all", the nodes with an even number reach "left", and "counted" has shared counters.
SHARED = ("all", "left", "counted", "split", "named", "mixed")


def shared_slices() -> list[dict[str, Any]]:
    plain = [{"name": f"d{i}"} for i in range(3)]
    partial = {"name": "part", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "80"}}}
    consumes = [{"counterSet": "s", "counters": {"c": {"value": "1"}}}]
    counting = [{"name": f"d{i}", "consumesCounters": consumes} for i in range(3)]
    named = [{"name": f"d{number}", "nodeName": f"n{number}"} for number in (0, 1)]
    counters = [{"name": "s", "counters": {"c": {"value": "2"}}}]
    return [
        slice_object("all", allNodes=True, devices=[*plain, partial]),
        slice_object("left", nodeSelector=SELECTOR, devices=plain),
        slice_object("counted", 2, allNodes=True, devices=counting),
        slice_object("counted", 2, "counters", allNodes=True, sharedCounters=counters),
        # One pool of which some nodes see another slice, and one with devices that name a node.
        slice_object("split", 2, "left", nodeSelector=SELECTOR, devices=[{"name": "d0"}]),
        slice_object("split", 2, "right", nodeSelector=OTHER_SIDE, devices=[{"name": "d1"}]),
        slice_object("named", perDeviceNodeSelection=True, devices=named),
        # A node's own slice in a pool that all nodes see.
        slice_object("mixed", 2, allNodes=True, devices=[{"name": "d0"}]),
        slice_object("mixed", 2, "own", nodeName="n2", devices=[{"name": "d1"}]),
    ]


def slice_object(pool: str, count: int = 1, suffix: str = "devices", **spec: Any) -> dict[str, Any]:
    about = {"driver": NET, "pool": {"name": pool, "generation": 1, "resourceSliceCount": count}}
    return {"kind": "ResourceSlice", "metadata": {"name": f"{pool}-{suffix}"}, "spec": {**about, **spec}}


@cache
def _slices() -> list[Slice]:
    """The shared slices, and those of the nodes."""
    pairs = [(f"n{number}", carried_machines()[kind]) for number, kind in enumerate(KINDS)]
    decoder = SliceDecoder()
    objects = [make(*pair) for pair in pairs for make in (gpu_slice, fabric_slice)]
    return [decoder.decode(obj) for obj in (*shared_slices(), *objects)]


@cache
def node_of(number: int, side: str) -> Node:
    return decode_node(node_object(f"n{number}", carried_machines()[KINDS[number]], {"side": side}))


def filled() -> ClusterCache:
    filled = ClusterCache()
    for number in range(len(KINDS)):
        filled.apply_node(f"n{number}", node_of(number, "left" if number % 2 == 0 else "right"))
    for one in _slices():
        filled.apply_slice(one.name, one)
    return filled


def hold(cache: ClusterCache, pool: str, device: str) -> None:
    cache.hold({device: Reservation(device, "n0", (Result("r", DeviceId(NET, pool, device)),), 10.0)})


def two_nodes(*slices: dict[str, Any]) -> ClusterCache:
    sides = (("a", "left"), ("b", "right"))
    nodes = ({"kind": "Node", "metadata": {"name": name, "labels": {"side": side}}} for name, side in sides)
    return put(ClusterCache(), *nodes, *slices)


def described(cache: ClusterCache) -> dict[str, Any]:
    """The facts of each node's NodeInfo, and the nodes with which it shares its state."""
    found = {}
    for name, info in cache.snapshot().node_infos.items():
        pools = info.inventory.pools
        found[name] = (
            [pool_device.device for pool_device in info.inventory.devices],
            {pool.key: info.allocated_state.pools[pool.key] for pool in pools},
            {pool.key: dict(info.allocated_state.counters(pool)) for pool in pools},
            (info.busy, info.held, info.drift, dict(info.overuse), info.fabric, info.gpu_bits, info.troubled),
            tuple(info.state.names),
        )
    return found


devices = st.one_of(
    st.builds(
        lambda pool, device: Result("r", DeviceId(NET, pool, device)),
        st.sampled_from(SHARED),
        st.sampled_from(["d0", "d1", "d2"]),
    ),
    st.builds(
        lambda amount: Result(
            "r", DeviceId(NET, "all", "part"), share_id=f"s{amount}", consumed={"memory": from_int(amount)}
        ),
        st.integers(1, 40),
    ),
    st.builds(lambda node: Result("r", DeviceId(GPU, f"n{node}", "gpu-1")), st.integers(0, 5)),
)
a_few = st.lists(devices, min_size=1, max_size=3)
rules = st.builds(
    lambda driver, pool, device, effect: TaintRule(
        "rule", Taint("k", "v", effect), driver, pool, device, has_selector=bool(driver or pool or device)
    ),
    st.sampled_from(["", NET, GPU]),
    st.sampled_from(["", "all", "left", "n1"]),
    st.sampled_from(["", "d1", "gpu-0"]),
    st.sampled_from(["NoSchedule", "None"]),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("hold"), st.integers(0, 3), a_few),
        st.tuples(st.just("assume"), st.integers(0, 3), a_few),
        st.tuples(st.just("claim"), st.integers(0, 3), st.none() | a_few),
        st.tuples(st.just("rule"), st.integers(0, 1), st.none() | rules),
        st.tuples(st.just("slice"), st.integers(0, 8), st.sampled_from([None, 1, 2])),
        st.tuples(st.just("label"), st.integers(0, 5), st.sampled_from(["left", "right"])),
        st.tuples(st.just("node"), st.integers(0, 5), st.booleans()),
        st.tuples(st.just("read"), st.integers(0, 5), st.none()),
    ),
    max_size=10,
)


def apply(cache: ClusterCache, step: tuple[str, int, Any]) -> None:
    kind, number, value = step
    uid = f"{kind}-{number}"
    match kind:
        case "hold":
            cache.release(uid)
            cache.hold({uid: Reservation(uid, "n0", tuple(value), 10.0)})
        case "assume":
            cache.forget(uid)
            cache.assume(uid, uid, "n0", tuple(value))
        case "rule":
            cache.apply_rule(uid, value)
        case "claim":
            key, allocation = ObjectKey("x", uid), Allocation(tuple(value or ()))
            cache.apply_claim(key, Claim(key, uid, "1", allocation=allocation) if value is not None else None)
        case "slice":
            changed = shared_slices()[number]
            changed["spec"]["pool"]["generation"] = value or 1
            found = SliceDecoder().decode(changed)
            cache.apply_slice(found.name, found if value is not None else None)
        case "label":
            cache.apply_node(f"n{number}", node_of(number, value))
        case "node":
            cache.apply_node(f"n{number}", node_of(number, "left") if value else None)
        case "read":
            cache.snapshot().node_infos.get(f"n{number}")


POOL = PoolKey("d", "p")


def a_slice(name: str, *content: Device | CounterSet, generation: int = 1, count: int = 1) -> Slice:
    devices = tuple(one for one in content if isinstance(one, Device))
    counters = tuple(one for one in content if isinstance(one, CounterSet))
    return Slice(name, POOL, generation, count, NodeSelection("n"), devices=devices, counter_sets=counters)


def use(device: str, mem: int = 0) -> Result:
    """The device; with `mem`, a share of it."""
    consumed = {"mem": from_int(mem)} if mem else None
    return Result("r", DeviceId(*POOL, device), share_id=f"share-{mem}" if mem else "", consumed=consumed)


def allocated_claim(name: str, version: int | str, *results: Result) -> Claim:
    return Claim(ObjectKey("ns", name), name, str(version), allocation=Allocation(results))
