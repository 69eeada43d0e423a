"""The fields of Kubernetes' built-in kinds, and the rules of kube-apiserver about the kinds of resource.k8s.io.

The models of the official client are the schema: `_walk` goes through an object and its types together. RULES has the
rules by type. Their source is pkg/apis/resource/validation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import kubernetes
import orjson
from kubernetes.client import models

from extender.api.fields import Json, amount, get, objects, quantity, string, strings
from extender.api.object_meta import is_label, is_label_value, is_subdomain
from extender.api.semver import is_semver
from extender.base.berth_errors import WireError
from extender.base.text_limits import shown

RELEASE = f"1.{kubernetes.__version__.partition('.')[0]}"  # of Kubernetes
_GROUPS = {
    "": "Core",
    "apps": "Apps",
    "batch": "Batch",
    "resource.k8s.io": "Resource",
    "scheduling.k8s.io": "Scheduling",
}
_LIST, _MAP = re.compile(r"List\[(.+)\]"), re.compile(r"Dict\[str, (.+)\]")
_SCALARS: dict[str, tuple[type, str]] = {
    "text": (str, "a string"),
    "int": (int, "an integer"),
    "bool": (bool, "a boolean"),
}
# Other maps and strings hold amounts, which may be numbers.
_TEXT_MAPS = ("labels", "annotations", "nodeSelector", "matchLabels")
_IDENTIFIER = re.compile(r"(?=.{1,32}\Z)[A-Za-z_]\w*", re.ASCII)
_VERSION = re.compile(r"V\d+(?:(?:alpha|beta)\d+)?")  # before the name of a type
_SPECS = {
    "ResourceClaim": "V1ResourceClaimSpec",
    "ResourceClaimTemplate": "V1ResourceClaimTemplateSpec",
    "DeviceClass": "V1DeviceClassSpec",
    "DeviceTaintRule": "V1beta2DeviceTaintRuleSpec",
    "ResourceSlice": "V1ResourceSliceSpec",
}
_MODES = ("All", "ExactCount")
_OPERATORS, _EFFECTS = ("Equal", "Exists"), ("NoExecute", "NoSchedule", "None")
_OF_NODES = ("DoesNotExist", "Exists", "Gt", "In", "Lt", "NotIn")
_NODES = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
# The most items of a list.
_MAX_ITEMS = {
    "requests": 32, "firstAvailable": 8, "selectors": 32, "constraints": 32, "config": 32, "tolerations": 16,
    "taints": 16, "devices": 128, "sharedCounters": 8, "consumesCounters": 2, "bindingConditions": 4,
    "bindingFailureConditions": 4,
}  # fmt: skip
_MAX_PARAMETERS, _MAX_TEXT, _MAX_VALUES, _MAX_DOMAIN = 10 * 1024, 64, 32, 63
_BINDING = ("bindingConditions", "bindingFailureConditions")
_MAX_LISTED = 8  # fields of an object that a correction lists
_MAX_TYPES = 4096  # types of the client and their fields; it has about 1,000


class LintFinding(NamedTuple):
    """What is wrong with one field of one object, or a note about what was not checked.

    An error keeps pods from running; a warning may be on purpose.
    """

    severity: str  # "error", "warning" or "note"
    where: str  # the object and the field
    problem: str
    correction: str = ""
    fixed: bool = False  # whether `berth lint --fix` prints the object without the problem
    is_unknown: bool = False  # whether the API does not have the field
    is_accepted: bool = False  # by kube-apiserver, but not by Berth

    def within(self, location: str) -> LintFinding:
        """The finding with the location of its object before the field."""
        return self._replace(where=f"{location}, {self.where}" if self.where else location)


Faults = Iterator[LintFinding]


def _fault(path: str, problem: str, correction: str = "", **more: bool) -> LintFinding:
    return LintFinding("error", path, problem, correction, **more)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The known name that is most like this one, as a correction; '' if none is."""
    lowered = {one.lower(): one for one in known}
    found = get_close_matches(name.lower(), lowered, n=1, cutoff=0.7)
    return f"did you mean {lowered[found[0]]}?" if found else ""


