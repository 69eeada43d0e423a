"""What-if scenarios: a snapshot without some nodes, with released devices, or with additional claims."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable
from dataclasses import dataclass, replace

from extender.allocation import NodeInfo, Snapshot, hypothetical_snapshot, with_devices_released
from extender.model import Claim, PoolKey, Result, WireError, shown


@dataclass(frozen=True, slots=True)
class Scenario:
    """The changes of a scenario. `released` are allocated devices that become free."""

    without_nodes: frozenset[str] = frozenset()
    released: tuple[Result, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.without_nodes or self.released)


def apply_scenario(snapshot: Snapshot, claims: Iterable[Claim], scenario: Scenario) -> Snapshot:
    """The snapshot with the changes; the same object without changes.

    A ranking that follows the real snapshots must not be used with the result: create a new one.
    """
    added = {claim.key: claim for claim in claims}
    if added:
        known = ChainMap(added, snapshot.claims)  # type: ignore[arg-type] # the second is never written
        snapshot = replace(snapshot, claims=known)
    if not scenario:
        return snapshot
    left = {name: node_info for name, node_info in snapshot.node_infos.items() if name not in scenario.without_nodes}
    node_infos = _with_released(left, scenario.released)
    return hypothetical_snapshot(snapshot, node_infos, snapshot.version)


def only_nodes(snapshot: Snapshot, names: Iterable[str]) -> Snapshot:
    """The snapshot with these nodes alone. A ranking of the real snapshots must not be used with it."""
    node_infos = {name: snapshot.node_infos[name] for name in names}
    return hypothetical_snapshot(snapshot, node_infos, snapshot.version)


def _with_released(
    node_infos: dict[str, NodeInfo], released: Iterable[Result], *, idle: bool = True
) -> dict[str, NodeInfo]:
    """Release the results in `node_infos`, which is changed in place and returned. `idle`: their workloads end."""
    results: dict[PoolKey, list[Result]] = {}
    for result in released:
        results.setdefault(PoolKey(result.device.driver, result.device.pool), []).append(result)
    for name, node_info in list(node_infos.items()) if results else ():
        own = [r for pool in node_info.inventory.pools for r in results.get(pool.key, ())]
        if own:
            node_infos[name] = with_devices_released(node_info, own, idle=idle)
    return node_infos


def without_own_holds(snapshot: Snapshot, held: Iterable[Result], nodes: Iterable[str]) -> dict[str, NodeInfo]:
    """The named nodes as the pod of these holds sees them: with its held devices free."""
    known = {name: snapshot.node_infos[name] for name in nodes if name in snapshot.node_infos}
    return _with_released(known, held, idle=False)


def devices_of(snapshot: Snapshot, pod: str) -> list[Result]:
    """The allocated devices of a pod, given as namespace/name. Raises WireError if it has none."""
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
