"""The fields of Kubernetes' built-in kinds, and rules of kube-apiserver 1.36 about claims.

The models of the official client are the schema. The source of the rules is pkg/apis/resource/validation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import kubernetes
from kubernetes.client import models

from extender.model import shown
from extender.wire import Json, get, string_list

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
_SUBDOMAIN = re.compile(r"(?=.{1,253}\Z)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"(?=.{1,63}\Z)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
_MODES = ("All", "ExactCount")
_REMEMBERED = 4096  # types of the client and their fields; it has about 1,000


class FieldFault(NamedTuple):
    """A field that the API does not have, or a value of another type."""

    path: str
    problem: str
    correction: str = ""
    unknown: str | None = None  # the name of a field that the API does not have
    known: tuple[str, ...] = ()  # the fields beside an unknown one
    inside: tuple[str, ...] = ()  # the fields of these, as outer.inner


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


def is_subdomain(name: str) -> bool:
    """Whether a name is a DNS subdomain."""
    return _SUBDOMAIN.fullmatch(name) is not None


def is_label(name: str) -> bool:
    """Whether a name is a DNS label."""
    return _LABEL.fullmatch(name) is not None


def request_names(devices: Json, path: str) -> frozenset[str]:
    """The requests of a claim's spec.devices, and the subrequests as request/subrequest. Raises WireError."""
    found: set[str] = set()
    for request, where in _objects(devices, "requests", path):
        name = str(request.get("name"))
        found |= {name, *(f"{name}/{sub.get('name')}" for sub, _ in _objects(request, "firstAvailable", where))}
    return frozenset(found)


def request_options(devices: Json) -> Iterator[tuple[str, Json]]:
    """Yield (request, or request/subrequest; the option) of a claim's spec.devices. Raises WireError."""
    for request, where in _objects(devices, "requests", ""):
        name = str(request.get("name"))
        if isinstance(request.get("exactly"), dict):
            yield name, request["exactly"]
        for sub, _ in _objects(request, "firstAvailable", where):
            yield f"{name}/{sub.get('name')}", sub


def claim_faults(obj: Json) -> Iterator[FieldFault]:
    """Yield the values of a claim or template that kube-apiserver refuses. Raises WireError for a wrong type."""
    devices, path = _devices(obj)
    yield from _duplicates(_objects(devices, "requests", path))
    for request, where in _objects(devices, "requests", path):
        exactly = [(request["exactly"], f"{where}.exactly")] if isinstance(request.get("exactly"), dict) else []
        subrequests = _objects(request, "firstAvailable", where)
        yield from _duplicates(subrequests)
        for named, at in ((request, where), *subrequests):
            yield from _of_name(named, at)
        for option, at in (*exactly, *subrequests):
            yield from _of_option(option, at)
    known = request_names(devices, path)
    for field in ("constraints", "config"):
        for one, where in _objects(devices, field, path):
            for position, name in enumerate(string_list(one, "requests", where)):
                if name not in known:
                    problem = f"Invalid value: {shown(name)}: must be the name of a request in the claim"
                    advice = f"the requests are: {', '.join(sorted(known))}"
                    yield FieldFault(f"{where}.requests[{position}]", problem, advice)


def _duplicates(requests: list[tuple[Json, str]]) -> Iterator[FieldFault]:
    seen: set[str] = set()
    for request, where in requests:
        name = str(request.get("name"))
        if name in seen:
            yield FieldFault(where, f"Duplicate value: {shown(name)}", "give each request a name of its own")
        seen.add(name)


def _of_name(request: Json, path: str) -> Iterator[FieldFault]:
    name = request.get("name")
    if isinstance(name, str) and not is_label(name):
        problem = f"Invalid value: {shown(name)}: a lowercase RFC 1123 label is required"
        yield FieldFault(f"{path}.name", problem, "use lower-case letters, digits and '-', at most 63")


def _of_option(option: Json, path: str) -> Iterator[FieldFault]:
    name = get(option, "deviceClassName", str, path, "")
    if name and not is_subdomain(name):
        problem = f"Invalid value: {shown(name)}: a lowercase RFC 1123 subdomain is required"
        yield FieldFault(f"{path}.deviceClassName", problem, "name a DeviceClass: kubectl get deviceclasses")
    mode = option.get("allocationMode")
    if mode and mode not in _MODES:
        problem = f"Unsupported value: {shown(mode)}: supported values: {', '.join(_MODES)}"
        yield FieldFault(f"{path}.allocationMode", problem, f"write one of {', '.join(_MODES)}")
    yield from _of_count(option.get("count"), mode or "ExactCount", f"{path}.count")


def _of_count(count: Any, mode: Any, path: str) -> Iterator[FieldFault]:
    """kube-apiserver takes a count of 0 for one that is not set: it is 1 with ExactCount."""
    if type(count) is not int or count == 0:
        return
    if mode == "All":
        problem = f"Invalid value: {count}: must not be specified when allocationMode is 'All'"
        yield FieldFault(path, problem, "delete count, or allocationMode: All")
    elif mode == "ExactCount" and count < 0:
        yield FieldFault(path, f"Invalid value: {count}: must be greater than zero", "write the number of devices")


def _devices(obj: Json) -> tuple[Json, str]:
    spec, path = get(obj, "spec", dict, "", {}), "spec"
    if obj.get("kind") == "ResourceClaimTemplate":
        spec, path = get(spec, "spec", dict, path, {}), "spec.spec"
    return get(spec, "devices", dict, path, {}), f"{path}.devices"


def _objects(obj: Json, field: str, path: str) -> list[tuple[Json, str]]:
    found = enumerate(get(obj, field, list, path, []))
    return [(one, f"{path}.{field}[{position}]") for position, one in found if isinstance(one, dict)]


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
            yield FieldFault(where, problem, unknown=name, known=tuple(types), inside=tuple(_inside(types)))
        elif value is not None:
            is_text = name in _TEXT_MAPS and types[name] == "Dict[str, str]"
            yield from faults_of_value(value, "Dict[str, text]" if is_text else types[name], where)


@lru_cache(_REMEMBERED)
def _types(model: Any) -> Mapping[str, str]:
    """Field to type, as the API names them."""
    return MappingProxyType({model.attribute_map[name]: kind for name, kind in model.openapi_types.items()})


def _inside(types: Mapping[str, str]) -> Iterator[str]:
    for outer, kind in types.items():
        model = getattr(models, kind, None)
        if model is not None and outer != "metadata":
            yield from (f"{outer}.{inner}" for inner in model.attribute_map.values())


class _Type(NamedTuple):
    """A type of the client: "list" or "map" of other types, "model", or "scalar"."""

    form: str
    inner: str = ""
    model: Any = None


@lru_cache(_REMEMBERED)
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
