"""One evaluation: whether a pod can have its devices on one node, which ones, and how good they are.

This is the centre of filter, prioritize, bind, gang plans and explanations. The whole story: `requirements_of`
(pod_requirements.py) turns a pod and a snapshot into PodRequirements. Pods with equal requirements share a NodeRanking
(node_ranking.py). It puts the nodes into equivalence classes (equivalence.py) and calls `evaluate` for one node of each
class. `evaluate` makes an allocation problem: the selectors, compiled once and kept as masks per slice, say which
devices match each request; the NodeInfo says which of them are in use. Most problems ask for some interchangeable whole
devices: they need no search, and their placements are shared by all pods that match the same devices
(PlacementCache). All others are searched as Kubernetes searches them. In both cases ByTopology proposes sets of
devices, the best first, and the first one that solves the problem is taken. A set that breaks a demand of the pod
(links, bandwidth) is rejected; any other gets the parts of its score, and is a Placement.
Without a solution, unschedulable_reason.py chooses one reason from the causes that the search recorded. At the end
shortlist.py takes the best nodes of the ranking, or the reason of each node.

No status depends on time: a call that runs out of it raises DeadlineExceeded, and the next call continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Final

from extender.allocation import (
    Asked,
    CauseRecorder,
    FastPath,
    Features,
    FleetBaseline,
    NodeInfo,
    Pick,
    Problem,
    Selection,
    Snapshot,
    Solution,
    allocations,
    choose,
    derived_value,
    select,
)
from extender.allocation.nodes import AllocatedState, Interned
from extender.api.claim_specs import DeviceRequest
from extender.api.nodes import NodeSelector
from extender.api.reasons import Code, Reason
from extender.api.resource_claims import Allocation, Claim, Reservation, Result
from extender.base.berth_errors import InvalidClaim, OutOfSteps
from extender.base.bits import members, union
from extender.base.deadline import NO_DEADLINE, Deadline
from extender.base.fair_lru import FairLRU
from extender.cel.dra import Masks
from extender.policy import Policy
from extender.scheduling.node_selection import SelectedNodes
from extender.scheduling.requirements.pod_requirements import PodRequirements
from extender.scheduling.unschedulable_reason import unschedulable_reason
from extender.topology.preference import ByTopology
from extender.topology.score_parts import DeviceChoice, ScorePart, achieved_gbps, parts, total, with_least_memory
from extender.topology.sets import bandwidth, is_joined

_MAX_PLACEMENTS = 8_192  # entries of about 1 KB; a half-full fleet of mixed machine types has about 1,000 states
_MAX_PARTS = 4_096  # distinct parts of scores; 3,500 placements in such a fleet have 276
_MAX_SELECTED = 16  # results of node selectors, each with half a megabyte for 5,000 nodes
_NO_REQUEST = DeviceRequest("", "")  # of a shared placement: a tenant's request may take 128 KiB

Forbidden = Mapping[tuple[str, str], int]
"""Claim name and request name to a mask of devices that the request must not get."""
_NOTHING: Forbidden = MappingProxyType({})


@dataclass(slots=True)  # Final fields, see docs/architecture.md
class Placement:
    """The node satisfies the requirements with these devices."""

    solution: Final[Solution]
    parts: Final[tuple[ScorePart, ...]]
    score: Final[float]
    ring_gbps: Final[float]  # GB/s
    free_gpus: Final[tuple[int, int]] = (0, 0)  # before and after it, in thousandths of a GPU
    # Of a single request on the fast path: the mask of the free devices that match it, and how many of them it takes.
    matching: Final[int] = field(default=0, compare=False)
    each: Final[int] = field(default=0, compare=False)
    is_shared: Final[bool] = field(default=False, compare=False)  # pods share it: it names none of their requests

    def for_request(self, request: DeviceRequest) -> Placement:
        """The same devices for the single request of another pod."""
        picks = tuple([Pick(pick.bit, request, None) for pick in self.solution.picks[0]])
        solution = Solution((picks,), self.solution.alternatives)
        return Placement(solution, self.parts, self.score, self.ring_gbps, self.free_gpus, self.matching, self.each)

    def with_parts(self, parts: tuple[ScorePart, ...], score: float) -> Placement:
        """The same devices with other parts of the score."""
        # Not `replace`, which takes three times as long: a pod may need a placement for each state of thousands.
        return Placement(
            self.solution, parts, score, self.ring_gbps, self.free_gpus, self.matching, self.each, self.is_shared
        )

    def results(self, node_info: NodeInfo) -> list[tuple[Result, ...]]:
        """The devices as results, per pending claim, as a hold reserves them: without what only an API write needs."""
        return [
            tuple(
                Result(
                    pick.request.name,
                    node_info.inventory.devices[pick.bit].id,
                    pick.request.admin_access,
                    share_id="hold" if pick.consumed is not None else "",
                    consumed=pick.consumed,
                )
                for pick in claim
            )
            for claim in self.solution.picks
        ]

    def holds(
        self, pod_uid: str, claims: Sequence[Claim], node_info: NodeInfo, deadline: float
    ) -> dict[str, Reservation]:
        """The holds of a pod's pending claims on this node, by UID of the claim, until `deadline`.

        A node may need another number of claims than on the snapshot of the placement: it may offer a resource itself.
        """
        pairs, name = zip(claims, self.results(node_info), strict=False), node_info.node.name
        return {claim.uid: Reservation(pod_uid, name, results, deadline) for claim, results in pairs}

    def devices(self, node_info: NodeInfo) -> tuple[str, ...]:
        """The devices as driver/pool/device."""
        devices = node_info.inventory.devices
        return tuple(str(devices[pick.bit].id) for claim in self.solution.picks for pick in claim)

    def allocations(
        self,
        node_info: NodeInfo,
        requirements: PodRequirements,
        context: EvaluationContext,
        new_share: Callable[[], str],
    ) -> list[tuple[Claim, Allocation]]:
        """The allocation of each pending claim on this node, as bind writes it.

        `new_share` returns a new share ID. Raises InvalidClaim and DeadlineExceeded.
        """
        problem = context.problem(node_info, requirements)
        found = allocations(problem, self.solution, node_info.node.name, problem.classes, new_share)
        return list(zip(requirements.pending_claims, found, strict=True))


@dataclass(frozen=True, slots=True)
class Unschedulable:
    """The node cannot satisfy the requirements. `text` is built once, because thousands of nodes share it."""

    reason: Reason
    text: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", str(self.reason))


FilterStatus = Placement | Unschedulable


@dataclass(slots=True, eq=False)  # Final fields, see docs/architecture.md
class EvaluationContext:
    """The inputs of a status besides the node and the requirements."""

    masks: Final[Masks]
    features: Final[Features]
    baseline: Final[FleetBaseline]
    placements: Final[PlacementCache | None] = None  # shared by pods that match the same devices; None: not shared
    deadline: Final[Deadline] = NO_DEADLINE  # limits the work of a call; it never changes a status
    # By attribute signature, claim name and request name; None: the requirements may read the identity of a device.
    selections: Final[dict[tuple[Interned | None, str, str], Selection] | None] = None
    # By attribute signature: the only request, and the devices that match it, in use or not. None: it needs a search.
    only_requests: Final[dict[Interned, Asked | None]] = field(default_factory=dict)

    def sharing_selections(self) -> EvaluationContext:
        """The context for one call about one pod's requirements, which read no identity of a device."""
        return replace(self, selections={}, only_requests={})

    def only_request(self, node_info: NodeInfo, requirements: PodRequirements) -> Asked | None:
        """The only request of the claims, on the fast path, without making a problem for each of thousands of states.

        None if that is not known for all nodes of one attribute signature. Raises InvalidClaim and DeadlineExceeded.
        """
        signature = node_info.state.attribute_signature
        if self.selections is None or signature is None or requirements.policy.drift == "filter":
            return None
        if signature not in self.only_requests:
            problem = self.problem(node_info, requirements)
            path, found = FastPath.of(problem), None
            if path is not None and len(path.asked) == 1:
                (found,) = path.asked
                found = found._replace(free=problem.select(problem.names[0], found.request).match)
            self.only_requests[signature] = found
        known = self.only_requests[signature]
        if known is None:
            return None
        return Asked(known.claim, known.request, known.free & ~node_info.busy, known.least_memory)

    def problem(self, node_info: NodeInfo, requirements: PodRequirements, forbidden: Forbidden = _NOTHING) -> Problem:
        """The allocation problem of the requirements on a node. Its `select` raises InvalidClaim and DeadlineExceeded.

        `forbidden` excludes devices per request.
        """
        classes = requirements.classes
        remembered: dict[tuple[str, str], Selection] = {}
        drift, small = _excluded_devices(node_info, requirements)

        def selection(claim: str, request: DeviceRequest) -> Selection:
            found = remembered.get((claim, request.name))
            if found is None:
                found = matching(claim, request)
                if (drift or small) and not request.admin_access:
                    match, too_small = found.match & ~(drift | small), found.match & small
                    found = found._replace(match=match, drifting=found.match & drift & ~small, small=too_small)
                if forbidden and (mask := forbidden.get((claim, request.name))):
                    found = found._replace(match=found.match & ~mask, error=found.error & ~mask)
                remembered[claim, request.name] = found
            return found

        def matching(claim: str, request: DeviceRequest) -> Selection:
            """Nodes of one attribute signature share it, unless it explains an error on devices of one node."""
            shared = self.selections if node_info.state.attribute_signature is not None else None
            key = node_info.state.attribute_signature, claim, request.name
            if shared is not None and key in shared:
                return shared[key]
            found = select(claim, request, classes.get, node_info.inventory, self.masks, self.features, self.deadline)
            if shared is not None and not found.error:
                shared[key] = found
            return found

        return Problem(
            node_info.inventory,
            requirements.claim_names,
            requirements.specs,
            node_info.allocated_state,
            selection,
            node_info.busy,
            self.features,
            classes.get,
            partial(derived_value, self.masks, self.deadline),
            node_info.fabric_partitions,
        )


