"""Which running pods may be restarted to make room, what that costs, and why the others stay.

Pods that share a claim go together, and so do all pods of a group; a Job or a JobSet counts as one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from extender.allocation import Snapshot
from extender.api.fields import Json, inner, integer, many, string, string_map
from extender.api.pod_affinity import LabelSelector, label_selector
from extender.api.pod_amounts import Amounts, allocatable_of, requests_of
from extender.api.pod_groups import GroupKey, GroupSource, jobs_of
from extender.api.pods import SCHEDULER, Pod, decode_pod
from extender.api.resource_claims import Claim
from extender.assess.cluster_reading import ClusterReading
from extender.assess.gang_spread import group_of
from extender.base.berth_errors import WireError
from extender.defrag import Restart
from extender.vendors import GPU, driver_of

T = TypeVar("T")
_HOUR = 3600.0
_SERVES = "ReplicaSet"  # its pods lose nothing but the time of their start
_KINDS = {GroupSource.JOB_SET: "JobSet", GroupSource.JOB: "Job"}
OTHER_SCHEDULER = "another scheduler places them, maybe on the devices that became free"


@dataclass(slots=True)
class Movable:
    """What may be restarted. `stays` has each reason for which other pods with devices stay, and these pods."""

    restarts: list[Restart] = field(default_factory=list)
    stays: dict[str, list[str]] = field(default_factory=dict)
    budgets: dict[str, int] = field(default_factory=dict)  # PodDisruptionBudget to the disruptions that it allows
    left: dict[str, Amounts] = field(default_factory=dict)  # of each node, what its pods leave


@dataclass(frozen=True, slots=True)
class Terms:
    """Whose pods stay: those above the priority, those of `group`, and those of other schedulers unless `all_`."""

    now: datetime
    priority: int | None  # None: no priority is above it
    group: GroupKey | None = None
    all_schedulers: bool = False


def movable_pods(reading: ClusterReading, snapshot: Snapshot, terms: Terms) -> Movable:
    """The pods of a cluster that may be restarted for pods of a priority."""
    return _Movable(reading, snapshot, terms).run()


def time_of(reading: ClusterReading) -> datetime:
    """The newest time that the objects have: a file does not say when it was written."""
    return max(_times(reading), default=datetime.fromisoformat("1970-01-01T00:00:00+00:00"))


def running_of(reading: ClusterReading) -> list[Json]:
    """The pods with devices that have a node and have not ended, as they were read."""
    return [reading.requests[pod.uid] for pod in reading.pods if pod.node_name]


def _times(reading: ClusterReading) -> Iterator[datetime]:
    for obj in (*reading.requests.values(), *reading.fleet):
        status = obj.get("status") or {}
        conditions = (one.get("lastHeartbeatTime") for one in status.get("conditions") or ())
        for text in ((obj.get("metadata") or {}).get("creationTimestamp"), status.get("startTime"), *conditions):
            if (found := _time(text)) is not None:
                yield found


def _time(text: object) -> datetime | None:
    """A time of the API; None if it is none."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


@dataclass(frozen=True, slots=True)
class _Budget:
    name: str
    namespace: str
    selector: LabelSelector | None


