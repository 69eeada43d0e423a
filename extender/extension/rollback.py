"""The compensations of a bind: how each of its writes to claims is taken back."""

from __future__ import annotations

import asyncio

from extender.cluster import Conflict, TooMany, Unavailable, Writer
from extender.extension.binding_cycle import BindingCycle, ConditionsFailed, DeviceLost
from extender.extension.live_reads import LANDING_SECONDS, deallocate_unused, is_bound
from extender.extension.special_claims import SpecialClaims
from extender.model import BerthError, Claim

_TRIES = 5  # per write, as client-go's DefaultRetry
_RETRY_SECONDS = 0.1


class Compensations:
    """Each method is pushed on a bind's undo stack, bound to all but its last argument, the error that ended the bind.

    Each take-back is guarded by resourceVersion, and comes after a fresh read has shown that the pod is not bound
    (SECURITY.md). An allocation with the mark of another process stays, except where an earlier write has its devices:
    then no bind passes the write barrier with it.
    """

    def __init__(self, writer: Writer, special: SpecialClaims) -> None:
        self._writer = writer
        self._special = special

    async def of_special_claim(self, cycle: BindingCycle, claim: Claim, _: BerthError) -> None:
        """Delete the claim that the bind created for extended resources, with its allocation."""
        await self._special.remove(claim, cycle.pod.key, cycle.pod.uid)

    async def of_allocation(self, cycle: BindingCycle, written: Claim, error: BerthError) -> None:
        """Take back an allocation that the bind wrote, and its reservation. Other members of a PodGroup may rely on the
        group's claim: it stays, as in-tree, unless no pod can use its devices."""
        if _is_about(error, written, ConditionsFailed):
            await self._end_failed(cycle, written)
        elif (lost := _is_about(error, written, DeviceLost)) or not cycle.is_of_group(written):
            await self._deallocate(cycle, written, lost=lost)

    async def of_found_allocation(self, cycle: BindingCycle, found: Claim, error: BerthError) -> None:
        """An allocation that the bind only found stays, unless no pod can use its devices and nothing else has it
        reserved."""
        if _is_about(error, found, ConditionsFailed):
            await self._end_failed(cycle, found)
        elif _is_about(error, found, DeviceLost) and _is_alone(found, cycle.consumer(found).uid):
            await self._end_lost(cycle, found)

    async def of_reservation(self, cycle: BindingCycle, claim: Claim, _: BerthError) -> None:
        """Remove the pod's entry from an allocated claim. That of a PodGroup stays for its other members."""
        if not cycle.is_of_group(claim):
            await self._unreserve(cycle, claim)

    async def _end_lost(self, cycle: BindingCycle, known: Claim) -> None:
        """Not where the writer has bound the pod, or still may, or another allocation stands there by now."""
        await asyncio.sleep(LANDING_SECONDS)
        bound = await is_bound(self._writer, cycle.pod.key, cycle.pod.uid)
        fresh = await self._writer.read_claim(known.key)
        if fresh.uid == known.uid and not bound and fresh.allocation == known.allocation:
            await self._deallocate(cycle, fresh, lost=True)

    async def _end_failed(self, cycle: BindingCycle, known: Claim) -> None:
        """The devices failed for every pod that shares the claim: the last one that has it reserved deallocates it."""
        marks = ("", self._writer.identity, self._writer.take_back_mark)
        for _ in range(_TRIES):
            fresh = await self._writer.read_claim(known.key)
            if fresh.uid != known.uid or fresh.allocation != known.allocation or fresh.writer not in marks:
                return  # another process goes on with it
            try:
                if _is_alone(fresh, cycle.consumer(known).uid):
                    await deallocate_unused(self._writer, fresh)
                    return
                if not fresh.is_reserved_for(cycle.pod.uid):
                    return
                await self._unreserve(cycle, fresh)  # and look again: the binds of the others may end, too
            except (Conflict, Unavailable, TooMany):
                await asyncio.sleep(_RETRY_SECONDS)  # drivers write the status, too

    async def _deallocate(self, cycle: BindingCycle, known: Claim, *, lost: bool) -> None:
        pod, claim, landed = cycle.pod, known, False
        for _ in range(_TRIES):
            try:
                if claim.allocation != known.allocation or await is_bound(self._writer, pod.key, pod.uid):
                    return
                if landed or claim.writer == self._writer.identity:
                    await self._end(claim, cycle.consumer(claim).uid)
                    return
                if not lost:
                    return  # another process goes on with it
                await self._writer.take_over(claim)
                await asyncio.sleep(LANDING_SECONDS)
                landed = True  # other replicas that take it back may mark it meanwhile
            except (Conflict, Unavailable, TooMany):
                await asyncio.sleep(_RETRY_SECONDS)
            claim = await self._writer.read_claim(known.key)
            if claim.uid != known.uid:
                return  # the claim of the bind is gone, and another has its name

    async def _unreserve(self, cycle: BindingCycle, claim: Claim) -> None:
        if not await is_bound(self._writer, cycle.pod.key, cycle.pod.uid):
            await self._writer.unreserve(claim, cycle.pod.uid)

    async def _end(self, claim: Claim, consumer_uid: str) -> None:
        if _is_alone(claim, consumer_uid):
            await self._writer.deallocate(claim)
        else:
            await self._writer.unreserve(claim, consumer_uid)


def _is_about(error: BerthError, claim: Claim, kind: type[ConditionsFailed | DeviceLost]) -> bool:
    return isinstance(error, kind) and error.claim_uid == claim.uid


def _is_alone(claim: Claim, consumer_uid: str) -> bool:
    """Whether the claim is reserved for nothing else."""
    return all(consumer.uid == consumer_uid for consumer in claim.reserved_for)
