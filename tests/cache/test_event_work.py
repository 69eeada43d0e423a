"""What one event of the watch makes Berth do does not grow with what other claims, pools or slices have.

Nor does the work of a filter request that no budget covers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.allocation import Features
from extender.allocation.nodes import SHARES, Inventory, PoolUse
from extender.allocation.nodes.pools import is_relevant
from extender.api.nodes import Node, NodeSelection, NodeSelector, Requirement, Taint, Term
from extender.api.object_meta import ObjectKey
from extender.api.pods import Pod, decode_pod
from extender.api.quantity import Quantity, from_int
from extender.api.resource_claims import PodClaim, Reservation, Result
from extender.api.resource_slices import CounterSet, CounterUse, Device, DeviceId, PoolKey, Slice, TaintRule
from extender.cache import CLAIM, ClusterCache
from extender.cache.allocated_devices import HOLD, AllocatedDevices, Holder
from extender.cache.slice_index import MAX_NODE_DEVICES, TOO_MANY, CacheTimers, PoolSlices, SharedSlices, SliceIndex
from extender.runtime.informers import WatchProgress
from extender.serve.write_barrier import WriteBarrier
from tests.worlds.counted_work import calls_of, lines_of
from tests.worlds.evaluation_worlds import Fleet, allocated, apply
from tests.worlds.gang_worlds import SPINE
from tests.worlds.running_berth import claim
from tests.worlds.running_berth import pod as pod_object
from tests.worlds.shared_pool_worlds import POOL, a_slice, allocated_claim, use


def share(device: str, number: int, consumed: Mapping[str, Quantity]) -> Result:
    return Result("r", DeviceId(*POOL, device), share_id=f"s{number}", consumed=consumed)


entries = st.builds(
    lambda device, share_id, amounts: Result(
        "r", DeviceId(*POOL, device), share_id=share_id, consumed=amounts or None if share_id else None
    ),
    st.sampled_from("abc"),
    st.sampled_from(["", "s1", "s2"]),
    st.dictionaries(st.sampled_from(["memory", "cores"]), st.builds(from_int, st.integers(0, 9)), max_size=2),
)
holders = st.tuples(st.sampled_from([CLAIM, HOLD]), st.sampled_from("12"))


@given(st.lists(st.tuples(holders, st.lists(entries, max_size=4)), max_size=12))
def test_the_use_of_a_pool_is_what_its_holders_have(events: list[tuple[Holder, list[Result]]]) -> None:
    allocated = AllocatedDevices()
    now: dict[Holder, list[Result]] = {}
    for holder, held in events:
        now[holder] = held
        allocated.put(holder, held)
        assert allocated.pool(POOL) == use_of(now)
        every = {device for results in now.values() for device in devices_of(results)}
        claimed = {device for (kind, _), results in now.items() if kind == CLAIM for device in devices_of(results)}
        assert allocated.pool(POOL).held == every - claimed
        assert allocated.claims(POOL) == {uid for (kind, uid), results in now.items() if kind == CLAIM and results}


def devices_of(results: list[Result]) -> set[str]:
    return {result.device.device for result in results}


def use_of(holders: dict[Holder, list[Result]]) -> PoolUse:
    taken, shares = set[str](), dict[str, dict[str, int]]()
    for result in (result for results in holders.values() for result in results):
        if not result.share_id:
            taken.add(result.device.device)
            continue
        total: Any = shares.setdefault(result.device.device, {SHARES: 0})
        total[SHARES] += 1
        for name, amount in (result.consumed or {}).items():
            total[name] = total.get(name, 0) + amount.nanos
    return PoolUse(frozenset(taken), shares)


def of_node(name: str, node: str = "n1", devices: int = 2) -> Slice:
    found = tuple(Device(f"{name}-{number}") for number in range(devices))
    return Slice(name, POOL, 1, 1, NodeSelection(node, all_nodes=not node), devices=found)


def new_share(others: int) -> Callable[[], object]:
    """7,000 claims of a tenant can have 224,000 shares of one pool. Their sum took 120 ms after each event."""
    allocated = AllocatedDevices()
    for number in range(others):
        allocated.put((CLAIM, str(number)), [share("a", number, {"memory": from_int(1)})])

    def event() -> None:
        allocated.put((CLAIM, "more"), [share("a", others, {"memory": from_int(1)})])
        allocated.put((CLAIM, "7"), ())
        assert allocated.pool(POOL).shares == {"a": {"memory": from_int(others).nanos, SHARES: others}}

    return event


def slice_with_claims(others: int) -> Callable[[], object]:
    """The claims of one pool may be thousands of a tenant's. To read them took 45 ms for each write of a slice."""
    cache = ClusterCache()
    for number in range(others):
        claim = replace(allocated_claim(f"c{number}", 1, share("s-0", number, {})), group="g")
        cache.apply_claim(claim.key, claim)
    cache.apply_slice("s", of_node("s"))

    def event() -> None:
        cache.apply_slice("s", replace(of_node("s"), resource_version="2"))
        cache.apply_slice("t", of_node("t"))
        assert set(cache.store.of_groups.claims["ns", "g"].values()) == {"n1"}

    return event


