"""The fields of Kubernetes' built-in kinds, and the rules of kube-apiserver about the kinds of resource.k8s.io.

The models of the official client are the schema. The source of the rules is pkg/apis/resource/validation.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
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
_NAMES = {"int": "an integer", "bool": "a boolean"}
_TYPES: dict[str, type] = {"int": int, "bool": bool}
# Other maps and strings hold amounts, which may be numbers.
_TEXT_MAPS = ("labels", "annotations", "nodeSelector", "matchLabels")
_IDENTIFIER = re.compile(r"(?=.{1,32}\Z)[A-Za-z_]\w*", re.ASCII)
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


class FieldFault(NamedTuple):
    """A field that the API does not have, or a value of another type."""

    path: str
    problem: str
    correction: str = ""
    is_unknown: bool = False  # whether the API does not have the field
    severity: str = "error"  # "warning": kube-apiserver accepts it
    of_berth: bool = False  # kube-apiserver accepts it, but Berth refuses it


def _invalid(path: str, value: Any, why: str, correction: str = "") -> FieldFault:
    return FieldFault(path, f"Invalid value: {shown(value)}: {why}", correction)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The known name that is most like this one, as a correction; '' if none is."""
    lowered = {one.lower(): one for one in known}
    found = get_close_matches(name.lower(), lowered, n=1, cutoff=0.7)
    return f"did you mean {lowered[found[0]]}?" if found else ""


def has_schema(obj: Json) -> bool:
    """Whether the kind of an object is a built-in one, in this version."""
    return _model(obj) is not None


def kinds_like(version: str) -> list[str]:
    """The names of the types of a version, such as 'v1': all kinds are among them."""
    prefix = f"{version[:1].upper()}{version[1:]}"
    return [name.removeprefix(prefix) for name in dir(models) if name.startswith(prefix)]


def field_faults(obj: Json) -> Iterator[FieldFault]:
    """Yield the faults of an object; none for a kind without schema."""
    model = _model(obj)
    if model is not None:
        yield from _of_model(obj, model, "")


def faults_of_value(value: Any, kind: str, path: str) -> Iterator[FieldFault]:
    """Yield the faults of a value of a type of the client, such as V1PodSpec, at a path."""
    form, inner, model = _type_of(kind)
    if form == "list" and type(value) is list:
        for position, item in enumerate(value):
            yield from faults_of_value(item, inner, f"{path}[{position}]")
    elif form == "map" and type(value) is dict:
        for key, item in value.items():
            yield from faults_of_value(item, inner, f"{path}[{key}]")
    elif form == "model" and type(value) is dict:
        yield from _of_model(value, model, path)
    elif wanted := _wanted(value, kind, form):
        advice = f'write "{str(value).lower() if isinstance(value, bool) else value}"' if kind == "text" else ""
        yield FieldFault(path, f"must be {wanted}, is {shown(value)}", advice)


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


def claim_faults(obj: Json) -> Iterator[FieldFault]:
    """Yield the values of a claim or template that kube-apiserver refuses. Raises WireError for a wrong type."""
    devices, path = _devices(obj)
    yield from _sizes(devices, ("requests", "constraints", "config"), path)
    yield from _duplicates(objects(devices, "requests", path))
    for request, where in objects(devices, "requests", path):
        exactly = [(request["exactly"], f"{where}.exactly")] if isinstance(request.get("exactly"), dict) else []
        subrequests = objects(request, "firstAvailable", where)
        if bool(exactly) == bool(subrequests) and (exactly or not request.keys() - {"name"}):
            problem = f"needs `exactly` or `firstAvailable`{', not both' if exactly else ''}"
            yield FieldFault(where, problem, "write exactly: {deviceClassName: …}")
        yield from _sizes(request, ("firstAvailable",), where)
        yield from _duplicates(subrequests)
        for named, at in ((request, where), *subrequests):
            yield from _of_name(named, at)
        for option, at in (*exactly, *subrequests):
            yield from _of_option(option, at)
    known = request_names(devices, path)
    for constraint, where in objects(devices, "constraints", path):
        yield from _of_constraint(constraint, where)
        yield from _of_references(constraint, known, where)
    for config, where in objects(devices, "config", path):
        yield from _of_config(config, where)
        yield from _of_references(config, known, where)


