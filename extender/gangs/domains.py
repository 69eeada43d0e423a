"""Domains of nodes: a single node, the nodes of one domain of a label, and all nodes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from extender.allocation import Snapshot
from extender.api.group_topology import ONE_NODE
from extender.api.nodes import LabelDomains
from extender.gangs.gang_problem import GangProblem
from extender.scheduling import path_labels

NODE = ONE_NODE  # the level of single nodes
_DIGITS = re.compile(r"([0-9]+)")
NaturalKey = tuple[tuple[str | int, ...], str]


@lru_cache(maxsize=16_384)  # the nodes of a large fleet, and the values of their labels
def natural(name: str) -> NaturalKey:
    """A sort key that compares numbers in names as numbers: tray-2 comes before tray-10."""
    parts = _DIGITS.split(name)
    return tuple(int(part) if position % 2 else part for position, part in enumerate(parts)), name


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
        bound = self._common(label)
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

    def _of_placed(self, label: str) -> Counter[str | None]:
        """The number of bound members by domain."""
        found: Counter[str | None] = Counter()
        name_of = self.of_level(label).name_of
        for name, number in self._placed.items():
            found[name_of.get(name)] += number
        return found

    def _common(self, label: str) -> str | None:
        """The domain of most bound members; None if none is in a domain."""
        found = {domain: number for domain, number in self._of_placed(label).items() if domain is not None}
        return min(found, key=lambda domain: (-found[domain], natural(domain)), default=None)

    def _of(self, level: str, region: dict[str, None], within: tuple[str, ...]) -> Iterator[Domain]:
        found: Mapping[str, list[str]] = self._within(level, region)
        if self._placed:
            found = self._with_placed(level, found)
        for domain, nodes in found.items():
            yield Domain(level, domain, nodes, within)

    def _with_placed(self, level: str, found: Mapping[str, list[str]]) -> Mapping[str, list[str]]:
        """The domains in which the whole gang would be, with the members that are bound."""
        if self._problem.topology == "required":
            common = self._common(level)
            return {} if common is None else {common: found.get(common, [])}
        own = list(self._of_placed(level))
        return {domain: found.get(domain, []) for domain in own if domain is not None} if len(own) == 1 else {}
