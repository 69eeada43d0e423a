"""A snapshot as it would be: nodes gone, devices given back, claims that do not exist yet."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from extender.allocation.live import live_use, uses_of
from extender.allocation.offline import consumed_counters
from extender.allocation.problem import UNUSED, PoolUse, Usage, taken_mask
from extender.allocation.view import ChangeLog, NodeState, NodeView, Snapshot
from extender.model.claim import Claim, Result
from extender.model.device import PoolKey
from extender.model.errors import WireError
from extender.model.text import shown


@dataclass(frozen=True, slots=True)
class Changes:
    """What to imagine. `given_back` are allocated devices that are free again."""

    without_nodes: frozenset[str] = frozenset()
    given_back: tuple[Result, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.without_nodes or self.given_back)


def imagine(snapshot: Snapshot, claims: Iterable[Claim], changes: Changes) -> Snapshot:
    """The snapshot with the changes; the very same one where there are none. Rankings of the real snapshots cannot
    follow it: make a new one."""
    added = {claim.key: claim for claim in claims}
    if added:
        known = ChainMap(added, snapshot.claims)  # type: ignore[arg-type] # the second is never written
        snapshot = replace(snapshot, claims=known)
    if not changes:
        return snapshot
    left = {name: view for name, view in snapshot.views.items() if name not in changes.without_nodes}
    views = _given_back(left, changes.given_back)
    return replace(snapshot, views=views, states=_states(views), changes=ChangeLog())


def _states(views: Mapping[str, NodeView]) -> dict[int, NodeState]:
    """The states of some nodes, by number. They are copies: those of the mirror list other nodes, too."""
    found: dict[int, NodeState] = {}
    for name, view in sorted(views.items()):
        state = found.get(view.state.number)
        if state is None:
            state = found[view.state.number] = replace(view.state, names=[])
        state.names.append(name)
    return found


def _given_back(views: dict[str, NodeView], given: Iterable[Result]) -> dict[str, NodeView]:
    """The views, changed in place."""
    results: dict[PoolKey, list[Result]] = {}
    for result in given:
        results.setdefault(PoolKey(result.device.driver, result.device.pool), []).append(result)
    for name, view in list(views.items()) if results else ():
        mine = [r for pool in view.inventory.pools for r in results.get(pool.key, ())]
        if mine:
            views[name] = freed(view, mine)
    return views


def seen_by_holder(snapshot: Snapshot, held: Iterable[Result], nodes: Iterable[str]) -> dict[str, NodeView]:
    """The nodes of devices that filter holds for a pod, as that pod sees them: with these devices free."""
    return _given_back({name: snapshot.views[name] for name in nodes if name in snapshot.views}, held)


def devices_of(snapshot: Snapshot, pod: str) -> list[Result]:
    """The devices of a pod, named as namespace/name. Raises WireError where it has none."""
    namespace, _, name = pod.partition("/")
    found = [
        result
        for key, claim in snapshot.claims.items()
        if key.namespace == namespace and claim.allocation is not None
        if any(consumer.name == name for consumer in claim.reserved_for)
        for result in claim.allocation.results
    ]
    if not found:
        raise WireError("free", f"no claim with devices is reserved for pod {shown(pod)}")
    return found


def freed(view: NodeView, results: Iterable[Result]) -> NodeView:
    """The node if these allocated devices were free, in a state of its own."""
    before, pools = view.usage.pools, dict(view.usage.pools)
    for result in results:
        key = PoolKey(result.device.driver, result.device.pool)
        pools[key] = _less(pools.get(key, UNUSED), result)
    counters = {
        pool.key: consumed_counters(pool.slices, pools.get(pool.key, UNUSED))
        if pools.get(pool.key) != before.get(pool.key)
        else view.usage.counters(pool)
        for pool in view.inventory.pools
        if pool.counter_sets
    }
    usage = Usage(pools, lambda pool: counters.get(pool.key, {}))
    busy = taken_mask(view.inventory, usage)
    drift, overuse = 0, dict[int, int]()
    if view.believed:
        drift, overuse = live_use(view.inventory, usage, uses_of(view.fabric), view.gpu_bits, busy)
    state = NodeState(appearance=view.state.appearance, imagined=True)
    return replace(view, usage=usage, busy=busy, held=view.held & busy, drift=drift, overuse=overuse, state=state)


def _less(use: PoolUse, result: Result) -> PoolUse:
    name = result.device.device
    if not result.share_id:
        return PoolUse(use.taken - {name}, use.shares)
    left = {
        capacity: amount - (result.consumed[capacity].nanos if result.consumed and capacity in result.consumed else 0)
        for capacity, amount in use.shares.get(name, {}).items()
    }
    shares = {device: amounts for device, amounts in use.shares.items() if device != name}
    if any(left.values()):
        shares[name] = left
    return PoolUse(use.taken, shares)
