"""Places a gang with sub-groups (subgroup_tree.py) in a domain: each sub-group in one domain of its level.

Equal ones, such as slices, are counted. The room of a domain is the number of sub-groups that fit there, and equal ones
spread over the fewest domains as units spread over nodes. For sub-groups of equal units that is exact. Where it finds
no place for those that differ, all choices of domains for them are tried, up to a number of steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from extender.allocation import Snapshot
from extender.api.label_domains import natural
from extender.gangs.domains import Domain, Domains, PlaceOrder
from extender.gangs.gang_problem import Placed, Unit, UnitPlacement
from extender.gangs.gang_search import GangSearch, GaveUp, Steps, local_nodes
from extender.gangs.node_rooms import GangTrial, NodeRooms
from extender.gangs.spreading import spread
from extender.scheduling.subgroup_tree import SubGroup

MAX_SEARCHED = 64  # sub-groups whose choices of domains are all tried: a frame of Python's stack for each

Assigned = list[tuple[Unit, tuple[str, UnitPlacement]]]
"""Each unit with its node and its devices."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """What equal sub-groups have in common."""

    level: str
    fixed: str  # the domain in which members of the sub-group are bound; '' for none
    own: tuple[tuple[int, int], ...]  # (index of the rooms, number of units) of the members that are in none of `below`
    below: tuple[tuple[_Shape, int], ...]  # with the number of such sub-groups in it

    @property
    def units(self) -> Counter[int]:
        """The number of all units by the index of their rooms."""
        found = Counter(dict(self.own))
        for shape, number in self.below:
            for index, units in shape.units.items():
                found[index] += units * number
        return found

    @property
    def subgroups(self) -> int:
        """The number of all sub-groups below it."""
        return sum(number * (1 + shape.subgroups) for shape, number in self.below)


class _SubGroup(NamedTuple):
    shape: _Shape
    own: Mapping[int, Sequence[Unit]]
    below: Sequence[Sequence[_SubGroup]]  # by the entries of `shape.below`


class _Choice(NamedTuple):
    """Units that may use some nodes."""

    kind: int  # index of the rooms
    units: Sequence[Unit]
    names: Sequence[str]


class SubGroupFilling:
    """Fills domains with all units of one gang. No plan depends on an earlier call."""

    def __init__(
        self,
        subgroups: Sequence[SubGroup],
        rooms: Sequence[NodeRooms],
        snapshot: Snapshot,
        domains: Domains,
        order: PlaceOrder,
        steps: Steps,
    ) -> None:
        self._rooms = rooms
        self._snapshot = snapshot
        self._domains = domains
        self._place_order = order
        self._steps = steps
        units = {
            member.uid: (index, unit)
            for index, one in enumerate(rooms)
            for unit in one.units
            for member in unit.members
        }
        leaves = dict(_leaves(subgroups))
        # Whether members that share a claim, and so a node, are in different sub-groups.
        self._is_torn = any(
            len({leaves.get(member.uid) for member in unit.members}) > 1 for one in rooms for unit in one.units
        )
        self._is_apart = False  # members of one sub-group are pinned to nodes of two domains
        self._root = self._subgroup("", "", [*units], subgroups, units)
        self._trial = GangTrial()
        self._assigned: Assigned = []

    # -- the tree --------------------------------------------------------------------------------------------

    def _subgroup(
        self,
        level: str,
        fixed: str,
        uids: Iterable[str],
        subgroups: Sequence[SubGroup],
        units: Mapping[str, tuple[int, Unit]],
    ) -> _SubGroup:
        below = [
            self._subgroup(one.level, self._domain_of(one, units), one.members, one.inner, units) for one in subgroups
        ]
        below = sorted((one for one in below if one.shape.units), key=lambda one: self._order(one.shape))
        groups = [list(group) for _, group in groupby(below, key=lambda one: one.shape)]
        inner = {uid for one in subgroups for uid in one.members}
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
        return _SubGroup(shape, {index: list(found) for index, found in own.items()}, groups)

    def _domain_of(self, subgroup: SubGroup, units: Mapping[str, tuple[int, Unit]]) -> str:
        """The domain of the members that are bound or pinned; '' for none."""
        domains = self._domains.of_level(subgroup.level)
        own = [units[uid][1] for uid in subgroup.members if uid in units]
        pins = {domains.name_of.get(unit.pin) for unit in own if unit.pin is not None}
        bound = domains.of_most(subgroup.placed)
        self._is_apart |= len(pins | ({bound} if bound is not None else set())) > 1 or None in pins
        return bound or next((pin for pin in pins if pin is not None), "")

    def _order(self, shape: _Shape) -> tuple[bool, int, str]:
        """Sub-groups that can be in one domain only come first, then the largest ones. Equal shapes are neighbours."""
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
        """All units in a domain, with any devices, and with any domains for the sub-groups; None if they do not fit.

        The steps may end first.
        """
        if self._is_apart or (not self._is_torn and self._cannot_fit(domain)):
            return None
        for variant in range(1, max(rooms.variants for rooms in self._rooms)):
            found = self.preferred(domain, variant)
            if found is not None:
                return found
        try:
            if self._is_torn or self._root.shape.subgroups > MAX_SEARCHED:
                self._steps.spend(self._steps.left + 1)
            return next(self._plans(domain), None)
        except GaveUp:
            return None

    def _begin(self) -> None:
        self._trial, self._assigned = GangTrial(), []

    def _pinned(self, domain: Domain, variant: int) -> bool:
        """Place the units that can be on one node only."""
        for rooms in self._rooms:
            if rooms.pinned:
                placed = self._place_order.fill(rooms, self._trial, domain, len(rooms.units), variant)
                if placed is None:
                    return False
                self._assign(sorted(rooms.units, key=lambda unit: self._domains.path(unit.pin or "")), placed)
        return True

    def _assign(self, units: Sequence[Unit], placed: Placed) -> None:
        """Give the nodes to the units in order."""
        self._assigned += zip(units, sorted(placed, key=lambda entry: self._domains.path(entry[0])), strict=True)

    # -- counting equal sub-groups --------------------------------------------------------------------------------

    def _place(self, subgroups: Sequence[_SubGroup], names: Sequence[str], within: Sequence[str], variant: int) -> bool:
        """Place equal sub-groups."""
        shape = subgroups[0].shape
        nodes = self._by_domain(shape, names)
        room = self._room(subgroups, nodes, variant)
        if sum(room.values()) < len(subgroups):
            return False
        farther, nearer = self._levels_around(shape.level, nodes, within)
        nodes_in_use, name_of = self._domains.placed | self._trial.nodes, self._domains.of_level(shape.level).name_of
        used = {name_of[name] for name in nodes_in_use if name in name_of}
        names_of = [self._names_of(level, nodes) for level in farther]
        orders = self._place_order.of_levels([*farther, shape.level], self._rooms[0])
        chosen = spread(room, names_of, orders, len(subgroups), frozenset(used))
        done = 0
        for domain in sorted(chosen, key=lambda one: self._domains.path(min(nodes[one], key=natural))):
            own = subgroups[done : done + chosen[domain]]
            together = [own] if self._rooms_of(shape) is not None else [[subgroup] for subgroup in own]
            if not all(self._whole(some, nodes[domain], nearer, variant) for some in together):
                return False
            done += len(own)
        return done == len(subgroups)

    def _whole(self, subgroups: Sequence[_SubGroup], names: Sequence[str], within: Sequence[str], variant: int) -> bool:
        """Place sub-groups in one domain, or nothing of them."""
        taken, assigned = len(self._trial), len(self._assigned)
        if self._inside(subgroups, names, within, variant):
            return True
        self._trial.undo_to(taken)
        del self._assigned[assigned:]
        return False

    def _inside(
        self, subgroups: Sequence[_SubGroup], names: Sequence[str], within: Sequence[str], variant: int
    ) -> bool:
        """Place what is in equal sub-groups, all of it on these nodes."""
        shape = subgroups[0].shape
        for position in range(len(shape.below)):
            below = [one for subgroup in subgroups for one in subgroup.below[position]]
            if not self._place(below, names, within, variant):
                return False
        for index, _ in shape.own:
            units = [unit for subgroup in subgroups for unit in subgroup.own[index]]
            domain = Domain("", "", names, tuple(within))
            placed = self._place_order.fill(self._rooms[index], self._trial, domain, len(units), variant)
            if placed is None:
                return False
            self._assign(units, placed)
        return True

    def _by_domain(self, shape: _Shape, names: Sequence[str]) -> dict[str, list[str]]:
        """The nodes by domain of a sub-group's level; only the domain in which members are bound, if there is one."""
        found: dict[str, list[str]] = {}
        name_of = self._domains.of_level(shape.level).name_of
        for name in names:
            domain = name_of.get(name)
            if domain is not None and shape.fixed in ("", domain):
                found.setdefault(domain, []).append(name)
        return found

    def _levels_around(
        self, level: str, nodes: Mapping[str, Sequence[str]], within: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """(the levels of which the domains of a level are sub-groups, the other ones, which are nearer)."""
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

    def _room(self, subgroups: Sequence[_SubGroup], nodes: Mapping[str, Sequence[str]], variant: int) -> dict[str, int]:
        """The number of these sub-groups that each domain has room for; domains without room are left out."""
        shape, index = subgroups[0].shape, self._rooms_of(subgroups[0].shape)
        if index is not None:
            names = [name for own in nodes.values() for name in own]
            known = self._rooms[index].rooms(self._trial, names, shape.units[index] * len(subgroups), variant)
            counted = {domain: self._counted(shape, own, known) for domain, own in nodes.items()}
        else:
            counted = {domain: self._tried(subgroups, own, variant) for domain, own in nodes.items()}
        return {domain: min(number, len(subgroups)) for domain, number in counted.items() if number}

    def _rooms_of(self, shape: _Shape) -> int | None:
        """The index of the rooms of all units, if these can be counted: they are equal, no two kinds compete.

        None if not, also if a limit holds for nodes together.
        """
        indices = shape.units.keys()
        if len(indices) != 1 or len(shape.below) > 1 or any(self._rooms_of(below) is None for below, _ in shape.below):
            return None
        (index,) = indices
        return None if self._rooms[index].spans_domains else index

    def _counted(self, shape: _Shape, names: Sequence[str], known: Mapping[str, int]) -> int:
        """The number of sub-groups of one kind of equal units that fit on nodes with this room, exactly."""
        found = sum(known.get(name, 0) for name in names) // shape.units.total()
        for below, number in shape.below:
            inner = self._by_domain(below, names).values()
            found = min(found, sum(self._counted(below, own, known) for own in inner) // number)
        return found

    def _tried(self, subgroups: Sequence[_SubGroup], names: Sequence[str], variant: int) -> int:
        """The number of sub-groups that fit one after the other; the trial stays as it is."""
        taken, assigned, found = len(self._trial), len(self._assigned), 0
        for subgroup in subgroups:
            if not self._whole([subgroup], names, (), variant):
                break
            found += 1
        self._trial.undo_to(taken)
        del self._assigned[assigned:]
        return found

    def _cannot_fit(self, domain: Domain) -> bool:
        """Whether counting proves that the sub-groups do not fit, whatever devices and domains are chosen."""
        shape = self._root.shape
        if not all(self._may_place(subgroup, number, domain.nodes) for subgroup, number in _shapes(shape)):
            return True
        index = self._rooms_of(shape)
        if index is None:
            return False
        if len(self._rooms) == 1 and self._rooms[index].each:
            return len(local_nodes(domain.nodes, self._snapshot)) == len(domain.nodes)
        return self._counted(shape, domain.nodes, self._rooms[index].most) == 0

    def _may_place(self, shape: _Shape, number: int, names: Sequence[str]) -> bool:
        """Whether so many sub-groups may fit on these nodes if only their units' number counts, and no other."""
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
        self,
        queue: Sequence[tuple[Sequence[_SubGroup], Sequence[str], int]],
        done: int,
        first: int,
        load: Counter[object],
    ) -> Iterator[list[_Choice]]:
        """Every choice of a domain for each sub-group of the groups in `queue`, each with its nodes and its depth.

        `done` sub-groups of the first group have their domains. The next one, which is equal, comes to the domain at
        position `first` or a later one. `load` has the units of sub-groups of one depth, by domain and rooms.
        """
        if not queue:
            yield []
            return
        (subgroups, names, depth), *rest = queue
        if done == len(subgroups):
            yield from self._choices(rest, 0, 0, load)
            return
        subgroup = subgroups[done]
        for position, (domain, own) in enumerate(self._by_domain(subgroup.shape, names).items()):
            if position < first:
                continue
            self._steps.spend()
            place = depth, subgroup.shape.level, domain
            more = load + Counter({(place, index): number for index, number in subgroup.shape.units.items()})
            if not all(self._bound(index, own) >= more[place, index] for index in subgroup.shape.units):
                continue
            here = [_Choice(index, units, own) for index, units in subgroup.own.items()]
            below = [(group, own, depth + 1) for group in subgroup.below]
            for found in self._choices([(subgroups, names, depth), *rest, *below], done + 1, position, more):
                yield [*here, *found]

    def _bound(self, index: int, names: Iterable[str]) -> int:
        most = self._rooms[index].most
        return sum(most.get(name, 0) for name in names)


def _shapes(shape: _Shape, times: int = 1) -> Iterator[tuple[_Shape, int]]:
    """The kinds of sub-groups below a sub-group, with the number of each."""
    for below, number in shape.below:
        yield below, number * times
        yield from _shapes(below, number * times)


def _leaves(subgroups: Sequence[SubGroup], path: tuple[int, ...] = ()) -> Iterator[tuple[str, tuple[int, ...]]]:
    """UID and the innermost sub-group of each member, the latter as the positions on the way to it."""
    for position, subgroup in enumerate(subgroups):
        own = (*path, position)
        yield from ((uid, own) for uid in subgroup.members)
        yield from _leaves(subgroup.inner, own)
