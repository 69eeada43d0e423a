"""What berth defrag knows of a cluster: objects in a cache, and of each pod and node only what the advice needs.

Objects are added one after the other, and none of them is kept: a cluster may have many thousands of pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from extender.api.fields import Json, inner, integer, many, naming, need, string, string_map
from extender.api.foreign_gangs import ForeignGang, foreign_gang
from extender.api.object_meta import ObjectKey, key_of
from extender.api.pod_affinity import LabelSelector, label_selector
from extender.api.pod_amounts import Amounts, allocatable_of, requests_of
from extender.api.pod_groups import JOB_KINDS
from extender.api.pods import Pod, decode_pod
from extender.assess.cluster_reading import BUDGET, JOB, ClusterReading
from extender.base.text_limits import counted, first_few, shown
from extender.cache import ClusterCache

_SKEW = timedelta(minutes=6)  # of clocks: less than what GPU-hours are rounded to
REPLICA_SET = "ReplicaSet"
_DEFAULT_LIMIT = 6  # failures, if a Job does not say how many
_TEMPLATE_HASH = "pod-template-hash"  # the label with which the name of a Deployment's ReplicaSet ends
_MAX_NAMED = 3  # Jobs in a sentence


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


def clock_faults(reading: ClusterReading, now: datetime) -> str:
    """What is said of times of pods with devices that cannot be right; '' without any."""
    pods = ((inner(obj, "metadata", ""), clock_fault(obj, now)) for obj in reading.requests.values())
    found = [(f"{metadata.get('namespace')}/{metadata.get('name')}", fault) for metadata, fault in pods if fault]
    if not found:
        return ""
    name, fault = min(found)
    more = f", and those of {counted(len(found) - 1, 'other pod')} cannot, either" if len(found) > 1 else ""
    return f"the times of pod {name} cannot be right: {fault}{more}: how old pods are may be wrong"


def clock_fault(pod: Json, now: datetime) -> str:
    """Of the creation and the start of a pod the first that cannot be right, and why; '' if both can."""
    created, started = inner(pod, "metadata", "").get("creationTimestamp"), inner(pod, "status", "").get("startTime")
    for name, text in (("metadata.creationTimestamp", created), ("status.startTime", started)):
        found = time_of(text)
        if text and found is None:
            return f"{name} is no time: {shown(text)}"
        if found is not None and found > now + _SKEW:
            return f"{name} is in the future: {text}"
    first, second = time_of(created), time_of(started)
    is_reversed = first is not None and second is not None and second < first - _SKEW
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


# -- what restarts do to Jobs ----------------------------------------------------------------------------------------
# The Job controller counts a deleted pod as failed, and creates it again late. `kubectl delete` sets no condition
# DisruptionTarget, so a podFailurePolicy that ignores disruptions does not help.


class JobLimit(NamedTuple):
    """How many pods of a Job may fail, and how many did. `is_known`: nothing else decides, such as its indexes."""

    limit: int
    failed: int
    is_known: bool


def job_limit(obj: Json) -> tuple[ObjectKey, JobLimit]:
    """The limit of a Job. Raises WireError."""
    spec, failed = inner(obj, "spec", ""), integer(inner(obj, "status", ""), "failed", "status")
    limit = integer(spec, "backoffLimit", "spec") if "backoffLimit" in spec else _DEFAULT_LIMIT
    is_known = not spec.keys() & {"podFailurePolicy", "backoffLimitPerIndex"}
    return key_of(inner(obj, "metadata", "")), JobLimit(limit, failed, is_known)


def job_failures(deleted: Iterable[ObjectKey], limits: Mapping[ObjectKey, JobLimit]) -> str:
    """What is said of Jobs, of which each is given once for each pod that is deleted; '' without Jobs."""
    pods = Counter(deleted)
    if not pods:
        return ""
    fails, unknown = list[str](), list[str]()
    for key, count in sorted(pods.items()):
        of = limits.get(key)
        if of is None or not of.is_known:
            unknown.append(f"{JOB} {key}")
        elif of.failed + count > of.limit:
            fails.append(f"{JOB} {key} (backoffLimit {of.limit}, {counted(of.failed, 'pod')} failed before)")
    said = [f"{first_few(fails, _MAX_NAMED)} {'fails' if len(fails) == 1 else 'fail'} then"] * bool(fails)
    said += [f"{first_few(unknown, _MAX_NAMED)} may fail, look at backoffLimit"] * bool(unknown)
    told = f": {'; '.join(said)}" if said else ""
    return (
        f"a Job creates deleted pods again some seconds later, when others may have their places, and counts them as "
        f"failed{told}"
    )
