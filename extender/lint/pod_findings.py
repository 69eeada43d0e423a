"""Checks of what pods say about schedulers and claims, which Kubernetes accepts, and of Berth's annotations.

`Claims` says which kinds of devices the claims ask for, by their classes and the table of drivers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress

from extender.api.fields import Json, get, inner, objects, string
from extender.api.object_meta import ObjectKey
from extender.api.pod_annotations import ANNOTATION_PREFIX, ANNOTATION_READERS
from extender.api.pod_groups import OWN_ANNOTATIONS
from extender.api.pods import DECISION_ANNOTATION, SCHEDULER
from extender.api.resource_claims import GROUP_ANNOTATION
from extender.api_schema import LintFinding, did_you_mean, faults_of_value, request_names, request_options
from extender.base.berth_errors import WireError
from extender.manifests import PodTemplate, pod_templates
from extender.vendors import DRIVERS, GPU, NIC, OTHER, driver_of, driver_of_class

_ADVICE = f"write schedulerName: {SCHEDULER}"
_OF_PODS = [*ANNOTATION_READERS, GROUP_ANNOTATION, *OWN_ANNOTATIONS]
_OF_EXAMPLES = f"{ANNOTATION_PREFIX}expect-"  # what `berth run` compares its decisions with
_STRING = r"(?:\"([^\"]+)\"|'([^']+)')"
_IS_DRIVER = re.compile(rf"device\.driver\s*==\s*{_STRING}|{_STRING}\s*==\s*device\.driver")
_ONE_OF = re.compile(r"device\.driver\s+in\s*\[([^\]]*)\]")
_DOMAIN = re.compile(rf"device\.(?:attributes|capacity)\[\??\s*{_STRING}")
_CHANNEL = {"name": "channel", "exactly": {"deviceClassName": "compute-domain-default-channel.nvidia.com"}}


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
    entries = {str(one.get("name")): one for one, _ in objects(spec, "resourceClaims", path)}
    notes = inner(inner(template.pod, "metadata", template.path), "annotations", template.path)
    ours = any(name.startswith(ANNOTATION_PREFIX) for name in notes)
    yield from _scheduler(string(spec, "schedulerName", path), path, has_claims=bool(entries), ours=ours)
    kinds = {name: claims.kinds(claims.devices(obj, entry)) for name, entry in entries.items()}
    for entry in entries.values():
        yield from _template_name(obj, entry, path, claims)
    unused = {name: claims.kinds(claims.devices(obj, entry), by_name=True) for name, entry in entries.items()}
    for field in ("initContainers", "containers"):
        for container, at in objects(spec, field, path):
            where = f"{at}.resources"
            resources = inner(container, "resources", at)
            for used, _ in objects(resources, "claims", where):
                name = str(used.get("name"))
                unused.pop(name, None)
                yield from _request(used, claims.devices(obj, entries.get(name, {})), f"{where}.claims")
            for name in inner(resources, "limits", where):
                if name.endswith("/gpu"):
                    yield from _beside(name, kinds, f"{where}.limits")
    for name, found in unused.items():
        yield from _unused(spec, name, found, f"{path}.containers")


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


# -- the kinds of devices of claims --------------------------------------------------------------------------------


class Claims:
    """The claims, templates and classes of some objects."""

    def __init__(self, objects: Iterable[Json]) -> None:
        self._devices: dict[tuple[str, ObjectKey], Json] = {}
        self._classes: dict[str, Json] = {}
        for obj in objects:
            with suppress(WireError):  # other checks name the wrong fields
                self._add(obj)

    def _add(self, obj: Json) -> None:
        kind, spec = str(obj.get("kind")), inner(obj, "spec", "")
        if kind == "DeviceClass":
            self._classes[key_of(obj).name] = spec
        elif kind == "ResourceClaim":
            self._devices[kind, key_of(obj)] = inner(spec, "devices", "")
        elif kind == "ResourceClaimTemplate":
            self._devices[kind, key_of(obj)] = inner(inner(spec, "spec", ""), "devices", "")
        elif kind == "ComputeDomain":  # its controller creates the template
            name = inner(inner(spec, "channel", ""), "resourceClaimTemplate", "").get("name")
            self._devices["ResourceClaimTemplate", key_of(obj, str(name))] = {"requests": [_CHANNEL]}

    def names(self, kind: str, namespace: str) -> list[str]:
        """The names of the claims or templates of a namespace."""
        return [key.name for of, key in self._devices if of == kind and key.namespace == namespace]

    def devices(self, pod: Json, entry: Json) -> Json | None:
        """spec.devices of the claim that an entry of spec.resourceClaims names; None if the objects lack it.

        `pod` is the object that has the pod or its template.
        """
        kind, name = "ResourceClaim", entry.get("resourceClaimName")
        if entry.get("resourceClaimTemplateName"):
            kind, name = "ResourceClaimTemplate", entry["resourceClaimTemplateName"]
        return self._devices.get((kind, key_of(pod, str(name))))

    def kinds(self, devices: Json | None, *, by_name: bool = False) -> set[str]:
        """The kinds of devices that a claim may get; OTHER also stands for those that are not known.

        With `by_name`, a class that is not known is what its name says, if it says that.
        """
        found: set[str] = set()
        with suppress(WireError):
            for name, option in request_options(devices or {}):
                drivers = self._drivers(devices or {}, name, option)
                if not drivers and by_name:
                    drivers = {str(option.get("deviceClassName"))}
                found |= {driver_of(driver).kind for driver in drivers} or {OTHER}
        return found or {OTHER}

    def _drivers(self, devices: Json, name: str, option: Json) -> set[str]:
        """The drivers of the devices of one option, as its selectors, its class or its configuration say."""
        class_name = str(option.get("deviceClassName"))
        class_ = self._classes.get(class_name, {})
        found = drivers_in([*_expressions(option), *_expressions(class_)], class_name)
        if not found and str(class_.get("extendedResourceName", "")).endswith("/gpu"):
            found = {"gpu"}  # a driver of GPUs, whatever its name
        return found or {*_configured(devices, name), *_configured(class_, name)}


def key_of(obj: Json, name: str | None = None) -> ObjectKey:
    """The key of an object, or of a claim of this name beside it."""
    metadata = obj.get("metadata") or {}
    return ObjectKey(str(metadata.get("namespace") or "default"), name or str(metadata.get("name") or ""))


def drivers_in(expressions: Iterable[str], class_name: str) -> set[str]:
    """The drivers that the selectors of a request name, else the driver that installs its class, else those of the
    attributes and capacities that the selectors read.
    """
    text = "\n".join(expressions)
    named = {next(filter(None, found.groups())) for found in _IS_DRIVER.finditer(text)}
    for several in _ONE_OF.finditer(text):
        named |= {one or other for one, other in re.findall(_STRING, several[1])}
    if not named and (driver := driver_of_class(class_name)):
        named = {driver}
    domains = {found[1] or found[2] for found in _DOMAIN.finditer(text)}
    return named or {domain for domain in domains if driver_of(domain).kind != OTHER or domain in DRIVERS}


def _expressions(spec: Json) -> list[str]:
    selectors = [one for one in get(spec, "selectors", list, "", []) if isinstance(one, dict)]
    return [str(inner(one, "cel", "").get("expression")) for one in selectors]


def _configured(spec: Json, request: str) -> Iterator[str]:
    """The drivers of the configurations for a request."""
    for one in get(spec, "config", list, "", []):
        requests = one.get("requests") if isinstance(one, dict) else None
        if not requests or request in requests or request.partition("/")[0] in requests:
            opaque = one.get("opaque") if isinstance(one, dict) else None
            if isinstance(opaque, dict) and isinstance(opaque.get("driver"), str):
                yield opaque["driver"]


# -- annotations -----------------------------------------------------------------------------------------------------


def annotation_findings(obj: Json, templates: list[PodTemplate]) -> Iterator[LintFinding]:
    """Yield what is wrong with Berth's annotations of an object that creates pods. Values of groups come elsewhere."""
    for template in templates:
        path = f"{template.path}.metadata" if template.path else "metadata"
        metadata = template.pod.get("metadata") or {}
        yield from _of_annotations(metadata.get("annotations") or {}, f"{path}.annotations")
        for name in _ours(metadata.get("labels") or {}):
            problem = f"Berth reads {name} as an annotation, not as a label"
            yield LintFinding("error", f"{path}.labels", problem, f"move it to {path}.annotations")
    if templates and templates[0].path:
        for name in _ours((obj.get("metadata") or {}).get("annotations") or {}):
            yield LintFinding(
                "error",
                "metadata.annotations",
                f"{name} has no effect here: pods get their annotations from the template",
                f"move it to {templates[0].path}.metadata.annotations",
            )


def _ours(keys: Json) -> list[str]:
    return [name for name in keys if name in _OF_PODS]


def _of_annotations(annotations: Json, where: str) -> Iterator[LintFinding]:
    for name in annotations:
        known = name in _OF_PODS or name == DECISION_ANNOTATION or name.startswith(_OF_EXAMPLES)
        if name.startswith(ANNOTATION_PREFIX) and not known:
            yield LintFinding("error", where, f"Berth knows no annotation {name}", did_you_mean(name, _OF_PODS))
    for read in ANNOTATION_READERS.values():
        try:
            read({name: value for name, value in annotations.items() if isinstance(value, str)})
        except ValueError as error:
            yield LintFinding("error", where, str(error).removeprefix("pod annotation "))
