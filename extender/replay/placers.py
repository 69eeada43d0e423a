"""The placers that a replay compares: Berth as serve runs it, and two rules of kube-scheduler without Berth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

from extender.allocation import NodeInfo, Snapshot, choose
from extender.api.pods import Pod
from extender.api.reasons import Code
from extender.api.resource_claims import Consumer
from extender.base.berth_errors import BerthError
from extender.base.deadline import NO_DEADLINE
from extender.gangs.gang_problem import NO_ROOM
from extender.policy import Policy
from extender.replay.virtual_api import VirtualApi
from extender.replay.virtual_scheduler import Offer, tally
from extender.scheduling import Placement, PodRequirements, requirements_of
from extender.scheduling.requirements import ErrorStatus, Skip, UnschedulableAndUnresolvable
from extender.serve import Decisions

Rule = Literal["berth", "first fit", "emptiest node"]


@dataclass(frozen=True)
class Placer:
    """Who chooses nodes and devices. `policy` is Berth's; `name` is what the tables call it."""

    name: str
    rule: Rule
    policy: Policy

    @property
    def is_berth(self) -> bool:
        return self.rule == "berth"


def placer_of(rule: Rule, policy: Policy | None = None, name: str = "") -> Placer:
    """A placer under its own name, or that of its rule."""
    return Placer(name or ("Berth" if rule == "berth" else rule), rule, policy or Policy())


class BerthPlacing:
    """The decisions of serve: filter, prioritize and bind."""

    def __init__(self, decisions: Decisions, nodes: int) -> None:
        self._decisions = decisions
        self._nodes = nodes

    def offer(self, pod: Pod, names: Sequence[str]) -> Offer:
        """See Placing.offer."""
        if not names:
            return Offer(reasons=tally({}, names, self._nodes))
        answer = self._decisions.filter(pod, names)
        if answer.error:
            return Offer(error=answer.error)
        passed = list(names) if answer.passed is None else answer.passed
        if not passed:
            return Offer(reasons=tally(answer.failed, names, self._nodes), lasting=self._is_lasting(pod))
        if len(passed) == 1:
            return Offer({passed[0]: 0})
        return Offer(dict(self._decisions.prioritize(pod, passed)), most_allocated=True)  # as in scheduler-config/

    def _is_lasting(self, pod: Pod) -> bool:
        """Whether only free devices help. A gang may also wait for its turn, or for the end of a pause."""
        if pod.membership is None:
            return True
        waiting = self._decisions.gangs.admission.get(pod.membership.key)
        return waiting is not None and waiting.reason.code in (*NO_ROOM, Code.GANG_NO_DOMAIN)

    async def bind(self, pod: Pod, node: str) -> None:
        """See Placing.bind."""
        await self._decisions.bind(pod.key, pod.uid, node)


class NoDevices(BerthError):
    """A node has no devices for a pod any more."""


class InTreePlacing:
    """A rule for the node, and the devices that the in-tree allocator meets first on it.

    Each pod is placed alone: kube-scheduler alone knows no gangs.
    """

    def __init__(self, decisions: Decisions, api: VirtualApi, rule: Rule, nodes: int) -> None:
        self._decisions = decisions
        self._api = api
        self._score = _first if rule == "first fit" else _emptiest
        self._nodes = nodes

    def offer(self, pod: Pod, names: Sequence[str]) -> Offer:
        """The nodes that the rule prefers, with equal scores."""
        snapshot = self._decisions.cache.snapshot()
        requirements = requirements_of(pod, snapshot, self._decisions.filter_service.policy)
        if isinstance(requirements, Skip):
            equal = names[:1] if self._score is _first else names  # LeastAllocated chooses among all
            return Offer(dict.fromkeys(equal, 0), {} if names else tally({}, names, self._nodes))
        if isinstance(requirements, ErrorStatus):
            return Offer(reasons={requirements.message: len(names)})
        if isinstance(requirements, UnschedulableAndUnresolvable):
            return Offer(reasons={str(requirements.reason): len(names)})
        ranking = self._decisions.filter_service.rankings.get_or_create(requirements)
        ranking.update(snapshot, self._decisions.filter_service.evaluator.evaluation_context(snapshot))
        allowed = None if len(names) == self._nodes else frozenset(names)
        groups = [
            fitting
            for found, _ in ranking.schedulable()
            if (fitting := found if allowed is None else [name for name in found if name in allowed])
        ]
        best = self._score(groups, snapshot)
        if best:
            return Offer(dict.fromkeys(best, 0))
        reasons = ranking.reasons()
        return Offer(reasons=tally({name: reasons.get(name, "") for name in names}, names, self._nodes))

    async def bind(self, pod: Pod, node: str) -> None:
        """Write the first devices of the node into the pod's claim, and the Binding. Raises NoDevices."""
        snapshot = self._decisions.cache.snapshot()
        found = requirements_of(pod, snapshot, self._decisions.filter_service.policy)
        if isinstance(found, PodRequirements):
            node_info = snapshot.node_infos[node]
            requirements = found.for_node(node_info.node)
            context = self._decisions.filter_service.evaluator.evaluation_context(snapshot, NO_DEADLINE)
            solution = choose(context.problem(node_info, requirements), None)
            if solution is None:
                raise NoDevices(f"node {node} has no devices for pod {pod.key}")
            shares = (f"{pod.key}/{number}" for number in count(1))  # the IDs of its shares
            planned = Placement(solution, (), 0.0, 0.0).allocations(
                node_info, requirements, context, lambda: next(shares)
            )
            for claim, allocation in planned:
                await self._api.allocate(claim, allocation, Consumer(pod.uid, pod.key.name))
        await self._api.bind_pod(pod.key, pod.uid, node, {})


Groups = list[Sequence[str]]
"""Nodes that are equal but for their names, by group."""


def _first(groups: Groups, _: Snapshot) -> Sequence[str]:
    """The first node by name."""
    return [min(min(names) for names in groups)] if groups else []


def _emptiest(groups: Groups, snapshot: Snapshot) -> Sequence[str]:
    """The nodes with the largest share of free GPUs, as LeastAllocated prefers them."""
    by_share: dict[float, list[str]] = {}
    for names in groups:
        by_share.setdefault(_free_share(snapshot.node_infos[names[0]]), []).extend(names)
    return by_share[max(by_share)] if by_share else []


def _free_share(node_info: NodeInfo) -> float:
    gpus = node_info.positions(-1).bit_count()
    return node_info.positions(~node_info.busy).bit_count() / gpus if gpus else 0.0


def placing_of(placer: Placer, decisions: Decisions, api: VirtualApi, nodes: int) -> BerthPlacing | InTreePlacing:
    """What carries a placer out."""
    if placer.is_berth:
        return BerthPlacing(decisions, nodes)
    return InTreePlacing(decisions, api, placer.rule, nodes)