def has_schema(obj: Json) -> bool:
    """Whether the kind of an object is a built-in one, in this version."""
    return bool(_type_name(obj))


def kinds_like(version: str) -> list[str]:
    """The names of the types of a version, such as 'v1': all kinds are among them."""
    prefix = f"{version[:1].upper()}{version[1:]}"
    return [name.removeprefix(prefix) for name in dir(models) if name.startswith(prefix)]


def field_faults(obj: Json) -> Faults:
    """Yield the unknown fields and wrong types of an object; none for a kind without schema."""
    kind = _type_name(obj)
    if kind:
        yield from faults_of_value(obj, kind, "")


def faults_of_value(value: Any, kind: str, path: str) -> Faults:
    """The unknown fields and wrong types in a value of a type of the client, such as V1PodSpec, at a path."""
    for found, one, where in _walk(value, kind, path):
        if found.form == "unknown":
            problem = f"Kubernetes {RELEASE} has no such field"
            yield _fault(where, problem, _hint(found.name, _types(found.model)), is_unknown=True)
        elif wanted := _wanted(one, found):
            advice = f'write "{str(one).lower() if isinstance(one, bool) else one}"' if found.name == "text" else ""
            yield _fault(where, f"must be {wanted}, is {shown(one)}", advice)


def rule_faults(obj: Json) -> Faults:
    """Yield the values that kube-apiserver refuses in an object of resource.k8s.io, and those that have no or another
    effect than they seem to have. Raises WireError for a wrong type.
    """
    kind = _SPECS.get(str(obj.get("kind")))
    if kind is not None:
        yield from _broken_rules(get(obj, "spec", dict, "", {}), kind, "spec")


def refused_values(value: Json, kind: str, path: str) -> Faults:
    """The values that kube-apiserver refuses in a value of a type of the client at a path. Raises WireError."""
    return filter(_is_refused, _broken_rules(value, kind, path))


def refused_in(obj: Json) -> Faults:
    """The values that kube-apiserver refuses in an object of resource.k8s.io. Raises WireError."""
    return filter(_is_refused, rule_faults(obj))


def _is_refused(fault: LintFinding) -> bool:
    return fault.severity == "error" and not fault.is_accepted


def request_names(devices: Json, path: str) -> frozenset[str]:
    """The requests of a claim's spec.devices, and the subrequests as request/subrequest. Raises WireError."""
    found: set[str] = set()
    for request, where in objects(devices, "requests", path):
        name = str(request.get("name"))
        found |= {name, *(f"{name}/{sub.get('name')}" for sub, _ in objects(request, "firstAvailable", where))}
    return frozenset(found)


def request_options(devices: Json) -> Iterator[tuple[str, Json]]:
    """Yield (request, or request/subrequest; the option) of a claim's spec.devices. Raises WireError."""
    for request, where in objects(devices, "requests", ""):
        name = str(request.get("name"))
        if isinstance(request.get("exactly"), dict):
            yield name, request["exactly"]
        for sub, _ in objects(request, "firstAvailable", where):
            yield f"{name}/{sub.get('name')}", sub


def claim_spec(obj: Json) -> tuple[Json, str]:
    """The spec of a claim or of a template's claims, and its path. Raises WireError."""
    spec = get(obj, "spec", dict, "", {})
    is_template = obj.get("kind") == "ResourceClaimTemplate"
    return (get(spec, "spec", dict, "spec", {}), "spec.spec") if is_template else (spec, "spec")


# -- the schema ------------------------------------------------------------------------------------------------------


class _Type(NamedTuple):
    """A type of the client: "list" or "map" of other types, "model", or "scalar"; "unknown": no field of the model."""

    name: str
    form: str
    inner: str = ""
    model: Any = None


