"""What a bind writes to its claims: it allocates, reserves, and checks that the stored claim is still right.

Each write is guarded by the resourceVersion, is repeated after a conflict on a fresh read, and notes its step for the
undo (`undo.Undo`). Binds of pods that share a claim add their consumers together (`SharedClaims`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

from extender.api.asked_subgroups import PodMark
from extender.api.object_meta import ObjectKey
from extender.api.pods import Pod
from extender.api.resource_claims import Allocation, Claim, Consumer
from extender.cluster import NotFound, WallClock, Writer, now_rfc3339, retry_on_conflict
from extender.scheduling import PodRequirements
from extender.scheduling.requirements import SPECIAL_NAME
from extender.serve.binding_cycle import BindError, BindingCycle, Step
from extender.serve.undo import IN_FLIGHT_GRACE_SECONDS
from extender.serve.write_barrier import newer, require_same_allocation, require_unchanged

_MAX_READS = 2
FRESH_SECONDS = IN_FLIGHT_GRACE_SECONDS / 2  # for this time after its start, a bind needs no other read of its claims

NewAllocations = list[tuple[Claim, Allocation]]


class ClaimWrites:
    """Allocates the claims of binds and adds their consumers. Every method raises BindError or ClusterError."""

    def __init__(self, writer: Writer, wall_clock: WallClock) -> None:
        self._writer = writer
        self._wall_clock = wall_clock
        self._shared = SharedClaims(writer)

    async def write(self, cycle: BindingCycle, requirements: PodRequirements, planned: NewAllocations) -> list[Claim]:
        """Allocate the planned claims, and add the consumer to the pod's claims that are already allocated.

        Returns all claims of the pod: as this bind wrote or read them, or as it knew them if it only added a consumer.
        """
        group, membership = requirements.group, requirements.membership
        group_part = membership.index_on_claims if membership is not None else ""
        mark = PodMark(group.on_claims if group is not None else "", group_part, cycle.pod.cpu)
        claims = []
        for claim, allocation in planned:
            stamped = replace(allocation, timestamp=now_rfc3339(self._wall_clock))
            if claim.key.name == SPECIAL_NAME:  # not by its annotation, which tenants write on their own claims
                made = await self._writer.create_special_claim(cycle.pod, claim.spec)
                cycle.note(Step.CREATED, made)
                claims.append(await self._allocate(cycle, made, stamped, mark))
                await self._name_special(cycle.pod, made, requirements.mappings)
            else:
                claims.append(await self._allocate(cycle, claim, stamped, mark))
            mark = mark._replace(cpu=0)  # its CPU counts once
        return claims + [await self._use_allocated(cycle, claim) for claim in requirements.allocated_claims]

    async def read_kept(self, cycle: BindingCycle, claims: Iterable[Claim]) -> None:
        """Read the claims. Raises BindError if the allocation, the consumer or the allocator of one has changed, as
        `WriteBarrier.require_kept` does by the cache.

        Another process that had the same pod to bind may end an allocation or a reservation, after it looked for a
        Binding that was not sent yet (`Undo`, `deallocate_unused`). The watch may not have shown that.

        Reads them once more after slow reads: the first one may have changed before the last one came. An API server
        that is always slow must not keep every pod from being bound.
        """
        known, loop = list(claims), asyncio.get_running_loop()
        for _ in range(_MAX_READS):
            began = loop.time()
            await asyncio.gather(*(self._read_unchanged(claim, cycle.consumer(claim)) for claim in known))
            if loop.time() - began <= FRESH_SECONDS:
                return

    async def _read_unchanged(self, claim: Claim, consumer: Consumer) -> Claim:
        return require_unchanged(claim, await _read_again(self._writer, claim), self._writer.identity, consumer)

    async def _allocate(self, cycle: BindingCycle, claim: Claim, allocation: Allocation, mark: PodMark) -> Claim:
        """Write the finalizer and then the status. Raises BindError if another bind allocated the claim."""
        consumer = cycle.consumer(claim)

        async def put(claim: Claim) -> Claim:
            if claim.allocator == self._writer.identity and _is_same_write(claim, allocation, consumer):
                cycle.note(Step.ALLOCATED, claim)
                return claim  # an earlier attempt succeeded, and its reply was lost
            if claim.allocation is not None:
                raise BindError(f"claim {claim.key} was allocated elsewhere in the meantime")
            if claim.deleting:
                raise BindError(f"claim {claim.key} got deleted in the meantime")
            if claim.problem:  # its finalizers may be unknown, and the write would replace them
                raise BindError(f"claim {claim.key}: {claim.problem}")
            stored = await self._writer.allocate(await self._writer.add_finalizer(claim, mark), allocation, consumer)
            cycle.note(Step.ALLOCATED, stored)
            _check_stored(allocation, stored)
            return stored

        return await retry_on_conflict(put, partial(_read_again, self._writer, claim), claim)

    async def _use_allocated(self, cycle: BindingCycle, claim: Claim) -> Claim:
        """Add the consumer to a claim that is already allocated.

        If the claim is reserved for this pod already, the process that reserved it may be about to release it. This
        bind becomes its allocator, so that the write of one of the two processes conflicts. Or this process released
        the claim, and the watch has not shown that yet (docs/decisions/0015).
        """
        cycle.note(Step.FOUND, claim)
        consumer = cycle.consumer(claim)
        if not claim.is_reserved_for(consumer.uid):
            # Before the write: the bind of another pod may add this pod's consumer after this bind was cancelled.
            cycle.note(Step.RESERVED, claim)
            return await self._shared.add_consumer(claim, consumer)
        if claim.is_of_berth:

            async def take_over(fresh: Claim) -> Claim:
                return await self._writer.take_over(require_same_allocation(claim, fresh, consumer))

            return await retry_on_conflict(take_over, partial(_read_again, self._writer, claim), claim)
        return await self._read_unchanged(claim, consumer)

    async def _name_special(self, pod: Pod, claim: Claim, mappings: Iterable[tuple[str, str, str]]) -> None:
        """Name the special claim of the pod's extended resources in the pod's status, guarded by its resourceVersion.

        If two processes bind one pod, the first that writes the status continues. Raises BindError if the pod is
        bound, or if its status names a special claim of another process; ClusterError if the write fails repeatedly.
        """
        wanted = tuple(mappings)

        async def put(fresh: Pod) -> None:
            if fresh.uid != pod.uid or fresh.deleting or fresh.node_name:
                raise BindError(f"pod {pod.key} was bound, deleted or recreated in the meantime")
            if fresh.extended_claim not in ("", claim.key.name):
                await self._reject_second(fresh, claim)
            await self._writer.map_special_claim(fresh, claim, wanted)

        await retry_on_conflict(put, partial(self._writer.read_pod, pod.key), pod)

    async def _reject_second(self, pod: Pod, claim: Claim) -> None:
        named = ObjectKey(pod.key.namespace, pod.extended_claim)
        try:
            other = await self._writer.read_claim(named)
        except NotFound:
            return  # the attempt that created the claim has ended
        if other.uid != claim.uid and other.special_for == pod.uid:
            raise BindError(f"pod {pod.key} has the extended-resource claim {named} of another process")


def _check_stored(sent: Allocation, stored: Claim) -> None:
    """Raise BindError if the API server dropped a field of the allocation.

    The API server drops fields whose feature gate is off. Without them the allocation would have another meaning.
    """
    kept = stored.allocation.results if stored.allocation is not None else ()
    for sent_result, stored_result in zip(sent.results, kept, strict=True):
        for field_name in ("share_id", "admin_access", "binding_conditions"):
            if getattr(sent_result, field_name) and not getattr(stored_result, field_name):
                device = sent_result.device
                dropped = f"the API server dropped {field_name} of {device}; is its feature gate off?"
                raise BindError(f"claim {stored.key}: {dropped}")


def _is_same_write(claim: Claim, allocation: Allocation, consumer: Consumer) -> bool:
    """Whether the claim has this allocation and consumer: then the write whose reply was lost succeeded."""
    return (
        claim.allocation is not None
        and [r.device for r in claim.allocation.results] == [r.device for r in allocation.results]
        and claim.is_reserved_for(consumer.uid)
    )


async def _read_again(writer: Writer, claim: Claim) -> Claim:
    fresh = await writer.read_claim(claim.key)
    if fresh.uid != claim.uid:
        raise BindError(f"claim {claim.key} was recreated")
    return fresh


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

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
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
        known = require_same_allocation(claim, known)
        free = max(known.reservations_left, 1)
        # A bind that knows another allocation chose its node for that: it fails in its own turn.
        binds = [one for one in shared.waiting if one.claim.allocation == known.allocation]
        others = (one.consumer for one in binds if not known.is_reserved_for(one.consumer.uid))
        batch = dict(islice({one.uid: one for one in (first, *others)}.items(), free))

        async def add(fresh: Claim) -> Claim:
            if fresh is not known:
                shared.read = require_same_allocation(known, fresh)
            return await self._writer.add_consumers(fresh, batch.values())

        shared.known = await retry_on_conflict(add, partial(_read_again, self._writer, known), known)
        for one in binds:
            if one.consumer.uid in batch:
                shared.waiting.pop(one, None)
