"""The undo of a bind that failed, and the releases of claims.

Each step of a bind is undone, those of one claim last first, different claims beside each other. The rules of every
write here: it is guarded by resourceVersion; it follows a fresh read that shows that no pod with a node uses the claim.
The cache is no proof, as it may be out of date. Annotations, owners and names are no proof, as a tenant can write them.
See the table in SECURITY.md.

Another process may bind the same pod while its leadership ends. The allocator annotation tells who wrote an allocation
last; each bind writes its own on an allocation that it uses, so that a write of one of the two processes conflicts. A
Binding that another process has already sent is stored within `IN_FLIGHT_GRACE_SECONDS`. So an allocation that it may
rely on ends in three steps: announce the release (an annotation that no bind has), wait that long, read the pods again.
A later bind sees the announcement and fails, or writes its own annotation, and then the release fails. An allocation
of another process stays, unless an earlier write has allocated its devices: then no bind with that allocation passes
the write barrier.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from weakref import WeakValueDictionary

import structlog

from extender.api.object_meta import ObjectKey
from extender.api.pods import Pod
from extender.api.resource_claims import SCHEDULING_GROUP, Claim
from extender.base.berth_errors import BerthError
from extender.cluster import Conflict, NotFound, Unavailable, Writer, retry_on_conflict
from extender.serve.binding_cycle import BindingCycle, ConditionsFailed, DeviceLost, Step

# Until the API server has stored a Binding that was sent before the release of its claim was announced.
IN_FLIGHT_GRACE_SECONDS = 1.0


class Undo:
    """Undoes the steps of binds. `unwind` is the only door."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._removals: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by UID of the claim
        self._log = structlog.get_logger("berth.bind")

    async def unwind(self, cycle: BindingCycle, error: BerthError) -> None:
        """Undo the steps of a bind that ended with this error. It can take seconds; kube-scheduler waits meanwhile.

        A failure is logged; the orphan collector releases the claim later. Raises the first error of another kind,
        which is a bug, after all steps have been undone.
        """
        unwound = (self._unwind_claim(cycle, steps, error) for steps in cycle.steps.values())
        for bug in await asyncio.gather(*unwound, return_exceptions=True):
            if bug is not None:
                raise bug

    async def _unwind_claim(
        self, cycle: BindingCycle, steps: list[tuple[Step, Claim]], error: BerthError
    ) -> Exception | None:
        """Undo the steps with one claim, the last first. Returns the first bug."""
        bug: Exception | None = None
        for step, claim in reversed(steps):
            try:
                await self._undo(cycle, step, claim, error)
            except NotFound:
                pass  # the claim was deleted, and its devices with it: a tenant can do that in every bind
            except BerthError as problem:
                pod = str(cycle.pod.key)
                self._log.warning("could not undo", pod=pod, because=str(error), problem=str(problem))
            except Exception as problem:  # noqa: BLE001 - a bug must not keep the other steps from being undone
                bug = bug or problem
        return bug

    async def _undo(self, cycle: BindingCycle, step: Step, claim: Claim, error: BerthError) -> None:
        """Undo one step. Raises BerthError.

        The claim of a PodGroup stays allocated and reserved, as in the in-tree plugin: other members may rely on it.
        It is only deallocated if no pod can use its devices.
        """
        failed = isinstance(error, ConditionsFailed) and error.claim_uid == claim.uid
        lost = isinstance(error, DeviceLost) and error.claim_uid == claim.uid
        match step:
            case Step.CREATED:
                await remove_special(self._writer, claim, cycle.pod.key, cycle.pod.uid)
            case Step.ALLOCATED | Step.FOUND if failed:
                await self._end_failed(cycle, claim)
            case Step.ALLOCATED if lost or not cycle.is_of_group(claim):
                await self._deallocate(cycle, claim, lost=lost)
            case Step.FOUND if lost:
                await self._end_lost(cycle, claim)
            case Step.RESERVED if not cycle.is_of_group(claim):
                await self._remove_consumer(cycle, claim)

    async def _end_lost(self, cycle: BindingCycle, known: Claim) -> None:
        """End an allocation of Berth with a lost device, unless it has changed or a process has bound the pod.

        The wait gives the API server time to store a Binding that the other process had already sent. An allocation of
        another allocator stays: where a list showed the writes, their order is unknown, and that allocation may be the
        earlier one. Each pod that waits with the claim removes its own reservation; the last one deallocates.
        """
        await asyncio.sleep(IN_FLIGHT_GRACE_SECONDS)
        bound = await is_bound(self._writer, cycle.pod.key, cycle.pod.uid)
        fresh = await self._writer.read_claim(known.key)
        if fresh.uid != known.uid or fresh.allocation != known.allocation or not fresh.is_of_berth or bound:
            return
        if _is_alone(fresh, cycle.consumer(fresh).uid):
            await self._deallocate(cycle, fresh, lost=True)
        elif not cycle.is_of_group(fresh):
            await self._remove_consumer(cycle, fresh)

    async def _end_failed(self, cycle: BindingCycle, known: Claim) -> None:
        """The devices failed for all pods that share the claim. The last bind that has it reserved deallocates it."""
        allocators = ("", self._writer.identity, self._writer.releasing_identity)

        async def end(fresh: Claim) -> Claim | None:
            """Returns the claim if other pods have it reserved, too."""
            if (fresh.uid, fresh.allocation) != (known.uid, known.allocation) or fresh.allocator not in allocators:
                return None  # another process uses the claim
            if _is_alone(fresh, cycle.consumer(known).uid):
                await deallocate_unused(self._writer, fresh)
                return None
            return fresh if fresh.is_reserved_for(cycle.pod.uid) else None

        read = partial(self._writer.read_claim, known.key)
        if (shared := await retry_on_conflict(end, read)) is not None:
            await self._remove_consumer(cycle, shared)
            await retry_on_conflict(end, read)  # the binds of the other pods may have ended meanwhile

    async def _deallocate(self, cycle: BindingCycle, known: Claim, *, lost: bool) -> None:
        """End an allocation that this process wrote last, or that has `lost` a device, unless the pod is bound.

        The allocator annotation of another process means that it may bind the pod. So this undo announces the release,
        and waits for a Binding that is on its way. Then it reads the annotation again. That of a bind shows that a
        bind has begun since. That of a release shows that the other process releases the claim, too.
        """
        read, announced = partial(self._writer.read_claim, known.key), False

        async def end(claim: Claim) -> Claim | None:
            """Returns the claim if other consumers have it reserved, too."""
            nonlocal announced
            if await self._is_ended_or_in_use(cycle, known, claim):
                return None
            if not (claim.is_being_released if announced else claim.allocator == self._writer.identity):
                if not lost:
                    return None  # another process uses the claim
                await self._writer.announce_release(claim)
                announced = True
                await asyncio.sleep(IN_FLIGHT_GRACE_SECONDS)
                claim = await read()
                if await self._is_ended_or_in_use(cycle, known, claim):
                    return None
                if not claim.is_being_released:
                    raise Conflict(f"claim {claim.key} has a new allocator since its release was announced")
            if not _is_alone(claim, cycle.consumer(claim).uid):
                return claim
            if cycle.is_of_group(claim):
                await deallocate_unused(self._writer, claim)  # a member may have been bound before the loss
            else:
                await self._writer.deallocate(claim)
            return None

        if (shared := await retry_on_conflict(end, read, known)) is not None:
            await self._remove_consumer(cycle, shared)

    async def _is_ended_or_in_use(self, cycle: BindingCycle, known: Claim, fresh: Claim) -> bool:
        """Whether the allocation is another one than that of `known`, or the pod is bound."""
        if (fresh.uid, fresh.allocation) != (known.uid, known.allocation):
            return True
        return await is_bound(self._writer, cycle.pod.key, cycle.pod.uid)

    async def _remove_consumer(self, cycle: BindingCycle, known: Claim) -> None:
        """Remove the reservation of the pod, or of its PodGroup, from this allocation; the last one ends it.

        Another process may bind the pod as the same consumer, and write nothing to the claim. The wait gives the
        API server time to store its Binding; then the claim is reserved for the pod again. A process that sends its
        Binding later has read the claim before (`ClaimWrites.read_kept`).
        """
        read = partial(self._writer.read_claim, known.key)
        # A gang undoes its binds at once, and each removal outdates the resourceVersion that the others have read.
        async with self._removals.setdefault(known.uid, asyncio.Lock()):
            is_removed = await retry_on_conflict(partial(self._remove_reservation, cycle, known), read)
        if is_removed:
            await asyncio.sleep(IN_FLIGHT_GRACE_SECONDS)
            await retry_on_conflict(partial(self._finish_removal, cycle, known), read)

    async def _remove_reservation(self, cycle: BindingCycle, known: Claim, fresh: Claim) -> bool:
        """Returns whether the write was sent. The reservation stays if the allocation or its allocator changed."""
        pod, uid = cycle.pod, cycle.consumer(known).uid
        same = (fresh.uid, fresh.allocation, fresh.allocator) == (known.uid, known.allocation, known.allocator)
        if not same or not fresh.is_reserved_for(uid) or await is_bound(self._writer, pod.key, pod.uid):
            return False
        with suppress(Unavailable):  # the reply is lost, the write may be stored
            await self._writer.remove_consumer(fresh, uid)
        return True

    async def _finish_removal(self, cycle: BindingCycle, known: Claim, fresh: Claim) -> None:
        """Reserve the claim again if the pod is bound by now.

        If not, deallocate the claim if this process allocated it and no pod has it reserved any more.
        """
        if (fresh.uid, fresh.allocation) != (known.uid, known.allocation):
            return
        if await is_bound(self._writer, cycle.pod.key, cycle.pod.uid):
            await self._writer.add_consumers(fresh, [cycle.consumer(known)])
        elif fresh.allocator == self._writer.identity and not fresh.reserved_for and not cycle.is_of_group(fresh):
            await self._writer.deallocate(fresh)


