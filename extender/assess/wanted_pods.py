"""The pods for which berth defrag makes room: a pod or a group that waits, those of manifests, or of a shape."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from extender.allocation import Snapshot
from extender.api.fields import Json, inner, integer, naming, string
from extender.api.group_topology import KUEUE_TOPOLOGY
from extender.api.object_meta import ObjectKey
from extender.api.pod_amounts import Amounts, requests_of
from extender.api.pod_groups import GroupKey, GroupPolicy
from extender.api.pods import SCHEDULER, Pod
from extender.assess.gang_spread import group_of
from extender.assess.movable_pods import ClusterFacts
from extender.assess.pod_jobs import product_expression
from extender.base.berth_errors import WireError
from extender.base.text_limits import counted, first_few
from extender.defrag import Asked
from extender.explain import groups_named
from extender.explain.fleet_rows import product
from extender.explain.scenario import with_new_group
from extender.gangs.gang import gang_minimum, gang_of
from extender.gangs.gang_problem import MAX_TOGETHER
from extender.manifests import HypotheticalGroup, HypotheticalPod, hypothetical, pod_templates
from extender.policy import Policy
from extender.replay import Job
from extender.scheduling import requirements_of
from extender.scheduling.requirements import ErrorStatus, Skip, UnschedulableAndUnresolvable
from extender.topology.link_knowledge import unknown_links, unread
from extender.topology.sets import largest_joined

DEFAULT = "default-scheduler"  # of pods that name none
CLASS = "gpu.nvidia.com"
_NAME = "wanted"
_MAX_NAMED = 3  # groups in a sentence
_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The pods, their priority, their group, the workloads whose other pods they need, and who places them."""

    asked: Asked
    priority: int = 0
    unknown_class: str = ""  # the PriorityClass of new pods, of which the priority is not known
    group: GroupKey | None = None
    belong_to: frozenset[Hashable] = frozenset()  # see PodFacts.belongs_to
    schedulers: frozenset[str] = frozenset()
    shape: Shape | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """GPUs that links join, for each of some pods. `level` is a node label: all pods on nodes with one value of it."""

    gpus: int
    pods: int = 1
    level: str = ""
    class_name: str = CLASS
    selector: str = ""  # CEL, of each device
    product: str = ""  # of which the selector lets only such devices through, in words

    @property
    def text(self) -> str:
        """The shape in words."""
        gpus = f"{self.gpus} joined GPUs" if self.gpus > 1 else "1 GPU"
        gpus += f" ({self.product})" if self.product else ""
        found = f"{self.pods} pods with {gpus} each" if self.pods > 1 else f"a pod with {gpus}"
        return found + (f" in one {self.level}" if self.level else "")

    def objects(self) -> list[Json]:
        """Pods of this shape, with their claims."""
        request: Json = {"deviceClassName": self.class_name, "count": self.gpus}
        if self.selector:
            request["selectors"] = [{"cel": {"expression": self.selector}}]
        claim: Json = {"devices": {"requests": [{"name": "gpus", "exactly": request}]}}
        job = Job(_NAME, 0.0, pods=self.pods, claim=claim, topology="required" if self.gpus > 1 else "")
        pods = [job.pod(name, job, plain=False) for name, _ in job.named_pods()]
        for pod in pods if self.pods > 1 and self.level else ():  # Berth's own annotation names levels alone
            pod["metadata"]["annotations"][KUEUE_TOPOLOGY.required] = self.level
        return [*(job.claim_object(name) for name, _ in job.named_pods()), *pods]


def largest_shapes(snapshot: Snapshot) -> list[Shape]:
    """For each product, a pod with the largest set of joined GPUs that a node of it could have, or with one GPU."""
    found: dict[str, Shape] = {}
    for node_info in snapshot.node_infos.values():
        gpus = [node_info.inventory.devices[bit] for bit in node_info.gpu_bits if bit >= 0]
        if not gpus or gpus[0].id.driver not in snapshot.classes:
            continue
        fabric, name = node_info.fabric, product(node_info)
        size = largest_joined(fabric.graph, node_info.positions(-1), len(gpus)) if fabric is not None else 1
        if name not in found or size > found[name].gpus:
            selector = product_expression(gpus[0])
            found[name] = Shape(size, class_name=gpus[0].id.driver, selector=selector, product=name)
    return [found[name] for name in sorted(found)]


def unsized_products(snapshot: Snapshot) -> list[str]:
    """What is not known of the largest joined sets, a sentence for each product of which only one GPU is a shape."""
    shapes, nodes = {one.product for one in largest_shapes(snapshot) if one.gpus > 1}, dict[str, list[str]]()
    several = [info for info in snapshot.node_infos.values() if info.positions(-1).bit_count() > 1]
    for name in unread(several):
        nodes.setdefault(product(snapshot.node_infos[name]), []).append(name)
    return [f"the largest joined set of {name}: {unknown_links(nodes[name])}" for name in sorted(nodes.keys() - shapes)]


