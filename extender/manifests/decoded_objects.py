"""Decodes the objects of files for the offline commands.

`objects_of_document` expands lists, and `checked` reads the fields that all kinds share; the decoders check all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from extender.api.device_classes import DeviceClass, decode_class
from extender.api.documents import Document, values_of
from extender.api.fields import Json, get, inner, string, wrong
from extender.api.nodes import decode_node
from extender.api.object_meta import ObjectKey, decode_labels
from extender.api.pods import Pod, decode_pod
from extender.api.resource_claims import Claim, decode_claim
from extender.api.resource_slices import Slice, SliceDecoder, decode_taint_rule
from extender.base.berth_errors import WireError
from extender.topology.agent_slices import DRIVER as FABRIC_DRIVER

_NAMES = {str: "text", bool: "a boolean", int: "a number", float: "a number", list: "a list"}


def objects_of_document(document: Document) -> Iterator[Json]:
    """The objects of one document. Raises WireError, which names the document."""
    for found in _found(document, checked):
        if isinstance(found, WireError):
            raise found
        yield found


def objects_or_faults(document: Document) -> Iterator[Json | WireError]:
    """The objects of one document, and one fault for each value that is no Kubernetes object.

    Labels and annotations are not checked. Raises WireError if the document cannot be read.
    """
    return _found(document, _shaped)


def _found(document: Document, check: Callable[[Any, str], Json]) -> Iterator[Json | WireError]:
    for value in values_of(document):
        try:
            items = _items(value)
        except WireError as error:
            yield _in_document(document, error)
            continue
        for item, path in items:
            try:
                if not path:
                    _check_kind(item)
                yield check(item, path)
            except WireError as error:
                yield _in_document(document, error)


def _in_document(document: Document, error: WireError) -> WireError:
    separator = ": " if error.path else " "
    return WireError(f"{document.where}{separator}{error.path}".rstrip(), error.problem)


def _items(value: Any) -> list[tuple[Any, str]]:
    """(item, path) of the items of a List, (value, '') of any other value, nothing for null. Raises WireError."""
    kind = value.get("kind") if type(value) is dict else None
    if type(kind) is not str or not kind.endswith("List"):
        return [] if value is None else [(value, "")]
    items = get(value, "items", list, "", [])
    return [(_of_list(item, kind, value), f".items[{position}]") for position, item in enumerate(items)]


def _of_list(item: Any, kind: str, given: Json) -> Any:
    """An item of a list. The API server leaves out the kind of items: `kubectl get --raw` shows a PodList so."""
    if type(item) is not dict or item.get("kind") or kind == "List":
        return item
    return {"apiVersion": given.get("apiVersion"), **item, "kind": kind.removesuffix("List")}


def _check_kind(value: Any) -> None:
    if type(value) is not dict:
        raise WireError("", f"holds {_NAMES[type(value)]} where a Kubernetes object is expected")
    if type(value.get("kind")) is not str or not value["kind"]:  # no content in it: the file may hold secrets
        raise WireError("kind", "is missing: this is no Kubernetes object")


def checked(obj: Any, path: str) -> Json:
    """The object itself. Raises WireError if a field that all kinds share has the wrong type."""
    found = _shaped(obj, path)
    for name in ("labels", "annotations"):
        for key, value in ((found.get("metadata") or {}).get(name) or {}).items():
            if type(value) is not str:
                raise wrong(f"{path}.metadata.{name}[{key}]", str, value)
    return found


def _shaped(obj: Any, path: str) -> Json:
    if type(obj) is not dict:
        raise wrong(path, dict, obj)
    for name in ("kind", "apiVersion"):
        string(obj, name, path)
    for name in ("spec", "status"):
        inner(obj, name, path)
    metadata, where = inner(obj, "metadata", path), f"{path}.metadata"
    for name in ("name", "generateName", "namespace", "uid", "resourceVersion"):
        string(metadata, name, where)
    for name in ("labels", "annotations"):
        inner(metadata, name, where)
    found: Json = obj
    return found


@dataclass(slots=True)
class DecodedObjects:
    """The decoded objects of the files: `claims` without an allocation, and `pods` without a node.

    `templates` are the claims of the templates, with the templates' names. `agent_slices` are those of node agents.
    `origins` maps "DeviceClass NAME", "ResourceClaim KEY" and "ResourceClaimTemplate KEY" to file, document and object.
    """

    slices: list[Slice] = field(default_factory=list)
    agent_slices: list[Slice] = field(default_factory=list)
    classes: dict[str, DeviceClass] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    templates: dict[ObjectKey, Claim] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    pods: list[Pod] = field(default_factory=list)

    def placed_claims(self) -> Iterator[tuple[Claim, str]]:
        """Yield the claims and those of the templates, each with its place."""
        for kind, claims in (("ResourceClaim", self.claims), ("ResourceClaimTemplate", self.templates.values())):
            yield from ((claim, self.origins[f"{kind} {claim.key}"]) for claim in claims)


def decoded_objects(given: list[tuple[str, Json]], problems: dict[int, WireError] | None = None) -> DecodedObjects:
    """Decode the objects of (place, object) pairs. The place goes into messages.

    A fault goes to `problems`, under the position of its object. Without `problems` this raises WireError.
    """
    found, slices = DecodedObjects(), SliceDecoder()
    for position, (place, obj) in enumerate(given):
        before = f"{place}: " if place else ""
        try:
            _add(found, slices, before, _named(obj))
        except WireError as error:
            problem = WireError(f"{before}{error.path}", error.problem)
            if problems is None:
                raise problem from error
            problems[position] = problem
    return found


def _named(obj: Json) -> Json:
    """The object; with generateName as its name if it has only that."""
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("name") or not metadata.get("generateName"):
        return obj
    return {**obj, "metadata": {**metadata, "name": metadata["generateName"]}}


def claim_of_template(obj: Json) -> Claim:
    """The claim of a ResourceClaimTemplate, with the name of the template. Raises WireError."""
    metadata = inner(obj, "metadata", "")
    named = {"namespace": metadata.get("namespace") or "", "name": str(metadata.get("name"))}
    return decode_claim({"metadata": named, "spec": inner(inner(obj, "spec", ""), "spec", ".spec")})


def _add(found: DecodedObjects, slices: SliceDecoder, place: str, obj: Json) -> None:
    """Decode an object. Raises WireError."""
    kind = obj.get("kind")
    group, dot, _ = str(obj.get("apiVersion") or "").partition("/")[0].partition(".")
    if dot and group != "resource" and kind not in ("Pod", "ResourceClaimTemplate"):
        return  # such as the DeviceClass of a driver from before DRA had one
    match kind:
        case "ResourceSlice":
            slice_ = slices.decode(obj)
            (found.agent_slices if slice_.pool.driver == FABRIC_DRIVER else found.slices).append(slice_)
        case "DeviceTaintRule":
            decode_taint_rule(obj)
        case "DeviceClass":
            class_ = decode_class(obj)
            found.classes[class_.name] = class_
            found.origins[f"DeviceClass {class_.name}"] = f"{place}DeviceClass {class_.name}"
        case "ResourceClaim" | "ResourceClaimTemplate":
            is_claim = kind == "ResourceClaim"
            claim = decode_claim(obj) if is_claim else claim_of_template(obj)
            found.origins[f"{kind} {claim.key}"] = f"{place}{kind} {claim.key}"
            if claim.allocation is None and claim.problem:
                raise WireError(f"claim {claim.key}", claim.problem)
            if not is_claim:
                found.templates[claim.key] = claim
            elif claim.allocation is None:
                found.claims.append(claim)
        case "Pod":
            if (pod := decode_pod(obj)).is_waiting:
                found.pods.append(pod)
        case "Node":
            decode_node(obj)
        case "Namespace":
            decode_labels(obj)
        case _ if not kind:
            raise WireError("kind", "is missing: this is not a Kubernetes object")
