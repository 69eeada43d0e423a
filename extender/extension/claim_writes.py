"""Writes of a bind to its claims. Each is guarded, is repeated after a conflict, and pushes its compensation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import partial

from extender.cluster import Conflict, TooMany, Unavailable, Writer
from extender.extension.binding_cycle import (
    BindError,
    BindingCycle,
    check_stored,
    is_same_write,
    same_writer,
    unchanged,
)
from extender.extension.compensations import Compensations
from extender.extension.live_reads import LANDING_SECONDS
from extender.extension.shared_claims import SharedClaims
from extender.extension.special_claims import SpecialClaims
from extender.model import Allocation, Claim, Consumer
from extender.scheduling import PodRequirements
from extender.scheduling.requirements import SPECIAL_NAME

_TRIES = 5  # per write, as client-go's DefaultRetry
_RETRY_SECONDS = 0.1
_READS = 2
_FRESH_SECONDS = LANDING_SECONDS / 2  # for this time after its start, a bind needs no other read of its claims

NewAllocations = list[tuple[Claim, Allocation]]


class ClaimWrites:
    """Allocates the claims of binds and adds their consumers. Every method raises BindError or ClusterError."""

    def __init__(self, writer: Writer, now_rfc3339: Callable[[], str]) -> None:
        self._writer = writer
        self._now = now_rfc3339
        self._special = SpecialClaims(writer)
        self._compensations = Compensations(writer, self._special)
        self._shared = SharedClaims(writer, self._retried)

    async def write(self, cycle: BindingCycle, requirements: PodRequirements, planned: NewAllocations) -> list[Claim]:
        """Allocate the planned claims, and add the consumer to the pod's claims that are already allocated.

        Returns all claims of the pod: as this bind wrote or read them, or as it knew them if it only added a consumer.
        """
        group = requirements.group.on_claims if requirements.group is not None else ""
        claims = []
        for claim, allocation in planned:
            stamped = replace(allocation, timestamp=self._now())
            if claim.key.name == SPECIAL_NAME:  # not by its annotation, which tenants write on their own claims
                made = await self._create_special(cycle, claim)
                claims.append(await self._allocate(cycle, made, stamped, group))
                await self._special.map(cycle.pod, made, requirements.mappings)
            else:
                claims.append(await self._allocate(cycle, claim, stamped, group))
        return claims + [await self._use_allocated(cycle, claim) for claim in requirements.allocated_claims]

    async def confirm(self, cycle: BindingCycle, claims: Iterable[Claim]) -> None:
        """Read the claims if the bind was slow. Raises BindError if one has changed as in `_check`.

        Another process that had the same pod to bind may take an allocation or a consumer back, after it looked for a
        Binding that was not sent yet (`Compensations`, `deallocate_unused`). The watch may not have shown that.
        """
        if asyncio.get_running_loop().time() - cycle.started > _FRESH_SECONDS:
            await self.check_unchanged(cycle, claims)

    async def check_unchanged(self, cycle: BindingCycle, claims: Iterable[Claim]) -> None:
        """Read the claims at once. Raises BindError if the allocation, the consumer or the mark of one has changed.

        Reads them once more after slow reads: the first one may have changed before the last one came. An API server
        that is always slow must not keep every pod from being bound.
        """
        known, loop = list(claims), asyncio.get_running_loop()
        for _ in range(_READS):
            began = loop.time()
            await asyncio.gather(*(self._check(claim, cycle.consumer(claim)) for claim in known))
            if loop.time() - began <= _FRESH_SECONDS:
                return

    async def _create_special(self, cycle: BindingCycle, placeholder: Claim) -> Claim:
        """Create the special claim of the pod's extended resources."""
        made = await self._writer.create_special_claim(cycle.pod, placeholder.spec)
        cycle.undo.push(made.uid, partial(self._compensations.of_special_claim, cycle, made))
        return made

    async def _allocate(self, cycle: BindingCycle, claim: Claim, allocation: Allocation, group: str) -> Claim:
        """Write the finalizer and then the status. Raises BindError if another bind allocated the claim."""
        consumer = cycle.consumer(claim)

        async def put(claim: Claim) -> Claim:
            if claim.writer == self._writer.identity and is_same_write(claim, allocation, consumer):
                cycle.undo.push(claim.uid, partial(self._compensations.of_allocation, cycle, claim))
                return claim  # an earlier attempt succeeded, and its reply was lost
            if claim.allocation is not None:
                raise BindError(f"claim {claim.key} was allocated elsewhere in the meantime")
            if claim.deleting:
                raise BindError(f"claim {claim.key} got deleted in the meantime")
            if claim.problem:  # its finalizers may be unknown, and the write would replace them
                raise BindError(f"claim {claim.key}: {claim.problem}")
            stored = await self._writer.allocate(await self._writer.add_finalizer(claim, group), allocation, consumer)
            cycle.undo.push(stored.uid, partial(self._compensations.of_allocation, cycle, stored))
            check_stored(allocation, stored)
            return stored

        return await self._retried(claim, put, lambda _, fresh: fresh)

    async def _use_allocated(self, cycle: BindingCycle, claim: Claim) -> Claim:
        """Add the consumer to a claim that is already allocated.

        If the claim is reserved for this pod already, the process that reserved it may be about to take it back. This
        bind writes its mark, so that the write of one of the two processes conflicts. Or this process took the claim
        back, and the watch has not shown that yet (docs/decisions/0015).
        """
        cycle.undo.push(claim.uid, partial(self._compensations.of_found_allocation, cycle, claim))
        consumer = cycle.consumer(claim)
        if not claim.is_reserved_for(consumer.uid):
            # Before the write: the bind of another pod may add this pod's consumer after this bind was cancelled.
            cycle.undo.push(claim.uid, partial(self._compensations.of_consumer, cycle, claim))
            return await self._shared.add_consumer(claim, consumer)
        if claim.ours:
            return await self._retried(claim, self._writer.take_over, partial(unchanged, consumer=consumer))
        return await self._check(claim, consumer)

    async def _retried(
        self, claim: Claim, write: Callable[[Claim], Awaitable[Claim]], refreshed: Callable[[Claim, Claim], Claim]
    ) -> Claim:
        """Write the claim and return it as stored. Retries after Conflict, Unavailable and TooMany.

        A retry writes `refreshed(known claim, claim as just read)`.
        """
        for attempt in range(1, _TRIES):
            try:
                return await write(claim)
            except (Conflict, Unavailable, TooMany) as error:
                retriable = error
            pause = retriable.retry_after if isinstance(retriable, TooMany) else _RETRY_SECONDS * (attempt - 1)
            await asyncio.sleep(pause)
            claim = refreshed(claim, await self._read_again(claim))
        return await write(claim)

    async def _check(self, claim: Claim, consumer: Consumer) -> Claim:
        fresh = unchanged(claim, await self._read_again(claim), consumer)
        return same_writer(claim, fresh, self._writer.identity)

    async def _read_again(self, claim: Claim) -> Claim:
        fresh = await self._writer.read_claim(claim.key)
        if fresh.uid != claim.uid:
            raise BindError(f"claim {claim.key} was recreated")
        return fresh
