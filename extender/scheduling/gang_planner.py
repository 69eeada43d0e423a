"""Plans a gang: the tightest domain that has room for all members, and in it a node and devices for each.

Levels are tried nearest first, and in each level the domains with the least room to spare first. A domain is filled
with the preferred devices of each member; only where no domain of the level can be filled so, other devices and other
alternatives are tried, up to a number of steps. The plan depends on the snapshot and the problem only.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import groupby
from math import fsum

from extender.allocation import Snapshot
from extender.scheduling.domains import NODE, Domain, Domains, natural
from extender.scheduling.evaluate import EvaluationContext, Placement
from extender.scheduling.gang_fill import fill, pack
from extender.scheduling.gang_memory import GangMemory
from extender.scheduling.gang_plan import GangPlan, GangProblem, GangShortage
from extender.scheduling.gang_search import MAX_STEPS, GangSearch, GaveUp, Steps, local_nodes
from extender.scheduling.gang_units import Placed, Unit, equal_units, member_placements
from extender.scheduling.node_ranking import RankingCache
from extender.scheduling.node_room import NodeRooms

MAX_DIFFERENT = 64  # units of one gang that are not equal; each of them needs a ranking of all nodes


def plan_gang(
    problem: GangProblem,
    snapshot: Snapshot,
    context: EvaluationContext,
    rankings: RankingCache | None = None,
    memory: GangMemory | None = None,
    steps: int = MAX_STEPS,
) -> GangPlan | GangShortage:
    """The plan of a gang on a snapshot, or how many of its members the best domain has room for.

    The caller keeps `rankings` (those of filter) and `memory` between calls, both for one sequence of snapshots. Then a
    call that raises DeadlineExceeded leaves its evaluations there, and a later one gets further. It keeps nothing else:
    a plan that takes longer than the deadline although all evaluations are known is never found. `steps` limits the
    search for other devices than the preferred ones. Members that share a claim get equal devices for it.
    """
    if not problem.members:
        return GangPlan({}, "", "")
    found = equal_units(problem.members)
    if len(found) > MAX_DIFFERENT:
        return GangShortage(len(problem.members), 0, "", "", gave_up=True)
    rankings = RankingCache() if rankings is None else rankings
    memory = GangMemory() if memory is None else memory
    rooms = [NodeRooms(units, snapshot, context, rankings, memory) for units in found]
    # First members with a single possible node, then the largest, then those with fewer possible nodes.
    rooms.sort(key=lambda one: (not one.pinned and len(one.most) > 1, -one.size, len(one.most)))
    return _Planner(problem, snapshot, context, rooms, Steps(steps)).plan()


def lacking_members(
    problem: GangProblem, snapshot: Snapshot, context: EvaluationContext, rankings: RankingCache, memory: GangMemory
) -> int:
    """For how many members all nodes together lack room, at least; 1 if only a plan can tell.

    The bounds of the nodes are added up, so this is 1 also if only the domains of the gang lack room. It tells nothing
    of members that differ, share a claim, or are limited to one node. Raises DeadlineExceeded.
    """
    found = equal_units(problem.members)
    if len(found) != 1 or len(found[0].steps) != 1 or found[0].admissible is None:
        return 1
    rooms = NodeRooms(found[0], snapshot, context, rankings, memory)
    return max(len(rooms.units) - sum(rooms.most.values()), 1)


class _Planner:
    def __init__(
        self,
        problem: GangProblem,
        snapshot: Snapshot,
        context: EvaluationContext,
        rooms: Sequence[NodeRooms],
        steps: Steps,
    ) -> None:
        self._problem = problem
        self._snapshot = snapshot
        self._context = context
        self._rooms = rooms
        self._steps = steps
        self._domains = Domains(problem, snapshot, dict.fromkeys(name for one in rooms for name in one.most))
        self._free = _free_together(rooms)
        self._devices = sum(one.each * len(one.units) for one in rooms)

    def plan(self) -> GangPlan | GangShortage:
        for level in self._levels():
            enough = [domain for domain in level if self._may_fit(domain)]
            for attempt in (self._preferred, self._searched):
                for domain in self._distinct(self._tightest_first(enough)):
                    placed = attempt(domain)
                    if placed is not None:
                        return self._result(domain, placed)
        return self._shortage()

    # -- which domain ----------------------------------------------------------------------------------------

    def _levels(self) -> Iterator[list[Domain]]:
        needs = [(rooms.most, len(rooms.units)) for rooms in self._rooms]
        first, wanted = needs[0]
        alone = [name for name, most in first.items() if most >= wanted]
        for most, wanted in needs[1:]:
            alone = [name for name in alone if most.get(name, 0) >= wanted]
        yield self._domains.single(alone)
        yield from self._domains.wider()

    def _may_fit(self, domain: Domain) -> bool:
        self._context.deadline.check_time()
        if self._free and sum(self._free.get(name, 0) for name in domain.nodes) < self._devices:
            return False
        return all(_bound(rooms, domain) >= len(rooms.units) for rooms in self._rooms)

    def _spare(self, domain: Domain) -> int:
        self._context.deadline.check_time()
        return sum(rooms.most.get(name, 0) for rooms in self._rooms for name in domain.nodes)

    def _tightest_first(self, domains: list[Domain]) -> Iterator[Domain]:
        """By the room that is left, then by the scores of the placements, then by name."""
        by_room = sorted(((self._spare(domain), domain) for domain in domains), key=lambda entry: entry[0])
        for _, group in groupby(by_room, key=lambda entry: entry[0]):
            equal = [domain for _, domain in group]
            yield from sorted(equal, key=self._by_score) if len(equal) > 1 else equal

    def _distinct(self, domains: Iterable[Domain]) -> Iterator[Domain]:
        """The domains; of single nodes of one equivalence class, only the first, because they have equal room."""
        seen: set[Hashable] = set()
        for domain in domains:
            self._context.deadline.check_time()
            key = self._equivalence_key(domain.name) if domain.level == NODE else domain.name
            if domain.level != NODE or key not in seen:
                seen.add(key)
                yield domain

    def _equivalence_key(self, name: str) -> Hashable:
        return tuple(rooms.equivalence_key(name) for rooms in self._rooms)

    def _by_score(self, domain: Domain) -> tuple[float, object, object]:
        rooms = self._rooms[0]
        scores = (rooms.score[name] * rooms.most[name] for name in domain.nodes if name in rooms.most)
        # fsum, because the order of the nodes must not matter. The first node orders domains of one name.
        return -fsum(scores), natural(domain.name), natural(min(domain.nodes))

    # -- where in it -----------------------------------------------------------------------------------------

    def _preferred(self, domain: Domain) -> list[Placed] | None:
        found = fill(self._rooms, domain, self._snapshot, self._domains.placed)
        return found.placed if found is not None else None

    def _searched(self, domain: Domain) -> list[Placed] | None:
        """The units in a domain, with other devices or alternatives than the preferred ones."""
        if len(self._rooms) == 1 and len(local_nodes(domain.nodes, self._snapshot)) == len(domain.nodes):
            found = pack(self._rooms[0], domain, self._snapshot, self._domains.placed, self._steps)
        else:
            found = self._with_other_alternatives(domain) or self._by_search(domain)
        return found

    def _with_other_alternatives(self, domain: Domain) -> list[Placed] | None:
        """All units without the first alternatives of their requests, then without the second ones, and so on."""
        for variant in range(1, max(rooms.variants for rooms in self._rooms)):
            found = fill(self._rooms, domain, self._snapshot, self._domains.placed, variant)
            if found is not None:
                return found.placed
        return None

    def _by_search(self, domain: Domain) -> list[Placed] | None:
        names = sorted(domain.nodes, key=self._domains.path)
        wanted = [(rooms, len(rooms.units)) for rooms in self._rooms]
        try:
            return GangSearch(wanted, names, self._snapshot, self._steps).run()
        except GaveUp:
            return None

    def _result(self, domain: Domain, placed: Sequence[Placed]) -> GangPlan:
        placements: dict[str, tuple[str, Placement]] = {}
        for rooms, units in zip(self._rooms, placed, strict=True):
            ordered = sorted(units, key=lambda entry: self._domains.path(entry[0]))
            for unit, (name, found) in zip(self._by_path(rooms), ordered, strict=True):
                node = self._snapshot.node_infos[name].node
                placements |= {uid: (name, one) for uid, one in member_placements(unit, found, node).items()}
        return GangPlan(placements, domain.level, domain.name)

    def _by_path(self, rooms: NodeRooms) -> Sequence[Unit]:
        """Equal units in the order of their nodes: by rank, or by the nodes that they are pinned to."""
        if not rooms.pinned:
            return rooms.units
        return sorted(rooms.units, key=lambda unit: self._domains.path(unit.pin or ""))

    def _shortage(self) -> GangShortage:
        """The domain with the most room, the widest level first."""
        best, level, name = 0, "", ""
        levels = list(self._domains.wider())
        for domains in (
            *reversed(levels),
            self._domains.single({n: None for rooms in self._rooms for n in rooms.most}),
        ):
            bounds = [(self._bounded_members(domain), natural(domain.name), domain) for domain in domains]
            for bound, _, domain in sorted(bounds, key=lambda entry: (-entry[0], entry[1])):
                if bound <= best:
                    break
                self._context.deadline.check_time()
                found = fill(self._rooms, domain, self._snapshot, self._domains.placed, whole=False)
                if found is not None and found.members > best:
                    best, level, name = found.members, domain.level, domain.name
        gave_up = self._steps.left < 0 or any(rooms.unsure for rooms in self._rooms)
        return GangShortage(len(self._problem.members), best, level, name, gave_up)

    def _bounded_members(self, domain: Domain) -> int:
        self._context.deadline.check_time()
        bound = sum(_bound(rooms, domain) * rooms.members_per_unit for rooms in self._rooms)
        if not self._free:
            return bound
        return min(bound, sum(self._free.get(name, 0) for name in domain.nodes) // min(one.each for one in self._rooms))


def _free_together(rooms: Sequence[NodeRooms]) -> dict[str, int]:
    """By node, the number of free devices for all rooms together. Empty for one room, or without exact bounds."""
    if len(rooms) == 1 or not all(one.each for one in rooms):
        return {}
    found: dict[str, int] = {}
    for one in rooms:
        for name, free in one.free.items():
            found[name] = found.get(name, 0) | free
    return {name: free.bit_count() for name, free in found.items()}


def _bound(rooms: NodeRooms, domain: Domain) -> int:
    """The most of these units in a domain, at most all."""
    most, wanted, found = rooms.most, len(rooms.units), 0
    for name in domain.nodes:
        found += most.get(name, 0)
        if found >= wanted:
            return wanted
    return found
