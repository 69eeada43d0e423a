"""The annotations by which a pod asks for links and memory. `wire.pod_groups` reads those that describe its group.

Each reader raises ValueError with the annotation, its value and what it may be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from extender.model import BANDWIDTH_ANNOTATION, MEMORY_ANNOTATION, TOPOLOGY_ANNOTATION, parse_quantity, shown

ANNOTATION_PREFIX = "berth.dev/"
_TOPOLOGIES = ("required", "preferred", "none")


def topology_of(annotations: Mapping[str, str]) -> str | None:
    """required, preferred or none; None without the annotation. Raises ValueError."""
    text = annotations.get(TOPOLOGY_ANNOTATION)
    if text is not None and text not in _TOPOLOGIES:
        raise ValueError(f"pod annotation {TOPOLOGY_ANNOTATION}: {shown(text)} is not one of {', '.join(_TOPOLOGIES)}")
    return text


def min_gbps_of(annotations: Mapping[str, str]) -> float:
    """The required bandwidth in GB/s; 0 without the annotation. Raises ValueError."""
    text = annotations.get(BANDWIDTH_ANNOTATION)
    if text is None:
        return 0.0
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(f"pod annotation {BANDWIDTH_ANNOTATION}: {shown(text)} is not a number of GB/s")
    return value


def expected_bytes_of(annotations: Mapping[str, str]) -> int:
    """The expected memory of one GPU in bytes; 0 without the annotation. Raises ValueError."""
    text = annotations.get(MEMORY_ANNOTATION)
    if text is None:
        return 0
    try:
        amount = parse_quantity(text).ceil()
    except ValueError:
        amount = -1
    if amount < 0:
        raise ValueError(f"pod annotation {MEMORY_ANNOTATION}: {shown(text)} is not an amount of memory such as 60Gi")
    return amount


ANNOTATION_READERS: dict[str, Callable[[Mapping[str, str]], object]] = {
    TOPOLOGY_ANNOTATION: topology_of,
    BANDWIDTH_ANNOTATION: min_gbps_of,
    MEMORY_ANNOTATION: expected_bytes_of,
}
