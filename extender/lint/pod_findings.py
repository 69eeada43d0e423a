"""Checks of what pods say about schedulers and claims. Kubernetes accepts all of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from extender.api.fields import Json, get, inner, string
from extender.api.pod_annotations import ANNOTATION_PREFIX
from extender.api.pods import SCHEDULER
from extender.api_schema import did_you_mean, faults_of_value, request_names
from extender.base.berth_errors import WireError
from extender.lint.claim_kinds import Claims
from extender.lint.finding import LintFinding
from extender.manifests import PodTemplate, pod_templates
from extender.vendors import GPU, NIC, OTHER

_ADVICE = f"write schedulerName: {SCHEDULER}"


def pod_findings(objects: list[tuple[str, Json]], supply: Iterable[Json]) -> Iterator[LintFinding]:
    """Yield what is wrong with the pods that these (place, object) pairs create, and correct it where that is clear.

    `supply` has the classes of the cluster, if they are known.
    """
    claims = Claims([*supply, *(obj for _, obj in objects)])
    for place, obj in objects:
        with suppress(WireError):  # other checks name the wrong fields
            for template in pod_templates(obj):
                found = _of_pod(obj, template, claims)
                yield from (one.within(place) for one in found)


def _of_pod(obj: Json, template: PodTemplate, claims: Claims) -> Iterator[LintFinding]:
    spec, path = inner(template.pod, "spec", template.path), f"{template.path}.spec".lstrip(".")
    entries = {str(one.get("name")): one for one in _objects(spec, "resourceClaims", path)}
    notes = inner(inner(template.pod, "metadata", template.path), "annotations", template.path)
    ours = any(name.startswith(ANNOTATION_PREFIX) for name in notes)
    yield from _scheduler(string(spec, "schedulerName", path), path, has_claims=bool(entries), ours=ours)
    kinds = {name: claims.kinds(claims.devices(obj, entry)) for name, entry in entries.items()}
    for entry in entries.values():
        yield from _template_name(obj, entry, path, claims)
    unused = {name: claims.kinds(claims.devices(obj, entry), by_name=True) for name, entry in entries.items()}
    for field in ("initContainers", "containers"):
        for position, container in enumerate(_objects(spec, field, path)):
            where = f"{path}.{field}[{position}].resources"
            resources = inner(container, "resources", where)
            for used in _objects(resources, "claims", where):
                name = str(used.get("name"))
                unused.pop(name, None)
                yield from _request(used, claims.devices(obj, entries.get(name, {})), f"{where}.claims")
            for name in inner(resources, "limits", where):
                if name.endswith("/gpu"):
                    yield from _beside(name, kinds, f"{where}.limits")
    for name, found in unused.items():
        yield from _unused(spec, name, found, f"{path}.containers")


def _objects(obj: Json, field: str, path: str) -> list[Json]:
    return [one for one in get(obj, field, list, path, []) if isinstance(one, dict)]


def _beside(resource: str, kinds: dict[str, set[str]], where: str) -> Iterator[LintFinding]:
    """GPUs of a device plugin beside claims. NICs, CPUs and channels of claims belong to such GPUs."""
    if any(GPU in found for found in kinds.values()):
        problem = f"{resource} asks for GPUs of the device plugin, besides those of the pod's claims"
        yield LintFinding("warning", where, problem, f"delete {resource}")
    elif unknown := sorted(name for name, found in kinds.items() if OTHER in found):
        problem = f"{resource} asks for GPUs of the device plugin; the devices of claim {unknown[0]!r} are not known"
        yield LintFinding("note", where, problem)


def _unused(spec: Json, name: str, kinds: set[str], where: str) -> Iterator[LintFinding]:
    """A claim that no container uses. Drivers of networks attach their devices to the pod, not to a container."""
    if kinds == {NIC}:
        return
    problem = f"no container uses claim {name!r}: no container can open its devices"
    if OTHER in kinds and GPU not in kinds:
        yield LintFinding("note", where, f"{problem} (network devices need none)")
        return
    container, *more = spec.get("containers") or [None]
    is_clear = not more and isinstance(container, dict) and not _has_unknown_field(container)
    if is_clear:
        requirements = container["resources"] = container.get("resources") or {}
        requirements["claims"] = [*(requirements.get("claims") or ()), {"name": name}]
    yield LintFinding("warning", where, problem, f"resources: {{claims: [{{name: {name}}}]}}", is_clear)


def _has_unknown_field(container: Json) -> bool:
    """Whether a field has a name that the API does not have: it may be `resources`, misspelt."""
    return any(fault.is_unknown for fault in faults_of_value(container, "V1Container", ""))


def _scheduler(name: str, path: str, *, has_claims: bool, ours: bool) -> Iterator[LintFinding]:
    if name == SCHEDULER:
        return
    named = f"names scheduler {name}" if name else "names no scheduler"
    # All schedulers may end with -scheduler: kai-scheduler is not like Berth's.
    is_like = "berth" in name or bool(
        did_you_mean(name.removesuffix("-scheduler"), [SCHEDULER.removesuffix("-scheduler")])
    )
    if ours or (has_claims and is_like):
        hint = f"did you mean {SCHEDULER}?" if is_like else _ADVICE
        yield LintFinding("warning", f"{path}.schedulerName", f"the pod {named}: Berth does not place it", hint)


def _template_name(obj: Json, entry: Json, path: str, claims: Claims) -> Iterator[LintFinding]:
    namespace = str((obj.get("metadata") or {}).get("namespace") or "default")
    for field, kind in (("resourceClaimTemplateName", "ResourceClaimTemplate"), ("resourceClaimName", "ResourceClaim")):
        name, known = entry.get(field), claims.names(kind, namespace)
        if isinstance(name, str) and name not in known and (hint := did_you_mean(name, known)):
            problem = f"no {kind} {name} in these files"
            yield LintFinding("warning", f"{path}.resourceClaims", problem, hint)


def _request(used: Json, devices: Json | None, where: str) -> Iterator[LintFinding]:
    name = used.get("request")
    known = sorted(one for one in request_names(devices or {}, "") if "/" not in one)
    if name and known and name not in known:
        problem = f"claim {used.get('name')} has no request {name}: the container gets no device"
        yield LintFinding("error", f"{where}.request", problem, did_you_mean(str(name), known) or f"has: {known[0]}")
