"""A gang of different members, or of members that limit each other's domains, in the fewest sub-domains.

The planner places one kind of members after the other, the largest first, each in the fewest sub-domains, and members
that make room for each other one by one. Together they can need more than the fewest: so smaller choices of racks,
cliques and nodes are tried, the farthest level first. Where the sub-domains are too many to try all choices, the plan
is what was found until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, combinations

from extender.gangs.domains import Domain, Domains, natural
from extender.gangs.gang_units import Placed
from extender.gangs.node_rooms import NodeRooms

MAX_LOOKED_AT = 10_000  # nodes of all choices, for each kind of member: some 10 ms

_Path = tuple[str, ...]
"""The sub-domains around a node, the farthest first, and the node; or the first few of them."""


class FewerDomains:
    """Tries smaller choices for one gang. `fits` is a bound; `place` returns the units in a domain, or None."""

    def __init__(
        self,
        rooms: Sequence[NodeRooms],
        domains: Domains,
        fits: Callable[[Domain], bool],
        place: Callable[[Domain], list[Placed] | None],
    ) -> None:
        self._rooms = rooms
        self._domains = domains
        self._fits = fits
        self._place = place
        self._left = MAX_LOOKED_AT
        self._looks = sum(len(one.units) if one.grows else 1 for one in rooms)  # at each node, to place all

    def plan(self, domain: Domain, placed: list[Placed]) -> list[Placed]:
        """The units in as few sub-domains as were found, in the order of the rooms. `placed` is a plan in the domain.

        Raises DeadlineExceeded.
        """
        found = [self._domains.of_level(level).name_of for level in domain.within]
        levels = [level for level in found if any(name in level for name in domain.nodes)]  # others divide nothing
        paths = {
            name: (*(level[name] for level in levels), name)
            for name in domain.nodes
            if all(name in level for level in levels)
        }
        used = [path for name, path in paths.items() if name in self._domains.placed]
        for depth in range(len(levels) + 1):
            now = _counts(placed, paths, used)
            if now is None:
                return placed
            placed = next(self._smaller(domain, depth, now, paths, used), placed)
        return placed

    def _smaller(
        self, domain: Domain, depth: int, now: Sequence[int], paths: Mapping[str, _Path], used: Sequence[_Path]
    ) -> Iterator[list[Placed]]:
        """Plans with fewer sub-domains of a level than `now` and as many of the farther ones, the fewest first."""
        own = {path[: depth + 1] for path in used}
        parts: dict[_Path, list[str]] = {}
        for name, path in paths.items():
            parts.setdefault(path[: depth + 1], []).append(name)
        kept = [name for part in own for name in parts[part]]
        others = [part for part in parts if part not in own]
        least = self._least(kept, [parts[part] for part in others])
        if least < now[depth]:
            others.sort(key=lambda part: (-self._devices(parts[part]), [natural(name) for name in part]))
        for size in range(least, now[depth]):
            for chosen in combinations(others, size):
                nodes = [*kept, *(name for part in chosen for name in parts[part])]
                self._left -= len(nodes) * self._looks
                if self._left < 0:
                    return
                smaller = replace(domain, nodes=nodes)
                if any(one > most for one, most in zip(_numbers(chosen, used, depth), now, strict=False)):
                    continue
                found = self._place(smaller) if self._fits(smaller) else None
                if found is not None:
                    yield found

    def _devices(self, names: Iterable[str]) -> int:
        return sum(rooms.most.get(name, 0) * max(rooms.size, 1) for name in names for rooms in self._rooms)

    def _least(self, kept: Sequence[str], parts: Sequence[Sequence[str]]) -> int:
        """A lower bound of the sub-domains that are needed besides those of `kept`."""
        least = 0
        for rooms in self._rooms:
            room = sorted((sum(rooms.most.get(name, 0) for name in part) for part in parts), reverse=True)
            first = sum(rooms.most.get(name, 0) for name in kept)
            enough = (
                number for number, total in enumerate(accumulate(room, initial=first)) if total >= len(rooms.units)
            )
            least = max(least, next(enough, 0))
        return least


def _counts(placed: Sequence[Placed], paths: Mapping[str, _Path], used: Sequence[_Path]) -> list[int] | None:
    """The sub-domains of each level that the gang does not use yet, and the nodes; None if a node is in none."""
    names = {name for units in placed for name, _ in units}
    if not names <= paths.keys():
        return None
    found = [paths[name] for name in names]
    return _numbers(found, used, len(found[0]))


def _numbers(found: Sequence[_Path], used: Sequence[_Path], depth: int) -> list[int]:
    """The number of different sub-domains of each of the first levels, without the used ones."""
    return [len({path[i] for path in found} - {path[i] for path in used}) for i in range(depth)]
