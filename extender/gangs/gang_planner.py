"""Plans a gang: the tightest domain that has room for all members, and in it a node and devices for each.

Levels are tried nearest first, and in each level the domains with the least room to spare first. A domain is filled
with the preferred devices of each member; only where no domain of the level can be filled so, other devices and other
alternatives are tried, up to a number of steps. The plan depends on the snapshot and the problem only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, combinations

from extender.allocation import Snapshot
from extender.api.label_domains import natural
from extender.api.pods import HOSTNAME
from extender.gangs.domains import NODE, Domain, Domains, PlaceOrder
from extender.gangs.gang_problem import (
    GangMember,
    GangPlan,
    GangProblem,
    GangShortage,
    Placed,
    UnitPlacement,
    equal_units,
    member_placements,
)
from extender.gangs.gang_search import MAX_STEPS, GangSearch, GaveUp, Steps, local_nodes
from extender.gangs.member_limits import NO_PREFERRED_AFFINITY, NodeLimit
from extender.gangs.node_rooms import GangMemory, GangTrial, NodeRooms
from extender.gangs.spreading import spread
from extender.gangs.subgroup_filling import Assigned, SubGroupFilling
from extender.scheduling import DomainUses, EvaluationContext, Placement, RankingCache
from extender.scheduling.shortlist import in_cliques
from extender.scheduling.subgroup_tree import SubGroup, absent_members

MAX_TRIES = 8  # plans that are made for one term of preferred affinity
MAX_DIFFERENT = 64  # units of one gang that are not equal; each of them needs a ranking of all nodes


def plan_gang(
    problem: GangProblem,
    snapshot: Snapshot,
    context: EvaluationContext,
    rankings: RankingCache | None = None,
    memory: GangMemory | None = None,
) -> GangPlan | GangShortage:
    """The plan of a gang on a snapshot, or how many of its members the best domain has room for.

    The caller keeps `rankings` (those of filter) and `memory` between calls, both for one sequence of snapshots. Then a
    call that raises DeadlineExceeded leaves its evaluations there, and a later one gets further. It keeps nothing else:
    a plan that takes longer than the deadline although all evaluations are known is never found. Members that share a
    claim get equal devices for it. If possible, each slice has room for its members that do not exist yet.
    """
    if not problem.members:
        return GangPlan({}, "", "")
    rankings = RankingCache() if rankings is None else rankings
    memory = GangMemory() if memory is None else memory
    whole = _with_absent_members(problem)
    if whole is not problem:
        found = _plan(whole, snapshot, context, rankings, memory)
        if isinstance(found, GangPlan):
            own = {member.uid: found.placements[member.uid] for member in problem.members}
            return replace(found, placements=own)
    return _plan(problem, snapshot, context, rankings, memory)


def _plan(
    problem: GangProblem, snapshot: Snapshot, context: EvaluationContext, rankings: RankingCache, memory: GangMemory
) -> GangPlan | GangShortage:
    found = equal_units(problem.members)
    if len(found) > MAX_DIFFERENT:
        return GangShortage(len(problem.members), gave_up=True)
    rooms = [NodeRooms(units, snapshot, context, rankings, memory) for units in found]
    # First members with a single possible node, then the largest, then those with fewer possible nodes.
    rooms.sort(key=lambda one: (not one.pinned and len(one.most) > 1, -one.size, len(one.most)))
    return _Planner(problem, snapshot, context, rooms, rankings.uses(problem.levels)).plan()


def _with_absent_members(problem: GangProblem) -> GangProblem:
    """The problem with members for the places of slices whose pods do not exist yet; the same one if there are none.

    Such a member is like one of its slice that shares no claim.
    """
    if not any(map(absent_members, problem.subgroups)):
        return problem
    uses = Counter(claim.uid for member in problem.members for claim in member.requirements.pending_claims)
    alike = {
        member.uid: member
        for member in problem.members
        if all(uses[claim.uid] == 1 for claim in member.requirements.pending_claims)
    }
    added: list[GangMember] = []
    subgroups = tuple(_with_absent(one, alike, added) for one in problem.subgroups)
    return replace(problem, members=(*problem.members, *added), subgroups=subgroups) if added else problem


def _with_absent(subgroup: SubGroup, alike: Mapping[str, GangMember], added: list[GangMember]) -> SubGroup:
    before = len(added)
    inner = tuple(_with_absent(one, alike, added) for one in subgroup.inner)
    example = next((alike[uid] for uid in subgroup.members if uid in alike), None)
    if example is not None:
        added += [_absent_member(example, len(added) + number) for number in range(subgroup.absent)]
    return replace(subgroup, members=(*subgroup.members, *(one.uid for one in added[before:])), inner=inner, absent=0)


def _absent_member(example: GangMember, number: int) -> GangMember:
    asked = example.requirements
    claims = tuple(replace(claim, uid="") for claim in asked.pending_claims)  # shared with no other member
    nodes = None if example.nodes is not None and len(example.nodes) == 1 else example.nodes
    requirements = replace(asked, pending_claims=claims)
    return replace(example, uid=f"absent {number}", requirements=requirements, nodes=nodes)


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


def _crowded_nodes(members: Iterable[GangMember], snapshot: Snapshot) -> frozenset[str]:
    """The nodes in NVLink cliques with other ComputeDomains than those of the members, unless the policy ignores it."""
    of_domains = {domain: one.requirements for one in members if (domain := one.requirements.compute_domain)}
    cliques = frozenset[str]().union(*(one.crowded_cliques(snapshot) for one in of_domains.values()))
    return in_cliques(cliques, snapshot)


class _Planner:
    def __init__(
        self,
        problem: GangProblem,
        snapshot: Snapshot,
        context: EvaluationContext,
        rooms: Sequence[NodeRooms],
        uses: DomainUses,
    ) -> None:
        self._problem = problem
        self._snapshot = snapshot
        self._context = context
        self._rooms = rooms
        self._crowded = _crowded_nodes(problem.members, snapshot)
        forbids = problem.members[0].requirements.policy.compute_domains == "require"
        self._forbidden = self._crowded if forbids else frozenset[str]()
        self._names = [name for one in rooms for name in one.most if name not in self._forbidden]
        self._steps = Steps(MAX_STEPS)
        self._domains = Domains(problem, snapshot, dict.fromkeys(self._names))
        self._order = PlaceOrder(rooms, self._domains, uses, snapshot, context)
        self._free = _free_together(rooms)
        # Whether all units are equal, and none changes the room of another node by a limit.
        self._is_simple = len(rooms) == 1 and not rooms[0].spans_domains
        self._devices = sum(one.each * len(one.units) for one in rooms)
        subgroups = problem.subgroups
        self._filling = (
            SubGroupFilling(subgroups, rooms, snapshot, self._domains, self._order, self._steps) if subgroups else None
        )

    def plan(self) -> GangPlan | GangShortage:
        for level in self._free_cliques_first():
            enough: dict[int, list[Domain]] = {}  # by the room to spare
            for domain in level:
                spare = self._spare(domain)
                if spare is not None:
                    enough.setdefault(spare, []).append(domain)
            for attempt in (self._preferred, self._searched):
                for domain in self._distinct(self._order.tightest_first(enough)):
                    placed = attempt(domain)
                    if placed is not None:
                        return self._result(domain, placed)
        gave_up = self._steps.left < 0 or any(rooms.unsure for rooms in self._rooms)
        return GangShortage(len(self._problem.members), gave_up=gave_up)

    # -- which domain ----------------------------------------------------------------------------------------

    def _free_cliques_first(self) -> Iterator[list[Domain]]:
        """The levels; each one first without the nodes in cliques of other ComputeDomains."""
        for level in self._levels():
            if self._crowded and not self._forbidden:
                yield [
                    replace(domain, nodes=[name for name in domain.nodes if name not in self._crowded])
                    for domain in level
                ]
            yield level

    def _levels(self) -> Iterator[list[Domain]]:
        needs = [(rooms.most, len(rooms.units)) for rooms in self._rooms]
        first, wanted = needs[0]
        single = [name for name, most in first.items() if most >= wanted and name not in self._forbidden]
        for most, wanted in needs[1:]:
            single = [name for name in single if most.get(name, 0) >= wanted]
        if self._problem.topology != "none" or not self._problem.preferred_affinity.apart:
            yield self._domains.single(single)
        yield from self._domains.wider()

    def _spare(self, domain: Domain) -> int | None:
        """The bound of the room for units of all kinds together; None if some kind does not fit."""
        self._context.deadline.check_time()
        if self._free and sum(self._free.get(name, 0) for name in domain.nodes) < self._devices:
            return None
        found = 0
        for rooms in self._rooms:
            room = sum(rooms.most.get(name, 0) for name in domain.nodes)
            if (rooms.most_in(domain.nodes) if rooms.spans_domains else room) < len(rooms.units):
                return None
            found += room
        return found

    def _distinct(self, domains: Iterable[Domain]) -> Iterator[Domain]:
        """The domains; of single nodes of one equivalence class, only the first, because they have equal room."""
        seen: set[Hashable] = set()
        for domain in domains:
            self._context.deadline.check_time()
            if domain.level == NODE and seen and self._equivalence_key(domain.name) in seen:
                continue
            yield domain
            if domain.level == NODE:  # not before: the first one nearly always has room
                seen.add(self._equivalence_key(domain.name))

    def _equivalence_key(self, name: str) -> Hashable:
        return tuple(rooms.equivalence_key(name) for rooms in self._rooms)

    # -- where in it -----------------------------------------------------------------------------------------

    def _preferred(self, domain: Domain) -> Assigned | None:
        if self._filling is not None:
            return self._filling.preferred(domain)
        placed = self._order.fill_all(self._rooms, domain)
        if placed is None:
            return None
        if domain.level != NODE:
            placed = self._as_preferred(domain, placed)
        return self._by_rank(self._in_fewer(domain, placed))

    def _in_fewer(self, domain: Domain, placed: list[Placed]) -> list[Placed]:
        """The units in fewer sub-domains: one kind of them after the other, or one by one, may take too many."""
        if self._is_simple or domain.level == NODE or self._problem.preferred_affinity != NO_PREFERRED_AFFINITY:
            return placed
        steps = Steps(MAX_STEPS // 4)

        def place(smaller: Domain) -> list[Placed] | None:
            return self._order.fill_all(self._rooms, smaller) or self._by_search(smaller, steps)

        return FewerDomains(self._rooms, self._domains, lambda one: self._spare(one) is not None, place).plan(
            domain, placed
        )

    def _searched(self, domain: Domain) -> Assigned | None:
        """The units in a domain, with other devices or alternatives than the preferred ones."""
        if self._filling is not None:
            return self._filling.searched(domain)
        if self._is_simple and len(local_nodes(domain.nodes, self._snapshot)) == len(domain.nodes):
            found = self._by_node(domain)
        else:
            found = self._with_other_alternatives(domain) or self._by_search(domain, self._steps)
        return self._by_rank(self._in_fewer(domain, found)) if found is not None else None

    def _by_node(self, domain: Domain) -> list[Placed] | None:
        """All units of a gang of equal units, with any devices, in a domain whose nodes share no pool.

        Units on one node do not affect other nodes. So each node is searched alone, until there is room for all units.
        None if not all fit, or if the steps end first. Raises DeadlineExceeded.
        """
        rooms, trial, order = self._rooms[0], GangTrial(), self._order
        wanted = len(rooms.units)
        room = rooms.rooms(trial, domain.nodes, wanted)
        better: dict[Hashable, tuple[UnitPlacement, ...]] = {}  # by equivalence key of the node
        for name in sorted(domain.nodes, key=natural):
            if sum(room.values()) >= wanted:
                break
            if room.get(name, 0) < min(rooms.most.get(name, 0), wanted):
                key = rooms.equivalence_key(name)
                if key not in better:
                    better[key] = _packed(rooms, name, wanted, self._snapshot, self._steps)
                room[name] = max(room.get(name, 0), len(better[key]))
        if sum(room.values()) < wanted:
            return None
        placed = Placed()
        for name, number in spread(room, *order.of_parts(rooms, room, domain), wanted, order.placed).items():
            found = rooms.place(trial, name, number)
            units = found if len(found) == number else better[rooms.equivalence_key(name)][:number]
            placed += ((name, unit) for unit in units)
        return [placed]

    def _with_other_alternatives(self, domain: Domain) -> list[Placed] | None:
        """All units without the first alternatives of their requests, then without the second ones, and so on."""
        for variant in range(1, max(rooms.variants for rooms in self._rooms)):
            found = self._order.fill_all(self._rooms, domain, variant)
            if found is not None:
                return found
        return None

    def _by_search(self, domain: Domain, steps: Steps) -> list[Placed] | None:
        names = sorted(domain.nodes, key=self._domains.path)
        wanted = [(rooms, len(rooms.units), names) for rooms in self._rooms]
        try:
            return GangSearch(wanted, self._snapshot, steps).run()
        except GaveUp:
            return None

    def _by_rank(self, placed: Sequence[Placed]) -> Assigned:
        found: Assigned = []
        for rooms, units in zip(self._rooms, placed, strict=True):
            names = {name for name, _ in units}
            paths = {name: self._domains.path(name) for name in names} if len(names) > 1 else {}
            ordered = sorted(units, key=lambda entry: paths[entry[0]]) if paths else units
            found += zip(self._order.units_for(rooms, [name for name, _ in ordered]), ordered, strict=True)
        return found

    # -- preferred affinity ----------------------------------------------------------------------------------
    # Of plans that are equally tight, the one that the members prefer: near each other, or apart, in domains of a
    # label. kube-scheduler's scores (InterPodAffinity, PodTopologySpread) cannot choose, because filter names one node
    # for each member. A preferred term is tried as if it were required, in the domain that is the tightest. The new
    # plan counts if it uses no more sub-domains of any level, and no more nodes.

    def _as_preferred(self, domain: Domain, placed: list[Placed]) -> list[Placed]:
        """The plan that the members prefer, if it is as tight as `placed`."""
        for key in self._problem.preferred_affinity.together:
            domain, placed = self._nearer(domain, placed, key)
        for key in self._problem.preferred_affinity.apart:
            placed = self._evener(domain, placed, key)
        return placed

    def _nearer(self, domain: Domain, placed: list[Placed], key: str) -> tuple[Domain, list[Placed]]:
        """All in one domain of the label, the one with the most room first."""
        name_of = self._name_of(key, domain)
        if len(_members_by_domain(self._rooms, placed, name_of)) <= 1:
            return domain, placed
        nodes: dict[str, list[str]] = {}
        for name in domain.nodes:
            if name in name_of:
                nodes.setdefault(name_of[name], []).append(name)
        room = {
            value: sum(one.most.get(name, 0) for one in self._rooms for name in names) for value, names in nodes.items()
        }
        for value in sorted(nodes, key=lambda value: (-room[value], natural(value)))[:MAX_TRIES]:
            part = replace(domain, nodes=nodes[value])
            found = self._order.fill_all(self._rooms, part)
            if found is not None and self._is_as_tight(domain, found, placed):
                return part, found
        return domain, placed

    def _evener(self, domain: Domain, placed: list[Placed], key: str) -> list[Placed]:
        """As few members as possible in any domain of the label."""
        name_of = self._name_of(key, domain)
        numbers = _members_by_domain(self._rooms, placed, name_of)
        if not numbers:
            return placed
        parts = len({name_of[name] for one in self._rooms for name in one.most if name in name_of})
        if self._problem.topology != "none":
            parts = min(parts, len({name for units in placed for name, _ in units}))  # a tight plan has no more nodes
        least = -(-numbers.total() // parts)
        for most in range(least, max(numbers.values()))[:MAX_TRIES]:
            limit = NodeLimit(most, {}, None if key == HOSTNAME else name_of)
            found = self._order.fill_all([one.limited(limit) for one in self._rooms], domain)
            if found is not None and self._is_as_tight(domain, found, placed):
                return found
        return placed

    def _name_of(self, key: str, domain: Domain) -> Mapping[str, str]:
        return {name: name for name in domain.nodes} if key == HOSTNAME else self._snapshot.domains((key,)).name_of

    def _is_as_tight(self, domain: Domain, found: list[Placed], placed: list[Placed]) -> bool:
        if self._problem.topology == "none":
            return True
        levels = [self._domains.of_level(level).name_of for level in domain.within]
        return all(new <= old for new, old in zip(_used(levels, found), _used(levels, placed), strict=True))

    # -- the answer ------------------------------------------------------------------------------------------

    def _result(self, domain: Domain, assigned: Assigned) -> GangPlan:
        placements: dict[str, tuple[str, Placement]] = {}
        for unit, (name, found) in assigned:
            own = member_placements(unit, found, name, self._snapshot.node_infos)
            placements |= {uid: (name, one) for uid, one in own.items()}
        return GangPlan(placements, domain.level, domain.name)


def _used(levels: Sequence[Mapping[str, str]], placed: list[Placed]) -> list[int]:
    """The number of sub-domains of each level that a plan uses, and of nodes."""
    nodes = {name for units in placed for name, _ in units}
    return [len({name_of.get(name, name) for name in nodes}) for name_of in levels] + [len(nodes)]


def _members_by_domain(rooms: Sequence[NodeRooms], placed: list[Placed], name_of: Mapping[str, str]) -> Counter[str]:
    """The number of members in each domain of a label."""
    found: Counter[str] = Counter()
    for one, units in zip(rooms, placed, strict=True):
        for name, _ in units:
            if name in name_of:
                found[name_of[name]] += one.members_per_unit
    return found


def _free_together(rooms: Sequence[NodeRooms]) -> dict[str, int]:
    """By node, the number of free devices for all rooms together. Empty for one room, or without exact bounds."""
    if len(rooms) == 1 or not all(one.each for one in rooms):
        return {}
    found: dict[str, int] = {}
    for one in rooms:
        for name, free in one.free.items():
            found[name] = found.get(name, 0) | free
    return {name: free.bit_count() for name, free in found.items()}


def _packed(rooms: NodeRooms, name: str, wanted: int, snapshot: Snapshot, steps: Steps) -> tuple[UnitPlacement, ...]:
    """The most units on one node, with any devices and alternatives."""
    best: tuple[UnitPlacement, ...] = ()
    for variant in range(rooms.variants):
        trial = GangTrial()
        found = rooms.place(trial, name, wanted, variant)
        best = max(best, found, key=len)
    try:
        while len(best) < min(rooms.most[name], wanted):
            more = GangSearch([(rooms, len(best) + 1, [name])], snapshot, steps).run()
            if more is None:
                break
            best = tuple(unit for _, unit in more[0])
    except GaveUp:
        pass
    return best


# -- gangs in the fewest sub-domains ---------------------------------------------------------------------------
# Of different members, or of members that limit each other's domains. The planner places one kind of members after the
# other, the largest first, each in the fewest sub-domains, and members that make room for each other one by one.
# Together they can need more than the fewest: so smaller choices of racks, cliques and nodes are tried, the farthest
# level first. Where the sub-domains are too many to try all choices, the plan is what was found until then.


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
