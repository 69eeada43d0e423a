"""Evaluation of one node: it yields devices with score parts, or the reason why the node is unschedulable.

Filter, prioritize, bind and explanations all use this evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Final

from extender.allocation import (
    CauseRecorder,
    FastPath,
    Features,
    FleetBaseline,
    Interned,
    NodeInfo,
    Problem,
    Selection,
    Solution,
    choose,
    choose_plain,
    derived_value,
    fast_path,
    find_class,
    select,
)
from extender.cel.dra import Masks
from extender.fabric import bandwidth, is_joined
from extender.model import NO_DEADLINE, Code, Deadline, DeviceRequest, InvalidClaim, OutOfSteps, Reason
from extender.scheduling.placements import Placement, PlacementCache, placement_key
from extender.scheduling.pod_requirements import PodRequirements
from extender.scheduling.unschedulable_reason import unschedulable_reason
from extender.scoring import ByTopology, DeviceChoice, achieved_gbps, memory_bytes, parts, total


@dataclass(frozen=True, slots=True)
class Unschedulable:
    """The node cannot satisfy the requirements. `text` is built once, because thousands of nodes share it."""

    reason: Reason
    text: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", str(self.reason))


FilterStatus = Placement | Unschedulable
Forbidden = Mapping[tuple[str, str], int]
"""Claim name and request name to a mask of devices that the request must not get."""
_NOTHING: Forbidden = MappingProxyType({})


@dataclass(slots=True, eq=False)  # Final fields, see docs/architecture.md
class EvaluationContext:
    """The inputs of a status besides the node and the requirements."""

    masks: Final[Masks]
    features: Final[Features]
    baseline: Final[FleetBaseline]
    placements: Final[PlacementCache | None] = None  # shared by nodes of one allocation signature; None: not shared
    deadline: Final[Deadline] = NO_DEADLINE  # limits the work of a call; it never changes a status
    # By attribute signature, claim name and request name; None: the requirements may read the identity of a device.
    selections: Final[dict[tuple[Interned, str, str], Selection] | None] = None

    def sharing_selections(self) -> EvaluationContext:
        """The context for one call about one pod's requirements, which read no identity of a device."""
        return replace(self, selections={})


def problem_for(
    node_info: NodeInfo, requirements: PodRequirements, context: EvaluationContext, forbidden: Forbidden = _NOTHING
) -> Problem:
    """The allocation problem of the requirements on a node. Its `select` raises InvalidClaim and DeadlineExceeded."""
    classes = {class_.name: class_ for class_ in requirements.classes}
    remembered: dict[tuple[str, str], Selection] = {}

    def shared(claim: str, request: DeviceRequest) -> Selection:
        """Nodes of one attribute signature share the selection, unless it explains an error on devices of one node."""
        selections, attributes = context.selections, node_info.state.attribute_signature
        if selections is None or attributes is None:
            return selected(claim, request)
        known = selections.get((attributes, claim, request.name))
        if known is None:
            known = selected(claim, request)
            if not known.error:
                selections[attributes, claim, request.name] = known
        return known

    def selected(claim: str, request: DeviceRequest) -> Selection:
        class_ = find_class(claim, request, classes.get)
        return select(claim, request, class_, node_info.inventory, context.masks, context.features, context.deadline)

    def selection(claim: str, request: DeviceRequest) -> Selection:
        known = remembered.get((claim, request.name))
        if known is None:
            context.deadline.check()
            known = shared(claim, request)
            unwanted = excluded_devices(node_info, requirements)
            if unwanted and not request.admin_access:
                drifting = known.match & unwanted & node_info.drift
                known = known._replace(match=known.match & ~unwanted, drifting=drifting)
            if forbidden and (mask := forbidden.get((claim, request.name))):
                known = known._replace(match=known.match & ~mask, error=known.error & ~mask)
            remembered[claim, request.name] = known
        return known

    return Problem(
        node_info.inventory,
        requirements.claim_names,
        requirements.specs,
        node_info.allocated_state,
        selection,
        node_info.busy,
        context.features,
        classes.get,
        partial(derived_value, context.masks, context.deadline),
    )


def excluded_devices(node_info: NodeInfo, requirements: PodRequirements) -> int:
    """The devices that the policy or the pod's annotation excludes, even if selectors match them, as a bit mask."""
    found = node_info.drift if requirements.policy.drift == "filter" else 0
    expected = requirements.intent.expected_bytes
    if expected:
        for bit in node_info.gpu_bits:
            if bit >= 0 and 0 < memory_bytes(node_info, bit) < expected:
                found |= 1 << bit
    return found


