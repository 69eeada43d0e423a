"""Hypothetical empty domains: whether a gang could run in a domain if all other workloads there ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

from extender.allocation import NodeInfo, Snapshot
from extender.allocation.nodes import NodeState
from extender.allocation.what_if import hypothetical_snapshot, with_own_pools_released
from extender.api.object_meta import ObjectKey
from extender.api.resource_claims import Result
from extender.base.deadline import DeadlineExceeded
from extender.gangs.domains import Domain, Domains, natural
from extender.gangs.gang_planner import plan_gang
from extender.gangs.gang_problem import GangPlan, GangProblem
from extender.gangs.gang_units import equal_units
from extender.gangs.node_rooms import GangMemory, NodeRooms
from extender.scheduling import EvaluationContext, RankingCache

NODES_PER_STEP = 16  # nodes that are emptied at a time
MAX_TRIES = 8  # attempts to plan on one domain
Evaluation = Callable[[], EvaluationContext]
"""Returns the context of one attempt."""


def domains_by_room(
    problem: GangProblem, snapshot: Snapshot, context: EvaluationContext, rankings: RankingCache, memory: GangMemory
) -> list[Domain]:
    """The domains that may hold the gang, the nearest level first; in a level, those with the most free room first.

    All nodes without a common label are no domain. Raises DeadlineExceeded.
    """
    rooms = [NodeRooms(units, snapshot, context, rankings, memory) for units in equal_units(problem.members)]
    domains = Domains(problem, snapshot, snapshot.node_infos)

    def order(domain: Domain) -> tuple[int, int, object]:
        units = sum(min(one.most.get(name, 0), len(one.units)) for one in rooms for name in domain.nodes)
        free = sum(_free(snapshot.node_infos[name]) for name in domain.nodes)
        return -units, -free, natural(domain.name)

    levels = [domains.single(snapshot.node_infos), *domains.wider()]
    return [domain for level in levels for domain in sorted((one for one in level if one.level), key=order)]


def _free(node_info: NodeInfo) -> int:
    return (node_info.inventory.reachable & ~node_info.busy).bit_count()


class EmptyNodes:
    """Nodes without the workloads of others. Nodes that are equal once they are empty share one state."""

    def __init__(self) -> None:
        self._states: dict[Hashable, NodeState] = {}

    def of(self, node_info: NodeInfo, kept: Sequence[Result]) -> NodeInfo:
        """The node on which only the devices `kept`, and those of pools that other nodes share, are in use."""
        found, state = with_own_pools_released(node_info, kept), None if kept else _empty_state(node_info)
        return replace(found, state=self._states.setdefault(state, found.state)) if state is not None else found


def own_devices(own_claims: Mapping[ObjectKey, str], snapshot: Snapshot) -> dict[str, list[Result]]:
    """The devices of a gang, by node. `own_claims` are the claims of its pods with their nodes."""
    found: dict[str, list[Result]] = {}
    for key, node in own_claims.items():
        claim = snapshot.claims.get(key)
        if claim is not None and claim.allocation is not None:
            found.setdefault(node, []).extend(claim.allocation.results)
    return found


class EmptyDomains:
    """Plans one gang on domains in which only the devices of the gang itself are in use.

    Nodes that are equal once they are empty share one state, and so their evaluations. A domain is not tried if its
    nodes are equal to the nodes of a domain that cannot hold the gang.
    """

    def __init__(self, problem: GangProblem, own_claims: Mapping[ObjectKey, str], evaluation: Evaluation) -> None:
        """`own_claims` are the claims of the gang's pods with their nodes."""
        self._problem = problem
        self._units = equal_units(problem.members)
        self._own_claims = own_claims
        self._evaluation = evaluation
        self._rankings = RankingCache()
        self._memory = GangMemory()
        self._empty_nodes = EmptyNodes()
        self._too_small: set[Hashable] = set()
        self._versions = count()

    def holding(self, domain: Domain, newest: Callable[[], Snapshot]) -> Iterator[frozenset[str] | None]:
        """Decide in steps whether the domain could hold the gang; `newest` returns the snapshot of each step.

        The last value has the nodes of the domain that some member could use, and is empty if it cannot hold the gang.
        """
        snapshot = newest()
        kept = own_devices(self._own_claims, snapshot)
        known = [name for name in domain.nodes if name in snapshot.node_infos]
        key = frozenset(Counter(self._equivalence_key(snapshot.node_infos[name], kept) for name in known).items())
        if key in self._too_small:
            yield frozenset()
            return
        emptied: dict[str, NodeInfo] = {}
        for start in range(0, len(known), NODES_PER_STEP):
            snapshot = newest()
            for name in known[start : start + NODES_PER_STEP]:
                if name in snapshot.node_infos:
                    emptied[name] = self._empty_nodes.of(snapshot.node_infos[name], kept.get(name, ()))
            yield None
        for _ in range(MAX_TRIES):
            found = self._planned(hypothetical_snapshot(newest(), emptied, next(self._versions)))
            if found is not None:
                break
            yield None
        if not found:
            self._too_small.add(key)
        yield found or frozenset()

    def _planned(self, snapshot: Snapshot) -> frozenset[str] | None:
        """The nodes that a member could use if the snapshot has room for the gang, else no nodes.

        None if the deadline came first.
        """
        try:
            plan = plan_gang(self._problem, snapshot, self._evaluation(), self._rankings, self._memory)
        except DeadlineExceeded:
            return None
        if not isinstance(plan, GangPlan):
            return frozenset()
        usable = {name for ranking in self._rankings for names, _ in ranking.schedulable() for name in names}
        return frozenset(name for name in usable if any(self._allowed(snapshot.node_infos[name])))

    def _allowed(self, node_info: NodeInfo) -> tuple[int, ...]:
        """For each entry of the equal units, the number of units that may use the node. Devices in use do not count."""
        return tuple(units.allowed_on(node_info.node) for units in self._units)

    def _equivalence_key(self, node_info: NodeInfo, kept: Mapping[str, Sequence[Result]]) -> Hashable:
        """A key: nodes with equal keys have equal room once all other workloads have ended."""
        state = None if node_info.node.name in kept else _empty_state(node_info)
        return state or node_info.node.name, self._allowed(node_info), node_info.node.allocatable


def _empty_state(node_info: NodeInfo) -> Hashable | None:
    """A key: nodes with equal keys have equal statuses without their workloads. None if no other node has this key."""
    attribute_signature = node_info.state.attribute_signature
    if attribute_signature is None or not all(pool.is_own for pool in node_info.inventory.pools):
        return None
    return attribute_signature.number, node_info.drift, node_info.agent_is_fresh