def _walk(value: Any, kind: str, path: str) -> Iterator[tuple[_Type, Any, str]]:
    """Yield (type, value, path) of a value and of all in it."""
    found = _type_of(kind)
    yield found, value, path
    if _wanted(value, found):
        pass  # what is in it has no type
    elif found.form == "list":
        for position, item in enumerate(value):
            yield from _walk(item, found.inner, f"{path}[{position}]")
    elif found.form == "map":
        for key, item in value.items():
            yield from _walk(item, found.inner, f"{path}[{key}]")
    elif found.form == "model":
        types = _types(found.model)
        for name, item in value.items():
            where = f"{path}.{name}".lstrip(".")
            if name not in types:
                yield _Type(name, "unknown", model=found.model), item, where
            elif item is not None:
                is_text = name in _TEXT_MAPS and types[name] == "Dict[str, str]"
                yield from _walk(item, "Dict[str, text]" if is_text else types[name], where)


def _wanted(value: Any, found: _Type) -> str:
    """The type that the value must have; '' if it has that type."""
    if found.form == "list":
        return "" if type(value) is list else "a list"
    if found.form != "scalar":
        return "" if type(value) is dict else "an object"
    if found.name == "str":
        return "a string" if type(value) in (dict, list) else ""
    wanted, name = _SCALARS.get(found.name, (type(value), ""))
    return "" if type(value) is wanted else name


def _type_name(obj: Json) -> str:
    """The name of the type of an object; '' if the client does not have it."""
    group, _, version = str(obj.get("apiVersion") or "").rpartition("/")
    prefix = _GROUPS.get(group)
    if prefix is None or not version:
        return ""
    name = f"{version[:1].upper()}{version[1:]}{obj.get('kind')}"
    return next((one for one in (f"{prefix}{name}", name) if hasattr(models, one)), "")


@lru_cache(_MAX_TYPES)
def _type_of(kind: str) -> _Type:
    for form, pattern in (("list", _LIST), ("map", _MAP)):
        found = pattern.fullmatch(kind)
        if found is not None:
            return _Type(kind, form, found[1])
    model = getattr(models, kind, None) if kind[:1].isupper() else None
    return _Type(kind, "scalar") if model is None else _Type(_VERSION.sub("", kind), "model", model=model)


@lru_cache(_MAX_TYPES)
def _types(model: Any) -> Mapping[str, str]:
    """Field to type, as the API names them."""
    return MappingProxyType({model.attribute_map[name]: kind for name, kind in model.openapi_types.items()})


def _hint(name: str, types: Mapping[str, str]) -> str:
    """The field that the user may have meant instead: a field of the same object, or one inside of these."""
    if name == "$patch":
        return "this is a patch, not an object: check what kubectl kustomize prints"
    if name in ("name", "namespace", "labels", "annotations") and "metadata" in types:
        return f"did you mean metadata.{name}?"
    if found := did_you_mean(name, types):
        return found
    for outer, kind in types.items():
        model = getattr(models, kind, None)
        if model is not None and outer != "metadata":
            for inner in model.attribute_map.values():
                if did_you_mean(name, [inner]):
                    return f"did you mean {outer}.{inner}?"
    return f"known here: {', '.join(sorted(types))}" if len(types) <= _MAX_LISTED else ""


# -- the rules -------------------------------------------------------------------------------------------------------


def _broken_rules(value: Json, kind: str, path: str) -> Faults:
    """The faults of all values in this one by the rules of their types. Raises WireError for a text of another type."""
    for found, one, where in _walk(value, kind, path):
        if found.form == "model" and not _wanted(one, found):
            for rule in RULES.get(found.name, ()):
                yield from rule(one, where)


def _invalid(path: str, value: Any, why: str, correction: str = "") -> LintFinding:
    return _fault(path, f"Invalid value: {shown(value)}: {why}", correction)


def _doubt(path: str, problem: str, correction: str) -> LintFinding:
    """What kube-apiserver accepts, with no or another effect than it seems to have."""
    return LintFinding("warning", path, problem, correction)


