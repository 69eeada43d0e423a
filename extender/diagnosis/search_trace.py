"""The trace of one search on one node: the status, the cause of each rejected device, and all steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from extender.allocation import CAUSES, CauseRecorder, NodeInfo
from extender.model import Code, InvalidClaim, counted, members, one_line
from extender.scheduling import EvaluationContext, FilterStatus, PodRequirements, Unschedulable, evaluate

_MOST = 200  # lines about rejected devices
_CAUSES = 4  # causes in one list
_CAUSE_BYTES = 1024  # bytes of one cause, which can name 100 devices


class _SearchRecorder(CauseRecorder):
    """Records causes, and also the first rejections in the order of the search."""

    def __init__(self) -> None:
        super().__init__()
        self.rejections: list[tuple[str, int, str, str]] = []
        self.left_out = 0  # rejections that are not recorded

    def rejected(self, request: str, bit: int, cause: str, detail: str) -> None:
        super().rejected(request, bit, cause, detail)
        if len(self.rejections) < _MOST:
            self.rejections.append((request, bit, cause, detail))
        else:
            self.left_out += 1


@dataclass(frozen=True, slots=True)
class SearchTrace:
    """The result of a search, with its records."""

    node_info: NodeInfo
    requirements: PodRequirements  # on this node
    status: FilterStatus
    recorder: _SearchRecorder


def trace(node_info: NodeInfo, requirements: PodRequirements, context: EvaluationContext) -> SearchTrace:
    """Evaluate the requirements on a node and record the search. Raises DeadlineExceeded."""
    recorder, local = _SearchRecorder(), requirements.for_node(node_info.node)
    return SearchTrace(node_info, local, evaluate(node_info, local, context, recorder), recorder)


def causes(found: SearchTrace, more: Iterable[str] = ()) -> tuple[str, ...]:
    """Sentences with device names by cause, then the sentences in `more`; at most 4, then 'and n more'."""
    reason = found.status.reason if isinstance(found.status, Unschedulable) else None
    if reason is not None and reason.code in (Code.INVALID, Code.OUT_OF_BUDGET):
        return reason.params  # an interrupted search has no complete causes
    devices: dict[tuple[str, str], set[str]] = {}
    for (_, bit), why in sorted(found.recorder.causes.items()):
        devices.setdefault(why, set()).add(_device(found.node_info, bit))
    sentences = [f"{', '.join(sorted(names))}: {_why(cause, detail)}" for (cause, detail), names in devices.items()]
    sentences = [one_line(sentence, _CAUSE_BYTES) for sentence in (*sentences, *more)]
    left = len(sentences) - _CAUSES
    return (*sentences[:_CAUSES], f"and {left} more") if left > 0 else tuple(sentences)


def trace_search(found: SearchTrace, context: EvaluationContext) -> tuple[str, ...]:
    """The search as lines: the matches of selectors, the rejected devices with causes, and the chosen devices."""
    node_info, status, recorder = found.node_info, found.status, found.recorder
    lines = [
        f"node {node_info.node.name}: {counted(len(node_info.inventory.devices), 'device')}",
        *_matched(node_info, found.requirements, context),
    ]
    for request, bit, cause, detail in recorder.rejections:
        lines.append(f"request {request}: {_device(node_info, bit)} {_why(cause, detail)}")
    if recorder.left_out:
        lines.append(f"and {recorder.left_out} more of these")
    if isinstance(status, Unschedulable):
        return (*lines, f"unschedulable: {status.text}")
    devices = ", ".join(status.devices(node_info)) or "nothing left to allocate"
    parts = (f"{part.name} {part.value:.2f}: {part.sentence}" for part in status.parts)
    return (*lines, f"chosen: {devices}", *parts, f"score {status.score:.3f}")


def _device(node_info: NodeInfo, bit: int) -> str:
    return node_info.inventory.devices[bit].id.device


def _why(cause: str, detail: str) -> str:
    return f"{CAUSES[cause]} ({detail})" if detail else CAUSES[cause]


def _matched(node_info: NodeInfo, requirements: PodRequirements, context: EvaluationContext) -> list[str]:
    problem = context.problem(node_info, requirements)
    lines: list[str] = []
    for name, spec in zip(problem.names, problem.specs, strict=True):
        for option in (option for request in spec.requests for option in request.alternatives):
            try:
                selection = problem.select(name, option)
            except InvalidClaim as error:
                return [*lines, str(error)]
            for label, mask in (
                ("selectors match", selection.match | selection.unsupported),
                ("left out", selection.unsupported),
                ("held by a pod being scheduled", selection.match & node_info.held),
                ("in use", selection.match & node_info.busy & ~node_info.held),
                ("left", selection.match & ~node_info.busy),
            ):
                names = ", ".join(_device(node_info, bit) for bit in members(mask))
                if names or label in ("selectors match", "left"):
                    lines.append(f"request {option.name}: {label} {names or 'nothing'}")
            lines += [selection.explain(bit) for bit in members(selection.error)[:3]]
    return lines
