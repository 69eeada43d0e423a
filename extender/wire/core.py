"""Decoding of pods, PodGroups, nodes and labels. It reads only the fields that allocation needs."""

from __future__ import annotations

from contextlib import suppress

from extender.model import (
    DECISION_ANNOTATION,
    MAX_CLAIMS,
    NANO,
    REASON_BYTES,
    Container,
    Node,
    NodeSelector,
    ObjectKey,
    Pod,
    PodClaim,
    PodGroup,
    Requirement,
    Taint,
    Term,
    Toleration,
    cut,
    error_line,
    parse_quantity,
)
from extender.wire.fields import Json, dumped, get, many, need, node_selector, texts, toleration
from extender.wire.pod_annotations import ANNOTATION_READERS
from extender.wire.pod_groups import OWN_ANNOTATIONS, jobs_of, membership_of

_BLOCKING = ("NoSchedule", "NoExecute")
_CORDONED = Taint("node.kubernetes.io/unschedulable", effect="NoSchedule")
_NO_NAMES = frozenset[str]()  # one for all nodes: a fleet has thousands
_NATIVE = ("cpu", "memory", "ephemeral-storage")
_ANNOTATIONS = (*ANNOTATION_READERS, *OWN_ANNOTATIONS)
_WORD_BYTES = 256  # of an annotation, or a scheduler's name: a longer one is cut, so it is no valid value
_DECISION_BYTES = 4096  # as Berth writes it
# Estimated bytes of a pod's constraints on nodes, and of its containers: some 400 names of nodes, or 64 containers with
# five resources each. The API server admits 1.5 MB of each, and memory takes ten times as much.
_PART_BYTES = 32 * 1024
_TEXT_BYTES = 64  # estimated, besides the characters
_LARGE_CONSTRAINTS = "spec: its nodeSelector, node affinity and tolerations are too large for a member of a group"
_LARGE_CONTAINERS = "spec.containers: their names and resources are too large"


def decode_pod(obj: Json) -> Pod:
    """Decode a Pod. Raises WireError if a field that it reads has the wrong type."""
    metadata = get(obj, "metadata", dict, "", {})
    spec = get(obj, "spec", dict, "", {})
    status = get(obj, "status", dict, "", {})
    group = get(spec, "schedulingGroup", dict, "spec", {})
    extended = get(status, "extendedResourceClaimStatus", dict, "status", {})
    key = ObjectKey(get(metadata, "namespace", str, "metadata", ""), need(metadata, "name", "metadata"))
    membership = membership_of(metadata, get(group, "podGroupName", str, "spec.schedulingGroup", ""))
    claims = many({"resourceClaims": _some_claims(spec)}, "resourceClaims", "spec", _pod_claim)
    containers = _containers(spec)
    needs_devices = bool(claims) or any("/" in name for one in containers or () for name, _ in one.requests)
    read = membership is not None or needs_devices
    selectors, tolerations, nodes_are_known = _constraints(spec) if read else ((), (), False)
    tried, unschedulable, scheduler_error = _pod_scheduled(status)
    node_name = get(spec, "nodeName", str, "spec", "")
    return Pod(
        key,
        get(metadata, "uid", str, "metadata", ""),
        claims=claims,
        claim_statuses=_claim_statuses(status, {claim.name for claim in claims}),
        containers=containers or (),
        annotations=_annotations(metadata, is_bound=bool(node_name)),
        node_name=node_name,
        scheduler=cut(get(spec, "schedulerName", str, "spec", ""), _WORD_BYTES),
        phase=get(status, "phase", str, "status", ""),
        deleting=metadata.get("deletionTimestamp") is not None,
        extended_claim=get(extended, "resourceClaimName", str, "status.extendedResourceClaimStatus", ""),
        group=get(group, "podGroupName", str, "spec.schedulingGroup", ""),
        resource_version=get(metadata, "resourceVersion", str, "metadata", ""),
        membership=membership,
        jobs=jobs_of(metadata) if membership is None else (),
        gated=bool(get(spec, "schedulingGates", list, "spec", ())),
        node_selectors=selectors,
        tolerations=tolerations,
        unschedulable=unschedulable,
        tried=tried,
        scheduler_error=scheduler_error,
        created=get(metadata, "creationTimestamp", str, "metadata", ""),
        constraints_are_known=nodes_are_known,
        has_own_nodes=(read and not nodes_are_known) or (membership is not None and _has_own_nodes(spec)),
        problem=_problem(
            containers_are_known=containers is not None, nodes_are_known=nodes_are_known or not membership
        ),
    )