def _is_alone(claim: Claim, consumer_uid: str) -> bool:
    """Whether the claim is reserved for this consumer alone, or for none."""
    return all(consumer.uid == consumer_uid for consumer in claim.reserved_for)


async def _read_pod(writer: Writer, key: ObjectKey, uid: str) -> Pod | None:
    """Read a pod. None if it does not exist, or if another pod has its name. Raises ClusterError."""
    try:
        pod = await writer.read_pod(key)
    except NotFound:
        return None
    return pod if pod.uid == uid else None


async def is_bound(writer: Writer, key: ObjectKey, uid: str) -> bool:
    """Read whether the pod exists and has a node, and so may use its claims. Raises ClusterError."""
    pod = await _read_pod(writer, key, uid)
    return pod is not None and bool(pod.node_name)


async def _in_use(writer: Writer, claim: Claim) -> bool:
    """Read whether a consumer of the claim may use its devices.

    Such a consumer is a pod with a node, a PodGroup with such a member, or any other kind of object. Raises BerthError.
    """
    for consumer in claim.reserved_for:
        key = ObjectKey(claim.key.namespace, consumer.name)
        if consumer.resource == "pods":
            used = await is_bound(writer, key, consumer.uid)
        elif (consumer.resource, consumer.api_group) == ("podgroups", SCHEDULING_GROUP):
            used = await writer.read_has_bound_member(key)
        else:
            used = True
        if used:
            return True
    return False


