"""Statistics of the fleet by GPU product, for /metrics."""

from __future__ import annotations

from dataclasses import dataclass

from extender.allocation import NodeInfo, Snapshot
from extender.diagnosis.node_rows import largest_free_set, letter, product, shown_bits
from extender.model import WHOLE
from extender.topology.score_parts import left_over, stranded, unclaimed_bytes


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
    """The statistics by product. Nodes of one allocation signature and the same GPUs share one computation."""
    found: dict[str, FleetStats] = {}
    by_signature: dict[tuple[tuple[int, int], tuple[int, ...]], FleetStats] = {}
    for node_info in snapshot.node_infos.values():
        bits = tuple(shown_bits(node_info))
        if bits:
            key = node_info.state.allocation_signature, bits
            stats = by_signature.get(key)
            if stats is None:
                stats = by_signature[key] = _node(node_info, bits, snapshot)
            total = found.setdefault(product(node_info), FleetStats())
            total.add(stats)
            total.live_free_bytes += _live_free(node_info)
    return found


def _node(node_info: NodeInfo, bits: tuple[int, ...], snapshot: Snapshot) -> FleetStats:
    others = [bit for bit in bits if bit not in node_info.gpu_bits]
    left = left_over(node_info) if node_info.fabric is not None else []
    return FleetStats(
        gpus=len(bits),
        free=left.count(WHOLE) + sum(letter(node_info, bit) == "f" for bit in others),
        drifting=node_info.drift.bit_count(),
        unhealthy=sum(not gpu.healthy for gpu in node_info.fabric.gpus) if node_info.fabric is not None else 0,
        largest_set=largest_free_set(node_info),
        unclaimed_bytes=sum(unclaimed_bytes(node_info, bit) for bit in bits if not node_info.busy >> bit & 1),
        stranded=stranded(left, snapshot.baseline) / WHOLE,
    )


def _live_free(node_info: NodeInfo) -> int:
    if node_info.fabric is None or not node_info.agent_is_fresh:
        return 0
    return sum(gpu.memory_free_bytes or 0 for gpu in node_info.fabric.gpus)
