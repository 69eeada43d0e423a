"""What a demand can see of a node: nodes that look the same to it share a verdict."""

from __future__ import annotations

from collections.abc import Iterator

from extender.allocation.constraints import attribute_values
from extender.allocation.view import NodeView
from extender.cel.errors import CompileError
from extender.model.device import is_identity
from extender.model.errors import InvalidClaim
from extender.verdict.demand import Demand
from extender.verdict.evaluate import Rules, problem_for


def is_blind(demand: Demand, rules: Rules) -> bool:
    """Whether a demand looks at no identity of a device, such as its UUID."""
    return not any(map(is_identity, _looked_at(demand, rules)))


def _looked_at(demand: Demand, rules: Rules) -> Iterator[str]:
    """Names of the attributes that selectors and constraints look at; 'uuid' where they look at all."""
    selectors = [text for class_ in demand.classes for text in class_.selectors]
    for spec in demand.specs:
        yield from (constraint.attribute for constraint in spec.constraints)
        selectors += [text for request in spec.requests for option in request.alternatives for text in option.selectors]
    for text in selectors:
        selector = rules.masks.selector(text)
        for path in () if isinstance(selector, CompileError) else selector.reads:
            yield "uuid" if path.startswith("attributes:") and path.endswith("*") else path


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
