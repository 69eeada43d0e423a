"""The scores of nodes for pods that need no devices: a node with fewer free GPUs for other pods gets a higher score.

Such a pod takes CPU and memory only. If it takes them on a node with free GPUs, a later pod may find the GPUs there,
but not the CPU that it asks for beside them. On Alibaba's openb trace, NodeResourcesFit alone spreads these pods so
that twice as many GPUs can no longer be used.

A point of an extender weighs 200 in scheduler-config/. NodeResourcesFit and NodeResourcesBalancedAllocation add at most
100 each, so a point decides before them. What the pod itself prefers decides between nodes with nearly equal points: a
preferred affinity or a spread constraint weighs 200, too. Between equal points MostAllocated decides, the strategy in
scheduler-config/: it fills one node before it takes the CPU of the next.
"""

from __future__ import annotations

from collections.abc import Iterable

from extender.allocation import NodeInfo, Snapshot
from extender.api.gpu_topology import WHOLE
from extender.scheduling.shortlist import MAX_SCORE
from extender.topology.score_parts import left_over


class DevicelessScores:
    """The score of each node. It follows the snapshots of one cache: an update costs as much as the changed nodes."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._scores: dict[str, int] = {}

    def of(self, names: Iterable[str], snapshot: Snapshot) -> list[tuple[str, int]]:
        """The extender score of each node; 0 for a node that is not known."""
        self._update(snapshot)
        known = self._scores
        return [(name, known.get(name, 0)) for name in names]

    def _update(self, snapshot: Snapshot) -> None:
        changed = snapshot.changed_since(self._version) if self._version is not None else None
        if changed is None:
            self._scores = {name: _score(node_info) for name, node_info in snapshot.node_infos.items()}
        for name in changed or ():
            node_info = snapshot.node_infos.get(name)
            if node_info is None:
                self._scores.pop(name, None)
            else:
                self._scores[name] = _score(node_info)
        self._version = snapshot.version


def _score(node_info: NodeInfo) -> int:
    """The share of the GPUs that is in use, in tenths, rounded down; all if the node has none."""
    gpus, shared = node_info.inventory.gpus, node_info.partly_used
    if not gpus:
        return MAX_SCORE
    parts = sum(milli for milli in left_over(node_info, shared) if milli < WHOLE)
    free = WHOLE * (gpus & ~(node_info.busy | shared)).bit_count() + parts
    total = WHOLE * gpus.bit_count()
    return MAX_SCORE * (total - free) // total
