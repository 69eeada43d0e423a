"""Pod groups: how a pod names its group, the objects that say how large a group is, and trees of such objects.

A group with a minimum of two or more members is a gang: Berth places and binds that many members together, or none.
For the members of a group without a minimum, Berth only prefers nodes that are near each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from typing import NamedTuple

from extender.api.asked_subgroups import (
    FOREIGN_SUBGROUPS,
    NO_SUBGROUPS,
    OWN_SUBGROUPS,
    REPLICATED_JOB,
    AskedSubGroups,
    GroupAround,
    SubGroupIndex,
    asked_subgroups,
    notes_of_group,
)
from extender.api.fields import Json, get, inner, integer, many, need, string
from extender.api.foreign_gangs import FOREIGN_GANGS
from extender.api.group_topology import (
    FOREIGN_TOPOLOGY,
    NO_TOPOLOGY,
    OWN_TOPOLOGY,
    AskedTopology,
    Level,
    asked_topology,
)
from extender.api.label_domains import natural
from extender.api.resource_claims import SCHEDULING_GROUP, Consumer, PodClaim, decode_pod_claim
from extender.base.text_limits import cut, shown

MINIMUM = "berth.dev/group-min"
_TIMEOUT = "berth.dev/group-timeout"
_KUEUE_TOTAL = "kueue.x-k8s.io/pod-group-total-count"
_LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"
LWS_NAME = "leaderworkerset.sigs.k8s.io/name"
_LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-index"
LWS_EXCLUSIVE = "leaderworkerset.sigs.k8s.io/exclusive-topology"
_PARENT = "parentCompositePodGroupName"
_JOB_INDEX = "jobset.sigs.k8s.io/job-global-index"
_JOB_INDEX_IN_REPLICATED_JOB = "jobset.sigs.k8s.io/job-index"
# Labels and annotations that have the pod's index in its group; the first that a pod has counts.
_RANKS = (
    "batch.kubernetes.io/job-completion-index",
    "leaderworkerset.sigs.k8s.io/worker-index",
    "kueue.x-k8s.io/pod-group-pod-index",
    "apps.kubernetes.io/pod-index",
)
OWN_ANNOTATIONS = (MINIMUM, *OWN_TOPOLOGY, *OWN_SUBGROUPS, _TIMEOUT)
_MAX_MEMBERS = 100_000
_MAX_NAME = 253
_MAX_SECONDS = 86_400
JOB_STRIDE = 1_000_000  # ranks of one job of a JobSet
_GROUP_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_NUMBER = re.compile(r"[0-9]{1,9}")
_DURATION = re.compile(r"([0-9]{1,6})(s|m|h)")
_SECONDS = {"s": 1, "m": 60, "h": 3600}


class GroupSource(Enum):
    """The field, label or annotation by which a pod names its group. The first one that a pod has counts.

    A pod does not name a CompositePodGroup itself: its PodGroup is below it, see GroupTrees.
    The last one is a parameter of a claim for a channel of a ComputeDomain: such a group has no minimum.
    """

    BERTH = "berth.dev/group"
    CORE = "spec.schedulingGroup"
    COMPOSITE = "spec.parentCompositePodGroupName"
    SCHEDULER_PLUGINS = "scheduling.x-k8s.io/pod-group"
    KUEUE = "kueue.x-k8s.io/pod-group-name"
    LEADER_WORKER_SET = "leaderworkerset.sigs.k8s.io/group-key"
    JOB_SET = "jobset.sigs.k8s.io/jobset-name"
    KUBEFLOW = "training.kubeflow.org/job-name"
    RAY = "ray.io/cluster"
    VOLCANO = "volcano.sh/job-name"
    JOB = "batch.kubernetes.io/job-name"
    COMPUTE_DOMAIN = "domainID"


class GroupKey(NamedTuple):
    """A group. Groups that pods name in different ways are different groups, even if the names are equal."""

    namespace: str
    source: GroupSource
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def on_claims(self) -> str:
        """How the annotation `berth.dev/group` of a claim names the group of its pod."""
        return self.name if self.source is GroupSource.BERTH else f"{self.source.value}={self.name}"


def name_on_claims(text: str) -> str:
    """The name of the group that GroupKey.on_claims gave."""
    prefix = next((f"{source.value}=" for source in GroupSource if text.startswith(f"{source.value}=")), "")
    return text.removeprefix(prefix)


@dataclass(frozen=True, slots=True)
class Membership:
    """The facts that a pod states about its group. The group's object may have the minimum, see GroupPolicy."""

    key: GroupKey
    minimum: int = 0  # members that must be placed together; 0 if the pod does not set it
    rank: int | None = None  # the pod's index in its group; None if unknown
    topology: AskedTopology = NO_TOPOLOGY
    subgroups: AskedSubGroups = NO_SUBGROUPS
    timeout_seconds: float = 0.0  # how long the members may wait for each other at bind; 0 if the pod does not set it
    problem: str = ""  # which annotation is invalid, with its value; '' if none
    owner: str = ""  # name of the object that has the GroupPolicy: the group's, or the LeaderWorkerSet's
    pod_uid: str = ""  # pods without an index may be alike in all else
    lacks: str = ""  # a group of the tree of groups that does not exist, and that the gang needs; '' for none

    @property
    def policy_key(self) -> GroupKey:
        """The key of the group's policy in the cache."""
        return self.key._replace(name=self.owner)

    @property
    def index_on_claims(self) -> str:
        """The value of GROUP_PART_ANNOTATION for the claims of the pod; '' if its sub-groups restrict no plan."""
        if not self.subgroups.constrain:
            return ""
        in_slice = bool(self.subgroups.slices)
        return str(SubGroupIndex(self.subgroups.name, self.rank if in_slice else None, in_slice))


