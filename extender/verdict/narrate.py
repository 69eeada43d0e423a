"""The search on one node, told line by line."""

from __future__ import annotations

from contextlib import suppress

from extender.allocation.observe import CAUSES
from extender.allocation.search import Search
from extender.allocation.view import NodeView
from extender.model.bits import members
from extender.model.errors import InvalidClaim, OutOfBudget
from extender.verdict.demand import Demand
from extender.verdict.evaluate import Rules, evaluate, problem_for
from extender.verdict.grants import Grant
from extender.verdict.verbs import held_results

_MOST = 200  # lines about devices


class _Narrator:
    """Writes down every device that a request could not take, in the order of the search."""

    def __init__(self, view: NodeView) -> None:
        self._view = view
        self.lines: list[str] = []
        self.left_out = 0

    def rejected(self, request: str, bit: int, cause: str, detail: str) -> None:
        if len(self.lines) >= _MOST:
            self.left_out += 1
            return
        device = self._view.inventory.places[bit].id.device
        self.lines.append(f"request {request}: {device} {CAUSES[cause]}{f' ({detail})' if detail else ''}")


def narrate(view: NodeView, demand: Demand, rules: Rules) -> tuple[str, ...]:
    """What selectors matched, which devices a search in order leaves aside and why, and what was chosen."""
    local = demand.on(view.node)
    matched = _matched(view, local, rules)
    narrator = _Narrator(view)
    verdict = evaluate(view, local, rules)
    with suppress(InvalidClaim, OutOfBudget):  # the verdict says so
        Search(problem_for(view, local, rules), budget=local.policy.search_steps, observer=narrator).run()
    more = [f"and {narrator.left_out} more of these"] if narrator.left_out else []
    if isinstance(verdict, Grant):
        devices = ", ".join(str(result.device) for result in held_results(view, verdict)) or "nothing left to allocate"
        ending = [f"chosen: {devices}", *(f"{part.name} {part.value:.2f}: {part.sentence}" for part in verdict.parts)]
        ending.append(f"score {verdict.score:.3f}")
    else:
        ending = [f"refused: {verdict.text}"]
    return (f"node {view.node.name}: {len(view.inventory.places)} devices", *matched, *narrator.lines, *more, *ending)


def _matched(view: NodeView, demand: Demand, rules: Rules) -> list[str]:
    problem = problem_for(view, demand, rules)
    lines: list[str] = []
    for name, spec in zip(problem.names, problem.specs, strict=True):
        for option in (option for request in spec.requests for option in request.alternatives):
            try:
                selection = problem.select(name, option)
            except InvalidClaim as error:
                return [*lines, str(error)]
            for what, mask in (
                ("selectors match", selection.match | selection.left_out), ("left out", selection.left_out),
                ("held by a pod being scheduled", selection.match & view.held),
                ("in use", selection.match & view.busy & ~view.held), ("left", selection.match & ~view.busy),
            ):
                names = ", ".join(view.inventory.places[bit].id.device for bit in members(mask))
                if names or what in ("selectors match", "left"):
                    lines.append(f"request {option.name}: {what} {names or 'nothing'}")
            lines += [selection.explain(bit) for bit in members(selection.error)[:3]]
    return lines
