"""What-if scenarios: a snapshot without some nodes, with released devices, or with additional claims or classes."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from extender.allocation import NodeInfo, Snapshot
from extender.allocation.what_if import hypothetical_snapshot, with_devices_released
from extender.api.device_classes import DeviceClass, extended_resources
from extender.api.object_meta import ObjectKey
from extender.api.pod_groups import GroupKey, GroupPolicy
from extender.api.pods import Pod
from extender.api.resource_claims import Claim, Result
from extender.api.resource_slices import PoolKey
from extender.base.berth_errors import WireError
from extender.base.text_limits import shown

_NEWEST = "9999-12-31T23:59:59Z"  # creationTimestamp of a class that is applied after all others
_HYPOTHETICAL_CLASSES = -1  # classes_version of no real snapshot


@dataclass(frozen=True, slots=True)
class Scenario:
    """The changes of a scenario. `released` are allocated devices that become free; `classes` are applied."""

    without_nodes: frozenset[str] = frozenset()
    released: tuple[Result, ...] = ()
    deallocated: tuple[Claim, ...] = ()  # claims that lose their devices and consumers
    classes: tuple[DeviceClass, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.without_nodes or self.released or self.deallocated or self.classes)


def apply_scenario(snapshot: Snapshot, claims: Iterable[Claim], scenario: Scenario) -> Snapshot:
    """The snapshot with the changes; the same object without changes.

    A ranking that follows the real snapshots must not be used with the result: create a new one.
    """
    added = {one.key: replace(one, allocation=None, reserved_for=()) for one in scenario.deallocated}
    added |= {claim.key: claim for claim in claims}
    if added:
        known = ChainMap(added, snapshot.claims)  # type: ignore[arg-type] # the second is never written
        snapshot = replace(snapshot, claims=known)
    if scenario.deallocated:
        snapshot = without_allocations(snapshot, scenario.deallocated)
    if scenario.classes:
        snapshot = _with_classes(snapshot, scenario.classes)
    released = [*scenario.released, *_results_of(scenario.deallocated)]
    if not scenario.without_nodes and not released:
        return snapshot
    left = {name: node_info for name, node_info in snapshot.node_infos.items() if name not in scenario.without_nodes}
    _release(left, released)
    return hypothetical_snapshot(snapshot, left, snapshot.version)


def _release(node_infos: dict[str, NodeInfo], released: Iterable[Result], *, idle: bool = True) -> None:
    """Release the results in `node_infos`, which changes. `idle`: their workloads end."""
    results: dict[PoolKey, list[Result]] = {}
    for result in released:
        results.setdefault(PoolKey(result.device.driver, result.device.pool), []).append(result)
    for name, node_info in list(node_infos.items()) if results else ():
        own = [result for pool in node_info.inventory.pools for result in results.get(pool.key, ())]
        if own:
            node_infos[name] = with_devices_released(node_info, own, idle=idle)


def without_allocations(snapshot: Snapshot, claims: Iterable[Claim]) -> Snapshot:
    """The snapshot without the reservations of these claims, and without them among the claims with devices.

    Their devices stay in use.
    """
    keys, uids, claims_on = {claim.key for claim in claims}, {claim.uid for claim in claims}, snapshot.claims_on
    return replace(
        snapshot,
        reservations={uid: one for uid, one in snapshot.reservations.items() if uid not in uids},
        claims_on=lambda pool: [claim for claim in claims_on(pool) if claim.key not in keys],
    )


def _with_classes(snapshot: Snapshot, applied: Iterable[DeviceClass]) -> Snapshot:
    """The snapshot once these classes are applied. An applied class keeps the time of its creation."""
    classes = dict(snapshot.classes)
    for class_ in applied:
        known = classes.get(class_.name)
        classes[class_.name] = replace(class_, created=known.created if known is not None else _NEWEST)
    return replace(
        snapshot,
        classes=classes,
        classes_version=_HYPOTHETICAL_CLASSES,
        extended_resources=extended_resources(classes.values()),
    )


def with_new_group(
    snapshot: Snapshot, key: GroupKey, pods: Iterable[Pod], policies: Mapping[GroupKey, GroupPolicy]
) -> Snapshot:
    """The snapshot as if these pods were all of the group. Devices of a group of this name stay in use.

    `policies` are those of new objects; they replace the known ones.
    """
    own = (key.namespace, key.on_claims)
    return replace(
        snapshot,
        members={**snapshot.members, key: {pod.uid: pod for pod in pods if pod.is_waiting}},
        group_policies={**snapshot.group_policies, **policies},
        group_claims={group: claims for group, claims in snapshot.group_claims.items() if group != own},
        group_users={group: users for group, users in snapshot.group_users.items() if group != own},
        bound_members={group: nodes for group, nodes in snapshot.bound_members.items() if group != key},
    )


def only_nodes(snapshot: Snapshot, names: Iterable[str]) -> Snapshot:
    """The snapshot with these nodes alone. A ranking of the real snapshots must not be used with it."""
    node_infos = {name: snapshot.node_infos[name] for name in names}
    return hypothetical_snapshot(snapshot, node_infos, snapshot.version)


def _results_of(claims: Iterable[Claim]) -> Iterator[Result]:
    for claim in claims:
        yield from claim.allocation.results if claim.allocation is not None else ()


def without_own_holds(snapshot: Snapshot, held: Iterable[Result], claims: Iterable[ObjectKey]) -> Snapshot:
    """The snapshot for a pod that is about to be bound to the devices `held` for its claims.

    The devices are free for it, with the memory that is in use there now, and the pod is not yet near the others of
    its group.
    """
    keys, node_infos = {*claims}, dict(snapshot.node_infos)
    _release(node_infos, held, idle=False)
    groups = snapshot.group_claims.items()
    left = {name: {key: node for key, node in found.items() if key not in keys} for name, found in groups}
    return replace(hypothetical_snapshot(snapshot, node_infos, snapshot.version), group_claims=left)


def scenario_of(snapshot: Snapshot, without: Iterable[str], free: Iterable[str], option: str = "without") -> Scenario:
    """The scenario without some nodes, and in which the devices of pods, given as namespace/name, are free.

    Raises WireError if a node is not known, which names the option, or if a pod has no claim with devices.
    """
    nodes = list(without)
    unknown = [name for name in nodes if name not in snapshot.node_infos]
    if unknown:
        raise WireError(option, f"node {shown(unknown[0])} is not known")
    return Scenario(frozenset(nodes), deallocated=_claims_of(snapshot, free))


def _claims_of(snapshot: Snapshot, pods: Iterable[str]) -> tuple[Claim, ...]:
    found: dict[str, list[Claim]] = {pod: [] for pod in pods}
    for key, claim in snapshot.claims.items() if found else ():
        if claim.allocation is not None and claim.allocation.results:
            for name in {f"{key.namespace}/{consumer.name}" for consumer in claim.reserved_for} & found.keys():
                found[name].append(claim)
    for pod, claims in found.items():
        if not claims:
            raise WireError("free", f"no claim with devices is reserved for pod {shown(pod)}")
    return tuple({claim.key: claim for claims in found.values() for claim in claims}.values())