def node_term_faults(affinity: Json, path: str) -> Iterator[FieldFault]:
    """Yield the operators in a pod's affinity that kube-apiserver refuses. Raises WireError for a wrong type."""
    of_nodes, where = get(affinity, "nodeAffinity", dict, path, {}), f"{path}.nodeAffinity"
    required, preferred = (f"{one}DuringSchedulingIgnoredDuringExecution" for one in ("required", "preferred"))
    selector = get(of_nodes, required, dict, where, {})
    terms = list(objects(selector, "nodeSelectorTerms", f"{where}.{required}"))
    for one, at in objects(of_nodes, preferred, where):
        terms.append((get(one, "preference", dict, at, {}), f"{at}.preference"))
    for term, at in terms:
        for field in ("matchExpressions", "matchFields"):
            for requirement, place in objects(term, field, at):
                yield from _one_of(requirement.get("operator"), _OF_NODES, f"{place}.operator")


def rule_faults(obj: Json) -> Iterator[FieldFault]:
    """Yield the values that kube-apiserver refuses in an object of resource.k8s.io, and those that have no or another
    effect than they seem to have. Raises WireError for a wrong type.
    """
    kind, spec = obj.get("kind"), get(obj, "spec", dict, "", {})
    if kind in ("ResourceClaim", "ResourceClaimTemplate"):
        yield from claim_faults(obj)
        devices, path = _devices(obj)
        for request, where in objects(devices, "requests", path):
            for option, at in (
                (get(request, "exactly", dict, where, {}), f"{where}.exactly"),
                *objects(request, "firstAvailable", where),
            ):
                yield from _doubts_of_option(option, at)
    elif kind == "DeviceClass":
        yield from _of_class(spec)
    elif kind == "DeviceTaintRule":
        yield from _of_taint(get(spec, "taint", dict, "spec", {}), "spec.taint")
        yield from _of_taint_selector(spec)
    elif kind == "ResourceSlice":
        yield from _of_slice(spec)


def _of_references(one: Json, known: Collection[str], where: str) -> Iterator[FieldFault]:
    names = strings(one, "requests", where)
    for position, name in enumerate(names):
        at = f"{where}.requests[{position}]"
        if name not in known:
            advice = f"the requests are: {', '.join(sorted(known))}"
            yield _invalid(at, name, "must be the name of a request in the claim", advice)
        elif name in names[:position]:
            yield FieldFault(at, f"Duplicate value: {shown(name)}", "delete it")


def _of_constraint(constraint: Json, where: str) -> Iterator[FieldFault]:
    named = [name for name in ("matchAttribute", "distinctAttribute") if constraint.get(name) is not None]
    if len(named) > 1 or not (named or constraint.keys() - {"requests"}):
        problem = "exactly one of `matchAttribute` and `distinctAttribute` is required"
        yield FieldFault(where, problem, "write a constraint for each" if named else "name an attribute")
    for field in named:
        name = string(constraint, field, where)
        problem = _qualified(name)
        if not problem and "/" not in name:
            problem = "must be a domain and a name separated by a slash"
        if problem:
            advice = f"write the domain first: {_domain_of(name)}/{name.rpartition('/')[2]}"
            yield _invalid(f"{where}.{field}", name, problem, advice)


def _domain_of(name: str) -> str:
    standard = name.rpartition("/")[2] in ("pcieRoot", "pciBusID", "numaNode")
    return "resource.kubernetes.io" if standard else "DRIVER"


def _qualified(name: str) -> str:
    """Why a name is neither an identifier nor DOMAIN/IDENTIFIER; '' if it is one."""
    domain, slash, bare = name.rpartition("/")
    if "/" in domain:
        return "must not contain more than one slash"
    if slash and not (len(domain) <= _MAX_DOMAIN and is_subdomain(domain.lower())):
        return f"the domain must be a DNS subdomain of at most {_MAX_DOMAIN} characters"
    return "" if _IDENTIFIER.fullmatch(bare) else "the name must have letters, digits and '_' only, at most 32"


