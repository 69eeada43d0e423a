"""Finds fields that the Kubernetes API does not have, and values of another type, in the built-in kinds.

The models of the official client are the schema. `kubectl apply` refuses the same fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import kubernetes
from kubernetes.client import models

from extender.cli.lint_finding import LintFinding, did_you_mean
from extender.model import shown
from extender.wire import Json, PodTemplate

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
_SECRET = ("Secret", "ConfigMap")  # no message may quote their values
_REMEMBERED = 4096  # types of the client and their fields; it has about 1,000
_FEW = 8  # fields of an object that a message lists
_RELEASE = f"Kubernetes 1.{kubernetes.__version__.partition('.')[0]}"


def field_findings(obj: Json, templates: list[PodTemplate]) -> Iterator[LintFinding]:
    """Yield unknown fields and wrong types of an object; of a kind without a model, those of its pod templates."""
    group, _, version = str(obj.get("apiVersion") or "").rpartition("/")
    kind = str(obj.get("kind"))
    model = _model(group, version, kind)
    if model is not None:
        yield from _of_model({k: v for k, v in obj.items() if k != "status"}, model, "")
    elif group == "resource.k8s.io" and version == "v1":
        known = [name.removeprefix("V1") for name in dir(models) if name.startswith("V1")]
        yield LintFinding("error", "kind", f"resource.k8s.io/v1 has no kind {shown(kind)}", did_you_mean(kind, known))
    else:
        for template in templates:
            for field in ("metadata", "spec"):
                inner, name = template.pod.get(field) or {}, "V1ObjectMeta" if field == "metadata" else "V1PodSpec"
                yield from _value(inner, name, f"{template.path}.{field}")


def _model(group: str, version: str, kind: str) -> Any:
    prefix = _GROUPS.get(group)
    if prefix is None or not version or kind in _SECRET:
        return None
    name = f"{version[:1].upper()}{version[1:]}{kind}"
    return getattr(models, f"{prefix}{name}", None) or getattr(models, name, None)


def _of_model(obj: Json, model: Any, path: str) -> Iterator[LintFinding]:
    types = _types(model)
    for name, value in obj.items():
        where = f"{path}.{name}".lstrip(".")
        if name not in types:
            yield LintFinding("error", where, f"{_RELEASE} has no such field", _hint(name, types))
        elif value is not None:
            is_text = name in _TEXT_MAPS and types[name] == "Dict[str, str]"
            yield from _value(value, "Dict[str, text]" if is_text else types[name], where)


@lru_cache(_REMEMBERED)
def _types(model: Any) -> Mapping[str, str]:
    """Field to type, as the API names them."""
    return MappingProxyType({model.attribute_map[name]: kind for name, kind in model.openapi_types.items()})


def _hint(name: str, types: Mapping[str, str]) -> str:
    """What the unknown field may stand for: a field beside it, or one inside of these."""
    inside = {
        f"{outer}.{inner}": inner
        for outer, kind in types.items()
        if (model := getattr(models, kind, None)) is not None and outer != "metadata"
        for inner in model.attribute_map.values()
    }
    found = did_you_mean(name, list(types))
    for place, inner in inside.items():
        found = found or (f"did you mean {place}?" if did_you_mean(name, [inner]) else "")
    return found or (f"known here: {', '.join(sorted(types))}" if len(types) <= _FEW else "")


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


def _value(value: Any, kind: str, path: str) -> Iterator[LintFinding]:
    form, inner, model = _type_of(kind)
    if form == "list" and type(value) is list:
        for position, item in enumerate(value):
            yield from _value(item, inner, f"{path}[{position}]")
    elif form == "map" and type(value) is dict:
        for key, item in value.items():
            yield from _value(item, inner, f"{path}[{key}]")
    elif form == "model" and type(value) is dict:
        yield from _of_model(value, model, path)
    elif wanted := _wanted(value, kind, form):
        advice = f'write "{str(value).lower() if isinstance(value, bool) else value}"' if kind == "text" else ""
        yield LintFinding("error", path, f"must be {wanted}, is {shown(value)}", advice)


def _wanted(value: Any, kind: str, form: str) -> str:
    """What the value must be; '' if it is that."""
    if form != "scalar":
        return "a list" if form == "list" else "an object"
    if kind == "text":
        return "" if type(value) is str else "a string"
    if kind == "str":
        return "a string" if type(value) in (dict, list) else ""
    return "" if kind not in _TYPES or type(value) is _TYPES[kind] else _NAMES[kind]
