"""Carrying out a bind: decide and assume in one stretch, then write, look back, and bind the pod.

Order of writes: finalizer, then status, for each claim; the fence; the Binding. Success is never answered before the
Binding, an error never after it. A repeated call for the same pod waits for the first; a pod that is bound already to
this node is success. What a failed bind wrote is taken back unless the Binding may have landed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from weakref import WeakValueDictionary

import structlog

from extender.cluster.errors import ClusterError, Conflict, NotFound, TooMany, Unavailable
from extender.cluster.writer import Writer
from extender.mirror.mirror import Mirror
from extender.model.claim import Allocation, Claim, Consumer, ObjectKey, Pod
from extender.model.errors import BerthError
from extender.model.reasons import Code, Reason
from extender.service.binding import BindError, Unsure, Waiting, Work, check_stored, is_same_write, note_of, unchanged
from extender.service.fence import DeviceLost, Fence
from extender.service.journal import Journal
from extender.service.judge import Judge
from extender.service.pod_groups import pod_group_of
from extender.service.progress import Progress
from extender.service.special import SpecialClaims
from extender.service.supervisor import Supervisor
from extender.service.tracing import Spanner, no_span
from extender.service.undoing import Undoer
from extender.verdict.decision import Candidate, candidate
from extender.verdict.demand import Asked, Blocked, Demand, NotOurs, NotReady, demand_of
from extender.verdict.evaluate import Refusal
from extender.verdict.verbs import plan
from extender.verdict.waiting import Readiness, readiness
from extender.wire.core import decode_pod

_TRIES = 5  # per write, as client-go's DefaultRetry
_IN_FLIGHT_SECONDS = 20.0  # for the bind of another pod that shares a claim
_CONDITIONS_SECONDS = 20.0  # for drivers to set binding conditions in one call; below the scheduler's 30 s for bind
_UNSURE_SECONDS = 20.0  # how long to ask whether a Binding landed; below the scheduler's 30 s for bind
_RETRY_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the binder takes from outside: time and identifiers."""

    now_rfc3339: Callable[[], str]
    age_seconds: Callable[[Claim], float]  # since the claim was allocated
    new_share: Callable[[], str]
    journal: Journal
    supervisor: Supervisor
    span: Spanner = no_span