def own_slice_in_a_pool_of_all_nodes(others: int) -> Callable[[], object]:
    """The driver of one node may write such a slice again and again."""
    cache = ClusterCache()
    cache.apply_slice("all", of_node("all", ""))
    for number in range(others):
        claim = allocated_claim(f"c{number}", 1, share("all-0", number, {}))
        cache.apply_claim(claim.key, claim)

    def event() -> None:
        for new in (of_node("own"), None, of_node("own")):
            cache.apply_slice("own", new)

    return event


def slice_with_rules(others: int) -> Callable[[], object]:
    """A fleet may have a rule for each device that is out of order: thousands, each about another pool."""
    index, own = SliceIndex(CacheTimers()), TaintRule("own", Taint("own"), POOL.driver, POOL.name, "s-0")
    for rule in (own, *(replace(own, name=f"r{number}", pool=f"p{number}") for number in range(others))):
        index.put_rule(rule.name, rule)

    def event() -> None:
        index.put("s", of_node("s", devices=100))
        assert index.pools.by_pool[POOL]["s"].devices[0].taints == (Taint("own"),)

    return event


def end_of_the_holds_of_a_node(others: int) -> Callable[[], object]:
    """A bind that finds its node full looked at the holds of all nodes: 18 ms for 40,000 of them."""
    cache = ClusterCache()
    for number in range(others):
        device = DeviceId("d", f"n{number}", "g")
        cache.hold({f"c{number}": Reservation(f"p{number}", f"n{number}", (Result("r", device),), 10.0)})

    def event() -> None:
        for kept in ({"p7"}, set[str]()):
            cache.release_node("n7", kept)
            assert cache.reservations.holds == others - (not kept)

    return event


WORLDS = {
    new_share: 0,
    slice_with_claims: 0,
    own_slice_in_a_pool_of_all_nodes: 0,
    slice_with_rules: 6,  # each rule is compared with the pool, and not with each device
    end_of_the_holds_of_a_node: 0,
}


@pytest.mark.parametrize(("world", "each"), WORLDS.items())
def test_an_event_costs_the_same_beside_many_others(world: Callable[[int], Callable[[], object]], each: int) -> None:
    few, many = (lines_of(world(others)) for others in (20, 220))
    assert many - few <= 200 * each + 40


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["n1", "n2", "", None])), max_size=12))
def test_the_nodes_of_a_pool_are_those_that_its_slices_name(events: list[tuple[str, str | None]]) -> None:
    found, now = PoolSlices(), dict[str, Slice]()
    claim = allocated_claim("c", 1, share("s-0", 1, {}))
    for name, node in events:
        if name in now:
            found.remove(now.pop(name))
        if node is not None:
            now[name] = of_node(name, node)
            found.put(now[name])
        nodes = {slice_.selection.node_name for slice_ in now.values()}
        assert set(found.nodes(POOL)) == nodes
        assert found.node_of(claim) == (nodes.pop() if len(nodes) == 1 else "")
        assert found.by_pool.get(POOL, {}) == now


def filled(slices: Iterable[Slice]) -> ClusterCache:
    cache = ClusterCache()
    cache.apply_node("n1", Node("n1"))
    for slice_ in slices:
        cache.apply_slice(slice_.name, slice_)
    return cache


def parts(count: int = 8, **fields: Any) -> dict[str, Slice]:
    """The slices of one pool of a node, by name."""
    found = {f"s{number}": replace(of_node(f"s{number}"), slice_count=count, **fields) for number in range(count)}
    odd = replace(found["s1"].devices[0], taints=(Taint("k", effect="None"),), allow_multiple=True)
    found["s1"] = replace(found["s1"], devices=(odd, found["s1"].devices[1]))
    return found