def _of_config(config: Json, where: str) -> Iterator[FieldFault]:
    opaque = get(config, "opaque", dict, where, {})
    if not opaque:
        if not config.keys() - {"requests", "opaque"}:
            yield FieldFault(f"{where}.opaque", "Required value", "write opaque: {driver: …, parameters: {…}}")
        return
    yield from _of_driver(opaque, f"{where}.opaque")
    parameters = opaque.get("parameters")
    if not isinstance(parameters, dict):
        problem = "Required value" if parameters is None else "Invalid value: must be an object"
        yield FieldFault(f"{where}.opaque.parameters", problem, "write the object that the driver documents")
    elif len(orjson.dumps(parameters)) > _MAX_PARAMETERS:
        yield FieldFault(f"{where}.opaque.parameters", f"Too long: may not be more than {_MAX_PARAMETERS} bytes")


def _of_driver(obj: Json, where: str) -> Iterator[FieldFault]:
    name = string(obj, "driver", where)
    if not name:
        yield FieldFault(f"{where}.driver", "Required value", "name the driver")
    elif len(name) > _MAX_DOMAIN or not is_subdomain(name.lower()):
        yield _invalid(f"{where}.driver", name, "must be a DNS subdomain, at most 63 long")


def _of_class(spec: Json) -> Iterator[FieldFault]:
    yield from _sizes(spec, ("selectors", "config"), "spec")
    for config, where in objects(spec, "config", "spec"):
        yield from _of_config(config, where)
    name = string(spec, "extendedResourceName", "spec")
    domain, slash, rest = name.partition("/")
    is_native = domain.endswith("kubernetes.io") or domain.startswith("requests.")
    if name and (not slash or is_native or not is_subdomain(domain) or not is_label_value(rest)):
        advice = "write DOMAIN/NAME, with a domain of your own"
        yield _invalid("spec.extendedResourceName", name, "must be a valid extended resource name", advice)


def _of_selectors(obj: Json, where: str) -> Iterator[FieldFault]:
    for selector, at in objects(obj, "selectors", where):
        if not get(selector, "cel", dict, at, {}).get("expression") and not selector.keys() - {"cel"}:
            yield FieldFault(f"{at}.cel", "Required value", "write cel: {expression: …}")


def _one_of(value: Any, allowed: tuple[str, ...], path: str) -> Iterator[FieldFault]:
    if value and value not in allowed:
        advice = did_you_mean(str(value), allowed) or f"write one of {', '.join(allowed)}"
        yield FieldFault(path, f"Unsupported value: {shown(value)}: supported values: {', '.join(allowed)}", advice)


def _of_key(obj: Json, where: str) -> Iterator[FieldFault]:
    """The key and the value of a taint or a toleration."""
    key, value = string(obj, "key", where), string(obj, "value", where)
    domain, slash, name = key.rpartition("/")
    if key and not (is_label_value(name) and (is_subdomain(domain) or not slash)):
        yield _invalid(f"{where}.key", key, "must be a label name", "write DOMAIN/NAME")
    if value and not is_label_value(value):
        yield _invalid(f"{where}.value", value, "must be a label value")


def _of_toleration(toleration: Json, where: str) -> Iterator[FieldFault]:
    yield from _of_key(toleration, where)
    operator = toleration.get("operator")
    yield from _one_of(operator, _OPERATORS, f"{where}.operator")
    yield from _one_of(toleration.get("effect"), _EFFECTS, f"{where}.effect")
    if operator == "Exists" and (value := toleration.get("value")):
        advice = "delete the value, or write operator: Equal"
        yield _invalid(f"{where}.value", value, "must be empty for operator `Exists`", advice)


def _of_taint(taint: Json, where: str) -> Iterator[FieldFault]:
    yield from _of_key(taint, where)
    for field in ("key", "effect"):
        if not taint.get(field):
            yield FieldFault(f"{where}.{field}", "Required value", f"write a {field}" if field == "key" else "")
    yield from _one_of(taint.get("effect"), _EFFECTS, f"{where}.effect")


