"""What kube-apiserver refuses in an object of a user, beyond the claims' rules that every write keeps.

Source: pkg/apis/core/validation, pkg/apis/batch/validation. The sandbox has the rules that beginners meet.
"""

from __future__ import annotations

from collections.abc import Iterator

from extender.api.fields import Json, get, quantity, string
from extender.api_schema import claim_spec, is_subdomain, request_options, rule_faults
from extender.base.berth_errors import WireError
from extender.base.text_limits import shown
from extender.cel import CompileError
from extender.cel.dra import Dialect, compile_selector
from extender.lint import one_sentence
from extender.sandbox.apiserver.status_errors import ApiError, invalid

_POLICIES = ("Always", "OnFailure", "Never")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_MODES = ("NonIndexed", "Indexed")
_DRA = ("DeviceClass", "DeviceTaintRule", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice")
_NEW = Dialect(stored=False)
Faults = Iterator[tuple[str, str]]  # the field, and what is wrong with it


def check_object(plural: str, kind: str, obj: Json) -> None:
    """Raise ApiError with the first value of a new object that kube-apiserver refuses."""
    metadata = obj.get("metadata") or {}
    name = str(metadata.get("name") or metadata.get("generateName") or "")
    try:
        found = next(_faults(kind, {**obj, "kind": kind}, str(metadata.get("name") or "")), None)
    except WireError as error:
        raise ApiError(400, "BadRequest", str(error)) from error
    if found is not None:
        raise invalid(plural, name, ": ".join(found))


def _faults(kind: str, obj: Json, name: str) -> Faults:
    if name and not is_subdomain(name):
        yield "metadata.name", f"Invalid value: {shown(name)}: a lowercase RFC 1123 subdomain is required"
    spec = get(obj, "spec", dict, "", {})
    if kind == "Pod":
        yield from _of_pod(spec, "spec")
    elif kind == "Job":
        yield from _of_job(spec)
    elif kind == "Node":
        for taint, where in _items(spec, "taints", "spec"):
            yield from _one_of(taint, "effect", _EFFECTS, where)
    elif kind in _DRA:
        yield from ((fault.path, fault.problem) for fault in rule_faults(obj) if fault.severity == "error")
        yield from _of_selectors(kind, obj)


def _of_job(spec: Json) -> Faults:
    for field in ("parallelism", "completions", "backoffLimit"):
        count = get(spec, field, int, "spec", 0)
        if count < 0:
            yield f"spec.{field}", f"Invalid value: {count}: must be greater than or equal to 0"
    yield from _one_of(spec, "completionMode", _MODES, "spec")
    if spec.get("completionMode") == "Indexed" and "parallelism" in spec and spec.get("completions") is None:
        yield "spec.completions", "Required value: when completion mode is Indexed"
    where = "spec.template.spec"
    pod = get(get(spec, "template", dict, "spec", {}), "spec", dict, "spec.template", {})
    yield from _of_pod(pod, where)
    if pod.get("restartPolicy") not in _POLICIES[1:]:
        yield f"{where}.restartPolicy", f"Required value: valid values: {', '.join(_POLICIES[1:])}"


def _of_pod(spec: Json, path: str) -> Faults:
    containers = _items(spec, "containers", path)
    if not containers:
        yield f"{path}.containers", "Required value"
    claims = _items(spec, "resourceClaims", path)
    for entry, where in claims:
        if bool(entry.get("resourceClaimName")) == bool(entry.get("resourceClaimTemplateName")):
            yield where, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
    yield from _names(claims)
    yield from _names(containers)
    known = {entry.get("name") for entry, _ in claims}
    for container, where in (*containers, *_items(spec, "initContainers", path)):
        yield from _of_container(container, where, known)
    yield from _one_of(spec, "restartPolicy", _POLICIES, path)
    for toleration, where in _items(spec, "tolerations", path):
        yield from _one_of(toleration, "operator", ("Equal", "Exists"), where)
        yield from _one_of(toleration, "effect", _EFFECTS, where)


def _of_container(container: Json, path: str, known: set[object]) -> Faults:
    if not string(container, "image", path):
        yield f"{path}.image", "Required value"
    where = f"{path}.resources"
    resources = get(container, "resources", dict, path, {})
    for claim, at in _items(resources, "claims", where):
        if claim.get("name") not in known:
            yield at, f"Not found: {shown(claim.get('name'))}: must be one of the names in pod.spec.resourceClaims"
    limits = get(resources, "limits", dict, where, {})
    for name, wanted in get(resources, "requests", dict, where, {}).items():
        at = f"{where}.requests[{name}]"
        if name in limits:
            if quantity(wanted, at).nanos > quantity(limits[name], f"{where}.limits[{name}]").nanos:
                yield at, f"Invalid value: {shown(wanted)}: must be less than or equal to limit of {limits[name]}"
        elif "/" in name:
            yield f"{where}.limits", f"Required value: Limit must be set for non overcommitable resources ({name})"


def _of_selectors(kind: str, obj: Json) -> Faults:
    """The expressions that do not compile."""
    selecting = [("spec", get(obj, "spec", dict, "", {}))] if kind == "DeviceClass" else []
    if kind in ("ResourceClaim", "ResourceClaimTemplate"):
        spec, path = claim_spec(obj)
        options = request_options(get(spec, "devices", dict, path, {}))
        selecting = [(f"{path}.devices.requests[{name}]", option) for name, option in options]
    for where, one in selecting:
        for selector, at in _items(one, "selectors", where):
            expression = string(get(selector, "cel", dict, at, {}), "expression", f"{at}.cel")
            try:
                compile_selector(expression, _NEW)
            except CompileError as error:
                problem = f"Invalid value: {shown(expression)}: compilation failed: {one_sentence(error)}"
                yield f"{at}.cel.expression", problem


def _names(items: list[tuple[Json, str]]) -> Faults:
    seen: set[str] = set()
    for item, where in items:
        name = string(item, "name", where)
        if not name:
            yield f"{where}.name", "Required value"
        elif name in seen:
            yield f"{where}.name", f"Duplicate value: {shown(name)}"
        seen.add(name)


def _one_of(obj: Json, field: str, known: tuple[str, ...], path: str) -> Faults:
    value = obj.get(field)
    if value and value not in known:
        yield f"{path}.{field}", f"Unsupported value: {shown(value)}: supported values: {', '.join(known)}"


def _items(obj: Json, field: str, path: str) -> list[tuple[Json, str]]:
    found = enumerate(get(obj, field, list, path, []))
    return [(one, f"{path}.{field}[{position}]") for position, one in found if isinstance(one, dict)]
