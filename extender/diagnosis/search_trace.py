"""One search on one node, observed once: its verdict, what stood in the way of each device, and the whole story."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from extender.allocation.observe import CAUSES, Recorder
from extender.allocation.view import NodeView
from extender.model.bits import members
from extender.model.errors import InvalidClaim
from extender.model.reasons import Code
from extender.model.text import cut
from extender.verdict.demand import Demand
from extender.verdict.evaluate import Refusal, Rules, Verdict, evaluate, problem_for
from extender.verdict.verbs import held_results

_MOST = 200  # lines about devices
_CAUSES = 4  # causes named
_CAUSE_BYTES = 1024  # of one: it may name each of a hundred devices


class _Story(Recorder):
    """Keeps the rejections in the order of the search, too."""

    def __init__(self) -> None:
        super().__init__()
        self.rejections: list[tuple[str, int, str, str]] = []
        self.left_out = 0

    def rejected(self, request: str, bit: int, cause: str, detail: str) -> None:
        super().rejected(request, bit, cause, detail)
        if len(self.rejections) < _MOST:
            self.rejections.append((request, bit, cause, detail))
        else:
            self.left_out += 1


@dataclass(frozen=True, slots=True)
class SearchTrace:
    """A search that ended."""

    view: NodeView
    demand: Demand  # as this node has to serve it
    verdict: Verdict
    story: _Story


def trace(view: NodeView, demand: Demand, rules: Rules) -> SearchTrace:
    """Evaluate the demand on a node, observed. Raises BudgetSpent."""
    story, local = _Story(), demand.on(view.node)
    return SearchTrace(view, local, evaluate(view, local, rules, story), story)


def causes(found: SearchTrace, more: Iterable[str] = ()) -> tuple[str, ...]:
    """What stood in the way of each device, device names by cause, and `more` sentences of this kind; a few of all."""
    reason = found.verdict.reason if isinstance(found.verdict, Refusal) else None
    if reason is not None and reason.code in (Code.INVALID, Code.OUT_OF_BUDGET):
        return reason.params  # a search that did not end says nothing of devices
    devices: dict[tuple[str, str], set[str]] = {}
    for (_, bit), why in sorted(found.story.causes.items()):
        devices.setdefault(why, set()).add(_device(found.view, bit))
    sentences = [f"{', '.join(sorted(names))}: {_why(cause, detail)}" for (cause, detail), names in devices.items()]
    sentences = [cut(sentence, _CAUSE_BYTES) for sentence in (*sentences, *more)]
    left = len(sentences) - _CAUSES
    return (*sentences[:_CAUSES], f"and {left} more") if left > 0 else tuple(sentences)


def narrate(found: SearchTrace, rules: Rules) -> tuple[str, ...]:
    """The search line by line: what selectors matched, which devices it left aside and why, and what was chosen."""
    view, verdict, story = found.view, found.verdict, found.story
    lines = [f"node {view.node.name}: {len(view.inventory.places)} devices", *_matched(view, found.demand, rules)]
    for request, bit, cause, detail in story.rejections:
        lines.append(f"request {request}: {_device(view, bit)} {_why(cause, detail)}")
    if story.left_out:
        lines.append(f"and {story.left_out} more of these")
    if isinstance(verdict, Refusal):
        return (*lines, f"refused: {verdict.text}")
    devices = ", ".join(str(result.device) for result in held_results(view, verdict)) or "nothing left to allocate"
    parts = (f"{part.name} {part.value:.2f}: {part.sentence}" for part in verdict.parts)
    return (*lines, f"chosen: {devices}", *parts, f"score {verdict.score:.3f}")


def _device(view: NodeView, bit: int) -> str:
    return view.inventory.places[bit].id.device


def _why(cause: str, detail: str) -> str:
    return f"{CAUSES[cause]} ({detail})" if detail else CAUSES[cause]


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
                ("selectors match", selection.match | selection.left_out),
                ("left out", selection.left_out),
                ("held by a pod being scheduled", selection.match & view.held),
                ("in use", selection.match & view.busy & ~view.held),
                ("left", selection.match & ~view.busy),
            ):
                names = ", ".join(_device(view, bit) for bit in members(mask))
                if names or what in ("selectors match", "left"):
                    lines.append(f"request {option.name}: {what} {names or 'nothing'}")
            lines += [selection.explain(bit) for bit in members(selection.error)[:3]]
    return lines
