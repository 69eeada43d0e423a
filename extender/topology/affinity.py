"""Devices of different drivers near each other: which GPU works with which NIC, and which sets of both are near.

The devices of one driver among those of a pod are its anchors: its GPUs, if it has any. The devices of each other
driver are joined to the anchors in pairs. With as many devices as anchors, each device is in one pair. With fewer, a
device is in several pairs; with more, an anchor is.

A set of devices is better the more of its pairs are on one PCIe root; among equal ones, the more are on one NUMA node.
`pair_up` finds the best pairs of given devices (the assignment problem, solved by the Hungarian method). `Together`
finds the best devices: it takes the sets of anchors that the caller prefers, and gives each the nearest other devices.
It looks at a set only while its bound, every anchor with its own nearest device, is above the best set found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from extender.allocation.nodes import Nearness, Places
from extender.base.bits import members
from extender.vendors import GPU, NIC, driver_of

_WEIGHT = {Nearness.ROOT: 64 * 64, Nearness.NUMA: 64, Nearness.NUMA_LIST: 1}  # a claim has at most 32 devices
_TIE = 4096  # a weight counts so much more than the wish to leave a device to others
_MOST_TABLES = 64  # tables of weights in the cache; a fleet has a few dozen kinds of machines
_MOST_WORK = 200_000  # steps of assignments for the devices of one node, some 30 ms; 4 GPUs and 4 NICs of 8 need 40,000
_DIGITS = re.compile(r"([0-9]{1,9})$")


class Pair(NamedTuple):
    """Two devices of different drivers that work together, as device bits. The first one is an anchor."""

    anchor: int
    other: int
    nearness: Nearness


class Slot(NamedTuple):
    """A device that a pod asks for: position of the claim, names of claim and request, devices that it could be."""

    claim: int
    claim_name: str
    request: str
    eligible: int


class Choice(NamedTuple):
    """Devices for all slots: anchors, and the devices of each other driver in the order of their pairs."""

    value: int
    anchors: list[int]
    others: list[list[int]]


@lru_cache(_MOST_TABLES)
def _weights(places: Places) -> tuple[tuple[int, ...], ...]:
    """The weight of each pair of device bits."""
    bits = range(len(places.roots))
    return tuple(tuple(_WEIGHT.get(places.nearness(a, b), 0) for b in bits) for a in bits)


@lru_cache(_MOST_TABLES)
def nearest(places: Places) -> Mapping[tuple[str, str], Nearness]:
    """How near the devices of two drivers are at best on a node with these places, by both names, sorted."""
    kinds = [(driver, members(mask)) for driver, mask in places.kinds]
    return {
        (a, b): max(places.nearness(one, other) for one in ours for other in theirs)
        for position, (a, ours) in enumerate(kinds)
        for b, theirs in kinds[position + 1 :]
    }


def pair_up(places: Places, anchors: Sequence[int], others: Sequence[int]) -> list[Pair]:
    """The best pairs of these devices; each device is in at least one pair. None without anchors or others."""
    if not anchors or not others:
        return []
    weights = _weights(places)
    many, few = (anchors, others) if len(anchors) >= len(others) else (others, anchors)
    columns = list(few) * -(-len(many) // len(few))
    partners = _assigned([[weights[row][column] for column in columns] for row in many])
    pairs = [(row, columns[found]) for row, found in zip(many, partners, strict=True)]
    pairs = pairs if many is anchors else [(anchor, other) for other, anchor in pairs]
    return [Pair(anchor, other, places.nearness(anchor, other)) for anchor, other in sorted(pairs)]


def anchor_of(drivers: Iterable[str]) -> str:
    """The driver whose devices are the anchors: one of GPUs, else of NICs, else the first by name."""
    return min(drivers, key=lambda driver: (driver_of(driver).kind != GPU, driver_of(driver).kind != NIC, driver))


def pairs_of(places: Places | None, devices: int) -> list[Pair]:
    """The pairs among the chosen devices, a mask; none if they are all of one driver."""
    kinds = {driver: members(devices & mask) for driver, mask in places.kinds if devices & mask} if places else {}
    if places is None or len(kinds) < 2:  # noqa: PLR2004 - affinity is between two kinds of devices
        return []
    anchors = kinds.pop(anchor_of(kinds))
    return [pair for others in kinds.values() for pair in pair_up(places, anchors, others)]


class Together:
    """Chooses the devices for the slots of a pod, by driver: near anchors, and for each the nearest others."""

    def __init__(self, places: Places, anchors: Sequence[Slot], others: Sequence[Sequence[Slot]], avoided: int) -> None:
        """`avoided` is a mask of devices that come last among equal ones."""
        self._places, self._weights = places, _weights(places)
        self._anchors = _in_order(anchors)
        self._others = [_in_order(slots) for slots in others]
        self._avoided = avoided
        self._free_anchors = members(_union(anchors))
        self._free = [members(_union(slots)) for slots in others]
        self._best = {anchor: self._best_weight(anchor) for anchor in self._free_anchors}
        self._work = _MOST_WORK

    def choices(self, sets: Sequence[int]) -> Iterator[Mapping[tuple[int, str], int]]:
        """Devices by claim and request, the nearest first; `sets` are masks of anchors, equal ones in this order."""
        waiting: list[tuple[int, int, Choice | None]] = [
            (-sum(self._best[anchor] for anchor in members(mask)), index, None) for index, mask in enumerate(sets)
        ]
        heapify(waiting)
        while waiting:
            _, index, choice = waiting[0]
            if choice is None and self._work > 0:
                found = self._choice(members(sets[index]))
                heapreplace(waiting, (-found.value, index, found))
                continue
            heappop(waiting)
            masks = self._masks(choice) if choice is not None else None
            if masks is not None:
                yield masks

    def _best_weight(self, anchor: int) -> int:
        """A bound: the weights of the best pairs that the anchor can have."""
        found = 0
        for slots, free in zip(self._others, self._free, strict=True):
            each = -(-len(slots) // len(self._anchors))
            found += sum(sorted((self._weights[anchor][other] for other in free), reverse=True)[:each])
        return found

    def _choice(self, anchors: list[int]) -> Choice:
        value, chosen = 0, []
        for slots, free in zip(self._others, self._free, strict=True):
            others = self._nearest_others(anchors, slots, free)
            value += sum(_WEIGHT.get(pair.nearness, 0) for pair in pair_up(self._places, anchors, others))
            chosen.append(others)
        return Choice(value, anchors, chosen)

    def _nearest_others(self, anchors: list[int], slots: list[Slot], free: list[int]) -> list[int]:
        """One device per slot, near the anchors; fewer if there are too few."""
        left = self._left_to_others(anchors, free)
        if len({slot.eligible for slot in slots}) > 1:
            return self._for_different_slots(anchors, slots, free, left)
        if len(slots) < len(anchors):
            return self._serving_several(anchors, len(slots), free, left)
        each = -(-len(slots) // len(anchors))
        rows = [anchor for anchor in anchors for _ in range(each)][: len(slots)]
        return self._assigned(rows, [[self._weights[a][b] * _TIE - left[b] for b in free] for a in rows], free)

    def _for_different_slots(
        self, anchors: list[int], slots: list[Slot], free: list[int], left: Mapping[int, int]
    ) -> list[int]:
        """The same if the slots do not accept the same devices: each slot gets one that is near some anchor."""
        best = {b: max(self._weights[a][b] for a in anchors) for b in free}
        none = -len(slots) * _TIE * _TIE  # less than any sum of the others
        table = [[best[b] * _TIE - left[b] if slot.eligible >> b & 1 else none for b in free] for slot in slots]
        return self._assigned([0] * len(slots), table, free)

    def _serving_several(self, anchors: list[int], count: int, free: list[int], left: Mapping[int, int]) -> list[int]:
        """Fewer devices than anchors: one after the other, each near most of the anchors that have none yet."""
        found: list[int] = []
        waiting, each = list(anchors), -(-len(anchors) // count)
        for _ in range(min(count, len(free))):
            served = {b: self._served(b, waiting, each) for b in free if b not in found}
            best = max(served, key=lambda b: (sum(self._weights[a][b] for a in served[b]) * _TIE - left[b], -b))
            found.append(best)
            waiting = [anchor for anchor in waiting if anchor not in served[best]]
        return found

    def _served(self, other: int, waiting: list[int], most: int) -> list[int]:
        """The anchors that a device would serve: the nearest ones."""
        return sorted(waiting, key=lambda anchor: -self._weights[anchor][other])[:most]

    def _left_to_others(self, anchors: list[int], free: list[int]) -> dict[int, int]:
        """How much each device is wanted elsewhere: by free anchors on its PCIe root. One to avoid counts more."""
        rest = [anchor for anchor in self._free_anchors if anchor not in anchors]
        near = _WEIGHT[Nearness.ROOT]
        wanted = {b: sum(self._weights[a][b] == near for a in rest) for b in free}
        return {b: wanted[b] + (self._avoided >> b & 1) * len(self._weights) for b in free}

    def _assigned(self, rows: list[int], table: list[list[int]], free: list[int]) -> list[int]:
        """The devices that the rows get; [] if there are too few."""
        if len(rows) > len(free):
            return []
        self._work -= len(rows) * len(rows) * len(free)
        return [free[column] for column in _assigned(table)]

    def _masks(self, choice: Choice) -> Mapping[tuple[int, str], int] | None:
        """The devices by request; None if the slots cannot have them."""
        found: dict[tuple[int, str], int] = {}
        places = self._in_slots(choice)
        if places is None:
            return None
        for slot, bit in places:
            if slot.eligible >> bit & 1 == 0:
                return None
            found[slot.claim, slot.request] = found.get((slot.claim, slot.request), 0) | 1 << bit
        return found

    def _in_slots(self, choice: Choice) -> list[tuple[Slot, int]] | None:
        """Each device with a slot that accepts it. A pair gets slots that belong together, where that is possible."""
        found: list[tuple[Slot, int]] = []
        order = _slots_for(choice.anchors, self._anchors)
        if order is None:
            return None
        found += [(self._anchors[slot], anchor) for anchor, slot in zip(choice.anchors, order, strict=True)]
        for slots, others in zip(self._others, choice.others, strict=True):
            if len(others) < len(slots):
                return None
            is_counted = slots[0].request == slots[-1].request and slots[0].claim == slots[-1].claim
            wanted = others if is_counted else self._in_pairs(choice.anchors, order, others)
            if not all(_accepts(slot, bit) for slot, bit in zip(slots, wanted, strict=True)):
                accepted = _slots_for(others, slots)
                if accepted is None:
                    return None
                wanted = [bit for _, bit in sorted(zip(accepted, others, strict=True))]
            found += zip(slots, wanted, strict=True)
        return found

    def _in_pairs(self, anchors: list[int], order: list[int], others: list[int]) -> list[int]:
        """The other devices in the order of the slots of their anchors."""
        slot_of = dict(zip(anchors, order, strict=True))
        pairs = sorted((slot_of[pair.anchor], pair.other) for pair in pair_up(self._places, anchors, others))
        return list(dict.fromkeys([*(other for _, other in pairs), *others]))


def _accepts(slot: Slot, bit: int) -> bool:
    return bool(slot.eligible >> bit & 1)


def _union(slots: Iterable[Slot]) -> int:
    found = 0
    for slot in slots:
        found |= slot.eligible
    return found


def _in_order(slots: Sequence[Slot]) -> list[Slot]:
    """The slots by the number at the end of their names if each has its own (gpu-0, gpu-1), else in the given order."""
    numbers = [_DIGITS.search(slot.request) or _DIGITS.search(slot.claim_name) for slot in slots]
    if any(number is None for number in numbers) or len({int(n[1]) for n in numbers if n}) < len(slots):
        return list(slots)
    return [slot for _, slot in sorted(zip([int(n[1]) for n in numbers if n], slots, strict=True))]


def _slots_for(devices: list[int], slots: list[Slot]) -> list[int] | None:
    """The position of a slot for each device that accepts it; None if there are no such slots for all of them."""
    if len({slot.eligible for slot in slots}) == 1:
        return list(range(len(devices)))
    slot_of: dict[int, int] = {}  # slot to device

    def place(device: int, seen: set[int]) -> bool:
        accepted = [i for i, slot in enumerate(slots) if i not in seen and _accepts(slot, devices[device])]
        for slot in sorted(accepted, key=lambda slot: slot in slot_of):
            seen.add(slot)
            if slot not in slot_of or place(slot_of[slot], seen):
                slot_of[slot] = device
                return True
        return False

    if not all(place(device, set()) for device in range(len(devices))):
        return None
    return [slot for _, slot in sorted((device, slot) for slot, device in slot_of.items())]


def _assigned(table: list[list[int]]) -> list[int]:
    """The column of each row, so that the sum of the entries is the largest. There are at least as many columns.

    The Hungarian method with potentials (Kuhn 1955, Jonker and Volgenant 1987).
    """
    columns = len(table[0])
    row_of = [-1] * (columns + 1)  # the last column is the virtual start of each path
    potential, offset = [0] * len(table), [0] * (columns + 1)
    for row in range(len(table)):
        row_of[columns] = row
        at, slack, way, done = columns, [_FAR_AWAY] * columns, [columns] * columns, [False] * (columns + 1)
        while row_of[at] >= 0:
            done[at] = True
            entries, base = table[row_of[at]], potential[row_of[at]]
            step, ahead = _FAR_AWAY, -1
            for column in range(columns):
                if done[column]:
                    continue
                cost = -entries[column] - base - offset[column]
                if cost < slack[column]:
                    slack[column], way[column] = cost, at
                if slack[column] < step:
                    step, ahead = slack[column], column
            for column in range(columns):
                if done[column]:
                    potential[row_of[column]] += step
                    offset[column] -= step
                else:
                    slack[column] -= step
            potential[row] += step
            at = ahead
        while at != columns:
            row_of[at] = row_of[way[at]]
            at = way[at]
    column_of = {row: column for column, row in enumerate(row_of[:columns]) if row >= 0}
    return [column_of[row] for row in range(len(table))]


_FAR_AWAY = 1 << 62
