"""Which of several equal domains, sub-domains and nodes a gang takes, and which of its nodes each member gets.

Among places with equal room, those that the members prefer come first, then partly used ones, level by level, then the
smaller ones. Score and name decide last. So whole racks and cliques stay whole, whatever their names. The planner
compares domains, and `spreading` compares sub-domains and nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum

from extender.allocation import Snapshot
from extender.api.nodes import LabelDomains
from extender.api.pods import HOSTNAME
from extender.gangs.domains import NODE, Domain, Domains, natural
from extender.gangs.gang_problem import GangProblem
from extender.gangs.gang_units import Placed, Unit
from extender.gangs.member_limits import NodeLimit
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
        self.placed = domains.placed  # the nodes on which members are bound

    # -- domains ---------------------------------------------------------------------------------------------

    def tightest_first(self, domains: Mapping[int, list[Domain]]) -> Iterator[Domain]:
        """By the room to spare, what the members prefer, the domains around them, the scores, and the names.

        `domains` are by their room to spare.
        """
        for spare in sorted(domains):
            for equal in _equal(domains[spare], lambda domain: -self._liked(domain)):
                levels = self._compared_levels(equal[0].level) if len(equal) > 1 else ()
                yield from self._by_use(equal, levels, levels)

    def _compared_levels(self, level: str) -> Sequence[str]:
        """The level and the farther ones, as far as the policy has them."""
        self._uses.update(self._snapshot)
        known, levels = self._uses.levels, self._domains.levels
        if level == NODE:
            return NODE, *known
        return [one for one in levels[levels.index(level) :] if one in known] if level in levels else ()

    def _by_use(self, domains: list[Domain], levels: Sequence[str], compared: Sequence[str]) -> Iterator[Domain]:
        """By the use of the domains around them, level by level. Most domains are compared on the first level only.

        `compared` are all these levels, `levels` those that are left.
        """
        if len(domains) == 1:
            yield from domains
        elif not levels:
            yield from sorted(domains, key=lambda domain: (self._sizes(domain, compared), self._by_score(domain)))
        else:
            for equal in _equal(domains, lambda domain: self._use(domain, levels[0])):
                yield from self._by_use(equal, levels[1:], compared)

    def _use(self, domain: Domain, level: str) -> Use:
        self._context.deadline.check_time()
        return self._uses.use(level, _some_node(domain.level, domain.nodes))

    def _sizes(self, domain: Domain, levels: Sequence[str]) -> list[int]:
        node = _some_node(domain.level, domain.nodes)
        return [self._uses.free_gpus(level, node) for level in levels]

    def _by_score(self, domain: Domain) -> tuple[float, object, object]:
        rooms = self._rooms[0]
        scores = (rooms.score[name] * rooms.most[name] for name in domain.nodes if name in rooms.most)
        # fsum, because the order of the nodes must not matter. The first node orders domains of one name.
        return -fsum(scores), natural(domain.name), natural(min(domain.nodes))

    def _liked(self, domain: Domain) -> int:
        """The points for which the members prefer the nodes of a domain, if they get those that they prefer most."""
        found = 0
        for rooms in self._rooms:
            points, left = rooms.preference, len(rooms.units)
            names = [name for name in domain.nodes if name in points] if points else []
            for name in sorted(names, key=lambda name: -points[name]):
                taken = min(left, rooms.most.get(name, 0))
                found, left = found + points[name] * taken, left - taken
        return found

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

        def key(name: str) -> tuple[int, list[Use], list[int], object]:
            node, uses = _some_node(level, domains.nodes[name]), self._uses
            sizes = [uses.free_gpus(one, node) for one in compared]
            return -liked.get(name, 0), [uses.use(one, node) for one in compared], sizes, natural(name)

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


def _equal(domains: list[Domain], key: Callable[[Domain], int | Use]) -> Iterator[list[Domain]]:
    """The domains with equal keys, those with the least key first."""
    if len(domains) == 1:
        yield domains
        return
    found: dict[int | Use, list[Domain]] = {}
    for domain in domains:
        found.setdefault(key(domain), []).append(domain)
    for one in sorted(found):
        yield found[one]


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


# -- preferred affinity ----------------------------------------------------------------------------------------
# Of plans that are equally tight, the one that the members prefer: near each other, or apart, in domains of a label.
# kube-scheduler's scores (InterPodAffinity, PodTopologySpread) cannot choose, because filter names one node for each
# member. A preferred term is tried as if it were required, in the domain that is the tightest. The new plan counts
# if it uses no more sub-domains of any level, and no more nodes.


MAX_TRIES = 8  # plans that are made for one term
Plan = list[Placed]
"""The placed units of each NodeRooms."""

Fill = Callable[[Sequence[NodeRooms], Domain], Plan | None]


@dataclass(frozen=True, slots=True)
class PreferredPlan:
    """The plans of one domain."""

    problem: GangProblem
    snapshot: Snapshot
    domains: Domains
    fill: Fill

    def plan(self, rooms: Sequence[NodeRooms], domain: Domain, placed: Plan) -> Plan:
        """The plan that the members prefer, if it is as tight as `placed`. Raises DeadlineExceeded."""
        if domain.level == NODE:
            return placed
        for key in self.problem.preferred_affinity.together:
            domain, placed = self._nearer(rooms, domain, placed, key)
        for key in self.problem.preferred_affinity.apart:
            placed = self._evener(rooms, domain, placed, key)
        return placed

    def _nearer(self, rooms: Sequence[NodeRooms], domain: Domain, placed: Plan, key: str) -> tuple[Domain, Plan]:
        """All in one domain of the label, the one with the most room first."""
        name_of = self._name_of(key, domain)
        if len(_numbers(rooms, placed, name_of)) <= 1:
            return domain, placed
        nodes: dict[str, list[str]] = {}
        for name in domain.nodes:
            if name in name_of:
                nodes.setdefault(name_of[name], []).append(name)
        room = {value: sum(one.most.get(name, 0) for one in rooms for name in names) for value, names in nodes.items()}
        for value in sorted(nodes, key=lambda value: (-room[value], natural(value)))[:MAX_TRIES]:
            part = replace(domain, nodes=nodes[value])
            found = self.fill(rooms, part)
            if found is not None and self._is_as_tight(domain, found, placed):
                return part, found
        return domain, placed

    def _evener(self, rooms: Sequence[NodeRooms], domain: Domain, placed: Plan, key: str) -> Plan:
        """As few members as possible in any domain of the label."""
        name_of = self._name_of(key, domain)
        numbers = _numbers(rooms, placed, name_of)
        if not numbers:
            return placed
        parts = len({name_of[name] for one in rooms for name in one.most if name in name_of})
        if self.problem.topology != "none":
            parts = min(parts, len({name for units in placed for name, _ in units}))  # a tight plan has no more nodes
        least = -(-numbers.total() // parts)
        for most in range(least, max(numbers.values()))[:MAX_TRIES]:
            limit = NodeLimit(most, {}, None if key == HOSTNAME else name_of)
            found = self.fill([one.limited(limit) for one in rooms], domain)
            if found is not None and self._is_as_tight(domain, found, placed):
                return found
        return placed

    def _name_of(self, key: str, domain: Domain) -> Mapping[str, str]:
        return {name: name for name in domain.nodes} if key == HOSTNAME else self.snapshot.domains((key,)).name_of

    def _is_as_tight(self, domain: Domain, found: Plan, placed: Plan) -> bool:
        if self.problem.topology == "none":
            return True
        levels = [self.domains.of_level(level).name_of for level in domain.within]
        return all(new <= old for new, old in zip(_used(levels, found), _used(levels, placed), strict=True))


def _used(levels: Sequence[Mapping[str, str]], placed: Plan) -> list[int]:
    """The number of sub-domains of each level that a plan uses, and of nodes."""
    nodes = {name for units in placed for name, _ in units}
    return [len({name_of.get(name, name) for name in nodes}) for name_of in levels] + [len(nodes)]


def _numbers(rooms: Sequence[NodeRooms], placed: Plan, name_of: Mapping[str, str]) -> Counter[str]:
    """The number of members in each domain of a label."""
    found: Counter[str] = Counter()
    for one, units in zip(rooms, placed, strict=True):
        for name, _ in units:
            if name in name_of:
                found[name_of[name]] += one.members_per_unit
    return found
