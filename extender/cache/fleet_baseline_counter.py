"""Counts the facts about all nodes that the FleetBaseline contains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from extender.allocation import FleetBaseline, NodeInfo
from extender.cache.request_mix_estimator import RequestMixEstimator
from extender.fabric import best_gbps
from extender.model import Graph, RequestMix

T = TypeVar("T")


class FleetBaselineCounter:
    """Counts the hardware of all nodes, so that the FleetBaseline follows node changes at low cost."""

    def __init__(self) -> None:
        self._graphs: Counter[tuple[Graph, int]] = Counter()  # the mask has the GPUs that the node's driver publishes
        self._memory: Counter[int] = Counter()
        self._baseline: FleetBaseline | None = None
        self._is_changed = False

    def replace(self, old: NodeInfo | None, new: NodeInfo | None) -> None:
        if (
            old is not None
            and new is not None
            and old.fabric is new.fabric
            and (old.inventory is new.inventory or old.inventory.has_same_gpus(new.inventory))
        ):
            return
        for node_info, amount in ((old, -1), (new, 1)):
            if node_info is None or node_info.fabric is None:
                continue
            published = sum(1 << position for position, bit in enumerate(node_info.gpu_bits) if bit >= 0)
            self._add(self._graphs, (node_info.fabric.graph, published), amount)
            devices = node_info.inventory.devices
            for memory in {devices[bit].device.memory_bytes for bit in node_info.gpu_bits if bit >= 0}:
                self._add(self._memory, memory, amount)

    def _add(self, counts: Counter[T], key: T, amount: int) -> None:
        before = counts[key]
        counts[key] = before + amount
        if not counts[key]:
            del counts[key]
        if not before or not before + amount:
            self._is_changed = True

    def fleet(self, estimator: RequestMixEstimator) -> FleetBaseline:
        """The current baseline; the same object while the facts are the same: a new one makes all scores outdated."""
        mix = estimator.mix(max(self._memory, default=0))
        if self._baseline is None or self._is_changed or self._baseline.request_mix != mix:
            found = _fleet(self._graphs, self._memory, mix)
            if found != self._baseline:
                self._baseline = found
            self._is_changed = False
        return self._baseline


def _fleet(graphs: Iterable[tuple[Graph, int]], memory: Iterable[int], mix: RequestMix) -> FleetBaseline:
    best: dict[int, float] = {}
    most = 0
    for graph, published in graphs:
        most = max(most, published.bit_count())
        for count in range(2, published.bit_count() + 1):
            best[count] = max(best.get(count, 0.0), best_gbps(graph, published, count))
    known = [amount for amount in memory if amount]
    return FleetBaseline(best, min(known, default=0), most, mix)