def test_a_write_of_one_slice_leaves_the_devices_of_the_others() -> None:
    """A driver may publish thousands of devices in one pool. Each write of one slice read all of them again."""
    slices = parts()
    cache = filled(slices.values())
    before = cache.snapshot().node_infos["n1"].inventory
    cache.apply_slice("s3", replace(slices["s3"], devices=slices["s3"].devices[:1]))
    after = cache.snapshot().node_infos["n1"].inventory
    assert [one.id.device for one in after.devices if all(one is not old for old in before.devices)] == ["s3-0"]
    assert len(after.devices) == len(before.devices) - 1


def facts(inventory: Inventory) -> list[object]:
    parts = [
        (first, pool.gpus, pool.identities, pool.named, pool.warned, dict(pool.index))
        for first, pool in inventory.pool_devices
    ]
    masks = inventory.reachable, inventory.simple, inventory.shared, inventory.unsupported
    return [[one.id for one in inventory.devices], [offset for _, offset in inventory.offsets], masks, parts]


def test_the_devices_after_some_writes_are_those_of_a_new_cache() -> None:
    slices = parts(per_device=True)
    cache = filled(slices.values())
    for number, node in enumerate(("n1", "n2", "", "n1")):
        name = f"s{2 * number}"
        first, second = slices[name].devices
        first = replace(first, selection=NodeSelection(node), node_allocatable="x" if number else "")
        slices[name] = replace(slices[name], devices=(replace(second, selection=NodeSelection("n1")), first))
        cache.apply_slice(name, slices[name])
        found = cache.snapshot().node_infos["n1"].inventory
        assert facts(found) == facts(filled(slices.values()).snapshot().node_infos["n1"].inventory)
    for name in slices:
        cache.apply_slice(name, None)
    assert not cache.snapshot().node_infos["n1"].inventory.devices
    assert not cache.builder.interned()["known_slices"]


