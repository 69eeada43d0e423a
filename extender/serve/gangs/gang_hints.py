"""Finds waiting gangs that fit after nodes changed, as QueueingHints do for pods.

A plan reads the whole fleet. So a gang is planned only if members of it fit on nodes that may have gained room since
its last plan, as many as lacked room then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from extender.allocation import NodeInfo
from extender.api.pod_groups import GroupKey
from extender.api.pods import Pod
from extender.api.reasons import Code, Reason
from extender.base.deadline import DeadlineExceeded
from extender.cache import ClusterCache
from extender.gangs.gang_problem import NO_ROOM
from extender.gangs.node_rooms import most_units
from extender.scheduling import Placement, PodRequirements, SelectedNodes
from extender.serve.filter import FilterService
from extender.serve.gangs.gang_planning import GangPlanning
from extender.serve.gangs.gang_scheduler import RETRY_SECONDS, GangScheduler
from extender.serve.gangs.gang_state import PlannedGang, WaitingGang

_PROVEN = (*NO_ROOM, Code.GANG_NO_DOMAIN)  # reasons of complete plans: less room gives no plan, either


class GangHints:
    """Searches the changed nodes for each waiting gang, and plans the gang if they may have made room for it."""

    def __init__(
        self, gangs: GangScheduler, cache: ClusterCache, planning: GangPlanning, filter_service: FilterService
    ) -> None:
        self._admission = gangs.admission
        self._cache = cache
        self._planning = planning
        self._filter_service = filter_service
        self._evaluations = filter_service.evaluations

    def find_schedulable(self, namespace: str) -> Iterator[bool]:
        """Search for gangs of a namespace in steps of at most one evaluation or one plan, the longest waiting first.

        Yields True, as the last value, if a gang fits now. If a step takes longer than a call, kube-scheduler asks
        about the gang again later. Raises the first bug after the last value.
        """
        found, bug = False, None
        for key in self._admission.without_room(namespace, self._cache.snapshot().version):
            member = next(iter(self._cache.store.members.get(key, {}).values()), None)
            waiting = self._admission.get(key)
            if member is None:
                self._admission.gone(key)
            elif waiting is not None:
                try:
                    for found in self._search(key, member, waiting):
                        if found:
                            break
                        yield False
                except Exception as error:  # noqa: BLE001 - raised below
                    bug, waiting.version = bug or error, self._cache.snapshot().version
            if found:
                break
            yield False
        yield found
        if bug is not None:
            raise bug

    def _search(self, key: GroupKey, member: Pod, waiting: WaitingGang) -> Iterator[bool]:
        """Whether the gang of this member is known to fit now, after each step."""
        version = self._cache.snapshot().version
        try:
            for may_fit in self._makes_room(member, waiting):
                if may_fit:
                    yield from self._plan(key, member, waiting)
                    return
                yield False
            waiting.version = version
        except DeadlineExceeded:
            self._admission.ask_again(key, waiting, RETRY_SECONDS)

    def _makes_room(self, member: Pod, waiting: WaitingGang) -> Iterator[bool]:
        """Whether a changed node may make room for the gang, after each step. Raises DeadlineExceeded."""
        if waiting.reason.code is Code.GANG_NO_DOMAIN and self._planning.lacks_label(member):
            return
        snapshot, needs = self._cache.snapshot(), waiting.needs
        gained = snapshot.gained_since(waiting.version)
        if needs is None or gained is None or not self._planning.still_needs(member, needs):
            yield True
            return
        # Nodes that change meanwhile are for the next search.
        found = [node_info for name in gained if (node_info := snapshot.node_infos.get(name)) is not None]
        lacking = needs.lacking
        for node_info in found:
            for requirements in needs.members:
                lacking -= self._room(node_info, requirements)
                yield lacking <= 0
        if waiting.needs is needs:  # the members did not change meanwhile
            waiting.needs = replace(needs, lacking=lacking)

    def _room(self, node_info: NodeInfo, requirements: PodRequirements) -> int:
        """For how many members a node has room, at most. Raises DeadlineExceeded."""
        node, context = node_info.node, self._filter_service.evaluation_context(self._evaluations.deadline_of_plan())
        if not SelectedNodes(requirements.node_selectors).has(node, context.deadline):
            return 0
        if not isinstance(self._filter_service.node_status(requirements, node_info, context), Placement):
            return 0
        return max(most_units(node_info, requirements.for_node(node), context), 1)

    def _plan(self, key: GroupKey, member: Pod, waiting: WaitingGang) -> Iterator[bool]:
        """Plan the gang, and in a second step find its needs: each has the time of a call. Raises DeadlineExceeded."""
        if self._admission.get(key) is not waiting:
            return
        gang, version = self._planning.gang_of(member), self._cache.snapshot().version
        found = self._planning.plan(gang, member, None, {}, None, self._evaluations.deadline_of_plan())
        if isinstance(found, PlannedGang):
            waiting.version, waiting.retry_at = -1, -inf
            yield True
            return
        waiting.version, waiting.needs = version, None
        yield False
        # If nodes gained room meanwhile, that room counts twice: it causes one more plan, and no wrong one.
        if isinstance(found, Reason) and found.code in _PROVEN and self._admission.get(key) is waiting:
            waiting.needs = self._planning.needs(self._planning.gang_of(member), self._evaluations.deadline_of_plan())
            yield False
