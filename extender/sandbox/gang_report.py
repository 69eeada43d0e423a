"""The gangs of the examples: the domain that each one is in, and the domains that it would be in with first fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from extender.model import GroupKey, Membership
from extender.sandbox.apiserver.versioned_store import ObjectStore
from extender.sandbox.examples import Expectation
from extender.sandbox.report import Row
from extender.wire import decode_node, decode_pod

_HOSTNAME = "kubernetes.io/hostname"


@dataclass(frozen=True, slots=True)
class DomainPart:
    """The nodes of one domain in name order, and whether each has a pod of the gang."""

    name: str
    has_pod: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class GangPlacement:
    """Where the pods of a gang are: the domains with pods, and words such as 'clique nvl72-1' or '2 cliques'."""

    words: str
    domains: tuple[DomainPart, ...]
    is_in_one: bool  # all pods have a node, in one domain


@dataclass(frozen=True, slots=True)
class GangRow:
    """One gang. `is_good` says whether the expectation is met, `waits` whether a pod has no node."""

    gang: str
    pods: tuple[str, ...]
    berth: GangPlacement
    first_fit: GangPlacement
    is_good: bool
    waits: bool


class GangReport:
    """Finds the gangs among the pods of the examples.

    `is_gang`: whether a pod's group is a gang. `levels` are node labels, the nearest level first, as in a policy.
    """

    def __init__(self, store: ObjectStore, is_gang: Callable[[Membership], bool], levels: Sequence[str]) -> None:
        self._store = store
        self._is_gang = is_gang
        self._levels = (_HOSTNAME, *levels)
        self._labels = {node.name: node.labels for node in map(decode_node, store.all("nodes"))}

    def rows(self, expectations: list[Expectation], rows: list[Row]) -> list[GangRow]:
        """Return the gangs in the order of their first pods. `rows` has one row per expectation, in the same order."""
        found: dict[GroupKey, list[tuple[Expectation, Row]]] = {}
        for expected, row in zip(expectations, rows, strict=True):
            obj = self._store.get("pods", ("default", row.pod))
            membership = decode_pod(obj).membership if obj is not None else None
            if membership is not None and (expected.domain or self._is_gang(membership)):
                found.setdefault(membership.key, []).append((expected, row))
        return [self._row(key.name, members) for key, members in found.items()]

    def _row(self, gang: str, members: list[tuple[Expectation, Row]]) -> GangRow:
        nodes, first_fit_nodes = [row.node for _, row in members], [row.first_fit_node for _, row in members]
        expected = next((expected.domain for expected, _ in members if expected.domain), "")
        level = next((level for level in self._levels if self._is_in_one(nodes, level)), expected or _HOSTNAME)
        is_good = self._is_in_one(nodes, expected) if expected else all(row.is_good for _, row in members)
        note = "" if is_good or not expected else f", expected in one {_short(expected)}"
        berth, first_fit = self._placement(nodes, level, note), self._placement(first_fit_nodes, level, "")
        return GangRow(gang, tuple(row.pod for _, row in members), berth, first_fit, is_good, not all(nodes))

    def _placement(self, nodes: list[str], level: str, note: str) -> GangPlacement:
        domains = []
        for value in sorted(self._values(nodes, level) - {""}):
            names = sorted(name for name, labels in self._labels.items() if labels.get(level) == value)
            domains.append(DomainPart(value, tuple(name in nodes for name in names)))
        return GangPlacement(self._words(nodes, level) + note, tuple(domains), self._is_in_one(nodes, level))

    def _values(self, nodes: list[str], level: str) -> set[str]:
        """The values of a label on the nodes; '' for a node without it, and for a pod without a node."""
        return {self._labels[node].get(level, "") if node else "" for node in nodes}

    def _is_in_one(self, nodes: list[str], level: str) -> bool:
        values = self._values(nodes, level)
        return len(values) == 1 and "" not in values

    def _words(self, nodes: list[str], level: str) -> str:
        """Where the pods are, in domains of this level."""
        if not all(nodes):
            return f"{sum(map(bool, nodes))} of {len(nodes)} pods"
        values = self._values(nodes, level)
        if "" in values:
            return f"no common {_short(level)}"
        return f"{_short(level)} {values.pop()}" if len(values) == 1 else f"{len(values)} {_short(level)}s"


def _short(level: str) -> str:
    """The last word of a label: 'clique' of nvidia.com/gpu.clique."""
    return "node" if level == _HOSTNAME else re.split(r"[/.]", level)[-1]