def wanted_pod(facts: ClusterFacts, snapshot: Snapshot, key: ObjectKey) -> Wanted:
    """The waiting pod of this name, with its gang. Raises WireError."""
    found = next((pod for pod in snapshot.pods.values() if pod.key == key), None)
    if found is None:
        bound = next((one.pod for one in facts.pods.values() if one.pod.key == key), None)
        why = "was not found among the pods that wait for devices"
        if bound is not None and bound.node_name:
            why = f"is bound to node {bound.node_name}: berth defrag is for pods that wait"
        raise WireError(f"pod {key}", why)
    if not found.is_waiting:
        raise WireError(f"pod {key}", "does not wait: it has ended, is deleted, or has a scheduling gate")
    membership = found.membership
    if membership is not None and gang_minimum(membership, snapshot):
        gang = gang_of(found, membership, snapshot)
        if gang.missing:  # otherwise each of its further pods is placed alone
            return _waiting(facts, gang.waiting, f"group {membership.key}")
        return _waiting(facts, (found,), f"pod {key}")
    group = group_of(found)
    alike = sum(pod.is_waiting and group_of(pod) == group for pod in snapshot.pods.values()) if group is not None else 1
    return _waiting(facts, (found,), _one_of(alike, f"pod {key}"))


def wanted_group(facts: ClusterFacts, snapshot: Snapshot, key: ObjectKey) -> Wanted:
    """The group of this name of which pods wait. Other schedulers may have another name for it. Raises WireError."""
    named = {pod.uid: pod for pods in groups_named(snapshot, key.namespace, key.name).values() for pod in pods}
    for uid, one in facts.pods.items():
        if one.gang is not None and (one.gang.namespace, one.gang.name) == key and one.pod.membership is not None:
            named[uid] = one.pod
    waiting = [pod for pod in named.values() if pod.is_waiting]
    if not waiting:
        raise WireError(f"group {key}", _no_group(facts, key, named.values()))
    keys = {pod.membership.key for pod in waiting if pod.membership is not None}
    if len(keys) > 1:
        raise WireError(f"group {key}", f"names {len(keys)} groups that wait: name one of their pods")
    found = wanted_pod(facts, snapshot, min(pod.key for pod in waiting))
    if len(found.asked.pods) < len(waiting):
        raise WireError(
            f"group {key}", "is no gang that lacks pods, each of its pods is placed alone: name one of them"
        )
    return found


def _no_group(facts: ClusterFacts, key: ObjectKey, members: Iterable[Pod]) -> str:
    """What is said of a group of which no pod waits. The name may be that of pods that are placed one by one."""
    if gated := sum(pod.gated for pod in members):
        return f"has no waiting pod: {counted(gated, 'pod has a scheduling gate', 'pods have scheduling gates')}"
    waiting = [one for one in facts.pods.values() if one.pod.is_waiting]
    here = [one for one in waiting if one.pod.key.namespace == key.namespace]
    kinds = {one.pod.key: kind for one in here for kind, name in one.workloads if name == key.name}
    if kinds:
        first = min(kinds)
        of = f"{counted(len(kinds), 'waiting pod is', 'waiting pods are')} of {kinds[first]} {key.name}"
        return f"is no group of Berth: {of}, so name one, such as pod {first.name}"
    groups = {one.pod.membership.key for one in waiting if one.pod.membership is not None}
    others = sorted({one.namespace for one in groups if one.name == key.name})
    if others:
        return f"has no waiting pod; one of this name waits in another namespace: give -n {others[0]}"
    names = sorted({one.name for one in groups if one.namespace == key.namespace and one.name})
    return "has no waiting pod" + f"; groups that wait in this namespace: {first_few(names, _MAX_NAMED)}" * bool(names)


def _waiting(facts: ClusterFacts, pods: Sequence[Pod], text: str) -> Wanted:
    if not any(pod.concerns_berth for pod in pods):
        raise WireError(text, _no_devices(pods[0]))
    known = {pod.uid: one for pod in pods if (one := facts.pods.get(pod.uid)) is not None}
    if len(known) < len(pods):
        raise WireError(text, "was created while the cluster was read: ask again")
    asked = {uid: one.amounts for uid, one in known.items()}
    membership = pods[0].membership
    return Wanted(
        Asked(text, tuple(pods), requests=asked, is_new=False),
        min(one.priority for one in known.values()),
        group=membership.key if membership is not None else None,
        belong_to=frozenset().union(*(one.belongs_to for one in known.values())),
        schedulers=frozenset(one.pod.scheduler or DEFAULT for one in known.values()),
    )


def wanted_shape(shape: Shape, snapshot: Snapshot) -> Wanted:
    """The pods of a shape."""
    return replace(wanted_objects(shape.objects(), snapshot, shape.text), shape=shape)


