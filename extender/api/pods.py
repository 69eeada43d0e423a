"""Pods (core/v1), reduced to what allocation needs: claims, requests, their group, constraints on nodes and other pods.

A gang's plan reads pod affinity, anti-affinity and topology spread of its members. Selectors match as in
kube-scheduler's plugins InterPodAffinity and PodTopologySpread.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from extender.api.fields import Json, dumped, get, inner, integer, many, need, string, string_map, strings, word
from extender.api.nodes import (
    NodeSelector,
    Requirement,
    Term,
    Toleration,
    decode_node_selector,
    decode_requirement,
    decode_term,
    decode_toleration,
    resource_units,
)
from extender.api.object_meta import ObjectKey, key_of, labels_of
from extender.api.pod_amounts import readable_cpu, requests_of
from extender.api.pod_annotations import ANNOTATION_READERS
from extender.api.pod_groups import OWN_ANNOTATIONS, GroupKey, Membership, jobs_of, membership_of
from extender.api.resource_claims import PodClaim, decode_pod_claim
from extender.base.text_limits import REASON_BYTES, cut, error_line

HOSTNAME = "kubernetes.io/hostname"
SCHEDULER = "berth-scheduler"  # the schedulerName of the pods that Berth places
DECISION_ANNOTATION = "berth.dev/decision"  # on a pod: written with its Binding
DECISION_BYTES = 4096  # of it: room for 32 devices and all score parts; a pod may have 256 KiB of annotations
MAX_CLAIMS = 64  # of one pod; the API has no limit, and a claim may have 256 alternatives
_REQUIRED, _PREFERRED = (f"{kind}DuringSchedulingIgnoredDuringExecution" for kind in ("required", "preferred"))
_ANNOTATIONS = (*ANNOTATION_READERS, *OWN_ANNOTATIONS)
_WORD_BYTES = 256  # of an annotation, or a scheduler's name: a longer one is cut, so it is no valid value
# Estimated bytes of a pod's constraints on nodes, and of its containers: some 400 names of nodes, or 64 containers with
# five resources each. The API server admits 1.5 MB of each, and memory takes ten times as much.
_PART_BYTES = 32 * 1024
_TEXT_BYTES = 64  # estimated, besides the characters
_LARGE_CONSTRAINTS = "spec: its nodeSelector, node affinity and tolerations are too large for a member of a group"
_LARGE_CONTAINERS = "spec.containers: their names and resources are too large"


@dataclass(frozen=True, slots=True)
class PreferredTerm:
    """A term of a preferred node affinity (core/v1 PreferredSchedulingTerm); `weight` is 1 to 100."""

    weight: int
    selector: NodeSelector  # with one term


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """A selector of labels (meta/v1): it matches if all requirements hold, so an empty one matches everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(one.holds(labels) for one in self.requirements)


class PodTerm(NamedTuple):
    """A term of a pod affinity or anti-affinity."""

    topology_key: str  # of node labels: a domain has one value of it
    selector: LabelSelector | None  # of the other pods; None matches no pod
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    weight: int = 0  # 1 to 100 of a preferred term, 0 of a required one

    def matches(self, labels: Mapping[str, str], namespace: str, namespace_labels: Mapping[str, str]) -> bool:
        """Whether the term of a pod matches a pod with these labels in the same namespace."""
        if self.selector is None or not self.selector.matches(labels):
            return False
        if not self.namespaces and self.namespace_selector is None:
            return True
        chosen = self.namespace_selector is not None and self.namespace_selector.matches(namespace_labels)
        return chosen or namespace in self.namespaces