def decode_bound_pod(obj: Json) -> Pod:
    """Decode only the group, node, phase and metadata of a Pod.

    Raises WireError if one of these fields has the wrong type.
    """
    spec, status = get(obj, "spec", dict, "", {}), get(obj, "status", dict, "", {})
    group = {"schedulingGroup": spec.get("schedulingGroup"), "nodeName": spec.get("nodeName")}
    return decode_pod({"metadata": obj.get("metadata"), "spec": group, "status": {"phase": status.get("phase")}})


def _problem(*, containers_are_known: bool, nodes_are_known: bool) -> str:
    """Why Berth cannot place a pod; '' if it can. A plan of a group must know the nodes that each member may use.

    The nodes of any other pod come from kube-scheduler.
    """
    if not containers_are_known:
        return _LARGE_CONTAINERS
    return "" if nodes_are_known else _LARGE_CONSTRAINTS


def _too_large(value: object, path: str) -> bool:
    """Whether the texts of a JSON value take more memory than Berth keeps of a part of a pod."""
    text = dumped(value, path)
    return len(text) + text.count(b'"') // 2 * _TEXT_BYTES > _PART_BYTES


def _annotations(metadata: Json, *, is_bound: bool) -> dict[str, str]:
    """The annotations that Berth reads. A pod without a node has no decision: a tenant wrote that annotation."""
    written = texts(metadata, "annotations", "metadata")
    found = {name: cut(written[name], _WORD_BYTES) for name in _ANNOTATIONS if name in written}
    if is_bound and DECISION_ANNOTATION in written:
        found[DECISION_ANNOTATION] = cut(written[DECISION_ANNOTATION], _DECISION_BYTES)
    return found


def _some_claims(spec: Json) -> list[object]:
    """The entries of resourceClaims up to one more than a pod may have: one more shows that it has too many."""
    entries: list[object] = get(spec, "resourceClaims", list, "spec", [])
    return entries[: MAX_CLAIMS + 1]


def _claim_statuses(status: Json, names: set[str]) -> dict[str, str | None]:
    found = many(status, "resourceClaimStatuses", "status", _claim_status)
    return {name: claim for name, claim in found if name in names}


def _has_own_nodes(spec: Json) -> bool:
    """Whether volume claims, or a required spread over domains of several nodes, limit the nodes of this pod."""
    claims = many(spec, "volumes", "spec", lambda volume, _: "persistentVolumeClaim" in volume or "ephemeral" in volume)
    return any(claims) or any(many(spec, "topologySpreadConstraints", "spec", _spreads_over_domains))


def _spreads_over_domains(constraint: Json, path: str) -> bool:
    required = get(constraint, "whenUnsatisfiable", str, path, "") == "DoNotSchedule"
    return required and get(constraint, "topologyKey", str, path, "") != "kubernetes.io/hostname"


