"""What a replay found: how good the devices of each pod are, how long jobs waited, and what was left free over time.

`Meter` measures while the replay runs; `Outcome` has the figures, and is JSON as it is. `LargeShape` is that of a large
job, such as 4x8, for which the fleet may have a place.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from typing import NamedTuple

from extender.allocation import NodeInfo, Snapshot
from extender.api.fields import Json
from extender.api.gpu_topology import Graph
from extender.api.quantity import NANO
from extender.api.resource_claims import Result
from extender.base.berth_errors import WireError
from extender.base.bits import union
from extender.base.text_limits import shown
from extender.explain.fleet_rows import fleet_stats, large_jobs
from extender.replay.jobs import MAX_GPUS, MAX_PODS, Job
from extender.topology.affinity import near_pairs
from extender.topology.score_parts import product_gbps
from extender.topology.sets import bandwidth, is_joined, ranked

SIZES = ((0.999, "part of a GPU"), (1, "1 GPU"), (4, "2-4"), (8, "5-8"), (32, "9-32"), (math.inf, "33 and more"))
NO_GPU = "no GPU"
_FORM = re.compile(r"(?:(\d{1,4})x)?(\d{1,2})")
MAX_NAMED = 20  # jobs that never started, with their reasons


class PlacedPod(NamedTuple):
    """How good the devices of a pod are, against the best of its node if all of it were free."""

    node: str
    gpus: int
    is_joined: bool
    gbps: float
    best_gbps: float
    near: int  # pairs of a GPU and a NIC that are as near as the machine allows
    pairs: int  # of so many GPUs and NICs, the most that can be
    devices: tuple[str, ...]  # as driver/pool/device
    knows_links: bool = True  # False: what joins the GPUs of the node is not known, so that the set is not measured


class StartedJob(NamedTuple):
    """A job all of whose pods have a node. Times in seconds, the wait is that since its arrival."""

    at: float
    wait: float
    pods: tuple[PlacedPod, ...]


def placed_pod(node_info: NodeInfo, results: Sequence[Result], possible: int, *, knows_links: bool) -> PlacedPod:
    """Measure the devices of a pod. `knows_links`: whether it is known what joins the GPUs of the node.

    For `possible` see device_pairs.possible_devices.
    """
    names = tuple(str(one.device) for one in results)
    taken = union([1 << bit for one in results if (bit := _whole_device(node_info, one)) is not None])
    gpus, fabric = node_info.positions(taken), node_info.fabric
    count, joined, gbps = gpus.bit_count(), False, 0.0
    if fabric is not None and count > 1:
        joined, gbps = is_joined(fabric.graph, gpus), bandwidth(fabric.graph, gpus)
    near, pairs = near_pairs(node_info.locality, taken, possible)
    best = max(product_gbps(node_info, gpus), gbps) if count > 1 else 0.0
    return PlacedPod(node_info.node.name, count, joined, gbps, best, near, pairs, names, knows_links)


def _whole_device(node_info: NodeInfo, result: Result) -> int | None:
    """The bit of a device; None for a part of a GPU, which no links join. A part of a NIC is as near as the NIC."""
    bit = node_info.inventory.index.get(result.device)
    if bit is None or not result.share_id or not node_info.positions(1 << bit):
        return bit
    has_all = result.amounts.get("memory", 0) >= node_info.inventory.devices[bit].memory_bytes * NANO
    return bit if has_all else None


class Sample(NamedTuple):
    """The fleet at one time, in seconds. GPUs; `large` are those that the largest joined job would still find.

    `has_place`: whether the job of --large would find a place.
    """

    at: float
    allocated: float
    waiting: float
    stranded: float
    large: int
    has_place: bool


@dataclass(frozen=True)
class Outcome:
    """The figures of one replay. Shares are of 1, times in seconds; NaN where there was nothing to measure."""

    placement: str
    gpus: int  # of the fleet
    jobs: int
    started: int
    unknown_links: int  # nodes with several GPUs whose links are not known: their pods are not measured
    joined: float  # of the pods with several GPUs on other nodes: those whose GPUs links join
    ring_gbps: float  # mean bandwidth of their rings in GB/s
    ring: float  # the sum of it, against the best sets of their nodes
    nic: float  # pairs of a GPU and a NIC that are as near as the machine allows, of those that can be
    gangs: int
    domains: float  # of a gang: values of the nearest level of its nodes, or nodes without one
    in_one: float  # gangs in one domain
    waits: Mapping[str, tuple[int, float, float]]  # by size: jobs that started, mean wait, longest wait
    allocated: float  # mean share of the GPUs over the time until the last arrival
    held: float  # of it, by pods of gangs that do not run yet
    stranded: float  # mean GPUs that are free and of no use to the typical job
    large: float  # mean GPUs that the largest joined job would still find
    large_place: float  # share of the time in which the job of --large would find a place
    failures: int  # times that a gang was half placed and gave up
    never: Mapping[str, str]  # the first jobs that never started, and why
    never_for: Mapping[str, int]  # all of these jobs by reason, in the order of `never`
    samples: Sequence[Sample] = field(repr=False)
    started_jobs: Mapping[str, StartedJob] = field(repr=False)

    def as_json(self) -> Json:
        """The figures; null in place of NaN."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        found["samples"] = [one._asdict() for one in self.samples]
        found["started_jobs"] = {
            name: {"at": job.at, "wait": job.wait, "pods": [pod._asdict() for pod in job.pods]}
            for name, job in self.started_jobs.items()
        }
        return {name: None if isinstance(one, float) and math.isnan(one) else one for name, one in found.items()}


