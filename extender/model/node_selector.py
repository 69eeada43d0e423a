"""Node selectors (core/v1). They match as in k8s.io/component-helpers nodeaffinity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_NAME = "metadata.name"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on a label or a field of a node."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Term:
    """A term matches if all its requirements hold. An empty term matches no node."""

    expressions: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """A selector matches if one of its terms matches."""

    terms: tuple[Term, ...]

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether the selector matches a node with this name and these labels."""
        return any(_term_matches(term, name, labels) for term in self.terms)

    @property
    def node(self) -> str | None:
        """The only node that the selector can match, by name; None if it does not name exactly one."""
        named = {_named(term) for term in self.terms}
        return named.pop() if len(named) == 1 else None


def only_node(name: str) -> NodeSelector:
    """A selector for the node of this name only."""
    return NodeSelector((Term(fields=(Requirement(_NAME, "In", (name,)),)),))


def lacks_label_or_has(key: str, value: str) -> NodeSelector:
    """A selector for the nodes without a label, or with this value of it."""
    return NodeSelector((Term((Requirement(key, "DoesNotExist"),)), Term((Requirement(key, "In", (value,)),))))


def _named(term: Term) -> str | None:
    names = (r.values[0] for r in term.fields if r.key == _NAME and r.operator == "In" and len(r.values) == 1)
    return next(names, None)


def _term_matches(term: Term, name: str, labels: Mapping[str, str]) -> bool:
    if not term.expressions and not term.fields:
        return False
    fields = {_NAME: name}
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
