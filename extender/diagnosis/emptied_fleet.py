"""Whether a gang could run if the workloads of all others ended, and on which nodes its pods find devices then."""

from __future__ import annotations

from extender.allocation import Snapshot, hypothetical_snapshot
from extender.model import GroupKey
from extender.scheduling import (
    EmptyNodes,
    EvaluationContext,
    GangMemory,
    GangPlan,
    GangProblem,
    GangShortage,
    NodeRooms,
    RankingCache,
    equal_units,
    own_devices,
    plan_gang,
)


class EmptiedFleet:
    """A snapshot in which only the devices of one gang are in use.

    `usable` are the nodes on which some member of the problem fits then. `is_exact` is false if devices of pools that
    several nodes share are in use: they are not released.
    """

    def __init__(self, key: GroupKey, problem: GangProblem, snapshot: Snapshot, context: EvaluationContext) -> None:
        """Raises DeadlineExceeded."""
        kept, empty_nodes = own_devices(snapshot.claims_of_group(key), snapshot), EmptyNodes()
        node_infos = {}
        for name, node_info in snapshot.node_infos.items():
            context.deadline.check()
            node_infos[name] = empty_nodes.of(node_info, kept.get(name, ()))
        self._snapshot = hypothetical_snapshot(snapshot, node_infos, snapshot.version)
        self._context = context
        self._rankings, self._memory = RankingCache(), GangMemory()
        rooms = [
            NodeRooms(units, self._snapshot, context, self._rankings, self._memory)
            for units in equal_units(problem.members)
        ]
        self.usable = frozenset(name for one in rooms for name in one.most)
        self.is_exact = not any(node_info.busy for name, node_info in node_infos.items() if name not in kept)

    def plan(self, problem: GangProblem) -> GangPlan | GangShortage:
        """Plan on the empty nodes. Raises DeadlineExceeded."""
        return plan_gang(problem, self._snapshot, self._context, self._rankings, self._memory)
