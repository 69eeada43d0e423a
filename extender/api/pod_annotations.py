"""The annotations by which a pod asks for links and memory. `pod_groups` reads those that describe its group.

Each reader raises ValueError with the annotation, its value and what it may be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from extender.api.quantity import parse_quantity
from extender.base.text_limits import shown

ANNOTATION_PREFIX = "berth.dev/"
TOPOLOGY_ANNOTATION = "berth.dev/topology"
BANDWIDTH_ANNOTATION = "berth.dev/min-bandwidth-gbps"
MEMORY_ANNOTATION = "berth.dev/expected-memory"
_TOPOLOGIES = ("required", "preferred", "none")


class PodIntent(NamedTuple):
    """What a pod asks of its devices by annotations.

    Each key by which pods share results has the whole value. So pods that differ in a field share none.
    """

    topology: str  # required, preferred or none
    min_gbps: float  # GB/s that the chosen GPUs must reach; 0 for no minimum
    expected_bytes: int  # bytes of memory per GPU; 0 for no minimum


def intent_of(annotations: Mapping[str, str], default_topology: str) -> PodIntent:
    """The intent of a pod. `default_topology` counts for a pod without that annotation. Raises ValueError."""
    return PodIntent(
        topology_of(annotations) or default_topology, min_gbps_of(annotations), expected_bytes_of(annotations)
    )


def topology_of(annotations: Mapping[str, str], name: str = TOPOLOGY_ANNOTATION) -> str | None:
    """required, preferred or none; None without the annotation of this name. Raises ValueError."""
    text = annotations.get(name)
    if text is not None and text not in _TOPOLOGIES:
        raise ValueError(f"pod annotation {name}: {shown(text)} is not one of {', '.join(_TOPOLOGIES)}")
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
