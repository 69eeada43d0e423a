"""DeviceClasses (resource.k8s.io/v1), and the extended resources that they provide."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from extender.api.claim_specs import Config, decode_config, decode_selector
from extender.api.fields import Json, inner, many, need, string
from extender.base.berth_errors import WireError
from extender.base.text_limits import REASON_BYTES, cut

IMPLICIT_RESOURCE_PREFIX = "deviceclass.resource.kubernetes.io/"
MARKER_CLASS = "berth.dev"  # the DeviceClass that Berth updates so that kube-scheduler retries waiting pods


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A DeviceClass. `problem` says why Berth cannot use it, or is empty."""

    name: str
    selectors: tuple[str, ...] = ()
    config: tuple[Config, ...] = ()
    extended_resource: str = ""
    created: str = ""
    problem: str = ""


def extended_resources(classes: Iterable[DeviceClass]) -> dict[str, str]:
    """Extended resource name to DeviceClass name: the newest class wins, then the first class name."""
    found: dict[str, DeviceClass] = {}
    for class_ in classes:
        name = class_.extended_resource
        if not name:
            continue
        known = found.get(name)
        if known is None or (class_.created, _reversed(class_.name)) > (known.created, _reversed(known.name)):
            found[name] = class_
    return {name: class_.name for name, class_ in found.items()}


def _reversed(name: str) -> tuple[int, ...]:
    """A sort key that reverses the order of names."""
    return tuple(-ord(char) for char in name)


def decode_class(obj: Json) -> DeviceClass:
    """Decode a DeviceClass. If the spec is not readable, `problem` names the field. Raises WireError for metadata."""
    metadata = inner(obj, "metadata", "")
    name, created = need(metadata, "name", "metadata"), string(metadata, "creationTimestamp", "metadata")
    spec = inner(obj, "spec", "")
    try:
        return DeviceClass(
            name,
            selectors=many(spec, "selectors", "spec", decode_selector),
            config=many(spec, "config", "spec", decode_config),
            extended_resource=string(spec, "extendedResourceName", "spec"),
            created=created,
        )
    except WireError as error:
        return DeviceClass(name, created=created, problem=cut(str(error), REASON_BYTES))
