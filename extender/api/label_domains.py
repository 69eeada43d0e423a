"""Domains of nodes: the nodes with equal labels.

Values of labels repeat: `r1` under block `b1` and `r1` under `b2` are two racks. So a domain is identified by its
path: its own label, and those of the farther levels that the node has. Ids of NVLink cliques are unique, and one clique
can span two racks, so its own label identifies it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from extender.api.group_topology import ONE_NODE

NaturalKey = tuple[tuple[str | int, ...], str]
_DIGITS = re.compile(r"([0-9]+)")

DomainPath = tuple[str, ...]
"""The value of a domain's own label, then those of the farther levels, '' for a label that is not set."""


def path_of(labels: Mapping[str, str], wanted: Sequence[str]) -> DomainPath | None:
    """The path of a node's domain by `path_labels`; None if the node does not have the first label."""
    own = labels.get(wanted[0])
    return None if own is None else (own, *(labels.get(label, "") for label in wanted[1:]))


@dataclass(frozen=True, slots=True)
class LabelDomains:
    """The domains of one level."""

    nodes: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by name of the domain
    name_of: Mapping[str, str] = field(default_factory=dict)  # by node; nodes without the label are left out

    def of_most(self, placed: Mapping[str, int]) -> str | None:
        """The domain of most of the pods, of which `placed` is the number by node; None if none is in a domain."""
        found = Counter[str]()
        for node, number in placed.items():
            if (name := self.name_of.get(node)) is not None:
                found[name] += number
        return min(found, key=lambda name: (-found[name], natural(name)), default=None)


def label_domains(nodes: Iterable[tuple[str, Mapping[str, str]]], wanted: Sequence[str]) -> LabelDomains:
    """The domains of nodes with labels, by `path_labels`; of the level ONE_NODE, each node is one.

    A domain has the value of its label as its name. Where several domains have one value, their names are whole paths,
    the farthest label first: `b1/r1` and `b2/r1`, and `r1` for nodes without the farther label. No value has a slash.
    """
    if wanted == (ONE_NODE,):
        single = [node for node, _ in nodes]
        return LabelDomains({node: frozenset((node,)) for node in single}, {node: node for node in single})
    found: dict[DomainPath, set[str]] = {}
    for node, labels in nodes:
        path = path_of(labels, wanted)
        if path is not None:
            found.setdefault(path, set()).add(node)
    values = Counter(path[0] for path in found)
    short = {path: path[0] if values[path[0]] == 1 else "/".join(filter(None, reversed(path))) for path in found}
    equal = Counter(short.values())  # where a value of one farther label is a value of another one, too
    names = {path: name if equal[name] == 1 else "/".join(reversed(path)) for path, name in short.items()}
    return LabelDomains(
        {names[path]: frozenset(members) for path, members in found.items()},
        {node: names[path] for path, members in found.items() for node in members},
    )


@lru_cache(maxsize=16_384)  # the nodes of a large fleet, and the values of their labels
def natural(name: str) -> NaturalKey:
    """A sort key that compares numbers in names as numbers: tray-2 comes before tray-10."""
    parts = _DIGITS.split(name)
    return tuple(int(part) if position % 2 else part for position, part in enumerate(parts)), name
