"""Taking back what a failed bind wrote."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

from extender.cluster.errors import Conflict, TooMany, Unavailable
from extender.cluster.writer import Writer
from extender.model.claim import Claim, Pod
from extender.model.errors import BerthError
from extender.service.binding import Work
from extender.service.proving import is_bound
from extender.service.special import SpecialClaims

_TRIES = 5  # per write, as client-go's DefaultRetry
_RETRY_SECONDS = 0.1
_LANDING_SECONDS = 1.0  # for a Binding that another process sent to arrive


class Undoer:
    """Takes back allocations and reservations of failed binds. Each write is guarded by resourceVersion and by the
    claim's writer, and comes after a fresh read has shown that the pod is not bound (SECURITY.md)."""

    def __init__(self, writer: Writer, special: SpecialClaims) -> None:
        self._writer = writer
        self._special = special
        self._log = structlog.get_logger("berth.bind")

    async def undo(self, work: Work, why: str) -> None:
        """Take back allocations and reservations of ours, last first. What cannot be taken back is collected later. A
        claim of the PodGroup is taken back only where its devices are lost: then no member's bind passes the fence.
        Otherwise another member may rely on it, and it is freed with the PodGroup, as in-tree."""
        pod, special = work.pod, work.special
        for claim in reversed(work.reserved):
            if not work.is_of_group(claim):
                await self._quietly(self._unreserve(claim, pod), pod, why)
        for claim in reversed(work.allocated):
            is_special = special is not None and claim.uid == special.uid
            if not is_special and (claim.key in work.lost or not work.is_of_group(claim)):
                await self._quietly(self._deallocate(claim, work), pod, why)
        if special is not None:
            await self._quietly(self._special.remove(special, pod.key, pod.uid), pod, why)

    async def inherit(self, work: Work, claim: Claim) -> None:
        """An allocation that was found and lost is taken back with the rest of the work, unless its writer has bound
        the pod, or still may, or another allocation stands there by now."""
        await asyncio.sleep(_LANDING_SECONDS)
        bound = await is_bound(self._writer, work.pod.key, work.pod.uid)
        fresh = await self._writer.read_claim(claim.key)
        if fresh.uid == claim.uid and not bound and fresh.allocation == claim.allocation:
            work.allocated.append(fresh)

    async def _unreserve(self, claim: Claim, pod: Pod) -> None:
        if not await is_bound(self._writer, pod.key, pod.uid):
            await self._writer.unreserve(claim, pod.uid)

    async def _deallocate(self, known: Claim, work: Work) -> None:
        claim, landed = known, False
        for _ in range(_TRIES):
            try:
                if claim.allocation != known.allocation or await is_bound(self._writer, work.pod.key, work.pod.uid):
                    return
                if landed or claim.writer == self._writer.identity:
                    await self._end(claim, work.consumer(claim).uid)
                    return
                if known.key not in work.lost:
                    return  # another process goes on with it
                await self._writer.take_over(claim)
                await asyncio.sleep(_LANDING_SECONDS)
                landed = True  # other replicas that take it back may mark it meanwhile
            except (Conflict, Unavailable, TooMany):
                await asyncio.sleep(_RETRY_SECONDS)
            claim = await self._writer.read_claim(known.key)
            if claim.uid != known.uid:
                return  # the claim of the bind is gone, and another has its name

    async def _end(self, claim: Claim, consumer_uid: str) -> None:
        if any(consumer.uid != consumer_uid for consumer in claim.reserved_for):
            await self._writer.unreserve(claim, consumer_uid)
        else:
            await self._writer.deallocate(claim)

    async def _quietly(self, action: Coroutine[Any, Any, object], pod: Pod, why: str) -> None:
        try:
            await action
        except BerthError as error:
            self._log.warning("could not take back", pod=str(pod.key), because=why, problem=str(error))
