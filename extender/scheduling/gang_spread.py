"""How members are spread over a domain: the fewest sub-domains, the largest first, and the last one best-fit.

This is the order of Kueue's topology-aware scheduling. Sub-domains that the gang already uses come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from extender.scheduling.domains import natural


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
