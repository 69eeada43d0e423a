"""What kube-apiserver refuses in an object of a user, beyond the claims' rules that every write keeps, and what Berth
cannot read.

Source: pkg/apis/core/validation, pkg/apis/batch/validation, pkg/apis/resource/validation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from extender.api.claim_specs import decode_claim_spec
from extender.api.device_classes import decode_class
from extender.api.fields import Json, get, inner, need, objects, quantity, string
from extender.api.nodes import decode_node
from extender.api.pods import decode_pod
from extender.api.resource_slices import SliceDecoder
from extender.api_schema import claim_spec, refused_in
from extender.base.berth_errors import WireError
from extender.cel import CompileError
from extender.cel.dra import Dialect, compile_selector
from extender.lint import one_sentence
from extender.sandbox.apiserver.pod_rules import (
    EFFECTS,
    POLICIES,
    Faults,
    invalid_value,
    of_label_key,
    of_label_value,
    of_labels,
    of_metadata,
    of_pod,
    of_pod_change,
    one_of,
)
from extender.sandbox.apiserver.registry import ApiError, Resource, invalid
from extender.scheduling.requirements import ADMIN_LABEL

_MODES = ("NonIndexed", "Indexed")
_CLAIMS = ("ResourceClaim", "ResourceClaimTemplate")
_DRA = (*_CLAIMS, "DeviceClass", "DeviceTaintRule", "ResourceSlice")
_NEW = Dialect(stored=False)
# Fields that a write may not change, by kind.
_IMMUTABLE = {
    "ResourceClaim": ("spec",),
    "ResourceClaimTemplate": ("spec",),
    "Job": ("spec.completions", "spec.completionMode", "spec.selector"),
    "ResourceSlice": ("spec.driver", "spec.pool.name", "spec.nodeName"),
}


def check_object(resource: Resource, old: Json | None, new: Json, namespace_labels: Mapping[str, str]) -> None:
    """Raise ApiError with the values of an object that kube-apiserver refuses.

    `old` is the object before the write, None for a new one. What is wrong with it, too, does not count.
    """
    kind, metadata = resource.kind, new.get("metadata") or {}
    try:
        known = [] if old is None else _faults(kind, old, namespace_labels)
        found = [fault for fault in _faults(kind, new, namespace_labels) if fault not in known]
        if old is not None:
            found += _of_change(kind, old, new)
    except WireError as error:
        handled = f'{kind} in version "{resource.version}" cannot be handled as a {kind}'
        raise ApiError(400, "BadRequest", f"{handled}: {error}") from error
    if found:
        texts = [": ".join(fault) for fault in found]
        name = str(metadata.get("name") or metadata.get("generateName") or "")
        raise invalid(resource.qualified_kind, name, texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]")


def check_identity(resource: Resource, namespace: str, name: str, body: Json) -> None:
    """Raise ApiError if an object is of another kind, namespace or name than the path of the request."""
    version, kind = body.get("apiVersion", resource.api_version), body.get("kind", resource.kind)
    if (version, kind) != (resource.api_version, resource.kind):
        handled = f'{kind} in version "{version}" cannot be handled as a {resource.kind}'
        problem = f"this path takes kind {resource.kind} of version {resource.api_version}"
        raise ApiError(400, "BadRequest", f"{handled}: {problem}")
    metadata = body.get("metadata") or {}
    if namespace and metadata.get("namespace", namespace) != namespace:
        problem = "the namespace of the provided object does not match the namespace sent on the request"
        raise ApiError(400, "BadRequest", problem)
    if name and metadata.get("name", name) != name:
        problem = f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})"
        raise ApiError(400, "BadRequest", problem)


def _faults(kind: str, obj: Json, namespace_labels: Mapping[str, str]) -> list[tuple[str, str]]:
    obj = {**obj, "kind": kind}
    found = unreadable(kind, obj)
    if kind in _CLAIMS and found is not None and ".capacity.requests[" in found[0]:
        found = None  # a negative amount: a server takes it, Berth places no such claim
    return list(dict.fromkeys(_rule_faults(kind, obj, namespace_labels))) or ([found] if found is not None else [])


def _rule_faults(kind: str, obj: Json, namespace_labels: Mapping[str, str]) -> Faults:
    yield from of_metadata(kind, get(obj, "metadata", dict, "", {}))
    spec = get(obj, "spec", dict, "", {})
    if kind == "Pod":
        yield from of_pod(spec, "spec")
    elif kind == "Job":
        yield from _of_job(spec)
    elif kind == "Node":
        for taint, where in objects(spec, "taints", "metadata"):
            yield from one_of(taint, "effect", EFFECTS, where)
            yield from of_label_key(string(taint, "key", where), f"{where}.key")
            yield from of_label_value(taint.get("value"), f"{where}.value")
    elif kind in _DRA:
        yield from _of_dra(kind, obj, spec, namespace_labels)


def _of_change(kind: str, old: Json, new: Json) -> Faults:
    if kind == "Pod":
        yield from of_pod_change(get(old, "spec", dict, "", {}), get(new, "spec", dict, "", {}))
    for path in _IMMUTABLE.get(kind, ()):
        before, after = (_value_at(obj, path) for obj in (old, new))
        if before != after:
            yield path, invalid_value(after, "field is immutable")
    if (
        kind == "Job"
        and not _value_at(old, "spec.suspend")
        and _value_at(old, "spec.template") != _value_at(new, "spec.template")
    ):
        yield "spec.template", invalid_value(_value_at(new, "spec.template"), "field is immutable")


def _value_at(obj: object, path: str) -> object:
    for part in path.split("."):
        obj = obj.get(part) if isinstance(obj, dict) else None
    return obj


def _of_job(spec: Json) -> Faults:
    for field in ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        count = get(spec, field, int, "spec", 0)
        if count < 0:
            yield f"spec.{field}", invalid_value(count, "must be greater than or equal to 0")
    yield from one_of(spec, "completionMode", _MODES, "spec")
    if spec.get("selector") is not None and not spec.get("manualSelector"):
        yield "spec.selector", invalid_value(spec["selector"], "`selector` not auto-generated")
    if spec.get("completionMode") == "Indexed" and "parallelism" in spec and spec.get("completions") is None:
        yield "spec.completions", "Required value: when completion mode is Indexed"
    template = get(spec, "template", dict, "spec", {})
    labels = get(get(template, "metadata", dict, "spec.template", {}), "labels", dict, "spec.template.metadata", {})
    yield from of_labels(labels, "spec.template.labels")
    where = "spec.template.spec"
    pod = get(template, "spec", dict, "spec.template", {})
    yield from of_pod(pod, where)
    if pod.get("restartPolicy") not in POLICIES[1:]:
        yield f"{where}.restartPolicy", f"Required value: valid values: {', '.join(POLICIES[1:])}"


def _of_dra(kind: str, obj: Json, spec: Json, namespace_labels: Mapping[str, str]) -> Faults:
    options = list(_options(obj)) if kind in _CLAIMS else []
    for option, where in options:
        at = f"{where}.capacity"
        _check_quantities(get(get(option, "capacity", dict, where, {}), "requests", dict, at, {}), f"{at}.requests")
        if option.get("adminAccess") and namespace_labels.get(ADMIN_LABEL) != "true":
            why = f"Forbidden: admin access to devices requires the `{ADMIN_LABEL}: true` label on the namespace"
            yield f"{where}.adminAccess", why
    if kind == "ResourceClaimTemplate":
        made = get(spec, "metadata", dict, "spec", {})
        yield from of_metadata(kind, {key: value for key, value in made.items() if key != "name"}, "spec.metadata")
        for field in made.keys() - {"labels", "annotations"}:
            yield f"spec.metadata.{field}", "Forbidden: cannot be set"
    for device, where in objects(spec, "devices", "spec") if kind == "ResourceSlice" else ():
        capacity, at = get(device, "capacity", dict, where, {}), f"{where}.capacity"
        _check_quantities({key: get(capacity, key, dict, at, {}).get("value") for key in capacity}, at)
    yield from ((fault.where, fault.problem) for fault in refused_in(obj))
    for one, where in [(spec, "spec")] if kind == "DeviceClass" else options:
        yield from _of_selectors(one, where)


def _options(obj: Json) -> Iterator[tuple[Json, str]]:
    """The ways to serve each request of a claim or template, with their paths."""
    spec, path = claim_spec(obj)
    for request, where in objects(get(spec, "devices", dict, path, {}), "requests", f"{path}.devices"):
        if request.get("exactly") is not None:
            yield get(request, "exactly", dict, where, {}), f"{where}.exactly"
        yield from objects(request, "firstAvailable", where)


def _check_quantities(amounts: Json, path: str) -> None:
    """Raise WireError for a value that is no quantity."""
    for key, value in amounts.items():
        quantity(value, f"{path}[{key}]")


def _of_selectors(one: Json, where: str) -> Faults:
    """The expressions that do not compile."""
    for selector, at in objects(one, "selectors", where):
        expression = string(get(selector, "cel", dict, at, {}), "expression", f"{at}.cel")
        try:
            compile_selector(expression, _NEW)
        except CompileError as error:
            problem = f"compilation failed: {one_sentence(error).removeprefix('compilation failed: ')}"
            yield f"{at}.cel.expression", invalid_value(expression, problem)


# -- whether Berth can read an object ------------------------------------------------------------------------


def _spec(obj: Json) -> Json:
    return inner(obj, "spec", "")


_DECODERS: dict[str, Callable[[Json], object]] = {
    "Pod": decode_pod,
    "Node": decode_node,
    "ResourceClaim": lambda obj: decode_claim_spec(_spec(obj), ".spec"),  # decode_claim marks what it cannot read
    "ResourceClaimTemplate": lambda obj: decode_claim_spec(inner(_spec(obj), "spec", ".spec"), ".spec.spec"),
    "DeviceClass": decode_class,
    "ResourceSlice": lambda obj: SliceDecoder().decode(obj),
}


def decode(obj: Json) -> None:
    """Decode an object as Berth does. Raises WireError that names the field."""
    need(inner(obj, "metadata", ""), "name", ".metadata")
    kind = obj.get("kind")
    if kind in _DECODERS:
        _DECODERS[kind](obj)


def unreadable(kind: str, obj: Json) -> tuple[str, str] | None:
    """Return (field, problem) if Berth cannot decode an object."""
    metadata = obj.get("metadata") or {}
    name = str(metadata.get("name") or metadata.get("generateName") or "")
    try:
        decode({**obj, "kind": kind, "metadata": {**metadata, "name": name}})
    except WireError as error:
        return error.path.lstrip("."), error.problem
    return None
