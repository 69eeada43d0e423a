"""For what-if questions and plans: nodes with other devices in use than in the cluster, and problems without a pod.

The state of such a node is hypothetical: no cache of statuses may keep it.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from extender.allocation.device_rules import Features
from extender.allocation.nodes import (
    SHARES,
    UNUSED,
    AllocatedState,
    ChangeLog,
    CounterKey,
    NodeState,
    Pool,
    PoolUse,
    WholePool,
    gather,
    inventory,
    live_use,
    uses_of,
)
from extender.allocation.nodes.node_info import NodeInfo, Snapshot, consumption_of
from extender.allocation.problem import Problem
from extender.allocation.selection import Classes, Selection, derived_value, select
from extender.api.claim_specs import ClaimSpec, DeviceRequest
from extender.api.device_classes import DeviceClass
from extender.api.gpu_topology import Fabric
from extender.api.nodes import Node
from extender.api.resource_claims import Result
from extender.api.resource_slices import Device, DeviceId, PoolKey, Slice
from extender.base.deadline import NO_DEADLINE, Deadline
from extender.cel.dra import Masks

_Pools = Mapping[PoolKey, PoolUse]
_Counters = Mapping[PoolKey, Mapping[CounterKey, int]]
_NO_DEVICES: Mapping[DeviceId, Device] = MappingProxyType({})


def with_devices_released(node_info: NodeInfo, results: Collection[Result], *, idle: bool = True) -> NodeInfo:
    """The node with these allocated devices free, in a hypothetical state. Results with admin access free nothing.

    `idle`: their workloads end, so that the memory that is in use on a device counts only if it has other consumers.
    """
    before, pools = node_info.allocated_state.pools, dict(node_info.allocated_state.pools)
    results = [result for result in results if not result.admin_access]  # admin access holds nothing
    for result in results:
        key = PoolKey(result.device.driver, result.device.pool)
        pools[key] = _without(pools.get(key, UNUSED), result)
    counters = {
        pool.key: pools.get(pool.key, UNUSED).consumed(pool.slices)
        if pools.get(pool.key) != before.get(pool.key)
        else node_info.allocated_state.counters(pool)
        for pool in node_info.inventory.pools
        if pool.counter_sets
    }
    if idle:
        free = {
            result.device
            for result in results
            if not pools[PoolKey(result.device.driver, result.device.pool)].holds(result.device.device)
        }
        node_info = replace(node_info, fabric=_without_memory_in_use(node_info, free))
    return _with_use(node_info, pools, counters)


def with_devices_allocated(
    node_info: NodeInfo, results: Iterable[Result], elsewhere: Mapping[DeviceId, Device] = _NO_DEVICES
) -> NodeInfo:
    """The node with these devices allocated, too, in a hypothetical state. Results with admin access take nothing.

    Results of pools that the node cannot use do not matter. A device of a pool that spans nodes can be invisible from
    this node and still consume counters of the pool: `elsewhere` has such devices.
    """
    by_pool: dict[PoolKey, list[Result]] = {}
    for result in results:
        if not result.admin_access:
            by_pool.setdefault(PoolKey(result.device.driver, result.device.pool), []).append(result)
    before = node_info.allocated_state.pools
    pools, counters = dict(before), {}
    for pool in node_info.inventory.pools:
        added = by_pool.get(pool.key)
        if pool.counter_sets:
            counters[pool.key] = node_info.allocated_state.counters(pool)
        if added is None:
            continue
        use = before.get(pool.key, UNUSED)
        if pool.counter_sets:
            devices = _devices(node_info, added, elsewhere)
            known = counters[pool.key]
            new = [device for name, device in devices.items() if not use.holds(name)]  # one in use consumes already
            more = consumption_of(new, pool.grouped)
            counters[pool.key] = {key: known.get(key, 0) + more.get(key, 0) for key in {**known, **more}}
        pools[pool.key] = _with(use, added)
    return _with_use(node_info, pools, counters)


def with_own_pools_released(node_info: NodeInfo, kept: Iterable[Result]) -> NodeInfo:
    """The node with all devices of its own pools free except `kept`, in a hypothetical state.

    The use of pools that other nodes share stays. Memory that is in use on the released devices does not count.
    """
    before, own = node_info.allocated_state, {pool.key for pool in node_info.inventory.pools if pool.is_own}
    pools = {key: use for key, use in before.pools.items() if key not in own}
    counters = {
        pool.key: {} if pool.key in own else before.counters(pool)
        for pool in node_info.inventory.pools
        if pool.counter_sets
    }
    inventory = node_info.inventory
    in_use = {
        pool_device.id
        for pool_device in inventory.devices
        if (key := inventory.pools[pool_device.pool].key) in own
        and before.pools.get(key, UNUSED).holds(pool_device.device.name)
    }
    idle = replace(node_info, fabric=_without_memory_in_use(node_info, in_use))
    return with_devices_allocated(_with_use(idle, pools, counters), kept)


def _without_memory_in_use(node_info: NodeInfo, devices: Container[DeviceId]) -> Fabric | None:
    """The fabric without the readings of the memory on these devices."""
    if node_info.fabric is None:
        return None
    known = node_info.inventory.devices
    gpus = tuple(
        replace(gpu, memory_free_bytes=None) if bit >= 0 and known[bit].id in devices else gpu
        for gpu, bit in zip(node_info.fabric.gpus, node_info.gpu_bits, strict=True)
    )
    return replace(node_info.fabric, gpus=gpus)


def hypothetical_snapshot(snapshot: Snapshot, node_infos: Mapping[str, NodeInfo], version: int) -> Snapshot:
    """The snapshot with only these nodes.

    A ranking may follow a sequence of such snapshots if their versions differ, but not real snapshots, too.
    """
    states: dict[int, NodeState] = {}
    for name, node_info in sorted(node_infos.items()):
        state = states.get(node_info.state.number)
        if state is None:  # a copy, because the state may list nodes of another snapshot
            state = states[node_info.state.number] = replace(node_info.state, names=[])
            if state.shared is not None:
                states[state.own.number] = state
        state.names.append(name)
    return replace(snapshot, version=version, node_infos=node_infos, states=states, changes=ChangeLog())


def _with_use(node_info: NodeInfo, pools: _Pools, counters: _Counters) -> NodeInfo:
    def counters_of(pool: Pool) -> Mapping[CounterKey, int]:
        return counters.get(pool.key, {})

    allocated_state = AllocatedState(pools, counters_of)
    busy = allocated_state.taken(node_info.inventory)
    state = NodeState(attribute_signature=node_info.state.attribute_signature, hypothetical=True)
    drift, overuse = 0, dict[int, int]()
    if node_info.agent_is_fresh:
        drift, overuse = live_use(
            node_info.inventory, allocated_state, uses_of(node_info.fabric), node_info.gpu_bits, busy
        )
    return replace(
        node_info,
        allocated_state=allocated_state,
        busy=busy,
        held=node_info.held & busy,
        drift=drift,
        overuse=overuse,
        state=state,
    )


def _without(use: PoolUse, result: Result) -> PoolUse:
    name = result.device.device
    if not result.share_id:
        return PoolUse(use.taken - {name}, use.shares)
    taken = {**result.amounts, SHARES: 1}
    left = {capacity: amount - taken.get(capacity, 0) for capacity, amount in use.shares.get(name, {}).items()}
    shares = {device: amounts for device, amounts in use.shares.items() if device != name}
    if left.get(SHARES):
        shares[name] = left
    return PoolUse(use.taken, shares)


def _with(use: PoolUse, results: Iterable[Result]) -> PoolUse:
    taken, shares = set(use.taken), dict(use.shares)
    for result in results:
        name = result.device.device
        if not result.share_id:
            taken.add(name)
            continue
        amounts = dict(shares.get(name, {}))
        for capacity, amount in {**result.amounts, SHARES: 1}.items():
            amounts[capacity] = amounts.get(capacity, 0) + amount
        shares[name] = amounts
    return PoolUse(frozenset(taken), shares)


def _devices(node_info: NodeInfo, results: Iterable[Result], elsewhere: Mapping[DeviceId, Device]) -> dict[str, Device]:
    """The devices of one pool's results, by name."""
    inventory, found = node_info.inventory, dict[str, Device]()
    for result in results:
        bit = inventory.index.get(result.device)
        device = inventory.devices[bit].device if bit is not None else elsewhere.get(result.device)
        if device is not None:
            found[device.name] = device
    return found


