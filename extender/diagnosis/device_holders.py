"""The pods that have devices of a node: by an allocated claim, by a hold, or by a bind that writes the claim."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from extender.allocation import NodeInfo, Snapshot, blocking_taint
from extender.allocation.nodes import Inventory
from extender.model import (
    Claim,
    GroupKey,
    InvalidClaim,
    Pod,
    PoolKey,
    Reservation,
    Result,
    members,
    name_on_claims,
)
from extender.scheduling import EvaluationContext, PodRequirements, own_claims
from extender.scheduling.requirements import needs_reservation

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
    claims: tuple[Claim, ...] = ()  # with these devices, as far as they are known

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
    node_infos: Iterable[NodeInfo],
    snapshot: Snapshot,
    gang: GroupKey,
    needed: Mapping[str, PodRequirements],
    context: EvaluationContext,
) -> dict[str, list[DeviceUse]]:
    """The uses of devices that a gang could have, by pods outside of it, for each of these nodes that has any.

    `needed` are the requirements of the gang's members, by UID. Raises DeadlineExceeded.
    """
    own, kinds = needed.keys(), {one.key: one for one in needed.values()}.values()
    own_of_group = own_claims(gang, snapshot)
    reserved: dict[str, list[Reservation]] = {}
    for reservation in snapshot.reservations.values():
        if reservation.pod_uid not in own:
            reserved.setdefault(reservation.node, []).append(reservation)
    found, sizes = {}, dict[GroupName, int]()
    for node_info in node_infos:
        context.deadline.check()
        name, pools = node_info.node.name, [pool.key for pool in node_info.inventory.pools]
        uses: dict[object, DeviceUse] = {}
        for claim in {claim.uid: claim for pool in pools for claim in snapshot.claims_on(pool)}.values():
            if claim.key not in own_of_group and not any(consumer.uid in own for consumer in claim.reserved_for):
                _add(uses, _of_claim(name, claim, pools))
        for reservation in reserved.get(name, ()):
            _add(uses, _of_reservation(reservation, snapshot))
        wanted, index = devices_for(node_info, kinds, context) if uses else 0, node_info.inventory.index
        of_gang = [
            _with_group(use, snapshot, sizes)
            for use in uses.values()
            if any(wanted >> bit & 1 for one in use.results if (bit := index.get(one.device)) is not None)
        ]
        if of_gang:
            found[name] = of_gang
    return found


def uses_of_shared_claims(
    gang: GroupKey, pods: Iterable[Pod], needed: Mapping[str, PodRequirements], snapshot: Snapshot
) -> list[DeviceUse]:
    """The uses of claims that members share with others and that only these others use: they pin the members.

    `pods` are the members that wait.
    """
    own, uses = own_claims(gang, snapshot), dict[object, DeviceUse]()
    pinned = dict[str, Claim]()
    of_members = set[str]()
    for pod in pods:
        found = needed.get(pod.uid)
        for claim in (*found.allocated_claims, *found.promised_claims) if found is not None else ():
            pinned[claim.uid] = claim
            reservation = snapshot.reservations.get(claim.uid)
            is_own = claim.key in own or not needs_reservation(claim, pod)
            if is_own or (reservation is not None and reservation.pod_uid in needed):
                of_members.add(claim.uid)
    for claim in (claim for uid, claim in pinned.items() if uid not in of_members):
        reservation = snapshot.reservations.get(claim.uid)
        if reservation is not None:
            _add(uses, replace(_of_reservation(reservation, snapshot), claims=(claim,)))
            continue
        devices = {result.device for result in claim.allocation.results} if claim.allocation is not None else ()
        infos = snapshot.node_infos.values()
        nodes = (one for one in infos if any(one.inventory.index.get(device) is not None for device in devices))
        node_info = next(nodes, None)
        if node_info is not None:
            _add(uses, _of_claim(node_info.node.name, claim, [pool.key for pool in node_info.inventory.pools]))
    return [_with_group(use, snapshot, {}) for use in uses.values()]


def devices_for(node_info: NodeInfo, kinds: Iterable[PodRequirements], context: EvaluationContext) -> int:
    """Mask of the devices whose use can keep pods with these requirements from the node.

    Those that could serve a request, and those that consume counters which such a device consumes. Raises
    DeadlineExceeded.
    """
    found, inventory = 0, node_info.inventory
    for requirements in kinds:
        problem = context.problem(node_info, requirements.for_node(node_info.node))
        for name, spec in zip(problem.names, problem.specs, strict=True):
            for option in (option for request in spec.requests for option in request.alternatives):
                if option.admin_access:
                    continue
                try:
                    match = problem.select(name, option).match
                except InvalidClaim:
                    continue
                found |= match & inventory.simple
                for bit in members(match & ~inventory.simple):
                    if blocking_taint(inventory.devices[bit].device, option.tolerations) is None:
                        found |= 1 << bit
    return found | _beside(inventory, found)


def _beside(inventory: Inventory, devices: int) -> int:
    """Mask of the devices that consume a counter set of one of these devices."""
    sets = {
        (inventory.devices[bit].pool, use.counter_set)
        for bit in members(devices & ~inventory.simple)
        for use in inventory.devices[bit].device.consumes
    }
    if not sets:
        return 0
    others = enumerate(inventory.devices)
    return sum(
        1 << bit for bit, one in others if any((one.pool, use.counter_set) in sets for use in one.device.consumes)
    )


def _with_group(use: DeviceUse, snapshot: Snapshot, sizes: dict[GroupName, int]) -> DeviceUse:
    """The use with its group. `sizes` has the groups that are known already."""
    if not use.holder.group or not use.holder.pods:
        return use
    group = use.holder.pods[0].partition("/")[0], use.holder.group
    if group not in sizes:
        claims = (snapshot.claims.get(key) for key in snapshot.group_claims.get(group, ()))
        sizes[group] = len({pod.uid for claim in claims if claim is not None for pod in claim.reserved_for})
    return replace(use, group=group, group_pods=sizes[group])


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
        use = DeviceUse(joined, (*old.results, *use.results), claims=(*old.claims, *use.claims))
    uses[key] = use


def _of_claim(node: str, claim: Claim, pools: Collection[PoolKey]) -> DeviceUse:
    allocated = claim.allocation.results if claim.allocation is not None else ()
    results = tuple(result for result in allocated if not result.admin_access)
    here = sum(PoolKey(result.device.driver, result.device.pool) in pools for result in results)
    pods = tuple(f"{claim.key.namespace}/{consumer.name}" for consumer in claim.reserved_for)
    holder = Holder(node, here, pods, (str(claim.key),), ALLOCATED, name_on_claims(claim.group))
    return DeviceUse(holder, results, claims=(claim,))


def _of_reservation(reservation: Reservation, snapshot: Snapshot) -> DeviceUse:
    pod = snapshot.pods.get(reservation.pod_uid)
    pods = (str(pod.key) if pod is not None else reservation.pod_uid,)
    group = pod.membership.key.name if pod is not None and pod.membership is not None else ""
    results = tuple(result for result in reservation.results if not result.admin_access)
    return DeviceUse(Holder(reservation.node, len(results), pods, (), reservation.state.value, group), results)