class SpreadConstraint(NamedTuple):
    """An entry of spec.topologySpreadConstraints."""

    topology_key: str
    selector: LabelSelector | None
    max_skew: int  # a domain has at most this many matching pods more than the domain with the fewest
    required: bool  # DoNotSchedule
    min_domains: int = 1  # with fewer domains, the fewest counts as 0
    honors_affinity: bool = True  # whether only the nodes that the pod selects count
    honors_taints: bool = False  # whether nodes with a taint that the pod does not tolerate do not count

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a pod of the same namespace counts."""
        return self.selector is not None and self.selector.matches(labels)


@dataclass(frozen=True, slots=True)
class PodConstraints:
    """All such constraints of a pod."""

    together: tuple[PodTerm, ...] = ()
    apart: tuple[PodTerm, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()

    @property
    def requires_spread(self) -> bool:
        """Whether the nodes that kube-scheduler offers change with each bound pod, even without a full node."""
        return any(one.required for one in self.spread)


NO_CONSTRAINTS = PodConstraints()  # of most pods


@dataclass(frozen=True, slots=True)
class Container:
    """A container and its resource requests: (name, whole units), sorted by name. Native resources count as 0."""

    name: str
    requests: tuple[tuple[str, int], ...] = ()
    init: bool = False
    sidecar: bool = False


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, reduced to what allocation needs."""

    key: ObjectKey
    uid: str
    claims: tuple[PodClaim, ...] = ()  # at most MAX_CLAIMS + 1
    claim_statuses: Mapping[str, str | None] = field(default_factory=dict)
    containers: tuple[Container, ...] = ()  # none if no container requests an extended resource
    annotations: Mapping[str, str] = field(default_factory=dict)  # those that Berth knows, each cut
    node_name: str = ""
    scheduler: str = ""
    phase: str = ""
    deleting: bool = False
    cpu: int = 0  # that its containers request, in thousandths of a core; only of pods with devices
    extended_claim: str = ""  # status.extendedResourceClaimStatus.resourceClaimName
    group: str = ""  # spec.schedulingGroup.podGroupName
    resource_version: str = ""
    membership: Membership | None = None  # None: the pod names no group
    jobs: tuple[GroupKey, ...] = ()  # its JobSet and its Job, if it names no group: they are none
    gated: bool = False  # whether the pod has a scheduling gate
    node_selectors: tuple[NodeSelector, ...] = ()  # a node must match all; only of pods with a group or devices
    tolerations: tuple[Toleration, ...] = ()  # of node taints; only of pods with a group or devices
    constraints_are_known: bool = False  # whether these two were read
    preferred_nodes: tuple[PreferredTerm, ...] = ()  # of a pod with a group or devices; none if they are too large
    labels: Mapping[str, str] = field(default_factory=dict)  # of a pod with a group; none if they are too large
    constraints: PodConstraints = NO_CONSTRAINTS  # of a pod with a group, on other pods; none if they are too large
    unschedulable: str = ""  # why kube-scheduler found no node at the last attempt: condition PodScheduled, cut
    tried: bool = False  # whether kube-scheduler has reported an attempt that failed: PodScheduled is False
    scheduler_error: str = ""  # with which the last attempt ended, such as a failed bind: PodScheduled, cut
    created: str = ""  # metadata.creationTimestamp
    # Whether kube-scheduler may offer it other nodes than equal pods: it has volume claims, is spread over domains, or
    # has constraints on nodes that are too large.
    has_own_nodes: bool = False
    problem: str = ""  # why Berth cannot place the pod, with the field; '' if it can

    def names(self, claim_name: str) -> bool:
        """Whether the pod uses the claim of this name in its namespace, directly or through a template.

        True if the pod has too many claims: Berth does not read all of them.
        """
        if len(self.claims) > MAX_CLAIMS:
            return True
        return claim_name in self.claim_statuses.values() or any(c.claim_name == claim_name for c in self.claims)

    @property
    def claim_keys(self) -> frozenset[ObjectKey]:
        """Keys of the pod's claims whose names are known: a claim from a template has its name once it exists."""
        names = (entry.claim_name or self.claim_statuses.get(entry.name) for entry in self.claims)
        return frozenset(ObjectKey(self.key.namespace, name) for name in names if name)

    @property
    def has_claim_names(self) -> bool:
        """Whether the names of all claims are known. An older version of a pod lacks those of claims from templates."""
        return all(entry.claim_name or entry.name in self.claim_statuses for entry in self.claims)

    @property
    def may_need_devices(self) -> bool:
        """Whether the pod has claims, or a container requests a resource that a DeviceClass may provide."""
        return bool(self.claims or self.problem) or any(
            "/" in name and amount for container in self.containers for name, amount in container.requests
        )

    @property
    def concerns_berth(self) -> bool:
        """Whether the pod may need devices, or names a group. All nodes fit any other pod."""
        return self.membership is not None or self.may_need_devices

    @property
    def is_waiting(self) -> bool:
        """Whether kube-scheduler may still place the pod."""
        return not (self.node_name or self.deleting or self.gated or self.ended)

    @property
    def ended(self) -> bool:
        """Whether the pod never runs again. A pod can fail before it has a node."""
        return self.phase in ("Succeeded", "Failed")