def wanted_objects(objects: Sequence[Json], snapshot: Snapshot, text: str = "") -> Wanted:
    """The pod, or the gang, that manifests would create. Raises WireError, also if they create others, too."""
    given = hypothetical(objects, snapshot.group_policies)
    pods, group = list(given.pods), next(iter(given.groups), None)
    members = _members_of_gang(group, snapshot) if group is not None else []
    if members and group is not None:
        pods = [one for one in pods if one.pod.membership is None or one.pod.membership.key != group.key]
        if not pods and len(given.groups) == 1:
            return _new(members, objects, text or _one_of(group.alike, f"group {group.key}"), group.policies)
    if members or len(pods) > 1:
        raise WireError("the files", "make several pods that are not one gang: give those of one pod or one gang")
    (made,) = (one.pods for obj in objects for one in pod_templates(obj))
    alike = made and made * (group.alike if group is not None else 1)
    return _new(pods, objects, text or _one_of(alike, f"pod {pods[0].pod.key}"), {})


def _one_of(alike: int | None, text: str) -> str:
    """Says that there are others, too, for which room may lack. None: the files do not say how many."""
    return text if alike in (0, 1) else f"{text} (one of {alike or 'several'})"


def _members_of_gang(group: HypotheticalGroup, snapshot: Snapshot) -> list[HypotheticalPod]:
    """The pods of a group; none if it has no minimum."""
    known = replace(snapshot, group_policies={**snapshot.group_policies, **group.policies})
    minimum = gang_minimum(group.membership, known)
    if minimum > MAX_TOGETHER:
        raise WireError(f"group {group.key}", f"has a minimum of {minimum} pods, above {MAX_TOGETHER}")
    return list(group.members(MAX_TOGETHER, minimum)) if minimum else []


def _new(
    pods: Sequence[HypotheticalPod], objects: Iterable[Json], text: str, policies: Mapping[GroupKey, GroupPolicy]
) -> Wanted:
    """Pods that do not exist yet. Each asks for as much CPU and memory as the largest of their templates."""
    each = list[Amounts]()
    for obj in objects:
        with naming(obj):
            each += [requests_of(one.pod) for one in pod_templates(obj)]
    largest = Amounts(max(one.cpu for one in each), max(one.ram for one in each), 1)
    found = tuple(replace(one.pod, scheduler=SCHEDULER) for one in pods)
    claims = {claim.key: claim for one in pods for claim in one.claims}
    requests = dict.fromkeys((pod.uid for pod in found), largest)
    priority, unknown = _priority_of(objects)
    schedulers = frozenset(one.pod.scheduler or DEFAULT for one in pods)
    asked = Asked(text, found, tuple(claims.values()), requests, policies)
    return Wanted(asked, priority, unknown, schedulers=schedulers)


def _priority_of(objects: Iterable[Json]) -> tuple[int, str]:
    """(the least priority of new pods, a PriorityClass of them that is neither Kubernetes' nor among the objects)."""
    given = list(objects)
    known = _PRIORITIES | {
        str(inner(obj, "metadata", "").get("name")): integer(obj, "value", "")
        for obj in given
        if obj.get("kind") == "PriorityClass"
    }
    specs = [inner(one.pod, "spec", "") for obj in given for one in pod_templates(obj)]
    names = [string(spec, "priorityClassName", "spec") for spec in specs]
    unknown = next((name for name in names if name and name not in known), "")
    return min((known.get(name, 0) for name in names), default=0), unknown


def check_wanted(wanted: Wanted, snapshot: Snapshot, policy: Policy) -> None:
    """Raises WireError if no place could help the pods: a claim or a class does not exist, or an object is invalid."""
    cluster = wanted.asked
    known = replace(snapshot, claims={**snapshot.claims, **{claim.key: claim for claim in cluster.claims}})
    deviceless = list[Pod]()
    for pod in cluster.pods:
        match requirements_of(pod, known, policy):
            case ErrorStatus(message):
                raise WireError(f"pod {pod.key}", message.removeprefix(f"pod {pod.key}: "))
            case UnschedulableAndUnresolvable(reason):
                raise WireError(f"pod {pod.key}", str(reason))
            case Skip():
                deviceless.append(pod)
    if len(deviceless) == len(cluster.pods):
        first = max(deviceless, key=lambda pod: pod.may_need_devices)
        raise WireError(f"pod {first.key}", _no_devices(first))
    first = cluster.pods[0]
    if (membership := first.membership) is None or not membership.key.name:
        return
    if cluster.is_new:
        known = with_new_group(known, membership.key, cluster.pods, cluster.policies)
    if gang_minimum(membership, known) and (problem := gang_of(first, membership, known).problem(policy.group_levels)):
        raise WireError(cluster.text, problem)


def _no_devices(pod: Pod) -> str:
    names = sorted({name for one in pod.containers for name, amount in one.requests if amount})
    if not names:
        return "asks for no devices"
    return f"asks for {', '.join(names)}, and no DeviceClass of the cluster has such an extended resource"