def _excluded_devices(node_info: NodeInfo, requirements: PodRequirements) -> tuple[int, int]:
    """(devices in use without a claim, GPUs and parts of GPUs with too little memory), as bit masks.

    The policy excludes the former, the pod's annotation the latter, even if selectors match them.
    """
    drift = node_info.drift if requirements.policy.drift == "filter" else 0
    expected, devices = requirements.intent.expected_bytes, node_info.inventory.devices
    if not expected:
        return drift, 0
    gpus = members(node_info.inventory.gpus)
    return drift, union([1 << bit for bit in gpus if 0 < devices[bit].memory_bytes < expected])


def evaluate(
    node_info: NodeInfo,
    requirements: PodRequirements,
    context: EvaluationContext,
    recorder: CauseRecorder | None = None,
    forbidden: Forbidden = _NOTHING,
    own: int = 0,
    *,
    scored: bool = True,
    shared: bool = False,
) -> FilterStatus:
    """The status of one node. An invalid claim makes the node unschedulable, with the fault as the reason.

    `own` is a mask of devices that the pod has on the node already: the new ones are near them, if that is possible.
    Without `scored`, the placement has no score: the plan of a gang reads only its devices. With `shared`, the
    placement may be one that pods share, see Placement.is_shared.

    `requirements` are those on this node (`for_node`). A `recorder` receives the cause of each device that the search
    rejects. It does not change the status. For `forbidden` see EvaluationContext.problem. Raises DeadlineExceeded.
    """
    if not requirements.pending_claims:
        return Placement(Solution((), ()), (), 0.0, 0.0)
    placements = context.placements if recorder is None and not own and scored else None
    problem: Problem | None = None
    try:
        asked = context.only_request(node_info, requirements) if placements is not None and not forbidden else None
        if asked is None:
            problem = context.problem(node_info, requirements, forbidden)
            path = FastPath.of(problem) if recorder is None else None
            if placements is None or path is None or len(path.asked) > 1:
                return _solve(node_info, requirements, context, problem, path, recorder, own, scored=scored)
            (asked,) = path.asked
        assert placements is not None
        status = placements.shared(node_info, requirements, context, asked, problem)
        if shared or isinstance(status, Unschedulable) or not status.is_shared:
            return status
        return status.for_request(asked.request)
    except InvalidClaim as error:
        return Unschedulable(Reason(Code.INVALID, (str(error),)))
    except OutOfSteps:
        return Unschedulable(Reason(Code.OUT_OF_BUDGET))


