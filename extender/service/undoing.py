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
from extender.service.special import SpecialClaims
from extender.wire.core import decode_pod

_TRIES = 5  # per write, as client-go's DefaultRetry
_RETRY_SECONDS = 0.1
_LANDING_SECONDS = 1.0  # for a Binding that another process sent to arrive


class Undoer:
    """Takes back allocations and reservations of failed binds, guarded by resourceVersion and by the claim's writer."""

    def __init__(self, writer: Writer, special: SpecialClaims) -> None:
        self._writer = writer
        self._special = special
        self._log = structlog.get_logger("berth.bind")

    async def undo(self, work: Work, why: str) -> None:
        """Take back allocations and reservations of ours, last first. What cannot be taken back is collected later. A
        claim of the PodGroup is taken back only where its devices are lost: then no member's bind passes the fence.
        Otherwise another member may rely on it, and it is freed with the PodGroup, as in-tree."""
        for claim in reversed(work.reserved):
            if not work.is_of_group(claim):
                await self._quietly(self._writer.unreserve(claim, work.pod.uid), work.pod, why)
        for claim in reversed(work.allocated):
            if claim.key != work.special and (claim.key in work.lost or not work.is_of_group(claim)):
                await self._quietly(self._deallocate(claim, work.consumer(claim).uid), work.pod, why)
        if work.special is not None:
            await self._quietly(self._special.remove(work.special), work.pod, why)

    async def inherit(self, work: Work, claim: Claim) -> None:
        """An allocation that was found and lost is taken back with the rest of the work, unless its writer has bound
        the pod, or still may, or another allocation stands there by now."""
        await asyncio.sleep(_LANDING_SECONDS)
        pod = decode_pod(await self._writer.read_pod(work.pod.key))
        fresh = await self._writer.read_claim(claim.key)
        if fresh.uid == claim.uid and not pod.node_name and fresh.allocation == claim.allocation:
            work.allocated.append(fresh)

    async def _deallocate(self, claim: Claim, consumer_uid: str) -> None:
        for _ in range(_TRIES):
            if claim.writer != self._writer.identity:
                return  # another process goes on with it
            others = [consumer for consumer in claim.reserved_for if consumer.uid != consumer_uid]
            try:
                if others:
                    await self._writer.unreserve(claim, consumer_uid)
                elif claim.allocation is not None:
                    await self._writer.deallocate(claim)
                return
            except (Conflict, Unavailable, TooMany):
                await asyncio.sleep(_RETRY_SECONDS)
                fresh = await self._writer.read_claim(claim.key)
                if fresh.uid != claim.uid:
                    return  # the claim of the bind is gone, and another has its name
                claim = fresh

    async def _quietly(self, action: Coroutine[Any, Any, None], pod: Pod, why: str) -> None:
        try:
            await action
        except BerthError as error:
            self._log.warning("could not take back", pod=str(pod.key), because=why, problem=str(error))