def evaluate(
    node_info: NodeInfo,
    requirements: PodRequirements,
    context: EvaluationContext,
    recorder: CauseRecorder | None = None,
    forbidden: Forbidden = _NOTHING,
) -> FilterStatus:
    """The status of one node. An invalid claim makes the node unschedulable, with the fault as the reason.

    A `recorder` receives the cause of each device that the search rejects. It does not change the status.
    `forbidden` excludes devices per request. Raises DeadlineExceeded.
    """
    if not requirements.pending_claims:
        return Placement(Solution((), ()), (), 0.0, 0.0)
    problem = problem_for(node_info, requirements, context, forbidden)
    try:
        fast_path_ = fast_path(problem) if recorder is None else None
        if fast_path_ is not None:
            return _without_search(node_info, requirements, context, problem, fast_path_)
        return _by_search(node_info, requirements, context, problem, recorder)
    except InvalidClaim as error:
        return Unschedulable(Reason(Code.INVALID, (str(error),)))
    except OutOfSteps:
        return Unschedulable(Reason(Code.OUT_OF_BUDGET))


def _without_search(
    node_info: NodeInfo,
    requirements: PodRequirements,
    context: EvaluationContext,
    problem: Problem,
    fast_path_: FastPath,
) -> FilterStatus:
    placements, key, known = context.placements, None, None
    if placements is not None:
        key = placement_key(node_info, requirements, fast_path_)
    if placements is not None and key is not None:
        known = placements.get(key, context.baseline)
    if known is not None:
        return known.for_request(fast_path_.request)
    context.deadline.check()
    solution = choose_plain(fast_path_, problem, ByTopology(node_info, requirements.policy))
    if solution is None:  # device counts give the reason, so the empty recorder is enough
        expected = requirements.intent.expected_bytes
        return Unschedulable(unschedulable_reason(node_info, problem, CauseRecorder(), expected, context.deadline))
    status = _scored(DeviceChoice(node_info, problem, solution), requirements, context)
    if placements is not None and key is not None and isinstance(status, Placement):
        return placements.put(key, context.baseline, status)
    return status


def _by_search(
    node_info: NodeInfo,
    requirements: PodRequirements,
    context: EvaluationContext,
    problem: Problem,
    recorder: CauseRecorder | None,
) -> FilterStatus:
    context.deadline.check()
    recorder = recorder or CauseRecorder()
    solution = choose(
        problem,
        ByTopology(node_info, requirements.policy),
        most_steps=requirements.policy.search_steps,
        observer=recorder,
        deadline=context.deadline,
    )
    if solution is not None:
        return _scored(DeviceChoice(node_info, problem, solution), requirements, context)
    expected = requirements.intent.expected_bytes
    return Unschedulable(unschedulable_reason(node_info, problem, recorder, expected, context.deadline))


def _scored(choice: DeviceChoice, requirements: PodRequirements, context: EvaluationContext) -> FilterStatus:
    rejection = _rejection(choice, requirements)
    if rejection is not None:
        return Unschedulable(rejection)
    found = parts(choice, context.baseline, requirements.policy, requirements.intent.expected_bytes)
    if requirements.intent.topology == "none":
        found = tuple(part for part in found if part.name != "link")
    return Placement(choice.solution, found, total(found, requirements.policy), achieved_gbps(choice))


def _rejection(choice: DeviceChoice, requirements: PodRequirements) -> Reason | None:
    """Why the pod or the node does not accept this set of devices; None if both do."""
    mask = choice.gpus
    if mask and choice.node_info.partitions is not None and mask not in choice.node_info.partitions:
        return Reason(Code.PARTITION, (str(mask.bit_count()),))
    if mask.bit_count() < 2:  # noqa: PLR2004 - one GPU needs no link
        return None
    graph = choice.node_info.fabric.graph if choice.node_info.fabric is not None else None
    if requirements.intent.topology == "required" and (graph is None or not is_joined(graph, mask)):
        return Reason(Code.TOPOLOGY)
    if requirements.intent.min_gbps and (graph is None or bandwidth(graph, mask) < requirements.intent.min_gbps):
        return Reason(Code.BANDWIDTH)
    return None


def may_reject_sets(node_info: NodeInfo, requirements: PodRequirements) -> bool:
    """Whether `_rejection` may reject some set of free devices. If not, only the number of devices counts."""
    intent = requirements.intent
    return intent.topology == "required" or bool(intent.min_gbps) or node_info.partitions is not None
