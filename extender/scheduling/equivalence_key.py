"""Equivalence keys: nodes with equal keys get the same status for a pod's requirements."""

from __future__ import annotations

from collections.abc import Iterator

from extender.allocation import UNREADABLE, NodeInfo, attribute_values
from extender.cel import CompileError
from extender.cel.dra import compile_selector, compile_value
from extender.model import InvalidClaim, is_identity
from extender.scheduling.evaluate import EvaluationContext, problem_for
from extender.scheduling.pod_requirements import PodRequirements

_Pattern = tuple[object, ...]


def ignores_identity(requirements: PodRequirements, context: EvaluationContext) -> bool:
    """Whether the requirements read no identity of a device, such as its UUID. Raises DeadlineExceeded."""
    return IdentityCheck(requirements).ignores_identity(context)


class IdentityCheck:
    """Checks whether requirements read no identity of a device. After DeadlineExceeded, the next call continues."""

    def __init__(self, requirements: PodRequirements) -> None:
        constraints = [constraint.attribute for spec in requirements.specs for constraint in spec.constraints]
        self._ignored = not any(map(is_identity, constraints))
        # What compiles each expression, and the expression.
        self._left = [(compile_selector, text) for class_ in requirements.classes for text in class_.selectors]
        for spec in requirements.specs:
            for option in (option for request in spec.requests for option in request.alternatives):
                self._left += [(compile_selector, text) for text in option.selectors]
                self._left += [(compile_value, text) for _, text in option.derived]

    def ignores_identity(self, context: EvaluationContext) -> bool:
        """True if no selector and no constraint reads an identity. Raises DeadlineExceeded."""
        while self._ignored and self._left:
            selector = context.masks.compiled(*self._left[-1], context.deadline)
            self._ignored = isinstance(selector, CompileError) or not any(map(_is_identity, selector.reads))
            self._left.pop()
        return self._ignored


def _is_identity(path: str) -> bool:
    """Whether a path that a selector reads identifies a device. A read of the whole attribute map does, too."""
    return (path.startswith("attributes:") and path.endswith("*")) or is_identity(path)


class Patterns:
    """The patterns of the node whose equivalence key is being made, see `_pattern`. Two thousand constraints may name
    as many attributes; after DeadlineExceeded, the next call continues."""

    def __init__(self) -> None:
        self._node_info: NodeInfo | None = None
        self._by_attribute: dict[str, _Pattern] = {}
        self._equal: dict[_Pattern, _Pattern] = {}  # attributes that no device has share one pattern

    def of(self, node_info: NodeInfo, attribute: str, context: EvaluationContext) -> _Pattern:
        """The pattern of an attribute, made once. Raises DeadlineExceeded."""
        if node_info is not self._node_info:
            self.clear()
            self._node_info = node_info
        found = self._by_attribute.get(attribute)
        if found is None:
            context.deadline.check()
            made = _pattern(node_info, attribute, context)
            found = self._by_attribute[attribute] = self._equal.setdefault(made, made)
            context.deadline.mark_progress()
        return found

    def clear(self) -> None:
        self._node_info = None
        self._by_attribute.clear()
        self._equal.clear()


def equivalence_key(
    node_info: NodeInfo, requirements: PodRequirements, context: EvaluationContext, patterns: Patterns
) -> Iterator[object]:
    """The values that the selectors and constraints of the requirements read from a node. Raises DeadlineExceeded."""
    problem = problem_for(node_info, requirements, context)
    for name, spec in zip(problem.names, problem.specs, strict=True):
        for request in spec.requests:
            for alternative in request.alternatives:
                try:
                    selection = problem.select(name, alternative)
                except InvalidClaim as error:
                    yield str(error)
                    return
                yield selection.match
                yield selection.unsupported
                yield selection.error
                if alternative.derived:
                    yield node_info.node.name
        for constraint in spec.constraints:
            yield patterns.of(node_info, constraint.attribute, context)


def _pattern(node_info: NodeInfo, attribute: str, context: EvaluationContext) -> _Pattern:
    """The numbers of the attribute's values, per device: a value gets its number where it occurs first.

    A constraint only compares values on one node. So two nodes are equal if they group their devices in the same way.
    """
    numbers: dict[object, int] = {}
    lists, found = context.features.list_attributes, []
    for one in node_info.inventory.devices:
        known = attribute_values(one.device, attribute, one.id.driver, lists=lists)
        # Values of one type have an order; a set does not.
        values = [] if known is None else [(known[0], value) for value in sorted(known[1])]  # type: ignore[type-var]
        marks = tuple([numbers.setdefault(value, len(numbers)) for value in values])
        found.append(marks[0] if len(marks) == 1 else (known is None, known == UNREADABLE, marks))
    return tuple(found)
