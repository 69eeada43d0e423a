"""The ranking of all nodes for one PodRequirements, shared by all pods with that requirements key.

Nodes of one equivalence class share one status. Most requirements read no identity of a device. Their equivalence
classes are the NodeStates of the snapshot, which list their nodes: the ranking stores one status per state and nothing
per node. Other requirements have EquivalenceClasses of their own. A ranking follows the snapshots of one cache, and
evaluates only equivalence classes without a status. After a change of the FleetBaseline it computes every placement
again, because scores are relative to the baseline.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Container, Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from itertools import chain, islice
from operator import itemgetter

from extender.allocation import FleetBaseline, NodeInfo, NodeState, Snapshot
from extender.model import CallBudgetSpent, Code, DeviceRequest
from extender.scheduling.equivalence_classes import EquivalenceClass, EquivalenceClasses
from extender.scheduling.equivalence_key import IdentityCheck, Patterns, equivalence_key
from extender.scheduling.evaluate import EvaluationContext, FilterStatus, Unschedulable, evaluate
from extender.scheduling.placements import Placement
from extender.scheduling.pod_requirements import PodRequirements
from extender.scheduling.state_numbers import StateNumbers
from extender.scheduling.status_group import StatusGroup, group_of

_NAME = itemgetter(0)
_REFRESHED = 2  # stale placements that one update computes again
# Estimated bytes, measured with tracemalloc over half-full fleets (docs/decisions/0034).
_BASE_BYTES = 4096
_STATUS_BYTES, _UNSCHEDULABLE_BYTES, _PLACEMENT_BYTES, _PICK_BYTES = 64, 640, 480, 112
_NODE_BYTES, _EQUIVALENCE_BYTES = 80, 320  # only with own EquivalenceClasses
_GROUP_BYTES = 112  # of a group of shared pools


class NodeRanking:
    """Statuses by number of the equivalence class, and the schedulable ones by descending score.

    An equivalence class without nodes often gets nodes again. So the ranking keeps placements of `vacant` of them, or
    of 1/8 of the number with nodes if that is more; and as many unschedulable statuses.
    """

    def __init__(self, requirements: PodRequirements, *, vacant: int = 16) -> None:
        self.requirements = requirements
        self._requirements_bytes = requirements.estimated_bytes
        self._vacant = vacant
        self._numbers = StateNumbers(requirements)
        self._cleanup_at = 2 * vacant  # number of statuses that starts a cleanup
        self._classes: EquivalenceClasses | None = None  # None: each NodeState of the snapshot is an equivalence class
        self._nodes: Mapping[int, NodeState | EquivalenceClass] = {}  # those with nodes, by number
        # What to evaluate, by number, each with one of its nodes; None: any node that is in the state now.
        self._pending: dict[int, NodeInfo | None] = {}
        self._unschedulable: dict[int, Unschedulable] = {}
        self._unschedulable_by_text: dict[str, Unschedulable] = {}  # thousands of equivalence classes share one status
        self._placements: dict[int, Placement] = {}
        self._order: list[int] = []  # numbers with a placement, by descending score
        self._request: DeviceRequest | None = None  # the single request, if placements are shared between pods
        self._own_placements = 0  # placements that are not shared
        self._own_picks = 0  # devices in these placements
        self._version = -1
        self._baseline: FleetBaseline | None = None
        self._context: EvaluationContext | None = None  # of the current call
        self._stale: list[int] = []  # numbers with a placement from an older baseline
        self._identity_ignored: dict[object, bool] = {}  # by requirements key
        self._patterns = Patterns()
        self._checks: dict[object, IdentityCheck] = {}  # unfinished checks, by requirements key
        self.evaluations = 0  # evaluated equivalence classes since the start

    def update(self, snapshot: Snapshot, context: EvaluationContext) -> bool:
        """Bring the ranking up to date with a snapshot; the cost grows with the number of changed nodes.

        Returns False if the budget ended first; the next call continues. A new baseline changes scores only, so one
        call computes only a few stale placements again; `refresh` computes the rest.
        """
        try:
            # First those that an earlier call left: the search that its budget interrupted now has a full budget.
            self._evaluate_pending(snapshot, context)
            self._begin(context)
            if self._classes is None:
                self._add_new_states(snapshot, context)
                self._evaluate_pending(snapshot, context.sharing_selections() if self._pending else context)
            else:
                self._evaluate_new(self._classes, snapshot, context)
        except CallBudgetSpent:
            return False
        with suppress(CallBudgetSpent):
            self._refresh(snapshot, context, _REFRESHED)
        return True

    def refresh(self, snapshot: Snapshot, context: EvaluationContext) -> bool:
        """Compute all stale placements again, after an `update` on the same snapshot that returned True.

        Returns False if the budget ended first. Before the end of `update`, a changed node has an outdated number.
        """
        try:
            self._refresh(snapshot, context, len(self._stale))
        except CallBudgetSpent:
            return False
        return True

    def evaluate(self, node_info: NodeInfo, context: EvaluationContext) -> FilterStatus:
        """The status of a NodeInfo, computed now if its equivalence class has none. Raises CallBudgetSpent."""
        self._begin(context)
        if self._classes is None and not self._numbers.knows(node_info.state):
            self._numbers.learn(node_info, context)
        found = self._numbers.of(node_info.state) if self._classes is None else self._classes.number_of_node(node_info)
        status = self._status_of(found)
        return status if status is not None else self._evaluate(found, node_info, context)

    @property
    def stale(self) -> bool:
        """Whether some placements are from an older baseline."""
        return bool(self._stale)

    def status(self, node_info: NodeInfo) -> FilterStatus | None:
        """The status of a node; None for a node without one."""
        found = self.equivalence_class(node_info)
        return self._status_of(found) if found is not None else None

    def equivalence_class(self, node_info: NodeInfo) -> int | None:
        """The number of the node's equivalence class since the last `update`. The ranking never uses a number again."""
        if self._classes is not None:
            return self._classes.number_of(node_info.node.name)
        return self._numbers.of(node_info.state)

    @property
    def by_state(self) -> bool:
        """Whether the NodeStates of the snapshot are the equivalence classes; the first `update` decides it."""
        return self._classes is None

    def schedulable(self) -> Iterator[tuple[Sequence[str], float]]:
        """The node names and the score of each equivalence class that satisfies the requirements."""
        return ((self._nodes[n].names, p.score) for n, p in self._placements.items() if n in self._nodes)

    def status_groups(self, among: Container[str] | None = None, without: Collection[str] = ()) -> list[StatusGroup]:
        """All nodes with a status, by equivalence class. `among` limits the nodes, and `without` excludes a few.

        A placement may name the request of another pod with an equal request.
        """
        statuses = chain[tuple[int, FilterStatus]](self._placements.items(), self._unschedulable.items())
        found = (
            group_of(status, self._names(number), among, without)
            for number, status in statuses
            if number in self._nodes
        )
        return [group for group in found if group.nodes]

    def reasons(self) -> dict[str, str]:
        """The reason text of every unschedulable node, by node name."""
        found: dict[str, str] = {}
        for number, status in self._unschedulable.items():
            found.update(dict.fromkeys(self._names(number), status.text))
        return found

    def unschedulable_counts(self) -> Counter[str]:
        """The number of unschedulable nodes by reason text."""
        found: Counter[str] = Counter()
        for number, status in self._unschedulable.items():
            found[status.text] += len(self._names(number))
        return found

    def main_reason(self) -> Code | None:
        """The most frequent reason code of unschedulable nodes; None if no node is unschedulable."""
        found: Counter[Code] = Counter()
        for number, status in self._unschedulable.items():
            found[status.reason.code] += len(self._names(number))
        return max(found, key=lambda code: (found[code], code.name), default=None)

    @property
    def statuses(self) -> int:
        """The number of stored statuses."""
        return len(self._placements) + len(self._unschedulable)

    @property
    def nodes(self) -> int:
        """The number of nodes with a status."""
        return sum(len(self._names(number)) for number in chain(self._placements, self._unschedulable))

    @property
    def estimated_bytes(self) -> int:
        """The estimated memory of the ranking in bytes, without placements that it shares with other rankings."""
        own = len(self._classes) * _NODE_BYTES + self.statuses * _EQUIVALENCE_BYTES if self._classes is not None else 0
        statuses = self.statuses * _STATUS_BYTES + len(self._unschedulable_by_text) * _UNSCHEDULABLE_BYTES
        return (
            _BASE_BYTES
            + self._requirements_bytes
            + own
            + statuses
            + len(self._numbers) * _GROUP_BYTES
            + self._own_placements * _PLACEMENT_BYTES
            + self._own_picks * _PICK_BYTES
        )

    def best(
        self, names: AbstractSet[str] | None, count: int, without: Container[str] = ()
    ) -> list[tuple[str, Placement]]:
        """The best `count` nodes among `names` (None: all), the highest score first, equal scores by name.

        The result omits the nodes of `without`.
        """
        found: list[tuple[str, Placement]] = []
        equal: list[tuple[str, Placement]] = []  # nodes with the current score
        score = None
        for number in self._order:
            nodes = self._nodes.get(number)
            if nodes is None:
                continue
            placement = self._placement(number)
            if placement.score != score:
                found += sorted(equal, key=_NAME)[: count - len(found)]
                if len(found) >= count:
                    return found
                equal, score = [], placement.score
            named = (n for n in nodes.names if (names is None or n in names) and n not in without)
            equal += [(name, placement) for name in islice(named, count - len(found))]
        return found + sorted(equal, key=_NAME)[: count - len(found)]

    def _names(self, number: int) -> Sequence[str]:
        found = self._nodes.get(number)
        return found.names if found is not None else ()

    def _by_score(self, number: int) -> float:
        return -self._placements[number].score

    def _placement(self, number: int) -> Placement:
        """A placement by number. It now names this ranking's request, because callers read the best ones often."""
        placement = self._placements[number]
        if self._is_foreign(placement):
            placement = self._placements[number] = self._for_own_request(placement)
            self._count(placement, 1)
        return placement

    def _is_foreign(self, placement: Placement) -> bool:
        """Whether the placement names the request of another pod."""
        return self._request is not None and placement.solution.picks[0][0].request is not self._request

    def _for_own_request(self, placement: Placement) -> Placement:
        return (
            placement.for_request(self._request)
            if self._request is not None and self._is_foreign(placement)
            else placement
        )

    def _status_of(self, number: int) -> FilterStatus | None:
        placement = self._placements.get(number)
        return self._for_own_request(placement) if placement is not None else self._unschedulable.get(number)

    # -- update ----------------------------------------------------------------------------------------------

    def _begin(self, context: EvaluationContext) -> None:
        """Set the context. The first call decides `by_state`. Raises CallBudgetSpent."""
        self._context = context
        if self._baseline is None and (
            self.requirements.extended is not None or not self._ignores_identity(self.requirements, context)
        ):
            self._classes = EquivalenceClasses(self._key)
            self._nodes = self._classes.occupied
        if context.baseline is not self._baseline:
            self._baseline = context.baseline
            self._stale = list(self._order)

    def _evaluate_pending(self, snapshot: Snapshot, context: EvaluationContext) -> None:
        while self._pending:
            number, found = self._pending.popitem()
            state = snapshot.states.get(number) if found is None else None
            node_info = snapshot.node_infos[state.names[0]] if state is not None else found
            if node_info is not None and number not in self._placements and number not in self._unschedulable:
                try:
                    self._evaluate(number, node_info, context)
                except CallBudgetSpent:
                    self._pending[number] = found
                    raise

    def _add_new_states(self, snapshot: Snapshot, context: EvaluationContext) -> None:
        """Add the states of changed nodes to `_pending` if they have no status. Raises CallBudgetSpent."""
        self._nodes = snapshot.states
        placements, unschedulable = self._placements, self._unschedulable
        for state in snapshot.states_since(self._version):
            if not self._numbers.knows(state):
                self._numbers.learn(snapshot.node_infos[state.names[0]], context)
            number = self._numbers.of(state)
            if number not in placements and number not in unschedulable:
                self._pending[number] = None
        self._version = snapshot.version

    def _evaluate_new(self, classes: EquivalenceClasses, snapshot: Snapshot, context: EvaluationContext) -> None:
        """Evaluate each new equivalence class as soon as a changed node enters it. Raises CallBudgetSpent.

        So a call whose budget ends early still leaves statuses that filter can use.
        """
        for number, node_info in classes.update(snapshot):
            context.budget.mark_progress()
            if number not in self._placements and number not in self._unschedulable:
                self._pending[number] = node_info
                self._evaluate_pending(snapshot, context)

    def _key(self, node_info: NodeInfo) -> Hashable:
        assert self._context is not None, "_begin sets the context before any equivalence key is computed"
        requirements, context = self.requirements.for_node(node_info.node), self._context
        if node_info.state.attribute_signature is not None and self._ignores_identity(requirements, context):
            return requirements.key, node_info.state.number
        read = equivalence_key(node_info, requirements, context, self._patterns)
        key = requirements.key, node_info.state.allocation_signature, *read
        self._patterns.clear()
        return key

    def _ignores_identity(self, requirements: PodRequirements, context: EvaluationContext) -> bool:
        """The cached result of the identity check. Raises CallBudgetSpent."""
        found = self._identity_ignored.get(requirements.key)
        if found is None:
            check = self._checks.setdefault(requirements.key, IdentityCheck(requirements))
            found = self._identity_ignored[requirements.key] = check.ignores_identity(context)
            del self._checks[requirements.key]
        return found

    def ignores_identity(self, context: EvaluationContext) -> bool:
        """Whether the requirements read no identity of a device. Raises CallBudgetSpent."""
        return self._ignores_identity(self.requirements, context)

    def _evaluate(self, number: int, node_info: NodeInfo, context: EvaluationContext) -> FilterStatus:
        if self.statuses >= self._cleanup_at:
            self._forget_vacant()
        status = self._store(number, evaluate(node_info, self.requirements.for_node(node_info.node), context))
        context.budget.mark_progress()
        return status

    def _store(self, number: int, status: FilterStatus) -> FilterStatus:
        self.evaluations += 1
        if isinstance(status, Unschedulable):
            status = self._unschedulable[number] = self._unschedulable_by_text.setdefault(status.text, status)
        else:
            self._store_placement(number, status)
        return status

    def _refresh(self, snapshot: Snapshot, context: EvaluationContext, most: int) -> None:
        """Compute up to `most` stale placements again with the newest baseline. Raises CallBudgetSpent."""
        made = 0
        while self._stale and made < most:
            number = self._stale.pop()
            node_info = self._member(number, snapshot)
            try:
                status = (
                    evaluate(node_info, self.requirements.for_node(node_info.node), context)
                    if node_info is not None
                    else None
                )
            except CallBudgetSpent:
                self._stale.append(number)
                raise
            self._forget(number)
            if status is not None:  # None: the equivalence class has no node now
                self._store(number, status)
                context.budget.mark_progress()
                made += 1

    def _member(self, number: int, snapshot: Snapshot) -> NodeInfo | None:
        return next(
            (node_info for name in self._names(number) if (node_info := snapshot.node_infos.get(name)) is not None),
            None,
        )

    # -- storage ---------------------------------------------------------------------------------------------

    def _store_placement(self, number: int, placement: Placement) -> None:
        if placement.shared_from is not None and self.requirements.extended is None:
            self._request, placement = placement.solution.picks[0][0].request, placement.shared_from
        else:
            self._count(placement, 1)
        self._placements[number] = placement
        insort(self._order, number, key=self._by_score)

    def _count(self, placement: Placement, sign: int) -> None:
        """Add (sign 1) or remove (sign -1) one placement that is not shared."""
        self._own_placements += sign
        self._own_picks += sign * sum(map(len, placement.solution.picks))

    def _forget(self, number: int) -> None:
        """Drop a status. The next node that enters the equivalence class causes a new evaluation."""
        self._unschedulable.pop(number, None)
        placement = self._placements.get(number)
        if placement is not None:
            position = bisect_left(self._order, -placement.score, key=self._by_score)
            del self._order[self._order.index(number, position)]
            del self._placements[number]
            if not self._is_foreign(placement):
                self._count(placement, -1)
        if self._classes is not None:
            self._classes.forget(number)

    def _forget_vacant(self) -> None:
        """Drop the statuses of equivalence classes without nodes, except the newest few."""
        kept = max(self._vacant, len(self._nodes) // 8)
        for statuses in (self._placements, self._unschedulable):
            for number in [number for number in statuses if number not in self._nodes][:-kept]:
                self._forget(number)
        self._unschedulable_by_text = {status.text: status for status in self._unschedulable.values()}
        self._cleanup_at = self.statuses + 2 * kept
