"""How members are spread over a domain: the fewest sub-domains, the largest first, and the last one best-fit.

This is the order of Kueue's topology-aware scheduling. Sub-domains that the gang already uses come first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from extender.scheduling.domains import NaturalKey, natural


class _Part(NamedTuple):
    """A sub-domain, or a node."""

    nodes: tuple[str, ...]
    room: int
    used: bool
    key: NaturalKey


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
        parts = [_Part((name,), room, name in used, natural(name)) for name, room in rooms.items()]
        return {part.nodes[0]: number for part, number in _fewest(parts, wanted)}
    groups: dict[str | None, list[str]] = {}
    for name in rooms:
        groups.setdefault(value_of(name, levels[0]), []).append(name)
    outside = groups.pop(None, [])
    found: dict[str, int] = {}
    for part, number in _fewest((_part(value or "", names, rooms, used) for value, names in groups.items()), wanted):
        found |= spread({name: rooms[name] for name in part.nodes}, levels[1:], number, value_of, used)
    left = wanted - sum(found.values())
    if left and outside:
        found |= spread({name: rooms[name] for name in outside}, levels[1:], left, value_of, used)
    return found


def _part(value: str, names: list[str], rooms: Mapping[str, int], used: frozenset[str]) -> _Part:
    return _Part(tuple(names), sum(rooms[name] for name in names), not used.isdisjoint(names), natural(value))


def _fewest(parts: Iterable[_Part], wanted: int) -> Iterator[tuple[_Part, int]]:
    """The chosen parts with the number of units for each."""
    ordered = sorted((part for part in parts if part.room), key=lambda part: (-part.room, part.key))
    heads = [deque(part for part in ordered if part.used), deque(part for part in ordered if not part.used)]
    while wanted > 0 and any(heads):
        enough = [part for head in heads if head and head[0].room >= wanted for part in head if part.room >= wanted]
        if enough:
            yield min(enough, key=lambda part: (not part.used, part.room, part.key)), wanted
            return
        part = next(head for head in heads if head).popleft()
        yield part, part.room
        wanted -= part.room
