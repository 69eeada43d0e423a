"""Statistics of the fleet by GPU product, for /metrics."""

from __future__ import annotations

from dataclasses import dataclass

from extender.allocation import NodeInfo, Snapshot
from extender.diagnosis.node_rows import largest_free_set, product
from extender.model import WHOLE
from extender.scoring import left_over, stranded, unclaimed_bytes


@dataclass(slots=True)
class FleetStats:
    """Sums over the nodes of one product."""

    gpus: int = 0  # number of GPUs
    free: int = 0  # GPUs without any allocation, share or hold
    drifting: int = 0  # GPUs in use without a claim
    unhealthy: int = 0
    largest_set: int = 0  # largest set of free GPUs that NVLink joins on one node
    unclaimed_bytes: int = 0
    live_free_bytes: int = 0  # sum over GPUs with fresh agent data
    stranded: float = 0.0  # free GPUs or parts of GPUs that the expected request mix cannot use

    def add(self, other: FleetStats) -> None:
        """Add the statistics of one node. The caller adds `live_free_bytes`, which differs between equal nodes."""
        self.gpus += other.gpus
        self.free += other.free
        self.drifting += other.drifting
        self.unhealthy += other.unhealthy
        self.largest_set = max(self.largest_set, other.largest_set)
        self.unclaimed_bytes += other.unclaimed_bytes
        self.stranded += other.stranded


def fleet_stats(snapshot: Snapshot) -> dict[str, FleetStats]:
    """The statistics by product. Nodes of one allocation signature share one computation."""
    found: dict[str, FleetStats] = {}
    by_signature: dict[tuple[int, int], FleetStats] = {}
    for node_info in snapshot.node_infos.values():
        if node_info.fabric is not None:
            stats = by_signature.get(node_info.state.allocation_signature)
            if stats is None:
                stats = by_signature[node_info.state.allocation_signature] = _node(node_info, snapshot)
            total = found.setdefault(product(node_info), FleetStats())
            total.add(stats)
            total.live_free_bytes += _live_free(node_info)
    return found


def _node(node_info: NodeInfo, snapshot: Snapshot) -> FleetStats:
    assert node_info.fabric is not None
    bits = [bit for bit in node_info.gpu_bits if bit >= 0]
    left = left_over(node_info)
    return FleetStats(
        gpus=len(bits),
        free=left.count(WHOLE),
        drifting=node_info.drift.bit_count(),
        unhealthy=sum(not gpu.healthy for gpu in node_info.fabric.gpus),
        largest_set=largest_free_set(node_info),
        unclaimed_bytes=sum(unclaimed_bytes(node_info, bit) for bit in bits if not node_info.busy >> bit & 1),
        stranded=stranded(left, snapshot.baseline) / WHOLE,
    )


def _live_free(node_info: NodeInfo) -> int:
    assert node_info.fabric is not None
    return sum(gpu.memory_free_bytes or 0 for gpu in node_info.fabric.gpus) if node_info.agent_is_fresh else 0
