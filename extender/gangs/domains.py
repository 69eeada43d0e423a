"""Domains of nodes: a single node, the nodes with one value of a label, and all nodes; and how a gang spreads over one.

A gang uses the fewest sub-domains, the largest first, and the last one best-fit. This is the order of Kueue's
topology-aware scheduling. Sub-domains that the gang already uses come first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from extender.allocation import Snapshot
from extender.api.group_topology import ONE_NODE
from extender.gangs.gang_problem import GangProblem

NODE = ONE_NODE  # the level of single nodes
_DIGITS = re.compile(r"([0-9]+)")
NaturalKey = tuple[tuple[str | int, ...], str]


@lru_cache(maxsize=16_384)  # the nodes of a large fleet, and the values of their labels
def natural(name: str) -> NaturalKey:
    """A sort key that compares numbers in names as numbers: tray-2 comes before tray-10."""
    parts = _DIGITS.split(name)
    return tuple(int(part) if position % 2 else part for position, part in enumerate(parts)), name


@dataclass(frozen=True, slots=True)
class Domain:
    """Nodes that are near each other."""

    level: str  # NODE, a label, or '' for all nodes
    name: str  # the node, the value of the label, or ''
    nodes: Sequence[str]
    within: tuple[str, ...]  # the labels of nearer levels, the farthest first


class Domains:
    """The domains that may hold a gang, level by level, the nearest level first."""

    def __init__(self, problem: GangProblem, snapshot: Snapshot, nodes: Iterable[str]) -> None:
        """`nodes` are the nodes that have room for some member."""
        self._problem = problem
        self._node_infos = snapshot.node_infos
        self._nodes_by_label = snapshot.nodes_by_label
        self._placed = {name: number for name, number in problem.placed.items() if name in snapshot.node_infos}
        self._regions = self._all_regions(nodes)

    def single(self, nodes: Iterable[str]) -> list[Domain]:
        """The given nodes that may hold the whole gang, with the members that are bound."""
        label = self._problem.topology_label
        if label:
            admissible = {name for region in self._regions.values() for name in region}
            nodes = [name for name in nodes if name in admissible]
        if self._placed and self._problem.topology != "none":
            nodes = [name for name in nodes if self._placed.keys() == {name}]
        return [Domain(NODE, name, (name,), ()) for name in nodes]

    def wider(self) -> Iterator[list[Domain]]:
        """The admissible domains of each level above single nodes, the nearest level first."""
        problem, label = self._problem, self._problem.topology_label
        if problem.topology == ONE_NODE:
            return
        nearer = problem.levels[: problem.levels.index(label)] if label in problem.levels else problem.levels
        if problem.topology == "preferred":
            for position, level in enumerate(nearer):
                within = self._within(nearer[:position])
                yield [domain for region in self._regions.values() for domain in self._of(level, region, within)]
        if problem.topology == "required" and not label:
            if problem.levels:
                (everything,) = self._regions.values()
                yield list(self._of(problem.levels[0], everything, ()))
            return
        within = () if problem.topology == "none" else self._within(nearer)
        yield [Domain(label, value, list(region), within) for value, region in self._regions.items()]

    def _within(self, nearer: tuple[str, ...]) -> tuple[str, ...]:
        """The levels over which a gang spreads in a domain, the farthest first: the preferred one, then the nearer."""
        preferred = self._problem.preferred_level
        if preferred in nearer:
            nearer = nearer[: nearer.index(preferred) + 1]
        return tuple(reversed(nearer)) if preferred != NODE else ()

    def path(self, name: str) -> tuple[tuple[bool, NaturalKey], ...]:
        """A sort key that puts the nodes of one domain together, at every level."""
        labels = self._node_infos[name].node.labels
        values = [labels.get(level) for level in reversed(self._problem.levels)]
        return (*((value is None, natural(value or "")) for value in values), (False, natural(name)))

    @property
    def placed(self) -> frozenset[str]:
        """The nodes on which members are bound."""
        return frozenset(self._placed)

    def _all_regions(self, nodes: Iterable[str]) -> dict[str, dict[str, None]]:
        """The nodes by value of `topology_label`; without such a label, all nodes with the name ''."""
        label = self._problem.topology_label
        if not label:
            return {"": dict.fromkeys(nodes)}
        found: dict[str, dict[str, None]] = {}
        for name in nodes:
            value = self._node_infos[name].node.labels.get(label)
            if value is not None:
                found.setdefault(value, {})[name] = None
        bound = self._common(label)
        return {bound: found.get(bound, {})} if bound is not None else found

    def _by_value(self, level: str, region: dict[str, None]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        if not self._problem.topology_label:  # one region: the index of the cache is several times faster
            for value, names in self._nodes_by_label(level).items():
                own = [name for name in names if name in region]
                if own:
                    found[value] = own
            return found
        for name in region:
            own_value = self._node_infos[name].node.labels.get(level)
            if own_value is not None:
                found.setdefault(own_value, []).append(name)
        return found

    def _values(self, label: str) -> Counter[str | None]:
        found: Counter[str | None] = Counter()
        for name, number in self._placed.items():
            found[self._node_infos[name].node.labels.get(label)] += number
        return found

    def _common(self, label: str) -> str | None:
        """The value that most bound members have; None if none has one."""
        found = {value: number for value, number in self._values(label).items() if value is not None}
        return min(found, key=lambda value: (-found[value], natural(value)), default=None)

    def _of(self, level: str, region: dict[str, None], within: tuple[str, ...]) -> Iterator[Domain]:
        found: Mapping[str, list[str]] = self._by_value(level, region)
        if self._placed:
            found = self._with_placed(level, found)
        for value, nodes in found.items():
            yield Domain(level, value, nodes, within)

    def _with_placed(self, level: str, found: Mapping[str, list[str]]) -> Mapping[str, list[str]]:
        """The domains in which the whole gang would be, with the members that are bound."""
        if self._problem.topology == "required":
            common = self._common(level)
            return found if common is None else {common: found.get(common, [])}
        values = list(self._values(level))
        return {value: found.get(value, []) for value in values if value is not None} if len(values) == 1 else {}


# -- spreading over a domain ---------------------------------------------------------------------------------------


def spread(
    rooms: Mapping[str, int],
    levels: tuple[str, ...],
    wanted: int,
    value_of: Callable[[str, str], str | None],
    used: frozenset[str],
) -> dict[str, int]:
    """The number of units for each node; together `wanted`, or less if there is less room.

    `rooms` are the units that each node has room for. `levels` are labels, the farthest first, and `value_of` returns
    the value of such a label on a node. Nodes without a value are used last. `used` are nodes of the gang.
    """
    if not levels:
        return _fewest(rooms, wanted, used)
    groups: dict[str | None, list[str]] = {}
    for name in rooms:
        groups.setdefault(value_of(name, levels[0]), []).append(name)
    outside = groups.pop(None, [])
    room_of = {value or "": sum(rooms[name] for name in names) for value, names in groups.items()}
    used_values = {value for name in used if name in rooms and (value := value_of(name, levels[0])) is not None}
    found: dict[str, int] = {}
    for value, number in _fewest(room_of, wanted, used_values).items():
        found |= spread({name: rooms[name] for name in groups[value]}, levels[1:], number, value_of, used)
    left = wanted - sum(found.values())
    if left and outside:
        found |= spread({name: rooms[name] for name in outside}, levels[1:], left, value_of, used)
    return found


class _Parts:
    """Sub-domains or nodes by room. Only the parts of one room are sorted, because most parts are never looked at."""

    def __init__(self, rooms: Iterable[tuple[str, int]]) -> None:
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
        """The first part with this room, in natural order of names."""
        names = self._by_room[room]
        if room not in self._sorted:
            names.sort(key=natural, reverse=True)
            self._sorted.add(room)
        found = names.pop()
        if not names:
            del self._by_room[room]
        return found


def _fewest(rooms: Mapping[str, int], wanted: int, used: Iterable[str]) -> dict[str, int]:
    """The chosen parts with the number of units for each."""
    first = set(used)
    groups = [
        _Parts((name, room) for name, room in rooms.items() if name in first),
        _Parts((name, room) for name, room in rooms.items() if name not in first),
    ]
    found: dict[str, int] = {}
    while wanted > 0:
        for parts in groups:
            room = parts.least(wanted)
            if room:
                found[parts.pop(room)] = wanted
                return found
        parts = groups[0] if groups[0].largest else groups[1]
        room = parts.largest
        if not room:
            return found
        if wanted > room * len(parts.all_of(room)):
            found.update(dict.fromkeys(parts.all_of(room), room))
            wanted -= room * len(parts.all_of(room))
            parts.remove(room)
        else:
            found[parts.pop(room)] = room
            wanted -= room
    return found
