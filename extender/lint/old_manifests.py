"""Finds and corrects the fields of older versions of the DRA API in manifests.

`corrected` works on raw objects, before they are decoded. It changes an object only where the meaning is clear.
"""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from extender.api.fields import Json, get, inner, need, objects, string
from extender.api.object_meta import is_label
from extender.api_schema import LintFinding, claim_spec
from extender.lint.old_expressions import corrected_expression
from extender.manifests import pod_templates

_GROUP = "resource.k8s.io"
_CURRENT = "resource.k8s.io/v1"
_EXACT = ("deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity")
_KINDS = ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "ResourceSlice", "ResourceClass")
_WORKLOADS = {
    "Pod": "v1",
    "Job": "batch/v1",
    "CronJob": "batch/v1",
    **dict.fromkeys(("Deployment", "DaemonSet", "ReplicaSet", "StatefulSet"), "apps/v1"),
}
_REMOVED = {  # kinds of older versions, with what to do
    "ResourceClaimParameters": "write number and selectors into spec.devices.requests[].exactly of the claim",
    "ResourceClassParameters": "write the selectors into a DeviceClass",
    "PodSchedulingContext": "delete it: the scheduler chooses the devices itself",
}
_CLASSIC = ("resourceClassName", "parametersRef", "allocationMode")  # fields of a claim before 1.31


def corrected(obj: Json, published: frozenset[str]) -> tuple[Json, list[LintFinding]]:
    """Return (corrected copy of the object, findings). Raises WireError if a field has a type of no API version.

    `published` has the attributes, with domain, that slices in the same files publish.
    """
    made: Json = orjson.loads(orjson.dumps(obj))  # much faster than copy.deepcopy
    found: list[LintFinding] = []
    kind, version = str(made.get("kind")), str(made.get("apiVersion") or "")
    group = version.partition("/")[0]
    if kind in _REMOVED and group == _GROUP:
        return made, [LintFinding("error", "kind", f"the API removed {kind} (classic DRA)", _REMOVED[kind])]
    if kind in _KINDS and (group == _GROUP or "." not in group):
        if version != _CURRENT and kind != "ResourceClass":
            found.append(_version(made, version, _CURRENT))
        found += _of_kind(made, kind, published)
        if _is_classic(made, kind) and found[0].where == "apiVersion":
            made["apiVersion"] = version  # else the object would claim to be what it is not
            found[0] = found[0]._replace(fixed=False)
    elif version != _WORKLOADS.get(kind, version) and "." not in group:
        found.append(_version(made, version, _WORKLOADS[kind]))
    for template in pod_templates(made):
        found += _pod(inner(template.pod, "spec", template.path), f"{template.path}.spec".lstrip("."))
    return made, found


def _is_classic(made: Json, kind: str) -> bool:
    """Whether a corrected object still has content of classic DRA."""
    is_claim = kind in ("ResourceClaim", "ResourceClaimTemplate")
    return is_claim and not claim_spec(made)[0].keys().isdisjoint(_CLASSIC)


def _version(made: Json, version: str, current: str) -> LintFinding:
    made["apiVersion"] = current
    if version.startswith(f"{_GROUP}/"):
        problem = f"Kubernetes 1.34 and newer do not serve {version}"
        problem += ", unless the cluster enables it" * ("beta" in version)
    else:
        problem = f"a {made['kind']} is not in {version}" if version else "is missing"
    return LintFinding("error", "apiVersion", problem, f"use {current}", True)


def _of_kind(made: Json, kind: str, published: frozenset[str]) -> Iterator[LintFinding]:
    if kind == "ResourceClass":
        yield _resource_class(made)
    elif kind == "DeviceClass":
        spec = inner(made, "spec", "")
        yield from _removed_field(spec, "suitableNodes", "spec")
        yield from _selectors(spec, "spec", published)
    elif kind == "ResourceSlice":
        yield from _slice(made)
    else:
        yield from _nesting(made, kind)
        yield from _claim(*claim_spec(made), published)


