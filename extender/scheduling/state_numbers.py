"""The numbers by which a ranking knows the states of nodes."""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakKeyDictionary

from extender.allocation import NodeInfo, NodeState, PoolGroup
from extender.model import InvalidClaim
from extender.scheduling.evaluate import EvaluationContext, problem_for
from extender.scheduling.pod_requirements import PodRequirements


class StateNumbers:
    """Gives states that differ only in the use of shared pools one number if the requirements match no shared device.

    So a claim on a shared device changes no number of requirements that cannot have such a device. The requirements
    must read no identity of a device: then a group of shared pools looks the same from all its nodes.
    """

    def __init__(self, requirements: PodRequirements) -> None:
        self._requirements = requirements
        # Whether the requirements match a device in a group. No limit may drop an entry, or nodes would lose their
        # status. An entry ends with its group.
        self._reads: WeakKeyDictionary[PoolGroup, bool] = WeakKeyDictionary()

    def __len__(self) -> int:
        """The number of known groups."""
        return len(self._reads)

    def of(self, state: NodeState) -> int:
        """The number of a state. Before `learn`, this is a number for which the ranking has no status."""
        if state.shared is None or self._reads.get(state.shared.group, True):
            return state.number
        return state.own.number

    def knows(self, state: NodeState) -> bool:
        """Whether the number of the state is final. If not, `learn` a node in it first."""
        return state.shared is None or state.shared.group in self._reads

    def learn(self, node_info: NodeInfo, context: EvaluationContext) -> None:
        """Find out whether the requirements match a device in the node's group. Raises DeadlineExceeded."""
        if node_info.state.shared is not None:
            self._reads[node_info.state.shared.group] = self._reads_shared(node_info, context)

    def _reads_shared(self, node_info: NodeInfo, context: EvaluationContext) -> bool:
        """Whether the requirements may match a device of the node's shared pools, on any node."""
        shared = 0
        for first, part in node_info.inventory.shared_parts:
            shared |= ((1 << len(part.devices)) - 1) << first
        # Another node of the group may reach devices that this node does not reach.
        everywhere = replace(node_info, inventory=replace(node_info.inventory, reachable=-1))
        problem = problem_for(everywhere, self._requirements, replace(context, selections=None))
        try:
            for name, spec in zip(problem.names, problem.specs, strict=True):
                for option in (option for request in spec.requests for option in request.alternatives):
                    found = problem.select(name, option)
                    if (found.match | found.unsupported | found.error) & shared:
                        return True
        except InvalidClaim:
            return True
        return False