def decode_pod(obj: Json) -> Pod:
    """Decode a Pod. Raises WireError if a field that it reads has the wrong type."""
    metadata, spec, status = inner(obj, "metadata", ""), inner(obj, "spec", ""), inner(obj, "status", "")
    group = string(inner(spec, "schedulingGroup", "spec"), "podGroupName", "spec.schedulingGroup")
    extended = inner(status, "extendedResourceClaimStatus", "status")
    key, membership = key_of(metadata), membership_of(metadata, group)
    # One claim more than a pod may have shows that it has too many.
    some_claims = get(spec, "resourceClaims", list, "spec", [])[: MAX_CLAIMS + 1]
    claims = many({"resourceClaims": some_claims}, "resourceClaims", "spec", decode_pod_claim)
    names, statuses = {claim.name for claim in claims}, many(status, "resourceClaimStatuses", "status", _claim_status)
    containers = _containers(spec)
    needs_devices = bool(claims) or any("/" in name for one in containers or () for name, _ in one.requests)
    read = membership is not None or needs_devices
    selectors, tolerations, nodes_are_known = _constraints(spec) if read else ((), (), False)
    labels, pod_constraints = _on_other_pods(metadata, spec) if membership is not None else ({}, NO_CONSTRAINTS)
    tried, unschedulable, scheduler_error = _pod_scheduled(status)
    node_name = string(spec, "nodeName", "spec")
    # A plan of a group must know the nodes that each member may use. Those of other pods come from kube-scheduler.
    problem = _LARGE_CONSTRAINTS if membership is not None and not nodes_are_known else ""
    return Pod(
        key,
        string(metadata, "uid", "metadata"),
        claims=claims,
        claim_statuses={name: claim for name, claim in statuses if name in names},
        containers=containers or (),
        annotations=_annotations(metadata, is_bound=bool(node_name)),
        node_name=node_name,
        scheduler=word(spec, "schedulerName", "spec", _WORD_BYTES),
        phase=string(status, "phase", "status"),
        deleting=metadata.get("deletionTimestamp") is not None,
        cpu=readable_cpu(requests_of, obj) if needs_devices else 0,
        extended_claim=string(extended, "resourceClaimName", "status.extendedResourceClaimStatus"),
        group=group,
        resource_version=string(metadata, "resourceVersion", "metadata"),
        membership=membership,
        jobs=jobs_of(metadata) if membership is None else (),
        gated=bool(get(spec, "schedulingGates", list, "spec", ())),
        node_selectors=selectors,
        tolerations=tolerations,
        unschedulable=unschedulable,
        tried=tried,
        scheduler_error=scheduler_error,
        created=string(metadata, "creationTimestamp", "metadata"),
        constraints_are_known=nodes_are_known,
        preferred_nodes=_preferred_nodes(spec) if read else (),
        labels=labels,
        constraints=pod_constraints,
        has_own_nodes=(read and not nodes_are_known) or (membership is not None and _has_own_nodes(spec)),
        problem=_LARGE_CONTAINERS if containers is None else problem,
    )


def with_constraints(pod: Pod, obj: Json) -> Pod:
    """The pod with its constraints on nodes, also if it has neither devices nor a group. Raises WireError."""
    if pod.constraints_are_known:
        return pod
    selectors, tolerations, known = _constraints(inner(obj, "spec", ""))
    return replace(pod, node_selectors=selectors, tolerations=tolerations, constraints_are_known=known)


def decode_bound_pod(obj: Json) -> Pod:
    """Decode only the group, node, phase and metadata of a Pod.

    Raises WireError if one of these fields has the wrong type.
    """
    spec, status = inner(obj, "spec", ""), inner(obj, "status", "")
    group = {"schedulingGroup": spec.get("schedulingGroup"), "nodeName": spec.get("nodeName")}
    return decode_pod({"metadata": obj.get("metadata"), "spec": group, "status": {"phase": status.get("phase")}})


def _too_large(value: object, path: str) -> bool:
    """Whether the texts of a JSON value take more memory than Berth keeps of a part of a pod."""
    text = dumped(value, path)
    return len(text) + text.count(b'"') // 2 * _TEXT_BYTES > _PART_BYTES


def _annotations(metadata: Json, *, is_bound: bool) -> dict[str, str]:
    """The annotations that Berth reads. A pod without a node has no decision: a tenant wrote that annotation."""
    written = string_map(metadata, "annotations", "metadata")
    found = {name: cut(written[name], _WORD_BYTES) for name in _ANNOTATIONS if name in written}
    if is_bound and DECISION_ANNOTATION in written:
        found[DECISION_ANNOTATION] = cut(written[DECISION_ANNOTATION], DECISION_BYTES)
    return found


