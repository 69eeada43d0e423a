"""The compensations of a bind: each takes back one write to a claim."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from weakref import WeakValueDictionary

from extender.cluster import Conflict, TooMany, Unavailable, Writer
from extender.extension.binding_cycle import BindingCycle, ConditionsFailed, DeviceLost
from extender.extension.live_reads import IN_FLIGHT_GRACE_SECONDS, deallocate_unused, is_bound
from extender.extension.special_claims import SpecialClaims
from extender.model import BerthError, Claim

_TRIES = 5  # per write, as client-go's DefaultRetry
_TRIES_BESIDE_OTHERS = 8  # for writes that another process or a tenant may outdate three times
_RETRY_SECONDS = 0.1


class Compensations:
    """The binder pushes the public methods on the undo stack of a bind; the stack adds the error that ended the bind.

    Each write here is guarded by resourceVersion, and follows a fresh read that shows that the pod is not bound
    (SECURITY.md). An allocation with the mark of another process stays, unless an earlier write has allocated its
    devices: then no bind with that allocation passes the write barrier. Every method raises BerthError.
    """

    def __init__(self, writer: Writer, special: SpecialClaims) -> None:
        self._writer = writer
        self._special = special
        self._removals: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by UID of the claim

    async def of_special_claim(self, cycle: BindingCycle, claim: Claim, _: BerthError) -> None:
        """Deallocate and delete the special claim that the bind created."""
        await self._special.remove(claim, cycle.pod.key, cycle.pod.uid)

    async def of_allocation(self, cycle: BindingCycle, written: Claim, error: BerthError) -> None:
        """Take back an allocation that the bind wrote, and its consumer.

        The claim of a PodGroup stays allocated, as in the in-tree plugin: other members may rely on it. It is only
        deallocated if no pod can use its devices.
        """
        if _is_about(error, written, ConditionsFailed):
            await self._end_failed(cycle, written)
        elif (lost := _is_about(error, written, DeviceLost)) or not cycle.is_of_group(written):
            await self._deallocate(cycle, written, lost=lost)

    async def of_found_allocation(self, cycle: BindingCycle, found: Claim, error: BerthError) -> None:
        """Take back an allocation that existed before the bind, only if no pod can use its devices."""
        if _is_about(error, found, ConditionsFailed):
            await self._end_failed(cycle, found)
        elif _is_about(error, found, DeviceLost):
            await self._end_lost(cycle, found)

    async def of_consumer(self, cycle: BindingCycle, claim: Claim, _: BerthError) -> None:
        """Remove the pod from status.reservedFor of a claim. The entry of a PodGroup stays for its members."""
        if not cycle.is_of_group(claim):
            await self._remove_consumer(cycle, claim)

    async def _end_lost(self, cycle: BindingCycle, known: Claim) -> None:
        """Take back an allocation of Berth with a lost device, unless it has changed or a process has bound the pod.

        The wait gives the API server time to store a Binding that the other process had already sent. An allocation of
        another allocator stays: where a list showed the writes, their order is unknown, and that allocation may be the
        earlier one. Each pod that waits with the claim takes back its own reservation; the last one deallocates.
        """
        await asyncio.sleep(IN_FLIGHT_GRACE_SECONDS)
        bound = await is_bound(self._writer, cycle.pod.key, cycle.pod.uid)
        fresh = await self._writer.read_claim(known.key)
        if fresh.uid != known.uid or fresh.allocation != known.allocation or not fresh.ours or bound:
            return
        if _is_alone(fresh, cycle.consumer(fresh).uid):
            await self._deallocate(cycle, fresh, lost=True)
        elif not cycle.is_of_group(fresh):
            await self._remove_consumer(cycle, fresh)

    async def _end_failed(self, cycle: BindingCycle, known: Claim) -> None:
        """The devices failed for all pods that share the claim. The last bind that has it reserved deallocates it."""
        marks = ("", self._writer.identity, self._writer.take_back_mark)
        for _ in range(_TRIES):
            fresh = await self._writer.read_claim(known.key)
            if fresh.uid != known.uid or fresh.allocation != known.allocation or fresh.writer not in marks:
                return  # another process uses the claim
            try:
                if _is_alone(fresh, cycle.consumer(known).uid):
                    await deallocate_unused(self._writer, fresh)
                    return
                if not fresh.is_reserved_for(cycle.pod.uid):
                    return
                await self._remove_consumer(cycle, fresh)  # then read again: the binds of the other pods may also end
            except (Conflict, Unavailable, TooMany):
                await asyncio.sleep(_RETRY_SECONDS)  # drivers also write the status

    async def _deallocate(self, cycle: BindingCycle, known: Claim, *, lost: bool) -> None:
        """End an allocation that has the mark of this process, or that has `lost` a device, unless the pod is bound.

        The mark of another process means that it may bind the pod. So this undo announces the take-back, and waits for
        a Binding that is on its way. Then it reads the mark again. The mark of a bind shows that a bind has begun
        since. The mark of a take-back shows that the other process takes the allocation back, too.
        """
        pod, claim, announced = cycle.pod, known, False
        for _ in range(_TRIES_BESIDE_OTHERS):
            try:
                if claim.allocation != known.allocation or await is_bound(self._writer, pod.key, pod.uid):
                    return
                if claim.is_being_taken_back if announced else claim.writer == self._writer.identity:
                    await self._end(cycle, claim)
                    return
                if not lost:
                    return  # another process uses the claim
                await self._writer.announce_take_back(claim)
                announced = True
                await asyncio.sleep(IN_FLIGHT_GRACE_SECONDS)
            except (Conflict, Unavailable, TooMany):
                await asyncio.sleep(_RETRY_SECONDS)
            claim = await self._writer.read_claim(known.key)
            if claim.uid != known.uid:
                return  # the claim was deleted, and a new claim has its name

    async def _remove_consumer(self, cycle: BindingCycle, known: Claim) -> None:
        """Remove the reservation of the pod, or of its PodGroup, from this allocation; the last one ends it.

        Another process may bind the pod as the same consumer, and write nothing to the claim. The wait gives the
        API server time to store its Binding; then the claim is reserved for the pod again. A process that sends its
        Binding later has read the claim before (`ClaimWrites.confirm`).
        """
        # A gang undoes its binds at once, and each removal outdates the resourceVersion that the others have read.
        async with self._removals.setdefault(known.uid, asyncio.Lock()):
            is_removed = await _retried(partial(self._remove_reservation, cycle, known))
        if is_removed:
            await asyncio.sleep(IN_FLIGHT_GRACE_SECONDS)
            await _retried(partial(self._finish_removal, cycle, known))

    async def _remove_reservation(self, cycle: BindingCycle, known: Claim) -> bool:
        """Returns whether the write was sent. The reservation stays if the allocation or the mark is another one."""
        pod, uid = cycle.pod, cycle.consumer(known).uid
        fresh = await self._writer.read_claim(known.key)
        same = (fresh.uid, fresh.allocation, fresh.writer) == (known.uid, known.allocation, known.writer)
        if not same or not fresh.is_reserved_for(uid) or await is_bound(self._writer, pod.key, pod.uid):
            return False
        with suppress(Unavailable):  # the reply is lost, the write may be stored
            await self._writer.remove_consumer(fresh, uid)
        return True

    async def _finish_removal(self, cycle: BindingCycle, known: Claim) -> bool:
        """Reserve the claim again if the pod is bound by now. Returns whether it is.

        If not, deallocate the claim if this process allocated it and no pod has it reserved any more.
        """
        fresh = await self._writer.read_claim(known.key)
        if (fresh.uid, fresh.allocation) != (known.uid, known.allocation):
            return False
        if await is_bound(self._writer, cycle.pod.key, cycle.pod.uid):
            await self._writer.add_consumers(fresh, [cycle.consumer(known)])
            return True
        if fresh.writer == self._writer.identity and not fresh.reserved_for and not cycle.is_of_group(fresh):
            await self._writer.deallocate(fresh)
        return False

    async def _end(self, cycle: BindingCycle, claim: Claim) -> None:
        consumer_uid = cycle.consumer(claim).uid
        if not _is_alone(claim, consumer_uid):
            await self._remove_consumer(cycle, claim)
        elif cycle.is_of_group(claim):
            await deallocate_unused(self._writer, claim)  # a member may have been bound before the devices were lost
        else:
            await self._writer.deallocate(claim)


async def _retried(step: Callable[[], Awaitable[bool]]) -> bool:
    """The result of a step, which is repeated after a conflict and while the API server is not available."""
    for _ in range(_TRIES):
        try:
            return await step()
        except (Conflict, Unavailable, TooMany):
            await asyncio.sleep(_RETRY_SECONDS)
    return False


def _is_about(error: BerthError, claim: Claim, kind: type[ConditionsFailed | DeviceLost]) -> bool:
    return isinstance(error, kind) and error.claim_uid == claim.uid


def _is_alone(claim: Claim, consumer_uid: str) -> bool:
    """Whether the claim is reserved for this consumer alone, or for none."""
    return all(consumer.uid == consumer_uid for consumer in claim.reserved_for)