def _of_taint_selector(spec: Json) -> Iterator[FieldFault]:
    where = "spec.deviceSelector"
    selector = get(spec, "deviceSelector", dict, "spec", {})
    if "driver" in selector:
        yield from _of_driver(selector, where)
    problem = ""
    if spec.get("deviceSelector") is not None and not selector:
        problem = "is empty: the rule taints every device of the cluster"
    elif not selector and not spec.keys() - {"taint", "deviceSelector"}:
        problem = "is missing: the rule taints no device"
    if problem:
        yield FieldFault(where, problem, "name one of driver, pool, device", severity="warning")


def _doubts_of_option(option: Json, path: str) -> Iterator[FieldFault]:
    for toleration, where in objects(option, "tolerations", path):
        if not toleration.get("key") and (toleration.get("operator") == "Equal" or toleration.get("value")):
            problem = "an empty key needs operator Exists: with Equal, it covers taints of any key with this value"
            yield FieldFault(where, problem, "write a key, or operator: Exists without value", severity="warning")
    capacity, where = get(option, "capacity", dict, path, {}), f"{path}.capacity.requests"
    for name, value in get(capacity, "requests", dict, f"{path}.capacity", {}).items():
        negative = False
        try:
            negative = quantity(value, f"{where}[{name}]").nanos < 0
            amount(value, f"{where}[{name}]")
        except WireError as error:
            how = "write an amount as 40Gi (binary) or 40G (decimal)"
            yield FieldFault(error.path, error.problem, how, of_berth=negative)


def _of_slice(spec: Json) -> Iterator[FieldFault]:
    yield from _of_driver(spec, "spec")
    yield from _sizes(spec, ("devices", "sharedCounters"), "spec")
    pool, nodes = get(spec, "pool", dict, "spec", {}), [name for name in _NODES if spec.get(name)]
    if len(nodes) != 1:
        yield FieldFault("spec", f"exactly one of {', '.join(_NODES)} is required", "delete others" if nodes else "")
    if not pool.get("name") or not all(map(is_subdomain, str(pool["name"]).split("/"))):
        yield _invalid("spec.pool.name", pool.get("name"), "must be DNS subdomains")
    if (generation := get(pool, "generation", int, "spec.pool", 0)) < 0:
        yield _invalid("spec.pool.generation", generation, "must be greater than or equal to zero")
    if (node := string(spec, "nodeName", "spec")) and not is_subdomain(node):
        yield _invalid("spec.nodeName", node, "a lowercase RFC 1123 subdomain is required", "name the node")
    if spec.get("nodeSelector") is not None:
        yield from _of_node_selector(get(spec, "nodeSelector", dict, "spec", {}), "spec.nodeSelector")
    count = pool.get("resourceSliceCount")
    if type(count) is not int or count < 1:
        yield _invalid("spec.pool.resourceSliceCount", count, "must be greater than zero")
    if spec.get("devices") and spec.get("sharedCounters"):
        yield FieldFault("spec", "only one of `sharedCounters` or `devices` is allowed", "write two slices of the pool")
    devices = objects(spec, "devices", "spec")
    yield from _duplicates(devices)
    for device, where in devices:
        yield from _of_device(device, where)


def _of_node_selector(selector: Json, where: str) -> Iterator[FieldFault]:
    count = len(get(selector, "nodeSelectorTerms", list, where, []))
    if count != 1:
        problem = f"Invalid value: {count} terms: must have exactly one node selector term"
        yield FieldFault(f"{where}.nodeSelectorTerms", problem, "write one term with all expressions")