def beside_own(
    placement: Placement, node_info: NodeInfo, requirements: PodRequirements, context: EvaluationContext
) -> Placement:
    """The placement of a pod whose claims have devices on the node already, with new devices that are near them.

    Other pods share `placement`: their requirements are equal but for such claims. Raises DeadlineExceeded.
    """
    if node_info.locality is None or not placement.solution.picks:
        return placement
    own = requirements.devices_on(node_info)
    found = evaluate(node_info, requirements.for_node(node_info.node), context, own=own) if own else placement
    return found if isinstance(found, Placement) else placement


def _solve(
    node_info: NodeInfo,
    requirements: PodRequirements,
    context: EvaluationContext,
    problem: Problem,
    path: FastPath | None,
    recorder: CauseRecorder | None = None,
    own: int = 0,
    *,
    scored: bool = True,
) -> FilterStatus:
    """The status, from the fast path if there is one, else from the search."""
    preference = ByTopology(node_info, requirements.policy, requirements.intent, own)
    if path is not None:
        solution = path.choose(problem, preference)
    else:
        recorder = recorder or CauseRecorder()
        solution = choose(
            problem,
            preference,
            max_steps=requirements.policy.search_steps,
            recorder=recorder,
            deadline=context.deadline,
        )
    intent = requirements.intent
    if solution is None:
        if (partition := _partition_reason(problem, requirements.policy, context.deadline)) is not None:
            return Unschedulable(partition)
        return Unschedulable(
            # On the fast path device counts give the reason.
            unschedulable_reason(
                node_info, problem, recorder or CauseRecorder(), intent.expected_bytes, context.deadline
            )
        )
    rejection = _rejection(node_info, solution, requirements)
    if rejection is not None:
        others = node_info.inventory.gpus & ~node_info.whole_gpus
        if not solution.taken & others & ~problem.taken:
            return Unschedulable(rejection)
        # No link joins a part of a GPU, so whole ones are tried: the parts are taken, as `All` still has to name them.
        whole = replace(problem, taken=problem.taken | others)
        path = FastPath.of(whole) if path is not None else None
        status = _solve(node_info, requirements, context, whole, path, own=own, scored=scored)
        return status if isinstance(status, Placement) else Unschedulable(rejection)
    if not scored:
        return Placement(solution, (), 0.0, 0.0)
    choice = DeviceChoice(node_info, problem, solution, own)
    found = parts(choice, context.baseline, requirements.policy, intent)
    score = total(found, requirements.policy)
    of_one = (path.asked[0].free, path.asked[0].request.count) if path is not None and len(path.asked) == 1 else (0, 0)
    return Placement(solution, found, score, achieved_gbps(choice), choice.free_gpus, *of_one)


