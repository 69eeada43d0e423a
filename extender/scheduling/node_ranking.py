"""The ranking of all nodes for one PodRequirements, and the table of rankings. Pods with equal keys share a ranking.

Nodes of one equivalence class share one status, see equivalence.py. A ranking follows the snapshots of one cache, and
evaluates only equivalence classes without a status. After a change of the FleetBaseline it computes every placement
again, because scores are relative to the baseline.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Container, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from itertools import chain, islice
from typing import NamedTuple

from extender.allocation import FleetBaseline, NodeInfo, Snapshot
from extender.api.reasons import Code, Reason
from extender.base.deadline import DeadlineExceeded
from extender.base.fair_lru import FairLRU
from extender.scheduling.domain_uses import DomainUses
from extender.scheduling.equivalence import ByKey, ByState, IdentityCheck
from extender.scheduling.evaluate import EvaluationContext, FilterStatus, Placement, Unschedulable, evaluate
from extender.scheduling.requirements.pod_requirements import PodRequirements

# Estimated bytes, measured with tracemalloc over half-full fleets.
_STATUS_BYTES, _UNSCHEDULABLE_BYTES, _PLACEMENT_BYTES, _PICK_BYTES = 64, 640, 480, 112


class StatusStore:
    """The placements and unschedulable statuses of one ranking, by number of the equivalence class.

    Thousands of numbers share one Unschedulable. A number keeps the placement that it shares with other rankings, which
    names no request. `get` and `placement` return it with the request of this ranking.
    """

    def __init__(self, requirements: PodRequirements) -> None:
        self.placements: dict[int, Placement] = {}
        self.unschedulable: dict[int, Unschedulable] = {}
        self._order: list[int] = []
        self._unordered: list[int] = []  # a new shape puts a placement for each state: they are sorted together
        self._requirements = requirements
        self._by_text: dict[str, Unschedulable] = {}
        self._own_placements = 0  # placements that are not shared
        self._own_picks = 0  # devices in these placements

    def __len__(self) -> int:
        return len(self.placements) + len(self.unschedulable)

    def __contains__(self, number: object) -> bool:
        return number in self.placements or number in self.unschedulable

    def items(self) -> Iterator[tuple[int, FilterStatus]]:
        """Each number with its status, which may name no request."""
        return chain[tuple[int, FilterStatus]](self.placements.items(), self.unschedulable.items())

    def get(self, number: int) -> FilterStatus | None:
        """The status of a number; None if it has none."""
        placement = self.placements.get(number)
        if placement is None:
            return self.unschedulable.get(number)
        return self._own(placement) if placement.is_shared else placement

    def placement(self, number: int) -> Placement:
        """The placement of a number. It is kept with this ranking's request, because callers read the best ones often.

        Raises KeyError.
        """
        found = self.placements[number]
        if found.is_shared:
            found = self.placements[number] = self._own(found)
            self._count(found, 1)
        return found

    def put(self, number: int, status: FilterStatus) -> None:
        """Store the status of a number in place of an older one."""
        if number in self.placements or number in self.unschedulable:
            self.forget(number)
        if isinstance(status, Unschedulable):
            self.unschedulable[number] = self._by_text.setdefault(status.text, status)
            return
        if not status.is_shared:
            self._count(status, 1)
        self.placements[number] = status
        self._unordered.append(number)

    def forget(self, number: int) -> None:
        """Drop the status of a number, if it has one."""
        self.unschedulable.pop(number, None)
        placement = self.placements.get(number)
        if placement is not None:
            order = self.order
            del order[order.index(number, bisect_left(order, -placement.score, key=self._by_score))]
            del self.placements[number]
            if not placement.is_shared:
                self._count(placement, -1)

    def forget_vacant(self, occupied: Container[int], kept: int) -> list[int]:
        """Drop the statuses of numbers that are not `occupied`, except the newest `kept` of each kind.

        Returns the dropped numbers.
        """
        dropped: list[int] = []
        for statuses in (self.placements, self.unschedulable):
            dropped += [number for number in statuses if number not in occupied][:-kept]
        for number in dropped:
            self.forget(number)
        self._by_text = {status.text: status for status in self.unschedulable.values()}
        return dropped

    @property
    def order(self) -> list[int]:
        """The numbers with a placement, by descending score; of equal ones, the older placement first."""
        new, self._unordered = self._unordered, []
        if len(new) > len(self._order) // 8:  # the time of a sort, whose key calls are the most of it
            self._order += new
            self._order.sort(key=self._by_score)
        else:
            for number in new:
                insort(self._order, number, key=self._by_score)
        return self._order

    @property
    def estimated_bytes(self) -> int:
        """The estimated memory in bytes, without shared placements."""
        return (
            len(self) * _STATUS_BYTES
            + len(self._by_text) * _UNSCHEDULABLE_BYTES
            + self._own_placements * _PLACEMENT_BYTES
            + self._own_picks * _PICK_BYTES
        )

    def _by_score(self, number: int) -> float:
        return -self.placements[number].score

    def _own(self, placement: Placement) -> Placement:
        """The shared placement with this ranking's request."""
        return placement.for_request(self._requirements.specs[0].requests[0].alternatives[0])

    def _count(self, placement: Placement, sign: int) -> None:
        """Add (sign 1) or remove (sign -1) one placement that is not shared."""
        self._own_placements += sign
        self._own_picks += sign * sum(map(len, placement.solution.picks))