def _selectors(obj: Json, path: str, published: frozenset[str]) -> Iterator[LintFinding]:
    for selector, where in objects(obj, "selectors", path):
        yield from corrected_expression(selector, where, published)


def _removed_field(obj: Json, name: str, path: str) -> Iterator[LintFinding]:
    if name in obj:
        obj.pop(name)
        yield LintFinding("error", f"{path}.{name}", "the API removed this field (classic DRA)", "delete it", True)


def _resource_class(made: Json) -> LintFinding:
    driver = string(made, "driverName", "")
    parameters = made.get("parametersRef") or made.get("parameters")
    problem = "the API removed ResourceClass (classic DRA)"
    if not driver or parameters:
        advice = "write a DeviceClass with CEL selectors; move the parameters to spec.config"
        return LintFinding("error", "kind", problem, advice)
    for name in ("driverName", "structuredParameters", "suitableNodes", "parametersRef", "parameters"):
        made.pop(name, None)
    made |= {"apiVersion": _CURRENT, "kind": "DeviceClass"}
    made["spec"] = {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]}
    return LintFinding("error", "kind", problem, f'a DeviceClass with the selector device.driver == "{driver}"', True)


def _nesting(made: Json, kind: str) -> Iterator[LintFinding]:
    """A claim has its devices in spec, a template in spec.spec."""
    spec = inner(made, "spec", "")
    if kind == "ResourceClaim" and isinstance(spec.get("spec"), dict) and "devices" not in spec:
        made["spec"] = spec["spec"]
        problem = "only a ResourceClaimTemplate has spec.spec"
        yield LintFinding("error", "spec.spec", problem, "move it up to spec", True)
    elif kind == "ResourceClaimTemplate" and "devices" in spec and "spec" not in spec:
        made["spec"] = {"spec": spec}
        problem = "a template has the claim's spec in spec.spec"
        yield LintFinding("error", "spec.devices", problem, "move it there", True)


def _claim(spec: Json, path: str, published: frozenset[str]) -> Iterator[LintFinding]:
    yield from _classic(spec, path)
    yield from _removed_field(spec, "controller", path)
    devices = inner(spec, "devices", path)
    for request, where in objects(devices, "requests", f"{path}.devices"):
        yield from _request(request, where, published)
    for constraint, where in objects(devices, "constraints", f"{path}.devices"):
        for name in [one for one in ("cel", "selectors", "expression") if one in constraint][:1]:
            advice = "use matchAttribute or distinctAttribute with a qualified name; write CEL in selectors"
            yield LintFinding("error", f"{where}.{name}", "a constraint cannot have CEL", advice)


def _classic(spec: Json, path: str) -> Iterator[LintFinding]:
    """Without parameters, a claim asked for one device of the class. Parameters are up to the driver."""
    name, parameters = string(spec, "resourceClassName", path), inner(spec, "parametersRef", path)
    problem, is_clear = "the API removed this field (classic DRA)", not parameters and "devices" not in spec
    corrections = {
        "resourceClassName": f"use {path}.devices.requests[].exactly.deviceClassName",
        "parametersRef": f"write what {parameters.get('kind') or 'it'} says into {path}.devices: number and selectors "
        "into requests[].exactly, settings of the driver into config[].opaque",
        "allocationMode": "delete it: the scheduler allocates when a pod needs the claim",
    }
    if is_clear and name:
        spec["devices"] = {"requests": [{"name": "device", "exactly": {"deviceClassName": name}}]}
        corrections["resourceClassName"] = f"one device of the DeviceClass {name}; check that your driver installs it"
    for field in _CLASSIC:
        if field in spec:
            fixed = is_clear or field == "allocationMode"
            if fixed:
                spec.pop(field)
            yield LintFinding("error", f"{path}.{field}", problem, corrections[field], fixed)


