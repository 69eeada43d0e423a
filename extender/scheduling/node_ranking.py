"""Statuses shared by equal demands on equal nodes, and nodes ranked per demand.

Nodes that a demand cannot tell apart share one status. Most demands read no identity of a device: for them a class of
nodes is a NodeState of the snapshot, which lists its nodes, so a ranking keeps one status per state and nothing per
node. Other demands keep NodeClasses of their own. A ranking follows the snapshots of one mirror: it judges only classes
without a status, and when facts about the fleet change, it makes every placement anew.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Container, Hashable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from extender.allocation import FleetBaseline, NodeInfo, NodeState, Snapshot
from extender.model import CallBudgetSpent, Code, DeviceRequest
from extender.scheduling.equivalence_key import IdentityCheck, equivalence_key
from extender.scheduling.evaluate import EvaluationContext, FilterStatus, Unschedulable, evaluate
from extender.scheduling.node_classes import NodeClass, NodeClasses
from extender.scheduling.placements import Placement
from extender.scheduling.pod_requirements import PodRequirements

_NAME = itemgetter(0)
_FIRST = 3  # nodes named per state
_REFRESHED = 2  # classes judged again in one call when facts about the fleet changed
# Estimated bytes, measured with tracemalloc over half-full fleets (docs/performance.md).
_BASE_BYTES, _STATUS_BYTES, _UNSCHEDULABLE_BYTES, _PLACEMENT_BYTES, _PICK_BYTES, _NODE_BYTES, _CLASS_BYTES = (
    4096,
    64,
    640,
    480,
    112,
    80,
    320,
)


class StatusGroup(NamedTuple):
    """Nodes that share a status."""

    status: FilterStatus
    nodes: int
    first: list[str]  # the first few of them by name


class NodeRanking:
    """All nodes for one demand: status per class of nodes, and placements by falling score.

    `vacant` classes without nodes, or an eighth of those with nodes, keep their placements, and as many their refusals,
    because their state often returns.
    """

    def __init__(self, requirements: PodRequirements, *, vacant: int = 16) -> None:
        self.requirements = requirements
        self._vacant = vacant
        self._room = 2 * vacant  # statuses before those of vacant classes are dropped
        self._classes: NodeClasses | None = None  # None: the states of the snapshot
        self._nodes: Mapping[int, NodeState | NodeClass] = {}  # classes that some node is in, by number
        self._pending: dict[int, NodeInfo] = {}  # classes to judge, each with a view in it
        self._unschedulable: dict[int, Unschedulable] = {}
        self._unschedulable_by_text: dict[str, Unschedulable] = {}  # by text: thousands of classes share one
        self._placements: dict[int, Placement] = {}
        self._order: list[int] = []  # those granted, by falling score
        self._request: DeviceRequest | None = None  # the only one, where placements of other demands are shared
        self._own_placements = 0  # those that are not shared
        self._own_picks = 0  # devices in them
        self._version = -1
        self._baseline: FleetBaseline | None = None
        self._context: EvaluationContext | None = None  # of the call at hand
        self._stale: list[int] = []  # granted by older facts about the fleet
        self._identity_ignored: dict[object, bool] = {}  # by key of the demand as nodes have to serve it
        self._checks: dict[object, IdentityCheck] = {}  # the same, where that is not known yet
        self.evaluations = 0  # searches made; the rest was remembered

    def update(self, snapshot: Snapshot, context: EvaluationContext) -> bool:
        """Catch up with a snapshot; the work grows with the number of nodes that changed. False where the budget was
        spent before the end: what was done stays done, and the next call goes on. Facts about the fleet change scores
        only, so each call makes just a few placements anew by them; `refresh` makes the rest."""
        try:
            # Classes that an earlier call left come first: the search that its budget cut off then has a whole budget.
            self._evaluate_pending(context)
            self._begin(context)
            if self._classes is None:
                self._find_states(snapshot)
                self._evaluate_pending(context)
            else:
                self._judge_classes(self._classes, snapshot, context)
        except CallBudgetSpent:
            return False
        with suppress(CallBudgetSpent):
            self._refresh(snapshot, context, _REFRESHED)
        return True

    def refresh(self, snapshot: Snapshot, context: EvaluationContext) -> bool:
        """After `follow` with the same snapshot: make all placements anew that rest on older facts about the fleet. False
        where the budget was spent before the end."""
        try:
            self._refresh(snapshot, context, len(self._stale))
        except CallBudgetSpent:
            return False
        return True

    def evaluate(self, node_info: NodeInfo, context: EvaluationContext) -> FilterStatus:
        """The status of a view, remembered for its class; the ranking itself stays where it is."""
        self._begin(context)
        found = node_info.state.number if self._classes is None else self._classes.number_of_node(node_info)
        status = self._known(found)
        return status if status is not None else self._evaluate(found, node_info, context)

    @property
    def stale(self) -> bool:
        """Whether some statuses are of older facts about the fleet."""
        return bool(self._stale)

    @property
    def unevaluated(self) -> int:
        """Nodes that have no status yet."""
        return sum(len(self._names(one)) for one in self._pending) + (
            self._classes.unsorted if self._classes is not None else 0
        )

    def status(self, node_info: NodeInfo) -> FilterStatus | None:
        """The status of a node; None for one that is not judged."""
        found = node_info.state.number if self._classes is None else self._classes.number_of(node_info.node.name)
        return self._known(found) if found is not None else None

    def status_groups(self, among: Container[str] | None = None, without: Collection[str] = ()) -> list[StatusGroup]:
        """All states of nodes that have a status; a placement may name the request of an equal demand. With `among`, other
        nodes do not count; those few `without` never do."""
        statuses = chain[tuple[int, FilterStatus]](self._placements.items(), self._unschedulable.items())
        found = (_state(status, self._names(one), among, without) for one, status in statuses if one in self._nodes)
        return [state for state in found if state.nodes]

    def reasons(self) -> dict[str, str]:
        """Why each node that cannot serve the demand cannot."""
        found: dict[str, str] = {}
        for one, status in self._unschedulable.items():
            found.update(dict.fromkeys(self._names(one), status.text))
        return found

    def unschedulable_counts(self) -> Counter[str]:
        """Nodes by the text of the reason why they cannot serve the demand."""
        found: Counter[str] = Counter()
        for one, status in self._unschedulable.items():
            found[status.text] += len(self._names(one))
        return found

    def main_reason(self) -> Code | None:
        """The code of the reason that refuses most nodes; None where none is refused."""
        found: Counter[Code] = Counter()
        for one, status in self._unschedulable.items():
            found[status.reason.code] += len(self._names(one))
        return max(found, key=lambda code: (found[code], code.name), default=None)

    @property
    def groups(self) -> int:
        """Statuses that are remembered."""
        return len(self._placements) + len(self._unschedulable)

    @property
    def nodes(self) -> int:
        """Nodes that have a status."""
        return sum(len(self._names(one)) for one in chain(self._placements, self._unschedulable))

    @property
    def estimated_bytes(self) -> int:
        """About what the ranking keeps in memory of its own; what others share is not counted."""
        specs = sum(len(spec.content) for spec in self.requirements.specs)
        own = len(self._classes) * _NODE_BYTES + self.groups * _CLASS_BYTES if self._classes is not None else 0
        statuses = self.groups * _STATUS_BYTES + len(self._unschedulable_by_text) * _UNSCHEDULABLE_BYTES
        return (
            _BASE_BYTES
            + specs
            + own
            + statuses
            + self._own_placements * _PLACEMENT_BYTES
            + self._own_picks * _PICK_BYTES
        )

    def best(self, names: set[str] | None, count: int) -> list[tuple[str, Placement]]:
        """The best nodes among `names` (None: all), ties by name."""
        found: list[tuple[str, Placement]] = []
        equal: list[tuple[str, Placement]] = []  # of one score
        score = None
        for one in self._order:
            nodes = self._nodes.get(one)
            if nodes is None:
                continue
            placement = self._placement(one)
            if placement.score != score:
                found += sorted(equal, key=_NAME)[: count - len(found)]
                if len(found) >= count:
                    return found
                equal, score = [], placement.score
            some = nodes.names if names is None else [name for name in nodes.names if name in names]
            equal += [(name, placement) for name in some[: count - len(found)]]
        return found + sorted(equal, key=_NAME)[: count - len(found)]

    def _names(self, one: int) -> Sequence[str]:
        found = self._nodes.get(one)
        return found.names if found is not None else ()

    def _by_score(self, one: int) -> float:
        return -self._placements[one].score

    def _placement(self, one: int) -> Placement:
        """The placement of a class, from now on with this demand's request: the best ones are few and are asked for
        again."""
        placement = self._placements[one]
        if self._is_foreign(placement):
            placement = self._placements[one] = self._for_own_request(placement)
            self._count(placement, 1)
        return placement

    def _is_foreign(self, placement: Placement) -> bool:
        """Whether it is the placement of another demand, which this one shares."""
        return self._request is not None and placement.solution.picks[0][0].request is not self._request

    def _for_own_request(self, placement: Placement) -> Placement:
        return (
            placement.for_request(self._request)
            if self._request is not None and self._is_foreign(placement)
            else placement
        )

    def _known(self, one: int) -> FilterStatus | None:
        placement = self._placements.get(one)
        return self._for_own_request(placement) if placement is not None else self._unschedulable.get(one)

    # -- following -------------------------------------------------------------------------------------------

    def _begin(self, context: EvaluationContext) -> None:
        """The first rules decide whether states tell all that the demand sees of a node."""
        self._context = context
        if self._baseline is None and (
            self.requirements.extended is not None or not self._ignores_identity(self.requirements, context)
        ):
            self._classes = NodeClasses(self._key)
            self._nodes = self._classes.occupied
        if context.baseline is not self._baseline:
            self._baseline = context.baseline
            self._stale = list(self._order)

    def _evaluate_pending(self, context: EvaluationContext) -> None:
        while self._pending:
            one, node_info = self._pending.popitem()
            if one not in self._placements and one not in self._unschedulable:
                try:
                    self._evaluate(one, node_info, context)
                except CallBudgetSpent:
                    self._pending[one] = node_info
                    raise

    def _find_states(self, snapshot: Snapshot) -> None:
        """States without a status, among those of nodes that changed."""
        changed = snapshot.changed_since(self._version) if self._version >= 0 else None
        node_infos, placements, unschedulable = snapshot.node_infos, self._placements, self._unschedulable
        self._nodes = snapshot.states
        if changed is None:
            changed = [state.names[0] for state in snapshot.states.values()]
        for name in changed:
            node_info = node_infos.get(name)
            if (
                node_info is not None
                and node_info.state.number not in placements
                and node_info.state.number not in unschedulable
            ):
                self._pending[node_info.state.number] = node_info
        self._version = snapshot.version

    def _judge_classes(self, classes: NodeClasses, snapshot: Snapshot, context: EvaluationContext) -> None:
        """Judge the classes that nodes which changed are in now, each as soon as a node is sorted into it: so a call
        whose budget ends early has statuses to show. Raises BudgetSpent."""
        for one, node_info in classes.update(snapshot):
            context.budget.mark_progress()
            if one not in self._placements and one not in self._unschedulable:
                self._pending[one] = node_info
                self._evaluate_pending(context)

    def _key(self, node_info: NodeInfo) -> Hashable:
        assert self._context is not None, "classes are made and followed after the rules are known"
        requirements, context = self.requirements.for_node(node_info.node), self._context
        if node_info.state.attribute_class is not None and self._ignores_identity(requirements, context):
            return requirements.key, node_info.state.number
        return (
            requirements.key,
            node_info.state.allocation_class.number,
            *equivalence_key(node_info, requirements, context),
        )

    def _ignores_identity(self, requirements: PodRequirements, context: EvaluationContext) -> bool:
        """Whether the demand looks at no identity of a device."""
        found = self._identity_ignored.get(requirements.key)
        if found is None:
            check = self._checks.setdefault(requirements.key, IdentityCheck(requirements))
            found = self._identity_ignored[requirements.key] = check.ignores_identity(context)
            del self._checks[requirements.key]
        return found

    def ignores_identity(self, context: EvaluationContext) -> bool:
        """Whether the demand looks at no identity of a device. Raises BudgetSpent."""
        return self._ignores_identity(self.requirements, context)

    def _evaluate(self, one: int, node_info: NodeInfo, context: EvaluationContext) -> FilterStatus:
        if self.groups >= self._room:
            self._forget_vacant()
        status = self._remember(one, evaluate(node_info, self.requirements.for_node(node_info.node), context))
        context.budget.mark_progress()
        return status

    def _remember(self, one: int, status: FilterStatus) -> FilterStatus:
        self.evaluations += 1
        if isinstance(status, Unschedulable):
            status = self._unschedulable[one] = self._unschedulable_by_text.setdefault(status.text, status)
        else:
            self._rank(one, status)
        return status

    def _refresh(self, snapshot: Snapshot, context: EvaluationContext, most: int) -> None:
        """Make up to so many placements anew by the newest facts about the fleet. Raises BudgetSpent."""
        made = 0
        while self._stale and made < most:
            one = self._stale.pop()
            node_info = self._view_in(one, snapshot)
            try:
                status = (
                    evaluate(node_info, self.requirements.for_node(node_info.node), context)
                    if node_info is not None
                    else None
                )
            except CallBudgetSpent:
                self._stale.append(one)
                raise
            self._forget(one)
            if status is not None:  # otherwise no node is in the class: it is judged when one comes into it
                self._remember(one, status)
                context.budget.mark_progress()
                made += 1

    def _view_in(self, one: int, snapshot: Snapshot) -> NodeInfo | None:
        return next(
            (node_info for name in self._names(one) if (node_info := snapshot.node_infos.get(name)) is not None), None
        )

    # -- remembering -----------------------------------------------------------------------------------------

    def _rank(self, one: int, placement: Placement) -> None:
        if placement.shared_from is not None and self.requirements.extended is None:
            self._request, placement = placement.solution.picks[0][0].request, placement.shared_from
        else:
            self._count(placement, 1)
        self._placements[one] = placement
        insort(self._order, one, key=self._by_score)

    def _count(self, placement: Placement, sign: int) -> None:
        """One placement more, or less, that is not shared."""
        self._own_placements += sign
        self._own_picks += sign * sum(map(len, placement.solution.picks))

    def _forget(self, one: int) -> None:
        """Drop a status; the class is judged again once a node comes into it."""
        self._unschedulable.pop(one, None)
        placement = self._placements.get(one)
        if placement is not None:
            position = bisect_left(self._order, -placement.score, key=self._by_score)
            del self._order[self._order.index(one, position)]
            del self._placements[one]
            if not self._is_foreign(placement):
                self._count(placement, -1)
        if self._classes is not None:
            self._classes.forget(one)

    def _forget_vacant(self) -> None:
        """Drop the statuses of classes that no node is in, but the newest few."""
        kept = max(self._vacant, len(self._nodes) // 8)
        for statuses in (self._placements, self._unschedulable):
            for one in [one for one in statuses if one not in self._nodes][:-kept]:
                self._forget(one)
        self._unschedulable_by_text = {status.text: status for status in self._unschedulable.values()}
        self._room = self.groups + 2 * kept


def _state(
    status: FilterStatus, names: Sequence[str], among: Container[str] | None, without: Collection[str]
) -> StatusGroup:
    some = names if among is None else [name for name in names if name in among]
    if not without:
        return StatusGroup(status, len(some), list(some[:_FIRST]))
    left_out = [name for name in without if some[bisect_left(some, name) :][:1] == [name]]
    first = [name for name in some[: _FIRST + len(left_out)] if name not in left_out]
    return StatusGroup(status, len(some) - len(left_out), first[:_FIRST])
