"""The annotations by which a pod asks for links and memory. `pod_groups` reads those that describe its group.

Each reader raises ValueError with the annotation, its value and what it may be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from extender.api.quantity import parse_quantity
from extender.base.text_limits import shown

ANNOTATION_PREFIX = "berth.dev/"
TOPOLOGY_ANNOTATION = "berth.dev/topology"
BANDWIDTH_ANNOTATION = "berth.dev/bandwidth"
MIN_BANDWIDTH_ANNOTATION = "berth.dev/min-bandwidth-gbps"
MEMORY_ANNOTATION = "berth.dev/expected-memory"
# By the field of a job, see extender/replay/jobs.py.
WISHES = {
    "topology": TOPOLOGY_ANNOTATION,
    "bandwidth": BANDWIDTH_ANNOTATION,
    "min_bandwidth_gbps": MIN_BANDWIDTH_ANNOTATION,
    "expected_memory": MEMORY_ANNOTATION,
}
_GROUP_TOPOLOGIES = ("required", "preferred", "none")
_TOPOLOGIES = ("required", "preferred", "product", "none")


class PodIntent(NamedTuple):
    """What a pod asks of its devices by annotations.

    Each key by which pods share results has the whole value. So pods that differ in a field share none.
    """

    topology: str  # required, preferred, product or none
    min_gbps: float  # GB/s that the chosen GPUs must reach; 0 for no minimum
    expected_bytes: int  # bytes of memory per GPU; 0 for no minimum
    wanted_gbps: float = 0.0  # GB/s that the chosen GPUs should reach; 0 for no wish

    @property
    def asked_gbps(self) -> float:
        """GB/s that are enough; 0 if the pod names no figure."""
        return max(self.wanted_gbps, self.min_gbps)


def intent_of(annotations: Mapping[str, str], default_topology: str) -> PodIntent:
    """The intent of a pod. `default_topology` counts for a pod without that annotation. Raises ValueError."""
    if not annotations:  # most pods have none
        return PodIntent(default_topology, 0.0, 0)
    return PodIntent(
        _topology(annotations) or default_topology,
        _gbps(annotations, MIN_BANDWIDTH_ANNOTATION),
        _expected_bytes(annotations),
        _gbps(annotations, BANDWIDTH_ANNOTATION),
    )


def _topology(annotations: Mapping[str, str]) -> str | None:
    return _one_of(_TOPOLOGIES, annotations, TOPOLOGY_ANNOTATION)


def group_topology_of(annotations: Mapping[str, str], name: str) -> str | None:
    """required, preferred or none; None without the annotation of this name. Raises ValueError."""
    return _one_of(_GROUP_TOPOLOGIES, annotations, name)


def _one_of(words: tuple[str, ...], annotations: Mapping[str, str], name: str) -> str | None:
    text = annotations.get(name)
    if text is not None and text not in words:
        raise ValueError(f"pod annotation {name}: {shown(text)} is not one of {', '.join(words)}")
    return text


def _gbps(annotations: Mapping[str, str], name: str) -> float:
    text = annotations.get(name)
    if text is None:
        return 0.0
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(f"pod annotation {name}: {shown(text)} is not a number of GB/s")
    return value


def _expected_bytes(annotations: Mapping[str, str]) -> int:
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
    TOPOLOGY_ANNOTATION: _topology,
    BANDWIDTH_ANNOTATION: partial(_gbps, name=BANDWIDTH_ANNOTATION),
    MIN_BANDWIDTH_ANNOTATION: partial(_gbps, name=MIN_BANDWIDTH_ANNOTATION),
    MEMORY_ANNOTATION: _expected_bytes,
}
