"""Snapshots that may leave a company: names become numbers, and all that an assessment does not read is left out.

Every object is built anew from a list of fields, so that an unlisted field is not in the result. One name
has one number in the whole file. DeviceClasses keep their names and expressions, which decide what fits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from extender.api.fields import Json
from extender.api.pod_annotations import ANNOTATION_READERS
from extender.api.pod_groups import LWS_EXCLUSIVE, LWS_NAME, MINIMUM, READ_ANNOTATIONS, TIMEOUT, GroupSource
from extender.api.resource_claims import EXTENDED_CLAIM_ANNOTATION
from extender.policy import Policy
from extender.vendors import CLIQUE_LABEL, CLIQUE_LABELS, PLUGIN_RESOURCES

_TOPOLOGY = {*Policy().group_levels, *CLIQUE_LABELS, "topology.kubernetes.io/zone", "topology.kubernetes.io/region"}
_PRODUCTS = set(PLUGIN_RESOURCES.values()) - {""}
_GROUPS = {LWS_NAME, *(source.value for source in GroupSource)}
_ASKED = {MINIMUM, TIMEOUT, *ANNOTATION_READERS, *READ_ANNOTATIONS}
_HOSTNAME = "kubernetes.io/hostname"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_COUNT = re.compile(r"[0-9]{1,6}")
_PLAIN = re.compile(r"[0-9.]{1,12}[A-Za-z]{0,2}|required|preferred|product|none|true|false")  # values without a name
_SPOKEN = {  # attributes whose text says what a device is; texts of all others become numbers
    "type", "productName", "model", "brand", "architecture", "family", "driver", "profile", "partitionProfile",
    "pciBusID", "pciAddress", "pciAddr", "pcieRoot", "computePartition", "memoryPartition", "pciVendor", "pciDevice",
    "linkType", "links", "distances",
}  # fmt: skip
_OWNERS = ("ReplicaSet", "StatefulSet", "Job", "DaemonSet", "Node")
_AMOUNTS = ("cpu", "memory", "pods", *PLUGIN_RESOURCES)
_DEVICE = ("name", "capacity", "consumesCounters", "allNodes", "allowMultipleAllocations")
_REQUEST = ("deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "capacity")


def anonymised(objects: Iterable[Json]) -> Iterator[Json]:
    """The objects without names and secrets. Equal input gives equal output. Malformed objects are left out."""
    given = list(objects)
    names = _Names(_selected_labels(given))
    build: Mapping[str, Callable[[Json], Json]] = {
        "Node": names.node,
        "Pod": names.pod,
        "ResourceSlice": names.slice,
        "ResourceClaim": names.claim,
        "DeviceClass": names.device_class,
        "DeviceTaintRule": names.rule,
        "Namespace": lambda obj: {"metadata": names.metadata(obj, "namespace")},
        "PodGroup": names.pod_group,
        "CompositePodGroup": names.pod_group,
        "LeaderWorkerSet": names.worker_set,
    }
    for obj in given:
        if (kind := obj.get("kind")) in build:
            try:
                built = build[str(kind)](obj)
            except (AttributeError, KeyError, TypeError):
                continue  # a field has another form, which no API server stores
            yield {"apiVersion": obj.get("apiVersion"), "kind": kind, **built}


def _selected_labels(objects: Iterable[Json]) -> set[str]:
    """The labels by which pods and groups select nodes. Malformed objects select none."""
    found = set[str]()
    for obj in objects:
        with suppress(AttributeError, KeyError, TypeError):
            spec = _of(obj, "spec")
            found |= {one["key"] for one in _of(spec, "schedulingConstraints").get("topology") or ()}
            if obj.get("kind") == "Pod":
                terms = _of(spec, "affinity", "nodeAffinity", _REQUIRED).get("nodeSelectorTerms") or ()
                conditions = [one for term in terms for one in term.get("matchExpressions") or ()]
                found |= {*_of(spec, "nodeSelector"), *(one["key"] for one in conditions)}
    return found


def _picked(obj: Json, fields: Iterable[str]) -> Json:
    return {name: obj[name] for name in fields if obj.get(name) is not None}


def _of(obj: Json, *path: str) -> Json:
    for name in path:
        obj = obj.get(name) or {}
    return obj


def _last(name: str) -> str:
    """A qualified name without its domain."""
    return name.rpartition("/")[2]


class _Names:
    """The numbers of names, by kind of name. `selected` are the labels by which pods select nodes."""

    def __init__(self, selected: set[str]) -> None:
        self._selected = selected
        self._known: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}

    def of(self, kind: str, name: object) -> str:
        """The number of a name."""
        if not name:
            return ""
        key = kind, str(name)
        if key not in self._known:
            self._counts[kind] = number = self._counts.get(kind, 0) + 1
            self._known[key] = f"{kind}-{number}"
        return self._known[key]

    def metadata(self, obj: Json, kind: str) -> Json:
        """Name, namespace, UID and times of an object."""
        given = _of(obj, "metadata")
        named_elsewhere = kind in ("node", "namespace", "group")  # by the name alone
        name = given.get("name") if named_elsewhere else f"{given.get('namespace') or ''}/{given.get('name')}"
        found: Json = {"name": self.of(kind, name)}
        if given.get("namespace"):
            found["namespace"] = self.of("namespace", given["namespace"])
        if given.get("uid"):
            found["uid"] = self.of("uid", given["uid"])
        return found | _picked(given, ("creationTimestamp", "deletionTimestamp"))

    def _named(self, kind: str, namespace: object, name: object) -> str:
        return self.of(kind, f"{namespace or ''}/{name}") if name else ""

    def _labels(self, given: Json) -> Json:
        found = {}
        for label, value in given.items():
            if label in _TOPOLOGY:
                found[label] = self.of(_last(label), value)
            elif label in _GROUPS:
                found[label] = self.of("group", value)
            elif label in _PRODUCTS or (label in READ_ANNOTATIONS and _COUNT.fullmatch(value)):  # such as an index
                found[label] = value
        return found

    def _selected_label(self, label: str, value: str) -> tuple[str, str]:
        """A label of a node, or one that a pod selects."""
        if label in _PRODUCTS:
            return label, value
        if label in _TOPOLOGY:
            return label, self.of(_last(label), value)
        if label == _HOSTNAME:
            return label, self.of("node", value)
        # Operators Gt and Lt compare numbers, which are no names.
        return self.of("label", label), value if _COUNT.fullmatch(value) else self.of("value", value)

    def _nodes_of(self, spec: Json) -> Json:
        """What limits the nodes of a pod, and its priority."""
        found = _picked(spec, ("priority",))
        if selector := _of(spec, "nodeSelector"):
            found["nodeSelector"] = dict(self._selected_label(*one) for one in selector.items())
        if terms := _of(spec, "affinity", "nodeAffinity", _REQUIRED).get("nodeSelectorTerms"):
            required = {"nodeSelectorTerms": [self._term(one) for one in terms]}
            found["affinity"] = {"nodeAffinity": {_REQUIRED: required}}
        if tolerations := spec.get("tolerations"):
            found["tolerations"] = [self._taint(one) for one in tolerations]
        return found

    def _term(self, given: Json) -> Json:
        found: Json = {}
        for field, named in (("matchExpressions", None), ("matchFields", _HOSTNAME)):
            if conditions := given.get(field):
                found[field] = [self._condition(one, named or one["key"]) for one in conditions]
        return found

    def _condition(self, given: Json, label: str) -> Json:
        """`label` says what the values are: a field of a node has the names that the label of its host has."""
        values = [self._selected_label(label, value)[1] for value in given.get("values") or ()]
        key = given["key"] if label == _HOSTNAME else self._selected_label(label, "")[0]
        return {"key": key, "operator": given["operator"], "values": values}

    def _taint(self, given: Json) -> Json:
        """A taint of a node or a toleration. Keys of Kubernetes and of vendors are no names of users."""
        key = str(given.get("key") or "")
        known = key.startswith(("node.kubernetes.io/", "nvidia.com/", "amd.com/"))
        found = {"key": key if known else self.of("taint", key), "value": self.of("value", given.get("value"))}
        return {name: text for name, text in found.items() if text} | _picked(given, ("operator", "effect"))

    def _annotations(self, given: Json) -> Json:
        found = {name: value for name, value in given.items() if name in _ASKED and _PLAIN.fullmatch(str(value))}
        return found | {name: self.of("group", value) for name, value in given.items() if name in _GROUPS}

    # -- kinds ---------------------------------------------------------------------------------------------------

    def node(self, obj: Json) -> Json:
        metadata = self.metadata(obj, "node")
        labels = _of(obj, "metadata", "labels")
        selected = (one for one in labels.items() if one[0] in self._selected)
        metadata["labels"] = self._labels(labels) | dict(self._selected_label(*one) for one in selected)
        spec, status = _picked(_of(obj, "spec"), ("unschedulable",)), _of(obj, "status")
        if taints := _of(obj, "spec").get("taints"):
            spec["taints"] = [self._taint(one) for one in taints]
        conditions = [_picked(one, ("lastHeartbeatTime",)) for one in status.get("conditions") or ()]
        offered = _picked(_of(status, "allocatable"), _AMOUNTS)
        return {"metadata": metadata, "spec": spec, "status": {"allocatable": offered, "conditions": conditions}}

    def pod(self, obj: Json) -> Json:
        given, spec, status = _of(obj, "metadata"), _of(obj, "spec"), _of(obj, "status")
        namespace, metadata = given.get("namespace"), self.metadata(obj, "pod")
        metadata["labels"] = self._labels(_of(given, "labels"))
        metadata["annotations"] = self._annotations(_of(given, "annotations"))
        metadata["ownerReferences"] = [
            {
                "kind": one["kind"] if one.get("kind") in _OWNERS else "Owner",
                "name": self._named("owner", namespace, one.get("name")),
                **_picked(one, ("controller",)),
            }
            for one in given.get("ownerReferences") or ()
        ]
        claims = [self._entry(namespace, one) for one in spec.get("resourceClaims") or ()]
        made = {"containers": [self._container(one) for one in spec.get("containers") or ()], **self._nodes_of(spec)}
        if claims:
            made["resourceClaims"] = claims
        if spec.get("nodeName"):
            made["nodeName"] = self.of("node", spec["nodeName"])
        if spec.get("schedulerName"):
            known = spec["schedulerName"] in ("default-scheduler", "berth-scheduler")
            made["schedulerName"] = spec["schedulerName"] if known else self.of("scheduler", spec["schedulerName"])
        if group := _of(spec, "schedulingGroup").get("podGroupName"):
            made["schedulingGroup"] = {"podGroupName": self.of("group", group)}
        made["schedulingGates"] = [{"name": "gate"} for _ in spec.get("schedulingGates") or ()]
        return {"metadata": metadata, "spec": made, "status": self._pod_status(namespace, status)}

    def _pod_status(self, namespace: object, status: Json) -> Json:
        found = _picked(status, ("phase", "startTime"))
        found["resourceClaimStatuses"] = [
            {
                "name": self.of("entry", one.get("name")),
                "resourceClaimName": self._named("claim", namespace, one.get("resourceClaimName")),
            }
            for one in status.get("resourceClaimStatuses") or ()
        ]
        if name := _of(status, "extendedResourceClaimStatus").get("resourceClaimName"):
            found["extendedResourceClaimStatus"] = {"resourceClaimName": self._named("claim", namespace, name)}
        return found

    def _entry(self, namespace: object, given: Json) -> Json:
        found = {"name": self.of("entry", given.get("name"))}
        for field, kind in (("resourceClaimName", "claim"), ("resourceClaimTemplateName", "template")):
            if given.get(field):
                found[field] = self._named(kind, namespace, given[field])
        return found

    def _container(self, given: Json) -> Json:
        resources = _of(given, "resources")
        found: Json = {"requests": _picked(_of(resources, "requests"), _AMOUNTS)}
        if resources.get("claims"):
            found["claims"] = [
                {"name": self.of("entry", one.get("name")), **self._request_named(one)} for one in resources["claims"]
            ]
        return {"name": self.of("container", given.get("name")), "resources": found}

    def _request_named(self, given: Json) -> Json:
        return {"request": self._request_name(given["request"])} if given.get("request") else {}

    def _request_name(self, name: object) -> str:
        """The name of a request; `request/alternative` has two parts."""
        return "/".join(self.of("request", part) for part in str(name).split("/"))

    def slice(self, obj: Json) -> Json:
        spec = _of(obj, "spec")
        pool = _of(spec, "pool")
        made = _picked(spec, ("driver", "allNodes", "sharedCounters", "perDeviceNodeSelection"))
        if spec.get("nodeName"):
            made["nodeName"] = self.of("node", spec["nodeName"])
        made["pool"] = {
            "name": self.of("node", pool.get("name")),
            **_picked(pool, ("generation", "resourceSliceCount")),
        }
        made["devices"] = [self._device(one) for one in spec.get("devices") or ()]
        return {"metadata": self.metadata(obj, "slice"), "spec": made}

    def _device(self, given: Json) -> Json:
        found = _picked(given, _DEVICE)
        found["attributes"] = {
            name: self._value(name, value) for name, value in (given.get("attributes") or {}).items()
        }
        if given.get("taints"):
            found["taints"] = [_picked(one, ("key", "effect")) for one in given["taints"]]
        return found

    def _value(self, name: str, value: Any) -> Any:
        """The value of an attribute: a text that may be a serial number or an address becomes a number."""
        text = value.get("string") if isinstance(value, dict) else None
        if not isinstance(text, str) or _last(name) in _SPOKEN:
            return _picked(value, ("string", "int", "bool", "version", "ints", "bools", "versions"))
        prefix = text.partition("-")[0] if text.startswith(("GPU-", "MIG-")) else "value"
        if _last(name) == "clique":
            prefix = _last(CLIQUE_LABEL)  # the same number as in the label
        return {"string": self.of(prefix, text)}

    def claim(self, obj: Json) -> Json:
        given, status = _of(obj, "metadata"), _of(obj, "status")
        metadata, namespace = self.metadata(obj, "claim"), given.get("namespace")
        notes, group = _of(given, "annotations"), _of(given, "annotations").get(GroupSource.BERTH.value)
        metadata["annotations"] = {
            **({GroupSource.BERTH.value: self.of("group", group)} if group else {}),
            **_picked(notes, (EXTENDED_CLAIM_ANNOTATION,)),
        }
        metadata["ownerReferences"] = [
            {**_picked(one, ("apiVersion", "kind", "controller")), **self._consumer(namespace, one)}
            for one in given.get("ownerReferences") or ()
            if one.get("kind") == "Pod"
        ]
        devices = _of(obj, "spec", "devices")
        made = {"requests": [self._request(one) for one in devices.get("requests") or ()]}
        if devices.get("constraints"):
            made["constraints"] = [self._constraint(one) for one in devices["constraints"]]
        found: Json = {"metadata": metadata, "spec": {"devices": made}, "status": {}}
        if allocation := status.get("allocation"):
            results = [self._result(one) for one in _of(allocation, "devices").get("results") or ()]
            found["status"]["allocation"] = {"devices": {"results": results}}
        found["status"]["reservedFor"] = [
            {**_picked(one, ("resource", "apiGroup")), **self._consumer(namespace, one)}
            for one in status.get("reservedFor") or ()
        ]
        return found

    def _consumer(self, namespace: object, given: Json) -> Json:
        is_pod = given.get("resource", "pods") == "pods"
        name = self._named("pod", namespace, given.get("name")) if is_pod else self.of("group", given.get("name"))
        return {"name": name, "uid": self.of("uid", given.get("uid"))}

    def _request(self, given: Json) -> Json:
        found: Json = {"name": self._request_name(given.get("name"))}
        if given.get("exactly"):
            found["exactly"] = _picked(given["exactly"], _REQUEST)
        if given.get("firstAvailable"):
            found["firstAvailable"] = [
                {"name": self._request_name(one.get("name")), **_picked(one, _REQUEST)}
                for one in given["firstAvailable"]
            ]
        return found

    def _constraint(self, given: Json) -> Json:
        found = _picked(given, ("matchAttribute", "distinctAttribute"))
        if given.get("requests"):
            found["requests"] = [self._request_name(one) for one in given["requests"]]
        return found

    def _result(self, given: Json) -> Json:
        kept = _picked(given, ("driver", "device", "adminAccess", "shareID", "consumedCapacity"))
        return {"request": self._request_name(given.get("request")), "pool": self.of("node", given.get("pool")), **kept}

    def device_class(self, obj: Json) -> Json:
        metadata = self.metadata(obj, "class") | _picked(_of(obj, "metadata"), ("name",))
        return {"metadata": metadata, "spec": _picked(_of(obj, "spec"), ("selectors", "extendedResourceName"))}

    def rule(self, obj: Json) -> Json:
        selector = _of(obj, "spec", "deviceSelector")
        made = _picked(selector, ("driver", "device"))
        if selector.get("pool"):
            made["pool"] = self.of("node", selector["pool"])
        taint = _picked(_of(obj, "spec", "taint"), ("key", "effect"))
        return {"metadata": self.metadata(obj, "rule"), "spec": {"deviceSelector": made, "taint": taint}}

    def pod_group(self, obj: Json) -> Json:
        """A PodGroup or a CompositePodGroup."""
        spec, namespace = _of(obj, "spec"), _of(obj, "metadata").get("namespace")
        made: Json = _picked(spec, ("minMember", "scheduleTimeoutSeconds"))
        if gang := _picked(_of(spec, "schedulingPolicy", "gang"), ("minCount", "minGroupCount")):
            made["schedulingPolicy"] = {"gang": gang}
        if levels := _of(spec, "schedulingConstraints").get("topology"):
            made["schedulingConstraints"] = {
                "topology": [{"key": self._selected_label(one["key"], "")[0]} for one in levels]
            }
        if parent := spec.get("parentCompositePodGroupName"):
            made["parentCompositePodGroupName"] = self.of("group", parent)
        if claims := spec.get("resourceClaims"):
            made["resourceClaims"] = [self._entry(namespace, one) for one in claims]
        return {"metadata": self.metadata(obj, "group"), "spec": made}

    def worker_set(self, obj: Json) -> Json:
        size = _picked(_of(obj, "spec", "leaderWorkerTemplate"), ("size",))
        made: Json = {"leaderWorkerTemplate": size, **_picked(_of(obj, "spec"), ("startupPolicy",))}
        metadata = self.metadata(obj, "group")
        if LWS_EXCLUSIVE in _of(obj, "metadata", "annotations"):
            metadata["annotations"] = {LWS_EXCLUSIVE: ""}
        return {"metadata": metadata, "spec": made}