def _of_device(device: Json, where: str) -> Iterator[FieldFault]:
    yield from _of_name(device, where)
    yield from _sizes(device, ("taints", "consumesCounters", "bindingConditions", "bindingFailureConditions"), where)
    attributes, capacity = (get(device, field, dict, where, {}) for field in ("attributes", "capacity"))
    if len(attributes) + len(capacity) > _MAX_VALUES:
        yield FieldFault(where, f"has more than {_MAX_VALUES} attributes and capacities")
    for field, names in (("attributes", attributes), ("capacity", capacity)):
        for name in names:
            if problem := _qualified(name):
                yield _invalid(f"{where}.{field}", name, problem)
    for name, value in attributes.items():
        yield from _of_attribute(value, f"{where}.attributes[{name}]")
    for taint, at in objects(device, "taints", where):
        yield from _of_taint(taint, at)
    for consumed, at in objects(device, "consumesCounters", where):
        if not consumed.get("counters"):
            yield FieldFault(f"{at}.counters", "Required value", "write the amount of each counter")
    given = [bool(device.get(field)) for field in _BINDING]
    if given[0] != given[1]:
        missing, present = _BINDING if given[1] else reversed(_BINDING)
        yield FieldFault(f"{where}.{missing}", f"is required to use {present}", f"write {missing}, too")
    shares = device.get("allowMultipleAllocations") is True
    for name, value in capacity.items():
        policy = value.get("requestPolicy") if isinstance(value, dict) else None
        at = f"{where}.capacity[{name}].requestPolicy"
        if isinstance(policy, dict):
            if not shares:
                yield FieldFault(at, "Forbidden: allowMultipleAllocations must be true")
            yield from _of_policy(policy, value.get("value"), at)


def _of_attribute(value: Any, where: str) -> Iterator[FieldFault]:
    if not isinstance(value, dict):
        return
    given = {kind: one for kind, one in value.items() if one is not None}
    if len(given) != 1:
        yield FieldFault(where, "exactly one value must be specified", "write one of string, int, bool, version")
    for kind, one in given.items():
        for item in one if isinstance(one, list) else [one]:
            if isinstance(item, str) and len(item.encode()) > _MAX_TEXT:
                yield FieldFault(f"{where}.{kind}", f"Too long: may not be more than {_MAX_TEXT} bytes")
            elif kind.startswith("version") and not is_semver(str(item)):
                yield _invalid(f"{where}.{kind}", item, "must be a version of semver.org, as 1.2.3")


def _of_policy(policy: Json, total: Any, where: str) -> Iterator[FieldFault]:
    """The rules for requests of a part of a capacity: `total` is the whole."""
    values, limits = get(policy, "validValues", list, where, []), get(policy, "validRange", dict, where, {})
    if values and limits:
        yield FieldFault(where, "Forbidden: validValues and validRange cannot both be set", "delete one of them")
        return
    if not values and not limits:
        return
    if policy.get("default") is None:
        yield FieldFault(f"{where}.default", "Required value", "write the amount of a request that names none")
        return
    if limits and limits.get("min") is None:
        yield FieldFault(f"{where}.validRange.min", "Required value", "write the smallest amount")
        return
    default, most = _nanos(policy["default"], f"{where}.default"), _nanos(total, where)
    if values:
        allowed = [_nanos(value, f"{where}.validValues") for value in values]
        if default not in allowed or allowed != sorted(allowed):
            yield FieldFault(f"{where}.validValues", "must be in ascending order, and have the default among them")
    else:
        allowed = [_nanos(limits["min"], f"{where}.validRange.min"), _nanos(limits.get("max", total), where)]
        if not allowed[0] <= default <= allowed[1]:
            yield FieldFault(f"{where}.validRange", "the default must be between min and max")
    if max(allowed) > most:
        yield FieldFault(where, "has an amount that is larger than the capacity's value")


def _nanos(value: Any, where: str) -> int:
    return quantity(value, where).nanos


def _sizes(obj: Json, fields: Iterable[str], where: str) -> Iterator[FieldFault]:
    for field in fields:
        count, most = len(get(obj, field, list, where, [])), _MAX_ITEMS[field]
        if count > most:
            yield FieldFault(f"{where}.{field}", f"Too many: {count}: must have at most {most} items")


def _duplicates(requests: list[tuple[Json, str]]) -> Iterator[FieldFault]:
    seen: set[str] = set()
    for request, where in requests:
        name = str(request.get("name"))
        if name in seen:
            yield FieldFault(where, f"Duplicate value: {shown(name)}", "give each a name of its own")
        seen.add(name)