@dataclass(frozen=True, slots=True)
class GroupPolicy:
    """The policy of a group's object: a PodGroup (scheduling.k8s.io, scheduling.x-k8s.io) or a LeaderWorkerSet."""

    minimum: int = 0  # 0: the object names no minimum, so the group is no gang
    topology_label: str = ""  # all members must be on nodes with one value of this label; '' for no such constraint
    timeout_seconds: float = 0.0  # 0 if the object does not set it
    sequential: bool = False  # whether members are created only after others run: never a gang
    claims: tuple[PodClaim, ...] = ()  # of a PodGroup of scheduling.k8s.io, see PodGroup
    parent: str = ""  # the CompositePodGroup that the group is below; '' for none
    groups: int = 0  # child groups that a CompositePodGroup needs; 0 if its policy is basic


def minimum_of(membership: Membership, policy: GroupPolicy | None) -> int:
    """How many members must run together, by what a pod and the group's object say; 0 if the group is no gang."""
    if membership.key.source is GroupSource.LEADER_WORKER_SET and (policy is None or policy.sequential):
        return 0  # the leader may have to run before its workers exist
    minimum = membership.minimum or (policy.minimum if policy is not None else 0)
    return minimum if minimum > 1 else 0


@dataclass(frozen=True, slots=True)
class PodGroup:
    """A scheduling.k8s.io PodGroup. A claim entry of a member pod that equals one of `claims` belongs to the group."""

    name: str
    uid: str
    claims: tuple[PodClaim, ...] = ()

    @property
    def consumer(self) -> Consumer:
        """The group as an entry of status.reservedFor."""
        return Consumer.of_pod_group(self.uid, self.name)


def decode_pod_group(obj: Json) -> PodGroup:
    """Decode a PodGroup (scheduling.k8s.io). Raises WireError if a field that it reads has the wrong type."""
    metadata = inner(obj, "metadata", "")
    name, uid = need(metadata, "name", "metadata"), string(metadata, "uid", "metadata")
    return PodGroup(name, uid, many(inner(obj, "spec", ""), "resourceClaims", "spec", decode_pod_claim))


