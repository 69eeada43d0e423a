"""Of plans that are equally tight, the one that the members prefer: near each other, or apart, in domains of a label.

kube-scheduler's scores (InterPodAffinity, PodTopologySpread) cannot choose, because filter names one node for each
member. A wish is tried as if it were required, in the domain that is the tightest. The new plan counts if it uses no
more sub-domains of any level, and no more nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from extender.allocation import Snapshot
from extender.api.pod_affinity import HOSTNAME
from extender.gangs.domains import NODE, Domain, Domains, natural
from extender.gangs.gang_problem import GangProblem
from extender.gangs.gang_units import Placed
from extender.gangs.member_limits import NodeLimit
from extender.gangs.node_rooms import NodeRooms

MAX_TRIES = 8  # plans that are made for one wish
Plan = list[Placed]
"""The placed units of each NodeRooms."""

Fill = Callable[[Sequence[NodeRooms], Domain], Plan | None]


@dataclass(frozen=True, slots=True)
class Wishing:
    """The plans of one domain."""

    problem: GangProblem
    snapshot: Snapshot
    domains: Domains
    fill: Fill

    def plan(self, rooms: Sequence[NodeRooms], domain: Domain, placed: Plan) -> Plan:
        """The plan that the members prefer, if it is as tight as `placed`. Raises DeadlineExceeded."""
        if domain.level == NODE:
            return placed
        for key in self.problem.wishes.together:
            domain, placed = self._nearer(rooms, domain, placed, key)
        for key in self.problem.wishes.apart:
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