class Binder:
    """Binds pods. One bind per pod at a time."""

    def __init__(
        self, mirror: Mirror, judge: Judge, writer: Writer, progress: Progress, fence: Fence,
        surroundings: Surroundings,
    ) -> None:
        self._mirror = mirror
        self._judge = judge
        self._writer = writer
        self._progress = progress
        self.fence = fence
        self._surroundings = surroundings
        self._running: dict[str, tuple[str, asyncio.Task[None]]] = {}
        self._reserving: WeakValueDictionary[ObjectKey, asyncio.Lock] = WeakValueDictionary()
        self._ending = False
        self._special = SpecialClaims(writer)
        self._undoer = Undoer(writer, self._special)
        self._log = structlog.get_logger("berth.bind")

    async def bind(self, key: ObjectKey, uid: str, node: str) -> None:
        """Bind a pod to a node. Raises BerthError with the text for the scheduler."""
        while (running := self._running.get(uid)) is not None:
            if running[0] == node:
                await asyncio.shield(running[1])
                return
            await asyncio.wait([running[1]])
        task = self._surroundings.supervisor.spawn("bind", self._bind(key, uid, node), expected=BerthError)
        self._running[uid] = (node, task)
        task.add_done_callback(lambda done: self._done(uid, done))
        # The scheduler may hang up; the writes still have to come to an end.
        await asyncio.shield(task)

    async def drain(self, seconds: float) -> None:
        """Wait for binds in flight, at most so long. A bind that only waits for its drivers ends: the scheduler asks
        again."""
        self._ending = True
        self._progress.advance()
        tasks = [task for _, task in self._running.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    @property
    def in_flight(self) -> int:
        return len(self._running)

    def _done(self, uid: str, task: asyncio.Task[None]) -> None:
        if self._running.get(uid, ("", None))[1] is task:
            del self._running[uid]
        if not task.cancelled():
            task.exception()  # every waiter may have hung up: the outcome counts as seen

    async def _bind(self, key: ObjectKey, uid: str, node: str) -> None:
        pod = await self._pod(key, uid)
        demand = demand_of(pod, self._mirror.present(), self._judge.policy)
        if isinstance(demand, NotReady):  # the watch does not show the pod yet as filter was shown it
            pod = await self._read_pod(key, uid)
            demand = demand_of(pod, self._mirror.present(), self._judge.policy)
        if pod.node_name == node:
            return
        if pod.node_name:
            raise BindError(f"pod {key} is bound to node {pod.node_name} already")
        work = Work(pod, node, pod_group=await pod_group_of(self._writer, pod, demand))
        demand = await self._after_others(pod, demand)
        released = self._mirror.release(uid)
        try:
            await self._carry_out(work, demand)
        finally:  # also where the pod is bound: the scheduler may have chosen another node than the held one
            if released:
                self._mirror.on_freed()
        self._judge.forget_pod(uid)

    async def _carry_out(self, work: Work, demand: Asked) -> None:
        match demand:
            case NotOurs():
                await self._bind_pod(work, {})
            case NotReady():
                raise BindError(demand.message)
            case Blocked():
                raise BindError(str(demand.reason))
            case Demand():
                await self._bind_with_claims(work, demand)

    async def _after_others(self, pod: Pod, demand: Asked) -> Asked:
        """What the pod asks for once no other bind writes a claim of it. The hold of a claim that another pod was
        filtered with ends: this bind is the first to arrive, and the other pod's bind will find the claim
        allocated."""
        while isinstance(demand, Demand) and demand.promised:
            for claim in demand.promised:
                if not await self._progress.until(partial(self._settled, claim.uid), _IN_FLIGHT_SECONDS):
                    raise BindError(str(Reason(Code.CLAIM_IN_FLIGHT, (str(claim.key),))))
            for claim in demand.promised:
                self._mirror.release_claim(claim.uid)
            demand = demand_of(pod, self._mirror.present(), self._judge.policy)
        return demand

    def _settled(self, claim_uid: str) -> bool:
        """Whether no bind writes the claim."""
        return claim_uid not in self._mirror.ledger.in_flight

    async def _pod(self, key: ObjectKey, uid: str) -> Pod:
        known = self._mirror.store.pods.get(uid)
        if known is not None and known.key == key and not known.deleting:
            return known
        return await self._read_pod(key, uid)

    async def _read_pod(self, key: ObjectKey, uid: str) -> Pod:
        try:
            pod = decode_pod(await self._writer.read_pod(key))
        except NotFound as error:
            raise BindError(f"pod {key} does not exist any more") from error
        if pod.uid != uid:
            raise BindError(f"pod {key} was recreated: its UID is {pod.uid}, not {uid}")
        if pod.deleting:
            raise BindError(f"pod {key} is being deleted")
        return pod

    # -- with claims -----------------------------------------------------------------------------------------

    async def _bind_with_claims(self, work: Work, demand: Demand) -> None:
        started = asyncio.get_running_loop().time()
        work.group = demand.group[1] if demand.group is not None else ""
        demand, planned, chosen = self._decide(work, demand)
        shown = False
        try:
            with self._surroundings.span(work.pod.uid, "write claims"):
                await self._write(work, demand, planned)
            with self._surroundings.span(work.pod.uid, "fence"):
                await self._fence(work, demand)
            shown = True
            await self._devices_ready(work, demand)
            for claim in work.allocated:
                self._give_way(work, claim)  # drivers may have taken long
            second = self._judge.runner_up(work.pod.uid, work.node)
            with self._surroundings.span(work.pod.uid, "write binding"):
                await self._bind_pod(work, note_of(chosen, second))
            self._surroundings.journal.decided(work.pod.key, work.pod.uid, chosen, second)
            self._log.info(
                "bound", pod=str(work.pod.key), node=work.node, claims=[str(c.key) for c in (*work.allocated, *demand.settled)],
                devices=chosen.devices, score=chosen.score, ring_gbps=chosen.ring_gbps, generation=self._mirror.present().version,
                seconds=round(asyncio.get_running_loop().time() - started, 4),
            )
        except (Unsure, Waiting):
            raise
        except BerthError as error:
            await self._undoer.undo(work, str(error))
            raise
        finally:
            for claim, _ in planned:
                # The watch may have confirmed it before, and another bind may write the claim by now.
                if self._mirror.ledger.in_flight.get(claim.uid) == work.pod.uid:
                    (self._mirror.confirm if shown else self._mirror.undo)(claim.uid)
            self._progress.advance()

    def _decide(self, work: Work, demand: Demand) -> tuple[Demand, list[tuple[Claim, Allocation]], Candidate]:
        """Choose the devices and assume them, with nothing in between."""
        snapshot = self._mirror.present()
        verdict = self._judge.decide(demand, work.node, snapshot)
        if isinstance(verdict, Refusal):
            # Others may only hold what they will never bind here: the scheduler chose this node for this pod.
            self._mirror.release_node(work.node)
            snapshot = self._mirror.present()
            verdict = self._judge.decide(demand, work.node, snapshot)
        if verdict is None:
            raise BindError(f"node {work.node} is not known yet")
        if isinstance(verdict, Refusal):
            raise BindError(f"node {work.node}: {verdict.reason}")
        view = snapshot.views[work.node]
        if not all(pin.matches(view.node.name, view.node.labels) for pin in demand.pins):
            raise BindError(f"node {work.node}: claim is allocated for other nodes")
        demand = demand.on(view.node)
        planned = plan(view, demand, verdict, self._judge.rules(snapshot), self._surroundings.new_share)
        for claim, allocation in planned:
            self._mirror.assume(claim.uid, work.pod.uid, work.node, allocation.results)
        return demand, planned, candidate(view, verdict, snapshot)

    async def _write(self, work: Work, demand: Demand, planned: list[tuple[Claim, Allocation]]) -> None:
        for claim, allocation in planned:
            stamped = Allocation(
                allocation.results, allocation.config, allocation.node_selector, self._surroundings.now_rfc3339()
            )
            if claim.extended:
                claim = await self._writer.create_special_claim(work.pod, claim.spec)  # noqa: PLW2901 - the placeholder becomes real
                work.special = claim
            await self._allocate(work, claim, stamped, work.consumer(claim))
            if claim.extended:
                await self._special.map(work.pod, claim, demand.mappings)
        for claim in demand.settled:
            consumer = work.consumer(claim)
            if not claim.is_reserved_for(consumer.uid):
                work.reserved.append(await self._reserve(claim, consumer))
            elif claim.ours:
                await self._take_over(claim, consumer)
            else:
                unchanged(claim, await self._read_again(claim), consumer)

    async def _allocate(self, work: Work, claim: Claim, allocation: Allocation, consumer: Consumer) -> None:
        """Finalizer and status. A conflict or a lost reply means: read again, and go on only if nothing else changed."""
        for attempt in range(_TRIES):
            try:
                claim = await self._writer.add_finalizer(claim, work.group)
                stored = await self._writer.allocate(claim, allocation, consumer)
                work.allocated.append(stored)
                check_stored(allocation, stored)
                return
            except (Conflict, Unavailable, TooMany) as error:
                if attempt == _TRIES - 1:
                    raise
                await asyncio.sleep(error.retry_after if isinstance(error, TooMany) else _RETRY_SECONDS * attempt)
                claim = await self._read_again(claim)
                if claim.writer == self._writer.identity and is_same_write(claim, allocation, consumer):
                    # The reply was lost, the write was not.
                    work.allocated.append(claim)
                    return
                if claim.allocation is not None:
                    raise BindError(f"claim {claim.key} was allocated elsewhere in the meantime") from error
                if claim.deleting:
                    raise BindError(f"claim {claim.key} got deleted in the meantime") from error

    async def _read_again(self, claim: Claim) -> Claim:
        fresh = await self._writer.read_claim(claim.key)
        if fresh.uid != claim.uid:
            raise BindError(f"claim {claim.key} was recreated")
        return fresh

    async def _reserve(self, claim: Claim, consumer: Consumer) -> Claim:
        """Add the pod to a claim that has its devices already. The binds of pods that share a claim do so one after
        the other: each such write makes the version that the others know too old."""
        lock = self._reserving.setdefault(claim.key, asyncio.Lock())
        async with lock:
            for attempt in range(_TRIES):
                try:
                    return await self._writer.reserve(claim, consumer)
                except (Conflict, Unavailable, TooMany):
                    if attempt == _TRIES - 1:
                        raise
                    await asyncio.sleep(_RETRY_SECONDS * attempt)
                    claim = unchanged(claim, await self._read_again(claim))
        raise AssertionError("the last try returns or raises")

    async def _take_over(self, claim: Claim, consumer: Consumer) -> None:
        """This was allocated for the very pod before. Whoever did may be about to take it back, so that one of us must see the
        other; or has, be it this process, and the watch has not shown it yet (docs/decisions/0015)."""
        for attempt in range(_TRIES):
            try:
                await self._writer.take_over(claim)
                return
            except (Conflict, Unavailable, TooMany):
                if attempt == _TRIES - 1:
                    raise
                await asyncio.sleep(_RETRY_SECONDS * attempt)
                claim = unchanged(claim, await self._read_again(claim), consumer)

    async def _fence(self, work: Work, demand: Demand) -> None:
        """Wait until the watch shows our writes; give way where an earlier write holds a device of ours. An allocation
        that was found is judged too: whoever made it may have died before its own fence."""
        await self.fence.passed((*work.allocated, *demand.settled))
        for claim in work.allocated:
            self._give_way(work, claim)
        for claim in demand.settled:
            try:
                self._give_way(work, claim)
            except BindError:
                if all(consumer.uid == work.consumer(claim).uid for consumer in claim.reserved_for):
                    await self._undoer.inherit(work, claim)
                raise

    async def _still_ours(self, work: Work) -> None:
        """Before a Binding is sent again: by now another process may have taken our claims over, and back."""
        for claim in work.allocated:
            fresh = unchanged(claim, await self._read_again(claim), work.consumer(claim))
            if fresh.writer != self._writer.identity:
                raise BindError(f"claim {claim.key} was taken over by another process")

    def _give_way(self, work: Work, claim: Claim) -> None:
        seen = self._mirror.store.claims.get(claim.key)
        if seen is not None and seen.uid == claim.uid and seen.ours and claim.writer == self._writer.identity != seen.writer:
            raise BindError(f"claim {claim.key} was taken over by another process")
        try:
            self.fence.judge(claim)
        except DeviceLost:
            work.lost.add(claim.key)
            raise

    async def _devices_ready(self, work: Work, demand: Demand) -> None:
        """Binding conditions: bind only when the drivers have set them. A change is seen at once; where none comes in
        time for this call, the scheduler asks again."""
        end = asyncio.get_running_loop().time() + _CONDITIONS_SECONDS
        for claim in (*work.allocated, *demand.settled):
            left = demand.policy.binding_timeout_seconds - self._surroundings.age_seconds(claim)
            seconds = min(left, end - asyncio.get_running_loop().time())
            await self._progress.until(partial(self._decided, claim), max(seconds, 0.0))
            current = self._mirror.store.claims.get(claim.key, claim)
            state = readiness(current)
            if state is Readiness.READY:
                continue
            if state is Readiness.WAITING and (self._ending or seconds < left):
                raise Waiting(f"waiting for binding conditions of claim {claim.key}")
            if current not in work.allocated:
                work.allocated.append(current)  # so that it is taken back
            why = "timed out" if state is Readiness.WAITING else "failed"
            raise BindError(f"binding conditions of claim {claim.key} {why}")

    def _decided(self, claim: Claim) -> bool:
        """Whether the drivers have said that a claim's devices are ready, or that they failed; or this process ends."""
        current = self._mirror.store.claims.get(claim.key, claim)
        return self._ending or readiness(current) is not Readiness.WAITING

    # -- the Binding -----------------------------------------------------------------------------------------

    async def _bind_pod(self, work: Work, note: dict[str, str]) -> None:
        pod = work.pod
        try:
            await self._writer.bind_pod(pod.key, pod.uid, work.node, note)
        except (Conflict, Unavailable, TooMany) as error:
            await self._settle_binding(work, note, error)

    async def _settle_binding(self, work: Work, note: dict[str, str], error: ClusterError) -> None:
        """Find out what became of a Binding whose answer was no answer. Returns if the pod is on the node."""
        deadline = asyncio.get_running_loop().time() + _UNSURE_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            try:
                pod = decode_pod(await self._writer.read_pod(work.pod.key))
                if pod.uid == work.pod.uid and pod.node_name == work.node:
                    return
                if pod.uid != work.pod.uid or pod.node_name or pod.deleting or isinstance(error, Conflict):
                    raise BindError(f"binding pod {work.pod.key}: {error}")
                await self._still_ours(work)
                await self._writer.bind_pod(work.pod.key, work.pod.uid, work.node, note)
                return
            except NotFound:
                raise BindError(f"pod {work.pod.key} does not exist any more") from None
            except (Conflict, Unavailable, TooMany) as again:
                error = again
                await asyncio.sleep(again.retry_after if isinstance(again, TooMany) else _RETRY_SECONDS * 5)
        raise Unsure(f"binding pod {work.pod.key}: {error}")
