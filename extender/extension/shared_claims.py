"""Consumers of allocated claims: binds of pods that share a claim add their consumers together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import islice

from extender.cluster import Writer
from extender.extension.binding_cycle import newer, unchanged
from extender.model import Claim, Consumer

# Writes a claim with retries: (the known claim, one write, the claim of a retry after a fresh read). Raises BerthError.
Retried = Callable[[Claim, Callable[[Claim], Awaitable[Claim]], Callable[[Claim, Claim], Claim]], Awaitable[Claim]]


@dataclass(frozen=True, slots=True, eq=False)
class _Bind:
    """A bind that waits: the claim as it knows it. Binds of members of one PodGroup may have one consumer."""

    claim: Claim
    consumer: Consumer


@dataclass(slots=True)
class _Shared:
    """The state that binds of one claim share: `known` is the claim as last stored.

    `read` is the claim as last read, because another client had changed it; None if no bind had to read it. `waiting`
    has the binds whose consumer no write has added yet, in the order in which they came.
    """

    known: Claim
    read: Claim | None = None
    waiting: dict[_Bind, None] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class SharedClaims:
    """Adds consumers to `status.reservedFor` of allocated claims.

    Each write outdates the resourceVersion that other binds know, so the binds of a claim write one after the other. A
    write adds the consumers of all binds that wait at its start: 256 pods need a few writes instead of 256.
    """

    def __init__(self, writer: Writer, retried: Retried) -> None:
        self._writer = writer
        self._retried = retried
        self._shared: dict[str, _Shared] = {}  # by UID of the claim, while a bind waits

    async def add_consumer(self, claim: Claim, consumer: Consumer) -> Claim:
        """Add a consumer to a claim. Raises BerthError, for instance if its allocation has changed.

        Returns the version of the claim to which the watch must come before the bind may compare the claim with
        others: `claim`, or a later version that a bind read. Between the two, the claim may have been deallocated and
        allocated again: to the same devices, within the same second.
        """
        shared = self._shared.setdefault(claim.uid, _Shared(claim))
        bind = _Bind(claim, consumer)
        shared.waiting[bind] = None
        try:
            async with shared.lock:
                if bind in shared.waiting:  # no other bind has written its consumer
                    await self._write(shared, bind)
            read = shared.read
            return read if read is not None and newer(read.resource_version, claim.resource_version) else claim
        finally:
            shared.waiting.pop(bind, None)
            if not shared.waiting and self._shared.get(claim.uid) is shared:
                del self._shared[claim.uid]

    async def _write(self, shared: _Shared, bind: _Bind) -> None:
        claim, first, known = bind.claim, bind.consumer, shared.known
        if known.allocation != claim.allocation or known.is_reserved_for(first.uid):
            # An undo may have ended the allocation that the other binds know, or removed an earlier reservation.
            known = shared.read = await self._writer.read_claim(claim.key)
        known = unchanged(claim, known)
        free = max(known.reservations_left, 1)
        # A bind that knows another allocation chose its node for that: it fails in its own turn.
        binds = [one for one in shared.waiting if one.claim.allocation == known.allocation]
        others = (one.consumer for one in binds if not known.is_reserved_for(one.consumer.uid))
        batch = dict(islice({one.uid: one for one in (first, *others)}.items(), free))

        def refreshed(known: Claim, fresh: Claim) -> Claim:
            shared.read = unchanged(known, fresh)
            return shared.read

        added = list(batch.values())
        shared.known = await self._retried(known, lambda claim: self._writer.add_consumers(claim, added), refreshed)
        for one in binds:
            if one.consumer.uid in batch:
                shared.waiting.pop(one, None)
