"""Shared counters that cannot serve so many devices, whichever they are: told from sums, where trying every combination
would use up the budget and leave open whether one exists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from extender.allocation.counters import Counters
from extender.allocation.pools import Inventory
from extender.allocation.search_observer import Observer
from extender.model import Device, members

_WHOLE = 1 << 40  # what is left of one counter; what a device takes of it is rounded down, so that no bound is too low

Form = tuple[str, int, int]
"""A request's name, how many devices it needs, and those it may take, as a mask."""


def is_short(requests: Sequence[Sequence[Form]], inventory: Inventory, counters: Counters) -> bool:
    """Whether some request, in each of its alternative forms, or all requests together need more devices than can be taken."""
    everything, needed = 0, 0
    for forms in requests:
        if all(most_together(bits, inventory, counters) < count for _, count, bits in forms):
            return True
        needed += min(count for _, count, _ in forms)
        for _, _, bits in forms:
            everything |= bits
    return most_together(everything, inventory, counters) < needed


def most_together(devices: int, inventory: Inventory, counters: Counters) -> int:
    """An upper bound of how many of the devices can be taken together."""
    found = 0
    sets: dict[tuple[int, str], list[dict[str, int]]] = {}
    for bit in members(devices):
        place = inventory.places[bit]
        if not place.device.consumes:
            found += 1
        elif counters.fits(bit):
            first = place.device.consumes[0].counter_set
            sets.setdefault((place.pool, first), []).append(_parts(place.device, place.pool, counters))
    return found + sum(_most(devices) for devices in sets.values())


def report(requests: Sequence[Sequence[Form]], counters: Counters, observer: Observer) -> None:
    """Tell which devices are left over, and the counter that each lacks, once those before them are taken."""
    for forms in requests:
        name, _, bits = forms[-1]
        for bit in members(bits):
            short = counters.take(bit)
            if short:
                observer.rejected(name, bit, "counters", short)


def _parts(device: Device, pool: int, counters: Counters) -> dict[str, int]:
    """What a device takes of what is left of each counter of its first set, as parts of _WHOLE."""
    use = device.consumes[0]
    return {
        name: amount * _WHOLE // counters.left(pool, (use.counter_set, name))
        for name, amount in use.counters
        if amount > 0
    }


def _most(devices: list[dict[str, int]]) -> int:
    """How many of the smallest fit: into each counter, and into all of them in sum."""
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
