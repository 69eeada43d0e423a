"""Makes the plan of a gang from the cache, with the requirements of its members and the nodes that it must avoid."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from extender.allocation import Snapshot
from extender.api.pod_groups import GroupKey
from extender.api.pods import Pod
from extender.api.reasons import Code, Reason
from extender.api.resource_claims import Claim
from extender.base.deadline import Deadline
from extender.cache import ClusterCache
from extender.gangs.gang import Gang, gang_of
from extender.gangs.gang_planner import lacking_members, plan_gang
from extender.gangs.gang_problem import (
    MAX_TOGETHER,
    GangMember,
    GangMembers,
    GangPlan,
    GangProblem,
    GangShortage,
    UnreadyMember,
    gang_members,
    gang_problem,
    incomplete,
    no_room,
    plan_sizes,
)
from extender.gangs.node_rooms import GangMemory
from extender.scheduling import EvaluationContext, UsableNodes
from extender.scheduling.requirements import ErrorStatus
from extender.scheduling.shortlist import CollectedDomain
from extender.serve.filter import FilterService
from extender.serve.gangs.gang_state import FormingGang, GangNeeds, PlannedGang, WaitsForGang

MAX_CLASSES = 4  # equivalence classes of members whose needs a waiting gang keeps; with more, it is planned more often
_PASSES = (Code.EXTENDED_STALE, Code.CLAIM_FULL, Code.GANG_CLAIM_FULL)  # they end without a change of the pods
MAX_SIZE = 16  # of these classes, see PodRequirements.counts_as: the needs keep their claims after the deletion


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The input of one plan, see GangPlanning.plan."""

    pod: Pod
    names: Sequence[str] | None
    occupied: Mapping[GroupKey, frozenset[str]]  # nodes that the gang must not use, by the gang that uses them
    before: FormingGang | None
    context: EvaluationContext
    snapshot: Snapshot
    collected: CollectedDomain | None  # of another gang, whose nodes the plan leaves out
    limited: bool  # whether the plan assumes that no node has more room than kube-scheduler has shown on one
    alike: bool = True  # whether the plan assumes that `names` are offered to all members equal to the pod
    usable: Mapping[str, frozenset[str]] = field(default_factory=dict)  # see GangPlanning.usable_nodes
    keys: Mapping[str, str] = field(default_factory=dict)  # see GangMembers.equivalence_keys

    @property
    def settled(self) -> frozenset[str]:
        """UIDs of the members that the plan must not move."""
        return self.before.settled if self.before is not None else frozenset()


