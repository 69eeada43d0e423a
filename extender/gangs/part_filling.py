"""Places a gang with parts, see gang_parts, in a domain: each part in one domain of its level.

Equal parts, such as slices, are counted. The room of a domain is the number of parts that fit there, and equal parts
spread over the fewest domains as units spread over nodes. For parts of equal units that is exact. Where it finds no
place for parts that differ, all choices of domains for the parts are tried, up to a number of steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from extender.allocation import Snapshot
from extender.gangs.domains import NODE, Domain, Domains, natural
from extender.gangs.gang_search import GangSearch, GaveUp, Steps, local_nodes
from extender.gangs.gang_units import Placed, Unit, UnitPlacement
from extender.gangs.node_rooms import GangTrial, NodeRooms
from extender.gangs.place_order import PlaceOrder
from extender.gangs.spreading import spread
from extender.scheduling.gang_parts import GangPart

MAX_SEARCHED = 64  # parts whose choices of domains are all tried: a frame of Python's stack for each

Assigned = list[tuple[Unit, tuple[str, UnitPlacement]]]
"""Each unit with its node and its devices."""

Fill = Callable[[NodeRooms, GangTrial, Domain, int, int], Placed | None]
"""Places a number of units in a domain, with a variant of their alternatives; None if they do not fit."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """What equal parts have in common."""

    level: str
    fixed: str  # the domain in which members of the part are bound; '' for none
    own: tuple[tuple[int, int], ...]  # (index of the rooms, number of units) of the members that are in none of `below`
    below: tuple[tuple[_Shape, int], ...]  # with the number of such parts in it

    @property
    def units(self) -> Counter[int]:
        """The number of all units by the index of their rooms."""
        found = Counter(dict(self.own))
        for shape, number in self.below:
            for index, units in shape.units.items():
                found[index] += units * number
        return found

    @property
    def parts(self) -> int:
        """The number of all parts below it."""
        return sum(number * (1 + shape.parts) for shape, number in self.below)


class _Part(NamedTuple):
    shape: _Shape
    own: Mapping[int, Sequence[Unit]]
    below: Sequence[Sequence[_Part]]  # by the entries of `shape.below`


class _Choice(NamedTuple):
    """Units that may use some nodes."""

    kind: int  # index of the rooms
    units: Sequence[Unit]
    names: Sequence[str]


class PartFilling:
    """Fills domains with all units of one gang. No plan depends on an earlier call."""

    def __init__(
        self,
        parts: Sequence[GangPart],
        rooms: Sequence[NodeRooms],
        snapshot: Snapshot,
        domains: Domains,
        order: PlaceOrder,
        fill: Fill,
        steps: Steps,
    ) -> None:
        self._rooms = rooms
        self._snapshot = snapshot
        self._domains = domains
        self._place_order = order
        self._fill = fill
        self._steps = steps
        units = {
            member.uid: (index, unit)
            for index, one in enumerate(rooms)
            for unit in one.units
            for member in unit.members
        }
        leaves = dict(_leaves(parts))
        # Whether members that share a claim, and so a node, are in different parts.
        self._is_torn = any(
            len({leaves.get(member.uid) for member in unit.members}) > 1 for one in rooms for unit in one.units
        )
        self._is_apart = False  # members of one part are pinned to nodes of two domains
        self._root = self._part("", "", [*units], parts, units)
        self._trial = GangTrial()
        self._assigned: Assigned = []

    # -- the tree --------------------------------------------------------------------------------------------

    def _part(
        self,
        level: str,
        fixed: str,
        uids: Iterable[str],
        parts: Sequence[GangPart],
        units: Mapping[str, tuple[int, Unit]],
    ) -> _Part:
        below = [
            self._part(part.level, self._domain_of(part, units), part.members, part.parts, units) for part in parts
        ]
        below = sorted((part for part in below if part.shape.units), key=lambda part: self._order(part.shape))
        groups = [list(group) for _, group in groupby(below, key=lambda part: part.shape)]
        inner = {uid for part in parts for uid in part.members}
        own: dict[int, dict[Unit, None]] = {}
        for uid in uids:
            if uid in inner or uid not in units:
                continue
            index, unit = units[uid]
            if not self._rooms[index].pinned:
                own.setdefault(index, {})[unit] = None
        shape = _Shape(
            level,
            fixed,
            tuple((index, len(found)) for index, found in sorted(own.items())),
            tuple((group[0].shape, len(group)) for group in groups),
        )
        return _Part(shape, {index: list(found) for index, found in own.items()}, groups)

    def _domain_of(self, part: GangPart, units: Mapping[str, tuple[int, Unit]]) -> str:
        """The domain of the members that are bound or pinned; '' for none."""
        found = Counter[str]()
        for name, number in part.placed.items():
            if (domain := self._name_of(part.level, name)) is not None:
                found[domain] += number
        own = [units[uid][1] for uid in part.members if uid in units]
        pins = {self._name_of(part.level, unit.pin) for unit in own if unit.pin is not None}
        bound = min(found, key=lambda domain: (-found[domain], natural(domain)), default=None)
        self._is_apart |= len(pins | ({bound} if bound is not None else set())) > 1 or None in pins
        return bound or next((pin for pin in pins if pin is not None), "")

    def _name_of(self, level: str, node: str) -> str | None:
        return node if level == NODE else self._domains.of_level(level).name_of.get(node)

    def _order(self, shape: _Shape) -> tuple[bool, int, str]:
        """Parts that can be in one domain only come first, then the largest ones. Equal shapes are neighbours."""
        size = sum(self._rooms[index].size * number for index, number in shape.units.items())
        return not shape.fixed, -size, repr(shape)

    # -- attempts --------------------------------------------------------------------------------------------

    def preferred(self, domain: Domain, variant: int = 0) -> Assigned | None:
        """All units in a domain, with the preferred devices, or those of a variant; None if they do not fit."""
        self._begin()
        if self._is_torn or self._is_apart or not self._pinned(domain, variant):
            return None
        return self._assigned if self._inside([self._root], domain.nodes, domain.within, variant) else None

    def searched(self, domain: Domain) -> Assigned | None:
        """All units in a domain, with any devices, and with any domains for the parts; None if they do not fit.

        The steps may end first.
        """
        if self._is_apart or (not self._is_torn and self._cannot_fit(domain)):
            return None
        for variant in range(1, max(rooms.variants for rooms in self._rooms)):
            found = self.preferred(domain, variant)
            if found is not None:
                return found
        try:
            if self._is_torn or self._root.shape.parts > MAX_SEARCHED:
                self._steps.spend(self._steps.left + 1)
            return next(self._plans(domain), None)
        except GaveUp:
            return None

    def room(self, domain: Domain) -> int:
        """The number of members that fit into a domain, in whole parts."""
        self._begin()
        if self._is_torn or self._is_apart or not self._pinned(domain, 0):
            return 0
        for parts in self._root.below:
            self._place(parts, domain.nodes, domain.within, 0)
        found = sum(len(unit.members) for unit, _ in self._assigned)
        for index, units in self._root.own.items():
            room = self._rooms[index].rooms(self._trial, domain.nodes, len(units))
            number = min(sum(room.values()), len(units))
            before = len(self._trial)
            if self._fill(self._rooms[index], self._trial, domain, number, 0) is None:
                self._trial.undo_to(before)
            else:
                found += number * self._rooms[index].members_per_unit
        return found

    def _begin(self) -> None:
        self._trial, self._assigned = GangTrial(), []

    def _pinned(self, domain: Domain, variant: int) -> bool:
        """Place the units that can be on one node only."""
        for rooms in self._rooms:
            if rooms.pinned:
                placed = self._fill(rooms, self._trial, domain, len(rooms.units), variant)
                if placed is None:
                    return False
                self._assign(sorted(rooms.units, key=lambda unit: self._domains.path(unit.pin or "")), placed)
        return True

    def _assign(self, units: Sequence[Unit], placed: Placed) -> None:
        """Give the nodes to the units in order."""
        self._assigned += zip(units, sorted(placed, key=lambda entry: self._domains.path(entry[0])), strict=True)

    # -- counting equal parts --------------------------------------------------------------------------------

    def _place(self, parts: Sequence[_Part], names: Sequence[str], within: Sequence[str], variant: int) -> bool:
        """Place equal parts; those that fit if not all do."""
        shape = parts[0].shape
        nodes = self._by_domain(shape, names)
        room = self._room(parts, nodes, variant)
        farther, nearer = self._levels_around(shape.level, nodes, within)
        nodes_in_use = self._domains.placed | self._trial.nodes
        used = {domain for name in nodes_in_use if (domain := self._name_of(shape.level, name)) is not None}
        names_of = [self._names_of(level, nodes) for level in farther]
        orders = self._place_order.of_levels([*farther, shape.level], self._rooms[0])
        chosen = spread(room, names_of, orders, len(parts), frozenset(used))
        done = 0
        for domain in sorted(chosen, key=lambda one: self._domains.path(min(nodes[one], key=natural))):
            own = parts[done : done + chosen[domain]]
            together = [own] if self._rooms_of(shape) is not None else [[part] for part in own]
            if not all(self._whole(some, nodes[domain], nearer, variant) for some in together):
                return False
            done += len(own)
        return done == len(parts)

    def _whole(self, parts: Sequence[_Part], names: Sequence[str], within: Sequence[str], variant: int) -> bool:
        """Place parts in one domain, or nothing of them."""
        taken, assigned = len(self._trial), len(self._assigned)
        if self._inside(parts, names, within, variant):
            return True
        self._trial.undo_to(taken)
        del self._assigned[assigned:]
        return False

    def _inside(self, parts: Sequence[_Part], names: Sequence[str], within: Sequence[str], variant: int) -> bool:
        """Place what is in equal parts, all of it on these nodes."""
        shape = parts[0].shape
        for position in range(len(shape.below)):
            below = [one for part in parts for one in part.below[position]]
            if not self._place(below, names, within, variant):
                return False
        for index, _ in shape.own:
            units = [unit for part in parts for unit in part.own[index]]
            domain = Domain("", "", names, tuple(within))
            placed = self._fill(self._rooms[index], self._trial, domain, len(units), variant)
            if placed is None:
                return False
            self._assign(units, placed)
        return True

    def _by_domain(self, shape: _Shape, names: Sequence[str]) -> dict[str, list[str]]:
        """The nodes by domain of the level of a part; only the domain in which members are bound, if there is one."""
        found: dict[str, list[str]] = {}
        for name in names:
            domain = self._name_of(shape.level, name)
            if domain is not None and shape.fixed in ("", domain):
                found.setdefault(domain, []).append(name)
        return found

    def _levels_around(
        self, level: str, nodes: Mapping[str, Sequence[str]], within: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """(the levels of which the domains of a level are parts, the other ones, which are nearer)."""
        around, nearer = list[str](), list[str]()
        for other in within:
            name_of = self._domains.of_level(other).name_of
            if other != level:
                is_around = all(len({name_of.get(name) for name in own}) == 1 for own in nodes.values())
                (around if is_around else nearer).append(other)
        return around, nearer

    def _names_of(self, level: str, nodes: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """The domain of a farther level in which each domain is; domains in none are left out."""
        name_of = self._domains.of_level(level).name_of
        return {domain: name_of[own[0]] for domain, own in nodes.items() if own[0] in name_of}

    def _room(self, parts: Sequence[_Part], nodes: Mapping[str, Sequence[str]], variant: int) -> dict[str, int]:
        """The number of these parts that each domain has room for; domains without room are left out."""
        shape, index = parts[0].shape, self._rooms_of(parts[0].shape)
        if index is not None:
            names = [name for own in nodes.values() for name in own]
            known = self._rooms[index].rooms(self._trial, names, shape.units[index] * len(parts), variant)
            counted = {domain: self._counted(shape, own, known) for domain, own in nodes.items()}
        else:
            counted = {domain: self._tried(parts, own, variant) for domain, own in nodes.items()}
        return {domain: min(number, len(parts)) for domain, number in counted.items() if number}

    def _rooms_of(self, shape: _Shape) -> int | None:
        """The index of the rooms of all units, if these can be counted: they are equal, no two kinds of parts compete.

        None if not, also if a limit holds for nodes together.
        """
        indices = shape.units.keys()
        if len(indices) != 1 or len(shape.below) > 1 or any(self._rooms_of(below) is None for below, _ in shape.below):
            return None
        (index,) = indices
        return None if self._rooms[index].spans_domains else index

    def _counted(self, shape: _Shape, names: Sequence[str], known: Mapping[str, int]) -> int:
        """The number of parts of one kind of equal units that fit on nodes with this room, exactly."""
        found = sum(known.get(name, 0) for name in names) // shape.units.total()
        for below, number in shape.below:
            inner = self._by_domain(below, names).values()
            found = min(found, sum(self._counted(below, own, known) for own in inner) // number)
        return found

    def _tried(self, parts: Sequence[_Part], names: Sequence[str], variant: int) -> int:
        """The number of parts that fit one after the other; the trial stays as it is."""
        taken, assigned, found = len(self._trial), len(self._assigned), 0
        for part in parts:
            if not self._whole([part], names, (), variant):
                break
            found += 1
        self._trial.undo_to(taken)
        del self._assigned[assigned:]
        return found

    def _cannot_fit(self, domain: Domain) -> bool:
        """Whether counting proves that the parts do not fit, whatever devices and domains are chosen."""
        shape = self._root.shape
        if not all(self._may_place(part, number, domain.nodes) for part, number in _shapes(shape)):
            return True
        index = self._rooms_of(shape)
        if index is None:
            return False
        if len(self._rooms) == 1 and self._rooms[index].each:
            return len(local_nodes(domain.nodes, self._snapshot)) == len(domain.nodes)
        return self._counted(shape, domain.nodes, self._rooms[index].most) == 0

    def _may_place(self, shape: _Shape, number: int, names: Sequence[str]) -> bool:
        """Whether so many parts may fit on these nodes if only their units' number counts, and no other part."""
        found = 0
        for own in self._by_domain(shape, names).values():
            found += min(self._bound(index, own) // units for index, units in shape.units.items())
            if found >= number:
                return True
        return False

    # -- all choices -----------------------------------------------------------------------------------------

    def _plans(self, domain: Domain) -> Iterator[Assigned]:
        """Every plan. Raises GaveUp."""
        names = sorted(domain.nodes, key=self._domains.path)
        pinned = [
            _Choice(index, sorted(rooms.units, key=lambda unit: self._domains.path(unit.pin or "")), names)
            for index, rooms in enumerate(self._rooms)
            if rooms.pinned
        ]
        own = [_Choice(index, units, names) for index, units in self._root.own.items()]
        queue = [(group, names, 0) for group in self._root.below]
        for choices in self._choices(queue, 0, 0, Counter()):
            together = [*pinned, *choices, *own]
            wanted = [(self._rooms[one.kind], len(one.units), one.names) for one in together]
            placed = GangSearch(wanted, self._snapshot, self._steps).run()
            if placed is not None:
                self._begin()
                for one, found in zip(together, placed, strict=True):
                    self._assign(one.units, found)
                yield self._assigned

    def _choices(
        self, queue: Sequence[tuple[Sequence[_Part], Sequence[str], int]], done: int, first: int, load: Counter[object]
    ) -> Iterator[list[_Choice]]:
        """Every choice of a domain for each part of the groups in `queue`, each with its nodes and its depth.

        `done` parts of the first group have their domains. The next one, which is equal, comes to the domain at
        position `first` or a later one. `load` has the units of parts of one depth, by domain and rooms.
        """
        if not queue:
            yield []
            return
        (parts, names, depth), *rest = queue
        if done == len(parts):
            yield from self._choices(rest, 0, 0, load)
            return
        part = parts[done]
        for position, (domain, own) in enumerate(self._by_domain(part.shape, names).items()):
            if position < first:
                continue
            self._steps.spend()
            place = depth, part.shape.level, domain
            more = load + Counter({(place, index): number for index, number in part.shape.units.items()})
            if not all(self._bound(index, own) >= more[place, index] for index in part.shape.units):
                continue
            here = [_Choice(index, units, own) for index, units in part.own.items()]
            below = [(group, own, depth + 1) for group in part.below]
            for found in self._choices([(parts, names, depth), *rest, *below], done + 1, position, more):
                yield [*here, *found]

    def _bound(self, index: int, names: Iterable[str]) -> int:
        most = self._rooms[index].most
        return sum(most.get(name, 0) for name in names)


def _shapes(shape: _Shape, times: int = 1) -> Iterator[tuple[_Shape, int]]:
    """The kinds of parts below a part, with the number of each."""
    for below, number in shape.below:
        yield below, number * times
        yield from _shapes(below, number * times)


def _leaves(parts: Sequence[GangPart], path: tuple[int, ...] = ()) -> Iterator[tuple[str, tuple[int, ...]]]:
    """UID and the innermost part of each member, the latter as the positions on the way to it."""
    for position, part in enumerate(parts):
        own = (*path, position)
        yield from ((uid, own) for uid in part.members)
        yield from _leaves(part.parts, own)
