"""Binds pods: it chooses the devices, writes the claims, and then writes the Binding.

The protocol of one bind, in its order, and the function of each step. Every wait ends before kube-scheduler's time-out:
after that, kube-scheduler may give the node's CPU and memory to other pods.

1. `bind`: wait for an earlier bind of the same pod; if that one was for the same node, its answer is the answer.
2. `_bind`: the pod, from the watch or read. A pod that is bound to the node is a success. A gang's member waits until
   the binds of the gang's minimum have arrived (`GangBarrier.arrive`).
3. `_bind_pod`: read the PodGroup of a claim, and the DeviceClasses if the cache knows none for an extended resource of
   the pod. Wait until no other bind writes a claim of the pod. A pod without devices goes on with step 10, as a gang's
   member after step 8.
4. `_bind_with_claims`: without an await in between, choose the devices on the newest snapshot (`_plan`) and assume them
   in the cache.
5. `_pre_bind`, up to step 9: each claim that needs devices gets its finalizer and the allocator annotation, then its
   status. Each claim that is allocated already gets the pod as its consumer (`ClaimWrites`). A special claim is created
   first, and named in the pod's status.
6. The write barrier: wait until the watch has shown these writes, and check each claim (`WriteBarrier.require_kept`).
   Of two claims with a device, the earlier one keeps it. From here the cache has the claims as any other.
7. Wait until the drivers have met the binding conditions of the claims (`DriverWaits`); then check again. Read the
   claims of a PodGroup: other members may have used and left them.
8. A gang's member waits until the claims of the whole minimum are written (`GangBarrier.written`).
9. If the bind was slow, read all claims (`ClaimWrites.read_kept`): another process may have released them.
10. `_send_binding`: the Binding. If its reply is lost, read the pod until it is known whether the Binding was stored.

Success is never answered before the Binding is stored, and an error never after it. An error undoes what the bind has
written (`Undo`), also if the API server refused the Binding; `undo` has the errors and what each means for it.
BindPending (steps 2 and 7) and BindOutcomeUnknown (step 10) undo nothing. After a bug the undo first waits until
a Binding that was sent is stored: a pod that is bound keeps its claims.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, KeysView
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial
from typing import NamedTuple, Protocol

import structlog

from extender.api.object_meta import ObjectKey
from extender.api.pods import DECISION_ANNOTATION, Pod
from extender.api.reasons import Code, Reason
from extender.api.resource_claims import Claim
from extender.base.berth_errors import BerthError
from extender.cache import ClusterCache
from extender.cluster import (
    ClusterError,
    Conflict,
    NotFound,
    TooMany,
    Unavailable,
    WallClock,
    Writer,
    seconds_since,
    utc_now,
)
from extender.policy import Policy
from extender.runtime.informers import NOT_READY, WatchProgress
from extender.runtime.supervisor import Supervisor
from extender.scheduling import PodRequirements, Unschedulable, requirements_of
from extender.scheduling.decision import ScoredNode
from extender.scheduling.requirements import (
    ErrorStatus,
    Readiness,
    Skip,
    UnschedulableAndUnresolvable,
    class_of_resource,
    readiness,
)
from extender.scheduling.shortlist import in_cliques
from extender.serve.binding_cycle import (
    BindError,
    BindingCycle,
    BindOutcomeUnknown,
    BindPending,
    ConditionsFailed,
    pod_group_of,
)
from extender.serve.claims import FRESH_SECONDS, ClaimWrites, NewAllocations
from extender.serve.filter import FilterService
from extender.serve.gangs.gang_barrier import GangBarrier
from extender.serve.gangs.gang_state import FormingGang
from extender.serve.telemetry import SpanFactory, no_span
from extender.serve.undo import IN_FLIGHT_GRACE_SECONDS, Undo
from extender.serve.write_barrier import WriteBarrier
from extender.vendors import CLIQUE_LABEL

# Seconds of one bind call beyond `binding_wait_seconds` of the policy: until the Binding is sent, and then until its
# outcome is known. httpTimeout of the scheduler's bind entry is at least 10 s longer than that wait (docs/policy.md).
# The rest of the 10 s is for the undo.
CLAIM_SECONDS = 5.0
BINDING_SECONDS = 3.0
_MAX_OTHER_SECONDS = 20.0  # how long a bind waits for the bind of another pod that shares a claim
_MAX_UNSURE_SECONDS = 20.0  # how long to read whether a Binding was stored


class _Plan(NamedTuple):
    """What a bind will write."""

    requirements: PodRequirements  # of the pod on the node
    allocations: NewAllocations
    chosen: ScoredNode
    annotations: dict[str, str]  # of the Binding; none if all devices were allocated before


class Watches(Protocol):
    """What keeps the cache up to date."""

    @property
    def progress(self) -> WatchProgress:
        """Is notified of every applied event."""
        ...

    @property
    def not_ready(self) -> str:
        """'' once every kind is listed, else the kinds that are missing, for NOT_READY."""
        ...

    @property
    def claims_version(self) -> str:
        """The resourceVersion that the watch of claims has reached, bookmarks included; '' during a list."""
        ...

    def start(self) -> None:
        """Start the background tasks."""
        ...

    async def listed(self) -> None:
        """Wait until every kind is listed."""
        ...

    def is_served(self, resource: str) -> bool:
        """Whether the API server serves an optional kind."""
        ...


class Binder:
    """Binds pods. One bind per pod at a time."""

    def __init__(
        self,
        cache: ClusterCache,
        filter_service: FilterService,
        writer: Writer,
        watches: Watches,
        gangs: GangBarrier,
        supervisor: Supervisor,
        wall_clock: WallClock = utc_now,
        span: SpanFactory = no_span,
    ) -> None:
        self._cache = cache
        self._filter_service = filter_service
        self._writer = writer
        self._watches = watches
        self._progress = watches.progress
        self.write_barrier = WriteBarrier(cache, watches.progress, lambda: watches.claims_version, writer.identity)
        self._gangs = gangs
        self._supervisor = supervisor
        self._span = span
        self._running: dict[str, tuple[str, asyncio.Task[None]]] = {}
        self._claims = ClaimWrites(writer, wall_clock)
        self._undo = Undo(writer)
        self._drivers = DriverWaits(cache, watches.progress, wall_clock)
        self.failures = Counter[str]()  # binds that ended with an error, by its class
        self._log = structlog.get_logger("berth.bind")

    # -- calls -----------------------------------------------------------------------------------------------

    async def bind(self, key: ObjectKey, uid: str, node: str) -> None:
        """Bind a pod to a node. Raises BerthError with the text for kube-scheduler."""
        started = asyncio.get_running_loop().time()
        while (running := self._running.get(uid)) is not None:
            if running[0] == node:
                await asyncio.shield(running[1])
                return
            async with self._in_time(started):
                await asyncio.wait([running[1]])
        task = self._supervisor.spawn("bind", self._bind(key, uid, node, started), expected=BerthError)
        self._running[uid] = (node, task)
        task.add_done_callback(lambda done: self._done(uid, done))
        # kube-scheduler may close the connection; the writes must still complete.
        await asyncio.shield(task)

    def end_waits(self) -> None:
        """End the waits of binds: the process ends. A bind that only waits for drivers ends with BindPending."""
        self._drivers.end()
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
        seconds = self._filter_service.policy.binding_wait_seconds + CLAIM_SECONDS
        try:
            async with asyncio.timeout_at(started + seconds):
                yield
        except TimeoutError:
            raise BindError(f"gave up after {seconds:g} s, before kube-scheduler does") from None

    # -- one bind --------------------------------------------------------------------------------------------

    async def _bind(self, key: ObjectKey, uid: str, node: str, started: float) -> None:
        async with self._in_time(started):
            pod = await self._pod(key, uid)
            if pod.node_name == node:
                return
            if pod.node_name:
                raise BindError(f"pod {key} is bound to node {pod.node_name} already")
            if (missing := self._watches.not_ready) and pod.concerns_berth:
                raise BindError(f"{NOT_READY}{missing}")
        membership = pod.membership
        if membership is None:
            await self._bind_pod(pod, node, started, None)
            return
        async with self._in_time(started):
            seconds = self._filter_service.policy.binding_wait_seconds
            forming = await self._gangs.arrive(pod, membership, node, seconds)
        with self._gangs.member(forming, pod, membership.key, node):
            await self._bind_pod(pod, node, started, forming)

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
        return self._cache.store.in_tree(pod)

    async def _bind_pod(self, pod: Pod, node: str, started: float, forming: FormingGang | None) -> None:
        async with self._in_time(started):
            group = await pod_group_of(self._writer, pod, self._cache.store.claims) if pod.group else None
            if pod.containers:
                await self._require_known_classes(pod, node)
            await self._wait_for_other_binds(pod)
        cycle = BindingCycle(pod, node, started, forming, group)
        released = self._cache.release(pod.uid)
        try:
            requirements = requirements_of(pod, self._cache.snapshot(), self._filter_service.policy)
            match requirements:
                case Skip():
                    if forming is not None:
                        async with self._in_time(started):
                            await self._gangs.written(forming, pod)
                    await self._send_binding(cycle, [], {})
                case ErrorStatus():
                    raise BindError(requirements.message)
                case UnschedulableAndUnresolvable():
                    raise BindError(str(requirements.reason))
                case PodRequirements():
                    await self._bind_with_claims(cycle, requirements)
        finally:  # also after success: kube-scheduler may have chosen another node than the node of the hold
            if released:
                self._cache.freed()

    async def _require_known_classes(self, pod: Pod, node: str) -> None:
        """Raise BindError if a DeviceClass that the cache lacks provides an extended resource of the pod.

        kube-scheduler has its own watch, and may know the class already. The kubelet would start the pod without a
        device. The classes are only read for a resource that neither a known class nor the device plugin of the node
        provides. Raises ClusterError.
        """
        asked = {name for container in pod.containers for name, amount in container.requests if amount}
        snapshot = self._cache.snapshot()
        node_info = snapshot.node_infos.get(node)
        offered = node_info.node.allocatable if node_info is not None else frozenset()
        classes, resources = snapshot.classes, snapshot.extended_resources
        unknown = {name for name in asked - offered if class_of_resource(name, classes, resources) is None}
        if unknown and (late := unknown & await self._writer.read_extended_resources()):
            raise BindError(f"a DeviceClass that provides {min(late)} is not known yet")

    async def _wait_for_other_binds(self, pod: Pod) -> None:
        """Wait until no other bind writes a claim of the pod. The caller must not await before it assumes the claims.

        Holds of other pods on shared claims end: this bind came first, and the binds of the other pods will find the
        claims allocated. Raises BindError after 20 s.
        """
        claims, reserved = self._cache.store.claims, self._cache.reservations.by_claim
        while promised := [
            claim
            for key in sorted(pod.claim_keys)  # an error always names the same one
            if (claim := claims.get(key)) is not None and claim.allocation is None
            if (found := reserved.get(claim.uid)) is not None and found.pod_uid != pod.uid
        ]:
            for claim in promised:
                if not await self._progress.wait_for(partial(self._is_not_written, claim.uid), _MAX_OTHER_SECONDS):
                    raise BindError(str(Reason(Code.CLAIM_IN_FLIGHT, (str(claim.key),))))
            for claim in promised:
                self._cache.release_claim(claim.uid)

    def _is_not_written(self, claim_uid: str) -> bool:
        """Whether no bind writes the claim now."""
        return claim_uid not in self._cache.reservations.in_flight

    async def _bind_with_claims(self, cycle: BindingCycle, requirements: PodRequirements) -> None:
        plan = self._plan(cycle, requirements)
        try:
            for claim, allocation in plan.allocations:
                self._cache.assume(claim.uid, cycle.pod.uid, cycle.node, allocation.results)
            async with self._in_time(cycle.started):
                claims = await self._pre_bind(cycle, plan)
            with self._span(cycle.pod.uid, "write binding"):
                await self._send_binding(cycle, claims, plan.annotations)
        except (BindOutcomeUnknown, BindPending):
            raise  # the writes stay
        except BerthError as error:
            self._gangs.keep(cycle.forming, cycle.pod.uid, error)
            await self._undo.unwind(cycle, error)
            raise
        except Exception as bug:
            await asyncio.sleep(IN_FLIGHT_GRACE_SECONDS)  # the Binding may be on its way
            await self._undo.unwind(cycle, BindError(f"{type(bug).__name__}: {bug}"))
            raise
        finally:
            self._end_assumed(cycle, plan)
            self._progress.notify()
        self._report(cycle, claims, plan.chosen)

    def _plan(self, cycle: BindingCycle, requirements: PodRequirements) -> _Plan:
        """Choose the devices on the newest snapshot. The caller assumes them without an await. Raises BindError."""
        node, snapshot = cycle.node, self._cache.snapshot()
        evaluate = self._filter_service.status_for_bind
        with self._filter_service.deadline_of_bind(requirements, cycle.pod.uid) as deadline:
            status = evaluate(requirements, node, snapshot, deadline)
            if isinstance(status, Unschedulable):
                # kube-scheduler chose this node for this pod, and may send the pods of the holds to other nodes.
                kept = self._gangs.held_members()
                with self._cache.without_holds(node, kept) as freed:
                    status = evaluate(requirements, node, freed, deadline)
                if not isinstance(status, Unschedulable):
                    self._cache.release_node(node, kept)
                snapshot = self._cache.snapshot()
        if status is None:
            raise BindError(f"node {node} is not known yet")
        if isinstance(status, Unschedulable):
            raise BindError(f"node {node}: {status.reason}")
        node_info = snapshot.node_infos[node]
        if requirements.node_selectors and (mismatch := requirements.mismatch(node_info.node, snapshot)) is not None:
            raise BindError(f"node {node}: {Reason(mismatch)}")
        requirements = requirements.for_node(node_info.node)
        context = self._filter_service.evaluator.evaluation_context(snapshot)
        allocations = status.allocations(node_info, requirements, context, lambda: str(uuid.uuid4()))
        chosen = ScoredNode.of(node_info, status, requirements, context, snapshot)
        last = frozenset[str]()  # the nodes that come last because of another ComputeDomain in their clique
        if requirements.compute_domain:
            own_clique = {node_info.node.labels.get(CLIQUE_LABEL)}
            last = in_cliques(requirements.crowded_cliques(snapshot) - own_clique, snapshot)
        text = chosen.annotation(*self._filter_service.shortlist_scores.runner_up(cycle.pod.uid, node, last))
        return _Plan(requirements, allocations, chosen, {DECISION_ANNOTATION: text} if text else {})

    async def _pre_bind(self, cycle: BindingCycle, plan: _Plan) -> list[Claim]:
        """Write the claims, and return them once nothing keeps the pod from using their devices.

        As PreBind of the in-tree plugin. Raises BerthError.
        """
        with self._span(cycle.pod.uid, "write claims"):
            claims = await self._claims.write(cycle, plan.requirements, plan.allocations)
        with self._span(cycle.pod.uid, "write barrier"):
            await self.write_barrier.wait(claims)
            for claim in claims:
                self.write_barrier.require_kept(claim)
            self._end_assumed(cycle, plan)
        if await self._drivers.wait(cycle, claims, plan.requirements.policy):
            for claim in claims:
                self.write_barrier.require_kept(claim)
        if cycle.pod_group is not None:
            # Another process may deallocate the claim of a PodGroup before a member is bound, see deallocate_unused.
            await self._claims.read_kept(cycle, [claim for claim in claims if cycle.is_of_group(claim)])
        if cycle.forming is not None:
            await self._gangs.written(cycle.forming, cycle.pod)
        if asyncio.get_running_loop().time() - cycle.started > FRESH_SECONDS:
            await self._claims.read_kept(cycle, claims)
        return claims

    def _end_assumed(self, cycle: BindingCycle, plan: _Plan) -> None:
        """End the reservations of the claims that this bind still assumes.

        The watch may have confirmed a claim before, and another bind may already write it.
        """
        for claim, _ in plan.allocations:
            if self._cache.reservations.in_flight.get(claim.uid) == cycle.pod.uid:
                self._cache.forget(claim.uid)

    # -- the Binding -----------------------------------------------------------------------------------------

    async def _send_binding(self, cycle: BindingCycle, claims: list[Claim], annotations: dict[str, str]) -> None:
        """Bind the pod of a cycle. `annotations` go to the pod.

        Raises BindError if the Binding was not stored, BindOutcomeUnknown if that is not known in time.
        """
        pod, now = cycle.pod, asyncio.get_running_loop().time()
        seconds = self._filter_service.policy.binding_wait_seconds + CLAIM_SECONDS + BINDING_SECONDS
        end = min(cycle.started + seconds, now + _MAX_UNSURE_SECONDS)
        error: ClusterError | None = None
        try:
            async with asyncio.timeout_at(end):
                while True:
                    error = None  # while the Binding is under way, it may be stored
                    try:
                        await self._writer.bind_pod(pod.key, pod.uid, cycle.node, annotations)
                        return
                    except (Conflict, Unavailable, TooMany) as problem:
                        error = problem
                    if await self._is_stored(cycle, claims, error):
                        return
        except TimeoutError:
            if isinstance(error, TooMany):  # the API server refused it unread
                raise BindError(f"binding pod {pod.key}: {error}") from None
            took = end - cycle.started
            raise BindOutcomeUnknown(f"binding pod {pod.key}: no answer within {took:.3g} s of the call") from None

    async def _is_stored(self, cycle: BindingCycle, claims: list[Claim], error: ClusterError) -> bool:
        """Read whether a Binding was stored that got this error. If not, the caller may send it again.

        A Binding whose reply was lost may be stored a little later, so the first read waits for it: after an error the
        bind undoes its writes. The claims are read before the Binding is sent again: another process may have taken
        them over or deallocated them. Raises BindError if the Binding was not stored, and must not be sent again.
        """
        key, uid, node, refused = cycle.pod.key, cycle.pod.uid, cycle.node, error
        while True:
            await asyncio.sleep(_pause(error))
            try:
                pod = await self._writer.read_pod(key)
                if pod.uid == uid and pod.node_name == node:
                    return True
                if pod.uid != uid or pod.node_name or pod.deleting or isinstance(refused, Conflict):
                    raise BindError(f"binding pod {key}: {refused}")
                await self._claims.read_kept(cycle, claims)
                return False
            except NotFound:
                raise BindError(f"pod {key} does not exist any more") from None
            except (Conflict, Unavailable, TooMany) as again:
                error = again

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


def _pause(error: ClusterError) -> float:
    """Seconds until the API server has stored the Binding, or may be asked again."""
    if isinstance(error, TooMany):
        return error.retry_after
    return 0.0 if isinstance(error, Conflict) else IN_FLIGHT_GRACE_SECONDS


# -- waits for drivers -----------------------------------------------------------------------------------------
# A claim may have binding conditions (KEP-5007), and its pod is bound once they hold. A driver has no deadline, and
# each bind that waits keeps an HTTP connection. So the number of such binds is limited, and one call waits at most
# `binding_wait_seconds`. The others, and what takes longer, end with BindPending: the devices stay allocated, and
# kube-scheduler calls again, until `binding_timeout_seconds` have passed since the allocation.


# How many binds may wait for drivers at the same time. The others fail at once, and kube-scheduler calls again.
# Members of a gang have slots of their own. A bind that waits for the bind of another pod, or for the write that
# reserves a shared claim, needs no slot: it waits for answers of the API server, as all binds do.
MAX_WAITING = 48  # with the slots of gangs, 16 below the connections to the verbs
MAX_WAITING_OF_NAMESPACE = 32


class DriverWaits:
    """The binds that wait for binding conditions now. `wall_clock` is compared with the time of an allocation."""

    def __init__(self, cache: ClusterCache, progress: WatchProgress, wall_clock: WallClock) -> None:
        self._cache = cache
        self._progress = progress
        self._wall_clock = wall_clock
        self._waiting: Counter[str] = Counter()  # binds by namespace
        self._ended = False

    def end(self) -> None:
        """The process ends: from now on, a bind that would wait ends with BindPending."""
        self._ended = True

    async def wait(self, cycle: BindingCycle, claims: list[Claim], policy: Policy) -> bool:
        """Wait until the drivers have met all binding conditions of the claims. Returns whether one had to be awaited.

        Raises BindPending at the end of this call's time, or if too many wait; kube-scheduler then calls again. A
        longer wait could send the Binding after kube-scheduler gave up the node. Raises ConditionsFailed if a driver
        reports a failure, or at the end of `binding_timeout_seconds`.
        """
        end, waited = cycle.started + policy.binding_wait_seconds, False
        for claim in claims:
            if self._state(claim) is Readiness.READY:
                continue
            waited = True
            stamp = claim.allocation.timestamp if claim.allocation is not None else ""
            left = policy.binding_timeout_seconds - seconds_since(stamp, self._wall_clock)
            seconds = min(left, end - asyncio.get_running_loop().time())
            await self._wait_for(cycle, claim, seconds)
            state = self._state(claim)
            if state is Readiness.READY:
                continue
            if state is Readiness.WAITING and (self._ended or seconds < left):
                raise BindPending(f"waiting for binding conditions of claim {claim.key}")
            why = "are not met: binding timeout" if state is Readiness.WAITING else "failed"
            raise ConditionsFailed(claim, f"binding conditions of claim {claim.key} {why}")
        return waited

    async def _wait_for(self, cycle: BindingCycle, claim: Claim, seconds: float) -> None:
        """Raises BindPending at once if too many pods wait."""
        decided = partial(self._is_decided, claim)
        if decided() or seconds <= 0:
            return
        own = cycle.forming is not None and cycle.forming.has_slot(cycle.pod.uid)
        with nullcontext(own) if own else self.slot(cycle.pod.key.namespace) as may_wait:
            if not may_wait:
                raise BindPending(f"too many pods wait for binding conditions, as those of claim {claim.key}")
            await self._progress.wait_for(decided, seconds)

    def _is_decided(self, claim: Claim) -> bool:
        """Whether the drivers reported that the devices of a claim are ready or failed, or the process ends."""
        return self._ended or self._state(claim) is not Readiness.WAITING

    def _state(self, claim: Claim) -> Readiness:
        return readiness(self._cache.store.claims.get(claim.key, claim))

    @contextmanager
    def slot(self, namespace: str) -> Iterator[bool]:
        """A slot for one bind; False if there is none for its namespace."""
        waiting = self._waiting
        if waiting[namespace] >= MAX_WAITING_OF_NAMESPACE or waiting.total() >= MAX_WAITING:
            yield False
            return
        waiting[namespace] += 1
        try:
            yield True
        finally:
            waiting[namespace] -= 1
            if not waiting[namespace]:
                del waiting[namespace]