def _sizes(obj: Json, where: str) -> Faults:
    for field in obj.keys() & _MAX_ITEMS.keys():
        items, most = obj[field], _MAX_ITEMS[field]
        if isinstance(items, list) and len(items) > most:
            yield _fault(f"{where}.{field}", f"Too many: {len(items)}: must have at most {most} items")


def _one_of(value: Any, allowed: tuple[str, ...], path: str) -> Faults:
    if value and value not in allowed:
        advice = did_you_mean(str(value), allowed) or f"write one of {', '.join(allowed)}"
        yield _fault(path, f"Unsupported value: {shown(value)}: supported values: {', '.join(allowed)}", advice)


def _duplicates(named: list[tuple[Json, str]]) -> Faults:
    seen: set[str] = set()
    for one, where in named:
        name = str(one.get("name"))
        if name in seen:
            yield _fault(where, f"Duplicate value: {shown(name)}", "give each a name of its own")
        seen.add(name)


def _name(obj: Json, path: str) -> Faults:
    name = obj.get("name")
    if isinstance(name, str) and not is_label(name):
        advice = "use lower-case letters, digits and '-', at most 63"
        yield _invalid(f"{path}.name", name, "a lowercase RFC 1123 label is required", advice)


def _driver(obj: Json, where: str) -> Faults:
    name = string(obj, "driver", where)
    if not name:
        yield _fault(f"{where}.driver", "Required value", "name the driver")
    elif len(name) > _MAX_DOMAIN or not is_subdomain(name.lower()):
        yield _invalid(f"{where}.driver", name, "must be a DNS subdomain, at most 63 long")


def _qualified(name: str) -> str:
    """Why a name is neither an identifier nor DOMAIN/IDENTIFIER; '' if it is one."""
    domain, slash, bare = name.rpartition("/")
    if "/" in domain:
        return "must not contain more than one slash"
    if slash and not (len(domain) <= _MAX_DOMAIN and is_subdomain(domain.lower())):
        return f"the domain must be a DNS subdomain of at most {_MAX_DOMAIN} characters"
    return "" if _IDENTIFIER.fullmatch(bare) else "the name must have letters, digits and '_' only, at most 32"


def _of_claim(devices: Json, path: str) -> Faults:
    yield from _duplicates(objects(devices, "requests", path))
    known = request_names(devices, path)
    for field in ("constraints", "config"):
        for one, where in objects(devices, field, path):
            names = strings(one, "requests", where)
            for position, name in enumerate(names):
                at = f"{where}.requests[{position}]"
                if name not in known:
                    advice = f"the requests are: {', '.join(sorted(known))}"
                    yield _invalid(at, name, "must be the name of a request in the claim", advice)
                elif name in names[:position]:
                    yield _fault(at, f"Duplicate value: {shown(name)}", "delete it")


def _of_request(request: Json, where: str) -> Faults:
    exactly, subrequests = isinstance(request.get("exactly"), dict), objects(request, "firstAvailable", where)
    if exactly == bool(subrequests) and (exactly or not request.keys() - {"name"}):
        problem = f"needs `exactly` or `firstAvailable`{', not both' if exactly else ''}"
        yield _fault(where, problem, "write exactly: {deviceClassName: …}")
    yield from _duplicates(subrequests)


def _of_option(option: Json, path: str) -> Faults:
    name, advice = string(option, "deviceClassName", path), "name a DeviceClass: kubectl get deviceclasses"
    if not name and not option.keys() - {"selectors", "allocationMode", "count", "name", "deviceClassName"}:
        yield _fault(f"{path}.deviceClassName", "Required value", advice)
    if name and not is_subdomain(name):
        yield _invalid(f"{path}.deviceClassName", name, "a lowercase RFC 1123 subdomain is required", advice)
    for selector, where in objects(option, "selectors", path):
        if not get(selector, "cel", dict, where, {}).get("expression") and not selector.keys() - {"cel"}:
            yield _fault(f"{where}.cel", "Required value", "write cel: {expression: …}")
    mode, count = option.get("allocationMode"), option.get("count")
    yield from _one_of(mode, _MODES, f"{path}.allocationMode")
    if type(count) is not int or count == 0:  # kube-apiserver takes 0 for a count that is not set: 1 with ExactCount
        return
    if mode == "All":
        why = "must not be specified when allocationMode is 'All'"
        yield _invalid(f"{path}.count", count, why, "delete count, or allocationMode: All")
    elif mode in (None, "", "ExactCount") and count < 0:
        yield _invalid(f"{path}.count", count, "must be greater than zero", "write the number of devices")


