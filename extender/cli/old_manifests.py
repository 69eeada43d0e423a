"""Finds and corrects the fields of older versions of the DRA API in manifests.

`corrected` works on raw objects, before they are decoded. It changes an object only where the meaning is clear.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator

from extender.cli.lint_finding import LintFinding
from extender.wire import Json, get, many, need

_GROUP = "resource.k8s.io/"
_CURRENT = "resource.k8s.io/v1"
_EXACT = ("deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity")
_POD_TEMPLATES = ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job")
_NO_DOMAIN = re.compile(r"device\.(attributes|capacity)\[\s*[\"']([^\"'./]+)[\"']\s*\]")
_OLD_ACCESSOR = re.compile(r"\]\s*\.(?:\w+\.)?(quantity|string|version|bool|int)\b(?!\()")


def corrected(obj: Json) -> tuple[Json, list[LintFinding]]:
    """Return (corrected copy of the object, findings). Raises WireError if a field has a type of no API version."""
    made = copy.deepcopy(obj)
    found: list[LintFinding] = []
    kind, version = str(made.get("kind")), str(made.get("apiVersion"))
    if version.startswith(_GROUP) and version != _CURRENT and kind != "DeviceTaintRule":
        found.append(_version(made, version))
    if kind == "ResourceClass":
        found.append(_resource_class(made))
    elif kind in ("ResourceClaim", "ResourceClaimTemplate"):
        spec, path = _claim_spec(made, kind)
        found += _claim(spec, path)
    elif kind == "Pod":
        found += _pod(get(made, "spec", dict, "", {}), "spec")
    elif kind in _POD_TEMPLATES:
        template = get(get(made, "spec", dict, "", {}), "template", dict, "spec", {})
        found += _pod(get(template, "spec", dict, "spec.template", {}), "spec.template.spec")
    return made, found


def _version(made: Json, version: str) -> LintFinding:
    made["apiVersion"] = _CURRENT
    return LintFinding(
        "error", "apiVersion", f"{version} is not what Kubernetes 1.34 and newer store", f"use {_CURRENT}", True
    )


def _resource_class(made: Json) -> LintFinding:
    driver, parameters = get(made, "driverName", str, "", ""), made.get("parametersRef")
    problem = "the API removed ResourceClass (classic DRA)"
    if not driver or parameters:
        correction = "write a DeviceClass with CEL selectors; move the parameters to spec.config"
        return LintFinding("error", "kind", problem, correction)
    made.pop("driverName")
    made["kind"] = "DeviceClass"
    made["spec"] = {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]}
    return LintFinding("error", "kind", problem, f'a DeviceClass with the selector device.driver == "{driver}"', True)


def _claim_spec(made: Json, kind: str) -> tuple[Json, str]:
    spec = get(made, "spec", dict, "", {})
    return (spec, "spec") if kind == "ResourceClaim" else (get(spec, "spec", dict, "spec", {}), "spec.spec")


def _claim(spec: Json, path: str) -> Iterator[LintFinding]:
    if "resourceClassName" in spec:
        yield LintFinding(
            "error",
            f"{path}.resourceClassName",
            "the API removed this field (classic DRA)",
            "use spec.devices.requests[].exactly.deviceClassName",
        )
    devices = get(spec, "devices", dict, path, {})
    for request, where in _objects(devices, "requests", f"{path}.devices"):
        yield from _request(request, where)
    for constraint, where in _objects(devices, "constraints", f"{path}.devices"):
        wrong = [name for name in ("cel", "selectors", "expression") if name in constraint]
        if wrong:
            yield LintFinding(
                "error",
                f"{where}.{wrong[0]}",
                "a constraint cannot have CEL",
                "use matchAttribute or distinctAttribute with a qualified name; write CEL in selectors",
            )


def _objects(obj: Json, key: str, path: str) -> tuple[tuple[Json, str], ...]:
    """Return the (object, path) of each item of a list."""
    return many(obj, key, path, lambda item, where: (item, where))


def _request(request: Json, path: str) -> Iterator[LintFinding]:
    outside = [name for name in _EXACT if name in request]
    if outside and "firstAvailable" not in request:
        exactly = request["exactly"] = get(request, "exactly", dict, path, {})
        for name in outside:
            exactly.setdefault(name, request.pop(name))
        yield LintFinding(
            "error",
            f"{path}.{outside[0]}",
            f"{', '.join(outside)} must be inside `exactly`",
            f"move them into {path}.exactly",
            True,
        )
    exact = (get(request, "exactly", dict, path, {}), f"{path}.exactly")
    for option, where in (exact, *_objects(request, "firstAvailable", path)):
        for selector, place in _objects(option, "selectors", where):
            cel = get(selector, "cel", dict, place, {})
            yield from _expression(get(cel, "expression", str, f"{place}.cel", ""), f"{place}.cel.expression")


def _expression(text: str, where: str) -> Iterator[LintFinding]:
    bare = _NO_DOMAIN.search(text)
    if bare:
        kind, name = bare.groups()
        yield LintFinding(
            "warning",
            where,
            f'device.{kind}["{name}"] reads the domain {name!r}, not an attribute',
            f'write the domain first: device.{kind}["gpu.nvidia.com"].{name}',
        )
    old = _OLD_ACCESSOR.search(text)
    if old:
        hint = (
            "compare with quantity(…): .compareTo(quantity('40Gi')) >= 0"
            if old[1] == "quantity"
            else f"delete .{old[1]}: values have their type already"
        )
        yield LintFinding("warning", where, f".{old[1]} is how classic DRA read a value", hint)


def _pod(spec: Json, path: str) -> Iterator[LintFinding]:
    claims = _objects(spec, "resourceClaims", path)
    for claim, where in claims:
        source = get(claim, "source", dict, where, {})
        if source:
            claim.pop("source")
            claim.update(source)
            yield LintFinding(
                "error",
                f"{where}.source",
                "Kubernetes 1.31 removed the field `source`",
                "move resourceClaimName or resourceClaimTemplateName up, next to `name`",
                True,
            )
    names = [need(claim, "name", where) for claim, where in claims]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield LintFinding(
            "error", f"{path}.resourceClaims", f"two entries are called {name!r}", "give each entry another name"
        )
    yield from _used(spec, names, path)


def _used(spec: Json, names: list[str], path: str) -> Iterator[LintFinding]:
    """Yield the claims of the pod that no container uses, and the claims of containers that the pod lacks."""
    containers = [found for field in ("initContainers", "containers") for found in _objects(spec, field, path)]
    resources = [(get(one, "resources", dict, where, {}), f"{where}.resources") for one, where in containers]
    used = {need(entry, "name", at) for one, where in resources for entry, at in _objects(one, "claims", where)}
    for name in sorted(used - set(names)):
        yield LintFinding(
            "error",
            f"{path}.containers",
            f"a container uses claim {name!r}, which {path}.resourceClaims does not have",
            "add it there",
        )
    for name in names:
        if name in used:
            continue
        has_one_container = len(spec.get("containers") or ()) == 1
        if has_one_container:
            container = spec["containers"][0]
            requirements = container["resources"] = container.get("resources") or {}
            requirements["claims"] = [*(requirements.get("claims") or ()), {"name": name}]
        yield LintFinding(
            "warning",
            f"{path}.containers",
            f"no container uses claim {name!r}: its devices are allocated, but no container can open them",
            f"resources: {{claims: [{{name: {name}}}]}}",
            has_one_container,
        )
