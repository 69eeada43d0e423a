"""What a demand can see of a node: nodes that look the same to it share a verdict."""

from __future__ import annotations

from collections.abc import Iterator

from extender.allocation.constraints import attribute_values
from extender.allocation.view import NodeView
from extender.cel import CompileError
from extender.model.device import is_identity
from extender.model.errors import InvalidClaim
from extender.verdict.demand import Demand
from extender.verdict.evaluate import Rules, problem_for


def is_blind(demand: Demand, rules: Rules) -> bool:
    """Whether a demand looks at no identity of a device, such as its UUID. Raises BudgetSpent."""
    return IdentityCheck(demand).is_blind(rules)


class IdentityCheck:
    """Whether a demand looks at no identity of a device; after BudgetSpent it goes on where it was."""

    def __init__(self, demand: Demand) -> None:
        constraints = [constraint.attribute for spec in demand.specs for constraint in spec.constraints]
        self._blind = not any(map(is_identity, constraints))
        self._selectors = [text for class_ in demand.classes for text in class_.selectors]
        for spec in demand.specs:
            options = (option for request in spec.requests for option in request.alternatives)
            self._selectors += [text for option in options for text in option.selectors]

    def is_blind(self, rules: Rules) -> bool:
        """The answer. Raises BudgetSpent."""
        while self._blind and self._selectors:
            selector = rules.masks.selector(self._selectors[-1], rules.budget)
            self._blind = isinstance(selector, CompileError) or not any(map(_is_identity, selector.reads))
            self._selectors.pop()
        return self._blind


def _is_identity(path: str) -> bool:
    """Of what a selector reads; all attributes together name a device, too."""
    return (path.startswith("attributes:") and path.endswith("*")) or is_identity(path)


def seen(view: NodeView, demand: Demand, rules: Rules) -> Iterator[object]:
    """What the demand's selectors and constraints see of a node."""
    problem = problem_for(view, demand, rules)
    for name, spec in zip(problem.names, problem.specs, strict=True):
        for request in spec.requests:
            for alternative in request.alternatives:
                try:
                    selection = problem.select(name, alternative)
                except InvalidClaim as error:
                    yield str(error)
                    return
                yield selection.match
                yield selection.left_out
                yield selection.error
        for constraint in spec.constraints:
            yield _pattern(view, constraint.attribute, rules)


def _pattern(view: NodeView, attribute: str, rules: Rules) -> tuple[object, ...]:
    """Values of an attribute, renamed by first occurrence: nodes that group their devices alike are alike."""
    numbers: dict[object, int] = {}
    found: list[object] = []
    for place in view.inventory.places:
        values = attribute_values(place.device, attribute, place.id.driver, lists=rules.features.list_attributes)
        if values is None:
            found.append(-1)
        elif len(values[1]) == 1:
            found.append(numbers.setdefault(values, len(numbers)))
        else:
            found.append(values)
    return tuple(found)
