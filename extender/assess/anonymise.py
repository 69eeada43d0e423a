"""Snapshots that may leave a company: names become numbers, and all that an assessment does not read is left out.

Every object is built anew from a list of fields, so that an unlisted field is not in the result. One name has one
number in the whole file, and texts sort as the names did: first fit goes by names. Only texts of known_texts.py stay as
they are, also in CEL expressions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import orjson

from extender.api.asked_subgroups import (
    FOREIGN_SUBGROUPS,
    GROUP_PART_ANNOTATION,
    OWN_SUBGROUPS,
    SUBGROUP_NAMES,
    subgroup_index_of,
)
from extender.api.device_classes import IMPLICIT_RESOURCE_PREFIX
from extender.api.fields import Json
from extender.api.foreign_gangs import FOREIGN_GANGS, VOLCANO_MADE
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
    GATES,
    GRAPHS,
    NUMBERS,
    PLUGIN_DOMAINS,
    SPOKEN,
    TAINTS,
    is_of_vendor,
    is_plain,
    is_resource,
    may_name_a_piece,
    without_names,
)
from extender.policy import Policy
from extender.vendors import CLIQUE_LABEL, CLIQUE_LABELS
from extender.vendors.node_labels import FAMILY_LABELS, PARTITION_SUFFIX, PLUGIN_RESOURCES, SHARING_LABELS

_DEFAULT_LEVELS = Policy().group_levels
_TOPOLOGY = {
    *_DEFAULT_LEVELS,
    *CLIQUE_LABELS,
    *FAMILY_LABELS,
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
}
_KINDS = {"accelerator.topograph.run/domain": "accelerator"}  # of names, where the end of the label is another kind
_PRODUCTS = frozenset(chain.from_iterable(PLUGIN_RESOURCES.values()))
_OF_GKE = re.compile("nvidia(-(tesla|mega|rtx|pro|[a-z]{1,2}[0-9]{1,4}|[0-9]{1,4}(gb)?))+")  # its names of products
_GROUPS = {LWS_NAME, *(source.value for source in GroupSource), *SUBGROUP_NAMES, *FOREIGN_GANGS}
_LEVELS = {
    *OWN_TOPOLOGY,
    *OWN_SUBGROUPS,
    *FOREIGN_TOPOLOGY,
    *FOREIGN_SUBGROUPS,
} - _GROUPS  # annotations that may name levels
_ASKED = {*OWN_ANNOTATIONS, *ANNOTATION_READERS, *READ_ANNOTATIONS}
_HOSTNAME = "kubernetes.io/hostname"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PLAIN = re.compile(  # values without a name
    r"[0-9.]{1,12}[A-Za-z]{0,2}|[0-9]{1,9}(, ?[0-9]{1,9}){1,2}|required|preferred|product|none|true|false"
    r"|time-slicing|time-sharing|mps|[0-9]g\.[0-9]{1,4}gb|[a-z]{2}x_nps[0-9]{1,2}"
)
_SAID = ("PodScheduled", "True", "False", "Unschedulable", "SchedulerError", "SchedulingGated")  # in conditions of pods
_OWNERS = ("ReplicaSet", "StatefulSet", "Job", "DaemonSet", "Node")
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
    for obj in given:
        if obj.get("kind") == "ResourceSlice":
            with suppress(AttributeError, KeyError, TypeError):
                names.built(
                    _FIELDS["ResourceSlice"]["spec"], obj["spec"]
                )  # expressions of other objects read what is in slices
    for obj in given:
        if (kind := obj.get("kind")) in _FIELDS:
            try:
                names.namespace = str(_of(obj, "metadata").get("namespace") or "")
                built = names.built(_FIELDS[str(kind)], obj)
            except (AttributeError, KeyError, TypeError):
                continue  # a field has another form, which no API server stores
            yield {"apiVersion": names.plain(obj.get("apiVersion")), "kind": kind, **built}


def anonymous_levels(levels: Sequence[str]) -> list[str]:
    """The labels by which anonymised objects have these levels: those that a company chose get numbers."""
    own = [level for level in dict.fromkeys(levels) if level not in _TOPOLOGY]
    return [f"label-{own.index(level) + 1}" if level in own else level for level in levels]


def _selected_labels(objects: Iterable[Json]) -> tuple[set[str], dict[str, set[str]]]:
    """(labels by which pods, groups and claims select nodes, the values of those that are compared as numbers).

    Malformed objects select none.
    """
    found, compared = set[str](), dict[str, set[str]]()
    for obj in objects:
        with suppress(AttributeError, KeyError, TypeError):
            spec = _of(obj, "spec")
            found |= {one["key"] for one in _of(spec, "schedulingConstraints").get("topology") or ()}
            if (kind := obj.get("kind")) in ("Pod", "ResourceClaim"):
                affinity = _of(spec, "affinity", "nodeAffinity", _REQUIRED)
                selector = affinity if kind == "Pod" else _of(obj, "status", "allocation", "nodeSelector")
                terms = selector.get("nodeSelectorTerms") or ()
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


def _kind(label: str) -> str:
    """The kind of the values of a label of _TOPOLOGY."""
    return _KINDS.get(label, _last(label))


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
        self._of_vendors: set[str] = set()  # texts that say what a device is, in small letters
        self.namespace = ""  # of the object that is built
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
            self._known[key] = self._sorted[key]
        return self._known[key]

    def sort(self) -> None:
        """Number the names that were met in their order, with as many digits, for the second pass."""
        for kind in self._counts.keys() - _UNSORTED:
            names = sorted(name for of, name in self._known if of == kind)
            width = len(str(len(names)))
            for number, name in enumerate(names, 1):
                self._sorted[kind, name] = f"{kind}-{number:0{width}}"
        self._known.clear()

    def plain(self, value: Any) -> Any:
        """A value that names nothing. A text that is neither a value of the API, an amount nor a time gets a number."""
        if isinstance(value, list):
            return [self.plain(one) for one in value]
        if isinstance(value, dict):
            raise TypeError("is no plain value")
        return self.of("text", value) if isinstance(value, str) and not is_plain(value) else value

    def picked(self, obj: Json, *fields: str) -> Json:
        return {name: self.plain(obj[name]) for name in fields if obj.get(name) is not None}

    def built(self, fields: Any, given: Any) -> Any:
        """Of `given` what its fields say: a function makes a value, a list stands for each item."""
        if isinstance(fields, list):
            return [self.built(fields[0], one) for one in given]
        if isinstance(fields, dict):
            return {name: self.built(of, given[name]) for name, of in fields.items() if given.get(name) is not None}
        return fields(self, given)

    def own(self, kind: str, name: object) -> str:
        """The number of a name in the namespace of the object. Such names sort as (namespace, name)."""
        return self.of(kind, f"{self.namespace}\0{name}") if name else ""

    def labels(self, given: Json) -> Json:
        found = {}
        for label, value in given.items():
            if label in _TOPOLOGY:
                found[label] = self.of(_kind(label), value)
            elif label in _GROUPS:
                found[label] = self.of("group", value)
            elif label in _PRODUCTS:
                found[label] = self._product(value)
            else:
                plain = _NUMBER if label in READ_ANNOTATIONS else _PLAIN if label in SHARING_LABELS else None
                if plain is not None and plain.fullmatch(value):  # such as the index of a pod
                    found[label] = value
        return found

    def _product(self, text: str) -> str:
        """A product, with the end that says of which part of its GPUs the plugin speaks."""
        if _OF_GKE.fullmatch(text):
            return text
        part = PARTITION_SUFFIX.search(text)
        return self._spoken(text[: part.start()]) + part.group() if part else self._spoken(text)

    def _spoken(self, text: str, kind: str = "value") -> str:
        """A text that says what a device is, if vendors use it; else a number."""
        if not is_of_vendor(text):
            return self.of(kind, text)
        self._of_vendors.add(text.lower())
        return text

    def _selected_label(self, label: str, value: str) -> tuple[str, str]:
        """A label of a node, or one that a pod selects."""
        if label in _PRODUCTS:
            return label, self._product(value)
        if label in _TOPOLOGY:
            return label, self.of(_kind(label), value)
        if label == _HOSTNAME:
            return label, self.of("node", value)
        rank = self._ranks.get(label, {}).get(value)
        return self.of("label", label), str(rank) if rank is not None else self.of("value", value)

    def selector(self, given: Json) -> Json:
        return dict(self._selected_label(*one) for one in given.items())

    def label(self, name: str) -> str:
        return self._selected_label(name, "")[0]

    def condition(self, given: Json) -> Json:
        return self._condition(given, self.label(given["key"]), given["key"])

    def field_condition(self, given: Json) -> Json:
        """A field of a node has the names that the label of its host has."""
        return self._condition(given, self.plain(given["key"]), _HOSTNAME)

    def _condition(self, given: Json, key: str, label: str) -> Json:
        values = [self._selected_label(label, value)[1] for value in given.get("values") or ()]
        return {"key": key, "operator": self.plain(given["operator"]), "values": values}

    def taint(self, key: str) -> str:
        return key if key in TAINTS else self.of("taint", key)

    def annotations(self, given: Json) -> Json:
        found = {}
        for name, value in given.items():
            if name in _GROUPS:  # Volcano's own names keep their beginning: they name no gang
                found[name] = self.of("podgroup" if str(value).startswith(VOLCANO_MADE) else "group", value)
            elif name in _ASKED and _PLAIN.fullmatch(str(value)):
                found[name] = value
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
            return ",".join(name for name, _ in named)
        sizes = [{"topology": name, "size": size if type(size) is int else 0} for name, size in named]
        return orjson.dumps(sizes).decode()

    def _level(self, name: str) -> str:
        label = self._levels.get(name, name)
        return label if label == ONE_NODE else self._selected_label(label, "")[0]

    def labels_of_node(self, given: Json) -> Json:
        selected = (one for one in given.items() if one[0] in self._selected)
        return self.labels(given) | dict(self._selected_label(*one) for one in selected)

    def amounts_of_resources(self, given: Json) -> Json:
        """Requests, or what a node offers. Resources with a domain are of device plugins or DeviceClasses."""
        return {
            self.resource(name): self.plain(amount)
            for name, amount in given.items()
            if is_resource(name) or "/" in name
        }

    def request_name(self, name: object) -> str:
        """The name of a request; `request/alternative` has two parts."""
        return "/".join(self.of("request", part) for part in str(name).split("/"))

    def device_name(self, name: str) -> str:
        return name if DEVICES.fullmatch(name) else self.of("device", name)

    def domain(self, name: str) -> str:
        """A driver, or the domain of an attribute. An unknown one keeps what says which devices a driver has."""
        if name in DOMAINS:
            return name
        end = next((driver for driver in DOMAINS if name.endswith(f".{driver}")), "example")
        words = name.partition(".")[0].split("-")
        word = next((one for one in _KINDS_OF_DRIVERS if one in words), "")
        return f"{word}{'.' * bool(word)}{self.of('domain', name)}.{end}"

    def _qualified(self, name: str, short: Callable[[str], str]) -> str:
        domain, slash, last = name.rpartition("/")
        return f"{self.domain(domain) if slash else ''}{slash}{short(last)}"

    def _attribute_name(self, short: str) -> str:
        """An identifier of CEL."""
        return short if short in ATTRIBUTES | EXPRESSION else self.of("attribute", short).replace("-", "_")

    def amount(self, name: str) -> str:
        """The name of a capacity or a counter. In an expression, one that is not known is an attribute."""
        return self._qualified(name, lambda short: short if short in AMOUNTS else self._attribute_name(short))

    def attributes(self, given: Json) -> Json:
        return dict(self._attribute(*one) for one in given.items())

    def _attribute(self, name: str, value: Json) -> tuple[str, Json]:
        """An attribute: texts, numbers and versions that may be those of one piece become numbers."""
        last = _last(name)
        found = self.picked(value, "bool", "bools")
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
                return value
            return self._spoken(value, kind) if name in SPOKEN else self.of(kind, value)
        if name in NUMBERS:
            return self.plain(value) if field == "int" else value if _VERSION.fullmatch(value) else "0.0.0"
        number = int(self.of("number", str(value)).rpartition("-")[2])
        return number if field == "int" else f"0.0.{number}"

    def expression(self, text: str) -> str:
        """A CEL expression, with numbers for the names in it. Comments are left out."""
        return _TOKEN.sub(self._token, text)

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
        if text.lower() in self._of_vendors or (("value", text) not in self._known and is_of_vendor(text)):
            return token
        if text == text.lower() and any(text in one for one in self._of_vendors):
            return token  # as in productName.lowerAscii().contains("h100")
        return f'"{self.domain(text) if ("domain", text) in self._known else self._of_value(text)}"'

    def _of_value(self, text: str) -> str:
        """What the text became where an attribute has it."""
        kinds = ("value", "attribute", "GPU", "MIG", "device")
        known = (self._known.get((kind, text)) for kind in kinds)
        found = next((one for one in known if one is not None), None) or self.of("value", text)
        return found.replace("-", "_") if found.startswith("attribute-") else found

    def marks(self, notes: Json) -> Json:
        """What Berth wrote to a claim about its pod: the group, and its sub-group."""
        found: Json = self.picked(notes, EXTENDED_CLAIM_ANNOTATION)
        if group := notes.get(GroupSource.BERTH.value):
            name = name_on_claims(group)
            found[GroupSource.BERTH.value] = group.removesuffix(name) + self.of("group", name)
        if index := subgroup_index_of(notes.get(GROUP_PART_ANNOTATION) or ""):
            subgroup = "/".join(self.of("group", name) for name in index.name.split("/"))
            found[GROUP_PART_ANNOTATION] = str(index._replace(name=subgroup))
        return found

    def owners_of_claim(self, given: Iterable[Json]) -> list[Json]:
        """The pods among them."""
        pods = (one for one in given if one.get("kind") == "Pod")
        return [{**self.picked(one, "apiVersion", "kind", "controller"), **self.consumer(one)} for one in pods]

    def consumer(self, given: Json) -> Json:
        is_pod = given.get("resource", "pods") == "pods"
        name = self.own("pod", given.get("name")) if is_pod else self.of("group", given.get("name"))
        return {**self.picked(given, "resource", "apiGroup"), "name": name, "uid": self.of("uid", given.get("uid"))}

    def class_(self, name: str) -> str:
        return name if name in CLASSES else self.of("class", name)

    def resource(self, name: str) -> str:
        """The name of a resource. An unknown one keeps a domain that says what it is."""
        domain, _, last = name.rpartition("/")
        if name.startswith(IMPLICIT_RESOURCE_PREFIX):
            return f"{domain}/{self.class_(last)}"
        if is_resource(name):
            return name
        return f"{domain if domain in PLUGIN_DOMAINS else 'example.com'}/{self.of('resource', name)}"

    def conditions(self, given: Sequence[Json]) -> list[Json]:
        """What its scheduler says of a pod."""
        found = list[Json]()
        for one in given:
            if one.get("type") == "PodScheduled":
                said = {name: one[name] for name in ("type", "status", "reason") if one.get(name) in _SAID}
                found.append({**said, "message": without_names(one.get("message") or "", self.resource)})
        return found

    def attribute_name(self, name: str) -> str:
        return self._qualified(name, self._attribute_name)

    def scheduler(self, name: str) -> str:
        return name if name in ("default-scheduler", "berth-scheduler") else self.of("scheduler", name)

    def owner(self, kind: str) -> str:
        return kind if kind in _OWNERS else "Owner"


# -- the fields that stay, by kind: a function makes a value, a list stands for each item, see _Names.built ----------


def _kept(*fields: str) -> Json:
    return dict.fromkeys(fields, _Names.plain)


def _of_cluster(kind: str) -> Callable[[_Names, object], str]:
    return lambda names, name: names.of(kind, name)


def _of_namespace(kind: str) -> Callable[[_Names, object], str]:
    return lambda names, name: names.own(kind, name)


_NODE, _GROUP = _of_cluster("node"), _of_cluster("group")


def _metadata(name: Callable[[_Names, Any], str], **more: Any) -> Json:
    known = {"name": name, "namespace": _of_cluster("namespace"), "uid": _of_cluster("uid")}
    return {**known, **_kept("creationTimestamp", "deletionTimestamp"), **more}


def _by_amount(of: Any) -> Callable[[_Names, Json], Json]:
    """Of values by the name of a capacity or a counter."""
    return lambda names, given: {names.amount(name): names.built(of, value) for name, value in given.items()}


_TAINT = {"key": _Names.taint, "value": _of_cluster("value"), **_kept("operator", "effect")}
_TERM = {"matchExpressions": [_Names.condition], "matchFields": [_Names.field_condition]}
_ENTRY = {
    "name": _of_cluster("entry"),
    "resourceClaimName": _of_namespace("claim"),
    "resourceClaimTemplateName": _of_namespace("template"),
}
_CONTAINER = {
    "name": _of_cluster("container"),
    "resources": {
        "requests": _Names.amounts_of_resources,
        "claims": [{"name": _of_cluster("entry"), "request": _Names.request_name}],
    },
    "restartPolicy": _Names.plain,
}
_OWNER = {"kind": _Names.owner, "name": _of_namespace("owner"), **_kept("controller")}
_POD = {
    "metadata": _metadata(
        _of_namespace("pod"), labels=_Names.labels, annotations=_Names.annotations, ownerReferences=[_OWNER]
    ),
    "spec": {
        "resourceClaims": [_ENTRY],
        "containers": [_CONTAINER],
        "initContainers": [_CONTAINER],
        "resources": {"requests": _Names.amounts_of_resources},
        "overhead": _Names.amounts_of_resources,
        "priority": _Names.plain,
        "nodeSelector": _Names.selector,
        "affinity": {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": [_TERM]}}},
        "tolerations": [_TAINT],
        "nodeName": _NODE,
        "schedulerName": _Names.scheduler,
        "schedulingGroup": {"podGroupName": _GROUP},
        "schedulingGates": [{"name": lambda _, name: name if name in GATES else "gate"}],
    },
    "status": {
        **_kept("phase", "startTime"),
        "conditions": _Names.conditions,
        "containerStatuses": [{"state": {"terminated": _kept("finishedAt")}}],
        "resourceClaimStatuses": [{"name": _of_cluster("entry"), "resourceClaimName": _of_namespace("claim")}],
        "extendedResourceClaimStatus": {"resourceClaimName": _of_namespace("claim")},
    },
}
_COUNTERS = _by_amount(_kept("value"))
_POLICY = {**_kept("default", "validValues"), "validRange": _kept("min", "max", "step")}
_DEVICE = {
    "name": _Names.device_name,
    **_kept("allNodes", "allowMultipleAllocations"),
    "attributes": _Names.attributes,
    "capacity": _by_amount({**_kept("value"), "requestPolicy": _POLICY}),
    "consumesCounters": [{"counterSet": _of_cluster("counters"), "counters": _COUNTERS}],
    "taints": [_TAINT],
}
_SLICE = {
    "metadata": _metadata(_of_namespace("slice")),
    "spec": {
        "driver": _Names.domain,
        **_kept("allNodes", "perDeviceNodeSelection"),
        "sharedCounters": [{"name": _of_cluster("counters"), "counters": _COUNTERS}],
        "nodeName": _NODE,
        "pool": {"name": _NODE, **_kept("generation", "resourceSliceCount")},
        "devices": [_DEVICE],
    },
}
_SELECTORS = [{"cel": {"expression": _Names.expression}}]
_OPTION = {
    "deviceClassName": _Names.class_,
    **_kept("allocationMode", "count", "adminAccess"),
    "selectors": _SELECTORS,
    "tolerations": [_TAINT],
    "capacity": {"requests": _by_amount(_Names.plain)},
}
_NAMED = {"name": _Names.request_name}
_REQUEST = {**_NAMED, "exactly": _OPTION, "firstAvailable": [{**_NAMED, **_OPTION}]}
_CONSTRAINT = {
    "matchAttribute": _Names.attribute_name,
    "distinctAttribute": _Names.attribute_name,
    "requests": [_Names.request_name],
}
_RESULT = {
    "request": _Names.request_name,
    "driver": _Names.domain,
    "pool": _NODE,
    "device": _Names.device_name,
    "adminAccess": _Names.plain,
    "shareID": _of_cluster("uid"),
    "consumedCapacity": _by_amount(_Names.plain),
}
_CLAIM = {
    "metadata": _metadata(_of_namespace("claim"), annotations=_Names.marks, ownerReferences=_Names.owners_of_claim),
    "spec": {"devices": {"requests": [_REQUEST], "constraints": [_CONSTRAINT]}},
    "status": {
        "allocation": {"devices": {"results": [_RESULT]}, "nodeSelector": {"nodeSelectorTerms": [_TERM]}},
        "reservedFor": [_Names.consumer],
    },
}
_POD_GROUP = {
    "metadata": _metadata(_GROUP),
    "spec": {
        **_kept("minMember", "scheduleTimeoutSeconds"),
        "schedulingPolicy": {"gang": _kept("minCount", "minGroupCount")},
        "schedulingConstraints": {"topology": [{"key": _Names.label}]},
        "parentCompositePodGroupName": _GROUP,
        "resourceClaims": [_ENTRY],
    },
}
_FIELDS: Mapping[str, Json] = {
    "Node": {
        "metadata": _metadata(_NODE, labels=_Names.labels_of_node),
        "spec": {"unschedulable": _Names.plain, "taints": [_TAINT]},
        "status": {"allocatable": _Names.amounts_of_resources, "conditions": [_kept("lastHeartbeatTime")]},
    },
    "Pod": _POD,
    "ResourceSlice": _SLICE,
    "ResourceClaim": _CLAIM,
    "DeviceClass": {
        "metadata": _metadata(_Names.class_),
        "spec": {"selectors": _SELECTORS, "extendedResourceName": _Names.resource},
    },
    "DeviceTaintRule": {
        "metadata": _metadata(_of_namespace("rule")),
        "spec": {
            "deviceSelector": {"driver": _Names.domain, "device": _Names.device_name, "pool": _NODE},
            "taint": _TAINT,
        },
    },
    "Namespace": {"metadata": _metadata(_of_cluster("namespace"))},
    "PodGroup": _POD_GROUP,
    "CompositePodGroup": _POD_GROUP,
    "LeaderWorkerSet": {
        "metadata": _metadata(
            _GROUP, annotations=lambda _, notes: {LWS_EXCLUSIVE: ""} if LWS_EXCLUSIVE in notes else {}
        ),
        "spec": {"leaderWorkerTemplate": _kept("size"), **_kept("startupPolicy")},
    },
}
