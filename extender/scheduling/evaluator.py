"""Caches that all evaluations of one process share: compiled selectors, match masks and placements."""

from __future__ import annotations

from collections.abc import Iterable

from extender.allocation import Features, Snapshot
from extender.cel.dra import Masks
from extender.model import NO_DEADLINE, Deadline
from extender.scheduling.evaluate import EvaluationContext
from extender.scheduling.placements import PlacementCache
from extender.scheduling.pod_requirements import PodRequirements
from extender.scheduling.selected_nodes import SelectedNodes, SelectedNodesCache


class Evaluator:
    """Creates evaluation contexts. The rankings and explanations of one process share one Evaluator."""

    def __init__(self, features: Features) -> None:
        self._features = features
        self._masks = Masks()
        self._placements = PlacementCache()
        self._selected_nodes = SelectedNodesCache()

    def evaluation_context(self, snapshot: Snapshot, deadline: Deadline = NO_DEADLINE) -> EvaluationContext:
        """The context for evaluations on a snapshot, limited by the deadline of the call."""
        return EvaluationContext(self._masks, self._features, snapshot.baseline, self._placements, deadline)

    def selected_nodes(self, requirements: PodRequirements) -> SelectedNodes:
        """The nodes that match the node selectors of the pod's claims."""
        return self._selected_nodes.of(requirements.namespace, requirements.claim_selectors)

    def forget_slices(self, names: Iterable[str]) -> None:
        """Drop the match masks of deleted slices, by slice name."""
        for name in names:
            self._masks.forget(name)

    def remembered(self) -> dict[str, int]:
        """The number of entries per cache."""
        selected = len(self._selected_nodes)
        return {"placements": len(self._placements), "selected_nodes": selected, **self._masks.remembered()}
