"""Problems from plain objects, without a cache: for `berth allocate`, the oracle and the conformance cases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from extender.allocation.counters import memberships
from extender.allocation.features import Features
from extender.allocation.inventory import inventory
from extender.allocation.pools import Pool, WholePool, gather, grouped, slices_of
from extender.allocation.problem import AllocatedState, CounterKey, PoolUse, Problem, Selection, taken_mask
from extender.allocation.selection import derived_value, find_class, select
from extender.cel.dra import Masks
from extender.model import NO_DEADLINE, ClaimSpec, Device, DeviceClass, DeviceId, DeviceRequest, Node, PoolKey, Slice


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
        current = slices_of(pool, WholePool(s for s in slices if s.pool == pool.key))
        return consumed_counters(current, use) if use is not None else {}

    return AllocatedState(pools, counters)


def consumed_counters(slices: Sequence[Slice], use: PoolUse) -> dict[CounterKey, int]:
    """Counters in nanos that allocated devices consume. `slices` are the current ones; other devices count 0.

    In counter sets with compatibility groups, also the numbers of devices, see `memberships`.
    """
    in_use = [device for slice_ in slices for device in slice_.devices if device.consumes and use.holds(device.name)]
    return consumption_of(in_use, grouped(slices) if in_use else frozenset())


def consumption_of(devices: Iterable[Device], with_groups: frozenset[str]) -> dict[CounterKey, int]:
    """What these devices consume. `with_groups` are the counter sets that have compatibility groups."""
    found: dict[CounterKey, int] = {}
    for use in (use for device in devices for use in device.consumes):
        for name, amount in use.counters:
            key = (use.counter_set, name)
            found[key] = found.get(key, 0) + amount
        for key in memberships(use) if use.counter_set in with_groups else ():
            found[key] = found.get(key, 0) + 1
    return found


def counter_limits(slices: Iterable[Slice]) -> dict[CounterKey, int]:
    """The counters in nanos that the current slices of a pool have."""
    return {
        (s.name, name): amount for slice_ in slices for s in slice_.counter_sets for name, amount in s.counters.items()
    }


def overdrawn_counters(slices: Sequence[Slice], devices: frozenset[str]) -> list[CounterKey]:
    """Counters of which these devices together consume more than the current slices of the pool have."""
    limits = counter_limits(slices)
    if not limits:
        return []
    consumed = consumed_counters(slices, PoolUse(devices))
    return sorted(counter for counter, amount in consumed.items() if amount > limits.get(counter, amount))


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
        return select(claim, request, find_class(claim, request, classes.get), found, masks, features)

    names, specs = tuple(name for name, _ in claims), tuple(spec for _, spec in claims)

    derive = partial(derived_value, masks, NO_DEADLINE)
    taken = taken_mask(found, allocated_state)
    return Problem(found, names, specs, allocated_state, selection, taken, features, classes.get, derive)