def test_a_node_with_too_many_devices_loses_its_largest_pools_and_nothing_else() -> None:
    """Its other pools, the allocations on all of them, and the other nodes stay."""
    small = replace(of_node("small"), pool=PoolKey("d", "small"))
    other = replace(of_node("other", "n2"), pool=PoolKey("d", "other"))
    large = [of_node(f"s{number}", devices=127) for number in range(MAX_NODE_DEVICES // 128)]
    large = [replace(slice_, slice_count=len(large)) for slice_ in large]
    cache = filled([*large, small, other])
    cache.apply_node("n2", Node("n2"))
    results = tuple(Result("r", DeviceId(*slice_.pool, slice_.devices[0].name)) for slice_ in (large[0], small))
    claim = allocated_claim("c", 1, *results)
    cache.apply_claim(claim.key, claim)
    infos = cache.snapshot().node_infos
    assert {pool.key.name: pool.trouble for pool in infos["n1"].inventory.pools} == {"p": TOO_MANY, "small": ""}
    assert [one.id.device for one in infos["n1"].inventory.devices] == ["small-0", "small-1"]
    assert infos["n1"].busy == 0b1
    assert len(infos["n2"].inventory.devices) == 2
    assert cache.agent_problems == {"n1": (TOO_MANY,)}
    assert cache.allocated_devices.holders(results[0].device)
    cache.apply_slice("small", None)
    info = cache.snapshot().node_infos["n1"]
    assert len(info.inventory.devices) == sum(len(slice_.devices) for slice_ in large)
    assert info.busy.bit_count() == 1
    assert not cache.agent_problems


def test_pools_of_a_node_count_like_devices() -> None:
    """With 30,000 pools of one empty slice each, a write of a slice took 230 ms, and one of a claim 22 ms."""
    pools = [replace(of_node(f"s{number}", devices=0), pool=PoolKey("d", f"{number:04}")) for number in range(3000)]
    gpus = replace(of_node("gpus"), pool=PoolKey("a", "gpus"))
    cache = filled([gpus, *pools])
    found = cache.snapshot().node_infos["n1"].inventory.pools
    kept, left_out = ([pool for pool in found if bool(pool.trouble) is trouble] for trouble in (False, True))
    assert len(kept) == (MAX_NODE_DEVICES + 8) // 9
    assert 0 < len(left_out) < 64
    assert PoolKey("a", "gpus") in {pool.key for pool in left_out}  # the only one with devices is the largest
    assert cache.agent_problems == {"n1": (TOO_MANY,)}
    for pool in pools[100:]:
        cache.apply_slice(pool.name, None)
    assert len(cache.snapshot().node_infos["n1"].inventory.pools) == 101
    assert len(cache.snapshot().node_infos["n1"].inventory.devices) == 2
    assert not cache.agent_problems


def test_counters_of_a_node_count_like_devices() -> None:
    """Their amounts are summed after each change of a pool. A node with eight GPUs in MIG mode stays far below."""
    uses = tuple(CounterUse(f"c{number}", tuple((f"{name}", 1) for name in range(32))) for number in range(2))
    sets = [CounterSet(use.counter_set, dict(use.counters)) for use in uses]
    device = Device("d", consumes=uses)

    def published(slices: int, devices: int) -> list[Slice]:
        found = list[Slice]()
        for number in range(slices):
            own = tuple(replace(device, name=f"{number}-{position}") for position in range(devices))
            found.append(replace(of_node(f"s{number}"), devices=own))
        found.append(replace(of_node("sets"), devices=(), counter_sets=tuple(sets)))
        return [replace(one, slice_count=len(found)) for one in found]

    assert len(filled(published(8, 64)).snapshot().node_infos["n1"].inventory.devices) == 512
    assert not filled(published(16, 64)).snapshot().node_infos["n1"].inventory.devices


def by_name(node: str) -> NodeSelection:
    return NodeSelection(node)


def by_label(node: str) -> NodeSelection:
    return NodeSelection(selector=NodeSelector((Term((Requirement("host", "In", (node,)),)),)))


def lines_of_a_write(nodes: int, selection: Callable[[str], NodeSelection]) -> int:
    """What runs after a write of one slice of a pool that has a slice for each node."""
    slices = [
        Slice(f"s{number}", POOL, 1, nodes, selection(f"n{number}"), devices=(Device(f"d{number}"),))
        for number in range(nodes)
    ]
    cache = filled(slices)
    for number in range(nodes):
        cache.apply_node(f"n{number}", Node(f"n{number}", {"host": f"n{number}"}))
    before = dict(cache.snapshot().node_infos)
    cache.apply_slice("s3", replace(slices[3], resource_version="2"))
    lines = lines_of(cache.snapshot)
    after = cache.snapshot().node_infos
    assert [name for name in after if after[name].inventory is not before[name].inventory] == ["n3"]
    assert all(len(info.inventory.devices) == 1 for info in after.values())
    return lines


@pytest.mark.parametrize("selection", [by_name, by_label])
def test_a_write_of_a_slice_of_a_pool_of_many_nodes_costs_each_node_the_same(
    selection: Callable[[str], NodeSelection],
) -> None:
    """Each of 1,000 nodes read all slices of the pool: 0.75 s for each write of a slice, 20 s with 5,000 nodes."""
    assert lines_of_a_write(80, selection) < 3 * lines_of_a_write(40, selection)


keys, values = st.sampled_from(["host", "rack", "metadata.name"]), st.sampled_from(["n1", "a", "b"])
requirements = st.builds(
    Requirement,
    keys,
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
    st.lists(values, max_size=2).map(tuple),
)
several = st.lists(requirements, max_size=2).map(tuple)
selections = st.one_of(
    st.builds(NodeSelection, st.sampled_from(["", "n1", "a"])),
    st.builds(NodeSelection, all_nodes=st.just(value=True)),
    st.builds(
        lambda terms: NodeSelection(selector=NodeSelector(tuple(terms))),
        st.lists(st.builds(Term, several, several), max_size=2),
    ),
)
shared = st.builds(
    lambda selection, devices, per_device, counters: Slice(
        "",
        POOL,
        1,
        1,
        NodeSelection() if per_device else selection,
        per_device=per_device,
        devices=tuple(Device("d", selection=one) for one in devices),
        counter_sets=(CounterSet("c", {}),) if counters else (),
    ),
    selections.filter(lambda one: not one.node_name),
    st.lists(selections, max_size=3),
    st.booleans(),
    st.integers(0, 9).map(lambda number: number == 0),
)


@given(st.lists(shared, max_size=6), st.dictionaries(keys, values, max_size=2), st.integers(0, 6))
def test_a_node_finds_all_slices_that_matter_for_it(slices: list[Slice], labels: dict[str, str], removed: int) -> None:
    """Attack: have each write of a slice make thousands of nodes read thousands of slices, in a pool with slices of
    many nodes."""
    found, node = SharedSlices(), Node("n1", labels)
    slices = [replace(slice_, name=f"s{number}") for number, slice_ in enumerate(slices)]
    for slice_ in slices:
        found.put(slice_)
    for slice_ in slices[:removed]:
        found.remove(slice_)
    known = found.of(node)
    assert all(slice_ in known for slice_ in slices[removed:] if is_relevant(slice_, node, Features()))
    assert not any(slice_ in known for slice_ in slices[:removed])
    for slice_ in slices[removed:]:
        found.remove(slice_)
    assert not found.of(node)


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