IN_TREE = (GroupSource.CORE, GroupSource.COMPOSITE)  # where they are served, kube-scheduler plans these gangs, too
_LABELS = (GroupSource.SCHEDULER_PLUGINS, GroupSource.KUEUE, GroupSource.LEADER_WORKER_SET)
_SIZES = {GroupSource.KUEUE: _KUEUE_TOTAL, GroupSource.LEADER_WORKER_SET: _LWS_SIZE}
# Annotations of pods, besides berth.dev/…. `berth snapshot` keeps them: a source may be an annotation.
READ_ANNOTATIONS = frozenset(
    {
        *(source.value for source in GroupSource),
        *_SIZES.values(),
        *_RANKS,
        *FOREIGN_TOPOLOGY,
        *FOREIGN_SUBGROUPS,
        *FOREIGN_GANGS,
    }
)
# What the sources of jobs name. A launcher has the labels of a Job, too, so that comes last. Volcano's annotation
# scheduling.k8s.io/group-name is none of them: Volcano writes it to the pods of Deployments, too.
JOB_KINDS = {
    GroupSource.JOB_SET: "JobSet",
    GroupSource.KUBEFLOW: "Kubeflow job",
    GroupSource.RAY: "RayCluster",
    GroupSource.VOLCANO: "Volcano job",
    GroupSource.JOB: "Job",
}


def membership_of(metadata: Json, scheduling_group: str) -> Membership | None:
    """The group that a pod names; None if it names none. `scheduling_group` is spec.schedulingGroup.podGroupName.

    An annotation that is not valid is a problem of the pod, not of the object: the result says so. Values that are not
    strings count as absent here; `decode_pod` rejects them.
    """
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if type(labels) is not dict or type(notes) is not dict:
        return None
    named = _name(labels, notes, scheduling_group)
    own = next((key for key in OWN_ANNOTATIONS if key in notes), None)
    namespace = metadata.get("namespace") or ""
    if named is None:
        if own is None:
            return None
        problem = f"pod annotation {own}: the pod names no group, as {GroupSource.BERTH.value} does"
        return Membership(GroupKey(namespace, GroupSource.BERTH, ""), problem=problem)
    source, name = named
    key = GroupKey(namespace, source, name)
    try:
        _check_name(source, name)
        return Membership(
            key,
            _minimum(source, notes),
            _rank(labels, notes, metadata),
            asked_topology(notes_of_group(notes, labels)),
            _subgroups(labels, notes, name),
            _timeout(notes),
            owner=str(labels.get(LWS_NAME) or "") if source is GroupSource.LEADER_WORKER_SET else name,
            pod_uid=str(metadata.get("uid") or ""),
        )
    except ValueError as error:
        return Membership(GroupKey(namespace, source, cut(name)), problem=str(error))


def jobs_of(metadata: Json) -> tuple[GroupKey, ...]:
    """The jobs of a pod, by its labels, see JOB_KINDS. They are groups only with an annotation about a group."""
    labels, namespace = metadata.get("labels") or {}, metadata.get("namespace") or ""
    named = ((source, labels.get(source.value)) for source in JOB_KINDS) if type(labels) is dict else ()
    return tuple(GroupKey(namespace, source, name) for source, name in named if type(name) is str and name)


def _name(labels: Mapping[str, object], notes: Mapping[str, object], core: str) -> tuple[GroupSource, str] | None:
    named: dict[GroupSource, object] = {GroupSource.BERTH: notes.get(GroupSource.BERTH.value), GroupSource.CORE: core}
    named |= {source: labels.get(source.value) for source in _LABELS}
    if any(key in notes for key in OWN_ANNOTATIONS):  # the pods of other Jobs may have nothing to do with each other
        named |= {source: labels.get(source.value) for source in JOB_KINDS}
    for source, name in named.items():
        if type(name) is str and name:
            return source, (_leader(labels) if source is GroupSource.LEADER_WORKER_SET else "") or name
    return None


def _check_name(source: GroupSource, name: str) -> None:
    """Commands, URLs and the annotation of a claim separate a group's name from other words by '/' and '='."""
    if len(name) > _MAX_NAME:
        raise ValueError(f"pod annotation {source.value}: {shown(name)} has more than {_MAX_NAME} characters")
    if source is GroupSource.BERTH and not _GROUP_NAME.fullmatch(name):
        allowed = "letters, digits, '.', '_' and '-', with a letter or digit at both ends"
        raise ValueError(f"pod annotation {source.value}: {shown(name)} is no name of a group: use {allowed}")


