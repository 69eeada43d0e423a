"""The question of the search for near misses: a gang without room, its room, and the domains that could hold it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from extender.allocation import Snapshot
from extender.explain.device_holders import DeviceUse, Holder
from extender.explain.scenario import Scenario, apply_scenario
from extender.model import DeadlineExceeded
from extender.policy import Policy
from extender.scheduling import (
    MOST_TOGETHER,
    NODE,
    Domain,
    Domains,
    EvaluationContext,
    Gang,
    GangMember,
    GangMembers,
    GangMemory,
    GangPlan,
    GangProblem,
    GangShortage,
    RankingCache,
    UnreadyMember,
    UsableNodes,
    gang_members,
    gang_problem,
    natural,
    plan_gang,
)

_TRIES = 64  # sets of members that differ
Plan = Callable[[GangProblem], GangPlan | GangShortage]


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

    def without(self, uses: Sequence[DeviceUse]) -> GangQuestion | None:
        """The question as if the pods of these uses had ended, also for members that share their claims.

        None if a member has no requirements then.
        """
        if not uses:
            return self
        ended = Scenario(
            released=tuple(result for use in uses if not use.claims for result in use.results),
            deallocated=tuple(claim for use in uses for claim in use.claims),
        )
        snapshot = apply_scenario(self.snapshot, (), ended)
        members = gang_members(self.gang, snapshot, self.policy)
        if isinstance(members, UnreadyMember):
            return None
        return replace(self, snapshot=snapshot, members=members, rankings=RankingCache(), memory=GangMemory())

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

    A node that is in none of them is a domain of its own. Each domain has only its usable nodes. Raises
    DeadlineExceeded.
    """
    node_infos = question.snapshot.node_infos
    usable = node_infos.keys() if question.usable is None else node_infos.keys() & question.usable
    problem = question.problem(question.gang.missing)
    levels = Domains(problem, question.snapshot, usable)
    widest: Sequence[Domain] = ()
    for level in levels.wider():
        widest = level
    within = {name for domain in widest for name in domain.nodes}
    widest = [*widest, *levels.single(usable - within)]  # a single node needs no label of a wider level

    def order(domain: Domain) -> tuple[bool, int, object]:
        question.context.deadline.check()
        free = 0
        for name in domain.nodes:
            node_info = node_infos[name]
            free += len(node_info.inventory.devices) - node_info.busy.bit_count()
        known = (domain.level, domain.name) == (shortage.level, shortage.domain)
        known |= shortage.level == NODE and shortage.domain in domain.nodes
        return not known, -free, natural(domain.name)

    return sorted((domain for domain in widest if domain.nodes), key=order)


# -- room ----------------------------------------------------------------------------------------------------------


def most_room(problem: GangProblem, shortage: GangShortage, plan: Plan) -> GangShortage:
    """The shortage of the problem, with the most members that have a plan.

    The planner itself fills a domain with whole units, the largest first. But a part of a unit can fit, and two small
    members in place of a large one. `most` says whether all sets of one more member were tried. Never raises
    DeadlineExceeded.
    """
    search = _MostRoom(problem, shortage, plan)
    try:
        search.run()
    except DeadlineExceeded:
        search.found = replace(search.found, most=False)
    return search.found


class _MostRoom:
    def __init__(self, problem: GangProblem, shortage: GangShortage, plan: Plan) -> None:
        self._problem = problem
        self._plan = plan
        self._gave_up = False
        self.found = shortage

    def run(self) -> None:
        """Raises DeadlineExceeded."""
        kinds, tries = equal_members(self._problem.members), _TRIES
        self._first_in_rank_order()
        while self.found.room + 1 < len(self._problem.members):
            fits = False
            self._gave_up = False
            for chosen in subsets(kinds, self.found.room + 1):
                tries -= 1
                fits = tries >= 0 and self._fits(chosen)
                if fits or tries < 0:
                    break
            if not fits:
                most = tries >= 0 and not self._gave_up
                # If no set of one more member fits, then all do not: the planner need not have given up.
                self.found = replace(self.found, most=most, gave_up=self.found.gave_up and not most)
                return
        self.found = replace(self.found, most=not self.found.gave_up)

    def _first_in_rank_order(self) -> None:
        members, most = self._problem.members, len(self._problem.members) - 1
        middle = self.found.room + 1  # seldom more than the planner found
        while self.found.room < most:
            most = most if self._fits(members[:middle]) else middle - 1
            middle = (self.found.room + most + 1) // 2

    def _fits(self, members: Sequence[GangMember]) -> bool:
        found = self._plan(replace(self._problem, members=tuple(members)))
        if isinstance(found, GangPlan):
            self.found = replace(self.found, room=len(members), level=found.level, domain=found.domain)
            return True
        self._gave_up |= found.gave_up
        return False


def equal_members(members: Sequence[GangMember]) -> list[list[GangMember]]:
    """The members by their needs. Those that share a claim are equal only to others that share it."""
    times = Counter(claim.uid for member in members for claim in member.requirements.pending_claims if claim.uid)
    found: dict[Hashable, list[GangMember]] = {}
    for member in members:
        needs = member.requirements
        shared = frozenset(claim.uid for claim in needs.pending_claims if times[claim.uid] > 1)
        key = (needs.key, shared, member.nodes, member.excluded, member.limit)
        found.setdefault(key, []).append(member)
    return list(found.values())


def subsets(kinds: Sequence[Sequence[GangMember]], size: int) -> Iterator[tuple[GangMember, ...]]:
    """The sets of so many members that differ in the number of some kind."""
    if not kinds:
        if not size:
            yield ()
        return
    first, rest = kinds[0], kinds[1:]
    left = sum(map(len, rest))
    for count in range(min(len(first), size), max(size - left, 0) - 1, -1):
        for more in subsets(rest, size - count):
            yield (*first[:count], *more)