class _Movable:
    def __init__(self, reading: ClusterReading, snapshot: Snapshot, terms: Terms) -> None:
        self._reading = reading
        self._snapshot = snapshot
        self._terms = terms
        self._found = Movable()
        self._budgets: dict[str, list[_Budget]] = {}  # by namespace
        for budget in self._read_budgets():
            self._budgets.setdefault(budget.namespace, []).append(budget)
        self._pods: dict[str, Pod] = {pod.uid: pod for pod in reading.pods if pod.node_name}
        self._objects: dict[str, Json] = dict(reading.requests)
        self._amounts: dict[object, Amounts] = {}  # what each bound pod requests, by UID
        self._unions: dict[Hashable, Hashable] = {}

    def run(self) -> Movable:
        """Read it all."""
        self._add_pods_of_jobs()
        self._add_amounts()
        claims = [claim for claim in self._snapshot.claims.values() if _has_devices(claim)]
        for pod in self._pods.values():
            if (group := group_of(pod)) is not None:
                self._unite(pod.uid, group)
        users = {claim.key: list(self._users(claim)) for claim in claims}
        for claim in claims:
            for uid in self._pods.keys() & set(users[claim.key]):
                self._unite(uid, claim.key)
        parts: dict[Hashable, tuple[dict[str, Pod], list[Claim]]] = {}
        for pod in self._pods.values():
            parts.setdefault(self._root(pod.uid), ({}, []))[0][pod.uid] = pod
        for claim in claims:
            if not users[claim.key] or any(uid not in self._pods for uid in users[claim.key]):
                self._stay("their claims are reserved for pods that were not read", [f"claim {claim.key}"])
            parts.setdefault(self._root(claim.key), ({}, []))[1].append(claim)
        for pods, own in parts.values():
            if pods and own:
                self._add(sorted(pods.values(), key=lambda pod: pod.key), own)
        return self._found

    # -- pods that go together -------------------------------------------------------------------------------

    def _root(self, key: Hashable) -> Hashable:
        while (above := self._unions.get(key, key)) != key:
            key = above
        return key

    def _unite(self, one: Hashable, other: Hashable) -> None:
        first, second = self._root(one), self._root(other)
        if first != second:
            self._unions[first] = second

    def _users(self, claim: Claim) -> Iterator[str]:
        """The UIDs of the pods for which a claim is reserved; '' for a PodGroup of which no pod is known."""
        for one in claim.reserved_for:
            if one.resource == "pods":
                yield one.uid
            else:
                pods = self._pods.values()
                own = [pod.uid for pod in pods if pod.group == one.name and pod.key.namespace == claim.key.namespace]
                yield from own or [""]

    def _add_pods_of_jobs(self) -> None:
        """The pods without devices of Jobs that have some with devices: a launcher goes with its workers."""
        jobs = {key for pod in self._pods.values() for key in pod.jobs}
        for obj in self._reading.others:
            if not jobs.isdisjoint(jobs_of(inner(obj, "metadata", ""))):
                pod = decode_pod(obj)
                self._pods[pod.uid], self._objects[pod.uid] = pod, obj

    # -- what they leave -------------------------------------------------------------------------------------

    def _add_amounts(self) -> None:
        nodes = [obj for obj in self._reading.fleet if obj["kind"] == "Node"]
        left = {obj["metadata"]["name"]: read(obj, allocatable_of) for obj in nodes}
        for obj in (*self._reading.others, *running_of(self._reading)):
            name, uid = str(obj["spec"]["nodeName"]), (obj.get("metadata") or {}).get("uid")
            self._amounts[uid] = amounts = read(obj, requests_of)
            if name in left:
                left[name] = left[name].minus(amounts)
        self._found.left = left

    # -- budgets ---------------------------------------------------------------------------------------------

    def _read_budgets(self) -> Iterator[_Budget]:
        for obj in self._reading.budgets:
            budget = read(obj, _budget)
            allowed = read(obj, lambda one: integer(inner(one, "status", ""), "disruptionsAllowed", "status"))
            self._found.budgets[budget.name] = allowed
            yield budget

    def _protecting(self, pod: Pod) -> Iterator[str]:
        labels = string_map(inner(self._objects[pod.uid], "metadata", ""), "labels", "metadata")
        for one in self._budgets.get(pod.key.namespace, ()):
            if one.selector is not None and one.selector.matches(labels):
                yield one.name

    # -- one restart -----------------------------------------------------------------------------------------

    def _stay(self, why: str, names: Iterable[str]) -> None:
        self._found.stays.setdefault(why, []).extend(names)

    def _add(self, pods: list[Pod], claims: list[Claim]) -> None:
        group = next((key for pod in pods if (key := group_of(pod)) is not None), None)
        names = [str(pod.key) for pod in pods]
        if group is not None and group == self._terms.group:
            return self._stay("they are pods of the same group", names)
        budgets: dict[str, int] = {}
        for pod in pods:
            if why := self._why_it_stays(pod):
                together = " (or a pod that goes with them)" if len(pods) > 1 else ""
                return self._stay(f"{why}{together}", names)
            for budget in self._protecting(pod):
                budgets[budget] = budgets.get(budget, 0) + 1
        for budget, count in budgets.items():
            allowed = self._found.budgets[budget]
            if allowed < count:
                return self._stay(f"PodDisruptionBudget {budget} allows {allowed} disruptions", names)
        if any(uid not in self._pods for claim in claims for uid in self._users(claim)):
            return None  # the claim is named already
        owners = {pod.uid: _owner(self._objects[pod.uid]) for pod in pods}
        gpus = {claim.key: gpus_of(claim) for claim in claims}
        restart = Restart(
            self._name(group, pods),
            tuple(pods),
            tuple(sorted(claims, key=lambda claim: claim.key)),
            sum(gpus.values()),
            sum(count * self._hours(claim, owners) for claim in claims if (count := gpus[claim.key])),
            max(priority_of(self._objects[pod.uid]) for pod in pods),
            ", ".join(sorted({" ".join(owner) for owner in owners.values()})),
            len(pods) > 1,
            budgets,
            {pod.uid: self._amounts[pod.uid] for pod in pods},
        )
        return self._found.restarts.append(restart)

    def _name(self, group: GroupKey | None, pods: list[Pod]) -> str:
        if group is not None:
            kind = _KINDS.get(group.source, "group")
            return f"{kind} {group}" if kind != "group" else f"group {group} ({group.source.value})"
        return f"pod {pods[0].key}" + (f" and {len(pods) - 1} that share its claim" if len(pods) > 1 else "")

    def _hours(self, claim: Claim, owners: Mapping[str, tuple[str, str]]) -> float:
        """The hours since the first start of its pods; 0 if all of them only serve."""
        started = [self._started(uid) for uid in self._users(claim) if owners[uid][0] != _SERVES]
        return max(((self._terms.now - one).total_seconds() / _HOUR for one in started if one is not None), default=0.0)

    def _started(self, uid: str) -> datetime | None:
        obj = self._objects[uid]
        started = _time(inner(obj, "status", "").get("startTime"))
        return min(started or _time(self._pods[uid].created) or self._terms.now, self._terms.now)

    def _why_it_stays(self, pod: Pod) -> str:
        """Why a pod is never restarted; '' if it may be."""
        obj = self._objects[pod.uid]
        kind, _ = _owner(obj)
        if pod.deleting:
            return "they terminate: their devices become free by themselves"
        if kind == "Node":
            return "they are mirror pods of a kubelet"
        if kind == "DaemonSet":
            return "a DaemonSet has them on each node"
        if not kind:
            return "no controller owns them, so nothing creates them again"
        if pod.scheduler != SCHEDULER and not self._terms.all_schedulers:
            return OTHER_SCHEDULER
        if self._terms.priority is not None and priority_of(obj) > self._terms.priority:
            return f"they have a priority above {self._terms.priority}"
        return ""