def _has_own_nodes(spec: Json) -> bool:
    """Whether volume claims, or a required spread over domains of several nodes, limit the nodes of this pod."""
    claims = many(spec, "volumes", "spec", lambda volume, _: "persistentVolumeClaim" in volume or "ephemeral" in volume)
    return any(claims) or any(many(spec, "topologySpreadConstraints", "spec", _spreads_over_domains))


def _spreads_over_domains(constraint: Json, path: str) -> bool:
    required = string(constraint, "whenUnsatisfiable", path) == "DoNotSchedule"
    return required and string(constraint, "topologyKey", path) != HOSTNAME


def _constraints(spec: Json) -> tuple[tuple[NodeSelector, ...], tuple[Toleration, ...], bool]:
    """nodeSelector and the required node affinity, of which a node must match both, and the tolerations.

    All empty, and False, if they are too large.
    """
    path, key = "spec.affinity.nodeAffinity", _REQUIRED
    affinity = inner(inner(spec, "affinity", "spec"), "nodeAffinity", "spec.affinity")
    if _too_large((spec.get("nodeSelector"), affinity.get(key), spec.get("tolerations")), "spec"):
        return (), (), False
    labels = string_map(spec, "nodeSelector", "spec")
    by_labels = NodeSelector((Term(tuple(Requirement(name, "In", (value,)) for name, value in labels.items())),))
    both = (by_labels if labels else None, decode_node_selector(affinity, key, path))
    selectors = tuple(selector for selector in both if selector is not None)
    return selectors, many(spec, "tolerations", "spec", decode_toleration), True


def _preferred_nodes(spec: Json) -> tuple[PreferredTerm, ...]:
    """The preferred node affinity; empty if it is too large."""
    path, key = "spec.affinity.nodeAffinity", _PREFERRED
    affinity = inner(inner(spec, "affinity", "spec"), "nodeAffinity", "spec.affinity")
    if not affinity.get(key) or _too_large(affinity[key], path):
        return ()
    return many(affinity, key, path, _preferred_term)


def _preferred_term(obj: Json, path: str) -> PreferredTerm:
    term = decode_term(inner(obj, "preference", path), f"{path}.preference")
    return PreferredTerm(integer(obj, "weight", path), NodeSelector((term,)))


def _on_other_pods(metadata: Json, spec: Json) -> tuple[dict[str, str], PodConstraints]:
    """The labels, and the constraints on other pods; each of them empty if it is too large."""
    labels, affinity = labels_of(metadata), inner(spec, "affinity", "spec")
    asked = [affinity.get("podAffinity"), affinity.get("podAntiAffinity"), spec.get("topologySpreadConstraints")]
    constraints = NO_CONSTRAINTS
    if any(asked) and not _too_large(asked, "spec"):
        constraints = PodConstraints(
            _terms(affinity, "podAffinity", labels),
            _terms(affinity, "podAntiAffinity", labels),
            many(spec, "topologySpreadConstraints", "spec", lambda obj, path: _spread(obj, path, labels)),
        )
    return labels if labels and not _too_large(labels, "metadata.labels") else {}, constraints


def _terms(affinity: Json, kind: str, labels: Mapping[str, str]) -> tuple[PodTerm, ...]:
    path, of = f"spec.affinity.{kind}", inner(affinity, kind, "spec.affinity")
    required = many(of, _REQUIRED, path, lambda obj, where: _pod_term(obj, where, labels))
    return required + many(of, _PREFERRED, path, lambda obj, where: _weighted(obj, where, labels))


def _weighted(obj: Json, path: str, labels: Mapping[str, str]) -> PodTerm:
    term = _pod_term(inner(obj, "podAffinityTerm", path), f"{path}.podAffinityTerm", labels)
    return term._replace(weight=integer(obj, "weight", path))


def _pod_term(obj: Json, path: str, labels: Mapping[str, str]) -> PodTerm:
    # The API server adds these keys to the selector of a pod that it stores; a manifest does not have them there yet.
    same = _of_own(obj, "matchLabelKeys", path, "In", labels)
    other = _of_own(obj, "mismatchLabelKeys", path, "NotIn", labels)
    return PodTerm(
        string(obj, "topologyKey", path),
        label_selector(obj, "labelSelector", path, same + other),
        tuple(strings(obj, "namespaces", path)),
        label_selector(obj, "namespaceSelector", path),
    )