def _partition_reason(problem: Problem, policy: Policy, deadline: Deadline) -> Reason | None:
    """The reason of an unsolvable problem if it could be solved with any sets of GPUs, else None.

    What the node lacks even when all devices are free comes first: no wait helps.
    """
    if problem.fabric_partitions is None:
        return None
    known = {one.bit_count() for one in problem.fabric_partitions.sets}
    solve = partial(choose, preference=None, max_steps=policy.search_steps, deadline=deadline)
    try:
        idle = replace(problem, taken=0, allocated_state=AllocatedState({}))
        sizes = _sizes(solve(replace(idle, fabric_partitions=None)), problem.fabric_partitions.gpus)
        if not known.issuperset(sizes) and solve(idle) is None:
            code = Code.NO_PARTITION
        else:
            sizes = _sizes(solve(replace(problem, fabric_partitions=None)), problem.fabric_partitions.gpus)
            code = Code.PARTITION
    except OutOfSteps:  # that no solution exists is proven all the same
        return None
    return Reason(code, (" + ".join(map(str, sizes)) + (" GPU" if sizes == [1] else " GPUs"),)) if sizes else None


def _sizes(solution: Solution | None, gpus: int) -> list[int]:
    """How many whole GPUs the claims have that have any, ascending; [] without a solution."""
    masks = solution.masks if solution is not None else []
    return sorted((mask & gpus).bit_count() for mask in masks if mask & gpus)


def _rejection(node_info: NodeInfo, solution: Solution, requirements: PodRequirements) -> Reason | None:
    """Why the pod does not accept this set of devices; None if it does."""
    intent = requirements.intent
    if intent.topology != "required" and not intent.min_gbps:
        return None
    gpus = solution.taken & node_info.inventory.gpus
    if gpus.bit_count() < 2:  # noqa: PLR2004 - one GPU needs no link
        return None
    fabric, mask = node_info.fabric, node_info.positions(gpus)
    graph = fabric.graph if fabric is not None and mask.bit_count() == gpus.bit_count() else None  # None: not all whole
    if intent.topology == "required" and (graph is None or not is_joined(graph, mask)):
        return Reason(Code.TOPOLOGY)
    if intent.min_gbps and (graph is None or bandwidth(graph, mask) < intent.min_gbps):
        return Reason(Code.BANDWIDTH)
    return None


def may_reject_sets(node_info: NodeInfo, requirements: PodRequirements) -> bool:
    """Whether `_rejection` or a partition may exclude some set of free devices. If not, only their number counts."""
    intent = requirements.intent
    return intent.topology == "required" or bool(intent.min_gbps) or node_info.fabric_partitions is not None


@dataclass(slots=True)
class _Kept:
    """A placement without its request, and the bytes of memory that the selectors of that demand of a device."""

    placement: Placement
    least: int


