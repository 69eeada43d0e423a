"""Whether a gang could run if the workloads of all others ended, on which nodes, and why its pods lack other nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from extender.allocation import NodeInfo, Snapshot
from extender.allocation.nodes import NodeState, inventory
from extender.allocation.what_if import hypothetical_snapshot
from extender.model import Code, DeadlineExceeded, GroupKey, InvalidClaim, Reason, members
from extender.scheduling import (
    EmptyNodes,
    EvaluationContext,
    GangMember,
    GangMemory,
    GangPlan,
    GangProblem,
    GangShortage,
    NodeRooms,
    PodRequirements,
    RankingCache,
    Unschedulable,
    equal_units,
    own_claims,
    own_devices,
    plan_gang,
)

# Reasons of nodes that are told even if the pod fits on others: these nodes may get room again.
_TOLD = (Code.POOL_UPDATING, Code.POOL_INVALID, Code.TAINTED)


class EmptiedFleet:
    """A snapshot in which only the devices of one gang are in use.

    `usable` are the nodes on which some member of the problem fits then. `is_exact` is false if devices of pools that
    several nodes share are in use, or if the policy excludes devices that a program uses without a claim: neither are
    released.
    """

    def __init__(self, key: GroupKey, problem: GangProblem, snapshot: Snapshot, context: EvaluationContext) -> None:
        """Raises DeadlineExceeded."""
        kept, empty_nodes = own_devices(own_claims(key, snapshot), snapshot), EmptyNodes()
        node_infos = {}
        for name, node_info in snapshot.node_infos.items():
            context.deadline.check()
            node_infos[name] = empty_nodes.of(node_info, kept.get(name, ()))
        self._node_infos = node_infos
        self._problem = problem
        self._snapshot = hypothetical_snapshot(snapshot, node_infos, snapshot.version)
        self._context = context
        self._rankings, self._memory = RankingCache(), GangMemory()
        rooms = [
            NodeRooms(units, self._snapshot, context, self._rankings, self._memory)
            for units in equal_units(problem.members)
        ]
        self.usable = frozenset(name for one in rooms for name in one.most)
        drift = any(member.requirements.policy.drift == "filter" for member in problem.members)
        self.is_exact = not any(
            (node_info.busy and name not in kept) or (drift and node_info.drift)
            for name, node_info in node_infos.items()
        )

    def plan(self, problem: GangProblem) -> GangPlan | GangShortage:
        """Plan on the empty nodes. Raises DeadlineExceeded."""
        return plan_gang(problem, self._snapshot, self._context, self._rankings, self._memory)

    @property
    def has_taints(self) -> bool:
        """Whether a device has a taint."""
        found = (node_info.inventory for node_info in self._node_infos.values())
        return any(
            one.devices[bit].device.taints
            for one in found
            for bit in members((1 << len(one.devices)) - 1 & ~one.simple)
        )

    def plan_without_taints(self, problem: GangProblem, on: Snapshot | None = None) -> GangPlan | GangShortage:
        """Plan on the empty nodes, or on a snapshot, as if no device had a taint. Raises DeadlineExceeded."""
        features = replace(self._context.features, taints=False)
        return plan_gang(problem, on or self._snapshot, replace(self._context, features=features, placements=None))

    # -- why not -----------------------------------------------------------------------------------------------

    def reasons(self, member: GangMember) -> dict[Reason, int]:
        """Why nodes have no devices for a member even then, with their number: the most frequent reason if no node has.

        Pools that are updated or invalid, and taints, are always told. Raises DeadlineExceeded.
        """
        ranking = self._rankings.get_or_create(member.requirements)
        if not ranking.update(self._snapshot, self._context):
            raise DeadlineExceeded
        found, fits = Counter[Reason](), False
        for one in ranking.nodes_by_status(self._allowed(member)):
            if isinstance(one.status, Unschedulable):
                found[one.status.reason] += one.nodes
            else:
                fits = True
        first = [] if fits else [reason for reason, _ in found.most_common(1)]
        told = sorted((reason for reason in found if reason.code in _TOLD), key=str)
        return {reason: found[reason] for reason in dict.fromkeys((*first, *told))}

    def _allowed(self, member: GangMember) -> set[str]:
        selectors = member.requirements.node_selectors
        return {
            name
            for name, node_info in self._node_infos.items()
            if (member.nodes is None or name in member.nodes)
            and all(selector.matches(name, node_info.node.labels) for selector in selectors)
        }

    def updating(self) -> int:
        """The number of nodes that may get more devices for a member, because a pool there is being updated.

        A pool counts if its driver has devices of a class that a member asks for, or if no device of the driver is
        known. Raises DeadlineExceeded.
        """
        allowed = set[str]().union(*map(self._allowed, self._problem.members))
        updated = {
            name: {pool.key.driver for pool in self._node_infos[name].inventory.pools if pool.incomplete}
            for name in allowed
        }
        if not any(updated.values()):
            return 0
        known, wanted = set[str](), set[str]()
        kinds = {member.requirements.key: member.requirements for member in self._problem.members}.values()
        for node_info in map(_with_known_slices, self._node_infos.values()):
            self._context.deadline.check()
            known |= {one.id.driver for one in node_info.inventory.devices}
            wanted |= set(self._drivers(node_info, kinds))
        return sum(bool(drivers & wanted or drivers - known) for drivers in updated.values())

    def _drivers(self, node_info: NodeInfo, kinds: Iterable[PodRequirements]) -> Iterator[str]:
        """The drivers of the node's devices that are of a class which the pods ask for."""
        for requirements in kinds:
            problem = self._context.problem(node_info, requirements.for_node(node_info.node))
            for name, spec in zip(problem.names, problem.specs, strict=True):
                for option in (option for request in spec.requests for option in request.alternatives):
                    try:
                        match = problem.select(name, replace(option, selectors=())).match
                    except InvalidClaim:
                        continue
                    yield from (node_info.inventory.devices[bit].id.driver for bit in members(match))


def _with_known_slices(node_info: NodeInfo) -> NodeInfo:
    """The node as if the known slices of its pools were all."""
    pools = node_info.inventory.pools
    if not any(pool.incomplete for pool in pools):
        return node_info
    known = (replace(one, incomplete=False, slices=one.origin, placed=[]) if one.incomplete else one for one in pools)
    return replace(node_info, inventory=inventory(node_info.node, tuple(known)), state=NodeState())
