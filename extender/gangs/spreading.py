"""Spreads equal units over the fewest sub-domains and nodes of a domain.

Of the farthest level the fewest sub-domains, then the fewest of the next level in all of these together, and so on down
to the nodes. What the gang uses already comes first, and does not count. Of equally large ones, the caller's order.

Largest first, the last one best-fit, is the fewest of one level. But an equal number of racks can differ in how many
cliques they need. So where the choice of the farther levels may have cost something, all choices are compared, if they
are not too many.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import NamedTuple

MAX_COMBINATIONS = 20_000  # of the choices of one level, about 10 ms

Level = Mapping[str, str]
"""By node, the name of its sub-domain; nodes in none are left out."""

Order = Callable[[Iterable[str]], list[str]]
"""Sorts sub-domains or nodes: of several with equal room, the first comes first."""


def spread(
    rooms: Mapping[str, int], levels: Sequence[Level], orders: Sequence[Order], wanted: int, used: frozenset[str]
) -> dict[str, int]:
    """The number of units for each node; together `wanted`, or less if there is less room.

    `rooms` are the units that each node has room for. `levels` are from the farthest to the nearest, `orders` those of
    the levels and of the nodes. Nodes that are in no sub-domain are used last. `used` are nodes of the gang.
    """
    known, inside = rooms, rooms
    fewest, of_used = list[int](), list[Collection[str]]()  # of each level
    for depth, level in enumerate(levels):
        known = {name: room for name, room in known.items() if name in level}
        chosen, inside = inside, {name: room for name, room in inside.items() if name in level}
        room = sum(inside.values())
        if room < wanted:
            outside = {name: room for name, room in chosen.items() if name not in level}
            below = levels[depth + 1 :], orders[depth + 1 :]
            return {**inside, **(spread(outside, *below, wanted - room, used) if outside else {})}
        of_used.append({level[name] for name in used if name in level})
        inside, picked = _picked(known, inside, levels[: depth + 1], orders, wanted, of_used, fewest)
        inside = {name: room for name, room in inside.items() if level[name] in picked}
    if not levels:
        return _fewest(rooms, orders[0], wanted, used)
    nodes = {name: name for name in known}
    return _picked(known, inside, [*levels, nodes], orders, wanted, [*of_used, used], fewest)[1]


def _picked(
    known: Mapping[str, int],
    inside: Mapping[str, int],
    levels: Sequence[Level],
    orders: Sequence[Order],
    wanted: int,
    of_used: Sequence[Collection[str]],
    fewest: list[int],
) -> tuple[Mapping[str, int], dict[str, int]]:
    """(room by node, units by sub-domain) of the last level, in as few as possible; their number is added to `fewest`.

    The nodes are those `inside` the sub-domains that are chosen so far, or of `known` if other ones are better.
    """
    level, order = levels[-1], orders[len(levels) - 1]
    picked = _fewest(_by_domain(inside, level), order, wanted, of_used[-1])
    fewest.append(_number(picked, of_used))
    if len(fewest) > 1 and fewest[-1] > fewest[-2] and fewest[-1] > _least(known, level, wanted, of_used):
        parents = _compared(known, levels, orders, wanted, of_used, fewest)
        if parents:
            inside = {name: room for name, room in known.items() if levels[-2][name] in parents}
            picked = _fewest(_by_domain(inside, level), order, wanted, of_used[-1])
            fewest[-1] = _number(picked, of_used)
    return inside, picked


def _by_domain(rooms: Mapping[str, int], level: Level) -> dict[str, int]:
    """The room of each sub-domain."""
    found: dict[str, int] = {}
    for name, room in rooms.items():
        domain = level[name]
        found[domain] = found.get(domain, 0) + room
    return found


def _number(picked: Mapping[str, int], of_used: Sequence[Collection[str]]) -> int:
    """The number of sub-domains that the gang does not use yet."""
    return sum(domain not in of_used[-1] for domain in picked)


def _least(rooms: Mapping[str, int], level: Level, wanted: int, of_used: Sequence[Collection[str]]) -> int:
    """The fewest sub-domains of a level if those of the farther levels did not matter."""
    return _number(_fewest(_by_domain(rooms, level), sorted, wanted, of_used[-1]), of_used)


# -- one level: largest first, the last one best-fit ---------------------------------------------------------------


class _ByRoom:
    """Sub-domains or nodes by room. Only those of one room are sorted, because most are never read."""

    def __init__(self, rooms: Iterable[tuple[str, int]], order: Order) -> None:
        self._order = order
        self._by_room: dict[int, list[str]] = {}
        for name, room in rooms:
            if room:
                self._by_room.setdefault(room, []).append(name)
        self._sorted: set[int] = set()

    @property
    def largest(self) -> int:
        return max(self._by_room, default=0)

    def least(self, wanted: int) -> int:
        """The smallest room that is at least `wanted`; 0 if none is."""
        return min((room for room in self._by_room if room >= wanted), default=0)

    def all_of(self, room: int) -> list[str]:
        return self._by_room[room]

    def remove(self, room: int) -> None:
        del self._by_room[room]

    def pop(self, room: int) -> str:
        """The first one with this room."""
        if room not in self._sorted and len(self._by_room[room]) > 1:
            self._by_room[room] = self._order(self._by_room[room])[::-1]
            self._sorted.add(room)
        names = self._by_room[room]
        found = names.pop()
        if not names:
            del self._by_room[room]
        return found


def _fewest(rooms: Mapping[str, int], order: Order, wanted: int, used: Iterable[str]) -> dict[str, int]:
    """The chosen ones with the number of units for each."""
    first = rooms.keys() & set(used)
    own, others = list[tuple[str, int]](), rooms.items()
    if first:
        own = [entry for entry in others if entry[0] in first]
        others = {name: room for name, room in others if name not in first}.items()
    groups = [_ByRoom(own, order), _ByRoom(others, order)]
    if sum(rooms[name] for name in first) >= wanted:
        groups.pop()  # what the gang uses is enough, even if another one alone would be
    found: dict[str, int] = {}
    while wanted > 0:
        for by_room in groups:
            room = by_room.least(wanted)
            if room:
                found[by_room.pop(room)] = wanted
                return found
        by_room = groups[0] if groups[0].largest else groups[-1]
        room = by_room.largest
        if not room:
            return found
        if wanted > room * len(by_room.all_of(room)):
            found.update(dict.fromkeys(by_room.all_of(room), room))
            wanted -= room * len(by_room.all_of(room))
            by_room.remove(room)
        else:
            found[by_room.pop(room)] = room
            wanted -= room
    return found


# -- several levels: all choices of the farther ones --------------------------------------------------------------


class _Choice(NamedTuple):
    """Sub-domains of the nearest level. Of equal numbers, the one with the most of the wanted room, then the least."""

    room: int  # at most the wanted
    excess: int  # the negative of all room, so that the largest choice leaves the least
    domains: tuple[tuple[str, ...], ...]  # the path of each, the farthest level first


_COUNT_BITS = 12  # of a count below, which MAX_COMBINATIONS keeps below 200; the highest bit stays free
_NOTHING = _Choice(0, 0, ())


def _packed(counts: Iterable[int]) -> int:
    """Counts of sub-domains of each level as one number, the farthest level in the lowest bits: sums are fast so."""
    return sum(number << _COUNT_BITS * level for level, number in enumerate(counts))


def _compared(
    rooms: Mapping[str, int],
    levels: Sequence[Level],
    orders: Sequence[Order],
    wanted: int,
    of_used: Sequence[Collection[str]],
    fewest: Sequence[int],
) -> set[str]:
    """The parents of fewer sub-domains of the last level than `fewest` has, with as many of the farther levels.

    Empty if there are none, or too many combinations.
    """
    most = (*fewest[:-1], fewest[-1] - 1)
    combinations = prod(number + 1 for number in most)
    if combinations * fewest[-1] > MAX_COMBINATIONS:  # there are at least so many sub-domains
        return set()
    by_path: dict[tuple[str, ...], int] = {}
    for name, room in rooms.items():
        path = tuple([level[name] for level in levels])
        by_path[path] = by_path.get(path, 0) + room
    if combinations * len(by_path) > MAX_COMBINATIONS:
        return set()
    found = _Comparison(by_path, orders, most, wanted, of_used).run()
    return {path[-2] for path in found}


class _Comparison:
    """The choices of sub-domains in a tree, by the number of sub-domains of each level."""

    def __init__(
        self,
        by_path: Mapping[tuple[str, ...], int],
        orders: Sequence[Order],
        most: tuple[int, ...],
        wanted: int,
        of_used: Sequence[Collection[str]],
    ) -> None:
        """`by_path` has the room of each sub-domain of the nearest level."""
        self._room, self._most, self._wanted, self._of_used = by_path, most, wanted, of_used
        # A sum of counts is too large in some level if it takes the highest bit of the level away.
        self._highest = _packed([1 << _COUNT_BITS - 1] * len(most))
        self._limit = self._highest + _packed(most)
        self._nearest = _COUNT_BITS * (len(most) - 1)
        self._largest_first = sorted(by_path, key=lambda path: -by_path[path])
        self._below: dict[tuple[str, ...], dict[tuple[str, ...], None]] = {}
        ranks = [
            {name: rank for rank, name in enumerate(order(dict.fromkeys(names)))}
            for order, names in zip(orders, zip(*by_path, strict=True), strict=False)
        ]
        for path in sorted(by_path, key=lambda path: [rank[name] for rank, name in zip(ranks, path, strict=True)]):
            for depth in range(len(path)):
                self._below.setdefault(path[:depth], {})[path[: depth + 1]] = None

    def run(self) -> tuple[tuple[str, ...], ...]:
        """The fewest sub-domains of the nearest level with the wanted room; none if there are no such."""
        fitting = [
            (counts >> self._nearest, -choice.excess, choice)
            for counts, choice in self._choices(()).items()
            if choice.room >= self._wanted
        ]
        return min(fitting)[2].domains if fitting else ()

    def _choices(self, path: tuple[str, ...]) -> dict[int, _Choice]:
        """By the packed numbers of sub-domains of the levels below a path, the best choice there."""
        depth = len(path)
        if depth == len(self._most) - 1:
            return self._of_nearest(path)
        found, later = {0: _NOTHING}, self._largest_first
        for child in self._below[path]:
            own = (child[-1] not in self._of_used[depth]) << _COUNT_BITS * depth
            found = self._together(found, {own + counts: choice for counts, choice in self._choices(child).items()})
            later = [other for other in later if other[: depth + 1] != child]
            found = self._possible(found, later)
        return found

    def _possible(self, choices: dict[int, _Choice], later: Sequence[tuple[str, ...]]) -> dict[int, _Choice]:
        """The choices that reach the wanted room with the largest sub-domains of `later`, which are the largest first.

        Most do not. Without this, a plan over nodes that are half full compares six times as many.
        """
        free = sum(self._room[one] for one in later if one[-1] in self._of_used[-1])
        rooms = [self._room[one] for one in later if one[-1] not in self._of_used[-1]]
        most = self._most[-1]
        reach = list(accumulate(rooms[:most], initial=free))
        reach += reach[-1:] * (most + 1 - len(reach))
        return {
            counts: choice
            for counts, choice in choices.items()
            if reach[most - (counts >> self._nearest)] - choice.excess >= self._wanted
        }

    def _of_nearest(self, path: tuple[str, ...]) -> dict[int, _Choice]:
        used = [child for child in self._below[path] if child[-1] in self._of_used[-1]]
        others = [child for child in self._below[path] if child[-1] not in self._of_used[-1]]
        others.sort(key=lambda child: -self._room[child])  # stable: otherwise in the given order
        first = sum(self._room[child] for child in used)
        totals = accumulate((self._room[child] for child in others[: self._most[-1]]), initial=first)
        return {
            number << self._nearest: _Choice(min(total, self._wanted), -total, (*used, *others[:number]))
            for number, total in enumerate(totals)
        }

    def _together(self, some: Mapping[int, _Choice], added: Mapping[int, _Choice]) -> dict[int, _Choice]:
        """The choices of `some`, each also with each choice that is added. Of equally good ones, the first."""
        found, limit, highest, wanted = dict(some), self._limit, self._highest, self._wanted
        for counts, (_, excess, domains) in some.items():
            for more, (_, other, further) in added.items():
                key, both = counts + more, excess + other
                if (limit - key) & highest != highest:
                    continue
                room, known = min(-both, wanted), found.get(key)
                if known is None or (room, both) > known[:2]:
                    found[key] = _Choice(room, both, domains + further)
        return found
