"""Domains of nodes, which of several equal ones a gang takes, and how its units fill one.

A domain is a single node, the nodes of one domain of a label, or all nodes. Among places with equal room, those that
the members prefer come first, then partly used ones, level by level, then the smaller ones. Score and name decide last.
So whole racks and cliques stay whole, whatever their names. The planner compares domains, and `spreading` compares
sub-domains and nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from extender.allocation import Snapshot
from extender.api.group_topology import ONE_NODE
from extender.api.label_domains import LabelDomains, NaturalKey, natural
from extender.gangs.gang_problem import GangProblem, Placed, Unit
from extender.gangs.node_rooms import GangTrial, NodeRooms
from extender.gangs.spreading import Level, Order, spread
from extender.scheduling import DomainUses, EvaluationContext, NodePreference, Use, path_labels
from extender.topology.affinity import assigned
from extender.vendors import CLIQUE_LABELS

NODE = ONE_NODE  # the level of single nodes
MAX_COMPARED = 500_000  # rows * rows * columns of an assignment: 79 members that prefer other nodes; some 20 ms


@dataclass(frozen=True, slots=True)
class Domain:
    """Nodes that are near each other."""

    level: str  # NODE, a label, or '' for all nodes
    name: str  # the node, or as in LabelDomains, or ''
    nodes: Sequence[str]
    within: tuple[str, ...]  # the labels of nearer levels, the farthest first


class Domains:
    """The domains that may hold a gang, level by level, the nearest level first."""

    def __init__(self, problem: GangProblem, snapshot: Snapshot, nodes: Iterable[str]) -> None:
        """`nodes` are the nodes that have room for some member."""
        self._problem = problem
        self._snapshot = snapshot
        self._node_infos = snapshot.node_infos
        self._placed = {name: number for name, number in problem.placed.items() if name in snapshot.node_infos}
        self.levels = self._ordered_levels()  # those of the problem and the preferred one, the nearest first
        self._regions = self._all_regions(nodes)
        self.placed = frozenset(self._placed)  # the nodes on which members are bound

    def single(self, nodes: Iterable[str]) -> list[Domain]:
        """The given nodes that may hold the whole gang, with the members that are bound."""
        label = self._problem.topology_label
        if label:
            admissible = {name for region in self._regions.values() for name in region}
            nodes = [name for name in nodes if name in admissible]
        if self._placed and self._problem.topology != "none":
            nodes = [name for name in nodes if self._placed.keys() == {name}]
        return [Domain(NODE, name, (name,), ()) for name in nodes]

    def of_level(self, level: str) -> LabelDomains:
        """All domains of a level."""
        return self._snapshot.domains(path_labels(level, self._problem.levels))

    def wider(self) -> Iterator[list[Domain]]:
        """The admissible domains of each level above single nodes, the nearest level first."""
        problem, label = self._problem, self._problem.topology_label
        if problem.topology == ONE_NODE:
            return
        nearer = self.levels[: self.levels.index(label)] if label in self.levels else self.levels
        if problem.topology == "preferred":
            for position, level in enumerate(nearer):
                within = self._spread_over(nearer[:position])
                yield [domain for region in self._regions.values() for domain in self._of(level, region, within)]
        if problem.topology == "required" and (problem.levels or not label):
            for level in problem.levels[:1]:
                yield [domain for region in self._regions.values() for domain in self._of(level, region, ())]
            return
        within = () if problem.topology == "none" else self._spread_over(nearer)
        yield [Domain(label, domain, list(region), within) for domain, region in self._regions.items()]

    def _spread_over(self, nearer: tuple[str, ...]) -> tuple[str, ...]:
        """The levels over which a gang spreads in a domain, the farthest first: the preferred one, then the nearer."""
        preferred = self._problem.preferred_level
        if preferred in nearer:
            nearer = nearer[: nearer.index(preferred) + 1]
        return tuple(reversed(nearer)) if preferred != NODE else ()

    def path(self, name: str) -> tuple[tuple[bool, NaturalKey], ...]:
        """A sort key that puts the nodes of one domain together, at every level."""
        labels = self._node_infos[name].node.labels
        values = [labels.get(level) for level in reversed(self.levels)]
        return (*((value is None, natural(value or "")) for value in values), (False, natural(name)))

    def _ordered_levels(self) -> tuple[str, ...]:
        """The levels of the problem; a preferred one not among them comes before the first that it is part of."""
        levels, preferred = self._problem.levels, self._problem.preferred_level
        if preferred in ("", NODE, *levels):
            return levels
        place = next((i for i, level in enumerate(levels) if self._is_part_of(preferred, level)), len(levels))
        return *levels[:place], preferred, *levels[place:]

    def _is_part_of(self, level: str, wider: str) -> bool:
        """Whether each domain of `level` lies in one of `wider`, which are fewer. Only nodes with both labels count."""
        wider_name = self.of_level(wider).name_of
        own = self.of_level(level).name_of
        pairs = {(domain, wider_name[node]) for node, domain in own.items() if node in wider_name}
        return len({domain for domain, _ in pairs}) == len(pairs) > len({around for _, around in pairs})

    def _all_regions(self, nodes: Iterable[str]) -> dict[str, dict[str, None]]:
        """The nodes by domain of `topology_label`; without such a label, all nodes with the name ''."""
        label = self._problem.topology_label
        if not label:
            return {"": dict.fromkeys(nodes)}
        found: dict[str, dict[str, None]] = {}
        name_of = self.of_level(label).name_of
        for name in nodes:
            domain = name_of.get(name)
            if domain is not None:
                found.setdefault(domain, {})[name] = None
        bound = self.of_level(label).of_most(self._placed)
        return {bound: found.get(bound, {})} if bound is not None else found

    def _within(self, level: str, region: dict[str, None]) -> dict[str, list[str]]:
        """The nodes of a region by domain of a level."""
        found: dict[str, list[str]] = {}
        if not self._problem.topology_label:  # one region: this is several times faster
            for domain, names in self.of_level(level).nodes.items():
                own = [name for name in names if name in region]
                if own:
                    found[domain] = own
            return found
        name_of = self.of_level(level).name_of
        for name in region:
            own_domain = name_of.get(name)
            if own_domain is not None:
                found.setdefault(own_domain, []).append(name)
        return found

    def _of(self, level: str, region: dict[str, None], within: tuple[str, ...]) -> Iterator[Domain]:
        found: Mapping[str, list[str]] = self._within(level, region)
        if self._placed:
            found = self._with_placed(level, found)
        for domain, nodes in found.items():
            yield Domain(level, domain, nodes, within)

    def _with_placed(self, level: str, found: Mapping[str, list[str]]) -> Mapping[str, list[str]]:
        """The domains in which the whole gang would be, with the members that are bound."""
        domains = self.of_level(level)
        own = domains.of_most(self._placed)
        is_whole = all(domains.name_of.get(name) == own for name in self._placed)
        if own is None or not (is_whole or self._problem.topology == "required"):
            return {}
        return {own: found.get(own, [])}


# -- which of them --------------------------------------------------------------------------------------------------


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

    # -- filling a domain with the preferred devices of each unit --------------------------------------------

    def fill_all(self, all_rooms: Sequence[NodeRooms], domain: Domain, variant: int = 0) -> list[Placed] | None:
        """Place all units in a domain, in the order of the rooms; None if not all fit. Raises DeadlineExceeded."""
        trial, found = GangTrial(), list[Placed]()
        for rooms in all_rooms:
            placed = self.fill(rooms, trial, domain, len(rooms.units), variant)
            if placed is None:
                return None
            found.append(placed)
        return found

    def fill(self, rooms: NodeRooms, trial: GangTrial, domain: Domain, wanted: int, variant: int) -> Placed | None:
        """Place so many units in a domain and add them to the trial; None if they do not fit."""
        placed = Placed()
        while len(placed) < wanted:
            # Of units that make room for each other, the nodes must be chosen one by one.
            left = 1 if rooms.grows else wanted - len(placed)
            known = rooms.apart(trial, rooms.rooms(trial, domain.nodes, left, variant))
            if sum(known.values()) < left:
                return None
            before = len(placed)
            parts = spread(known, *self.of_parts(rooms, known, domain), left, self.placed | trial.nodes)
            for name, number in parts.items():
                placed += ((name, unit) for unit in rooms.place(trial, name, number, variant))
            # Nodes that share a pool, or a limit, have less room together than each alone: the rest is spread again.
            if len(placed) == before:
                return None
        return placed

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
