"""Reads Kubernetes objects and policies from files for the offline commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from extender.allocation import NodeInfo, Preference, Problem
from extender.allocation.nodes import gpu_uuid, troubled
from extender.cache import tainted
from extender.files import name_of, read_file
from extender.manifests import objects_of_part
from extender.model import Claim, DeviceClass, DeviceId, Node, ObjectKey, Pod, Slice, TaintRule, WireError
from extender.policy import MOST_POLICY, Policy, PolicyError, load_policy
from extender.topology.agent_slices import DRIVER as FABRIC_DRIVER
from extender.topology.preference import ByTopology
from extender.topology.sets import Graphs
from extender.topology.sources import choose_fabric, live_fabric
from extender.wire import (
    DocumentPart,
    Json,
    SliceDecoder,
    decode_claim,
    decode_class,
    decode_labels,
    decode_node,
    decode_pod,
    decode_taint_rule,
    get,
    need,
    parts_of,
    text_of,
)

_Placed = tuple[Json, str]  # a template, and its place in the files
_MOST_MANIFEST = 4 * MOST_POLICY  # bytes of a manifest with a policy in it


@dataclass(slots=True)
class Objects:
    """The decoded objects of the files. The devices of `slices` have the taints of `rules`.

    `claims` are the claims without an allocation. The devices of allocated claims are in `taken`; `shares` maps a
    device to its consumed capacity in nanos, by name. `allocated` has these claims by key, and `pods` those without a
    node. `guesses_nodes`: `nodes` are those that slices name, without labels and taints. `fabric` has the agent's slice
    of each node. `origins` maps "DeviceClass NAME" and "ResourceClaim KEY" to file, document and object; a claim of a
    template is in the template.
    """

    slices: list[Slice] = field(default_factory=list)
    fabric: dict[str, Slice] = field(default_factory=dict)
    rules: list[TaintRule] = field(default_factory=list)
    classes: dict[str, DeviceClass] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    taken: list[DeviceId] = field(default_factory=list)
    shares: dict[DeviceId, dict[str, int]] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    allocated: dict[ObjectKey, Claim] = field(default_factory=dict)
    pods: list[Pod] = field(default_factory=list)
    namespaces: dict[str, Mapping[str, str]] = field(default_factory=dict)  # name to labels
    guesses_nodes: bool = False

    def preference(self, node: Node, problem: Problem) -> Preference:
        """Return the order in which `berth serve` would try the devices of this node."""
        found = problem.inventory
        gpus = [
            (bit, pool_device.device) for bit, pool_device in enumerate(found.devices) if gpu_uuid(pool_device.device)
        ]
        devices = [device for _, device in gpus]
        live = self.fabric.get(node.name)
        agent_fabric, _ = live_fabric(live, devices, lambda _: "") if live is not None else (None, ())
        fabric = choose_fabric(agent_fabric, devices, Graphs()) if gpus else None
        bits = {gpu_uuid(device): bit for bit, device in gpus}
        positions = tuple(bits.get(gpu.uuid, -1) for gpu in fabric.gpus) if fabric is not None else ()
        trouble = troubled(found, fabric, positions)
        node_info = NodeInfo(
            node,
            found,
            problem.allocated_state,
            fabric=fabric,
            gpu_bits=positions,
            busy=problem.taken,
            troubled=trouble,
        )
        return ByTopology(node_info, Policy())


def objects_of(given: list[tuple[str, Json]], problems: dict[int, WireError] | None = None) -> Objects:
    """Decode the objects of (place, object) pairs. The place goes into messages.

    A fault goes to `problems`, under the position of its object. Without `problems` this raises WireError.
    """
    found = Objects()
    decoder = SliceDecoder()
    pods: list[tuple[int, Json]] = []
    places = [f"{where}: " if where else "" for where, _ in given]
    templates: dict[ObjectKey, tuple[int, Json]] = {}

    def attempt(position: int, decode: Callable[[], None]) -> None:
        try:
            decode()
        except WireError as error:
            where = given[position][0]
            problem = WireError(f"{where}: {error.path}" if where else error.path, error.problem)
            if problems is None:
                raise problem from error
            problems[position] = problem

    for position, (_, unnamed) in enumerate(given):
        obj = _named(unnamed)
        match obj.get("kind"):
            case "Pod":
                pods.append((position, obj))
            case "ResourceClaimTemplate":
                templates[_key(obj)] = (position, obj)
            case _:
                attempt(position, partial(_add, found, obj, decoder, places[position]))
    used: set[ObjectKey] = set()
    known = {key: (template, places[position]) for key, (position, template) in templates.items()}
    for position, obj in pods:
        attempt(position, partial(_add_claims_of_pod, found, obj, known, used))
    for key, (position, _) in templates.items():
        if key not in used:
            attempt(position, partial(_add_template, found, known[key], key))
    found.slices = [tainted(slice_, found.rules) for slice_ in found.slices]
    if not found.nodes:
        names = sorted({s.selection.node_name for s in found.slices if s.selection.node_name})
        found.nodes, found.guesses_nodes = [Node(name) for name in names], True
    return found


def documents(path: Path) -> Iterator[Json]:
    """Yield the objects of a file and the items of its lists. Raises WireError if it is unreadable or has none."""
    is_empty = True
    for part in parts(path):
        for obj in objects_of_part(part):
            is_empty = False
            yield obj
    if is_empty:
        raise WireError(name_of(path), "holds no Kubernetes objects")


def parts(path: Path) -> list[DocumentPart]:
    """Return the documents of a file; a fault in one leaves the others readable. Raises WireError."""
    where = name_of(path)
    return parts_of(text_of(read_file(path), where), where)


def policy_of(path: Path) -> Policy:
    """Return the policy of a file. Raises WireError or PolicyError that names the file."""
    try:
        return load_policy(policy_text(path))
    except PolicyError as error:
        raise type(error)(f"{name_of(path)}: {error}") from error


def policy_text(path: Path) -> str:
    """Return the text of a policy file, or of the ConfigMap that contains the policy. Raises WireError."""
    where = name_of(path)
    text = text_of(read_file(path, _MOST_MANIFEST), where)
    found = [text]
    if "ConfigMap" in text:
        objects = [obj for part in parts_of(text, where) for obj in objects_of_part(part)]
        found = [_policy_in(obj, where) for obj in objects if obj.get("kind") == "ConfigMap"] or found
    if len(found) > 1:
        raise WireError(where, f"holds {len(found)} ConfigMaps where one policy is expected")
    return found[0]


def _policy_in(config_map: Json, where: str) -> str:
    data = get(config_map, "data", dict, where, {})
    return need(data, "policy.yaml", f"{where}: data")


def _named(obj: Json) -> Json:
    """The object; with generateName as its name if it has only that."""
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("name") or not metadata.get("generateName"):
        return obj
    return {**obj, "metadata": {**metadata, "name": metadata["generateName"]}}


def _key(obj: Json) -> ObjectKey:
    metadata = obj.get("metadata") or {}
    return ObjectKey(metadata.get("namespace") or "", str(metadata.get("name")))


def _add(found: Objects, obj: Json, decoder: SliceDecoder, place: str) -> None:
    group, dot, _ = str(obj.get("apiVersion") or "").partition("/")[0].partition(".")
    if dot and group != "resource":  # such as the DeviceClass of a driver from before DRA had one
        return
    match obj.get("kind"):
        case "ResourceSlice":
            slice_ = decoder.decode(obj)
            if slice_.pool.driver == FABRIC_DRIVER:
                found.fabric[slice_.selection.node_name] = slice_
            else:
                found.slices.append(slice_)
        case "DeviceTaintRule":
            found.rules.append(decode_taint_rule(obj))
        case "DeviceClass":
            class_ = decode_class(obj)
            found.classes[class_.name] = class_
            found.origins[f"DeviceClass {class_.name}"] = f"{place}DeviceClass {class_.name}"
        case "ResourceClaim":
            claim = decode_claim(obj)
            found.origins[f"ResourceClaim {claim.key}"] = f"{place}ResourceClaim {claim.key}"
            _add_claim(found, claim)
        case "Node":
            found.nodes.append(decode_node(obj))
        case "Namespace":
            found.namespaces[_key(obj).name] = decode_labels(obj)
        case kind:
            if not kind:
                raise WireError("kind", "is missing: this is not a Kubernetes object")


def _add_claim(found: Objects, claim: Claim) -> None:
    if claim.allocation is None:
        if claim.problem:
            raise WireError(f"claim {claim.key}", claim.problem)
        found.claims.append(claim)
        return
    found.allocated[claim.key] = claim
    for result in claim.allocation.results:
        if result.admin_access:
            continue
        if not result.share_id:
            found.taken.append(result.device)
            continue
        known = found.shares.setdefault(result.device, {})
        for name, amount in result.amounts.items():
            known[name] = known.get(name, 0) + amount


def _add_claims_of_pod(found: Objects, obj: Json, templates: dict[ObjectKey, _Placed], used: set[ObjectKey]) -> None:
    """Add one claim for each template that the pod uses."""
    pod = decode_pod(obj)
    if pod.is_waiting:
        found.pods.append(pod)
    for entry in pod.claims:
        key = ObjectKey(pod.key.namespace, entry.template_name)
        if key in templates:
            used.add(key)
            _add_template(found, templates[key], ObjectKey(pod.key.namespace, f"{pod.key.name}-{entry.name}"))


def _add_template(found: Objects, placed: _Placed, key: ObjectKey) -> None:
    template, place = placed
    found.origins[f"ResourceClaim {key}"] = f"{place}ResourceClaimTemplate {_key(template)}"
    inner = get(get(template, "spec", dict, "", {}), "spec", dict, ".spec", {})
    _add_claim(found, decode_claim({"metadata": {"namespace": key.namespace, "name": key.name}, "spec": inner}))