def _constraints(spec: Json) -> tuple[tuple[NodeSelector, ...], tuple[Toleration, ...], bool]:
    """The node selectors and tolerations; both empty, and False, if they are too large."""
    affinity = get(get(spec, "affinity", dict, "spec", {}), "nodeAffinity", dict, "spec.affinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if _too_large((spec.get("nodeSelector"), required, spec.get("tolerations")), "spec"):
        return (), (), False
    return _node_selectors(spec, affinity), many(spec, "tolerations", "spec", toleration), True


def _node_selectors(spec: Json, affinity: Json) -> tuple[NodeSelector, ...]:
    """nodeSelector and the required node affinity. A node must match both."""
    labels = texts(spec, "nodeSelector", "spec")
    by_labels = NodeSelector((Term(tuple(Requirement(key, "In", (value,)) for key, value in labels.items())),))
    required = node_selector(affinity, "requiredDuringSchedulingIgnoredDuringExecution", "spec.affinity.nodeAffinity")
    return tuple(selector for selector in (by_labels if labels else None, required) if selector is not None)


def _pod_scheduled(status: Json) -> tuple[bool, str, str]:
    """Whether condition PodScheduled is False, and its message: if no node was found, if the scheduler had an error."""
    for kind, tried, reason, text in many(status, "conditions", "status", _condition):
        if kind == "PodScheduled":
            return (tried, "", text) if reason == "SchedulerError" else (tried, text, "")
    return False, "", ""


def _condition(obj: Json, path: str) -> tuple[str, bool, str, str]:
    """The type of a condition, whether its status is False, and then its reason and its message."""
    false = get(obj, "status", str, path, "") == "False"
    reason, text = (get(obj, name, str, path, "") if false else "" for name in ("reason", "message"))
    shorter = error_line(text) if reason == "SchedulerError" else cut(text, REASON_BYTES)
    return get(obj, "type", str, path, ""), false, reason, shorter


def decode_pod_group(obj: Json) -> PodGroup:
    """Decode a PodGroup (scheduling.k8s.io). Raises WireError if a field that it reads has the wrong type."""
    metadata = get(obj, "metadata", dict, "", {})
    spec = get(obj, "spec", dict, "", {})
    return PodGroup(
        need(metadata, "name", "metadata"),
        get(metadata, "uid", str, "metadata", ""),
        claims=many(spec, "resourceClaims", "spec", _pod_claim),
    )


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


def _pod_claim(obj: Json, path: str) -> PodClaim:
    return PodClaim(
        need(obj, "name", path),
        get(obj, "resourceClaimName", str, path, ""),
        get(obj, "resourceClaimTemplateName", str, path, ""),
    )


def _claim_status(obj: Json, path: str) -> tuple[str, str | None]:
    return need(obj, "name", path), get(obj, "resourceClaimName", str, path, "") or None


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
    resources = get(obj, "resources", dict, path, {})
    requests = tuple(sorted((name, _amount(name, value)) for name, value in _asked(resources, path).items()))
    sidecar = init and get(obj, "restartPolicy", str, path, "") == "Always"
    return Container(get(obj, "name", str, path, ""), requests, init=init, sidecar=sidecar)


def _asked(resources: Json, path: str) -> Json:
    return {**get(resources, "limits", dict, path, {}), **get(resources, "requests", dict, path, {})}


def _amount(name: str, value: object) -> int:
    """Whole units of an extended resource, rounded down; 0 for native resources, which Berth ignores."""
    if name in _NATIVE:
        return 0
    try:
        return parse_quantity(str(value)).nanos // NANO
    except ValueError:
        return 0


def decode_node(obj: Json) -> Node:
    """Decode a Node. Raises WireError if a field that it reads has the wrong type."""
    metadata = get(obj, "metadata", dict, "", {})
    status = get(obj, "status", dict, "", {})
    offered = get(status, "allocatable", dict, "status", {})
    scalars = frozenset(name for name, value in offered.items() if "/" in name and _amount(name, value)) or _NO_NAMES
    spec = get(obj, "spec", dict, "", {})
    taints = tuple(taint for taint in many(spec, "taints", "spec", _taint) if taint.effect in _BLOCKING)
    if get(spec, "unschedulable", bool, "spec", False):
        taints += (_CORDONED,)
    labels = dict(texts(metadata, "labels", "metadata"))
    return Node(need(metadata, "name", "metadata"), labels, scalars, tuple(dict.fromkeys(taints)))


def _taint(obj: Json, path: str) -> Taint:
    return Taint(need(obj, "key", path), get(obj, "value", str, path, ""), get(obj, "effect", str, path, ""))


def decode_labels(obj: Json) -> dict[str, str]:
    """The labels of an object of any kind. Raises WireError."""
    return dict(texts(get(obj, "metadata", dict, "", {}), "labels", "metadata"))
