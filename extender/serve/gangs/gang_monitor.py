"""Watches gangs between filter requests: the events of their members, the deadlines of their plans, and changed nodes.

GangHints finds waiting gangs that fit after nodes changed, as QueueingHints do for pods. A plan reads the whole fleet.
So a gang is planned only if members of it fit on nodes that may have gained room since its last plan, as many as lacked
room then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf
from typing import Any

from extender.allocation import NodeInfo
from extender.api.pod_groups import GroupKey
from extender.api.pods import Pod
from extender.api.reasons import Code, Reason
from extender.base.deadline import DeadlineExceeded
from extender.cache import ClusterCache
from extender.gangs.gang import gang_minimum, is_incomplete, lacking_object
from extender.gangs.gang_problem import NO_ROOM
from extender.gangs.node_rooms import most_units
from extender.runtime.supervisor import Supervisor, TimerWait
from extender.scheduling import Placement, PodRequirements, SelectedNodes
from extender.serve.filter import FilterService, FilterSink
from extender.serve.gangs.bound_members import Members
from extender.serve.gangs.gang_planning import GangPlanning
from extender.serve.gangs.gang_scheduler import RETRY_SECONDS, GangScheduler
from extender.serve.gangs.gang_state import FormingGang, GangState, GangTimer, PlannedGang, WaitingGang

_PROVEN = (*NO_ROOM, Code.GANG_NO_DOMAIN)  # reasons of complete plans: less room gives no plan, either


class GangMonitor:
    """Ends plans that cannot succeed any more, and lets kube-scheduler ask again about gangs that can run.

    `run` is the background task `gangs`. `clock` returns seconds.
    """

    def __init__(self, gangs: GangScheduler, cache: ClusterCache, sink: FilterSink, clock: Callable[[], float]) -> None:
        self._gangs = gangs
        self._admission = gangs.admission
        self._cache = cache
        self._bound_members = gangs.bound_members
        self._sink = sink
        self._clock = clock
        self._timers = gangs.timers
        self._wait = TimerWait(self._timers, clock)
        # What is done when a timer is due. Each checks itself whether it is still to be done.
        self._effects: dict[GangTimer, Callable[[Any], object]] = {
            GangTimer.PLAN_END: gangs.plans.expire,
            GangTimer.PREEMPTIBLE: self._admission.preemptible,
            GangTimer.PAUSE_END: self._admission.pause_ended,
            GangTimer.POSITION_LOST: self._admission.position_lost,
            GangTimer.COLLECTING: lambda _: gangs.collecting.step(),
            GangTimer.READ: self._bound_members.pause_ended,
            GangTimer.READ_FORGOTTEN: self._bound_members.expire,
        }

    def expire(self) -> None:
        """Do what is due."""
        due, begun = self._timers.due(self._clock()), 0
        try:
            for kind, name in due:
                begun += 1
                self._effects[kind](name)
        finally:  # after a bug with one of them, the others are still due
            for timer in due[begun:]:
                self._timers.at(timer, -inf)

    def pods_changed(self, changed: Mapping[GroupKey, Iterable[str]], resized: Mapping[GroupKey, bool]) -> None:
        """`changed` has UIDs of changed pods, by group. See `resized_groups` of the cache's store."""
        for key, has_others in resized.items():
            if has_others or key not in self._cache.store.members:
                self._bound_members.forget(key)
        for key, uids in changed.items():
            forming, waiting = self._gangs.forming.get(key), self._admission.get(key)
            if forming is not None:
                self._check_members(forming, uids)
            if waiting is not None and waiting.state is GangState.MISSING:
                self._check_complete(key, waiting)
        for key in resized:
            self._check_minimum(key)
            if key not in self._gangs.forming:
                self._gangs.collecting.group_changed(key)
            if key not in self._cache.store.members:
                self._admission.gone(key)  # all members are bound or deleted
            waiting = self._admission.get(key)
            if waiting is None:
                continue
            self._admission.retry_soon(key)
            if key not in changed and waiting.state is GangState.MISSING:
                self._check_complete(key, waiting)

    async def run(self, refreshed: Callable[[], Awaitable[None]], supervisor: Supervisor) -> None:
        """Do what is due, and read bound members, until cancelled.

        See CacheRefresh.wait for `refreshed`. The supervisor runs the reads: a slow one delays nothing else.
        """
        while True:
            await refreshed()
            self.expire()
            for namespace, keys in self._bound_members.take_due().items():
                supervisor.spawn("bound-members", self._bound_members.read(namespace, keys, self._members_read))
            await self._wait.until_due()

    def _members_read(self, key: GroupKey, before: Members) -> None:
        waiting, is_changed = self._admission.get(key), before != self._cache.store.bound_members.get(key, {})
        if waiting is not None and waiting.state is GangState.UNREAD:
            self._sink.fits()
        elif waiting is not None and (is_changed or waiting.state is GangState.MISSING):
            self._check_complete(key, waiting)

    def _check_members(self, forming: FormingGang, uids: Iterable[str]) -> None:
        """End the plan if a member was deleted or left the group, or if kube-scheduler found no node for it.

        Such a member leaves the plan of a committed gang. A member that is bound leaves the watch, too.
        """
        plans, planned = self._gangs.plans, forming.planned
        for uid in uids:
            if uid not in planned.last_messages or uid in forming.bound:
                continue
            pod, name, change = self._cache.store.pods.get(uid), planned.names.get(uid, ""), ""
            if pod is None or pod.deleting:
                how = "was deleted" if pod is not None else "was deleted, or bound by another client than Berth"
                change = f"pod {name} of group {forming.key.name} {how}"
            elif pod.membership is None or pod.membership.key != forming.key:
                change = f"pod {name} left group {forming.key.name}"
            elif not _is_newly_refused(forming, pod):
                continue
            if forming.committed:
                plans.leave(forming, uid)
                continue
            if change:
                plans.changed(forming, change)
            elif pod is not None:
                why = f"kube-scheduler found no node for pod {name}: {pod.unschedulable}"
                plans.fail(forming, why, plans.refusal(forming, [uid]))
            return

    def _check_minimum(self, key: GroupKey) -> None:
        """End a plan whose gang has another minimum now."""
        forming, snapshot = self._gangs.forming.get(key), self._cache.snapshot()
        member = next(iter(snapshot.members.get(key, {}).values()), None)
        if forming is None or forming.committed or member is None or member.membership is None:
            return
        minimum = gang_minimum(member.membership, snapshot)
        if minimum and minimum != forming.minimum:
            self._gangs.plans.changed(forming, f"the minimum of group {key.name} is {minimum} now")

    def _check_complete(self, key: GroupKey, waiting: WaitingGang) -> None:
        """If enough members or the PodGroup exist now, let kube-scheduler retry the members that were rejected."""
        snapshot = self._cache.snapshot()
        member = next(iter(snapshot.members.get(key, {}).values()), None)
        if member is None:
            self._admission.gone(key)
        elif member.membership is not None:
            was_unknown = waiting.reason.code is Code.GANG_UNKNOWN
            if was_unknown and lacking_object(member.membership, snapshot):
                return
            minimum = gang_minimum(member.membership, snapshot)
            if was_unknown or not is_incomplete(member.membership, minimum, snapshot):
                self._admission.completed(key)


def _is_newly_refused(forming: FormingGang, pod: Pod) -> bool:
    """Whether kube-scheduler found no node for a member. An attempt from before the plan may be reported only now."""
    text = pod.unschedulable
    return text != forming.planned.last_messages[pod.uid] and forming.is_refused_with(text)


# -- changed nodes ------------------------------------------------------------------------------------------------


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
