"""Devices of different drivers near each other: which GPU works with which NIC, and which sets of both are near.

The devices of one driver among those of a pod are its anchors: its GPUs, if it has any. The devices of each other
driver are joined to the anchors in pairs. With as many devices as anchors, each device is in one pair. With fewer, a
device is in several pairs; with more, an anchor is.

A set of devices is better the more of its pairs are on one PCIe root; among equal ones, the more are on one NUMA node.
`pair_up` finds the best pairs of given devices (the assignment problem, solved by the Hungarian method). `Together`
finds the best devices: it takes the sets of anchors that the caller prefers, and gives each the nearest other devices.
It looks at a set only while its bound, every anchor with its own nearest device, is above the best set found.

Requests may accept different devices. Then devices and anchors are assigned in turns, until that brings nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from extender.allocation.nodes import Nearness, Places
from extender.base.bits import members, union
from extender.topology.assignment import Slot, assigned, in_order, slots_for
from extender.vendors import GPU, NIC, driver_of

# A claim has at most 32 devices, so one nearer pair counts more than all pairs that are less near.
_WEIGHT = {Nearness.ROOT: 64**3, Nearness.NUMA: 64**2, Nearness.NUMA_LIST: 64, Nearness.UNKNOWN: 1, Nearness.FAR: 0}
_TIE = 4096  # a weight counts so much more than the wish to leave a device to others
_NEVER = -(1 << 40)  # the weight of a device in a slot that does not accept it
_MOST_PAIRED = 2048  # pairs of two sets of devices in the cache, of at most 5 KiB
_MOST_TABLES = 64  # tables of weights in the cache; a fleet has a few dozen kinds of machines
_MOST_WORK = 200_000  # steps of assignments for the devices of one node, some 30 ms; 4 GPUs and 4 NICs of 8 need 40,000


class Pair(NamedTuple):
    """Two devices of different drivers that work together, as device bits. The first one is an anchor."""

    anchor: int
    other: int
    nearness: Nearness


class Choice(NamedTuple):
    """A device for each slot, and the sum of the weights of their pairs."""

    value: int
    placed: tuple[tuple[Slot, int], ...]


@lru_cache(_MOST_TABLES)
def _weights(places: Places) -> tuple[tuple[int, ...], ...]:
    """The weight of each pair of device bits."""
    bits = range(len(places.roots))
    return tuple(tuple(_WEIGHT[places.nearness(a, b)] for b in bits) for a in bits)


@lru_cache(_MOST_TABLES)
def nearest(places: Places) -> Mapping[tuple[str, str], Nearness]:
    """How near the devices of two drivers are at best on a node with these places, by both names, sorted."""
    kinds = [(driver, members(mask)) for driver, mask in places.kinds]
    return {
        (a, b): max(places.nearness(one, other) for one in ours for other in theirs)
        for position, (a, ours) in enumerate(kinds)
        for b, theirs in kinds[position + 1 :]
    }


def pair_up(places: Places, anchors: Sequence[int], others: Sequence[int]) -> tuple[Pair, ...]:
    """The best pairs of these devices; each device is in at least one pair. None without anchors or others."""
    return _pairs(places, tuple(anchors), tuple(others))


@lru_cache(_MOST_PAIRED)  # many nodes of a kind pair the same devices
def _pairs(places: Places, anchors: tuple[int, ...], others: tuple[int, ...]) -> tuple[Pair, ...]:
    if not anchors or not others:
        return ()
    weights = _weights(places)
    many, few = (anchors, others) if len(anchors) >= len(others) else (others, anchors)
    columns = list(few) * -(-len(many) // len(few))
    partners = assigned([[weights[row][column] for column in columns] for row in many])
    pairs = [(row, columns[found]) for row, found in zip(many, partners, strict=True)]
    pairs = pairs if many is anchors else [(anchor, other) for other, anchor in pairs]
    return tuple(Pair(anchor, other, places.nearness(anchor, other)) for anchor, other in sorted(pairs))


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

    def __init__(
        self, places: Places, anchors: Sequence[Slot], others: Sequence[Sequence[Slot]], avoided: int, share: int = 1
    ) -> None:
        """`avoided` is a mask of devices that come last among equal ones; 1/`share` of the work is for this object."""
        self._places, self._weights = places, _weights(places)
        self._anchors = in_order(anchors)
        self._others = [in_order(slots) for slots in others]
        self._avoided = avoided
        self._free_anchors = members(_union(anchors))
        self._free = [members(_union(slots)) for slots in others]
        self.bound = {anchor: self._best_weight(anchor) for anchor in self._free_anchors}
        self._work = _MOST_WORK // share

    def choices(self, sets: Sequence[int]) -> Iterator[Choice]:
        """Devices for all slots, the nearest first; `sets` are masks of anchors, equal ones in this order."""
        waiting: list[tuple[int, int, Choice | None]] = [
            (-sum(self.bound[anchor] for anchor in members(mask)), index, None) for index, mask in enumerate(sets)
        ]
        heapify(waiting)
        while waiting:
            _, index, choice = waiting[0]
            if choice is None and self._work > 0 and (found := self._choice(members(sets[index]))) is not None:
                heapreplace(waiting, (-found.value, index, found))
                continue
            heappop(waiting)
            if choice is not None:
                yield choice

    def growing(self, anchors: int, others: int) -> Iterator[int]:
        """Masks of `others`: first those near one of these anchors, then more, at last all."""
        bits, every = members(anchors), union([1 << bit for free in self._free for bit in free])
        for least in (Nearness.ROOT, Nearness.NUMA, Nearness.NUMA_LIST):
            near = [b for b in members(every) if any(self._places.nearness(a, b) >= least for a in bits)]
            yield others & ~every | union([1 << bit for bit in near])
        yield others

    def _best_weight(self, anchor: int) -> int:
        """A bound: the weights of the best pairs that the anchor can have."""
        found = 0
        for slots, free in zip(self._others, self._free, strict=True):
            each = -(-len(slots) // len(self._anchors))
            found += sum(sorted((self._weights[anchor][other] for other in free), reverse=True)[:each])
        return found

    def _choice(self, anchors: list[int]) -> Choice | None:
        """The nearest devices for these anchors; None if the slots cannot have them."""
        order = slots_for(anchors, self._anchors)
        if order is None:
            return None
        placed = [anchor for _, anchor in sorted(zip(order, anchors, strict=True))]
        may_move, chosen = True, list[list[int]]()
        for slots, free in zip(self._others, self._free, strict=True):
            if len({slot.eligible for slot in slots}) > 1:
                placed, others = self._for_different_slots(placed, slots, free, may_move=may_move)
                may_move = False  # now the anchors belong to these slots
            else:
                others = self._for_equal_slots(placed, slots, free)
            if len(others) < len(slots):
                return None
            chosen.append(others)
        found = list(zip(self._anchors, placed, strict=True))
        for slots, others in zip(self._others, chosen, strict=True):
            ordered = others if len({slot.eligible for slot in slots}) > 1 else self._in_pairs(placed, others)
            found += zip(slots, ordered, strict=True)
        return Choice(sum(self._value(placed, others) for others in chosen), tuple(found))

    # -- slots that accept the same devices -------------------------------------------------------------------

    def _for_equal_slots(self, anchors: list[int], slots: list[Slot], free: list[int]) -> list[int]:
        """A device for each slot, in any order; fewer if there are too few."""
        left = self._left_to_others(anchors, free)
        if len(slots) < len(anchors):
            found = self._serving_several(anchors, len(slots), free, left)
        else:
            rows = (anchors * -(-len(slots) // len(anchors)))[: len(slots)]
            found = self._assigned([[self._weights[a][b] * _TIE - left[b] for b in free] for a in rows], free)
        return self._exchanged(anchors, slots, found, free) if len(slots) != len(anchors) else found

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

    def _exchanged(self, anchors: list[int], slots: list[Slot], others: list[int], free: list[int]) -> list[int]:
        """The devices, with single ones exchanged for others as long as that brings nearer pairs."""
        best = self._value(anchors, others)
        improved = bool(others)
        while improved and self._work > 0:
            improved = False
            for position, slot in enumerate(slots[: len(others)]):
                for bit in free:
                    if bit in others or not slot.accepts(bit) or self._work <= 0:
                        continue
                    tried = [*others[:position], bit, *others[position + 1 :]]
                    value = self._value(anchors, tried)
                    if value > best:
                        others, best, improved = tried, value, True
        return others

    # -- slots that accept different devices ------------------------------------------------------------------

    def _for_different_slots(
        self, anchors: list[int], slots: list[Slot], free: list[int], *, may_move: bool
    ) -> tuple[list[int], list[int]]:
        """The anchors and a device for each slot, in the order of the slots. `may_move`: also in other slots."""
        if len(anchors) != len(slots):
            found = self._of_slots(slots, free, [anchors] * len(slots))
            return anchors, self._exchanged(anchors, slots, found, free)
        first = anchors
        if may_move:
            accepted = [[bit for bit in free if slot.accepts(bit)] for slot in slots]
            best = [{a: max(self._weights[a][b] for b in of_slot) for a in anchors} for of_slot in accepted]
            first = self._of_anchors(best, anchors) or anchors
        tried = [self._in_turns(first, slots, free, may_move=may_move)]
        if may_move:  # begin with the devices instead
            others = self._of_slots(slots, free, [anchors] * len(slots))
            moved = self._of_devices(anchors, others) or anchors
            tried.append(self._in_turns(moved, slots, free, may_move=True))
        return max(tried, key=lambda found: self._of_pairs(*found))

    def _in_turns(
        self, anchors: list[int], slots: list[Slot], free: list[int], *, may_move: bool
    ) -> tuple[list[int], list[int]]:
        """The devices for these anchors, then the anchors for these devices, and so on, as long as that helps."""
        others = self._of_slots(slots, free, [[anchor] for anchor in anchors])
        while may_move and others and self._work > 0:
            moved = self._of_devices(anchors, others) or anchors
            better = self._of_slots(slots, free, [[anchor] for anchor in moved])
            if self._of_pairs(moved, better) <= self._of_pairs(anchors, others):
                break
            anchors, others = moved, better
        return anchors, others

    def _of_slots(self, slots: list[Slot], free: list[int], partners: list[list[int]]) -> list[int]:
        """The device of each slot that is nearest to one of the partners of the slot; [] if there is none for all."""
        left = self._left_to_others([a for of_slot in partners for a in of_slot], free)
        table = [
            [max(self._weights[a][b] for a in near) * _TIE - left[b] if slot.accepts(b) else _NEVER for b in free]
            for slot, near in zip(slots, partners, strict=True)
        ]
        found = self._assigned(table, free)
        return found if all(slot.accepts(bit) for slot, bit in zip(slots, found, strict=False)) else []

    def _of_devices(self, anchors: list[int], others: list[int]) -> list[int]:
        """The anchor of each device, in the order of the slots; [] if the slots of the anchors accept no such order."""
        return self._of_anchors([{a: self._weights[a][b] for a in anchors} for b in others], anchors)

    def _of_anchors(self, weights: list[dict[int, int]], anchors: list[int]) -> list[int]:
        """An anchor for each slot that accepts it, by the weight that it has there; [] if there is none for all."""
        if len(weights) != len(self._anchors):
            return []
        rows = zip(self._anchors, weights, strict=True)
        table = [[of_slot[a] if slot.accepts(a) else _NEVER for a in anchors] for slot, of_slot in rows]
        found = self._assigned(table, anchors)
        return found if all(slot.accepts(a) for slot, a in zip(self._anchors, found, strict=True)) else []

    def _of_pairs(self, anchors: list[int], others: list[int]) -> int:
        """The weights of the pairs in this order; -1 without devices."""
        return sum(self._weights[a][b] for a, b in zip(anchors, others, strict=True)) if others else -1

    # -- both -------------------------------------------------------------------------------------------------

    def _value(self, anchors: list[int], others: list[int]) -> int:
        many = max(len(anchors), len(others))
        self._work -= many * many * many  # `pair_up` assigns as many rows, and has about as many columns
        return sum(self._weights[pair.anchor][pair.other] for pair in pair_up(self._places, anchors, others))

    def _left_to_others(self, anchors: list[int], free: list[int]) -> dict[int, int]:
        """How much each device is wanted elsewhere: by free anchors on its PCIe root. One to avoid counts more."""
        rest = [anchor for anchor in self._free_anchors if anchor not in anchors]
        near = _WEIGHT[Nearness.ROOT]
        wanted = {b: sum(self._weights[a][b] == near for a in rest) for b in free}
        return {b: wanted[b] + (self._avoided >> b & 1) * len(self._weights) for b in free}

    def _assigned(self, table: list[list[int]], columns: list[int]) -> list[int]:
        """The entries of `columns` that the rows get; [] if there are too few."""
        if len(table) > len(columns):
            return []
        self._work -= len(table) * len(table) * len(columns)
        return [columns[column] for column in assigned(table)]

    def _in_pairs(self, anchors: list[int], others: list[int]) -> list[int]:
        """The other devices in the order of the slots of their anchors."""
        position = {anchor: slot for slot, anchor in enumerate(anchors)}
        pairs = sorted((position[pair.anchor], pair.other) for pair in pair_up(self._places, anchors, others))
        return list(dict.fromkeys([*(other for _, other in pairs), *others]))


def _union(slots: Iterable[Slot]) -> int:
    return union([slot.eligible for slot in slots])
