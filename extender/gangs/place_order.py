"""Which of equal domains, sub-domains and nodes a gang takes, and which member gets which of its nodes.

Preferred ones come first, then partly used ones, then by name.
So whole racks and cliques stay whole, whatever their names. The planner compares domains, and `spreading` compares
sub-domains and nodes of equal room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import fsum

from extender.allocation import Snapshot
from extender.api.label_domains import LabelDomains
from extender.gangs.domains import NODE, Domain, Domains, natural
from extender.gangs.gang_units import Unit
from extender.gangs.node_rooms import NodeRooms
from extender.gangs.spreading import Level, Order
from extender.scheduling import DomainUses, EvaluationContext, NodePreference, Use
from extender.topology.assignment import assigned
from extender.vendors import CLIQUE_LABELS

MAX_COMPARED = 500_000  # rows * rows * columns of an assignment: 79 members that prefer other nodes; some 20 ms


class PlaceOrder:
    """The order of the domains of one snapshot."""

    def __init__(
        self,
        rooms: Sequence[NodeRooms],
        domains: Domains,
        uses: DomainUses,
        snapshot: Snapshot,
        context: EvaluationContext,
    ) -> None:
        """`rooms` are those of all units of the gang."""
        self._rooms = rooms
        self._domains = domains
        self._uses = uses
        self._snapshot = snapshot
        self._context = context

    # -- domains ---------------------------------------------------------------------------------------------

    def _spare(self, domain: Domain) -> int:
        self._context.deadline.check_time()
        return sum(rooms.most.get(name, 0) for rooms in self._rooms for name in domain.nodes)

    def tightest_first(self, domains: list[Domain]) -> Iterator[Domain]:
        """By the room that is left, the domains around them, what the members prefer, the scores, and the names."""
        by_room = sorted(((self._spare(domain), domain) for domain in domains), key=lambda entry: entry[0])
        for _, group in groupby(by_room, key=lambda entry: entry[0]):
            equal = [domain for _, domain in group]
            yield from self._by_use(equal, self._compared_levels(equal[0].level)) if len(equal) > 1 else equal

    def _compared_levels(self, level: str) -> Sequence[str]:
        """The level and the farther ones, as far as the policy has them."""
        self._uses.update(self._snapshot)
        known, levels = self._uses.levels, self._domains.levels
        if level == NODE:
            return NODE, *known
        return [one for one in levels[levels.index(level) :] if one in known] if level in levels else ()

    def _by_use(self, domains: list[Domain], levels: Sequence[str]) -> Iterator[Domain]:
        """By the use of the domains around them, level by level. Most domains are compared on the first level only."""
        if not levels:
            yield from sorted(domains, key=self._by_score)
            return

        def use(domain: Domain) -> Use:
            self._context.deadline.check_time()
            return self._uses.use(levels[0], _some_node(domain.level, domain.nodes))

        for _, group in groupby(sorted(domains, key=use), key=use):
            equal = list(group)
            yield from self._by_use(equal, levels[1:]) if len(equal) > 1 else equal

    def _by_score(self, domain: Domain) -> tuple[int, float, object, object]:
        rooms = self._rooms[0]
        scores = (rooms.score[name] * rooms.most[name] for name in domain.nodes if name in rooms.most)
        # fsum, because the order of the nodes must not matter. The first node orders domains of one name.
        return -self._liked(domain), -fsum(scores), natural(domain.name), natural(min(domain.nodes))

    def _liked(self, domain: Domain) -> int:
        """The points for which the members prefer the nodes of a domain, for all room there."""
        return sum(
            rooms.preference[name] * rooms.most[name]
            for rooms in self._rooms
            if rooms.preference
            for name in domain.nodes
            if name in rooms.most
        )

    # -- sub-domains and nodes -------------------------------------------------------------------------------

    def of_parts(
        self, rooms: NodeRooms, room: Mapping[str, int], domain: Domain
    ) -> tuple[Sequence[Level], Sequence[Order]]:
        """The levels over which a gang spreads in a domain, with the orders of their sub-domains and of the nodes.

        `room` is the number of units by node. Raises DeadlineExceeded.
        """
        found = [self._domains.of_level(level) for level in domain.within]
        orders = [self._of_level(level, one, rooms, room) for level, one in zip(domain.within, found, strict=True)]
        return [one.name_of for one in found], [*orders, self._of_nodes(rooms)]

    def of_levels(self, levels: Sequence[str], rooms: NodeRooms) -> list[Order]:
        """The orders of whole domains of some levels, whatever the members prefer of their nodes."""
        return [
            self._of_nodes(rooms) if level == NODE else self._of_level(level, self._domains.of_level(level), rooms, {})
            for level in levels
        ]

    def _of_level(self, level: str, domains: LabelDomains, rooms: NodeRooms, room: Mapping[str, int]) -> Order:
        compared, liked, points = self._compared_levels(level), dict[str, int](), rooms.preference
        for name in room if points else ():
            if (own := domains.name_of.get(name)) is not None:
                liked[own] = liked.get(own, 0) + points[name] * room[name]

        def key(name: str) -> tuple[int, list[Use], object]:
            node = _some_node(level, domains.nodes[name])
            return -liked.get(name, 0), [self._uses.use(one, node) for one in compared], natural(name)

        return lambda names: sorted(names, key=key)

    def _of_nodes(self, rooms: NodeRooms) -> Order:
        self._uses.update(self._snapshot)
        points = rooms.preference

        def order(names: Iterable[str]) -> list[str]:
            found = self._uses.ordered(sorted(names, key=natural))
            return sorted(found, key=lambda name: -points.get(name, 0)) if points else found

        return order

    # -- members ---------------------------------------------------------------------------------------------

    def units_for(self, rooms: NodeRooms, names: Sequence[str]) -> Sequence[Unit]:
        """Equal units in the order of their nodes `names`, which are sorted by path: by rank.

        Units that are pinned go to their nodes, and units that prefer other nodes than the rest to those.
        """
        if rooms.pinned:
            return sorted(rooms.units, key=lambda unit: self._domains.path(unit.pin or ""))
        if not rooms.has_preferences:
            return rooms.units
        classes: dict[tuple[NodePreference, ...], list[Unit]] = {}
        for unit in rooms.units:
            classes.setdefault(tuple(member.prefers for member in unit.members), []).append(unit)
        if len(classes) == 1:
            return rooms.units
        nodes = [self._snapshot.node_infos[name].node for name in names]
        points: dict[tuple[NodePreference, ...], list[int]] = {}
        for wanted in classes:
            self._context.deadline.check_time()
            points[wanted] = [sum(one.points(node) for one in wanted) for node in nodes]
        choosy = [
            (points[wanted], wanted) for wanted, units in classes.items() for _ in units if _differ(points[wanted])
        ]
        position_of = dict(zip(_positions([row for row, _ in choosy]), choosy, strict=True))
        own: dict[tuple[NodePreference, ...], list[Unit]] = {key: units[::-1] for key, units in classes.items()}
        others = [unit for unit in rooms.units if not _differ(points[tuple(one.prefers for one in unit.members)])][::-1]
        return [
            own[position_of[position][1]].pop() if position in position_of else others.pop()
            for position in range(len(names))
        ]


def _differ(points: Sequence[int]) -> bool:
    return len(set(points)) > 1


def _positions(table: list[list[int]]) -> list[int]:
    """The column of each row, so that the sum is the largest; in a table that is too large, the best one left."""
    if len(table) ** 2 * len(table[0] if table else ()) <= MAX_COMPARED:
        return assigned(table)
    left, found = dict.fromkeys(range(len(table[0]))), list[int]()
    for row in table:
        best = max(left, key=row.__getitem__)
        del left[best]
        found.append(best)
    return found


def _some_node(level: str, nodes: Sequence[str] | frozenset[str]) -> str:
    """A node of a domain. Only a clique can span two domains of a farther level: then it must not be any one."""
    return min(nodes) if level in CLIQUE_LABELS else next(iter(nodes))
