"""The question of the search for near misses: a gang without room, and the domains that could hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from extender.allocation import Snapshot
from extender.diagnosis.device_holders import Holder
from extender.policy import Policy
from extender.scheduling import (
    MOST_TOGETHER,
    NODE,
    Domain,
    Domains,
    EvaluationContext,
    Gang,
    GangMembers,
    GangMemory,
    GangPlan,
    GangProblem,
    GangShortage,
    RankingCache,
    UsableNodes,
    gang_problem,
    natural,
    plan_gang,
)


@dataclass(frozen=True, slots=True)
class GangQuestion:
    """A gang without room, and what the planner needs. `rankings` and `memory` follow the snapshot.

    `usable` are the nodes that a member could use if all other workloads ended; None if they are not known.
    """

    gang: Gang
    members: GangMembers
    policy: Policy
    snapshot: Snapshot
    context: EvaluationContext
    rankings: RankingCache
    memory: GangMemory
    usable: frozenset[str] | None = None
    constraints: UsableNodes = field(default_factory=lambda: UsableNodes(MOST_TOGETHER))
    usable_by_size: dict[int, dict[str, frozenset[str]]] = field(default_factory=dict)  # the results of usable_nodes

    def problem(self, size: int) -> GangProblem:
        """The problem of the first `size` members."""
        return gang_problem(self.gang, self.members.first(size), self.policy, self.usable_nodes(size))

    def usable_nodes(self, size: int) -> dict[str, frozenset[str]]:
        """By UID, the nodes on which kube-scheduler may place the first `size` members, as UsableNodes.of.

        Raises DeadlineExceeded, but not for members of a size that was asked for before.
        """
        found = self.usable_by_size.get(size)
        if found is None:
            nodes = {name: info.node for name, info in self.snapshot.node_infos.items()}
            pods, version = self.members.first(size).pods, self.snapshot.version
            found = self.usable_by_size[size] = self.constraints.of(pods, nodes, version, self.context.deadline)
        return found

    def plan(self, problem: GangProblem) -> GangPlan | GangShortage:
        """Plan on the snapshot. Raises DeadlineExceeded."""
        return plan_gang(problem, self.snapshot, self.context, self.rankings, self.memory)


@dataclass(frozen=True, slots=True)
class GangNearMiss:
    """One change with which the gang has a plan."""

    pods: int  # number of pods that would not run: other pods, with all pods of their groups, or members left out
    devices: int  # number of devices of these pods
    sentence: str
    holders: tuple[Holder, ...] = ()  # the other pods whose devices the gang needs


def where(level: str, domain: str) -> str:
    """A domain as text, such as 'on node n1' or 'in topology.kubernetes.io/rack=r7'."""
    if not level:
        return "across the cluster"
    return f"on node {domain}" if level == NODE else f"in {level}={domain}"


def widest_domains(question: GangQuestion, shortage: GangShortage) -> list[Domain]:
    """The widest domains that may hold the gang: the one with the most room, then those with the most free devices.

    Each domain has only its usable nodes. Raises DeadlineExceeded.
    """
    node_infos = question.snapshot.node_infos
    usable = node_infos.keys() if question.usable is None else node_infos.keys() & question.usable
    problem = question.problem(question.gang.missing)
    levels = Domains(problem, question.snapshot, usable)
    widest: Sequence[Domain] = ()
    for level in levels.wider():
        widest = level
    widest = widest or levels.single(usable)

    def order(domain: Domain) -> tuple[bool, int, object]:
        question.context.deadline.check()
        free = 0
        for name in domain.nodes:
            node_info = node_infos[name]
            free += len(node_info.inventory.devices) - node_info.busy.bit_count()
        known = (domain.level, domain.name) == (shortage.level, shortage.domain)
        return not known, -free, natural(domain.name)

    return sorted((domain for domain in widest if domain.nodes), key=order)
