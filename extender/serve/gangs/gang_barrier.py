"""The bind barrier of gangs: no member's Binding is sent before the claims of the whole minimum are written.

kube-scheduler runs the binds of a gang's members concurrently. Each bind stops here twice: until the binds of the
minimum have arrived, and until all of these have written their claims and passed the write barrier.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from extender.api.pod_groups import IN_TREE, GroupKey, Membership
from extender.api.pods import Pod
from extender.base.berth_errors import BerthError
from extender.base.text_limits import one_line
from extender.runtime.informers import WatchProgress
from extender.serve.binding_cycle import BindError, BindOutcomeUnknown, BindPending, UnusableDevices
from extender.serve.gangs.gang_scheduler import GangScheduler
from extender.serve.gangs.gang_state import FormingGang


class GangBarrier:
    """Makes the binds of a gang wait for each other. Times are in seconds. `clock` is the service's clock."""

    def __init__(self, gangs: GangScheduler, progress: WatchProgress, clock: Callable[[], float]) -> None:
        self._gangs = gangs
        self._progress = progress
        self._clock = clock

    async def arrive(self, pod: Pod, membership: Membership, node: str, seconds: float) -> FormingGang | None:
        """Wait until the binds of the minimum have arrived. None for a single pod.

        Raises BindError if the gang has no plan or another node for the pod, or if its plan ends meanwhile; BindPending
        if they have not arrived after `seconds`.
        """
        forming = self._gangs.forming_for(pod, membership)
        if forming is None:
            return None
        self._gangs.plans.bind_ended(forming, pod.uid)
        planned = forming.node_of(pod.uid) or node
        if planned != node and forming.committed:
            self._gangs.plans.leave(forming, pod.uid)
            return None
        in_tree = forming.key.source in IN_TREE and len(forming.arrived) < forming.quorum
        if planned != node and not in_tree:
            raise BindError(f"group {forming.key.name} is planned with pod {pod.key} on node {planned}")
        forming.arrive(pod.uid, node, self._clock())
        if forming.has_arrived and forming.bound_elsewhere and not forming.committed:
            self._gangs.follow_kube_scheduler(forming)
        if forming.has_arrived and not forming.is_decided:
            self._check_domain(forming, pod, forming.arrived)
        self._progress.notify()
        arrived = False
        try:
            arrived = await self._progress.wait_for(lambda: forming.is_decided or forming.has_arrived, seconds)
        finally:
            if not arrived:  # this bind ends: the others must not count it
                self._gangs.plans.bind_ended(forming, pod.uid)
        if not arrived:
            raise BindPending(f"waiting for the other pods of group {forming.key.name}")
        _check_not_ended(forming)
        return forming

    def _check_domain(self, forming: FormingGang, pod: Pod, uids: Collection[str]) -> None:
        """End the plan if one of these members' nodes left the domain of the gang: its labels changed since the plan.

        A member of a committed gang leaves the plan instead, and is a single pod. Raises BindError.
        """
        why = self._gangs.outside_domain(forming, pod.membership, uids) if pod.membership is not None else ""
        if not why:
            return
        error = BindError(why)
        if forming.committed:
            self._gangs.plans.leave(forming, pod.uid)
        else:
            self._gangs.plans.bind_failed(forming, pod, error)
        raise error

    async def written(self, forming: FormingGang, pod: Pod) -> None:
        """The claims of a member are written. Wait until the gang is committed. Raises BindError if its plan ends.

        The plan ends at its deadline at the latest (GangMonitor), so the wait needs no time-out of its own.
        """
        self._gangs.plans.expire(forming.key)
        if forming.committed:
            self._check_domain(forming, pod, [pod.uid])
        elif len(forming.written | {pod.uid}) >= forming.quorum and not forming.is_decided:
            self._check_domain(forming, pod, forming.written | {pod.uid})
        forming.write(pod.uid, self._clock())
        self._progress.notify()
        await self._progress.until(lambda: forming.is_decided)
        _check_not_ended(forming)

    @contextmanager
    def member(self, forming: FormingGang | None, pod: Pod, key: GroupKey, node: str) -> Iterator[None]:
        """The bind of one member: before the gang is committed, its failure ends the plan for all members. A bug or a
        cancellation is a failure, too."""
        try:
            yield
        except (BindOutcomeUnknown, BindPending):
            raise
        except (Exception, CancelledError) as error:
            if forming is not None and forming.committed:
                self._gangs.plans.retry(forming, pod.uid)
            elif forming is not None:
                self._gangs.plans.bind_failed(forming, pod, _as_bind_error(error))
            raise
        self._gangs.bound_members.bound(key, pod.uid, node)
        if forming is not None:
            self._gangs.plans.bound(forming, pod.uid)

    def keep(self, forming: FormingGang | None, uid: str, error: BerthError) -> None:
        """The bind of a pod fails, and its writes are undone next. A member of a committed gang keeps its devices,
        unless no pod can use them."""
        if forming is not None and forming.committed and not isinstance(error, UnusableDevices):
            self._gangs.plans.keep(forming, uid)

    def held_members(self) -> frozenset[str]:
        """UIDs of the pods whose holds belong to a plan: the bind of another pod must not end these holds."""
        return self._gangs.plans.held_members()

    def stop(self) -> None:
        """This process shuts down: end the plans whose members still wait for each other."""
        for forming in list(self._gangs.forming.values()):
            self._gangs.plans.fail(forming, "Berth shuts down")


def _check_not_ended(forming: FormingGang) -> None:
    if forming.ended:
        raise BindError(f"no pod of group {forming.key.name} is bound: {forming.ended}")


def _as_bind_error(error: BaseException) -> BerthError:
    return (
        error
        if isinstance(error, BerthError)
        else BindError(one_line(f"{type(error).__name__}: {error}".removesuffix(": ")))
    )