def _slice(made: Json) -> Iterator[LintFinding]:
    """v1beta1 has the fields of a device in `basic`; v1alpha3 has a capacity as a bare amount."""
    for device, where in objects(inner(made, "spec", ""), "devices", "spec"):
        basic = inner(device, "basic", where)
        if basic:
            device.pop("basic")
            device.update(basic)
            problem, correction = "the API has no `basic` any more", "move its fields up, next to `name`"
            yield LintFinding("error", f"{where}.basic", problem, correction, True)
        capacity = inner(device, "capacity", where)
        bare = [name for name, amount in capacity.items() if not isinstance(amount, dict)]
        for name in bare:
            capacity[name] = {"value": capacity[name]}
        if bare:
            problem = f"the amount of {', '.join(bare)} must be inside `value`"
            yield LintFinding("error", f"{where}.capacity", problem, f"{bare[0]}: {{value: …}}", True)


def _request(request: Json, path: str, published: frozenset[str]) -> Iterator[LintFinding]:
    outside = [name for name in _EXACT if name in request]
    if outside and "firstAvailable" not in request:
        problem = f"{', '.join(outside)} must be inside `exactly`"
        correction = f"move {'them' if len(outside) > 1 else 'it'} into {path}.exactly"
        exactly = inner(request, "exactly", path)
        is_clear = exactly.keys().isdisjoint(outside)
        if is_clear:
            request["exactly"] = {**{name: request.pop(name) for name in outside}, **exactly}
        yield LintFinding("error", f"{path}.{outside[0]}", problem, correction, is_clear)
    exact = (inner(request, "exactly", path), f"{path}.exactly")
    for option, where in (exact, *objects(request, "firstAvailable", path)):
        yield from _selectors(option, where, published)


def _pod(spec: Json, path: str) -> Iterator[LintFinding]:
    yield from _claims_as_text(spec, path)
    claims = objects(spec, "resourceClaims", path)
    for claim, where in claims:
        yield from _source(claim, where)
        if bool(claim.get("resourceClaimName")) == bool(claim.get("resourceClaimTemplateName")):
            problem = "needs exactly one of resourceClaimName and resourceClaimTemplateName"
            yield LintFinding("error", where, problem, "name one of them")
    names = [need(claim, "name", where) for claim, where in claims]
    for name in names:
        if not is_label(name):
            problem = f"the name {name!r} must be a DNS label: lower-case letters, digits and '-', at most 63"
            yield LintFinding("error", f"{path}.resourceClaims", problem, "rename it, also in the containers")
    for name in sorted({name for name in names if names.count(name) > 1}):
        problem = f"two entries are called {name!r}"
        yield LintFinding("error", f"{path}.resourceClaims", problem, "give each entry another name")
    containers = [found for field in ("initContainers", "containers") for found in objects(spec, field, path)]
    resources = [(inner(one, "resources", where), f"{where}.resources") for one, where in containers]
    used = {need(entry, "name", at) for one, where in resources for entry, at in objects(one, "claims", where)}
    for name in sorted(used - set(names)):
        problem = f"a container uses claim {name!r}, which {path}.resourceClaims does not have"
        yield LintFinding("error", f"{path}.containers", problem, "add it there")


def _source(claim: Json, path: str) -> Iterator[LintFinding]:
    """Where the claim is from was in `source` before 1.31."""
    if source := inner(claim, "source", path):
        claim.pop("source")
        claim.update(source)
        correction = "move resourceClaimName or resourceClaimTemplateName up, next to `name`"
        yield LintFinding("error", f"{path}.source", "Kubernetes 1.31 removed the field `source`", correction, True)


def _claims_as_text(spec: Json, path: str) -> Iterator[LintFinding]:
    for field in ("initContainers", "containers"):
        for container, where in objects(spec, field, path):
            resources = inner(container, "resources", where)
            claims = get(resources, "claims", list, f"{where}.resources", [])
            if not any(isinstance(claim, str) for claim in claims):
                continue
            resources["claims"] = [{"name": claim} if isinstance(claim, str) else claim for claim in claims]
            problem = "an entry is an object with the name of a claim"
            correction = f"write - name: {next(claim for claim in claims if isinstance(claim, str))}"
            yield LintFinding("error", f"{where}.resources.claims", problem, correction, True)
