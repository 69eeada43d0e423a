"""Filling a domain with the units of a gang, and with the preferred devices of each unit."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from extender.allocation import Snapshot
from extender.scheduling.domains import Domain, natural
from extender.scheduling.gang_search import GaveUp, Steps, packed
from extender.scheduling.gang_spread import spread
from extender.scheduling.gang_trial import GangTrial
from extender.scheduling.gang_units import Placed, UnitPlacement
from extender.scheduling.node_room import NodeRooms


class Filled(NamedTuple):
    """The units that a domain received, in the order of the rooms, and the number of their members."""

    placed: list[Placed]
    members: int


def fill(
    all_rooms: Sequence[NodeRooms],
    domain: Domain,
    snapshot: Snapshot,
    used: frozenset[str],
    variant: int = 0,
    *,
    whole: bool = True,
) -> Filled | None:
    """Place all units in a domain. If not all fit: None, or with `whole` False as many as fit.

    `used` are the nodes on which members are bound. Raises DeadlineExceeded.
    """
    trial, found = GangTrial(snapshot), list[Placed]()
    for rooms in all_rooms:
        placed = _fill_rooms(rooms, trial, domain, snapshot, used, variant, whole=whole)
        if placed is None:
            return None
        found.append(placed)
    return Filled(found, members_of(all_rooms, found))


def members_of(all_rooms: Sequence[NodeRooms], placed: Sequence[Placed]) -> int:
    """The number of members of these units."""
    return sum(rooms.members_per_unit * len(units) for rooms, units in zip(all_rooms, placed, strict=True))


def _fill_rooms(
    rooms: NodeRooms,
    trial: GangTrial,
    domain: Domain,
    snapshot: Snapshot,
    used: frozenset[str],
    variant: int,
    *,
    whole: bool,
) -> Placed | None:
    placed: Placed = []
    while len(placed) < len(rooms.units):
        left = len(rooms.units) - len(placed)
        known = rooms.rooms(trial, domain.nodes, left, variant)
        if whole and sum(known.values()) < left:
            return None
        before = len(placed)
        for name, number in spread(known, domain.within, left, _labels(snapshot), used | trial.nodes).items():
            placed += ((name, unit) for unit in rooms.place(trial, name, number, variant))
        # Nodes that share a pool have less room together than each alone. So the rest is spread again.
        if len(placed) == before:
            break
    return placed if not whole or len(placed) == len(rooms.units) else None


def _labels(snapshot: Snapshot) -> Callable[[str, str], str | None]:
    def value_of(name: str, label: str) -> str | None:
        return snapshot.node_infos[name].node.labels.get(label)

    return value_of


def pack(
    rooms: NodeRooms, domain: Domain, snapshot: Snapshot, used: frozenset[str], steps: Steps
) -> list[Placed] | None:
    """Place all units of a gang of equal units in a domain whose nodes share no pool, with any of their devices.

    Units on one node do not affect other nodes. So each node is searched alone, until there is room for all units.
    None if not all fit, or if the steps end first. Raises DeadlineExceeded.
    """
    trial, wanted = GangTrial(snapshot), len(rooms.units)
    room = rooms.rooms(trial, domain.nodes, wanted)
    better: dict[Hashable, tuple[UnitPlacement, ...]] = {}  # by equivalence key of the node
    for name in sorted(domain.nodes, key=natural):
        if sum(room.values()) >= wanted:
            break
        if room.get(name, 0) < min(rooms.most.get(name, 0), wanted):
            key = rooms.equivalence_key(name)
            if key not in better:
                better[key] = _packed(rooms, name, wanted, snapshot, steps)
            room[name] = max(room.get(name, 0), len(better[key]))
    if sum(room.values()) < wanted:
        return None
    placed: Placed = []
    for name, number in spread(room, domain.within, wanted, _labels(snapshot), used).items():
        found = rooms.place(trial, name, number)
        units = found if len(found) == number else better[rooms.equivalence_key(name)][:number]
        placed += ((name, unit) for unit in units)
    return [placed]


def _packed(rooms: NodeRooms, name: str, wanted: int, snapshot: Snapshot, steps: Steps) -> tuple[UnitPlacement, ...]:
    """The most units on one node, with any devices and alternatives."""
    best: tuple[UnitPlacement, ...] = ()
    for variant in range(rooms.variants):
        trial = GangTrial(snapshot)
        found = rooms.place(trial, name, wanted, variant)
        best = max(best, found, key=len)
    try:
        while len(best) < min(rooms.most[name], wanted):
            more = packed(rooms, name, len(best) + 1, snapshot, steps)
            if more is None:
                break
            best = more
    except GaveUp:
        pass
    return best
