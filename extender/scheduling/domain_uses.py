"""How much of each domain is in use, so that whole racks and cliques stay whole.

Of choices that are equal otherwise, one in a partly used domain comes first, and of partly used domains, one in the
domain with the fewest free GPUs: on the nearest level, then on the next one. The counts follow the snapshots: an update
costs as much as the changed nodes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from extender.allocation import NodeInfo, Snapshot
from extender.api.group_topology import ONE_NODE
from extender.api.label_domains import Path, path_of
from extender.api.nodes import Node
from extender.vendors import CLIQUE_LABELS

_MAX_PLACES = 256  # that one search looks at
_MAX_EQUAL = 16  # of these, equal ones that are compared further
_MAX_NODES = 72  # of a place: no NVLink clique has more GPUs


def path_labels(level: str, levels: Sequence[str]) -> tuple[str, ...]:
    """The labels whose values identify a domain of `level`. The policy has `levels`, the nearest level first."""
    if level in CLIQUE_LABELS or level not in levels:
        return (level,)
    return tuple(levels[levels.index(level) :])


class Use(NamedTuple):
    """The use of a domain, as an order: domains in use first, and of them those with the least room."""

    whole: bool  # no GPU is in use
    free: int  # GPUs


# Around a node that lacks the label: no whole domain is broken, and none is filled.
_NO_DOMAIN = Use(whole=False, free=1 << 30)


@dataclass(slots=True, eq=False)
class _Domain:
    used: int = 0  # GPUs
    free: int = 0
    places: dict[_Place, None] = field(default_factory=dict)

    @property
    def use(self) -> Use:
        return Use(not self.used, self.free)


_Key = tuple[int, ...]
_Name = tuple[tuple[str, ...], ...]  # the paths; () for none


@dataclass(slots=True, eq=False)
class _Place:
    """The nodes that are in the same domain of every level."""

    paths: tuple[Path | None, ...]
    domains: tuple[_Domain | None, ...]  # the nearest level first
    nearest: _Domain | None  # of them
    name: _Name  # of equal places the first by name comes first: never by the order in which nodes were seen
    states: dict[int, dict[str, None]] = field(default_factory=dict)  # names by number of the node state
    key: _Key | None = None  # in the order; None: not there

    def enter(self, name: str, state: int) -> None:
        self.states.setdefault(state, {})[name] = None

    def leave(self, name: str, state: int) -> None:
        names = self.states[state]
        del names[name]
        if not names:
            del self.states[state]

    @property
    def room(self) -> list[int]:
        """The free GPUs of the domains, the nearest first: the order of places with equal keys."""
        return [domain.free if domain is not None else 0 for domain in self.domains]

    def new_key(self) -> _Key:
        """The Use of each domain, of those around the nearest one without the room: or each pod would move a spine."""
        found = list[int]()
        for domain in self.domains:
            if domain is None:
                found += _NO_DOMAIN
            else:
                found += (not domain.used, domain.free if domain is self.nearest else 0)
        return tuple(found)


class _Known(NamedTuple):
    """A node as it is counted."""

    node: Node
    place: _Place
    state: int
    used: int
    free: int


class DomainUses:
    """The use of the domains of a policy's `group_levels`. It follows the snapshots of one cache."""

    def __init__(self, levels: Sequence[str]) -> None:
        self.levels = tuple(levels)
        self._labels = [path_labels(level, levels) for level in levels]
        self._forget()

    def _forget(self) -> None:
        self._version: int | None = None
        self._nodes: dict[str, _Known] = {}
        self._domains: dict[tuple[int, Path], _Domain] = {}  # by number of the level and path
        self._places: dict[tuple[Path | None, ...], _Place] = {}
        self._order: list[tuple[_Key, _Name, _Place]] = []

    def update(self, snapshot: Snapshot) -> None:
        """Bring the counts up to date."""
        if snapshot.version == self._version:
            return
        changed = snapshot.changed_since(self._version) if self._version is not None else None
        if changed is None:
            self._count_all(snapshot)
        else:
            for name in changed:
                for place in self._counted(name, snapshot.node_infos.get(name)):
                    self._move(place)
        self._version = snapshot.version

    def _count_all(self, snapshot: Snapshot) -> None:
        self._forget()
        for name, node_info in snapshot.node_infos.items():
            self._counted(name, node_info)
        for place in self._places.values():
            place.key = place.new_key()
            self._order.append((place.key, place.name, place))
        self._order.sort()

    @property
    def size(self) -> int:
        """The number of sets of nodes that are in the same domains: memory grows with it."""
        return len(self._order)

    def use(self, level: str, name: str) -> Use:
        """The use of the domain of a level around a node, or of the node itself for ONE_NODE."""
        known = self._nodes.get(name)
        if level == ONE_NODE:
            return Use(not known.used, known.free) if known is not None else _NO_DOMAIN
        domain = known.place.domains[self.levels.index(level)] if known is not None else None
        return domain.use if domain is not None else _NO_DOMAIN

    def around(self, name: str) -> object:
        """A sort key: the nodes in partly used domains come first, on the nearest level first."""
        place = self._nodes[name].place
        return place.key, place.room

    def first_of(self, names: Sequence[str]) -> str:
        """The node of these that comes first; of equal ones, the first in the given order."""
        places = [self._nodes[name].place for name in names]
        key = min([place.key for place in places if place.key is not None])
        equal = [(place.room, number) for number, place in enumerate(places) if place.key == key]
        return names[min(equal)[1]]

    def first(self, states: AbstractSet[int], accepts: Callable[[str], bool]) -> str | None:
        """The first accepted node in one of these states; None if there is none, or if the search ends at a limit."""
        for place in sorted(self._equal_places(states), key=lambda place: (place.room, place.name)):
            names = (name for state in place.states.keys() & states for name in islice(place.states[state], _MAX_NODES))
            name = min(filter(accepts, names), default=None)
            if name is not None:
                return name
        return None

    def _equal_places(self, states: AbstractSet[int]) -> Iterator[_Place]:
        """The first places with nodes in these states."""
        start, found, key = bisect_left(self._order, ((0, 1),)), 0, None
        for own, _, place in islice(self._order, start, start + _MAX_PLACES):
            if found and (own != key or found == _MAX_EQUAL):
                return
            if not states.isdisjoint(place.states):
                key, found = own, found + 1
                yield place

    # -- counting --------------------------------------------------------------------------------------------

    def _counted(self, name: str, node_info: NodeInfo | None) -> Iterable[_Place]:
        """Count a node as it is now; None: no longer. Returns the places whose key may be another one."""
        old, new = self._nodes.get(name), None
        if node_info is not None:
            node, (used, free) = node_info.node, _gpus(node_info)
            place = old.place if old is not None and old.node is node else self._place_of(node)
            new = self._nodes[name] = _Known(node, place, node_info.state.number, used, free)
        else:
            self._nodes.pop(name, None)
        moved: dict[_Place, None] = {}
        if old is not None and new is not None and old.place is new.place:
            if old.state != new.state:
                old.place.leave(name, old.state)
                new.place.enter(name, new.state)
            if (old.used, old.free) != (new.used, new.free):
                _add(new.place, new.used - old.used, new.free - old.free, moved)
            return moved
        if old is not None:
            old.place.leave(name, old.state)
            _add(old.place, -old.used, -old.free, moved)
        if new is not None:
            new.place.enter(name, new.state)
            _add(new.place, new.used, new.free, moved)
        return moved

    def _place_of(self, node: Node) -> _Place:
        paths = tuple(path_of(node.labels, labels) for labels in self._labels)
        found = self._places.get(paths)
        if found is None:
            domains = tuple(
                self._domains.setdefault((level, path), _Domain()) if path is not None else None
                for level, path in enumerate(paths)
            )
            nearest = next((domain for domain in domains if domain is not None), None)
            found = self._places[paths] = _Place(paths, domains, nearest, tuple(path or () for path in paths))
            for domain in domains:
                if domain is not None:
                    domain.places[found] = None
        return found

    def _move(self, place: _Place) -> None:
        """Put a place where it belongs in the order; forget it if it has no nodes."""
        key = place.new_key() if place.states else None
        if key == place.key and key is not None:
            return
        if place.key is not None:
            del self._order[bisect_left(self._order, (place.key, place.name))]
        place.key = key
        if key is not None:
            insort(self._order, (key, place.name, place))
            return
        self._places.pop(place.paths, None)
        for level, (path, domain) in enumerate(zip(place.paths, place.domains, strict=True)):
            if domain is not None and path is not None:
                domain.places.pop(place, None)
                if not domain.places:
                    self._domains.pop((level, path), None)


def _add(place: _Place, used: int, free: int, moved: dict[_Place, None]) -> None:
    """Count GPUs in the domains of a place, and note the places whose key may be another one."""
    moved[place] = None
    for domain in place.domains:
        if domain is not None:
            was_whole = not domain.used
            domain.used += used
            domain.free += free
            if (domain is place.nearest and len(domain.places) > 1) or was_whole == bool(domain.used):
                moved |= domain.places


def _gpus(node_info: NodeInfo) -> tuple[int, int]:
    """(GPUs in use, free ones)"""
    used = node_info.own_in_use
    return used, node_info.inventory.packed.bit_count() - used
