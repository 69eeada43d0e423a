"""Checks of what pods say about schedulers and claims. Kubernetes accepts all of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from extender.api_schema import request_names
from extender.cli.lint_finding import LintFinding, did_you_mean
from extender.manifests import PodTemplate, pod_templates
from extender.model import SCHEDULER, ObjectKey, WireError
from extender.wire import ANNOTATION_PREFIX, Json, get

_ADVICE = f"write schedulerName: {SCHEDULER}"
_Requests = dict[tuple[str, ObjectKey], frozenset[str]]  # of claims and templates, by kind and name


def pod_findings(objects: list[tuple[str, Json]]) -> Iterator[LintFinding]:
    """Yield what is wrong with the pods that these (place, object) pairs create."""
    requests: _Requests = {}
    for _, obj in objects:
        if obj.get("kind") in ("ResourceClaim", "ResourceClaimTemplate"):
            with suppress(WireError):  # other checks name the wrong fields, here and below
                requests[str(obj["kind"]), _key(obj, _name(obj))] = request_names(obj)
    for place, obj in objects:
        with suppress(WireError):
            for template in pod_templates(obj):
                found = _of_pod(obj, template, requests)
                yield from (one.within(place) for one in found)


def _name(obj: Json) -> str:
    return str((obj.get("metadata") or {}).get("name") or "")


def _key(obj: Json, name: str) -> ObjectKey:
    return ObjectKey(str((obj.get("metadata") or {}).get("namespace") or "default"), name)


def _of_pod(obj: Json, template: PodTemplate, requests: _Requests) -> Iterator[LintFinding]:
    spec, path = get(template.pod, "spec", dict, template.path, {}), f"{template.path}.spec".lstrip(".")
    claims = {one.get("name"): one for one in _objects(spec, "resourceClaims", path)}
    notes = get(get(template.pod, "metadata", dict, template.path, {}), "annotations", dict, template.path, {})
    ours = any(name.startswith(ANNOTATION_PREFIX) for name in notes)
    yield from _scheduler(get(spec, "schedulerName", str, path, ""), path, has_claims=bool(claims), ours=ours)
    for entry in claims.values():
        yield from _template_name(obj, entry, path, requests)
    for field in ("initContainers", "containers"):
        for position, container in enumerate(_objects(spec, field, path)):
            where = f"{path}.{field}[{position}].resources"
            resources = get(container, "resources", dict, where, {})
            for used in _objects(resources, "claims", where):
                entry = claims.get(used.get("name"), {})
                yield from _request(obj, used, entry, f"{where}.claims", requests)
            for name in get(resources, "limits", dict, where, {}) if claims else ():
                if name.endswith("/gpu"):
                    problem = f"{name} asks for GPUs of the device plugin, besides those of the pod's claims"
                    yield LintFinding("warning", f"{where}.limits", problem, f"delete {name}")


def _objects(obj: Json, field: str, path: str) -> list[Json]:
    return [one for one in get(obj, field, list, path, []) if isinstance(one, dict)]


def _scheduler(name: str, path: str, *, has_claims: bool, ours: bool) -> Iterator[LintFinding]:
    if name == SCHEDULER:
        return
    named = f"names scheduler {name}" if name else "names no scheduler"
    is_like = "berth" in name or bool(did_you_mean(name, [SCHEDULER]))
    if ours or (has_claims and is_like):
        hint = f"did you mean {SCHEDULER}?" if is_like else _ADVICE
        yield LintFinding("warning", f"{path}.schedulerName", f"the pod {named}: Berth does not place it", hint)


def _template_name(obj: Json, entry: Json, path: str, requests: _Requests) -> Iterator[LintFinding]:
    for field, kind in (("resourceClaimTemplateName", "ResourceClaimTemplate"), ("resourceClaimName", "ResourceClaim")):
        name = entry.get(field)
        if not isinstance(name, str) or (kind, _key(obj, name)) in requests:
            continue
        beside = [key.name for of, key in requests if of == kind and key.namespace == _key(obj, name).namespace]
        if hint := did_you_mean(name, beside):
            problem = f"no {kind} {name} in these files"
            yield LintFinding("warning", f"{path}.resourceClaims", problem, hint)


def _request(obj: Json, used: Json, entry: Json, where: str, requests: _Requests) -> Iterator[LintFinding]:
    name = used.get("request")
    key = ("ResourceClaim", _key(obj, str(entry.get("resourceClaimName"))))
    if entry.get("resourceClaimTemplateName"):
        key = ("ResourceClaimTemplate", _key(obj, str(entry["resourceClaimTemplateName"])))
    known = sorted(one for one in requests.get(key, ()) if "/" not in one)
    if name and known and name not in known:
        problem = f"claim {used.get('name')} has no request {name}: the container gets no device"
        yield LintFinding("error", f"{where}.request", problem, did_you_mean(str(name), known) or f"has: {known[0]}")