def _spread(obj: Json, path: str, labels: Mapping[str, str]) -> SpreadConstraint:
    return SpreadConstraint(
        string(obj, "topologyKey", path),
        label_selector(obj, "labelSelector", path, _of_own(obj, "matchLabelKeys", path, "In", labels)),
        integer(obj, "maxSkew", path),
        string(obj, "whenUnsatisfiable", path) == "DoNotSchedule",
        integer(obj, "minDomains", path) or 1,
        string(obj, "nodeAffinityPolicy", path) != "Ignore",
        string(obj, "nodeTaintsPolicy", path) == "Honor",
    )


def _of_own(obj: Json, key: str, path: str, operator: str, labels: Mapping[str, str]) -> tuple[Requirement, ...]:
    """The requirements that the labels of the pod itself make of a list of label keys."""
    return tuple(Requirement(name, operator, (labels[name],)) for name in strings(obj, key, path) if name in labels)


def label_selector(obj: Json, key: str, path: str, added: tuple[Requirement, ...] = ()) -> LabelSelector | None:
    """Decode a selector, with more requirements; None if the object has none. Raises WireError."""
    if obj.get(key) is None:
        return None
    own, where = inner(obj, key, path), f"{path}.{key}"
    equal = tuple(Requirement(name, "In", (value,)) for name, value in string_map(own, "matchLabels", where).items())
    listed = many(own, "matchExpressions", where, decode_requirement)
    return LabelSelector(tuple(dict.fromkeys(equal + listed + added)))


def _pod_scheduled(status: Json) -> tuple[bool, str, str]:
    """Whether condition PodScheduled is False, and its message: if no node was found, if the scheduler had an error."""
    for kind, tried, reason, text in many(status, "conditions", "status", _condition):
        if kind == "PodScheduled":
            return (tried, "", text) if reason == "SchedulerError" else (tried, text, "")
    return False, "", ""


def _condition(obj: Json, path: str) -> tuple[str, bool, str, str]:
    """The type of a condition, whether its status is False, and then its reason and its message."""
    false = string(obj, "status", path) == "False"
    reason, text = (string(obj, name, path) if false else "" for name in ("reason", "message"))
    shorter = error_line(text) if reason == "SchedulerError" else cut(text, REASON_BYTES)
    return string(obj, "type", path), false, reason, shorter


def may_need_devices(pod: Json) -> bool:
    """False if the pod has no claims and no container requests a resource that a DeviceClass may provide.

    Most pods need no devices, and this check takes a tenth of the time of `decode_pod`. True for a malformed pod.
    """
    spec = pod.get("spec") or {}
    try:
        return bool(spec.get("resourceClaims")) or _requests_extended(spec)
    except (AttributeError, TypeError):
        return True


def _requests_extended(spec: Json) -> bool:
    """Raises AttributeError or TypeError for a malformed spec."""
    containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    resources = [container.get("resources") or {} for container in containers]
    asked = (name for one in resources for kind in ("limits", "requests") for name in one.get(kind) or ())
    return any("/" in name for name in asked)


def _claim_status(obj: Json, path: str) -> tuple[str, str | None]:
    return need(obj, "name", path), string(obj, "resourceClaimName", path) or None


def _containers(spec: Json) -> tuple[Container, ...] | None:
    """Init containers first: the names of extended-resource requests count containers in this order.

    Empty if no container requests an extended resource; None if the containers are too large.
    """
    with suppress(AttributeError, TypeError):
        if not _requests_extended(spec):
            return ()
        every = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
        if _too_large([(one.get("name"), list(_asked(one.get("resources") or {}, ""))) for one in every], "spec"):
            return None
    init = many(spec, "initContainers", "spec", lambda c, p: _container(c, p, init=True))
    return init + many(spec, "containers", "spec", lambda c, p: _container(c, p, init=False))


def _container(obj: Json, path: str, *, init: bool) -> Container:
    resources = inner(obj, "resources", path)
    requests = tuple(sorted((name, resource_units(name, value)) for name, value in _asked(resources, path).items()))
    sidecar = init and string(obj, "restartPolicy", path) == "Always"
    return Container(string(obj, "name", path), requests, init=init, sidecar=sidecar)


def _asked(resources: Json, path: str) -> Json:
    return {**inner(resources, "limits", path), **inner(resources, "requests", path)}
