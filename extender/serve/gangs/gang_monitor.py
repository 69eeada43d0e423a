"""Watches gangs between filter requests: the events of their members, and the deadlines of their plans."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from math import inf
from typing import Any

from extender.api.pod_groups import GroupKey
from extender.api.pods import Pod
from extender.api.reasons import Code
from extender.cache import ClusterCache
from extender.gangs.gang import gang_minimum, is_incomplete, lacking_object
from extender.runtime.supervisor import Supervisor, TimerWait
from extender.serve.filter import FilterSink
from extender.serve.gangs.bound_members import Members
from extender.serve.gangs.gang_scheduler import GangScheduler
from extender.serve.gangs.gang_state import FormingGang, GangState, GangTimer, WaitingGang


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
            if forming is not None and forming.committed:
                self._check_rest(forming, uids)
            elif forming is not None:
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
        """End the plan if a member was deleted or left the group, or if kube-scheduler found no node for it."""
        for uid in uids:
            if uid not in forming.planned.last_messages:
                continue
            pod, name = self._cache.store.pods.get(uid), forming.planned.names.get(uid, "")
            if pod is None or pod.deleting:
                how = "was deleted" if pod is not None else "was deleted, or bound by another client than Berth"
                self._gangs.plans.changed(forming, f"pod {name} of group {forming.key.name} {how}")
                return
            if pod.membership is None or pod.membership.key != forming.key:
                self._gangs.plans.changed(forming, f"pod {name} left group {forming.key.name}")
                return
            if _is_newly_refused(forming, pod):
                why = f"kube-scheduler found no node for pod {pod.key}: {pod.unschedulable}"
                self._gangs.plans.fail(forming, why, self._gangs.plans.refusal(forming, [uid]))
                return

    def _check_rest(self, forming: FormingGang, uids: Iterable[str]) -> None:
        """Members of a committed gang that are gone, or for which kube-scheduler finds no node, leave the plan.

        A member that is bound leaves the watch, too.
        """
        for uid in uids:
            if uid in forming.planned.last_messages and uid not in forming.bound:
                pod = self._cache.store.pods.get(uid)
                if pod is None or pod.deleting or _is_newly_refused(forming, pod):
                    self._gangs.plans.leave(forming, uid)

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