def _of_amounts(capacity: Json, path: str) -> Faults:
    """The amounts of a request. kube-apiserver accepts a negative one."""
    for name, value in get(capacity, "requests", dict, path, {}).items():
        where, negative = f"{path}.requests[{name}]", False
        try:
            negative = quantity(value, where).nanos < 0
            amount(value, where)
        except WireError as error:
            how = "write an amount as 40Gi (binary) or 40G (decimal)"
            yield _fault(error.path, error.problem, how, is_accepted=negative)


def _of_constraint(constraint: Json, where: str) -> Faults:
    named = [name for name in ("matchAttribute", "distinctAttribute") if constraint.get(name) is not None]
    if len(named) > 1 or not (named or constraint.keys() - {"requests"}):
        problem = "exactly one of `matchAttribute` and `distinctAttribute` is required"
        yield _fault(where, problem, "write a constraint for each" if named else "name an attribute")
    for field in named:
        name = string(constraint, field, where)
        problem = _qualified(name) or ("" if "/" in name else "must be a domain and a name separated by a slash")
        if problem:
            bare = name.rpartition("/")[2]
            domain = "resource.kubernetes.io" if bare in ("pcieRoot", "pciBusID", "numaNode") else "DRIVER"
            yield _invalid(f"{where}.{field}", name, problem, f"write the domain first: {domain}/{bare}")


def _of_config(config: Json, where: str) -> Faults:
    if not config.get("opaque") and not config.keys() - {"requests", "opaque"}:
        yield _fault(f"{where}.opaque", "Required value", "write opaque: {driver: …, parameters: {…}}")


def _of_opaque(opaque: Json, where: str) -> Faults:
    if not opaque:
        return  # see _of_config
    yield from _driver(opaque, where)
    parameters = opaque.get("parameters")
    if not isinstance(parameters, dict):
        problem = "Required value" if parameters is None else "Invalid value: must be an object"
        yield _fault(f"{where}.parameters", problem, "write the object that the driver documents")
    elif len(orjson.dumps(parameters)) > _MAX_PARAMETERS:
        yield _fault(f"{where}.parameters", f"Too long: may not be more than {_MAX_PARAMETERS} bytes")


def _of_class(spec: Json, path: str) -> Faults:
    name = string(spec, "extendedResourceName", path)
    domain, slash, rest = name.partition("/")
    is_native = domain.endswith("kubernetes.io") or domain.startswith("requests.")
    if name and (not slash or is_native or not is_subdomain(domain) or not is_label_value(rest)):
        advice = "write DOMAIN/NAME, with a domain of your own"
        yield _invalid(f"{path}.extendedResourceName", name, "must be a valid extended resource name", advice)


def _of_taint_or_toleration(obj: Json, where: str) -> Faults:
    key, value = string(obj, "key", where), string(obj, "value", where)
    domain, slash, name = key.rpartition("/")
    if key and not (is_label_value(name) and (is_subdomain(domain) or not slash)):
        yield _invalid(f"{where}.key", key, "must be a label name", "write DOMAIN/NAME")
    if value and not is_label_value(value):
        yield _invalid(f"{where}.value", value, "must be a label value")
    yield from _one_of(obj.get("effect"), _EFFECTS, f"{where}.effect")


