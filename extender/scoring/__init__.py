"""The score of a choice of devices, with sentences that explain it, and the order in which devices are tried.

The package contains the parts of the score, their combination and the order of preference, but no feasibility.
"""

from extender.scoring.parts import (
    DeviceChoice,
    ScorePart,
    achieved_gbps,
    left_over,
    memory_bytes,
    parts,
    stranded,
    total,
    unclaimed_bytes,
)
from extender.scoring.preference import ByTopology

__all__ = [
    "ByTopology",
    "DeviceChoice",
    "ScorePart",
    "achieved_gbps",
    "left_over",
    "memory_bytes",
    "parts",
    "stranded",
    "total",
    "unclaimed_bytes",
]