_MAX_NAMES = 3  # node names per status of `nodes_by_status`
_MAX_VACANT = 16  # equivalence classes without nodes, at most 1/8 of all if there are many
_MAX_REFRESHED = 2  # stale placements that one update computes again
_BASE_BYTES = 4096  # of a ranking, an estimate: measured with tracemalloc over half-full fleets

# 500 rankings of 5,000 half-full nodes need about half of this; the memory limit of the process is 512 MiB.
_MAX_BYTES = 128 << 20
_MAX_RANKINGS = 4096  # rankings: /metrics reads each; so many pods may wait
# Reasons of nodes without devices for a claim, which no end of other pods makes fit.
_LASTING = (
    Code.NO_DEVICES,
    Code.NO_MATCH,
    Code.TOO_FEW,
    Code.TOO_SMALL,
    Code.REFUSED_AMOUNT,
    Code.NO_ATTRIBUTE,
    Code.NO_PARTITION,
)
_MAX_MEASURED = 16  # rankings that one call measures at most


class NodesOfStatus(NamedTuple):
    """Nodes that share a status."""

    status: FilterStatus
    nodes: int  # number of nodes
    first: list[str]  # names of the first nodes, sorted, at most 3


def nodes_of_status(
    status: FilterStatus, names: Sequence[str], among: Container[str] | None, without: Collection[str]
) -> NodesOfStatus:
    """The nodes of a status among `names` (sorted): `among` limits the nodes, and `without` excludes a few."""
    counted = names if among is None else [name for name in names if name in among]
    if not without:
        return NodesOfStatus(status, len(counted), list(counted[:_MAX_NAMES]))
    excluded = [name for name in without if counted[bisect_left(counted, name) :][:1] == [name]]
    first = [name for name in counted[: _MAX_NAMES + len(excluded)] if name not in excluded]
    return NodesOfStatus(status, len(counted) - len(excluded), first[:_MAX_NAMES])


