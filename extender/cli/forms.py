"""Manifests in forms that articles still print: what is wrong with their shape, and the corrected object.

`corrected` works on raw objects, before anything is decoded. A fix is made only where the meaning is clear.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

Json = dict[str, Any]

_GROUP = "resource.k8s.io/"
_CURRENT = "resource.k8s.io/v1"
_EXACT = ("deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity")
_POD_TEMPLATES = ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job")
_NO_DOMAIN = re.compile(r"device\.(attributes|capacity)\[\s*[\"']([^\"'./]+)[\"']\s*\]")
_OLD_ACCESSOR = re.compile(r"\]\s*\.(?:\w+\.)?(quantity|string|version|bool|int)\b(?!\()")


class Form(NamedTuple):
    """One thing about an object's shape. `fixed` says that the corrected object no longer has it."""

    severity: str
    field: str
    problem: str
    correction: str
    fixed: bool = False


def corrected(obj: Json) -> tuple[Json, list[Form]]:
    """(the object as it should be, what was found)."""
    made = copy.deepcopy(obj)
    found: list[Form] = []
    kind, version = str(made.get("kind")), str(made.get("apiVersion"))
    if version.startswith(_GROUP) and version != _CURRENT and kind != "DeviceTaintRule":
        found.append(_version(made, version))
    if kind == "ResourceClass":
        found.append(_resource_class(made))
    elif kind in ("ResourceClaim", "ResourceClaimTemplate"):
        spec, path = _claim_spec(made, kind)
        found += _claim(spec, path)
    elif kind == "Pod":
        found += _pod(made.get("spec") or {}, "spec")
    elif kind in _POD_TEMPLATES:
        template = (made.get("spec") or {}).get("template") or {}
        found += _pod(template.get("spec") or {}, "spec.template.spec")
    return made, found


def _version(made: Json, version: str) -> Form:
    made["apiVersion"] = _CURRENT
    return Form("error", "apiVersion", f"{version} is not what Kubernetes 1.34 and newer store", f"use {_CURRENT}", True)


def _resource_class(made: Json) -> Form:
    driver, parameters = made.get("driverName"), made.get("parametersRef")
    problem = "ResourceClass was withdrawn with the first form of DRA"
    if not driver or parameters:
        return Form("error", "kind", problem, "write a DeviceClass with CEL selectors; parameters become spec.config")
    made.pop("driverName")
    made["kind"] = "DeviceClass"
    made["spec"] = {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]}
    return Form("error", "kind", problem, f'a DeviceClass with the selector device.driver == "{driver}"', True)


def _claim_spec(made: Json, kind: str) -> tuple[Json, str]:
    spec = made.get("spec") or {}
    return (spec, "spec") if kind == "ResourceClaim" else (spec.get("spec") or {}, "spec.spec")


def _claim(spec: Json, path: str) -> Iterator[Form]:
    if "resourceClassName" in spec:
        yield Form("error", f"{path}.resourceClassName", "claims of the first form of DRA name a class and nothing else",
                   "use spec.devices.requests[].exactly.deviceClassName")
    devices = spec.get("devices") or {}
    for i, request in enumerate(devices.get("requests") or ()):
        if isinstance(request, dict):
            yield from _request(request, f"{path}.devices.requests[{i}]")
    for i, constraint in enumerate(devices.get("constraints") or ()):
        wrong = [name for name in ("cel", "selectors", "expression") if isinstance(constraint, dict) and name in constraint]
        if wrong:
            yield Form("error", f"{path}.devices.constraints[{i}].{wrong[0]}", "constraints know no CEL",
                       "use matchAttribute or distinctAttribute with a qualified name; CEL goes into selectors")


def _request(request: Json, path: str) -> Iterator[Form]:
    outside = [name for name in _EXACT if name in request]
    if outside and "firstAvailable" not in request:
        exactly = request.setdefault("exactly", {})
        for name in outside:
            exactly.setdefault(name, request.pop(name))
        yield Form("error", f"{path}.{outside[0]}", f"{', '.join(outside)} stand beside `exactly`", f"move them into {path}.exactly", True)
    options = [(request.get("exactly"), f"{path}.exactly")]
    options += [(option, f"{path}.firstAvailable[{i}]") for i, option in enumerate(request.get("firstAvailable") or ())]
    for option, where in options:
        for i, selector in enumerate((option or {}).get("selectors") or ()):
            expression = str(((selector or {}).get("cel") or {}).get("expression"))
            yield from _expression(expression, f"{where}.selectors[{i}].cel.expression")


def _expression(text: str, where: str) -> Iterator[Form]:
    bare = _NO_DOMAIN.search(text)
    if bare:
        kind, name = bare.groups()
        yield Form("warning", where, f'device.{kind}["{name}"] asks for a domain called {name!r}',
                   f'name the domain first: device.{kind}["gpu.nvidia.com"].{name}')
    old = _OLD_ACCESSOR.search(text)
    if old:
        hint = "compare with quantity(…): .compareTo(quantity('40Gi')) >= 0" if old[1] == "quantity" else "values have their type already: leave it out"
        yield Form("warning", where, f".{old[1]} is how the first form of DRA read a value", hint)


def _pod(spec: Json, path: str) -> Iterator[Form]:
    claims = [claim for claim in spec.get("resourceClaims") or () if isinstance(claim, dict)]
    for i, claim in enumerate(claims):
        source = claim.get("source")
        if isinstance(source, dict):
            claim.pop("source")
            claim.update(source)
            yield Form("error", f"{path}.resourceClaims[{i}].source", "the wrapper `source` is gone since Kubernetes 1.31",
                       "put resourceClaimName or resourceClaimTemplateName beside the name", True)
    names = [str(claim.get("name")) for claim in claims]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Form("error", f"{path}.resourceClaims", f"two entries are called {name!r}", "give each a name of its own")
    yield from _used(spec, names, path)


def _used(spec: Json, names: list[str], path: str) -> Iterator[Form]:
    """Claims that no container uses stay invisible to all; containers can only use claims of the pod."""
    containers = [c for field in ("initContainers", "containers") for c in spec.get(field) or () if isinstance(c, dict)]
    used = {str(entry.get("name")) for c in containers for entry in (c.get("resources") or {}).get("claims") or ()}
    for name in sorted(used - set(names)):
        yield Form("error", f"{path}.containers", f"a container uses claim {name!r}, which {path}.resourceClaims does not have", "add it there")
    for name in names:
        if name in used:
            continue
        alone = len(spec.get("containers") or ()) == 1
        if alone:
            resources = spec["containers"][0].setdefault("resources", {})
            resources.setdefault("claims", []).append({"name": name})
        yield Form("warning", f"{path}.containers", f"no container uses claim {name!r}: its devices are allocated and visible to nobody",
                   f"resources: {{claims: [{{name: {name}}}]}}", alone)
