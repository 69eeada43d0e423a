"""The ranking of all nodes for one PodRequirements, shared by all pods with that requirements key.

Nodes of one equivalence class share one status. Most requirements read no identity of a device. Their equivalence
classes are the NodeStates of the snapshot, which list their nodes: the ranking stores one status per state and nothing
per node. Other requirements have EquivalenceClasses of their own. A ranking follows the snapshots of one cache, and
evaluates only equivalence classes without a status. After a change of the FleetBaseline it computes every placement
again, because scores are relative to the baseline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from itertools import islice
from operator import itemgetter

from extender.allocation import FleetBaseline, NodeInfo, NodeState, Snapshot
from extender.model import Code, DeadlineExceeded
from extender.scheduling.equivalence_classes import EquivalenceClass, EquivalenceClasses
from extender.scheduling.equivalence_key import IdentityCheck, Patterns, equivalence_key
from extender.scheduling.evaluate import EvaluationContext, FilterStatus, evaluate
from extender.scheduling.nodes_of_status import NodesOfStatus, nodes_of_status
from extender.scheduling.placements import Placement
from extender.scheduling.pod_requirements import PodRequirements
from extender.scheduling.state_numbers import StateNumbers
from extender.scheduling.status_store import StatusStore

_NAME = itemgetter(0)
_REFRESHED = 2  # stale placements that one update computes again
# Estimated bytes, measured with tracemalloc over half-full fleets.
_BASE_BYTES = 4096
_NODE_BYTES, _EQUIVALENCE_BYTES = 80, 320  # only with own EquivalenceClasses
_GROUP_BYTES = 112  # of a group of shared pools


class NodeRanking:
    """The statuses of all nodes for one PodRequirements; an equivalence class has a number and one status.

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
        # Numbers to evaluate, each with one of its nodes; None: any node that is in the state now.
        self._pending: dict[int, NodeInfo | None] = {}
        self._statuses = StatusStore(share_placements=requirements.extended is None)
        self._version = -1
        self._baseline: FleetBaseline | None = None
        self._context: EvaluationContext | None = None  # of the current call
        self._stale: list[int] = []  # numbers with a placement from an older baseline
        self._identity_ignored: dict[object, bool] = {}  # by requirements key
        self._patterns = Patterns()
        self._checks: dict[object, IdentityCheck] = {}  # unfinished checks, by requirements key
        self.complete = False  # whether the last `update` ended within its deadline
        self.evaluations = 0  # evaluated equivalence classes since the start

    def update(self, snapshot: Snapshot, context: EvaluationContext) -> bool:
        """Bring the ranking up to date with a snapshot; the cost grows with the number of changed nodes.

        Returns False if the deadline came first; the next call continues. A new baseline changes scores only, so one
        call computes only a few stale placements again; `refresh` computes the rest.
        """
        try:
            # First the node on which an earlier attempt ended: its search needs most of the time.
            self._evaluate_pending(snapshot, context)
            self._begin(context)
            if self._classes is None:
                self._add_new_states(snapshot, context)
                self._evaluate_pending(snapshot, context.sharing_selections() if self._pending else context)
            else:
                self._evaluate_new(self._classes, snapshot, context)
        except DeadlineExceeded:
            self.complete = False
            return False
        self.complete = True
        with suppress(DeadlineExceeded):
            self._refresh(snapshot, context, _REFRESHED)
        return True

    def refresh(self, snapshot: Snapshot, context: EvaluationContext) -> bool:
        """Compute all stale placements again, after an `update` on the same snapshot that returned True.

        Returns False if the deadline came first. Before the end of `update`, a changed node has an outdated number.
        """
        try:
            self._refresh(snapshot, context, len(self._stale))
        except DeadlineExceeded:
            return False
        return True

    def evaluate(self, node_info: NodeInfo, context: EvaluationContext) -> FilterStatus:
        """The status of a NodeInfo, computed now if its equivalence class has none. Raises DeadlineExceeded."""
        self._begin(context)
        if self._classes is None and not self._numbers.knows(node_info.state):
            self._numbers.learn(node_info, context)
        found = self._numbers.of(node_info.state) if self._classes is None else self._classes.number_of_node(node_info)
        status = self._statuses.get(found)
        return status if status is not None else self._evaluate(found, node_info, context)

    @property
    def stale(self) -> bool:
        """Whether some placements are from an older baseline."""
        return bool(self._stale)

    def status(self, node_info: NodeInfo) -> FilterStatus | None:
        """The status of a node; None for a node without one."""
        found = self.equivalence_class(node_info)
        return self._statuses.get(found) if found is not None else None

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
        return ((self._nodes[n].names, p.score) for n, p in self._statuses.placements.items() if n in self._nodes)

    def nodes_by_status(
        self, among: Container[str] | None = None, without: Collection[str] = ()
    ) -> list[NodesOfStatus]:
        """All nodes with a status, by equivalence class. `among` limits the nodes, and `without` excludes a few.

        A placement may name the request of another pod with an equal request.
        """
        found = (
            nodes_of_status(status, self._names(number), among, without)
            for number, status in self._statuses.items()
            if number in self._nodes
        )
        return [one for one in found if one.nodes]

    def reasons(self) -> dict[str, str]:
        """The reason text of every unschedulable node, by node name."""
        found: dict[str, str] = {}
        for number, status in self._statuses.unschedulable.items():
            found.update(dict.fromkeys(self._names(number), status.text))
        return found

    def main_reason(self) -> Code | None:
        """The most frequent reason code of unschedulable nodes; None if no node is unschedulable."""
        found: Counter[Code] = Counter()
        for number, status in self._statuses.unschedulable.items():
            found[status.reason.code] += len(self._names(number))
        return max(found, key=lambda code: (found[code], code.name), default=None)

    @property
    def statuses(self) -> int:
        """The number of stored statuses."""
        return len(self._statuses)

    @property
    def nodes(self) -> int:
        """The number of nodes with a status."""
        return sum(len(self._names(number)) for number, _ in self._statuses.items())

    @property
    def estimated_bytes(self) -> int:
        """The estimated memory of the ranking in bytes, without placements that it shares with other rankings."""
        own = len(self._classes) * _NODE_BYTES + self.statuses * _EQUIVALENCE_BYTES if self._classes is not None else 0
        groups = len(self._numbers) * _GROUP_BYTES
        return _BASE_BYTES + self._requirements_bytes + own + groups + self._statuses.estimated_bytes

    def best(
        self, names: AbstractSet[str] | None, count: int, without: Collection[str] = ()
    ) -> list[tuple[str, Placement]]:
        """The best `count` nodes among `names` (None: all), the highest score first, equal scores by name.

        The result omits the nodes of `without`.
        """
        found: list[tuple[str, Placement]] = []
        equal: list[tuple[str, Placement]] = []  # nodes with the current score
        score = None
        for number in self._statuses.order:
            nodes = self._nodes.get(number)
            if nodes is None:
                continue
            placement = self._statuses.placement(number)
            if placement.score != score:
                found += sorted(equal, key=_NAME)[: count - len(found)]
                if len(found) >= count:
                    return found
                equal, score = [], placement.score
            named: Iterable[str] = nodes.names
            if names is not None or without:
                named = (n for n in named if (names is None or n in names) and n not in without)
            equal += [(name, placement) for name in islice(named, count - len(found))]
        return found + sorted(equal, key=_NAME)[: count - len(found)]

    def _names(self, number: int) -> Sequence[str]:
        found = self._nodes.get(number)
        return found.names if found is not None else ()

    # -- update ----------------------------------------------------------------------------------------------

    def _begin(self, context: EvaluationContext) -> None:
        """Set the context. The first call decides `by_state`. Raises DeadlineExceeded."""
        self._context = context
        if self._baseline is None and (
            self.requirements.extended is not None or not self._ignores_identity(self.requirements, context)
        ):
            self._classes = EquivalenceClasses(self._key)
            self._nodes = self._classes.occupied
        if context.baseline is not self._baseline:
            self._baseline = context.baseline
            self._stale = list(self._statuses.order)

    def _evaluate_pending(self, snapshot: Snapshot, context: EvaluationContext) -> None:
        while self._pending:
            number, found = self._pending.popitem()
            state = snapshot.states.get(number) if found is None else None
            node_info = snapshot.node_infos[state.names[0]] if state is not None else found
            if node_info is not None and number not in self._statuses:
                try:
                    self._evaluate(number, node_info, context)
                except DeadlineExceeded:
                    self._pending[number] = found
                    raise

    def _add_new_states(self, snapshot: Snapshot, context: EvaluationContext) -> None:
        """Add the states of changed nodes to `_pending` if they have no status. Raises DeadlineExceeded."""
        self._nodes = snapshot.states
        placements, unschedulable = self._statuses.placements, self._statuses.unschedulable
        for state in snapshot.states_since(self._version):
            if not self._numbers.knows(state):
                self._numbers.learn(snapshot.node_infos[state.names[0]], context)
            number = self._numbers.of(state)
            if number not in placements and number not in unschedulable:
                self._pending[number] = None
        self._version = snapshot.version

    def _evaluate_new(self, classes: EquivalenceClasses, snapshot: Snapshot, context: EvaluationContext) -> None:
        """Evaluate each new equivalence class as soon as a changed node enters it. Raises DeadlineExceeded.

        So a call that ends early still leaves statuses that filter can use.
        """
        for number, node_info in classes.update(snapshot):
            context.deadline.mark_progress()
            if number not in self._statuses:
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
        """The cached result of the identity check. Raises DeadlineExceeded."""
        found = self._identity_ignored.get(requirements.key)
        if found is None:
            check = self._checks.setdefault(requirements.key, IdentityCheck(requirements))
            found = self._identity_ignored[requirements.key] = check.ignores_identity(context)
            del self._checks[requirements.key]
        return found

    def ignores_identity(self, context: EvaluationContext) -> bool:
        """Whether the requirements read no identity of a device. Raises DeadlineExceeded."""
        return self._ignores_identity(self.requirements, context)

    def _evaluate(self, number: int, node_info: NodeInfo, context: EvaluationContext) -> FilterStatus:
        if self.statuses >= self._cleanup_at:
            self._forget_vacant()
        status = self._store(number, evaluate(node_info, self.requirements.for_node(node_info.node), context))
        context.deadline.mark_progress()
        return status

    def _store(self, number: int, status: FilterStatus) -> FilterStatus:
        self.evaluations += 1
        return self._statuses.put(number, status)

    def _refresh(self, snapshot: Snapshot, context: EvaluationContext, most: int) -> None:
        """Compute up to `most` stale placements again with the newest baseline. Raises DeadlineExceeded."""
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
            except DeadlineExceeded:
                self._stale.append(number)
                raise
            self._forget(number)
            if status is not None:  # None: the equivalence class has no node now
                self._store(number, status)
                context.deadline.mark_progress()
                made += 1

    def _member(self, number: int, snapshot: Snapshot) -> NodeInfo | None:
        return next(
            (node_info for name in self._names(number) if (node_info := snapshot.node_infos.get(name)) is not None),
            None,
        )

    def _forget(self, number: int) -> None:
        """Drop a status. The next node that enters the equivalence class causes a new evaluation."""
        self._statuses.forget(number)
        if self._classes is not None:
            self._classes.forget(number)

    def _forget_vacant(self) -> None:
        """Drop the statuses of equivalence classes without nodes, except the newest few."""
        kept = max(self._vacant, len(self._nodes) // 8)
        for number in self._statuses.forget_vacant(self._nodes, kept):
            if self._classes is not None:
                self._classes.forget(number)
        self._cleanup_at = self.statuses + 2 * kept
