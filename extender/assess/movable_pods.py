"""Which running pods may be restarted to make room, what that costs, and why the others stay.

Pods that share a claim go together, and so do all pods of a group; a Job, a JobSet or the like counts as one.
`ClusterFacts` has of each pod and node only what the advice needs. Objects are added to it one after the other, and
none of them is kept: a cluster may have many thousands of pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from extender.allocation import Snapshot, tolerates
from extender.api.fields import Json, inner, integer, many, naming, need, string, string_map
from extender.api.foreign_gangs import ForeignGang, foreign_gang
from extender.api.object_meta import ObjectKey, key_of
from extender.api.pod_amounts import Amounts, allocatable_of, requests_of
from extender.api.pod_groups import JOB_KINDS, GroupKey, GroupSource
from extender.api.pods import SCHEDULER, LabelSelector, Pod, decode_pod, label_selector
from extender.api.resource_claims import Claim
from extender.assess.cluster_reading import BUDGET, JOB, ClusterReading, time_of
from extender.assess.gang_spread import group_of
from extender.base.text_limits import counted, first_few
from extender.cache import ClusterCache
from extender.defrag import RESERVED, Restart, gpus_of

REPLICA_SET = "ReplicaSet"
_DEFAULT_LIMIT = 6  # failures, if a Job does not say how many
_TEMPLATE_HASH = "pod-template-hash"  # the label with which the name of a Deployment's ReplicaSet ends
_MAX_NAMED = 3  # Jobs in a sentence
_HOUR = 3600.0
CLAIM = "claim "  # begins what stays and is no pod
_OF_WANTED = "they are pods of the same group, job or owner as the wanted pods"
_OF_ENDED = "their pods have ended: Kubernetes frees the devices without a restart"
OTHER_SCHEDULER = "another scheduler places them, maybe on the devices that became free"


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


@dataclass(slots=True)
class Movable:
    """What may be restarted. `stays` has each reason for which other pods with devices stay, and these pods."""

    restarts: list[Restart] = field(default_factory=list)
    stays: dict[str, list[str]] = field(default_factory=dict)
    budgets: dict[str, int] = field(default_factory=dict)  # PodDisruptionBudget to the disruptions that it allows
    left: dict[str, Amounts] = field(default_factory=dict)  # of each node, what its pods leave
    ending: list[Restart] = field(default_factory=list)  # what ends by itself; without pods, if these have ended


@dataclass(frozen=True, slots=True)
class Terms:
    """Whose pods stay: above the priority, of the workloads `wanted`, of other schedulers unless `all_schedulers`."""

    now: datetime
    priority: int | None  # None: no priority is above it
    wanted: frozenset[Hashable] = frozenset()  # what the wanted pods belong to, see PodFacts.belongs_to
    all_schedulers: bool = False


def movable_pods(facts: ClusterFacts, snapshot: Snapshot, terms: Terms) -> Movable:
    """The pods of a cluster that may be restarted for pods of a priority."""
    return _Movable(facts, snapshot, terms).run()


class _Movable:
    def __init__(self, facts: ClusterFacts, snapshot: Snapshot, terms: Terms) -> None:
        self._facts = facts
        self._snapshot = snapshot
        self._terms = terms
        self._found = Movable(budgets={budget.name: budget.allowed for budget in facts.budgets}, left=facts.left())
        self._budgets: dict[str, list[Budget]] = {}  # by namespace
        for budget in facts.budgets:
            self._budgets.setdefault(budget.namespace, []).append(budget)
        self._known: dict[str, PodFacts] = {**facts.others, **facts.pods}
        self._pods: dict[str, Pod] = {uid: one.pod for uid, one in facts.pods.items() if one.pod.node_name}
        self._of_groups: dict[tuple[str, str], list[str]] = {}  # namespace and PodGroup to the UIDs of its pods
        for uid, pod in self._pods.items():
            self._of_groups.setdefault((pod.key.namespace, pod.group), []).append(uid)
        self._unions: dict[Hashable, Hashable] = {}

    def run(self) -> Movable:
        """Read it all."""
        self._add_pods_of_jobs()
        claims = [claim for claim in self._snapshot.claims.values() if _has_devices(claim)]
        for pod in self._pods.values():
            for group in (group_of(pod), self._known[pod.uid].gang):
                if group is not None:
                    self._unite(pod.uid, group)
        users = {claim.key: list(self._users(claim)) for claim in claims}
        for claim in claims:
            for uid in self._pods.keys() & set(users[claim.key]):
                self._unite(uid, claim.key)
        parts: dict[Hashable, tuple[dict[str, Pod], list[Claim]]] = {}
        for pod in self._pods.values():
            parts.setdefault(self._root(pod.uid), ({}, []))[0][pod.uid] = pod
        for claim in claims:
            others = {uid for uid in users[claim.key] if uid not in self._pods}
            if others and others <= self._facts.ended:
                self._stay(_OF_ENDED, [f"{CLAIM}{claim.key}"])
            elif others or not users[claim.key]:
                self._stay("they are reserved for no pod that was read", [f"{CLAIM}{claim.key}"])
            parts.setdefault(self._root(claim.key), ({}, []))[1].append(claim)
        for pods, own in parts.values():
            if pods and own:
                self._add(sorted(pods.values(), key=lambda pod: pod.key), own)
        self._add_ending(sorted(claims, key=lambda claim: claim.key), users)
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
                yield from self._of_groups.get((claim.key.namespace, one.name), [""])

    def _add_pods_of_jobs(self) -> None:
        """The pods without devices of Jobs and gangs that have some with devices: a launcher goes with its workers."""
        known = [self._known[uid] for uid in self._pods]
        keys = {key for one in known for key in (*one.pod.jobs, one.gang)} - {None}
        for uid, one in self._facts.others.items():
            if not keys.isdisjoint((*one.pod.jobs, one.gang)):
                self._pods[uid] = one.pod

    def _add_ending(self, claims: Iterable[Claim], users: Mapping[ObjectKey, Sequence[str]]) -> None:
        """What becomes free by itself: devices of claims, with the pods that end, and what other pods have that end.

        A pod is in one of them alone.
        """
        seen = set[str]()
        for claim in claims:
            left = [uid for uid in users[claim.key] if uid not in self._facts.ended]
            pods = [self._pods[uid] for uid in left if uid in self._pods and self._pods[uid].deleting]
            if users[claim.key] and len(pods) == len(left):
                own = tuple(pod for pod in pods if pod.uid not in seen)
                seen.update(left)
                self._found.ending.append(self._ending(f"{CLAIM}{claim.key}", own, (claim,)))
        for uid, one in self._known.items():
            if one.pod.deleting and one.pod.node_name and uid not in seen:
                self._found.ending.append(self._ending(f"pod {one.pod.key}", (one.pod,), ()))

    def _ending(self, name: str, pods: tuple[Pod, ...], claims: tuple[Claim, ...]) -> Restart:
        amounts = {pod.uid: self._known[pod.uid].amounts for pod in pods}
        return Restart(name, pods, claims, sum(map(gpus_of, claims)), 0.0, requests=amounts)

    # -- budgets ---------------------------------------------------------------------------------------------

    def _protecting(self, pod: Pod) -> Iterator[str]:
        labels = self._known[pod.uid].labels
        for one in self._budgets.get(pod.key.namespace, ()):
            if one.selector is not None and one.selector.matches(labels):
                yield one.name

    # -- one restart -----------------------------------------------------------------------------------------

    def _stay(self, why: str, names: Iterable[str]) -> None:
        self._found.stays.setdefault(why, []).extend(names)

    def _add(self, pods: list[Pod], claims: list[Claim]) -> None:
        group = next((key for pod in pods if (key := group_of(pod)) is not None), None)
        gang = next((own for pod in pods if (own := self._known[pod.uid].gang) is not None), None)
        names = [str(pod.key) for pod in pods]
        if not self._terms.wanted.isdisjoint(key for pod in pods for key in self._known[pod.uid].belongs_to):
            return self._stay(_OF_WANTED, names)
        if why := next(filter(None, map(self._why_it_stays, pods)), ""):
            together = " (or a pod that goes with them)" if len(pods) > 1 else ""
            return self._stay(f"{why}{together}", names)
        budgets = Counter(budget for pod in pods for budget in self._protecting(pod))
        for budget, count in budgets.items():
            allowed = self._found.budgets[budget]
            if allowed < count:
                return self._stay(f"PodDisruptionBudget {budget} allows {counted(allowed, 'disruption')}", names)
        if any(uid not in self._pods for claim in claims for uid in self._users(claim)):
            return None  # the claim is named already
        known = [self._known[pod.uid] for pod in pods]
        owners = {one.pod.uid: one.owner for one in known}
        gpus = {claim.key: gpus_of(claim) for claim in claims}
        restart = Restart(
            _name(group, gang, pods),
            tuple(pods),
            tuple(sorted(claims, key=lambda claim: claim.key)),
            sum(gpus.values()),
            sum(count * self._hours(claim, owners) for claim in claims if (count := gpus[claim.key])),
            max(one.priority for one in known),
            ", ".join(sorted({" ".join(owner) for owner in owners.values()})),
            gang is not None or (group is not None and group.source is not GroupSource.JOB),
            budgets,
            {one.pod.uid: one.amounts for one in known},
        )
        return self._found.restarts.append(restart)

    def _hours(self, claim: Claim, owners: Mapping[str, tuple[str, str]]) -> float:
        """The hours since the first start of its pods; 0 for those of a ReplicaSet, which only serve."""
        now = self._terms.now
        began = [self._known[uid].began or now for uid in self._users(claim) if owners[uid][0] != REPLICA_SET]
        return max(((now - min(one, now)).total_seconds() / _HOUR for one in began), default=0.0)

    def _why_it_stays(self, pod: Pod) -> str:
        """Why a pod is never restarted; '' if it may be."""
        known = self._known[pod.uid]
        kind, _ = known.owner
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
        if self._terms.priority is not None and known.priority > self._terms.priority:
            return f"they have a priority above {self._terms.priority}"
        if any(tolerates(toleration, RESERVED) for toleration in pod.tolerations):
            return f"they tolerate the taint {RESERVED.key}, so they may take the devices again"
        return ""


def _has_devices(claim: Claim) -> bool:
    return claim.allocation is not None and any(not one.admin_access for one in claim.allocation.results)


def _name(group: GroupKey | None, gang: ForeignGang | None, pods: list[Pod]) -> str:
    if group is not None:
        kind = JOB_KINDS.get(group.source)
        return f"{kind} {group}" if kind else f"group {group} ({group.source.value})"
    if gang is not None:
        return f"group {gang} ({gang.key})"
    return f"pod {pods[0].key}" + (f" and {len(pods) - 1} that share its claim" if len(pods) > 1 else "")