def _leader(labels: Mapping[str, object]) -> str:
    """The name of the group's leader pod, which users know: the group key is a hash of it. '' if the labels lack it.

    With the group identity Hash, the index is that hash, and the result begins with the name of the LeaderWorkerSet.
    """
    owner, index = labels.get(LWS_NAME), labels.get(_LWS_GROUP)
    is_known = type(owner) is str and type(index) is str and owner and index
    return f"{owner}-{index}" if is_known else ""


def _minimum(source: GroupSource, notes: Mapping[str, object]) -> int:
    annotation = MINIMUM if MINIMUM in notes else _SIZES.get(source, MINIMUM)
    text = notes.get(annotation)
    if text is None:
        return 0
    if type(text) is not str or not _NUMBER.fullmatch(text) or not 1 <= int(text) <= _MAX_MEMBERS:
        raise ValueError(f"pod annotation {annotation}: {shown(text)} is not a number from 1 to {_MAX_MEMBERS}")
    return int(text)


def _rank(labels: Mapping[str, object], notes: Mapping[str, object], metadata: Json) -> int | None:
    """The pod's index. The digits of a name that the API server has completed are random."""
    for key in _RANKS:
        found = _number(labels.get(key, notes.get(key)))
        if found is not None:
            job = _number(labels.get(_JOB_INDEX))
            return found + (job or 0) * JOB_STRIDE
    name = metadata.get("name")
    end = re.search(r"[0-9]{1,9}$", name) if type(name) is str and not metadata.get("generateName") else None
    return int(end.group()) if end is not None else None


def _subgroups(labels: Mapping[str, object], notes: Mapping[str, object], group: str) -> AskedSubGroups:
    """The sub-groups of a pod, with the index at which their slices begin. Raises ValueError."""
    found = asked_subgroups(notes, labels, group)
    if not found.slices:
        return found
    first, pods, size = 0, _number(notes.get(_LWS_SIZE)), found.slices[0].size
    if pods is not None and pods % size and (pods - 1) % size == 0:
        first = 1  # the leader, of index 0, is in no slice
    job, own = _number(labels.get(_JOB_INDEX)), _number(labels.get(_JOB_INDEX_IN_REPLICATED_JOB))
    if job is not None and own is not None and found.name == labels.get(REPLICATED_JOB):
        first = max(job - own, 0) * JOB_STRIDE
    return replace(found, first=first)


def _number(text: object) -> int | None:
    return int(text) if type(text) is str and _NUMBER.fullmatch(text) else None


def _timeout(notes: Mapping[str, object]) -> float:
    text = notes.get(_TIMEOUT)
    if text is None:
        return 0.0
    found = _DURATION.fullmatch(text) if type(text) is str else None
    seconds = int(found.group(1)) * _SECONDS[found.group(2)] if found is not None else 0
    if not 1 <= seconds <= _MAX_SECONDS:
        raise ValueError(f"pod annotation {_TIMEOUT}: {shown(text)} is not a duration such as 30s or 5m, at most 24h")
    return float(seconds)


def _core_policy(spec: Json, _: Json) -> GroupPolicy:
    """Of a PodGroup of scheduling.k8s.io."""
    minimum = integer(_gang(spec), "minCount", "spec.schedulingPolicy.gang")
    claims = many(spec, "resourceClaims", "spec", decode_pod_claim)
    return GroupPolicy(_bounded(minimum), _constraint(spec), claims=claims, parent=string(spec, _PARENT, "spec"))


def _composite_policy(spec: Json, _: Json) -> GroupPolicy:
    """Of a CompositePodGroup."""
    groups = integer(_gang(spec), "minGroupCount", "spec.schedulingPolicy.gang")
    return GroupPolicy(topology_label=_constraint(spec), parent=string(spec, _PARENT, "spec"), groups=_bounded(groups))


def _gang(spec: Json) -> Json:
    return inner(inner(spec, "schedulingPolicy", "spec"), "gang", "spec.schedulingPolicy")


def _constraint(spec: Json) -> str:
    """The label of the topology constraint of a PodGroup or CompositePodGroup, which may have one; '' for none."""
    constraints = inner(spec, "schedulingConstraints", "spec")
    labels = many(constraints, "topology", "spec.schedulingConstraints", lambda one, path: need(one, "key", path))
    return labels[0] if labels else ""