# -- problems of claims alone: `berth allocate`, first fit on one node, and cases without a cache -------------------


def claims_problem(
    node_info: NodeInfo,
    claims: Iterable[tuple[str, ClaimSpec]],
    classes: Classes,
    masks: Masks,
    features: Features,
    deadline: Deadline = NO_DEADLINE,
) -> Problem:
    """The problem of allocating these claims, each with its name, together on this node, without partitions."""
    found = node_info.inventory

    def selection(claim: str, request: DeviceRequest) -> Selection:
        return select(claim, request, classes, found, masks, features, deadline)

    named = list(claims)
    names, specs = tuple(name for name, _ in named), tuple(spec for _, spec in named)
    derive, state = partial(derived_value, masks, deadline), node_info.allocated_state
    return Problem(found, names, specs, state, selection, node_info.busy, features, classes, derive)


def usage_of(
    slices: Sequence[Slice], taken: Iterable[DeviceId], shares: Mapping[DeviceId, Mapping[str, int]]
) -> AllocatedState:
    """The allocated state from exclusively allocated devices and shares (nanos per capacity)."""
    exclusive: dict[PoolKey, set[str]] = {}
    shared: dict[PoolKey, dict[str, Mapping[str, int]]] = {}
    for device in taken:
        exclusive.setdefault(PoolKey(device.driver, device.pool), set()).add(device.device)
    for device, amounts in shares.items():
        shared.setdefault(PoolKey(device.driver, device.pool), {})[device.device] = amounts
    pools = {
        key: PoolUse(frozenset(exclusive.get(key, ())), shared.get(key, {})) for key in exclusive.keys() | shared.keys()
    }

    def counters(pool: Pool) -> dict[CounterKey, int]:
        use = pools.get(pool.key)
        current = pool.slices_in(WholePool(s for s in slices if s.pool == pool.key))
        return use.consumed(current) if use is not None else {}

    return AllocatedState(pools, counters)


def problem_of(
    node: Node,
    slices: Sequence[Slice],
    classes: Mapping[str, DeviceClass],
    claims: Sequence[tuple[str, ClaimSpec]],
    allocated_state: AllocatedState,
    features: Features,
    masks: Masks,
) -> Problem:
    """The problem of allocating these claims together on this node."""
    nearby = [s for s in slices if s.selection.node_name in ("", node.name) or s.counter_sets]
    pools = gather(node, nearby, lambda key: WholePool(s for s in slices if s.pool == key), features)
    found = inventory(node, pools)
    node_info = NodeInfo(node, found, allocated_state, busy=allocated_state.taken(found))
    return claims_problem(node_info, claims, classes.get, masks, features)
