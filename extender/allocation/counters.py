"""Shared counters of partitionable devices (KEP-4815): the amounts that are left in each pool.

Counter sets belong to a driver and a pool: two drivers may use the same pool name. Amounts are in nanos. In a set with
compatibility groups (KEP-5963), devices are allocated together only if all have one group in common, or none has any.

`is_short` is a fast proof that the counters cannot serve the requested number of devices. It compares sums of counters.
Without it, the search would try all combinations and use up its steps without a result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from extender.allocation.nodes import AllocatedState, CounterKey, Inventory, PoolDevice
from extender.allocation.nodes.node_info import memberships
from extender.allocation.problem import CauseRecorder
from extender.api.resource_slices import CounterUse
from extender.base.bits import members
from extender.base.deadline import NO_DEADLINE, Deadline

_MAX_FORMS = 64  # alternatives of all requests; real pods have fewer, and each can need a bound of its own
_MAX_REPORTED = 1000  # devices of requests; the reason names one request
_COUNTER_PARTS = 1 << 40  # parts of one counter; the parts of a device are rounded down, so that no bound is too low

Form = tuple[str, int, int]
"""(name of the request, number of devices, mask of the devices that it may have)."""


class ShortOfCounters(Exception):
    """The shared counters cannot serve any combination of devices."""


class Counters:
    """The amounts that are left of each counter. A pool is evaluated at its first use."""

    def __init__(self, inventory: Inventory, allocated_state: AllocatedState) -> None:
        self._inventory = inventory
        self._allocated_state = allocated_state
        self._left: dict[int, dict[CounterKey, int]] = {}
        self._overdrawn: dict[int, str] = {}  # pool to a counter whose consumption exceeds its amount
        self._members: dict[int, dict[CounterKey, int]] = {}  # see memberships

    def take(self, bit: int) -> tuple[str, str] | None:
        """Consume the counters of a device. Returns None, or the cause that forbids it (a key of CAUSES) with the name
        of the counter of which too little is left, or of the counter set.

        A failure changes nothing. As in the reference, one overdrawn counter blocks all devices of the pool that
        consume counters.
        """
        pool_device = self._inventory.devices[bit]
        left = self._pool(pool_device.pool)
        if pool_device.pool in self._overdrawn:
            return "counters", self._overdrawn[pool_device.pool]
        clash = self._clash(pool_device)
        if clash:
            return "compatibility-groups", clash
        charged: list[tuple[CounterKey, int]] = []
        for use in pool_device.device.consumes:
            for name, amount in use.counters:
                key = (use.counter_set, name)
                left[key] -= amount
                charged.append((key, amount))
        short = next((key for key, _ in charged if left[key] < 0), None)
        if short is None:
            self._count(pool_device, 1)
            return None
        for key, amount in charged:
            left[key] += amount
        return "counters", "/".join(short)

    def give_back(self, bit: int) -> None:
        """Undo a successful `take`."""
        pool_device = self._inventory.devices[bit]
        left = self._left[pool_device.pool]
        for use in pool_device.device.consumes:
            for name, amount in use.counters:
                left[use.counter_set, name] += amount
        self._count(pool_device, -1)

    def _clash(self, pool_device: PoolDevice) -> str:
        """A counter set whose devices in use have no group in common with this one; '' without one."""
        for use in self._with_groups(pool_device):
            everyone, *groups = map(self._members[pool_device.pool].__getitem__, memberships(use))
            if everyone and everyone not in groups:
                return use.counter_set
        return ""

    def _count(self, pool_device: PoolDevice, number: int) -> None:
        for use in self._with_groups(pool_device):
            for key in memberships(use):
                self._members[pool_device.pool][key] += number

    def _with_groups(self, pool_device: PoolDevice) -> list[CounterUse]:
        """The consumptions of a device in counter sets with compatibility groups."""
        pool = self._inventory.pools[pool_device.pool]
        if pool.grouped and pool_device.pool not in self._members:
            self._members[pool_device.pool] = defaultdict(int, self._allocated_state.counters(pool))
        return [use for use in pool_device.device.consumes if use.counter_set in pool.grouped] if pool.grouped else []

    def fits(self, bit: int) -> bool:
        """Whether `take` would succeed."""
        cause = self.take(bit)
        if cause is None:
            self.give_back(bit)
        return cause is None

    def left(self, pool: int, key: CounterKey) -> int:
        """The amount of one counter that is left, in nanos."""
        return self._pool(pool)[key]

    def _pool(self, position: int) -> dict[CounterKey, int]:
        left = self._left.get(position)
        if left is None:
            left = self._left[position] = self._allocated_state.left(self._inventory.pools[position])
            # Only allocated devices can overdraw a counter, because `take` checks the amount first.
            overdrawn = next((key for key, amount in left.items() if amount < 0), None)
            if overdrawn is not None:
                self._overdrawn[position] = "/".join(overdrawn)
        return left


def is_short(
    requests: Sequence[Sequence[Form]], inventory: Inventory, counters: Counters, deadline: Deadline = NO_DEADLINE
) -> bool:
    """Whether the counters cannot serve some request in any of its forms, or all requests together.

    With more than _MAX_FORMS alternatives, only all requests together.
    False does not mean that a solution exists. Raises DeadlineExceeded.
    """
    few = sum(map(len, requests)) <= _MAX_FORMS
    known: dict[int, int] = {}
    needs: dict[int, _Need | None] = {}

    def most(bits: int) -> int:
        if bits not in known:
            deadline.check()
            known[bits] = most_together(bits, inventory, counters, needs)
        return known[bits]

    everything, needed = 0, 0
    for forms in requests:
        if few and all(most(bits) < count for _, count, bits in forms):
            return True
        needed += min(count for _, count, _ in forms)
        for _, _, bits in forms:
            everything |= bits
    return most(everything) < needed


def most_together(
    devices: int, inventory: Inventory, counters: Counters, needs: dict[int, _Need | None] | None = None
) -> int:
    """An upper bound of the number of these devices that can be allocated together.

    `needs` keeps what is known of each device, by its position.
    """
    needs = {} if needs is None else needs
    found = 0
    sets: dict[tuple[int, str], list[dict[str, int]]] = {}
    for bit in members(devices):
        if not inventory.devices[bit].device.consumes:
            found += 1
            continue
        if bit not in needs:
            needs[bit] = _need(bit, inventory, counters)
        need = needs[bit]
        if need is not None:
            sets.setdefault(need.counter_set, []).append(need.parts)
    return found + sum(_most(devices) for devices in sets.values())


def report_short(requests: Sequence[Sequence[Form]], counters: Counters, recorder: CauseRecorder) -> None:
    """Take the devices in order, and report each device that does not fit with the counter that it lacks.

    Only the first _MAX_REPORTED devices of the requests: the reason names one request.
    """
    wanted = ((forms[-1][0], bit) for forms in requests for bit in members(forms[-1][2]))
    for name, bit in islice(wanted, _MAX_REPORTED):
        cause = counters.take(bit)
        if cause is not None:
            recorder.rejected(name, bit, *cause)


class _Need(NamedTuple):
    """The pool and the first counter set of a device, and how many of its _COUNTER_PARTS it consumes of each."""

    counter_set: tuple[int, str]
    parts: dict[str, int]


def _need(bit: int, inventory: Inventory, counters: Counters) -> _Need | None:
    """None if the device does not fit."""
    if not counters.fits(bit):
        return None
    pool_device = inventory.devices[bit]
    use = pool_device.device.consumes[0]
    parts = {
        name: amount * _COUNTER_PARTS // counters.left(pool_device.pool, (use.counter_set, name))
        for name, amount in use.counters
        if amount > 0
    }
    return _Need((pool_device.pool, use.counter_set), parts)


def _most(devices: list[dict[str, int]]) -> int:
    """An upper bound of the devices that fit: the smallest first, by each counter and by the sum of all."""
    names = {name for parts in devices for name in parts}
    bounds = [_fitting((parts.get(name, 0) for parts in devices), _COUNTER_PARTS) for name in names]
    return min([*bounds, _fitting((sum(parts.values()) for parts in devices), _COUNTER_PARTS * len(names))])


def _fitting(sizes: Iterable[int], room: int) -> int:
    count = 0
    for size in sorted(sizes):
        room -= size
        if room < 0:
            break
        count += 1
    return count
