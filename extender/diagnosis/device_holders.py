"""The pods that have devices of a node: by an allocated claim, by a hold, or by a bind that writes the claim."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from extender.allocation import NodeInfo, Snapshot
from extender.model import Claim, Deadline, GroupKey, PoolKey, Reservation, Result, name_on_claims

ALLOCATED = "allocated"
GroupName = tuple[str, str]
"""Namespace and GroupKey.on_claims."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Pods that have devices of one node."""

    node: str
    devices: int
    pods: tuple[str, ...]  # several pods share a claim; empty if no pod uses the claim
    claims: tuple[str, ...]  # empty for a reservation
    state: str  # 'allocated', 'held' or 'binding'
    group: str  # of the pods, its name; '' without one


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A holder with the devices that become free when its pods end, on this node and on others."""

    holder: Holder
    results: tuple[Result, ...]
    group: GroupName | None = None  # of the pods
    group_pods: int = 0  # pods of the group that have devices: they are worth nothing without each other

    @property
    def stopped(self) -> int:
        """The number of pods that stop if these pods end: all pods of a group stop together."""
        return max(len(self.holder.pods), self.group_pods, 1)


def stopped_pods(uses: Iterable[DeviceUse]) -> int:
    """The number of pods that stop if all these uses end. A group with several of the uses counts once."""
    groups: dict[GroupName, int] = {}
    alone = 0
    for use in uses:
        if use.group is None:
            alone += use.stopped
        else:
            groups[use.group] = max(groups.get(use.group, 0), use.stopped)
    return alone + sum(groups.values())


def uses_by_node(
    node_infos: Iterable[NodeInfo], snapshot: Snapshot, gang: GroupKey, own: Collection[str], deadline: Deadline
) -> dict[str, list[DeviceUse]]:
    """The uses of devices by pods outside of a gang, for each of these nodes that has any.

    `own` are the UIDs of the gang's members. Raises DeadlineExceeded.
    """
    reserved: dict[str, list[Reservation]] = {}
    for reservation in snapshot.reservations.values():
        if reservation.pod_uid not in own:
            reserved.setdefault(reservation.node, []).append(reservation)
    found, sizes = {}, dict[GroupName, int]()
    for node_info in node_infos:
        deadline.check()
        name, pools = node_info.node.name, [pool.key for pool in node_info.inventory.pools]
        uses: dict[object, DeviceUse] = {}
        for claim in {claim.uid: claim for pool in pools for claim in snapshot.claims_on(pool)}.values():
            is_own = (claim.key.namespace, claim.group) == (gang.namespace, gang.on_claims)
            if not is_own and not any(consumer.uid in own for consumer in claim.reserved_for):
                _add(uses, _of_claim(name, claim, pools))
        for reservation in reserved.get(name, ()):
            _add(uses, _of_reservation(reservation, snapshot))
        if uses:
            found[name] = [_with_group(use, snapshot, sizes) for use in uses.values()]
    return found


def _with_group(use: DeviceUse, snapshot: Snapshot, sizes: dict[GroupName, int]) -> DeviceUse:
    """The use with its group. `sizes` has the groups that are known already."""
    if not use.holder.group or not use.holder.pods:
        return use
    group = use.holder.pods[0].partition("/")[0], use.holder.group
    if group not in sizes:
        claims = (snapshot.claims.get(key) for key in snapshot.group_claims.get(group, ()))
        sizes[group] = len({pod.uid for claim in claims if claim is not None for pod in claim.reserved_for})
    return DeviceUse(use.holder, use.results, group, sizes[group])


def _add(uses: dict[object, DeviceUse], use: DeviceUse) -> None:
    """Add a use, joined with the other claims of the same pods."""
    if not use.results:
        return
    new = use.holder
    key = (new.pods, new.state) if new.pods else new.claims
    old = uses.get(key)
    if old is not None:
        devices, claims = old.holder.devices + new.devices, (*old.holder.claims, *new.claims)
        joined = Holder(new.node, devices, new.pods, claims, new.state, old.holder.group or new.group)
        use = DeviceUse(joined, (*old.results, *use.results))
    uses[key] = use


def _of_claim(node: str, claim: Claim, pools: Collection[PoolKey]) -> DeviceUse:
    allocated = claim.allocation.results if claim.allocation is not None else ()
    results = tuple(result for result in allocated if not result.admin_access)
    here = sum(PoolKey(result.device.driver, result.device.pool) in pools for result in results)
    pods = tuple(f"{claim.key.namespace}/{consumer.name}" for consumer in claim.reserved_for)
    return DeviceUse(Holder(node, here, pods, (str(claim.key),), ALLOCATED, name_on_claims(claim.group)), results)


def _of_reservation(reservation: Reservation, snapshot: Snapshot) -> DeviceUse:
    pod = snapshot.pods.get(reservation.pod_uid)
    pods = (str(pod.key) if pod is not None else reservation.pod_uid,)
    group = pod.membership.key.name if pod is not None and pod.membership is not None else ""
    results = tuple(result for result in reservation.results if not result.admin_access)
    return DeviceUse(Holder(reservation.node, len(results), pods, (), reservation.state.value, group), results)
