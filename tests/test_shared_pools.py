"""Pools that many nodes reach: a change of their use or of their rules gives what a new cache would have built."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from extender.allocation import NodeInfo
from extender.cache import ClusterCache
from extender.model import Allocation, Claim, DeviceId, Node, ObjectKey, PoolKey, Result, Taint, TaintRule, from_int
from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import gpu_slice, node_object
from extender.wire import SliceDecoder, decode_node
from tests.cache_worlds import CountingBuilder

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
    return {"metadata": {"name": f"{pool}-{suffix}"}, "spec": {**about, **spec}}


def node_of(number: int, side: str) -> Node:
    return decode_node(node_object(f"n{number}", carried_machines()[KINDS[number]], {"side": side}))


def filled() -> ClusterCache:
    cache, decoder, machines = ClusterCache(), SliceDecoder(), carried_machines()
    objects = shared_slices()
    for number, kind in enumerate(KINDS):
        name = f"n{number}"
        cache.apply_node(name, node_of(number, "left" if number % 2 == 0 else "right"))
        objects += [gpu_slice(name, machines[kind]), fabric_slice(name, machines[kind])]
    for slice_ in map(decoder.decode, objects):
        cache.apply_slice(slice_.name, slice_)
    return cache


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
            cache.hold(uid, uid, "n0", tuple(value), 10.0)
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


def hold(cache: ClusterCache, pool: str, device: str) -> None:
    cache.hold(device, device, "n0", (Result("r", DeviceId(NET, pool, device)),), 10.0)


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
    cache.expire(0.0)
    assert [info.busy.bit_count() for info in cache.snapshot().node_infos.values()] == [2] * 6
    assert not cache.failed_nodes


def test_a_claim_on_a_shared_pool_builds_all_of_a_node_whose_build_failed() -> None:
    """A build of the use alone would end the failure, and the node would keep its old labels and slices."""
    cache = before_a_failing_build()
    assert cache.snapshot().node_infos["n0"].node.labels["side"] == "left"
    hold(cache, "counted", "d0")
    info = cache.snapshot().node_infos["n0"]
    assert PoolKey(NET, "left") not in {pool.key for pool in info.inventory.pools}
    assert not cache.failed_nodes


def two_nodes(*slices: dict[str, Any]) -> ClusterCache:
    cache, decoder = ClusterCache(), SliceDecoder()
    for name, side in (("a", "left"), ("b", "right")):
        cache.apply_node(name, decode_node({"metadata": {"name": name, "labels": {"side": side}}}))
    for slice_ in map(decoder.decode, slices):
        cache.apply_slice(slice_.name, slice_)
    return cache


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
    gpu = {"name": "d0", "attributes": {"gpu.nvidia.com/uuid": {"string": "GPU-x"}}}

    def agent(node: str, free: int) -> dict[str, Any]:
        numbers = {"memoryTotalMiB": 80_000, "memoryFreeMiB": free, "memoryReservedMiB": 0}
        attributes = {"uuid": {"string": "GPU-x"}, **{name: {"int": value} for name, value in numbers.items()}}
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "fabric.berth.dev", "nodeName": node, "pool": pool}
        return {
            "metadata": {"name": f"agent-{node}"},
            "spec": {**spec, "devices": [{"name": "gpu-0", "attributes": attributes}]},
        }

    cache = two_nodes(slice_object("all", allNodes=True, devices=[gpu]), agent("a", 10_000), agent("b", 80_000))
    hold(cache, "all", "d0")
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
    stolen = {"name": "d0", "attributes": {"gpu.nvidia.com/uuid": {"string": fabric.gpus[0].uuid}}}
    for number, devices in enumerate(([{"name": "d0"}], [stolen])):
        objects = [
            slice_object("n5", suffix=f"x{number}", nodeName="n5", devices=devices),
            slice_object(f"more-{number}", allNodes=True, devices=[{"name": "d0"}]),
        ]
        for slice_ in map(SliceDecoder().decode, objects):
            cache.apply_slice(slice_.name, slice_)
        assert cache.snapshot().node_infos["n0"].fabric is fabric
    assert not cache.agent_problems
