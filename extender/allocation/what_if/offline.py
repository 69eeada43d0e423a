"""Problems from plain objects, without a cache: for `berth allocate`, the oracle and the conformance cases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from extender.allocation.device_rules import Features
from extender.allocation.nodes import AllocatedState, CounterKey, Pool, PoolUse, WholePool, gather, inventory
from extender.allocation.problem import Problem, Selection
from extender.allocation.selection import derived_value, select
from extender.api.claim_specs import ClaimSpec, DeviceRequest
from extender.api.device_classes import DeviceClass
from extender.api.nodes import Node
from extender.api.resource_slices import DeviceId, PoolKey, Slice
from extender.base.deadline import NO_DEADLINE
from extender.cel.dra import Masks


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

    def selection(claim: str, request: DeviceRequest) -> Selection:
        return select(claim, request, classes.get, found, masks, features)

    names, specs = tuple(name for name, _ in claims), tuple(spec for _, spec in claims)

    derive = partial(derived_value, masks, NO_DEADLINE)
    taken = allocated_state.taken(found)
    return Problem(found, names, specs, allocated_state, selection, taken, features, classes.get, derive)