class PlacementCache:
    """Placements of the fast path, shared by pods whose requests match the same devices.

    Requirements with other names or other selectors can match the same devices. If the selectors demand other memory,
    the devices are the same, too, and only the part `headroom` is computed again: a cluster has many such bounds. The
    cache is bounded, the oldest entry goes first. It is valid for one FleetBaseline, because scores are relative to it.
    """

    def __init__(self) -> None:
        self._placements: dict[tuple[object, ...], _Kept] = {}
        self._parts: dict[ScorePart, ScorePart] = {}  # equal parts of placements are one object
        self._baseline: FleetBaseline | None = None

    def __len__(self) -> int:
        return len(self._placements)

    def shared(
        self,
        node_info: NodeInfo,
        requirements: PodRequirements,
        context: EvaluationContext,
        asked: Asked,
        problem: Problem | None,
    ) -> FilterStatus:
        """The status of a single request. A placement is one that pods share, except on a hypothetical node.

        `problem`: if it is made already.
        """

        def solved() -> FilterStatus:
            own = problem if problem is not None else context.problem(node_info, requirements)
            return _solve(node_info, requirements, context, own, FastPath((asked,)))

        if node_info.state.hypothetical:  # its state is not comparable
            return solved()
        if context.baseline is not self._baseline:
            self._placements.clear()
            self._parts.clear()
            self._baseline = context.baseline
        key = placement_key(node_info, requirements, asked)
        kept = self._placements.get(key)
        wanted = asked.least_memory if not requirements.intent.expected_bytes else 0  # see score_parts
        if kept is None:
            status = solved()
            if isinstance(status, Unschedulable):
                return status
            if len(self._placements) >= _MAX_PLACEMENTS:
                del self._placements[next(iter(self._placements))]
            kept = self._placements[key] = _Kept(self._without_request(status), wanted)
        elif kept.least != wanted:
            bits = [pick.bit for pick in kept.placement.solution.picks[0]]
            known, policy = kept.placement.parts, requirements.policy
            found = with_least_memory(known, wanted, node_info, bits, context.baseline, policy)
            kept.placement, kept.least = kept.placement.with_parts(found, total(found, policy)), wanted
        return kept.placement

    def _without_request(self, found: Placement) -> Placement:
        if len(self._parts) > _MAX_PARTS:
            self._parts.clear()
        parts = tuple([self._parts.setdefault(part, part) for part in found.parts])
        shared = found.for_request(_NO_REQUEST)
        return Placement(
            shared.solution, parts, found.score, found.ring_gbps, found.free_gpus, found.matching, found.each, True
        )


def placement_key(node_info: NodeInfo, requirements: PodRequirements, asked: Asked) -> tuple[object, ...]:
    """The cache key: placements with equal keys differ only in the memory that their selectors demand.

    If no GPU of the fabric matches, the score reads only `own_in_use` of the node's use. So nodes of one hardware share
    the choice among the devices of a pool that all of them reach.
    """
    shape = asked.free, asked.request.count, requirements.intent, requirements.policy
    if not node_info.positions(asked.free):
        return node_info.state.hardware_signature, node_info.own_in_use, *shape
    return node_info.state.own_signature, *shape


class Evaluator:
    """What all evaluations of one process share: compiled selectors, match masks, placements and matching nodes."""

    def __init__(self, features: Features) -> None:
        self._features = features
        self._masks = Masks()
        self._placements = PlacementCache()
        # By namespace and node selectors. A comparison that needs several calls must not be lost between them, whatever
        # pods other namespaces have.
        self._selected: FairLRU[tuple[str, tuple[NodeSelector, ...]], SelectedNodes] = FairLRU(_MAX_SELECTED)

    def evaluation_context(self, snapshot: Snapshot, deadline: Deadline = NO_DEADLINE) -> EvaluationContext:
        """The context for evaluations on a snapshot, limited by the deadline of the call."""
        return EvaluationContext(self._masks, self._features, snapshot.baseline, self._placements, deadline)

    def selected_nodes(self, requirements: PodRequirements) -> SelectedNodes:
        """The nodes that match the node selectors of the pod's claims."""
        selectors = requirements.claim_selectors
        found = self._selected.get((requirements.namespace, selectors))
        if found is None:
            found = SelectedNodes(selectors)
            if not found.is_pinned:  # one node is soon compared, and there are many such pods
                self._selected.put(requirements.namespace, (requirements.namespace, selectors), found)
        return found

    def forget_slices(self, names: Iterable[str]) -> None:
        """Drop the match masks of deleted slices, by slice name."""
        for name in names:
            self._masks.forget(name)

    def remembered(self) -> dict[str, int]:
        """The number of entries per cache."""
        selected = len(self._selected)
        return {"placements": len(self._placements), "selected_nodes": selected, **self._masks.remembered()}