async def deallocate_unused(writer: Writer, claim: Claim) -> bool:
    """Deallocate a claim, given as just read, unless a bound pod uses it. False if one does.

    A bind of another process may rely on the allocation, so the release of a claim of Berth is announced. Raises
    BerthError; Conflict if a bind changed the claim in the meantime.
    """
    if await _in_use(writer, claim):
        return False
    if claim.is_of_berth or any(consumer.resource != "pods" for consumer in claim.reserved_for):
        claim = await writer.announce_release(claim)
        await asyncio.sleep(IN_FLIGHT_GRACE_SECONDS)
        if await _in_use(writer, claim):
            return False
    await writer.deallocate(claim)
    return True


async def remove_special(writer: Writer, claim: Claim, pod_key: ObjectKey, pod_uid: str) -> bool:
    """Deallocate and delete the special claim of a pod's extended resources. False if the claim is in use.

    Raises ClusterError if the writes fail repeatedly.
    """
    try:
        remove = partial(_remove_special, writer, claim, pod_key, pod_uid)
        return await retry_on_conflict(remove, partial(writer.read_claim, claim.key))
    except NotFound:
        return True


async def _remove_special(writer: Writer, claim: Claim, pod_key: ObjectKey, pod_uid: str, fresh: Claim) -> bool:
    """The pod uses the claim if its spec names the claim, or if it has a node and its status names the claim.

    Another process uses it if it has written its allocator annotation since. Other pods may have become consumers of
    the claim by its name. Then only this pod is removed from the consumers.
    """
    pod = await _read_pod(writer, pod_key, pod_uid)
    name = claim.key.name
    uses = pod is not None and (pod.names(name) or (pod.node_name and pod.extended_claim == name))
    is_of_other = fresh.allocator != claim.allocator and not fresh.is_being_released
    if fresh.uid != claim.uid or uses or is_of_other:
        return False
    if any(consumer.uid != pod_uid for consumer in fresh.reserved_for):
        await writer.remove_consumer(fresh, pod_uid)
        return False
    await writer.delete_claim(fresh)
    return True
