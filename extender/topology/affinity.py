"""Devices of different drivers near each other: which GPU works with which NIC, and which sets of both are near.

The devices of one driver among those of a pod are its anchors: its GPUs, if it has any. The devices of each other
driver are joined to the anchors in pairs. With as many devices as anchors, each device is in one pair. With fewer, a
device is in several pairs; with more, an anchor is. Of these devices, none is in more pairs than another, but for one.

A set of devices is better the more of its pairs are on one PCIe root; among equal ones, the more are on one NUMA node.
`pair_up` finds the best pairs of given devices (the assignment problem, solved by the Hungarian method). `Together`
finds the best devices: it takes the sets of anchors that the caller prefers, and gives each the nearest other devices.
It looks at a set only while its bound, every anchor with its own nearest device, is above the best set found.

With at least as many other devices as anchors, the devices for a set of anchors are an assignment, too. Fewer devices
are chosen one after the other, and exchanged until that brings nothing.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heapreplace
from types import MappingProxyType
from typing import NamedTuple

from extender.allocation.nodes.locality import Locality, Nearness
from extender.base.bits import lowest, members, union
from extender.vendors import GPU, NIC, driver_of

# A claim has at most 32 devices, so one nearer pair counts more than all pairs that are less near. Below the weights
# there is room for the number of devices that have some near pair: of equal sums, the one that serves more of them.
_WEIGHT = {Nearness.ROOT: 64**4, Nearness.NUMA: 64**3, Nearness.NUMA_LIST: 64**2, Nearness.UNKNOWN: 64, Nearness.FAR: 0}
_NEAR = _WEIGHT[Nearness.NUMA]
_TIE = 4096  # a weight counts so much more than that a device is left to others
_MUST = 1 << 50  # more than all weights together: of an entry that must be in the assignment
_NEVER = -(1 << 58)  # of an entry that must not be in the assignment
_MAX_PAIRED = 2048  # pairs of two sets of devices in the cache, of at most 5 KiB
_MAX_SETS = 2048  # sets of anchors in the cache, of 1 KiB at most
_MAX_TABLES = 64  # tables of weights in the cache; a fleet has a few dozen kinds of machines
_MAX_WORK = 150_000  # steps of assignments for the devices of one node, some 25 ms; 4 GPUs and 4 NICs of 8 need 15,000


class Pair(NamedTuple):
    """Two devices of different drivers that work together, as device bits. The first one is an anchor."""

    anchor: int
    other: int
    nearness: Nearness


class Choice(NamedTuple):
    """A device for each slot, and the sum of the weights of their pairs."""

    value: int
    placed: tuple[tuple[Slot, int], ...]


_Table = tuple[tuple[int, ...], ...]


class _Weights(NamedTuple):
    """The weight of each pair of device bits; in an assignment, for the first and for further pairs of a device."""

    pairs: _Table
    first: _Table
    further: _Table


@lru_cache(_MAX_TABLES)
def _weights(locality: Locality) -> _Weights:
    bits = range(len(locality.roots))
    pairs = tuple(tuple(_WEIGHT[locality.nearness(a, b)] for b in bits) for a in bits)
    first = tuple(tuple((weight + (weight >= _NEAR)) * _TIE for weight in row) for row in pairs)
    return _Weights(pairs, first, tuple(tuple(weight * _TIE for weight in row) for row in pairs))


@lru_cache(_MAX_TABLES)
def nearest(locality: Locality, possible: int = -1) -> Mapping[tuple[str, str], Nearness]:
    """How near the `possible` devices of two drivers are at best with this locality, by both names, sorted."""
    kinds = [(driver, members(mask & possible)) for driver, mask in locality.kinds if mask & possible]
    return {
        (a, b): max(locality.nearness(one, other) for one in ours for other in theirs)
        for position, (a, ours) in enumerate(kinds)
        for b, theirs in kinds[position + 1 :]
    }


@lru_cache(_MAX_SETS)  # many nodes of a kind have the same sets of free GPUs
def _bits_of(mask: int) -> list[int]:
    """`members`, as a list that nobody changes."""
    return members(mask)


@lru_cache(_MAX_PAIRED)  # many nodes of a kind pair the same devices
def pair_up(locality: Locality, anchors: tuple[int, ...], others: tuple[int, ...]) -> tuple[Pair, ...]:
    """The best pairs of these devices; each device is in at least one pair. None without anchors or others."""
    if not anchors or not others:
        return ()
    if len(anchors) <= len(others):
        pairs = _spread(_weights(locality), anchors, others, len(others))
    else:
        pairs = [(anchor, other) for other, anchor in _spread(_weights(locality), others, anchors, len(anchors))]
    return tuple(Pair(anchor, other, locality.nearness(anchor, other)) for anchor, other in sorted(pairs))


def _spread(
    weights: _Weights,
    few: Sequence[int],
    many: Sequence[int],
    count: int,
    left: Mapping[int, int] = MappingProxyType({}),
    kept: Container[int] = (),
) -> list[tuple[int, int]]:
    """The best pairs of all of `few` with `count` of `many`, each of these in one pair, at least as many as the few.

    `left` is what speaks against each of the many among equal ones; those in `kept` are in a pair whatever it is.
    """
    each, rest = divmod(count, len(few))
    idle = len(few) - rest if rest else 0  # of the few: they get one less than the others
    against = [_MUST * (other in kept) - left.get(other, 0) for other in many]
    table = list[list[int]]()
    for copy in range(each + (rest > 0)):
        unused, rows = [_MUST if copy == each else _NEVER] * idle, weights.further if copy else weights.first
        for bit in few:
            row = rows[bit]
            table.append([row[other] + more for other, more in zip(many, against, strict=True)] + unused)
    return [(few[row % len(few)], many[column]) for row, column in enumerate(assigned(table)) if column < len(many)]


def anchor_of(drivers: Iterable[str]) -> str:
    """The driver whose devices are the anchors: one of GPUs, else of NICs, else the first by name."""
    return min(drivers, key=lambda driver: (driver_of(driver).kind != GPU, driver_of(driver).kind != NIC, driver))


def pairs_of(locality: Locality | None, devices: int) -> list[Pair]:
    """The pairs among the chosen devices, a mask; none if they are all of one driver."""
    known = locality.kinds if locality else ()
    kinds = {driver: tuple(members(devices & mask)) for driver, mask in known if devices & mask}
    if locality is None or len(kinds) < 2:  # noqa: PLR2004 - affinity is between two kinds of devices
        return []
    anchors = kinds.pop(anchor_of(kinds))
    return [pair for others in kinds.values() for pair in pair_up(locality, anchors, others)]


def near_pairs(locality: Locality | None, devices: int, possible: int = -1) -> tuple[int, int]:
    """(pairs among the devices of a mask that are as near as the node allows, the most of so many devices that can be).

    `possible` are the devices that the pod may have: others set no standard. Pairs of drivers whose locality cannot be
    compared do not count.
    """
    near, most = 0, 0
    if locality is None:
        return near, most
    possible |= devices
    best, pairs = nearest(locality, possible), pairs_of(locality, devices)
    for driver in {locality.kind(pair.other) for pair in pairs}:
        own = [pair for pair in pairs if locality.kind(pair.other) == driver]
        first, second = sorted((locality.kind(own[0].anchor), driver))
        if (level := best[first, second]) > Nearness.UNKNOWN:
            sides = {pair.anchor for pair in own}, {pair.other for pair in own}
            found = sum(pair.nearness == level for pair in own)
            near += found
            few, many = sorted((len(side), locality.kind(min(side))) for side in sides)
            most += max(_most_near(locality, level, few, many, possible), found)
    return near, most


@lru_cache(_MAX_TABLES)
def _most_near(locality: Locality, level: Nearness, few: tuple[int, str], many: tuple[int, str], possible: int) -> int:
    """The most pairs of a level among so many devices of two drivers, if all possible ones of the node were free.

    Each of the many is in one pair. The few are chosen one after the other, each where most of the many are near: of
    devices on PCIe roots or NUMA nodes, there is no better choice.
    """
    (count, one), (pairs, other), kinds = few, many, dict(locality.kinds)
    left, found, own = kinds[other] & possible, 0, members(kinds[one] & possible)
    beside = [union([1 << b for b in members(left) if locality.nearness(a, b) == level]) for a in own]
    each, rest = divmod(pairs, count)
    for position in range(count):
        best = max(beside, key=lambda mask: (mask & left).bit_count())
        beside.remove(best)
        served = members(best & left)[: each + (position < rest)]
        left &= ~union([1 << bit for bit in served])
        found += len(served)
    return found


class Together:
    """Chooses the devices for the slots of a pod, by driver: near anchors, and for each the nearest others."""

    def __init__(
        self,
        locality: Locality,
        anchors: Sequence[Slot],
        others: Sequence[Sequence[Slot]],
        avoided: int,
        share: int = 1,
    ) -> None:
        """`avoided` is a mask of devices that come last among equal ones; 1/`share` of the work is for this object."""
        self._locality, self._tables = locality, _weights(locality)
        self._weights = self._tables.pairs
        self._anchors = in_order(anchors)
        self._others = [in_order(slots) for slots in others]
        self._avoided = avoided
        self._own_anchors = union([slot.eligible for slot in anchors if slot.is_own])
        self._equal = [_are_equal(slots) for slots in others]
        self._free_anchors = members(_union(anchors))
        self._free = [members(_union(slots)) for slots in others]
        # Of each anchor, by driver of the others; `bound` is what all its pairs are worth at best.
        self._ends = [self._best_of(slots, free) for slots, free in zip(self._others, self._free, strict=True)]
        self.bound = {a: sum(most[a][0] + most[a][1] for most in self._ends) for a in self._free_anchors}
        # Whether all anchors are in equally many pairs: then the bounds of the anchors add up to that of a set.
        self._whole = not any(len(slots) % len(anchors) for slots in others)
        self._work = _MAX_WORK // share

    def choices(self, sets: Sequence[int]) -> Iterator[Choice]:
        """Devices for all slots, the nearest first; `sets` are masks of anchors, equal ones in this order.

        Anchors that the pod has already are added to each set.
        """
        anchors = [_bits_of(mask | self._own_anchors) for mask in sets]
        waiting: list[tuple[int, int, Choice | None]] = [
            (-self._bound_of(one), index, None) for index, one in enumerate(anchors)
        ]
        heapify(waiting)
        while waiting:
            _, index, choice = waiting[0]
            if choice is None and self._work > 0 and (found := self._choice(anchors[index])) is not None:
                heapreplace(waiting, (-found.value, index, found))
                continue
            heappop(waiting)
            if choice is not None:
                yield choice

    def growing(self, anchors: int, others: int) -> Iterator[int]:
        """Masks of `others`: first those near one of these anchors, then more, at last all."""
        bits, every = members(anchors | self._own_anchors), union([1 << bit for free in self._free for bit in free])
        for least in (Nearness.ROOT, Nearness.NUMA, Nearness.NUMA_LIST):
            near = [b for b in members(every) if any(self._locality.nearness(a, b) >= least for a in bits)]
            yield others & ~every | union([1 << bit for bit in near])
        yield others

    def _best_of(self, slots: list[Slot], free: list[int]) -> dict[int, tuple[int, int]]:
        """What the best pairs of each anchor are worth: those that all anchors have, and one more if some have that."""
        each, rest = divmod(max(len(slots), len(self._anchors)), len(self._anchors))
        found = {}
        for anchor in self._free_anchors:
            ranked = sorted([self._weights[anchor][other] for other in free], reverse=True)
            further = ranked[each] if rest and len(ranked) > each else 0
            found[anchor] = sum(ranked[:each]) + (ranked[0] >= _NEAR), further
        return found

    def _bound_of(self, anchors: list[int]) -> int:
        """At least the value of the best choice for these anchors."""
        if self._whole:
            return sum([self.bound[anchor] for anchor in anchors])
        return sum(self._bound(anchors, driver) for driver in range(len(self._others)))

    def _bound(self, anchors: list[int], driver: int) -> int:
        """At least the value of the best choice of devices of one driver, given by its position, for these anchors."""
        count, ends = len(self._others[driver]), self._ends[driver]
        found = sum(ends[anchor][0] for anchor in anchors)
        if count >= len(anchors):
            rest = count % len(anchors)
            return found + (sum(sorted((ends[anchor][1] for anchor in anchors), reverse=True)[:rest]) if rest else 0)
        each, rest = divmod(len(anchors), count)
        ranked = [sorted((self._weights[bit][a] for a in anchors), reverse=True) for bit in self._free[driver]]
        pairs = sorted((sum(one[:each]) + (one[0] >= _NEAR) for one in ranked), reverse=True)[:count]
        further = sorted((one[each] for one in ranked), reverse=True)[:rest] if rest else []
        return min(found, sum(pairs) + sum(further))

    def _choice(self, anchors: list[int]) -> Choice | None:
        """The nearest devices for these anchors; None if the slots cannot have them."""
        order = slots_for(anchors, self._anchors)
        if order is None:
            return None
        placed = [anchor for _, anchor in sorted(zip(order, anchors, strict=True))]
        moved, value, chosen = False, 0, list[tuple[list[int], tuple[Pair, ...]]]()
        for driver, slots in enumerate(self._others):
            others = self._nearest(placed, driver)
            if len(others) < len(slots):
                return None
            pairs = self._pairs(placed, others)
            value += self._value(pairs)
            if not moved and not self._equal[driver]:
                placed = self._beside(placed, others) or placed
                moved = True  # now the anchors belong to these slots
            chosen.append((others, pairs))
        found = list(zip(self._anchors, placed, strict=True))
        for slots, equal, (others, pairs) in zip(self._others, self._equal, chosen, strict=True):
            found += zip(slots, self._in_pairs(placed, pairs, slots) if equal else others, strict=True)
        return Choice(value, tuple((slot, bit) for slot, bit in found if not slot.is_own))

    def _nearest(self, anchors: list[int], driver: int) -> list[int]:
        """A device for each slot of a driver, in the order of the slots; [] if there are too few."""
        slots, free = self._others[driver], self._free[driver]
        if len(free) < len(slots):
            return []
        if len(slots) < len(anchors):
            first = self._serving_several(anchors, slots, free)
            return self._exchanged(anchors, first, driver) if first else []
        left = self._left_to_others(anchors, free)
        if not self._equal[driver]:
            return self._of_slots(anchors, slots, free, left)
        own = [lowest(slot.eligible) for slot in slots if slot.is_own]
        self._work -= len(slots) * len(slots) * len(free)
        chosen = [other for _, other in _spread(self._tables, anchors, free, len(slots), left, own)]
        return [*(bit for bit in chosen if bit not in own), *own]

    def _of_slots(self, anchors: list[int], slots: list[Slot], free: list[int], left: Mapping[int, int]) -> list[int]:
        """The devices for slots that accept different ones; [] if there is none for some slot.

        One assignment in two steps: a slot gets a device, or rather its column. The row of this device then gets an
        anchor; the rows of the other devices get their own columns, and further rows what some anchors have less.
        """
        each, rest = divmod(len(slots), len(anchors))
        copies = [(anchor, copy) for copy in range(each + (rest > 0)) for anchor in anchors]
        table = [[0 if slot.accepts(bit) else _NEVER for bit in free] + [_NEVER] * len(copies) for slot in slots]
        for bit in free:
            weights = [self._weights[anchor][bit] for anchor, _ in copies]
            table.append(
                [0 if one == bit else _NEVER for one in free]
                + [
                    (weight + (not copy and weight >= _NEAR)) * _TIE - left[bit] + (_MUST if copy < each else 0)
                    for weight, (_, copy) in zip(weights, copies, strict=True)
                ]
            )
        idle = [_NEVER] * len(free) + [0 if copy == each else _NEVER for _, copy in copies]
        table += [idle] * (len(copies) - len(slots))
        self._work -= len(table) * len(table) * len(slots)
        found = [free[column] for column in assigned(table)[: len(slots)] if column < len(free)]
        accepted = len(found) == len(slots) and all(s.accepts(b) for s, b in zip(slots, found, strict=True))
        return found if accepted else []

    def _serving_several(self, anchors: list[int], slots: list[Slot], free: list[int]) -> list[int]:
        """Fewer devices than anchors: slot after slot, each near most of the anchors that have none yet."""
        left, each = self._left_to_others(anchors, free), -(-len(anchors) // len(slots))
        waiting, chosen = list(anchors), dict[int, int]()
        order = sorted(enumerate(slots), key=lambda one: one[1].eligible.bit_count())
        for position, slot in order:
            served = {b: self._served(b, waiting, each) for b in free if slot.accepts(b) and b not in chosen.values()}
            if not served:
                return []
            best = max(served, key=lambda b: (sum(self._weights[a][b] for a in served[b]) * _TIE - left[b], -b))
            chosen[position] = best
            waiting = [anchor for anchor in waiting if anchor not in served[best]]
        return [bit for _, bit in sorted(chosen.items())]

    def _served(self, other: int, waiting: list[int], most: int) -> list[int]:
        """The anchors that a device would serve: the nearest ones."""
        return sorted(waiting, key=lambda anchor: -self._weights[anchor][other])[:most]

    def _exchanged(self, anchors: list[int], others: list[int], driver: int) -> list[int]:
        """The devices, with single ones exchanged for others as long as that brings nearer pairs."""
        slots, free = self._others[driver], self._free[driver]
        best, most = self._value(self._pairs(anchors, others)), self._bound(anchors, driver)
        improved = True
        while improved and best < most:
            improved = False
            for position, slot in enumerate(slots):
                for bit in free:
                    if bit in others or not slot.accepts(bit) or best >= most or self._work <= 0:
                        continue
                    tried = [*others[:position], bit, *others[position + 1 :]]
                    value = self._value(self._pairs(anchors, tried))
                    if value > best:
                        others, best, improved = tried, value, True
        return others

    def _beside(self, anchors: list[int], others: list[int]) -> list[int]:
        """The anchor of each device, in the order of the slots; [] if the slots of the anchors accept no such order."""
        if len(others) != len(anchors):
            return []
        rows = zip(self._anchors, others, strict=True)
        found = assigned([[self._weights[a][b] if slot.accepts(a) else _NEVER for a in anchors] for slot, b in rows])
        moved = [anchors[column] for column in found]
        return moved if all(slot.accepts(a) for slot, a in zip(self._anchors, moved, strict=True)) else []

    def _pairs(self, anchors: list[int], others: list[int]) -> tuple[Pair, ...]:
        many = max(len(anchors), len(others))
        self._work -= many * many * many  # `pair_up` assigns as many rows, and has about as many columns
        return pair_up(self._locality, tuple(anchors), tuple(others))

    def _value(self, pairs: tuple[Pair, ...]) -> int:
        """The weights of the pairs, and how many of those devices that may be in several have a near one."""
        near = [pair for pair in pairs if pair.nearness >= Nearness.NUMA]
        served = min(len({pair.anchor for pair in near}), len({pair.other for pair in near}))
        return sum(self._weights[pair.anchor][pair.other] for pair in pairs) + served

    def _left_to_others(self, anchors: list[int], free: list[int]) -> dict[int, int]:
        """How much each device is wanted elsewhere: by free anchors on its PCIe root. One to avoid counts more."""
        rest = [anchor for anchor in self._free_anchors if anchor not in anchors]
        near = _WEIGHT[Nearness.ROOT]
        rows, most = [self._weights[anchor] for anchor in rest], len(self._weights)
        return {b: sum([row[b] == near for row in rows]) + (self._avoided >> b & 1) * most for b in free}

    def _in_pairs(self, anchors: list[int], pairs: tuple[Pair, ...], slots: list[Slot]) -> list[int]:
        """The other devices in the order of the slots of their anchors; those that the pod has already come last."""
        own = _union(slot for slot in slots if slot.is_own)
        position = {anchor: slot for slot, anchor in enumerate(anchors)}
        in_order_of_slots = sorted((position[pair.anchor], pair.other) for pair in pairs)
        ordered = dict.fromkeys(other for _, other in in_order_of_slots if not own >> other & 1)
        return [*ordered, *members(own)]


def _are_equal(slots: Iterable[Slot]) -> bool:
    """Whether all slots for devices to choose accept the same ones."""
    return len({slot.eligible for slot in slots if not slot.is_own}) <= 1


def _union(slots: Iterable[Slot]) -> int:
    return union([slot.eligible for slot in slots])


# -- requests in the order in which their devices belong together, and the assignment problem --------------------

_DIGITS = re.compile(r"([0-9]{1,9})$")
_FAR_AWAY = 1 << 80


class Slot(NamedTuple):
    """A device that a pod asks for: position of the claim, names of claim and request, devices that it could be.

    Or one that the pod has already: position -1, and this device.
    """

    claim: int
    claim_name: str
    request: str
    eligible: int

    @property
    def is_own(self) -> bool:
        """Whether the pod has the device already."""
        return self.claim < 0

    def accepts(self, bit: int) -> bool:
        """Whether the slot could have the device at a bit."""
        return bool(self.eligible >> bit & 1)


def own_slot(bit: int) -> Slot:
    """The slot of a device that the pod has already."""
    return Slot(-1, "", "", 1 << bit)


def in_order(slots: Sequence[Slot]) -> list[Slot]:
    """The slots by the number at the end of their names if each has its own (gpu-0, gpu-1), else in the given order.

    Devices that the pod has already come last.
    """
    own = [slot for slot in slots if slot.is_own]
    asked = [slot for slot in slots if not slot.is_own] if own else list(slots)
    numbers = [_DIGITS.search(slot.request) or _DIGITS.search(slot.claim_name) for slot in asked]
    if any(number is None for number in numbers) or len({int(n[1]) for n in numbers if n}) < len(asked):
        return [*asked, *own]
    return [*(slot for _, slot in sorted(zip([int(n[1]) for n in numbers if n], asked, strict=True))), *own]


def slots_for(devices: list[int], slots: list[Slot]) -> list[int] | None:
    """The position of a slot for each device that accepts it; None if there are no such slots for all of them."""
    if len({slot.eligible for slot in slots}) == 1:
        return list(range(len(devices)))
    slot_of: dict[int, int] = {}  # slot to device

    def place(device: int, seen: set[int]) -> bool:
        accepted = [i for i, slot in enumerate(slots) if i not in seen and slot.accepts(devices[device])]
        for slot in sorted(accepted, key=lambda slot: slot in slot_of):
            seen.add(slot)
            if slot not in slot_of or place(slot_of[slot], seen):
                slot_of[slot] = device
                return True
        return False

    if not all(place(device, set()) for device in range(len(devices))):
        return None
    return [slot for _, slot in sorted((device, slot) for slot, device in slot_of.items())]


def assigned(table: list[list[int]]) -> list[int]:
    """The column of each row, so that the sum of the entries is the largest. There are at least as many columns.

    If the largest entries of the rows are in different columns, no other choice has a larger sum. Else the Hungarian
    method with potentials finds it (Kuhn 1955, Jonker and Volgenant 1987).
    """
    largest = [entries.index(max(entries)) for entries in table]
    return largest if len(set(largest)) == len(table) else _hungarian(table)


def _hungarian(table: list[list[int]]) -> list[int]:
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