class GangPlanning:
    """Plans gangs on the newest snapshot."""

    def __init__(self, cache: ClusterCache, filter_service: FilterService) -> None:
        self._cache = cache
        self._filter_service = filter_service
        self._memory = GangMemory()
        self._usable = UsableNodes()

    def gang_of(self, pod: Pod) -> Gang:
        """The gang of a member. The time counts if more members wait than are planned together."""
        snapshot, membership = self._cache.snapshot(), pod.membership
        assert membership is not None, "the pod is a member of a group"
        if len(snapshot.members.get(membership.key, ())) <= MAX_TOGETHER:
            return gang_of(pod, membership, snapshot)
        with self._filter_service.context_of_call(membership.key.namespace):
            return gang_of(pod, membership, snapshot)

    def plan(
        self,
        gang: Gang,
        pod: Pod,
        names: Sequence[str] | None,
        occupied: Mapping[GroupKey, frozenset[str]],
        before: FormingGang | None,
        deadline: Deadline,
    ) -> PlannedGang | WaitsForGang | Reason:
        """Plan all waiting members, or only the minimum if not all of them fit. Raises DeadlineExceeded.

        `names` are the nodes that kube-scheduler offers to `pod` and to members equal to it. Other members, and all if
        it is None, may use the nodes that their selectors and tolerations allow. `occupied` has the nodes of gangs with
        a plan: two gangs never form on one node, because kube-scheduler could have room there for half of each.
        """
        snapshot = self._cache.snapshot()
        context = self._filter_service.evaluator.evaluation_context(snapshot, deadline)
        collected, limited = self._collected_for_other(gang), before is not None and bool(before.most)
        return self._planned(gang, _Attempt(pod, names, occupied, before, context, snapshot, collected, limited))

    def _planned(self, gang: Gang, attempt: _Attempt) -> PlannedGang | WaitsForGang | Reason:
        kept = attempt.settled
        members = self._members(gang, attempt.snapshot, kept) if gang.is_complete else incomplete(gang)
        if isinstance(members, Reason):
            return members
        levels = self._filter_service.policy.group_levels
        problem = gang.problem(levels)
        if problem:
            return Reason(Code.INVALID, (problem,))
        deadline, sizes = attempt.context.deadline, plan_sizes(gang, members, len(kept))
        usable, keys = self.usable_nodes(members, deadline), members.equivalence_keys(deadline)
        attempt = replace(attempt, usable=usable, keys=keys)
        found = self._largest(gang, members, sizes, attempt)
        if isinstance(found, GangShortage) and attempt.limited:
            # A limit that kube-scheduler showed on one node may be wrong for others.
            found = self._largest(gang, members, sizes, replace(attempt, limited=False))
        is_replan = attempt.before is not None and attempt.names is not None
        if isinstance(found, GangShortage) and is_replan:
            # Something that Berth does not see may limit the nodes of this pod alone.
            found = self._largest(gang, members, sizes, replace(attempt, limited=False, alike=False))
        if not isinstance(found, GangShortage):
            return found
        if attempt.collected is not None:
            fewest, anywhere = members.first(sizes[-1], kept), replace(attempt, collected=None, limited=False)
            if not isinstance(self._plan(gang, fewest, anywhere), GangShortage):
                return attempt.collected.reason
        if found.gave_up:
            return Reason(Code.GANG_GAVE_UP, (gang.key.name,))
        if is_replan:
            return Reason(Code.GANG_REFUSED, (gang.key.name, str(attempt.pod.key)))
        fault = self._fault(members)
        if fault is not None:
            return fault
        unlimited = replace(attempt, limited=False)

        def has_room(uids: Collection[str]) -> bool:
            return not isinstance(self._plan(gang, members.only(uids), unlimited), GangShortage)

        return no_room(gang, attempt.snapshot, self._filter_service.policy, has_room)

    def _fault(self, members: GangMembers) -> Reason | None:
        """What is wrong with the claims of a member, if it is so on every node; the plan has updated the rankings."""
        needing = [pod for pod in members.pods if pod.uid in members.requirements]
        # Equal members have one ranking; of each, the first member is named.
        first = {members.requirements[pod.uid].key: pod for pod in reversed(needing)}
        for pod in needing:
            requirements = members.requirements[pod.uid]
            ranking = self._filter_service.rankings.peek(requirements) if first[requirements.key] is pod else None
            fault = ranking.fault() if ranking is not None else None
            if fault is not None:
                return Reason(Code.INVALID, (f"pod {pod.key} of the group: {fault}",))
        return None

    def _largest(
        self, gang: Gang, members: GangMembers, sizes: Sequence[int], attempt: _Attempt
    ) -> PlannedGang | WaitsForGang | GangShortage:
        """The plan of the first size that fits; else the shortage of the last one."""
        for count in sizes:
            found = self._plan(gang, members.first(count, attempt.settled), attempt)
            if not isinstance(found, GangShortage):
                break
        return found

    def unused_allocations(self, gang: Gang) -> list[Claim]:
        """Allocations of waiting members that an earlier attempt left, and that only keep devices from other pods.

        Those of a gang with bound members stay: its other members will use them.
        """
        with self._filter_service.context_of_call(gang.key.namespace):
            members = self._members(gang, self._cache.snapshot())
        if isinstance(members, Reason) or gang.placed:
            return []
        return [
            claim
            for uid, requirements in members.requirements.items()
            for claim in requirements.allocated_claims
            if claim.is_of_berth and all(consumer.uid == uid for consumer in claim.reserved_for)
        ]

    def needs(self, gang: Gang, deadline: Deadline) -> GangNeeds | None:
        """The needs of a gang without room. None if more than room may be missing, or if its members are of many kinds.

        Raises DeadlineExceeded.
        """
        snapshot = self._cache.snapshot()
        context = self._filter_service.evaluator.evaluation_context(snapshot, deadline)
        members = self._members(gang, snapshot)
        if gang.placed or isinstance(members, Reason):  # the nodes of bound members limit the domains
            return None
        found = members.requirements.values()
        if any(one.allocated_claims or one.promised_claims for one in found):  # they limit the nodes of a member
            return None
        classes = {(one.key, one.node_selectors): one for one in found}
        if len(classes) > MAX_CLASSES or sum(one.counts_as for one in classes.values()) > MAX_SIZE:
            return None
        lacking = self._lacking(gang, members, snapshot, context)
        claims = tuple(claim for one in found for claim in one.pending_claims)
        return GangNeeds(tuple(classes.values()), claims, lacking, self._basis(gang.waiting[0]))

    def _lacking(self, gang: Gang, members: GangMembers, snapshot: Snapshot, context: EvaluationContext) -> int:
        fewest = members.first(plan_sizes(gang, members)[-1])
        usable = self.usable_nodes(fewest, context.deadline)
        problem = gang_problem(gang, fewest, self._filter_service.policy, snapshot, usable)
        return lacking_members(problem, snapshot, context, self._filter_service.rankings, self._memory)

    def still_needs(self, pod: Pod, needs: GangNeeds) -> bool:
        """Whether nothing but nodes changed since `needs` was found. A change of members deletes `needs`."""
        snapshot = self._cache.snapshot()
        return needs.basis == self._basis(pod) and all(
            snapshot.claims.get(claim.key) is claim and claim.uid not in snapshot.reservations for claim in needs.claims
        )

    def _basis(self, pod: Pod) -> Hashable:
        """The inputs of a plan of the pod's gang besides nodes, members, claims and the group's object."""
        service = self._filter_service
        return self._cache.snapshot().classes_version, service.policy_generation, service.collected, pod.membership

    def usable_nodes(self, members: GangMembers, deadline: Deadline) -> dict[str, frozenset[str]]:
        """By UID, the nodes that kube-scheduler may offer a member; members that may use all nodes are left out.

        Raises DeadlineExceeded.
        """
        return self._usable.of(members.pods, self._cache.store.nodes, self._cache.store.nodes_version, deadline)

    def _collected_for_other(self, gang: Gang) -> CollectedDomain | None:
        """The domain that is kept from the gang. A gang of which some members are bound may return to its domain."""
        collected = self._filter_service.collected
        return collected if collected is not None and collected.key != gang.key and not gang.placed else None

    def _members(self, gang: Gang, snapshot: Snapshot, kept: Collection[str] = ()) -> GangMembers | Reason:
        found = gang_members(gang, snapshot, self._filter_service.policy, kept)
        if not isinstance(found, UnreadyMember):
            return found
        if isinstance(found.why, ErrorStatus):
            return incomplete(gang)
        if found.why.reason.code in _PASSES:
            return found.why.reason
        return Reason(Code.INVALID, (f"pod {found.pod.key} of the group: {found.why.reason}",))

    def _plan(self, gang: Gang, members: GangMembers, attempt: _Attempt) -> PlannedGang | WaitsForGang | GangShortage:
        problem = self._problem(gang, members, attempt)
        if attempt.collected is not None:
            kept_from, settled = attempt.collected.kept_from, attempt.settled
            problem = _without(problem, lambda one: frozenset() if one.uid in settled else kept_from(one.requirements))
        found = self._solve(problem, attempt)
        wanted = found.nodes if attempt.occupied and isinstance(found, GangPlan) else frozenset[str]()
        conflict = next((key for key, nodes in attempt.occupied.items() if not wanted.isdisjoint(nodes)), None)
        if isinstance(found, GangPlan) and conflict is not None:
            nodes = frozenset[str]().union(*attempt.occupied.values())
            apart = self._solve(_without(problem, lambda _: nodes), attempt)
            if not isinstance(apart, GangPlan) or apart.level != found.level:
                return WaitsForGang(conflict, wanted)
            found = apart
        if isinstance(found, GangShortage):
            return found
        known = self._cache.store.pods
        last_messages = {member.uid: known[member.uid].unschedulable for member in members.pods if member.uid in known}
        without = frozenset(member.uid for member in members.pods) - members.requirements.keys()
        names = {member.uid: member.key for member in members.pods}
        keys = {uid: attempt.keys[uid] for uid in members.requirements}
        return PlannedGang(found, members.requirements, keys, without, last_messages, names, problem.subgroups)

    def _problem(self, gang: Gang, members: GangMembers, attempt: _Attempt) -> GangProblem:
        pod, names, before = attempt.pod, attempt.names, attempt.before
        nodes, keys = dict(attempt.usable), attempt.keys
        policy, snapshot = self._filter_service.policy, attempt.snapshot
        if names is not None and pod.uid in members.requirements:
            offered = frozenset(names)
            # A single name can be a node that preemption has nominated for this pod alone.
            is_alike = attempt.alike and len(offered) > 1
            alike = [uid for uid, key in keys.items() if key == keys[pod.uid]] if is_alike else [pod.uid]
            nodes |= dict.fromkeys(alike, offered)
        if before is None:
            return gang_problem(gang, members, policy, snapshot, nodes, offered=names)
        for uid in members.requirements.keys() & before.settled:
            node = before.node_of(uid)
            if node is not None:
                nodes[uid] = frozenset({node})
        limits = before.limits() if attempt.limited else {}
        known = None if attempt.alike else ()  # other pods may count, of which Berth does not know
        return gang_problem(gang, members, policy, snapshot, nodes, before.excluded, limits, known)

    def _solve(self, problem: GangProblem, attempt: _Attempt) -> GangPlan | GangShortage:
        """Raises DeadlineExceeded."""
        rankings = self._filter_service.rankings
        return plan_gang(problem, attempt.snapshot, attempt.context, rankings, self._memory)


def _without(problem: GangProblem, nodes_for: Callable[[GangMember], frozenset[str]]) -> GangProblem:
    """The problem in which no member uses the nodes that `nodes_for` has for it."""
    members = (replace(member, excluded=member.excluded | nodes_for(member)) for member in problem.members)
    return replace(problem, members=tuple(members))
