"""Which running pods may be restarted to make room, what that costs, and why the others stay.

Pods that share a claim go together, and so do all pods of a group; a Job, a JobSet or the like counts as one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from extender.allocation import Snapshot, tolerates
from extender.api.foreign_gangs import ForeignGang
from extender.api.object_meta import ObjectKey
from extender.api.pod_amounts import Amounts
from extender.api.pod_groups import JOB_KINDS, GroupKey, GroupSource
from extender.api.pods import SCHEDULER, Pod
from extender.api.resource_claims import Claim
from extender.assess.gang_spread import group_of
from extender.assess.pod_facts import REPLICA_SET, Budget, ClusterFacts, PodFacts
from extender.base.text_limits import counted
from extender.defrag import RESERVED, Restart, gpus_of

_HOUR = 3600.0
CLAIM = "claim "  # begins what stays and is no pod
_OF_WANTED = "they are pods of the same group, job or owner as the wanted pods"
OTHER_SCHEDULER = "another scheduler places them, maybe on the devices that became free"


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
            if why := self._why_claimed([uid for uid in users[claim.key] if uid not in self._pods], users[claim.key]):
                self._stay(why, [f"{CLAIM}{claim.key}"])
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

    def _why_claimed(self, others: list[str], users: list[str]) -> str:
        """Why no restart frees the devices of a claim that `others` of its users have; '' if there are none."""
        if users and not others:
            return ""
        if users and self._facts.ended.issuperset(others):
            return "their pods have ended: Kubernetes frees the devices without a restart"
        return "they are reserved for no pod that was read"

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