def _scheduler_plugins_policy(spec: Json, _: Json) -> GroupPolicy:
    """Of a PodGroup of scheduling.x-k8s.io."""
    seconds = integer(spec, "scheduleTimeoutSeconds", "spec")
    minimum = _bounded(integer(spec, "minMember", "spec"))
    return GroupPolicy(minimum, timeout_seconds=float(min(max(seconds, 0), _MAX_SECONDS)))


def _leader_worker_set_policy(spec: Json, metadata: Json) -> GroupPolicy:
    """Of the groups of a LeaderWorkerSet.

    With startupPolicy LeaderReady the workers are created after the leader runs, and with an exclusive topology after
    it has a node (pod_controller.go of LeaderWorkerSet). Then the group is no gang.
    """
    is_exclusive = LWS_EXCLUSIVE in inner(metadata, "annotations", "metadata")
    size = get(inner(spec, "leaderWorkerTemplate", "spec"), "size", int, "spec.leaderWorkerTemplate", 1)
    is_late = get(spec, "startupPolicy", str, "spec", "LeaderCreated") == "LeaderReady"
    return GroupPolicy(_bounded(size), sequential=is_late or is_exclusive)


def leader_worker_set_marks(name: str, size: int) -> tuple[Json, Json]:
    """The labels and annotations by which pods of one replica of a LeaderWorkerSet name their group."""
    return {GroupSource.LEADER_WORKER_SET.value: name, LWS_NAME: name}, {_LWS_SIZE: str(size)}


@dataclass(frozen=True, slots=True)
class GroupObject:
    """A kind of object that has the policy of the groups of a source. Serve watches all kinds of GROUP_OBJECTS."""

    source: GroupSource
    kind: str
    api: str  # the API group
    plural: str
    versions: tuple[str, ...]  # the newest first; Berth watches the first that the API server serves
    read: Callable[[Json, Json], GroupPolicy]  # from the object's spec and metadata; raises WireError
    is_needed: bool  # where the API server serves the kind, pods without their object wait for it

    @property
    def resource(self) -> str:
        """The name of its watch. Kinds of several API groups may have one plural."""
        return self.plural if self.api == SCHEDULING_GROUP else f"{self.plural}.{self.api}"

    def decode(self, obj: Json) -> GroupPolicy:
        """The policy of an object of this kind. Raises WireError."""
        metadata = inner(obj, "metadata", "")
        need(metadata, "name", "metadata")
        return self.read(inner(obj, "spec", ""), metadata)


GROUP_OBJECTS = (
    # 1.37 serves v1beta1, 1.36 v1alpha2; off by default in both.
    GroupObject(
        GroupSource.CORE, "PodGroup", SCHEDULING_GROUP, "podgroups", ("v1beta1", "v1alpha2"), _core_policy,
        is_needed=True,
    ),
    # 1.37 serves v1alpha3, off by default. 1.38 makes it beta.
    GroupObject(
        GroupSource.COMPOSITE, "CompositePodGroup", SCHEDULING_GROUP, "compositepodgroups", ("v1beta1", "v1alpha3"),
        _composite_policy, is_needed=True,
    ),
    GroupObject(
        GroupSource.SCHEDULER_PLUGINS, "PodGroup", "scheduling.x-k8s.io", "podgroups", ("v1alpha1",),
        _scheduler_plugins_policy, is_needed=True,
    ),
    GroupObject(
        GroupSource.LEADER_WORKER_SET, "LeaderWorkerSet", "leaderworkerset.x-k8s.io", "leaderworkersets", ("v1",),
        _leader_worker_set_policy, is_needed=False,
    ),
)  # fmt: skip
NEEDED_OBJECTS = {one.source: one for one in GROUP_OBJECTS if one.is_needed}


def group_policy_of(obj: Json) -> dict[GroupKey, GroupPolicy]:
    """The policy of a group's object by its key; empty for any other object. Raises WireError."""
    of = str(obj.get("apiVersion")).partition("/")[0], str(obj.get("kind"))
    known = next((one for one in GROUP_OBJECTS if (one.api, one.kind) == of), None)
    if known is None:
        return {}
    metadata = inner(obj, "metadata", "")
    namespace, name = str(metadata.get("namespace") or "default"), str(metadata.get("name"))
    return {GroupKey(namespace, known.source, name): known.decode(obj)}