class NodeRanking:
    """The statuses of all nodes for one PodRequirements; an equivalence class has a number and one status.

    An equivalence class without nodes often gets nodes again. So the ranking keeps placements of 16 of them, or of 1/8
    of the number with nodes if that is more; and as many unschedulable statuses.
    """

    def __init__(self, requirements: PodRequirements, *, uses: DomainUses | None = None) -> None:
        """`uses` are those that other rankings of these snapshots share."""
        self.requirements = requirements
        self.uses = DomainUses(requirements.policy.group_levels) if uses is None else uses
        self._requirements_bytes = requirements.estimated_bytes
        self._cleanup_at = 2 * _MAX_VACANT  # number of statuses that starts a cleanup
        self._identity = IdentityCheck(requirements)
        self._classes: ByState | ByKey = ByState(requirements)  # the first `update` decides it
        self._pending: tuple[int, NodeInfo] | None = (
            None  # the class on which the last call ended, with one of its nodes
        )
        self._statuses = StatusStore(requirements)
        self._baseline: FleetBaseline | None = None
        self._stale: list[int] = []  # numbers with a placement from an older baseline
        self.complete = False  # whether the last `update` ended within its deadline
        self.evaluations = 0  # evaluated equivalence classes since the start

    def update(self, snapshot: Snapshot, context: EvaluationContext) -> bool:
        """Bring the ranking up to date with a snapshot; the cost grows with the number of changed nodes.

        Returns False if the deadline came first; the next call continues. A new baseline changes scores only, so one
        call computes only a few stale placements again; `refresh` computes the rest.
        """
        try:
            if self._pending is not None:  # its search needs most of the time
                if self._pending[0] not in self._statuses:
                    self._evaluate(*self._pending, context)
                self._pending = None
            self._begin(context)
            sharing: EvaluationContext | None = None if isinstance(self._classes, ByState) else context
            for number, node_info in self._classes.update(snapshot, context, self._statuses):
                sharing = sharing or context.sharing_selections()
                self._pending = number, node_info
                self._evaluate(number, node_info, sharing)
                self._pending = None
        except DeadlineExceeded:
            self.complete = False
            return False
        self.complete = True
        if self._stale:
            with suppress(DeadlineExceeded):
                self._refresh(snapshot, context, _MAX_REFRESHED)
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
        found = self._classes.find(node_info, context)
        status = self._statuses.get(found)
        if status is None:
            self._evaluate(found, node_info, context)
            status = self._statuses.get(found)
            assert status is not None
        return status

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
        return self._classes.number_of(node_info)

    @property
    def by_state(self) -> bool:
        """Whether the NodeStates of the snapshot are the equivalence classes; the first `update` decides it."""
        return isinstance(self._classes, ByState)

    def states_with(self, score: float) -> AbstractSet[int]:
        """The numbers of the node states with a score; none where the equivalence classes are no states."""
        found = set[int]()
        if isinstance(self._classes, ByState):
            for number in self._statuses.order:
                own = self._statuses.placements[number].score
                if own < score:
                    break
                if own == score and (state := self._classes.nodes.get(number)) is not None:
                    found.add(state.number)
        return found

    def schedulable(self) -> Iterator[tuple[Sequence[str], Placement]]:
        """The node names and the placement of each equivalence class that satisfies the requirements.

        A placement may name no request.
        """
        nodes = self._classes.nodes
        return ((nodes[n].names, found) for n, found in self._statuses.placements.items() if n in nodes)

    def nodes_by_status(
        self, among: Container[str] | None = None, without: Collection[str] = ()
    ) -> list[NodesOfStatus]:
        """All nodes with a status, by equivalence class. `among` limits the nodes, and `without` excludes a few.

        A placement may name no request.
        """
        found = (
            nodes_of_status(status, self._names(number), among, without)
            for number, status in self._statuses.items()
            if number in self._classes.nodes
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

    def fault(self) -> Reason | None:
        """What is wrong with the claims, if that is why no node fits; None if a node fits, or may fit later."""
        if any(True for _ in self.schedulable()):
            return None
        found = {status.reason for number, status in self._statuses.unschedulable.items() if self._names(number)}
        faults = {reason for reason in found if reason.code is Code.INVALID}
        return min(faults, key=str, default=None) if all(one.code in _LASTING for one in found - faults) else None

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
        own = _BASE_BYTES + self._requirements_bytes + self._statuses.estimated_bytes
        return own + self._classes.estimated_bytes

    def best(
        self, names: Container[str] | None, count: int, without: Collection[str] = ()
    ) -> list[tuple[str, Placement]]:
        """The best `count` nodes among `names` (None: all), the highest score first, equal scores by name.

        The result omits the nodes of `without`.
        """
        placements, nodes = self._statuses.placements, self._classes.nodes
        found: list[tuple[str, Placement]] = []
        equal: list[int] = []  # numbers with the current score

        def add_equal() -> None:
            left = count - len(found)
            if names is None and not without:
                number_of = {name: one for one in equal for name in nodes[one].names[:left]}
            else:
                wanted = (((n, one) for n in nodes[one].names if names is None or n in names) for one in equal)
                number_of = dict(
                    pair for one in wanted for pair in islice((p for p in one if p[0] not in without), left)
                )
            found.extend([(name, self._statuses.placement(number_of[name])) for name in sorted(number_of)[:left]])

        score = None
        for number in self._statuses.order:
            if number in nodes:
                own = placements[number].score
                if own != score:
                    add_equal()
                    if len(found) >= count:
                        break
                    equal, score = [], own
                equal.append(number)
        else:
            add_equal()
        return found

    def _names(self, number: int) -> Sequence[str]:
        found = self._classes.nodes.get(number)
        return found.names if found is not None else ()

    # -- update ----------------------------------------------------------------------------------------------

    def _begin(self, context: EvaluationContext) -> None:
        """The first call decides `by_state`. Raises DeadlineExceeded."""
        if self._baseline is None and (
            self.requirements.extended is not None or not self._identity.ignores_identity(context)
        ):
            self._classes = ByKey(self.requirements)
        if context.baseline is not self._baseline:
            self._baseline = context.baseline
            self._stale = list(self._statuses.order)

    def ignores_identity(self, context: EvaluationContext) -> bool:
        """Whether the requirements read no identity of a device. Raises DeadlineExceeded."""
        return self._identity.ignores_identity(context)

    def _evaluate(self, number: int, node_info: NodeInfo, context: EvaluationContext) -> None:
        if len(self._statuses) >= self._cleanup_at:
            self._forget_vacant()
        requirements = self.requirements.for_node(node_info.node)  # the same on all nodes unless some offer a resource
        status = evaluate(node_info, requirements, context, shared=requirements is self.requirements)
        self.evaluations += 1
        context.deadline.progressed = True
        self._statuses.put(number, status)

    def _refresh(self, snapshot: Snapshot, context: EvaluationContext, most: int) -> None:
        """Compute up to `most` stale placements again with the newest baseline. Raises DeadlineExceeded."""
        made = 0
        while self._stale and made < most:
            number = self._stale[-1]
            node_infos = (snapshot.node_infos.get(name) for name in self._names(number))
            node_info = next((one for one in node_infos if one is not None), None)
            if node_info is not None:
                self._evaluate(number, node_info, context)
                made += 1
            else:  # the next node that enters the equivalence class causes a new evaluation
                self._statuses.forget(number)
                self._classes.forget(number)
            self._stale.pop()

    def _forget_vacant(self) -> None:
        """Drop the statuses of equivalence classes without nodes, except the newest few."""
        nodes = self._classes.nodes
        kept = max(_MAX_VACANT, len(nodes) // 8)
        for number in self._statuses.forget_vacant(nodes, kept):
            self._classes.forget(number)
        self._cleanup_at = self.statuses + 2 * kept


class RankingCache:
    """Rankings by requirements key, see FairLRU: a tenant may have pods with 64 large claims.

    Each counts at least a share of the limit, so that there are at most 4,096. A ranking grows after a call has
    returned it, so later calls measure it. The time of a call does not depend on the number of rankings.
    """

    def __init__(self, limit_bytes: int = _MAX_BYTES) -> None:
        least = max(1, limit_bytes // _MAX_RANKINGS)
        self._rankings: FairLRU[object, NodeRanking] = FairLRU(limit_bytes, lambda one: max(least, one.estimated_bytes))
        self._unmeasured: dict[object, None] = {}  # keys of rankings that calls returned since: they may have grown
        self._evicted_evaluations = 0  # evaluations of evicted rankings
        self._uses: DomainUses | None = None

    def __len__(self) -> int:
        """berth_shapes: the number of rankings."""
        return len(self._rankings)

    def __iter__(self) -> Iterator[NodeRanking]:
        return self._rankings.values()

    def get_or_create(self, requirements: PodRequirements) -> NodeRanking:
        """The ranking for the requirements. The caller must update it to its snapshot."""
        key = requirements.key
        self._unmeasured.pop(key, None)  # the next call for another ranking measures it
        for _ in range(min(_MAX_MEASURED, len(self._unmeasured))):
            grown, _ = self._unmeasured.popitem()
            self._drop(self._rankings.measure(grown))
        found = self._rankings.get(key)
        if found is None:
            found = NodeRanking(requirements, uses=self.uses(requirements.policy.group_levels))
            self._drop(self._rankings.put(requirements.namespace, key, found))
        self._unmeasured[key] = None
        return found

    def uses(self, levels: Sequence[str]) -> DomainUses:
        """The use of the domains of these levels, which all rankings share. The caller must update it."""
        if self._uses is None or self._uses.levels != tuple(levels):
            self._uses = DomainUses(levels)
        return self._uses

    def peek(self, requirements: PodRequirements) -> NodeRanking | None:
        """The cached ranking or None."""
        found = self._rankings.get(requirements.key)
        if found is not None:
            self._unmeasured[requirements.key] = None
        return found

    @property
    def estimated_bytes(self) -> int:
        """The estimated memory of all rankings, in bytes."""
        return sum(ranking.estimated_bytes for ranking in self)

    @property
    def evaluations(self) -> int:
        """Node evaluations since the process started."""
        return self._evicted_evaluations + sum(ranking.evaluations for ranking in self)

    @property
    def statuses(self) -> int:
        """berth_verdicts: the number of statuses in all rankings."""
        return sum(ranking.statuses for ranking in self)

    def clear(self) -> None:
        self._evicted_evaluations = self.evaluations
        self._rankings.clear()
        self._uses = None
        self._unmeasured.clear()

    def _drop(self, dropped: list[tuple[object, NodeRanking]]) -> None:
        for key, ranking in dropped:
            self._unmeasured.pop(key, None)
            self._evicted_evaluations += ranking.evaluations
