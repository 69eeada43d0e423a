"""A fast proof that shared counters cannot serve the requested number of devices.

It compares sums of counters. Without it, the search would try all combinations and use up its budget without a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from extender.allocation.counters import Counters
from extender.allocation.inventory import Inventory
from extender.allocation.search_observer import Observer
from extender.model import UNLIMITED, CallBudget, Device, members

_MOST_FORMS = 64  # alternatives of all requests; real pods have fewer, and each can need a bound of its own
_WHOLE = 1 << 40  # parts of one counter; the parts of a device are rounded down, so that no bound is too low

Form = tuple[str, int, int]
"""(name of the request, number of devices, mask of the devices that it may have)."""


def is_short(
    requests: Sequence[Sequence[Form]], inventory: Inventory, counters: Counters, budget: CallBudget = UNLIMITED
) -> bool:
    """Whether the counters cannot serve some request in any of its forms, or all requests together.

    With more than _MOST_FORMS alternatives, only all requests together.
    False does not mean that a solution exists. Raises CallBudgetSpent.
    """
    few = sum(map(len, requests)) <= _MOST_FORMS
    known: dict[int, int] = {}

    def most(bits: int) -> int:
        if bits not in known:
            budget.check()
            known[bits] = most_together(bits, inventory, counters)
        return known[bits]

    everything, needed = 0, 0
    for forms in requests:
        if few and all(most(bits) < count for _, count, bits in forms):
            return True
        needed += min(count for _, count, _ in forms)
        for _, _, bits in forms:
            everything |= bits
    return most(everything) < needed


def most_together(devices: int, inventory: Inventory, counters: Counters) -> int:
    """An upper bound of the number of these devices that can be allocated together."""
    found = 0
    sets: dict[tuple[int, str], list[dict[str, int]]] = {}
    for bit in members(devices):
        pool_device = inventory.devices[bit]
        if not pool_device.device.consumes:
            found += 1
        elif counters.fits(bit):
            first = pool_device.device.consumes[0].counter_set
            sets.setdefault((pool_device.pool, first), []).append(
                _parts(pool_device.device, pool_device.pool, counters)
            )
    return found + sum(_most(devices) for devices in sets.values())


def report(requests: Sequence[Sequence[Form]], counters: Counters, observer: Observer) -> None:
    """Take the devices in order, and report each device that does not fit with the counter that it lacks.

    Only of the first _MOST_FORMS requests: the reason names one.
    """
    for forms in requests[:_MOST_FORMS]:
        name, _, bits = forms[-1]
        for bit in members(bits):
            short = counters.take(bit)
            if short:
                observer.rejected(name, bit, "counters", short)


def _parts(device: Device, pool: int, counters: Counters) -> dict[str, int]:
    """The amount that a device consumes of each counter of its first set: counter to parts of _WHOLE."""
    use = device.consumes[0]
    return {
        name: amount * _WHOLE // counters.left(pool, (use.counter_set, name))
        for name, amount in use.counters
        if amount > 0
    }


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
