"""Figures of a fleet by product, for /metrics."""

from __future__ import annotations

from dataclasses import dataclass

from extender.allocation.view import Interned, NodeView, Snapshot
from extender.diagnosis.node_rows import largest_free_set, product
from extender.model.demand import WHOLE
from extender.scoring.parts import left_over, stranded, unclaimed_bytes


@dataclass(slots=True)
class Facts:
    """Sums over the nodes of one product."""

    gpus: int = 0
    free: int = 0  # GPUs that nothing holds, shares included
    drifting: int = 0
    unhealthy: int = 0
    largest_set: int = 0  # free GPUs that NVLink joins on one node, the best of all nodes
    unclaimed_bytes: int = 0
    live_free_bytes: int = 0  # of the GPUs whose agent says so
    stranded: float = 0.0  # GPUs free in whole or in part that the expected demand cannot use where they are

    def add(self, other: Facts) -> None:
        """Count one more node."""
        self.gpus += other.gpus
        self.free += other.free
        self.drifting += other.drifting
        self.unhealthy += other.unhealthy
        self.largest_set = max(self.largest_set, other.largest_set)
        self.unclaimed_bytes += other.unclaimed_bytes
        self.stranded += other.stranded


def fleet_facts(snapshot: Snapshot) -> dict[str, Facts]:
    """The facts by product. Nodes that look alike are counted once and multiplied."""
    found: dict[str, Facts] = {}
    alike: dict[Interned, Facts] = {}
    for view in snapshot.views.values():
        if view.fabric is not None:
            mine = alike.get(view.state.signature)
            if mine is None:
                mine = alike[view.state.signature] = _node(view, snapshot)
            sum_ = found.setdefault(product(view), Facts())
            sum_.add(mine)
            sum_.live_free_bytes += _live_free(view)
    return found


def _node(view: NodeView, snapshot: Snapshot) -> Facts:
    assert view.fabric is not None
    bits = [bit for bit in view.gpu_bits if bit >= 0]
    left = left_over(view)
    return Facts(
        gpus=len(bits),
        free=left.count(WHOLE),
        drifting=view.drift.bit_count(),
        unhealthy=sum(not gpu.healthy for gpu in view.fabric.gpus),
        largest_set=largest_free_set(view),
        unclaimed_bytes=sum(unclaimed_bytes(view, bit) for bit in bits if not view.busy >> bit & 1),
        stranded=stranded(left, snapshot.fleet) / WHOLE,
    )


def _live_free(view: NodeView) -> int:
    assert view.fabric is not None
    return sum(gpu.memory_free_bytes or 0 for gpu in view.fabric.gpus) if view.believed else 0