class LargeShape(NamedTuple):
    """Pods in one domain, each with so many GPUs that links join."""

    pods: int
    gpus: int

    def __str__(self) -> str:
        return f"{self.pods}x{self.gpus}"


JOINED = LargeShape(1, 2)  # the smallest job that links join


def large_shape(text: str) -> LargeShape:
    """The shape that --large names. Raises WireError."""
    found = _FORM.fullmatch(text)
    pods, gpus = (int(found[1] or 1), int(found[2])) if found else (0, 0)
    if not (1 <= pods <= MAX_PODS and 1 <= gpus <= MAX_GPUS):
        raise WireError("--large", f"must be GPUS or PODSxGPUS, such as 8 or 4x8, is {shown(text)}")
    return LargeShape(pods, gpus)


class Meter:
    """Collects what an Outcome has. `levels` are the group levels of the policy, the nearest first.

    `unmeasured` are the nodes of which it is not known what joins their GPUs.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        levels: Sequence[str],
        until: float,
        large: LargeShape | None,
        unmeasured: Container[str],
    ) -> None:
        stats = fleet_stats(snapshot).values()
        self.gpus = sum(one.gpus for one in stats)
        known = [one for name, one in snapshot.node_infos.items() if name not in unmeasured]
        unknown = (one for name, one in snapshot.node_infos.items() if name in unmeasured)
        self._unknown_links = sum(one.fabric is not None and one.fabric.graph.size > 1 for one in unknown)
        # Whether more GPUs than are found may be joined: a fleet has nodes without links that are known, too.
        self._knows_joined, self._knows_place = (
            not self._unknown_links or has_place(shape, known, levels, if_empty=True)
            for shape in (JOINED, large or JOINED)
        )
        self._levels = levels
        self._until = until
        self._large = large
        self._jobs: dict[str, StartedJob] = {}
        self._pods: list[PlacedPod] = []
        self._gangs: list[int] = []
        self._waits: dict[str, list[float]] = {}
        self._samples: list[Sample] = []
        self._in_use = self.gpus - sum(one.free + one.closed for one in stats) + 0.0
        self._held = self._last = self._area = self._held_area = 0.0

    def started(self, job: Job, now: float, gpus: float, pods: Sequence[PlacedPod], snapshot: Snapshot) -> None:
        """All pods of a job have a node, and so many GPUs together."""
        wait = max(now - job.arrival, 0.0)  # times are sums of fractions
        self._jobs[job.name] = StartedJob(now, wait, tuple(pods))
        self._waits.setdefault(size_of(gpus), []).append(wait)
        self._pods += [pod for pod in pods if pod.gpus > 1 or pod.pairs]
        nodes = [pod.node for pod in pods if pod.devices]  # the other pods of a gang may be anywhere
        if len(nodes) > 1:
            self._gangs.append(len({self._domain(node, snapshot) for node in nodes}))

    def use(self, gpus: float, held: float, now: float) -> None:
        """So many GPUs more, or less, are allocated from now on; and so many by pods of jobs that do not run yet."""
        self._integrate(now)
        self._in_use += gpus
        self._held += held

    def sample(self, now: float, waiting: float, snapshot: Snapshot) -> None:
        """Note the state of the fleet. `waiting` are the GPUs of waiting pods."""
        stats = fleet_stats(snapshot)
        large = next((one.gpus for one in large_jobs(stats)), 0)
        stranded = sum(one.stranded for one in stats.values())
        place = self._large is not None and has_place(self._large, snapshot.node_infos.values(), self._levels)
        self._samples.append(Sample(now, self._in_use, waiting, stranded, large, place))

    def outcome(self, placement: str, jobs: int, now: float, failures: int, never: Mapping[str, str]) -> Outcome:
        """The figures at the end. `never` has all jobs that did not start, and why."""
        self._integrate(now)
        several = [pod for pod in self._pods if pod.gpus > 1 and pod.knows_links]
        looks = self._large is not None and (self._knows_place or self._large.gpus == 1)
        best, pairs = sum(pod.best_gbps for pod in several), sum(pod.pairs for pod in self._pods)
        return Outcome(
            placement=placement,
            gpus=self.gpus,
            jobs=jobs,
            started=len(self._jobs),
            unknown_links=self._unknown_links,
            joined=_share([pod.is_joined for pod in several]),
            ring_gbps=statistics.fmean(pod.gbps for pod in several) if several else math.nan,
            ring=sum(pod.gbps for pod in several) / best if best else math.nan,
            nic=sum(pod.near for pod in self._pods) / pairs if pairs else math.nan,
            gangs=len(self._gangs),
            domains=statistics.fmean(self._gangs) if self._gangs else math.nan,
            in_one=_share([domains == 1 for domains in self._gangs]),
            waits={
                name: (len(waits), statistics.fmean(waits), max(waits))
                for name in (NO_GPU, *(name for _, name in SIZES))
                if (waits := self._waits.get(name))
            },
            allocated=self._time_share(self._area),
            held=self._time_share(self._held_area),
            stranded=self._mean([one.stranded for one in self._samples]),
            large=self._mean([one.large for one in self._samples]) if self._knows_joined else math.nan,
            large_place=self._mean([one.has_place for one in self._samples]) if looks else math.nan,
            failures=failures,
            never=dict(islice(never.items(), MAX_NAMED)),
            never_for=Counter(never.values()),
            samples=tuple(self._samples),
            started_jobs=self._jobs,
        )

    def _time_share(self, area: float) -> float:
        """GPU-seconds as a share of those of the fleet."""
        return area / self._last / self.gpus if self._last and self.gpus else math.nan

    def _integrate(self, now: float) -> None:
        until = min(now, self._until)
        span = max(until - self._last, 0.0)
        self._area += span * self._in_use
        self._held_area += span * self._held
        self._last = max(until, self._last)

    def _mean(self, values: Sequence[float]) -> float:
        """The mean over the time until the last arrival: each value is that until the next sample."""
        times = [min(one.at, self._until) for one in self._samples]
        spans = [b - a for a, b in zip(times, (*times[1:], self._until), strict=True)] if times else []
        total = sum(spans)
        return sum(span * value for span, value in zip(spans, values, strict=True)) / total if total else math.nan

    def _domain(self, node: str, snapshot: Snapshot) -> tuple[str, str]:
        labels = snapshot.node_infos[node].node.labels
        return next(((level, labels[level]) for level in self._levels if level in labels), ("", node))


def size_of(gpus: float) -> str:
    """The class of sizes of a job, by the GPUs of all its pods."""
    return next(name for most, name in SIZES if gpus <= most) if gpus else NO_GPU


def _share(values: Sequence[bool]) -> float:
    return sum(values) / len(values) if values else math.nan


def has_place(
    shape: LargeShape, node_infos: Iterable[NodeInfo], levels: Sequence[str], *, if_empty: bool = False
) -> bool:
    """Whether one domain of these nodes has free GPUs for the shape. `levels` are labels, the nearest first.

    Nodes without any of the labels are one domain. `if_empty`: whether it would if no GPU were in use.
    """
    rooms: dict[tuple[int, int], int] = {}  # of equal machines with the same free GPUs
    domains = Counter[tuple[str, str]]()
    for node_info in node_infos:
        if node_info.fabric is not None:
            graph, free = node_info.fabric.graph, node_info.positions(-1 if if_empty else ~node_info.busy)
            key = id(graph), free  # graphs are interned
            if key not in rooms:
                rooms[key] = _room(graph, free, shape.gpus)
            labels = node_info.node.labels
            domains[next(((level, labels[level]) for level in levels if level in labels), ("", ""))] += rooms[key]
    return max(domains.values(), default=0) >= shape.pods


def _room(graph: Graph, free: int, gpus: int) -> int:
    """How many sets of joined GPUs are free, the best one first."""
    if gpus == 1:
        return free.bit_count()
    found = 0
    while free.bit_count() >= gpus and is_joined(graph, best := ranked(graph, free, gpus)[0]):
        free &= ~best
        found += 1
    return found