def read(obj: Json, what: Callable[[Json], T]) -> T:
    """A part of an object. Raises WireError that names the object."""
    try:
        return what(obj)
    except WireError as error:
        where = f"{obj.get('kind')} {(obj.get('metadata') or {}).get('name')}"
        raise WireError(f"{where}: {error.path}", error.problem) from error


def _budget(obj: Json) -> _Budget:
    metadata = inner(obj, "metadata", "")
    namespace, name = (string(metadata, field, "metadata") for field in ("namespace", "name"))
    return _Budget(f"{namespace}/{name}", namespace, label_selector(inner(obj, "spec", ""), "selector", "spec"))


def _has_devices(claim: Claim) -> bool:
    return claim.allocation is not None and any(not one.admin_access for one in claim.allocation.results)


def gpus_of(claim: Claim) -> int:
    """GPUs of a claim; a part of one counts as one."""
    results = claim.allocation.results if claim.allocation is not None else ()
    return len({one.device for one in results if not one.admin_access and driver_of(one.device.driver).kind == GPU})


def priority_of(obj: Json) -> int:
    """The priority of a pod as it was read."""
    found = inner(obj, "spec", "").get("priority")
    return found if isinstance(found, int) else 0


def _owner(obj: Json) -> tuple[str, str]:
    """Kind and name of the controller; ('', '') if there is none."""
    references = many(inner(obj, "metadata", ""), "ownerReferences", "metadata", lambda one, _: one)
    own = next((one for one in references if one.get("controller") is True), {})
    return str(own.get("kind") or ""), str(own.get("name") or "")
