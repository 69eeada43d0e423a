"""The devices in use, by holder: a claim in the API server, a bind that writes a claim, or a hold of filter.

`AllocatedDevices` knows the use of each pool, and `Channels` the ComputeDomains that it makes. Every holder has its own
key. A bind or a hold is the holder of a reservation; TRANSITIONS is the state machine of one reservation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from extender.allocation.nodes import SHARES, UNUSED, PoolUse
from extender.api.nodes import Node
from extender.api.resource_claims import Reservation, ReservationState, Result
from extender.api.resource_slices import DeviceId, PoolKey
from extender.cache.slice_index import CacheTimers, TimerKind, set_or_drop
from extender.vendors import CLIQUE_LABEL, COMPUTE_DOMAIN_DRIVER, COMPUTE_DOMAIN_LABEL

Holder = tuple[str, str]  # ("claim" | "bind" | "hold", claim UID)
CLAIM, BIND, HOLD = "claim", "bind", "hold"
_NOTHING: Mapping[str, tuple[int, int]] = {}


class AllocatedDevices:
    """Results by holder, indexed by pool and device.

    Devices of a claim count once: when the watch shows the allocation, the caller drops the bind's entry.
    """

    def __init__(self, channels_changed: Callable[[Holder, tuple[Result, ...]], None] = lambda *_: None) -> None:
        """`channels_changed` is called with the new results of a holder that has or had channels of ComputeDomains."""
        self._channels_changed = channels_changed
        self._by_holder: dict[Holder, tuple[Result, ...]] = {}
        self._by_pool: dict[PoolKey, _Pool] = {}

    def put(self, holder: Holder, results: Iterable[Result]) -> set[PoolKey]:
        """Replace the results of a holder, none to remove it; admin access does not count.

        Returns the pools whose use changed.
        """
        counted = tuple([result for result in results if not result.admin_access])
        before = self._by_holder.pop(holder, ())
        if counted:
            self._by_holder[holder] = counted
        touched = set[PoolKey]()
        if counted == before:
            return touched
        has_channels = False
        for amount, changed in ((-1, before), (1, counted)):
            for position, result in enumerate(changed):
                device = result.device
                key = PoolKey(device.driver, device.pool)
                pool = self._by_pool.get(key)
                if pool is None:
                    pool = self._by_pool[key] = _Pool()
                pool.change(holder, position, result, amount)
                touched.add(key)
                has_channels = has_channels or device.driver == COMPUTE_DOMAIN_DRIVER
        for key in touched:
            if not self._by_pool[key].devices:
                del self._by_pool[key]
        if has_channels:
            self._channels_changed(holder, counted)
        return touched

    def results(self, holder: Holder) -> tuple[Result, ...]:
        """The results of a holder."""
        return self._by_holder.get(holder, ())

    def pool(self, key: PoolKey) -> PoolUse:
        """The devices of a pool that are in use, exclusively or in shares."""
        pool = self._by_pool.get(key)
        return pool.use() if pool is not None else UNUSED

    def holders(self, device: DeviceId) -> list[tuple[Holder, Result]]:
        """All holders of a device, with their results."""
        pool = self._by_pool.get(PoolKey(device.driver, device.pool))
        found = pool.devices.get(device.device) if pool is not None else None
        return [(holder, result) for (holder, _), result in found.entries.items()] if found is not None else []

    def claims(self, key: PoolKey) -> set[str]:
        """UIDs of the claims that have devices of a pool."""
        pool = self._by_pool.get(key)
        devices = pool.devices.values() if pool is not None else ()
        return {uid for device in devices for (kind, uid), _ in device.entries if kind == CLAIM}


class _Pool:
    """The use of one pool. What an event costs grows with the devices in use, not with the shares of each."""

    __slots__ = ("_holds", "_shares", "_use", "devices")

    def __init__(self) -> None:
        self.devices: dict[str, _OneEntry | _Device] = {}
        self._holds = 0  # entries of holders of kind HOLD
        self._shares: dict[str, Mapping[str, int]] = {}
        self._use: PoolUse | None = None  # computed on demand: thousands of nodes may read the use of a shared pool

    def change(self, holder: Holder, position: int, result: Result, amount: int) -> None:
        """Add (`amount` 1) or remove (-1) a result of a holder."""
        name = result.device.device
        device = self.devices.get(name)
        self._use = None
        self._holds += amount if holder[0] == HOLD else 0
        if device is None and not result.share_id:
            self.devices[name] = _OneEntry(holder, position, result)
            return
        if isinstance(device, _OneEntry) and amount < 0:
            del self.devices[name]
            return
        if not isinstance(device, _Device):
            device = self.devices[name] = _Device(device)
        device.change(holder, position, result, amount)
        if not device.entries:
            del self.devices[name]
        if not result.share_id:
            return
        if device.shares:
            total = device.consumed.items()
            amounts = {capacity: nanos for capacity, (nanos, _) in total}
            self._shares[name] = {**amounts, SHARES: device.shares}
        else:
            del self._shares[name]

    def use(self) -> PoolUse:
        if self._use is None:
            taken = _one_set(frozenset(name for name, device in self.devices.items() if device.is_taken))
            shares = dict(self._shares) if self._shares else UNUSED.shares
            held = UNUSED.held
            if self._holds:
                held = frozenset(name for name, device in self.devices.items() if device.is_held)
            self._use = PoolUse(taken, shares, held)
        return self._use


@lru_cache(maxsize=1024)  # of nodes with 8 GPUs there are 256, and each takes up to 728 bytes
def _one_set(names: frozenset[str]) -> frozenset[str]:
    return names


class _OneEntry(NamedTuple):
    """The only result that has a device, and that is no share: of nearly every device in use. It takes 64 bytes."""

    holder: Holder
    position: int
    result: Result

    @property
    def entries(self) -> dict[tuple[Holder, int], Result]:
        return {(self.holder, self.position): self.result}

    @property
    def is_taken(self) -> bool:
        return True

    @property
    def is_held(self) -> bool:
        return self.holder[0] == HOLD


class _Device:
    """The results that have one device, if it is shared or if several claims have it."""

    __slots__ = ("_holds", "consumed", "entries", "shares")

    def __init__(self, first: _OneEntry | None) -> None:
        self.entries = first.entries if first is not None else {}
        self._holds = int(first is not None and first.is_held)  # entries of holders of kind HOLD
        self.shares = 0  # entries with a share of the device
        # Capacity name to (nanos, number of shares that have it).
        self.consumed: Mapping[str, tuple[int, int]] = _NOTHING

    @property
    def is_taken(self) -> bool:
        """Whether a claim has the whole device."""
        return self.shares < len(self.entries)

    @property
    def is_held(self) -> bool:
        """Whether only holds keep it in use."""
        return self._holds == len(self.entries)

    def change(self, holder: Holder, position: int, result: Result, amount: int) -> None:
        """Add (`amount` 1) or remove (-1) a result of a holder."""
        if amount > 0:
            self.entries[holder, position] = result
        else:
            del self.entries[holder, position]
        self._holds += amount if holder[0] == HOLD else 0
        if result.share_id:
            self._count_share(result.amounts, amount)

    def _count_share(self, consumed: Mapping[str, int], amount: int) -> None:
        """Count a share that was added (`amount` 1) or removed (-1)."""
        self.shares += amount
        total = dict(self.consumed)
        for capacity, taken in consumed.items():
            nanos, shares = total.get(capacity, (0, 0))
            total[capacity] = nanos + amount * taken, shares + amount
            if not shares + amount:
                del total[capacity]
        self.consumed = total


# -- the ComputeDomains in each NVLink clique ------------------------------------------------------------------
# The driver runs the daemons of a ComputeDomain on the nodes of its pods. Two domains in one clique can break each
# other: their daemons set the access to the memory of one fabric, and then programs fail now and then (the vendor's
# file names the report). A domain is in a clique while a claim or a reservation has a device of that driver on one of
# the clique's nodes, or while one of the nodes has the domain's label. An event costs as much as the nodes that it
# names.


class Channels:
    """ComputeDomains by clique. A holder is a claim, a reservation, or a node with the label of a domain."""

    def __init__(self) -> None:
        self.by_clique: dict[str, Counter[str]] = {}  # clique to the UIDs of its domains, with their holders
        self._clique_of: dict[str, str] = {}  # by node
        self._on_node: dict[str, Counter[str]] = {}  # node to the UIDs of its domains, with their holders
        self._held: dict[Hashable, tuple[str, tuple[str, ...]]] = {}  # holder to the UID of its domain, and nodes

    def put_results(self, holder: Hashable, domain: str, results: Iterable[Result]) -> None:
        """Replace the devices of a holder. The driver names its pools after their nodes."""
        self._put(holder, domain, {r.device.pool for r in results if r.device.driver == COMPUTE_DOMAIN_DRIVER})

    def put_node(self, name: str, new: Node | None) -> None:
        """Replace a node; None deletes it."""
        labels = new.labels if new is not None else {}
        clique, before = labels.get(CLIQUE_LABEL, ""), self._clique_of.get(name, "")
        if clique != before:
            for domain, holders in self._on_node.get(name, {}).items():
                _add(self.by_clique, before, domain, -holders)
                _add(self.by_clique, clique, domain, holders)
            set_or_drop(self._clique_of, name, clique or None)
        self._put(("node", name), labels.get(COMPUTE_DOMAIN_LABEL, ""), (name,))

    def _put(self, holder: Hashable, domain: str, nodes: Iterable[str]) -> None:
        before = self._held.pop(holder, None)
        if before is not None:
            self._count(*before, -1)
        if domain and nodes:
            self._held[holder] = domain, tuple(nodes)
            self._count(*self._held[holder], 1)

    def _count(self, domain: str, nodes: tuple[str, ...], amount: int) -> None:
        for name in nodes:
            _add(self._on_node, name, domain, amount)
            _add(self.by_clique, self._clique_of.get(name, ""), domain, amount)


def _add(table: dict[str, Counter[str]], key: str, domain: str, amount: int) -> None:
    """Add to a count. Nodes without a clique have the key '', and count nowhere."""
    if not key:
        return
    counts = table.setdefault(key, Counter())
    counts[domain] += amount
    if not counts[domain]:
        del counts[domain]
    if not counts:
        del table[key]


# -- reservations ----------------------------------------------------------------------------------------------
#
#           filter          bind            allocation in watch, claim deleted, bind failed
# (none) ──────────▶ HELD ─────────▶ BINDING ──────────▶ (none)
#                     │ deadline, pod or claim deleted, pod filtered again
#                     └──────────────────▶ (none)


class ReservationEvent(StrEnum):
    """The events of a reservation."""

    HOLD = "filter chose devices"
    EXPIRE = "the hold's deadline passed"
    RELEASE = "the pod was filtered again, bound or deleted"
    ASSUME = "bind started"
    CONFIRM = "the watch showed the claim allocated"
    CLAIM_DELETED = "the claim was deleted"
    FORGET = "bind failed and was undone"


_NONE, _HELD, _BINDING = ReservationState.NONE, ReservationState.HELD, ReservationState.BINDING
TRANSITIONS: dict[tuple[ReservationState, ReservationEvent], ReservationState] = {
    (_NONE, ReservationEvent.HOLD): _HELD,
    (_NONE, ReservationEvent.ASSUME): _BINDING,
    # Events of claims without a reservation change nothing. A rollback can end after the watch confirmed the claim.
    (_NONE, ReservationEvent.RELEASE): _NONE,
    (_NONE, ReservationEvent.CONFIRM): _NONE,
    (_NONE, ReservationEvent.CLAIM_DELETED): _NONE,
    (_NONE, ReservationEvent.FORGET): _NONE,
    (_HELD, ReservationEvent.ASSUME): _BINDING,
    (_HELD, ReservationEvent.FORGET): _HELD,  # the failed bind was an earlier one; the hold is newer
    (_HELD, ReservationEvent.EXPIRE): _NONE,
    (_HELD, ReservationEvent.RELEASE): _NONE,
    (_HELD, ReservationEvent.CLAIM_DELETED): _NONE,
    (_HELD, ReservationEvent.CONFIRM): _NONE,  # another process allocated it
    (_BINDING, ReservationEvent.HOLD): _BINDING,  # a filter request during the bind changes nothing
    (_BINDING, ReservationEvent.RELEASE): _BINDING,
    (_BINDING, ReservationEvent.CONFIRM): _NONE,
    (_BINDING, ReservationEvent.CLAIM_DELETED): _NONE,
    (_BINDING, ReservationEvent.FORGET): _NONE,
}
_KINDS = {_HELD: HOLD, _BINDING: BIND}  # of the holder that a reservation is


class InvalidTransition(RuntimeError):
    """TRANSITIONS has no entry for this state and event: a bug in Berth."""


class Reservations:
    """Reservations by claim UID.

    Every change of state follows TRANSITIONS, and every reservation is also an entry of the allocated devices. `apply`
    returns the pools whose use changed. Times are in seconds of the service's clock.
    """

    def __init__(self, allocated_devices: AllocatedDevices, timers: CacheTimers) -> None:
        self._allocated_devices = allocated_devices
        self._timers = timers
        self.by_claim: dict[str, Reservation] = {}
        self.in_flight: dict[str, str] = {}  # UID of a claim in state BINDING to the UID of its pod
        self._held_for: dict[str, dict[str, None]] = {}  # pod UID to its held claims, in order
        self._held_on: dict[str, dict[str, None]] = {}  # node to its held claims, in order

    @property
    def holds(self) -> int:
        """The number of pods with holds."""
        return len(self._held_for)

    def held_for(self, pod_uid: str) -> tuple[Result, ...]:
        """The devices held for a pod."""
        return tuple(r for claim_uid in self._held_for.get(pod_uid, ()) for r in self.by_claim[claim_uid].results)

    def held_by(self, *pod_uids: str) -> list[str]:
        """The claims that are held for pods, by UID."""
        return [claim_uid for pod_uid in pod_uids for claim_uid in self._held_for.get(pod_uid, ())]

    def held_on(self, node: str, kept: Container[str] = ()) -> list[str]:
        """The claims that are held on a node, by UID, except those of the pods `kept`."""
        return [uid for uid in self._held_on.get(node, ()) if self.by_claim[uid].pod_uid not in kept]

    def apply(self, event: ReservationEvent, claim_uid: str, new: Reservation | None = None) -> set[PoolKey]:
        """The only place where a reservation changes. HOLD and ASSUME have the `new` one.

        Raises InvalidTransition if TRANSITIONS has no entry: the claim is held already, or another bind writes it.
        """
        old = self.by_claim.get(claim_uid)
        before = old.state if old is not None else _NONE
        after = TRANSITIONS.get((before, event))
        if after is None:
            raise InvalidTransition(
                f"claim {claim_uid}: state {before.value!r} does not allow the event {event.value!r}"
            )
        if after is before:
            return set()
        touched = self._remove(claim_uid) if before is not _NONE else set[PoolKey]()
        if new is not None:
            self.by_claim[claim_uid] = new
            touched |= self._allocated_devices.put((_KINDS[after], claim_uid), new.results)
            if after is ReservationState.HELD:
                self._held_for.setdefault(new.pod_uid, {})[claim_uid] = None
                self._held_on.setdefault(new.node, {})[claim_uid] = None
                self._timers.at((TimerKind.HOLD, claim_uid), new.deadline)
            else:
                self.in_flight[claim_uid] = new.pod_uid
        return touched

    def release(self, claim_uids: Iterable[str]) -> set[PoolKey]:
        """End the holds of these claims; what a bind writes stays."""
        return set[PoolKey]().union(*(self.apply(ReservationEvent.RELEASE, uid) for uid in claim_uids))

    @contextmanager
    def without_holds(self, node: str, kept: Container[str] = ()) -> Iterator[set[PoolKey]]:
        """While the context lasts, the devices held on a node count as free. No reservation changes. See `held_on`."""
        held = {(HOLD, uid): self.by_claim[uid].results for uid in self.held_on(node, kept)}
        touched = set[PoolKey]().union(*(self._allocated_devices.put(holder, ()) for holder in held))
        try:
            yield touched
        finally:
            for holder, results in held.items():
                self._allocated_devices.put(holder, results)

    def _remove(self, claim_uid: str) -> set[PoolKey]:
        old = self.by_claim.pop(claim_uid)
        self.in_flight.pop(claim_uid, None)
        self._timers.cancel((TimerKind.HOLD, claim_uid))
        for held, key in ((self._held_for, old.pod_uid), (self._held_on, old.node)):
            claims = held.get(key, {})
            claims.pop(claim_uid, None)
            if not claims:
                held.pop(key, None)
        return self._allocated_devices.put((_KINDS[old.state], claim_uid), ())
