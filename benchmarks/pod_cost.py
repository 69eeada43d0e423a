"""The cost of one pod on a real control plane: CPU by process, API requests by verb and resource, and the time of
kube-scheduler's plugins."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import cpu_seconds
from tests.e2e.control_plane import ControlPlane

# Requests that the benchmark itself sends, or that no pod causes.
_NOT_COUNTED = ("healthz", "readyz", "livez", "metrics")
_REQUESTS = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.MULTILINE)
_SUM = re.compile(r"^scheduler_(\w+)_duration_seconds_sum(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Usage:
    """The use of the processes since their start: CPU seconds by process, requests by verb and resource."""

    cpu: Mapping[str, float]
    requests: Mapping[str, float]

    def per_pod(self, before: Usage, pods: int) -> Usage:
        """CPU milliseconds and requests for each of `pods` pods since `before`."""
        return Usage(
            {name: 1000 * (used - before.cpu.get(name, 0.0)) / pods for name, used in self.cpu.items()},
            {
                name: (count - before.requests.get(name, 0.0)) / pods
                for name, count in self.requests.items()
                if count > before.requests.get(name, 0.0)
            },
        )


def usage(plane: ControlPlane) -> Usage:
    """The usage of every process that runs now."""
    cpu = {_name(process.args): cpu_seconds(process.pid) for process in plane.processes}
    return Usage(cpu, requests_in(plane.get("/metrics", raw=True)))


def requests_in(metrics: str) -> Mapping[str, float]:
    """Requests by `VERB resource/subresource` from the text of the API server's metrics."""
    found: dict[str, float] = defaultdict(float)
    for labels_text, count in _REQUESTS.findall(metrics):
        labels = dict(_LABEL.findall(labels_text))
        resource = "/".join(part for part in (labels.get("resource"), labels.get("subresource")) if part)
        if resource and not resource.startswith(_NOT_COUNTED):
            found[f"{labels['verb']} {resource}"] += float(count)
    return found


def plugins_in(metrics: str, pods: int) -> Mapping[str, float]:
    """Wall milliseconds per pod by extension point and plugin, from kube-scheduler's metrics text.

    kube-scheduler times an extension point always, its plugins in a sample of the cycles. Hence each plugin has the
    part of its extension point's time that it has in the sample. `algorithm` is the whole search for a node: these
    extension points up to Score, and the calls of extenders.
    """
    points: dict[str, float] = defaultdict(float)
    sampled: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    found = {}
    for name, labels_text, seconds in _SUM.findall(metrics):
        labels = dict(_LABEL.findall(labels_text))
        if name == "scheduling_algorithm":
            found["algorithm"] = 1000 * float(seconds) / pods
        elif name == "framework_extension_point":
            points[labels["extension_point"]] += 1000 * float(seconds) / pods
        elif name == "plugin_execution":
            sampled[labels["extension_point"]][labels["plugin"]] += float(seconds)
    for point, spent in points.items():
        whole = sum(sampled[point].values())
        found[point] = spent
        found.update({f"{point} {plugin}": spent * part / whole for plugin, part in sampled[point].items() if whole})
    return found


def median(measured: Iterable[Usage]) -> Usage:
    """The median of each number; a number that is absent in one measurement counts as 0 there."""
    found = list(measured)
    return Usage(medians([one.cpu for one in found]), medians([one.requests for one in found]))


def lines(usage: Usage, least: float = 0.02) -> list[str]:
    """Two lines for people: CPU and requests per pod, the largest first. `least` leaves out smaller numbers."""
    cpu, requests = (
        ", ".join(f"{name} {value:.2f}" for name, value in sorted(of.items(), key=lambda one: -one[1]) if value > least)
        for of in (usage.cpu, usage.requests)
    )
    return [f"ms of CPU per pod: {cpu}; all {sum(usage.cpu.values()):.2f}", f"requests per pod: {requests}"]


def table(columns: Mapping[str, Mapping[str, float]], least: float = 0.02) -> list[str]:
    """One line per name of a number, one column per system. Leaves out names with no number above `least`."""
    names = sorted({name for column in columns.values() for name, value in column.items() if value > least})
    head = " " * 44 + "".join(f"{system:>15}" for system in columns)
    rows = (f"{name:44}" + "".join(f"{column.get(name, 0.0):15.2f}" for column in columns.values()) for name in names)
    return [head, *rows]


def medians(of: list[Mapping[str, float]]) -> dict[str, float]:
    """The median of each number of `of`; one that is absent counts as 0."""
    return {name: statistics.median(one.get(name, 0.0) for one in of) for name in {n for one in of for n in one}}


def _name(args: object) -> str:
    """`berth` or the name of a Kubernetes program."""
    words = [str(arg) for arg in args] if isinstance(args, list) else [str(args)]
    return "berth" if "extender" in words[:3] else Path(words[0]).name
