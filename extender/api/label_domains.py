"""The domains that node labels form: which nodes are in each, and what a domain is called.

Values of labels repeat: `r1` under block `b1` and `r1` under `b2` are two racks. So a domain is identified by its path:
its own label, and those of the farther levels that the node has. Ids of NVLink cliques are unique, and one clique can
span two racks, so its own label identifies it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Path = tuple[str, ...]
"""The value of a domain's own label, then those of the farther levels, '' for a label that is not set."""


def path_of(labels: Mapping[str, str], wanted: Sequence[str]) -> Path | None:
    """The path of a node's domain by `path_labels`; None if the node does not have the first label."""
    own = labels.get(wanted[0])
    return None if own is None else (own, *(labels.get(label, "") for label in wanted[1:]))


@dataclass(frozen=True, slots=True)
class LabelDomains:
    """The domains of one level."""

    nodes: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by name of the domain
    name_of: Mapping[str, str] = field(default_factory=dict)  # by node; nodes without the label are left out


def label_domains(nodes: Iterable[tuple[str, Mapping[str, str]]], wanted: Sequence[str]) -> LabelDomains:
    """The domains of nodes with labels, by `path_labels`.

    A domain has the value of its label as its name. Where several domains have one value, their names are whole paths,
    the farthest label first: `b1/r1` and `b2/r1`, and `r1` for nodes without the farther label. No value has a slash.
    """
    found: dict[Path, set[str]] = {}
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
