"""Snapshots that may leave a company: names become numbers, and all that an assessment does not read is left out.

Every object is built anew from a list of fields, so that an unlisted field is not in the result. One name has one
number in the whole file, and texts sort as the names did: first fit goes by names. Only texts of known_texts.py stay as
they are, also in CEL expressions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson

from extender.api.fields import Json
from extender.api.group_parts import FOREIGN_PARTS, NAMES_OF_PARTS, OWN_PARTS, PART_ANNOTATION, bound_part_of
from extender.api.group_topology import FOREIGN_TOPOLOGY, ONE_NODE, OWN_TOPOLOGY, REQUIRED, Level, level_label
from extender.api.pod_annotations import ANNOTATION_READERS
from extender.api.pod_groups import (
    LWS_EXCLUSIVE,
    LWS_NAME,
    OWN_ANNOTATIONS,
    READ_ANNOTATIONS,
    GroupSource,
    name_on_claims,
)
from extender.api.resource_claims import EXTENDED_CLAIM_ANNOTATION
from extender.assess.known_texts import (
    AMOUNTS,
    ATTRIBUTES,
    CLASSES,
    DEVICES,
    DOMAINS,
    EXPRESSION,
    GRAPHS,
    NUMBERS,
    SPOKEN,
    TAINTS,
    is_of_vendor,
    is_plain,
    may_name_a_piece,
)
from extender.policy import Policy
from extender.replay.emptied_nodes import PARTS, SHARING_LABELS
from extender.vendors import CLIQUE_LABEL, CLIQUE_LABELS, PLUGIN_RESOURCES

_DEFAULT_LEVELS = Policy().group_levels
_TOPOLOGY = {*_DEFAULT_LEVELS, *CLIQUE_LABELS, "topology.kubernetes.io/zone", "topology.kubernetes.io/region"}
_PRODUCTS = set(PLUGIN_RESOURCES.values()) - {""}
_GROUPS = {LWS_NAME, *(source.value for source in GroupSource), *NAMES_OF_PARTS}
_LEVELS = {*OWN_TOPOLOGY, *OWN_PARTS, *FOREIGN_TOPOLOGY, *FOREIGN_PARTS} - _GROUPS  # annotations that may name levels
_ASKED = {*OWN_ANNOTATIONS, *ANNOTATION_READERS, *READ_ANNOTATIONS}
_HOSTNAME = "kubernetes.io/hostname"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PLAIN = re.compile(  # values without a name
    r"[0-9.]{1,12}[A-Za-z]{0,2}|[0-9]{1,9}(, ?[0-9]{1,9}){1,2}|required|preferred|product|none|true|false"
    r"|time-slicing|mps|[a-z]{2}x_nps[0-9]{1,2}"
)
_OWNERS = ("ReplicaSet", "StatefulSet", "Job", "DaemonSet", "Node")
_AMOUNTS = ("cpu", "memory", "pods", *PLUGIN_RESOURCES)
_KINDS_OF_DRIVERS = ("gpu", "net", "nic", "cpu")  # words that say it, see driver_of
_NUMBER, _VERSION = re.compile(r"-?[0-9]{1,18}"), re.compile(r"[0-9]{1,5}(\.[0-9]{1,5}){2}")
_COMPARED = ("Gt", "Lt")
_UNSORTED = {"label", "number"}  # see anonymous_levels; numbers in expressions have no zeros before them
_OF_AMOUNTS = ("quantity(", "isQuantity(", "semver(", "isSemver(", "duration(", "timestamp(")  # before a literal
_TOKEN = re.compile(r"//[^\n]*|[rR]?(\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')|[A-Za-z_]\w*|[0-9]+")  # of CEL


def anonymised(objects: Iterable[Json], levels: Sequence[str] = _DEFAULT_LEVELS) -> Iterator[Json]:
    """The objects without names and secrets. Equal input gives equal output. Malformed objects are left out.

    `levels` are the group levels of the policy. The result has them under the names of `anonymous_levels`.
    """
    given = list(objects)
    names = _Names(given, levels)
    for _ in _numbered(given, names):
        pass  # finds all names
    names.sort()
    return _numbered(given, names)


def _numbered(given: Sequence[Json], names: _Names) -> Iterator[Json]:
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
        if obj.get("kind") == "ResourceSlice":
            with suppress(AttributeError, KeyError, TypeError):
                names.slice(obj)  # expressions of other objects read what is in slices
    for obj in given:
        if (kind := obj.get("kind")) in build:
            try:
                built = build[str(kind)](obj)
            except (AttributeError, KeyError, TypeError):
                continue  # a field has another form, which no API server stores
            yield names.vetted({"apiVersion": obj.get("apiVersion"), "kind": kind, **built})


def anonymous_levels(levels: Sequence[str]) -> list[str]:
    """The labels by which anonymised objects have these levels: those that a company chose get numbers."""
    own = [level for level in dict.fromkeys(levels) if level not in _TOPOLOGY]
    return [f"label-{own.index(level) + 1}" if level in own else level for level in levels]


def _selected_labels(objects: Iterable[Json]) -> tuple[set[str], dict[str, set[str]]]:
    """(labels by which pods and groups select nodes, the values of those that are compared as numbers).

    Malformed objects select none.
    """
    found, compared = set[str](), dict[str, set[str]]()
    for obj in objects:
        with suppress(AttributeError, KeyError, TypeError):
            spec = _of(obj, "spec")
            found |= {one["key"] for one in _of(spec, "schedulingConstraints").get("topology") or ()}
            if obj.get("kind") == "Pod":
                terms = _of(spec, "affinity", "nodeAffinity", _REQUIRED).get("nodeSelectorTerms") or ()
                conditions = [one for term in terms for one in term.get("matchExpressions") or ()]
                found |= {*_of(spec, "nodeSelector"), *(one["key"] for one in conditions)}
                for one in conditions:
                    if one["operator"] in _COMPARED:
                        compared.setdefault(one["key"], set()).update(one["values"])
    for obj in objects:
        if obj.get("kind") == "Node":
            with suppress(AttributeError, KeyError, TypeError):
                labels = _of(obj, "metadata", "labels")
                for label in compared.keys() & labels.keys():
                    compared[label].add(labels[label])
    return found, compared


def _labels_of_levels(objects: Iterable[Json], levels: Sequence[str]) -> dict[str, str]:
    """The label of each level that annotations of pods name, by its label or by the end of it, or ONE_NODE."""
    names, on_nodes = set[str](), dict[str, None]()
    for obj in objects:
        with suppress(AttributeError, KeyError, TypeError, ValueError):
            metadata = _of(obj, "metadata")
            if obj.get("kind") == "Node":
                on_nodes |= dict.fromkeys(_of(metadata, "labels"))
            elif obj.get("kind") == "Pod":
                notes = _of(metadata, "annotations")
                names |= {level for name in _LEVELS & notes.keys() for level, _ in _layers(notes[name])}
    return {name: _label_of(name, list(on_nodes), levels) for name in names}


def _label_of(level: str, on_nodes: Sequence[str], levels: Sequence[str]) -> str:
    for labels in (on_nodes, levels):
        with suppress(ValueError):
            return level_label(Level(REQUIRED, level), labels)
    return level


def _layers(text: str) -> list[tuple[str, object]]:
    """The levels in an annotation, with the size of their slices if it has these. Raises ValueError for other JSON."""
    if text.startswith("["):
        return [(str(one["topology"]), one["size"]) for one in orjson.loads(text)]
    return [(name.strip(), None) for name in text.split(",")]


def _picked(obj: Json, fields: Iterable[str]) -> Json:
    return {name: obj[name] for name in fields if obj.get(name) is not None}


def _of(obj: Json, *path: str) -> Json:
    for name in path:
        obj = obj.get(name) or {}
    return obj


def _ranks(values: Iterable[str]) -> dict[str, int]:
    """The place of each number among the others; none for other texts."""
    numbers = sorted({int(one) for one in values if _NUMBER.fullmatch(one)})
    return {one: numbers.index(int(one)) + 1 for one in values if _NUMBER.fullmatch(one)}


def _last(name: str) -> str:
    """A qualified name without its domain."""
    return name.rpartition("/")[2]


class _Names:
    """The numbers of names, by kind of name."""

    def __init__(self, objects: Sequence[Json], levels: Sequence[str]) -> None:
        self._selected, compared = _selected_labels(objects)
        self._levels = _labels_of_levels(objects, levels)
        self._selected |= {*self._levels.values(), *levels}
        # Only the order of numbers that are compared stays.
        self._ranks = {label: _ranks(values) for label, values in compared.items()}
        self._known: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}
        self._sorted: dict[tuple[str, str], str] = {}  # as `_known`, once all names are
        self._made: set[str] = set()
        self._resources = {
            str(_of(obj, "spec").get("extendedResourceName")) for obj in objects if obj.get("kind") == "DeviceClass"
        }
        for level in levels:
            if level not in _TOPOLOGY:
                self.of("label", level)  # the first numbers, as anonymous_levels has them

    def of(self, kind: str, name: object) -> str:
        """The number of a name."""
        if not name:
            return ""
        key = kind, str(name)
        if key not in self._known:
            if key not in self._sorted:
                self._counts[kind] = number = self._counts.get(kind, 0) + 1
                self._sorted[key] = f"{kind}-{number}"
            self._known[key] = self._keep(self._sorted[key])
        return self._known[key]

    def sort(self) -> None:
        """Number the names that were met in their order, with as many digits, and forget the texts that were made."""
        for kind in self._counts.keys() - _UNSORTED:
            names = sorted(name for of, name in self._known if of == kind)
            width = len(str(len(names)))
            for number, name in enumerate(names, 1):
                self._sorted[kind, name] = f"{kind}-{number:0{width}}"
        self._known.clear()
        self._made.clear()

    def _keep(self, text: str) -> str:
        self._made.add(text)
        return text

    def vetted(self, value: Any) -> Any:
        """The value, in which each text that is neither known nor made here becomes a number."""
        if isinstance(value, dict):
            return {name: self.vetted(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self.vetted(one) for one in value]
        is_fine = not isinstance(value, str) or not value or value in self._made or is_plain(value)
        return value if is_fine else self.of("text", value)

    def metadata(self, obj: Json, kind: str) -> Json:
        """Name, namespace, UID and times of an object."""
        given = _of(obj, "metadata")
        named_elsewhere = kind in ("node", "namespace", "group")  # by the name alone
        name = given.get("name") if named_elsewhere else f"{given.get('namespace') or ''}\0{given.get('name')}"
        found: Json = {"name": self.of(kind, name)}
        if given.get("namespace"):
            found["namespace"] = self.of("namespace", given["namespace"])
        if given.get("uid"):
            found["uid"] = self.of("uid", given["uid"])
        return found | _picked(given, ("creationTimestamp", "deletionTimestamp"))

    def _named(self, kind: str, namespace: object, name: object) -> str:
        """Of names in several namespaces: they sort as (namespace, name)."""
        return self.of(kind, f"{namespace or ''}\0{name}") if name else ""

    def _labels(self, given: Json) -> Json:
        found = {}
        for label, value in given.items():
            if label in _TOPOLOGY:
                found[label] = self.of(_last(label), value)
            elif label in _GROUPS:
                found[label] = self.of("group", value)
            elif label in _PRODUCTS:
                found[label] = self._product(value)
            else:
                plain = _NUMBER if label in READ_ANNOTATIONS else _PLAIN if label in SHARING_LABELS else None
                if plain is not None and plain.fullmatch(value):  # such as the index of a pod
                    found[label] = self._keep(value)
        return found

    def _product(self, text: str) -> str:
        """A product, with the end that says of which part of its GPUs the plugin speaks."""
        part = PARTS.search(text)
        return self._keep(self._spoken(text[: part.start()]) + part.group()) if part else self._spoken(text)

    def _spoken(self, text: str, kind: str = "value") -> str:
        """A text that says what a device is, if vendors use it; else a number."""
        return self._keep(text) if is_of_vendor(text) else self.of(kind, text)

    def _selected_label(self, label: str, value: str) -> tuple[str, str]:
        """A label of a node, or one that a pod selects."""
        if label in _PRODUCTS:
            return self._keep(label), self._product(value)
        if label in _TOPOLOGY:
            return self._keep(label), self.of(_last(label), value)
        if label == _HOSTNAME:
            return self._keep(label), self.of("node", value)
        rank = self._ranks.get(label, {}).get(value)
        return self.of("label", label), self._keep(str(rank)) if rank is not None else self.of("value", value)

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
        """A taint of a node or a device, or a toleration."""
        key = str(given.get("key") or "")
        known = self._keep(key) if key in TAINTS else self.of("taint", key)
        found = {"key": known, "value": self.of("value", given.get("value"))}
        return {name: text for name, text in found.items() if text} | _picked(given, ("operator", "effect"))

    def _annotations(self, given: Json) -> Json:
        found = {}
        for name, value in given.items():
            if name in _GROUPS:
                found[name] = self.of("group", value)
            elif name in _ASKED and _PLAIN.fullmatch(str(value)):
                found[name] = self._keep(value)
            elif name in _LEVELS:
                found[name] = self._levels_in(value)
        return found

    def _levels_in(self, text: str) -> str:
        """An annotation that names levels, by the labels that the nodes have now."""
        try:
            layers = _layers(text)
        except ValueError:
            return self.of("text", text)
        named = [(self._level(name), size) for name, size in layers]
        if not text.startswith("["):
            return self._keep(",".join(name for name, _ in named))
        sizes = [{"topology": name, "size": size if type(size) is int else 0} for name, size in named]
        return self._keep(orjson.dumps(sizes).decode())

    def _level(self, name: str) -> str:
        label = self._levels.get(name, name)
        return self._keep(label) if label == ONE_NODE else self._selected_label(label, "")[0]

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
        made["initContainers"] = [
            {**self._container(one), **_picked(one, ("restartPolicy",))} for one in spec.get("initContainers") or ()
        ]
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
        asked = _of(resources, "requests")
        own = {self._resource(name): amount for name, amount in asked.items() if name in self._resources}
        found: Json = {"requests": _picked(asked, _AMOUNTS) | own}
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
        made = {"driver": self._domain(spec["driver"]), **_picked(spec, ("allNodes", "perDeviceNodeSelection"))}
        if spec.get("sharedCounters"):
            made["sharedCounters"] = [self._counters(one, "name") for one in spec["sharedCounters"]]
        if spec.get("nodeName"):
            made["nodeName"] = self.of("node", spec["nodeName"])
        made["pool"] = {
            "name": self.of("node", pool.get("name")),
            **_picked(pool, ("generation", "resourceSliceCount")),
        }
        made["devices"] = [self._device(one) for one in spec.get("devices") or ()]
        return {"metadata": self.metadata(obj, "slice"), "spec": made}

    def _device(self, given: Json) -> Json:
        found: Json = {
            "name": self._device_name(given["name"]),
            **_picked(given, ("allNodes", "allowMultipleAllocations")),
        }
        found["attributes"] = dict(self._attribute(*one) for one in (given.get("attributes") or {}).items())
        capacity = (given.get("capacity") or {}).items()
        found["capacity"] = {self._amount(name): self._capacity(value) for name, value in capacity}
        if given.get("consumesCounters"):
            found["consumesCounters"] = [self._counters(one, "counterSet") for one in given["consumesCounters"]]
        if given.get("taints"):
            found["taints"] = [self._taint(one) for one in given["taints"]]
        return found

    def _pool(self, name: str) -> str:
        return self.of("node", name)

    def _device_name(self, name: str) -> str:
        return self._keep(name) if DEVICES.fullmatch(name) else self.of("device", name)

    def _capacity(self, given: Json) -> Json:
        found = _picked(given, ("value",))
        if policy := _of(given, "requestPolicy"):
            found["requestPolicy"] = _picked(policy, ("default", "validValues"))
            if bounds := _of(policy, "validRange"):
                found["requestPolicy"]["validRange"] = _picked(bounds, ("min", "max", "step"))
        return found

    def _counters(self, given: Json, field: str) -> Json:
        """A set of counters, or what a device takes of it. `field` has the name of the set."""
        counters = {self._amount(name): {"value": one["value"]} for name, one in given["counters"].items()}
        return {field: self.of("counters", given[field]), "counters": counters}

    def _domain(self, name: str) -> str:
        """A driver, or the domain of an attribute. An unknown one keeps what says which devices a driver has."""
        if name in DOMAINS:
            return self._keep(name)
        end = next((driver for driver in DOMAINS if name.endswith(f".{driver}")), "example")
        words = name.partition(".")[0].split("-")
        word = next((one for one in _KINDS_OF_DRIVERS if one in words), "")
        return self._keep(f"{word}{'.' * bool(word)}{self.of('domain', name)}.{end}")

    def _qualified(self, name: str, short: Callable[[str], str]) -> str:
        domain, slash, last = name.rpartition("/")
        return self._keep(f"{self._domain(domain) if slash else ''}{slash}{short(last)}")

    def _attribute_name(self, short: str) -> str:
        """An identifier of CEL."""
        return self._keep(short if short in ATTRIBUTES | EXPRESSION else self.of("attribute", short).replace("-", "_"))

    def _amount(self, name: str) -> str:
        """The name of a capacity or a counter. In an expression, one that is not known is an attribute."""
        return self._qualified(
            name, lambda short: self._keep(short) if short in AMOUNTS else self._attribute_name(short)
        )

    def _attribute(self, name: str, value: Json) -> tuple[str, Json]:
        """An attribute: texts, numbers and versions that may be those of one piece become numbers."""
        last = _last(name)
        found = _picked(value, ("bool", "bools"))
        for field in ("string", "int", "version"):
            if value.get(field) is not None:
                found[field] = self._value(last, field, value[field])
            if value.get(f"{field}s") is not None:
                found[f"{field}s"] = [self._value(last, field, one) for one in value[f"{field}s"]]
        return self._qualified(name, self._attribute_name), found

    def _value(self, name: str, field: str, value: Any) -> Any:
        if field == "string":
            kind = value.partition("-")[0] if value.startswith(("GPU-", "MIG-")) else "value"
            if name == "clique":
                kind = _last(CLIQUE_LABEL)  # the same number as in the label
            if name in GRAPHS and GRAPHS[name].fullmatch(value):
                return self._keep(value)
            return self._spoken(value, kind) if name in SPOKEN else self.of(kind, value)
        if name in NUMBERS:
            return value if field == "int" else self._keep(value) if _VERSION.fullmatch(value) else "0.0.0"
        number = int(self.of("number", str(value)).rpartition("-")[2])
        return number if field == "int" else self._keep(f"0.0.{number}")

    def _selectors(self, given: Iterable[Json]) -> list[Json]:
        return [{"cel": {"expression": self._expression(one["cel"]["expression"])}} for one in given]

    def _expression(self, text: str) -> str:
        """A CEL expression, with numbers for the names in it. Comments are left out."""
        return self._keep(_TOKEN.sub(self._token, text))

    def _token(self, found: re.Match[str]) -> str:
        token = found[0]
        if token.startswith("//"):
            return ""
        if token.isdecimal():
            known = self._known.get(("number", token))
            if known is None and may_name_a_piece(found):
                known = self.of("number", token)  # no device has it
            return known.rpartition("-")[2] if known is not None else token
        if not found[1]:
            return token if token in EXPRESSION or token in AMOUNTS else self._attribute_name(token)
        text = found[1][1:-1]
        is_argument = found.string[: found.start()].rstrip().endswith(_OF_AMOUNTS)
        if text in ATTRIBUTES or text in AMOUNTS or text in DOMAINS or (is_argument and is_plain(text)):
            return token
        if text in self._made or (("value", text) not in self._known and is_of_vendor(text)):
            return token
        return f'"{self._domain(text) if ("domain", text) in self._known else self._of_value(text)}"'

    def _of_value(self, text: str) -> str:
        """What the text became where an attribute has it."""
        kinds = ("value", "attribute", "GPU", "MIG", "device")
        known = (self._known.get((kind, text)) for kind in kinds)
        found = next((one for one in known if one is not None), None) or self.of("value", text)
        return found.replace("-", "_") if found.startswith("attribute-") else found

    def claim(self, obj: Json) -> Json:
        given, status = _of(obj, "metadata"), _of(obj, "status")
        metadata, namespace = self.metadata(obj, "claim"), given.get("namespace")
        metadata["annotations"] = self._marks(_of(given, "annotations"))
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

    def _marks(self, notes: Json) -> Json:
        """What Berth wrote to a claim about its pod: the group, and its part of that."""
        found: Json = _picked(notes, (EXTENDED_CLAIM_ANNOTATION,))
        if group := notes.get(GroupSource.BERTH.value):
            name = name_on_claims(group)
            found[GroupSource.BERTH.value] = self._keep(group.removesuffix(name) + self.of("group", name))
        if part := bound_part_of(notes.get(PART_ANNOTATION) or ""):
            subgroup = "/".join(self.of("group", name) for name in part.subgroup.split("/"))
            found[PART_ANNOTATION] = self._keep(str(part._replace(subgroup=subgroup)))
        return found

    def _consumer(self, namespace: object, given: Json) -> Json:
        is_pod = given.get("resource", "pods") == "pods"
        name = self._named("pod", namespace, given.get("name")) if is_pod else self.of("group", given.get("name"))
        return {"name": name, "uid": self.of("uid", given.get("uid"))}

    def _request(self, given: Json) -> Json:
        found: Json = {"name": self._request_name(given.get("name"))}
        if given.get("exactly"):
            found["exactly"] = self._asked(given["exactly"])
        if given.get("firstAvailable"):
            found["firstAvailable"] = [
                {"name": self._request_name(one.get("name")), **self._asked(one)} for one in given["firstAvailable"]
            ]
        return found

    def _asked(self, given: Json) -> Json:
        found: Json = {"deviceClassName": self._class(given["deviceClassName"])}
        found |= _picked(given, ("allocationMode", "count", "adminAccess"))
        if given.get("selectors"):
            found["selectors"] = self._selectors(given["selectors"])
        if given.get("tolerations"):
            found["tolerations"] = [self._taint(one) for one in given["tolerations"]]
        if amounts := _of(given, "capacity", "requests"):
            found["capacity"] = {"requests": {self._amount(name): value for name, value in amounts.items()}}
        return found

    def _class(self, name: str) -> str:
        return self._keep(name) if name in CLASSES else self.of("class", name)

    def _resource(self, name: str) -> str:
        """An extended resource of a DeviceClass."""
        return self._keep(name if name in PLUGIN_RESOURCES else f"example.com/{self.of('resource', name)}")

    def _constraint(self, given: Json) -> Json:
        found: Json = {
            field: self._qualified(given[field], self._attribute_name)
            for field in ("matchAttribute", "distinctAttribute")
            if given.get(field)
        }
        if given.get("requests"):
            found["requests"] = [self._request_name(one) for one in given["requests"]]
        return found

    def _result(self, given: Json) -> Json:
        found = {
            "request": self._request_name(given.get("request")),
            "driver": self._domain(given["driver"]),
            "pool": self.of("node", given.get("pool")),
            "device": self._device_name(given["device"]),
            **_picked(given, ("adminAccess",)),
        }
        if given.get("shareID"):
            found["shareID"] = self.of("uid", given["shareID"])
        if amounts := given.get("consumedCapacity"):
            found["consumedCapacity"] = {self._amount(name): value for name, value in amounts.items()}
        return found

    def device_class(self, obj: Json) -> Json:
        metadata = self.metadata(obj, "class") | {"name": self._class(_of(obj, "metadata")["name"])}
        spec = _of(obj, "spec")
        made: Json = {"selectors": self._selectors(spec.get("selectors") or ())}
        if spec.get("extendedResourceName"):
            made["extendedResourceName"] = self._resource(spec["extendedResourceName"])
        return {"metadata": metadata, "spec": made}

    def rule(self, obj: Json) -> Json:
        selector = _of(obj, "spec", "deviceSelector")
        made: Json = {}
        for field, name_of in (("driver", self._domain), ("device", self._device_name), ("pool", self._pool)):
            if selector.get(field):
                made[field] = name_of(selector[field])
        taint = self._taint(_of(obj, "spec", "taint"))
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
