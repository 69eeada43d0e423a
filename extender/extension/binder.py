"""Binds pods: it chooses and assumes the devices in one step, writes the claims, and then writes the Binding.

Success is never answered before the Binding is stored, and an error never after it. The order of writes is: finalizer
and status of each claim, the write barrier, the Binding. Each write to a claim pushes its compensation on the undo
stack of the bind. A repeated call for the same pod waits for the first. If the pod is already bound to the node, the
bind succeeds. A bind gives up before kube-scheduler's time-out: after that, kube-scheduler may give the node's CPU and
memory to other pods.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, KeysView
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import structlog

from extender.cache import ClusterCache
from extender.cluster import NotFound, Writer
from extender.extension.binding_cycle import (
    BindError,
    BindingCycle,
    BindOutcomeUnknown,
    BindPending,
    BindTimes,
    ConditionsFailed,
    decision_annotation,
    same_writer,
    unchanged,
)
from extender.extension.bindings import Bindings
from extender.extension.claim_writes import ClaimWrites, NewAllocations
from extender.extension.condition_waits import ConditionWaits
from extender.extension.filter_service import FilterService
from extender.extension.gang_barrier import GangBarrier
from extender.extension.gang_state import FormingGang
from extender.extension.live_reads import LANDING_SECONDS
from extender.extension.pod_group_reader import pod_group_of
from extender.extension.tracing import SpanFactory, no_span
from extender.extension.undo_stack import UndoStack
from extender.extension.unseen_classes import check_classes_are_known
from extender.extension.write_barrier import WriteBarrier
from extender.model import BerthError, Claim, Code, ObjectKey, Pod, Reason
from extender.runtime import Supervisor, WatchProgress
from extender.scheduling import PodRequirements, ScoredNode, Unschedulable, requirements_of
from extender.scheduling.requirements import (
    Pending,
    PreFilterResult,
    Readiness,
    Skip,
    UnschedulableAndUnresolvable,
    readiness,
)

_IN_FLIGHT_SECONDS = 20.0  # how long a bind waits for the bind of another pod that shares a claim


@dataclass(frozen=True, slots=True)
class BinderDependencies:
    """Functions that the binder gets from the service: time, identifiers, tasks, readiness."""

    now_rfc3339: Callable[[], str]
    age_seconds: Callable[[Claim], float]  # since the allocation of the claim
    new_share: Callable[[], str]
    supervisor: Supervisor
    not_ready: Callable[[], str]  # why the cache cannot tell yet what a pod needs; '' if it can
    span: SpanFactory = no_span


class Binder:
    """Binds pods. One bind per pod at a time."""

    def __init__(
        self,
        cache: ClusterCache,
        filter_service: FilterService,
        writer: Writer,
        progress: WatchProgress,
        write_barrier: WriteBarrier,
        gangs: GangBarrier,
        dependencies: BinderDependencies,
        times: BindTimes | None = None,
    ) -> None:
        self._cache = cache
        self._filter_service = filter_service
        self._writer = writer
        self._progress = progress
        self.write_barrier = write_barrier
        self._gangs = gangs
        self._dependencies = dependencies
        self._times = times or BindTimes()
        self._running: dict[str, tuple[str, asyncio.Task[None]]] = {}
        self._claims = ClaimWrites(writer, dependencies.now_rfc3339)
        self._bindings = Bindings(writer, self._claims)
        self._waits = ConditionWaits()
        self._draining = False
        self.failures = Counter[str]()  # binds that ended with an error, by its class
        self._log = structlog.get_logger("berth.bind")

    async def bind(self, key: ObjectKey, uid: str, node: str) -> None:
        """Bind a pod to a node. Raises BerthError with the text for kube-scheduler."""
        started = asyncio.get_running_loop().time()
        while (running := self._running.get(uid)) is not None:
            if running[0] == node:
                await asyncio.shield(running[1])
                return
            async with self._in_time(started):
                await asyncio.wait([running[1]])
        task = self._dependencies.supervisor.spawn("bind", self._bind(key, uid, node, started), expected=BerthError)
        self._running[uid] = (node, task)
        task.add_done_callback(lambda done: self._done(uid, done))
        # kube-scheduler may close the connection; the writes must still complete.
        await asyncio.shield(task)

    def end_waits(self) -> None:
        """End the waits of binds: the process ends. A bind that only waits for drivers ends with BindPending."""
        self._draining = True
        self._gangs.stop()
        self._progress.notify()

    async def drain(self, seconds: float) -> None:
        """End the waits of binds, and wait at most `seconds` for the running binds."""
        self.end_waits()
        if tasks := [task for _, task in self._running.values()]:
            await asyncio.wait(tasks, timeout=seconds)

    @property
    def running(self) -> KeysView[str]:
        """UIDs of the pods that are being bound now."""
        return self._running.keys()

    def _done(self, uid: str, task: asyncio.Task[None]) -> None:
        del self._running[uid]
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures[type(error).__name__ if isinstance(error, BerthError) else "Bug"] += 1

    @asynccontextmanager
    async def _in_time(self, started: float) -> AsyncIterator[None]:
        """Cancel the body and raise BindError when a call that began at `started` may send no Binding any more.

        The outcome of a write that is under way is then unknown, as after a lost reply.
        """
        seconds = self._seconds()
        try:
            async with asyncio.timeout_at(started + seconds):
                yield
        except TimeoutError:
            raise BindError(f"gave up after {seconds:g} s, before kube-scheduler does") from None

    def _seconds(self, more: float = 0.0) -> float:
        """The seconds that one call may take until it sends the Binding, plus `more`."""
        return self._filter_service.policy.binding_wait_seconds + self._times.claims + more

    async def _bind(self, key: ObjectKey, uid: str, node: str, started: float) -> None:
        async with self._in_time(started):
            pod = await self._pod(key, uid)
            if pod.node_name == node:
                return
            if pod.node_name:
                raise BindError(f"pod {key} is bound to node {pod.node_name} already")
            if pod.concerns_berth and (not_ready := self._dependencies.not_ready()):
                raise BindError(not_ready)
            forming = await self._gangs.arrive(pod, node, self._filter_service.policy.binding_wait_seconds)
        with self._gangs.member(forming, pod, node):
            await self._bind_member(pod, node, started, forming)

    async def _bind_member(self, pod: Pod, node: str, started: float, forming: FormingGang | None) -> None:
        async with self._in_time(started):
            group = await pod_group_of(self._writer, pod, self._requirements(pod)) if pod.group else None
            await check_classes_are_known(self._writer, pod, node, self._cache.snapshot())
            cycle = BindingCycle(pod, node, started, UndoStack(pod.key), forming, group)
            requirements = await self._wait_for_other_binds(pod)
        released = self._cache.release(pod.uid)
        try:
            await self._carry_out(cycle, requirements)
        finally:  # also after success: kube-scheduler may have chosen another node than the node of the hold
            if released:
                self._cache.freed()

    async def _carry_out(self, cycle: BindingCycle, requirements: PreFilterResult) -> None:
        match requirements:
            case Skip():
                async with self._in_time(cycle.started):
                    await self._wait_for_gang(cycle)
                await self._bindings.create(cycle, [], {}, self._seconds(self._times.binding))
            case Pending():
                raise BindError(requirements.message)
            case UnschedulableAndUnresolvable():
                raise BindError(str(requirements.reason))
            case PodRequirements():
                await self._bind_with_claims(cycle, requirements)

    def _requirements(self, pod: Pod) -> PreFilterResult:
        return requirements_of(pod, self._cache.snapshot(), self._filter_service.policy)

    async def _wait_for_other_binds(self, pod: Pod) -> PreFilterResult:
        """The pod's requirements, once no other bind writes a claim of the pod.

        The caller must not await before it assumes the claims. Holds of other pods on shared claims end: this bind
        came first, and the binds of the other pods will find the claims allocated. Raises BindError after 20 s.
        """
        requirements = self._requirements(pod)
        while isinstance(requirements, PodRequirements) and requirements.promised_claims:
            for claim in requirements.promised_claims:
                if not await self._progress.wait_for(partial(self._is_not_in_flight, claim.uid), _IN_FLIGHT_SECONDS):
                    raise BindError(str(Reason(Code.CLAIM_IN_FLIGHT, (str(claim.key),))))
            for claim in requirements.promised_claims:
                self._cache.release_claim(claim.uid)
            requirements = self._requirements(pod)
        return requirements

    def _is_not_in_flight(self, claim_uid: str) -> bool:
        return claim_uid not in self._cache.reservations.in_flight

    async def _pod(self, key: ObjectKey, uid: str) -> Pod:
        known = self._cache.store.pods.get(uid)
        if known is not None and known.key == key and not known.deleting and known.has_claim_names:
            return known
        try:
            pod = await self._writer.read_pod(key)
        except NotFound as error:
            raise BindError(f"pod {key} does not exist any more") from error
        if pod.uid != uid:
            raise BindError(f"pod {key} was recreated: its UID is {pod.uid}, not {uid}")
        if pod.deleting:
            raise BindError(f"pod {key} is being deleted")
        return pod

    async def _bind_with_claims(self, cycle: BindingCycle, requirements: PodRequirements) -> None:
        pod = cycle.pod
        requirements, planned, chosen = self._plan(cycle, requirements)
        try:
            for claim, allocation in planned:
                self._cache.assume(claim.uid, pod.uid, cycle.node, allocation.results)
            async with self._in_time(cycle.started):
                claims = await self._written(cycle, requirements, planned)
            runner_up = self._filter_service.shortlist_scores.runner_up(pod.uid, cycle.node)
            with self._dependencies.span(pod.uid, "write binding"):
                annotations, seconds = decision_annotation(chosen, runner_up), self._seconds(self._times.binding)
                await self._bindings.create(cycle, claims, annotations, seconds)
        except (BindOutcomeUnknown, BindPending):
            raise  # the writes stay: the API server may have stored the Binding, or the next call continues
        except BerthError as error:
            self._gangs.keep(cycle.forming, pod.uid, error)
            await cycle.undo.unwind(error)
            raise
        except Exception as bug:
            await asyncio.sleep(LANDING_SECONDS)  # the Binding may be on its way
            await cycle.undo.unwind(BindError(f"{type(bug).__name__}: {bug}"))
            raise
        finally:
            self._finish_assumed(pod, planned, self._cache.forget)
            self._progress.notify()
        self._report(cycle, claims, chosen)

    def _report(self, cycle: BindingCycle, claims: list[Claim], chosen: ScoredNode) -> None:
        """Log a stored Binding. A bug here must not become the answer of the bind."""
        pod = cycle.pod
        try:
            names, seconds = [str(claim.key) for claim in claims], asyncio.get_running_loop().time() - cycle.started
            fields = {"devices": chosen.all_devices, "score": chosen.score, "ring_gbps": chosen.ring_gbps}
            fields |= {"generation": self._cache.version, "seconds": round(seconds, 4)}
            self._log.info("bound", pod=str(pod.key), node=cycle.node, claims=names, **fields)
        except Exception:  # noqa: BLE001 - see above
            self._log.exception("a Binding cannot be reported", pod=str(pod.key), node=cycle.node)

    async def _written(
        self, cycle: BindingCycle, requirements: PodRequirements, planned: NewAllocations
    ) -> list[Claim]:
        """Write the claims, and return them once nothing keeps the pod from using their devices."""
        with self._dependencies.span(cycle.pod.uid, "write claims"):
            claims = await self._claims.write(cycle, requirements, planned)
        with self._dependencies.span(cycle.pod.uid, "write barrier"):
            await self._wait_for_write_barrier(claims)
            self._finish_assumed(cycle.pod, planned, self._cache.confirm)
        await self._wait_for_binding_conditions(cycle, claims, requirements)
        self._check_conflicts(claims)  # again: the wait for drivers may have been long
        # Another process may deallocate the claim of a PodGroup before a member is bound, see deallocate_unused.
        await self._claims.check_unchanged(cycle, [claim for claim in claims if cycle.is_of_group(claim)])
        await self._wait_for_gang(cycle)
        await self._claims.confirm(cycle, claims)
        return claims

    def _plan(
        self, cycle: BindingCycle, requirements: PodRequirements
    ) -> tuple[PodRequirements, NewAllocations, ScoredNode]:
        """Choose the devices on the newest snapshot. The caller assumes them without an await. Raises BindError."""
        node, snapshot = cycle.node, self._cache.snapshot()
        evaluate = self._filter_service.evaluate_node
        with self._filter_service.evaluation_for_bind(requirements, cycle.pod.uid) as context:
            status = evaluate(requirements, node, snapshot, context.deadline)
            if isinstance(status, Unschedulable):
                # kube-scheduler chose this node for this pod, and may send the pods of the holds to other nodes.
                kept = self._gangs.held_members()
                with self._cache.without_holds(node, kept) as freed:
                    status = evaluate(requirements, node, freed, context.deadline)
                if not isinstance(status, Unschedulable):
                    self._cache.release_node(node, kept)
                snapshot = self._cache.snapshot()
        if status is None:
            raise BindError(f"node {node} is not known yet")
        if isinstance(status, Unschedulable):
            raise BindError(f"node {node}: {status.reason}")
        node_info = snapshot.node_infos[node]
        mismatch = requirements.mismatch(node_info.node)
        if mismatch is not None:
            raise BindError(f"node {node}: {Reason(mismatch)}")
        requirements = requirements.for_node(node_info.node)
        planned = status.allocations(
            node_info, requirements, self._filter_service.evaluation_context(snapshot), self._dependencies.new_share
        )
        return requirements, planned, ScoredNode.of(node_info, status, requirements, snapshot)

    def _finish_assumed(self, pod: Pod, planned: NewAllocations, finish: Callable[[str], None]) -> None:
        """Call `finish` for each claim that this bind still assumes.

        The watch may have confirmed the claim before, and another bind may already write it.
        """
        for claim, _ in planned:
            if self._cache.reservations.in_flight.get(claim.uid) == pod.uid:
                finish(claim.uid)

    async def _wait_for_write_barrier(self, claims: list[Claim]) -> None:
        """Wait until the watch shows the writes of this bind. Raises BindError if an earlier write has a device.

        Claims that were allocated before this bind are checked too: the process that allocated them may have ended
        before its own write barrier.
        """
        await self.write_barrier.wait_until_visible(claims)
        self._check_conflicts(claims)

    def _check_conflicts(self, claims: list[Claim]) -> None:
        """Raise BindError if another process took over or deallocated a claim, or if an earlier write has a device."""
        for claim in claims:
            cached = self._cache.store.claims.get(claim.key)
            if cached is not None and cached.uid == claim.uid:
                same_writer(claim, cached, self._writer.identity)
                unchanged(claim, cached)
            self.write_barrier.check(claim)

    async def _wait_for_binding_conditions(
        self, cycle: BindingCycle, claims: list[Claim], requirements: PodRequirements
    ) -> None:
        """Wait until the drivers have set all binding conditions of the claims.

        Raises BindPending at the end of this call's time, or if too many wait; kube-scheduler then calls again. A
        longer wait could send the Binding after kube-scheduler gave up the node. Raises ConditionsFailed if a driver
        reports a failure, or at the end of `binding_timeout_seconds`.
        """
        end = cycle.started + requirements.policy.binding_wait_seconds
        for claim in claims:
            left = requirements.policy.binding_timeout_seconds - self._dependencies.age_seconds(claim)
            seconds = min(left, end - asyncio.get_running_loop().time())
            await self._wait_for_driver(cycle, claim, seconds)
            state = readiness(self._current(claim))
            if state is Readiness.READY:
                continue
            if state is Readiness.WAITING and (self._draining or seconds < left):
                raise BindPending(f"waiting for binding conditions of claim {claim.key}")
            why = "are not met: binding timeout" if state is Readiness.WAITING else "failed"
            raise ConditionsFailed(claim, f"binding conditions of claim {claim.key} {why}")

    async def _wait_for_driver(self, cycle: BindingCycle, claim: Claim, seconds: float) -> None:
        """Raises BindPending at once if too many pods wait."""
        decided, namespace = partial(self._conditions_decided, claim), cycle.pod.key.namespace
        if decided() or seconds <= 0:
            return
        own = cycle.forming is not None and cycle.forming.has_slot(cycle.pod.uid)
        with nullcontext(own) if own else self._waits.slot(namespace) as may_wait:
            if not may_wait:
                raise BindPending(f"too many pods wait for binding conditions, as those of claim {claim.key}")
            await self._progress.wait_for(decided, seconds)

    def _conditions_decided(self, claim: Claim) -> bool:
        """Whether the drivers reported that the devices of a claim are ready or failed, or this process shuts down."""
        return self._draining or readiness(self._current(claim)) is not Readiness.WAITING

    def _current(self, claim: Claim) -> Claim:
        return self._cache.store.claims.get(claim.key, claim)

    async def _wait_for_gang(self, cycle: BindingCycle) -> None:
        """Wait until the claims of the whole gang are written. Raises BindError if a member failed."""
        if cycle.forming is not None:
            await self._gangs.written(cycle.forming, cycle.pod.uid)