def _bounded(count: int) -> int:
    return min(max(count, 0), _MAX_MEMBERS)


# -- trees of groups -----------------------------------------------------------------------------------------------
# PodGroups below CompositePodGroups (scheduling.k8s.io/v1alpha3, KEP-6012). The pods of all PodGroups of a tree are one
# gang, which has the name of the root. Each PodGroup, and each CompositePodGroup below the root, is a sub-group of it.
# A CompositePodGroup with the policy `basic` joins nothing: the groups below it are gangs of their own.

_MAX_LEVELS = 8  # CompositePodGroups above a PodGroup
_MAX_GROUPS = 256  # of one tree: each event of one of them reads the whole tree
_CONSTRAINT = "spec.schedulingConstraints"


@dataclass(frozen=True, slots=True)
class _Tree:
    """What the groups below a root ask for together."""

    minimums: tuple[tuple[str, int], ...] = ()  # the pods that each needed PodGroup needs, by its path below the root
    lacks: str = ""  # an object that must exist first; '' if none
    problem: str = ""


class GroupTrees:
    """Finds the gang of the pods of a PodGroup. `policies` may change; `put` must be called after each change."""

    def __init__(self, policies: Mapping[GroupKey, GroupPolicy]) -> None:
        self._policies = policies
        self._below: dict[GroupKey, dict[GroupKey, None]] = {}
        self._trees: dict[GroupKey, _Tree] = {}  # by root; those that were asked for since the last change
        for key, policy in policies.items():
            self._link(key, policy)

    # -- changes ---------------------------------------------------------------------------------------------

    def put(
        self, key: GroupKey, old: GroupPolicy | None, new: GroupPolicy | None, change: Callable[[], None]
    ) -> list[GroupKey]:
        """Replace the policy of a key by calling `change`. Returns the PodGroups whose gang may be another."""
        if key.source not in IN_TREE:
            change()
            return []
        ends = [key, *(_parent(key, one) for one in (old, new) if one is not None and one.parent)]
        before = [one for end in ends for one in self._around(end)]
        if old is not None and old.parent:
            siblings = self._below[_parent(key, old)]
            del siblings[key]
            if not siblings:
                del self._below[_parent(key, old)]
        change()
        if new is not None:
            self._link(key, new)
        return list(dict.fromkeys((*before, *(one for end in ends for one in self._around(end)))))

    def _link(self, key: GroupKey, policy: GroupPolicy) -> None:
        if policy.parent:
            self._below.setdefault(_parent(key, policy), {})[key] = None

    def _around(self, key: GroupKey) -> list[GroupKey]:
        """The PodGroups of the trees that the group is in; of a tree that is too large, the group alone."""
        way = self._way_up(key)
        for one in way:
            self._trees.pop(one, None)
        found = self._all_below(way[-1])
        return [one for one in (found if len(found) <= _MAX_GROUPS else [key]) if one.source is GroupSource.CORE]

    def _all_below(self, root: GroupKey) -> list[GroupKey]:
        """The group and all groups below it; some more than the limit of a tree that is too large."""
        found = {root: None}
        queue = [root]
        while queue and len(found) <= _MAX_GROUPS:
            new = [one for one in islice(self._below.get(queue.pop(), ()), _MAX_GROUPS + 1) if one not in found]
            found.update(dict.fromkeys(new))
            queue += new
        return list(found)

    # -- questions -------------------------------------------------------------------------------------------

    def membership(self, own: Membership) -> Membership:
        """What the pod of a PodGroup states about the gang of the tree; `own` if the PodGroup is in none."""
        policy = self._policies.get(own.key) if own.key.source is GroupSource.CORE else None
        if policy is None or not policy.parent or own.problem:
            return own
        way = self._way_up(own.key)
        problem = _fault(way)
        if problem:
            return replace(own, problem=problem)
        while way[-1] in self._policies and way[-1].source is GroupSource.COMPOSITE:
            if self._policies[way[-1]].groups:
                break
            way.pop()
        root = way[-1]
        if root == own.key:
            return own
        tree = self._tree(root)
        if tree.problem:
            return replace(own, problem=tree.problem)
        return self._member(own, way, tree)

    def of_root(self, root: GroupKey) -> Membership | None:
        """What the pods of a tree state about its gang, without their sub-groups; None if the root does not exist."""
        if root not in self._policies:
            return None
        return _in_tree(Membership(root), root, self._tree(root))

    def _member(self, own: Membership, way: list[GroupKey], tree: _Tree) -> Membership:
        path, around = "", list[GroupAround]()
        for key in way[-2::-1]:
            path = f"{path}/{key.name}".lstrip("/")
            label = self._policies[key].topology_label
            around.append(GroupAround(path, Level(_CONSTRAINT, label) if label else None))
        asked = own.topology
        if asked.required is not None:  # the annotation is about the pods of its PodGroup
            around.append(GroupAround(path, asked.required))
        has_own = own.subgroups.required or own.subgroups.minimum
        subgroup = f"{path}/{own.subgroups.name}" if has_own else path
        subgroups = replace(own.subgroups, name=subgroup, around=tuple(around), minimums=tree.minimums)
        topology = AskedTopology(asked.nearness, None, asked.preferred)
        return _in_tree(replace(own, topology=topology, subgroups=subgroups), way[-1], tree)

    def _way_up(self, key: GroupKey) -> list[GroupKey]:
        """The group and those above it, up to the root, to one that does not exist, or to one that is named twice."""
        found = [key]
        while len(found) <= _MAX_LEVELS + 1:
            policy = self._policies.get(found[-1])
            if policy is None or not policy.parent:
                break
            parent = _parent(key, policy)
            found.append(parent)
            if parent in found[:-1]:
                break
        return found

    def _tree(self, root: GroupKey) -> _Tree:
        known = self._trees.get(root)
        if known is None:
            known = self._trees[root] = self._read(root)
        return known

    def _read(self, root: GroupKey) -> _Tree:
        if root not in self._policies:
            return _Tree(lacks=f"CompositePodGroup {root.name}")
        if len(self._all_below(root)) > _MAX_GROUPS:
            return _Tree(problem=f"the tree of CompositePodGroup {root.name} has more than {_MAX_GROUPS} groups")
        minimums, lacks = dict[str, int](), list[str]()
        self._needed(root, "", 0, minimums, lacks)
        return _Tree(tuple(minimums.items()), lacks[0] if lacks else "")

    def _needed(self, key: GroupKey, path: str, depth: int, minimums: dict[str, int], lacks: list[str]) -> None:
        """Adds the minimums of the PodGroups that a group needs: of its first child groups by name."""
        policy = self._policies[key]
        if key.source is GroupSource.CORE:
            minimums[path] = max(policy.minimum, 1)
            return
        below = sorted(
            self._below.get(key, ()), key=lambda child: (natural(child.name), child.source is GroupSource.CORE)
        )
        needed = policy.groups or 1
        if len(below) < needed:
            lacks.append(f"child group {len(below) + 1} of CompositePodGroup {key.name}")
        for child in below[:needed] if depth <= _MAX_LEVELS else ():
            self._needed(child, f"{path}/{child.name}".lstrip("/"), depth + 1, minimums, lacks)


def _parent(key: GroupKey, policy: GroupPolicy) -> GroupKey:
    return GroupKey(key.namespace, GroupSource.COMPOSITE, policy.parent)


def _in_tree(own: Membership, root: GroupKey, tree: _Tree) -> Membership:
    minimum = 0 if tree.lacks else sum(minimum for _, minimum in tree.minimums)
    return replace(own, key=root, owner=root.name, minimum=minimum, lacks=tree.lacks)


def _fault(way: list[GroupKey]) -> str:
    """What is wrong with the groups above a PodGroup; '' if nothing is."""
    if way[-1] in way[:-1]:
        again = " -> ".join(one.name for one in way[way.index(way[-1]) :])
        return f"CompositePodGroup {way[-1].name} is below itself: {again} (spec.parentCompositePodGroupName)"
    if len(way) > _MAX_LEVELS + 1:
        return f"PodGroup {way[0].name} is below more than {_MAX_LEVELS} CompositePodGroups"
    return ""