def _of_toleration(toleration: Json, where: str) -> Faults:
    operator, value = toleration.get("operator"), toleration.get("value")
    yield from _one_of(operator, _OPERATORS, f"{where}.operator")
    if operator == "Exists" and value:
        advice = "delete the value, or write operator: Equal"
        yield _invalid(f"{where}.value", value, "must be empty for operator `Exists`", advice)
    elif not toleration.get("key") and (operator == "Equal" or value):
        problem = "an empty key needs operator Exists: with Equal, it covers taints of any key with this value"
        yield _doubt(where, problem, "write a key, or operator: Exists without value")


def _of_taint(taint: Json, where: str) -> Faults:
    for field in ("key", "effect"):
        if not taint.get(field):
            yield _fault(f"{where}.{field}", "Required value", f"write a {field}" if field == "key" else "")


def _of_taint_rule(spec: Json, path: str) -> Faults:
    where, selector = f"{path}.deviceSelector", get(spec, "deviceSelector", dict, path, {})
    if "driver" in selector:
        yield from _driver(selector, where)
    if selector or spec.keys() - {"taint", "deviceSelector"}:
        return
    is_given = spec.get("deviceSelector") is not None
    problem = (
        "is empty: the rule taints every device of the cluster" if is_given else "is missing: the rule taints no device"
    )
    yield _doubt(where, problem, "name one of driver, pool, device")


def _of_node_term(requirement: Json, path: str) -> Faults:
    yield from _one_of(requirement.get("operator"), _OF_NODES, f"{path}.operator")


def _of_slice(spec: Json, path: str) -> Faults:
    pool, nodes = get(spec, "pool", dict, path, {}), [name for name in _NODES if spec.get(name)]
    if len(nodes) != 1:
        yield _fault(path, f"exactly one of {', '.join(_NODES)} is required", "delete others" if nodes else "")
    if not pool.get("name") or not all(map(is_subdomain, str(pool["name"]).split("/"))):
        yield _invalid(f"{path}.pool.name", pool.get("name"), "must be DNS subdomains")
    if (generation := get(pool, "generation", int, f"{path}.pool", 0)) < 0:
        yield _invalid(f"{path}.pool.generation", generation, "must be greater than or equal to zero")
    if (node := string(spec, "nodeName", path)) and not is_subdomain(node):
        yield _invalid(f"{path}.nodeName", node, "a lowercase RFC 1123 subdomain is required", "name the node")
    if spec.get("nodeSelector") is not None:
        where = f"{path}.nodeSelector"
        terms = get(get(spec, "nodeSelector", dict, path, {}), "nodeSelectorTerms", list, where, [])
        if len(terms) != 1:
            problem = f"Invalid value: {len(terms)} terms: must have exactly one node selector term"
            yield _fault(f"{where}.nodeSelectorTerms", problem, "write one term with all expressions")
    count = pool.get("resourceSliceCount")
    if type(count) is not int or count < 1:
        yield _invalid(f"{path}.pool.resourceSliceCount", count, "must be greater than zero")
    if spec.get("devices") and spec.get("sharedCounters"):
        yield _fault(path, "only one of `sharedCounters` or `devices` is allowed", "write two slices of the pool")
    yield from _duplicates(objects(spec, "devices", path))


def _of_device(device: Json, where: str) -> Faults:
    attributes, capacity = (get(device, field, dict, where, {}) for field in ("attributes", "capacity"))
    if len(attributes) + len(capacity) > _MAX_VALUES:
        yield _fault(where, f"has more than {_MAX_VALUES} attributes and capacities")
    for field, names in (("attributes", attributes), ("capacity", capacity)):
        for name in names:
            if problem := _qualified(name):
                yield _invalid(f"{where}.{field}", name, problem)
    given = [bool(device.get(field)) for field in _BINDING]
    if given[0] != given[1]:
        missing, present = _BINDING if given[1] else reversed(_BINDING)
        yield _fault(f"{where}.{missing}", f"is required to use {present}", f"write {missing}, too")
    for name, value in capacity.items():
        policy = value.get("requestPolicy") if isinstance(value, dict) else None
        if isinstance(policy, dict) and device.get("allowMultipleAllocations") is not True:
            at = f"{where}.capacity[{name}].requestPolicy"
            yield _fault(at, "Forbidden: allowMultipleAllocations must be true")


