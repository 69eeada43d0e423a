"""Node selectors (core/v1) and their matching, as k8s.io/component-helpers nodeaffinity does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on a label or a field of a node."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Term:
    """All requirements of a term must hold; an empty term matches nothing."""

    expressions: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """Any term must match."""

    terms: tuple[Term, ...]

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether a node with this name and these labels is selected."""
        return any(_term_matches(term, name, labels) for term in self.terms)


def only_node(name: str) -> NodeSelector:
    """Selects the node of this name."""
    return NodeSelector((Term(fields=(Requirement("metadata.name", "In", (name,)),)),))


def _term_matches(term: Term, name: str, labels: Mapping[str, str]) -> bool:
    if not term.expressions and not term.fields:
        return False
    fields = {"metadata.name": name}
    return all(_holds(r, labels) for r in term.expressions) and all(_holds(r, fields) for r in term.fields)


def _holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compares(requirement, value)
        case _:
            return False


def _compares(requirement: Requirement, value: str | None) -> bool:
    try:
        have, limit = int(value or ""), int(requirement.values[0])
    except (ValueError, IndexError):
        return False
    return have > limit if requirement.operator == "Gt" else have < limit
