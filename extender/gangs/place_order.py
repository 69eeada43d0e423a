"""Which of equal domains, sub-domains and nodes a gang takes: preferred ones, then partly used ones, then by name.

So whole racks and cliques stay whole, whatever their names. The planner compares domains, and `spreading` compares
sub-domains and nodes of equal room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from extender.allocation import Snapshot
from extender.api.claim_specs import CLIQUE_LABEL
from extender.api.label_domains import LabelDomains
from extender.gangs.domains import NODE, Domain, Domains, natural
from extender.gangs.node_rooms import NodeRooms
from extender.gangs.spreading import Level, Order
from extender.scheduling import DomainUses, Use


class PlaceOrder:
    """The order of the domains of one snapshot."""

    def __init__(self, domains: Domains, uses: DomainUses, snapshot: Snapshot) -> None:
        self._domains = domains
        self._uses = uses
        self._snapshot = snapshot

    def compared_levels(self, level: str) -> Sequence[str]:
        """The level and the farther ones, as far as the policy has them."""
        self._uses.update(self._snapshot)
        known, levels = self._uses.levels, self._domains.levels
        if level == NODE:
            return NODE, *known
        return [one for one in levels[levels.index(level) :] if one in known] if level in levels else ()

    def use(self, level: str, domain: Domain) -> Use:
        """The use around a domain at its own level or a farther one. `compared_levels` has brought it up to date."""
        return self._uses.use(level, _some_node(domain.level, domain.nodes))

    def of_parts(
        self, rooms: NodeRooms, room: Mapping[str, int], domain: Domain
    ) -> tuple[Sequence[Level], Sequence[Order]]:
        """The levels over which a gang spreads in a domain, with the orders of their sub-domains and of the nodes.

        `room` is the number of units by node. Raises DeadlineExceeded.
        """
        found = [self._domains.of_level(level) for level in domain.within]
        orders = [self._of_level(level, one, rooms, room) for level, one in zip(domain.within, found, strict=True)]
        return [one.name_of for one in found], [*orders, self._of_nodes(rooms)]

    def _of_level(self, level: str, domains: LabelDomains, rooms: NodeRooms, room: Mapping[str, int]) -> Order:
        compared, liked, points = self.compared_levels(level), dict[str, int](), rooms.preference
        for name in room if points else ():
            if (own := domains.name_of.get(name)) is not None:
                liked[own] = liked.get(own, 0) + points[name] * room[name]

        def order(name: str) -> object:
            node = _some_node(level, domains.nodes[name])
            return -liked.get(name, 0), [self._uses.use(one, node) for one in compared], natural(name)

        return order

    def _of_nodes(self, rooms: NodeRooms) -> Order:
        compared, points, around = self.compared_levels(NODE), rooms.preference, self._uses.around

        def order(name: str) -> object:
            return -points.get(name, 0), self._uses.use(compared[0], name), around(name), natural(name)

        return order


def _some_node(level: str, nodes: Sequence[str] | frozenset[str]) -> str:
    """A node of a domain. Only a clique can span two domains of a farther level: then it must not be any one."""
    return min(nodes) if level == CLIQUE_LABEL else next(iter(nodes))
