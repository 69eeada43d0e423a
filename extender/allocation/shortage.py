"""A fast proof that shared counters cannot serve the requested number of devices.

It compares sums of counters. Without it, the search would try all combinations and use up its steps without a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from extender.allocation.counters import Counters
from extender.allocation.inventory import Inventory
from extender.allocation.search_observer import Observer
from extender.model import NO_DEADLINE, Deadline, members

_MOST_FORMS = 64  # alternatives of all requests; real pods have fewer, and each can need a bound of its own
_MOST_REPORTED = 1000  # devices of requests; the reason names one request
_WHOLE = 1 << 40  # parts of one counter; the parts of a device are rounded down, so that no bound is too low

Form = tuple[str, int, int]
"""(name of the request, number of devices, mask of the devices that it may have)."""


def is_short(
    requests: Sequence[Sequence[Form]], inventory: Inventory, counters: Counters, deadline: Deadline = NO_DEADLINE
) -> bool:
    """Whether the counters cannot serve some request in any of its forms, or all requests together.

    With more than _MOST_FORMS alternatives, only all requests together.
    False does not mean that a solution exists. Raises DeadlineExceeded.
    """
    few = sum(map(len, requests)) <= _MOST_FORMS
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


def report(requests: Sequence[Sequence[Form]], counters: Counters, observer: Observer) -> None:
    """Take the devices in order, and report each device that does not fit with the counter that it lacks.

    Only the first _MOST_REPORTED devices of the requests: the reason names one request.
    """
    wanted = ((forms[-1][0], bit) for forms in requests for bit in members(forms[-1][2]))
    for name, bit in islice(wanted, _MOST_REPORTED):
        cause = counters.take(bit)
        if cause is not None:
            observer.rejected(name, bit, *cause)


class _Need(NamedTuple):
    """The pool and the first counter set of a device, and the parts of _WHOLE that it consumes of each counter."""

    counter_set: tuple[int, str]
    parts: dict[str, int]


def _need(bit: int, inventory: Inventory, counters: Counters) -> _Need | None:
    """None if the device does not fit."""
    if not counters.fits(bit):
        return None
    pool_device = inventory.devices[bit]
    use = pool_device.device.consumes[0]
    parts = {
        name: amount * _WHOLE // counters.left(pool_device.pool, (use.counter_set, name))
        for name, amount in use.counters
        if amount > 0
    }
    return _Need((pool_device.pool, use.counter_set), parts)


def _most(devices: list[dict[str, int]]) -> int:
    """An upper bound of the devices that fit: the smallest first, by each counter and by the sum of all."""
    names = {name for parts in devices for name in parts}
    bounds = [_fitting((parts.get(name, 0) for parts in devices), _WHOLE) for name in names]
    return min([*bounds, _fitting((sum(parts.values()) for parts in devices), _WHOLE * len(names))])


def _fitting(sizes: Iterable[int], room: int) -> int:
    count = 0
    for size in sorted(sizes):
        room -= size
        if room < 0:
            break
        count += 1
    return count