def _of_counters(consumed: Json, where: str) -> Faults:
    if not consumed.get("counters"):
        yield _fault(f"{where}.counters", "Required value", "write the amount of each counter")


def _of_attribute(value: Json, where: str) -> Faults:
    given = {kind: one for kind, one in value.items() if one is not None}
    if len(given) != 1:
        yield _fault(where, "exactly one value must be specified", "write one of string, int, bool, version")
    for kind, one in given.items():
        for item in one if isinstance(one, list) else [one]:
            if isinstance(item, str) and len(item.encode()) > _MAX_TEXT:
                yield _fault(f"{where}.{kind}", f"Too long: may not be more than {_MAX_TEXT} bytes")
            elif kind.startswith("version") and not is_semver(str(item)):
                yield _invalid(f"{where}.{kind}", item, "must be a version of semver.org, as 1.2.3")


def _of_capacity(capacity: Json, path: str) -> Faults:
    """The rules for requests of a part of a capacity."""
    policy, where = get(capacity, "requestPolicy", dict, path, {}), f"{path}.requestPolicy"
    values, limits = get(policy, "validValues", list, where, []), get(policy, "validRange", dict, where, {})
    if values and limits:
        yield _fault(where, "Forbidden: validValues and validRange cannot both be set", "delete one of them")
        return
    if not values and not limits:
        return
    if policy.get("default") is None:
        yield _fault(f"{where}.default", "Required value", "write the amount of a request that names none")
        return
    if limits and limits.get("min") is None:
        yield _fault(f"{where}.validRange.min", "Required value", "write the smallest amount")
        return
    default, most = _nanos(policy["default"], f"{where}.default"), _nanos(capacity.get("value"), where)
    if values:
        allowed = [_nanos(value, f"{where}.validValues") for value in values]
        if default not in allowed or allowed != sorted(allowed):
            yield _fault(f"{where}.validValues", "must be in ascending order, and have the default among them")
    else:
        allowed = [
            _nanos(limits["min"], f"{where}.validRange.min"),
            _nanos(limits.get("max", capacity.get("value")), where),
        ]
        if not allowed[0] <= default <= allowed[1]:
            yield _fault(f"{where}.validRange", "the default must be between min and max")
    if max(allowed) > most:
        yield _fault(where, "has an amount that is larger than the capacity's value")


def _nanos(value: Any, where: str) -> int:
    return quantity(value, where).nanos


# By type without its version. Each takes a value of the type and its path.
RULES: Mapping[str, Collection[Callable[[Json, str], Faults]]] = {
    "DeviceClaim": (_sizes, _of_claim),
    "DeviceRequest": (_sizes, _name, _of_request),
    "ExactDeviceRequest": (_sizes, _of_option),
    "DeviceSubRequest": (_sizes, _name, _of_option),
    "CapacityRequirements": (_of_amounts,),
    "DeviceToleration": (_of_taint_or_toleration, _of_toleration),
    "DeviceConstraint": (_of_constraint,),
    "DeviceClaimConfiguration": (_of_config,),
    "DeviceClassConfiguration": (_of_config,),
    "OpaqueDeviceConfiguration": (_of_opaque,),
    "DeviceClassSpec": (_sizes, _of_class),
    "DeviceTaintRuleSpec": (_of_taint_rule,),
    "DeviceTaint": (_of_taint_or_toleration, _of_taint),
    "NodeSelectorRequirement": (_of_node_term,),
    "ResourceSliceSpec": (_driver, _sizes, _of_slice),
    "Device": (_name, _sizes, _of_device),
    "DeviceAttribute": (_of_attribute,),
    "DeviceCapacity": (_of_capacity,),
    "DeviceCounterConsumption": (_of_counters,),
}
