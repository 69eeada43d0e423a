"""Which kinds of devices the claims of manifests ask for, as their classes and the table of drivers say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress

from extender.api.fields import Json, get, inner
from extender.api.object_meta import ObjectKey
from extender.api_schema import request_options
from extender.base.berth_errors import WireError
from extender.vendors import DRIVERS, OTHER, driver_of, driver_of_class

_STRING = r"(?:\"([^\"]+)\"|'([^']+)')"
_IS_DRIVER = re.compile(rf"device\.driver\s*==\s*{_STRING}|{_STRING}\s*==\s*device\.driver")
_ONE_OF = re.compile(r"device\.driver\s+in\s*\[([^\]]*)\]")
_DOMAIN = re.compile(rf"device\.(?:attributes|capacity)\[\??\s*{_STRING}")
_CHANNEL = {"name": "channel", "exactly": {"deviceClassName": "compute-domain-default-channel.nvidia.com"}}


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
