"""What berth defrag knows of a cluster: objects in a cache, and of each pod and node only what the advice needs.

Objects are added one after the other, and none of them is kept: a cluster may have many thousands of pods.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from extender.api.fields import Json, inner, integer, many, naming, need, string, string_map
from extender.api.foreign_gangs import ForeignGang, foreign_gang
from extender.api.object_meta import ObjectKey
from extender.api.pod_amounts import Amounts, allocatable_of, requests_of
from extender.api.pod_groups import JOB_KINDS
from extender.api.pods import LabelSelector, Pod, decode_pod, label_selector
from extender.assess.cluster_reading import BUDGET, ClusterReading
from extender.assess.job_failures import JOB, JobLimit, job_limit
from extender.base.text_limits import counted, shown
from extender.cache import ClusterCache

SKEW = timedelta(minutes=6)  # of clocks: less than what GPU-hours are rounded to
REPLICA_SET = "ReplicaSet"
_TEMPLATE_HASH = "pod-template-hash"  # the label with which the name of a Deployment's ReplicaSet ends
_MAX_NAMED = 3  # pods in a sentence


@dataclass(frozen=True, slots=True)
class PodFacts:
    """One pod."""

    pod: Pod
    amounts: Amounts
    priority: int
    owner: tuple[str, str]  # kind and name of the controller; ('', '') if there is none
    labels: Mapping[str, str]
    started: datetime | None = None
    gang: ForeignGang | None = None

    @property
    def deployment(self) -> str:
        """The Deployment that made its ReplicaSet; '' if none did."""
        kind, name = self.owner
        end = f"-{self.labels.get(_TEMPLATE_HASH, '')}"
        return name.removesuffix(end) if kind == REPLICA_SET and name.endswith(end) else ""

    @property
    def belongs_to(self) -> frozenset[Hashable]:
        """Its group, its jobs, its controller and its Deployment: with other pods of these it makes one workload."""
        group = self.pod.membership.key if self.pod.membership is not None and self.pod.membership.key.name else None
        owner = (self.pod.key.namespace, *self.owner) if self.owner[0] else None
        deployment = (self.pod.key.namespace, "Deployment", self.deployment) if self.deployment else None
        return frozenset(one for one in (group, *self.pod.jobs, self.gang, owner, deployment) if one is not None)

    @property
    def workloads(self) -> Iterator[tuple[str, str]]:
        """Kind and name of what it belongs to besides its group, the largest last."""
        yield self.owner
        yield "Deployment", self.deployment
        if self.gang is not None:
            yield self.gang.key, self.gang.name
        yield from ((JOB_KINDS[job.source], job.name) for job in reversed(self.pod.jobs))

    @property
    def began(self) -> datetime | None:
        """The start, or the creation if there is none yet."""
        return self.started or time_of(self.pod.created)


@dataclass(frozen=True, slots=True)
class Budget:
    """A PodDisruptionBudget. `allowed`: the disruptions that it allows now."""

    name: str  # with the namespace
    namespace: str
    selector: LabelSelector | None
    allowed: int


@dataclass(slots=True)
class ClusterFacts:
    """`cache` has nodes, slices, classes, claims and waiting pods."""

    cache: ClusterCache
    pods: dict[str, PodFacts] = field(default_factory=dict)  # that may have devices, or are of a group; by UID
    # Without devices, by UID: those of Jobs and gangs, and those that terminate.
    others: dict[str, PodFacts] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)  # UIDs of pods that may have had devices
    allocatable: dict[str, Amounts] = field(default_factory=dict)  # by node
    used: dict[str, Amounts] = field(default_factory=dict)  # by node: what pods without devices request
    budgets: list[Budget] = field(default_factory=list)
    jobs: dict[ObjectKey, JobLimit] = field(default_factory=dict)  # as far as they were read

    def add(self, obj: Json) -> None:
        """Add a Node, a Pod, a PodDisruptionBudget or a Job. Raises WireError that names the object."""
        with naming(obj):
            match obj.get("kind"):
                case "Node":
                    self.allocatable[need(inner(obj, "metadata", ""), "name", "metadata")] = allocatable_of(obj)
                case kind if kind == BUDGET:
                    self.budgets.append(_budget(obj))
                case kind if kind == JOB:
                    self.jobs.update([job_limit(obj)])
                case "Pod":
                    self.add_pod(obj, decode_pod(obj))

    def add_pod(self, obj: Json, pod: Pod) -> None:
        """Add a pod that is decoded already. Raises WireError that does not name it."""
        if pod.ended:
            self.ended.add(pod.uid)
        elif pod.concerns_berth:
            self.pods[pod.uid] = _facts(obj, pod)
        elif pod.node_name:
            self.used[pod.node_name] = self.used.get(pod.node_name, Amounts()).plus(requests_of(obj))
            if pod.deleting or pod.jobs or foreign_gang(inner(obj, "metadata", "")):
                self.others[pod.uid] = _facts(obj, pod)

    def jobs_of(self, pods: Iterable[Pod]) -> Iterator[ObjectKey]:
        """The Job of each of these pods that has one."""
        for pod in pods:
            known = self.pods.get(pod.uid) or self.others.get(pod.uid)
            if known is not None and known.owner[0] == JOB:
                yield ObjectKey(pod.key.namespace, known.owner[1])

    def left(self) -> dict[str, Amounts]:
        """What the pods of each node leave of it."""
        used = dict(self.used)
        for one in self.pods.values():
            if name := one.pod.node_name:
                used[name] = used.get(name, Amounts()).plus(one.amounts)
        return {name: amounts.minus(used.get(name, Amounts())) for name, amounts in self.allocatable.items()}


def facts_of(reading: ClusterReading) -> ClusterFacts:
    """What the advice needs of a reading. Raises WireError that names an object."""
    found, decoded = ClusterFacts(reading.cache), {pod.uid: pod for pod in (*reading.pods, *reading.ended)}
    for obj in (*reading.fleet, *reading.others, *reading.budgets, *reading.jobs):
        found.add(obj)
    for uid, pod in decoded.items():
        with naming(reading.requests[uid]):
            found.add_pod(reading.requests[uid], pod)
    return found


def newest_time(reading: ClusterReading, clock: datetime) -> datetime:
    """The newest time that the objects have, but for the future: a file does not say when it was written."""
    past = (one for one in _times(reading) if one <= clock)
    return max(past, default=datetime.fromisoformat("1970-01-01T00:00:00+00:00"))


def wrong_starts(facts: ClusterFacts, now: datetime) -> Iterator[str]:
    """What is said of running pods with devices that start later than now, and of those whose start is not known."""
    late, unknown = list[str](), list[str]()
    for one in facts.pods.values():
        if one.pod.node_name and one.began is None:
            unknown.append(str(one.pod.key))
        elif one.pod.node_name and one.began is not None and one.began > now + SKEW:
            late.append(str(one.pod.key))
    for names, what in ((sorted(late), "is in the future"), (sorted(unknown), "cannot be read")):
        named = ", ".join(names[:_MAX_NAMED]) + (", …" if len(names) > _MAX_NAMED else "")
        starts = f"the start of {counted(len(names), 'pod')} {what}, {'its' if len(names) == 1 else 'their'}"
        if names:
            yield f"{starts} GPU-hours count as 0: {named}"


def clock_faults(reading: ClusterReading, now: datetime) -> str:
    """What is said of times of pods with devices that cannot be right; '' without any."""
    found = []
    for obj in reading.requests.values():
        metadata, start = inner(obj, "metadata", ""), inner(obj, "status", "").get("startTime")
        if fault := _clock_fault(metadata.get("creationTimestamp"), start, now):
            found.append((f"{metadata.get('namespace')}/{metadata.get('name')}", fault))
    if not found:
        return ""
    name, fault = min(found)
    more = f", and those of {counted(len(found) - 1, 'other pod')} cannot, either" if len(found) > 1 else ""
    return f"the times of pod {name} cannot be right: {fault}{more}: how old pods are may be wrong"


def _clock_fault(created: object, started: object, now: datetime) -> str:
    """The first field of these two that cannot be right, and why; '' if both can."""
    times = {"metadata.creationTimestamp": created, "status.startTime": started}
    read = {name: time_of(text) for name, text in times.items()}
    for name, text in times.items():
        found = read[name]
        if text and found is None:
            return f"{name} is no time: {shown(text)}"
        if found is not None and found > now + SKEW:
            return f"{name} is in the future: {text}"
    first, second = read.values()
    is_reversed = first is not None and second is not None and second < first - SKEW
    return f"status.startTime is before the creation: {started}" if is_reversed else ""


def _times(reading: ClusterReading) -> Iterator[datetime]:
    for obj in (*reading.requests.values(), *reading.fleet):
        status = obj.get("status") or {}
        conditions = (one.get("lastHeartbeatTime") for one in status.get("conditions") or ())
        for text in ((obj.get("metadata") or {}).get("creationTimestamp"), status.get("startTime"), *conditions):
            if (found := time_of(text)) is not None:
                yield found


def time_of(text: object) -> datetime | None:
    """A time of the API; None if it is none."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _facts(obj: Json, pod: Pod) -> PodFacts:
    return PodFacts(
        pod,
        requests_of(obj),
        integer(inner(obj, "spec", ""), "priority", "spec"),
        _owner(obj),
        string_map(inner(obj, "metadata", ""), "labels", "metadata"),
        time_of(inner(obj, "status", "").get("startTime")),
        foreign_gang(inner(obj, "metadata", "")),
    )


def _budget(obj: Json) -> Budget:
    metadata = inner(obj, "metadata", "")
    namespace, name = (string(metadata, field, "metadata") for field in ("namespace", "name"))
    selector = label_selector(inner(obj, "spec", ""), "selector", "spec")
    allowed = integer(inner(obj, "status", ""), "disruptionsAllowed", "status")
    return Budget(f"{namespace}/{name}", namespace, selector, allowed)


def _owner(obj: Json) -> tuple[str, str]:
    references = many(inner(obj, "metadata", ""), "ownerReferences", "metadata", lambda one, _: one)
    own = next((one for one in references if one.get("controller") is True), {})
    return str(own.get("kind") or ""), str(own.get("name") or "")