def _of_name(request: Json, path: str) -> Iterator[FieldFault]:
    name = request.get("name")
    if isinstance(name, str) and not is_label(name):
        advice = "use lower-case letters, digits and '-', at most 63"
        yield _invalid(f"{path}.name", name, "a lowercase RFC 1123 label is required", advice)


def _of_option(option: Json, path: str) -> Iterator[FieldFault]:
    name = string(option, "deviceClassName", path)
    advice = "name a DeviceClass: kubectl get deviceclasses"
    if not name and not option.keys() - {"selectors", "allocationMode", "count", "name", "deviceClassName"}:
        yield FieldFault(f"{path}.deviceClassName", "Required value", advice)
    if name and not is_subdomain(name):
        yield _invalid(f"{path}.deviceClassName", name, "a lowercase RFC 1123 subdomain is required", advice)
    mode = option.get("allocationMode")
    yield from _one_of(mode, _MODES, f"{path}.allocationMode")
    yield from _sizes(option, ("selectors", "tolerations"), path)
    yield from _of_selectors(option, path)
    for toleration, where in objects(option, "tolerations", path):
        yield from _of_toleration(toleration, where)
    yield from _of_count(option.get("count"), mode or "ExactCount", f"{path}.count")


def _of_count(count: Any, mode: Any, path: str) -> Iterator[FieldFault]:
    """kube-apiserver takes a count of 0 for one that is not set: it is 1 with ExactCount."""
    if type(count) is not int or count == 0:
        return
    if mode == "All":
        why = "must not be specified when allocationMode is 'All'"
        yield _invalid(path, count, why, "delete count, or allocationMode: All")
    elif mode == "ExactCount" and count < 0:
        yield _invalid(path, count, "must be greater than zero", "write the number of devices")


def claim_spec(obj: Json) -> tuple[Json, str]:
    """The spec of a claim or of a template's claims, and its path. Raises WireError."""
    spec = get(obj, "spec", dict, "", {})
    is_template = obj.get("kind") == "ResourceClaimTemplate"
    return (get(spec, "spec", dict, "spec", {}), "spec.spec") if is_template else (spec, "spec")


def _devices(obj: Json) -> tuple[Json, str]:
    spec, path = claim_spec(obj)
    return get(spec, "devices", dict, path, {}), f"{path}.devices"


def _model(obj: Json) -> Any:
    group, _, version = str(obj.get("apiVersion") or "").rpartition("/")
    prefix = _GROUPS.get(group)
    if prefix is None or not version:
        return None
    name = f"{version[:1].upper()}{version[1:]}{obj.get('kind')}"
    return getattr(models, f"{prefix}{name}", None) or getattr(models, name, None)


def _of_model(obj: Json, model: Any, path: str) -> Iterator[FieldFault]:
    types = _types(model)
    for name, value in obj.items():
        where = f"{path}.{name}".lstrip(".")
        if name not in types:
            problem = f"Kubernetes {RELEASE} has no such field"
            yield FieldFault(where, problem, _hint(name, types), is_unknown=True)
        elif value is not None:
            is_text = name in _TEXT_MAPS and types[name] == "Dict[str, str]"
            yield from faults_of_value(value, "Dict[str, text]" if is_text else types[name], where)


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


class _Type(NamedTuple):
    """A type of the client: "list" or "map" of other types, "model", or "scalar"."""

    form: str
    inner: str = ""
    model: Any = None


@lru_cache(_MAX_TYPES)
def _type_of(kind: str) -> _Type:
    for form, pattern in (("list", _LIST), ("map", _MAP)):
        found = pattern.fullmatch(kind)
        if found is not None:
            return _Type(form, found[1])
    model = getattr(models, kind, None) if kind[:1].isupper() else None
    return _Type("scalar") if model is None else _Type("model", model=model)


def _wanted(value: Any, kind: str, form: str) -> str:
    """The type that the value must have; '' if it has that type."""
    if form != "scalar":
        return "a list" if form == "list" else "an object"
    if kind == "text":
        return "" if type(value) is str else "a string"
    if kind == "str":
        return "a string" if type(value) in (dict, list) else ""
    return "" if kind not in _TYPES or type(value) is _TYPES[kind] else _NAMES[kind]
