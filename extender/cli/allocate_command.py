"""`berth allocate`: runs the allocator offline, on the objects of files or on recorded cases."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from extender.allocation import (
    CAUSES,
    CauseRecorder,
    Features,
    NodeInfo,
    Preference,
    Problem,
    Search,
    Snapshot,
    allocations,
    choose,
)
from extender.allocation.what_if import claims_problem, problem_of, usage_of
from extender.api.device_classes import decode_class, extended_resources
from extender.api.documents import json_value
from extender.api.fields import Json, inner, many, need, quantities, strings
from extender.api.nodes import Node, decode_node
from extender.api.object_meta import ObjectKey
from extender.api.pod_annotations import intent_of
from extender.api.reasons import Code, Reason
from extender.api.resource_claims import Allocation, Claim, Result, decode_claim, encode_allocation
from extender.api.resource_slices import DeviceId, SliceDecoder
from extender.base.berth_errors import InvalidClaim, OutOfSteps, WireError
from extender.base.text_limits import counted, shown
from extender.cel.dra import Dialect, Masks
from extender.cli.cluster_objects import snapshot_of
from extender.cli.object_files import checked_files
from extender.cli.options import Output
from extender.cli.output import Screen, say_json
from extender.files import must_exist, name_of, read_file
from extender.lint import Placed
from extender.manifests import DecodedObjects, decoded_objects
from extender.policy import Policy
from extender.scheduling import may_run
from extender.scheduling.requirements import ADMIN_LABEL, class_of_resource, special_claim
from extender.topology.preference import ByTopology

_GAVE_UP = "gave up: the search used up its steps"
_CASE_STEPS = 1_000_000  # steps; far above the policy's default, because no scheduler waits for the answer


def allocate_command(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="YAML or JSON files of Kubernetes objects: slices, classes, claims, pods, nodes."),
    ] = None,
    cases: Annotated[
        Path | None, typer.Option(help="Folder of case files (.json, .jsonl). Prints one line of JSON per case.")
    ] = None,
    order: Annotated[
        Literal["preferred", "in-tree"],
        typer.Option(help="in-tree takes the first solution in kube-scheduler's order."),
    ] = "preferred",
    output: Output = "table",
    node: Annotated[str | None, typer.Option(help="Only this node.")] = None,
) -> None:
    """Show the devices that claims would get on each node, or why none.

    Exit code 1 if no node fits.

    Example: berth allocate slices.yaml claim.yaml --order in-tree
    """
    if cases is not None:
        unreadable = 0
        for where, case in load_cases(cases):
            if isinstance(case, WireError):
                unreadable += 1
                say_json(_answer({"name": where}, error=str(case)))
            else:
                say_json(answer(case, order, where))
        if unreadable:
            raise WireError(name_of(cases), f"{counted(unreadable, 'case')} cannot be read as JSON, see above")
        return
    if not files:
        raise WireError("FILE", "is missing: give files, or --cases DIR")
    answers = answers_of(checked_files(files), order, node)
    _print(answers, output)
    if all(one["allocations"] is None for one in answers):
        raise typer.Exit(1)


def answer(case: Json, order: str, where: str = "") -> Json:
    """Return the answer to one case: `name`, `error` (or None) and `allocations` (API form, or None)."""
    subject = {"name": str(case.get("name") or where)}
    try:
        return _answer(subject, _solve_case(case, order))
    except (InvalidClaim, WireError) as error:
        return _answer(subject, error=str(error))
    except OutOfSteps:
        return _answer(subject, error=_GAVE_UP)


def _answer(subject: Json, found: list[Allocation] | None = None, error: str | None = None) -> Json:
    """The answer about a case or a node, which `subject` names."""
    encoded = None if found is None else [encode_allocation(allocation) for allocation in found]
    return {**subject, "error": error, "allocations": encoded}


def _solve_case(case: Json, order: str) -> list[Allocation] | None:
    """The allocations of the claims of a case on its node; None if they do not fit. Raises WireError, InvalidClaim."""
    decoder, features = SliceDecoder(), Features.from_gates(tuple(strings(case, "features", "")))
    slices = many(case, "resourceSlices", "", lambda item, _: decoder.decode(item))
    classes = {one.name: one for one in many(case, "deviceClasses", "", lambda item, _: decode_class(item))}
    claims = many(case, "claims", "", lambda item, _: decode_claim(item))
    taken = many(case, "allocatedDevices", "", _device)
    shares: dict[DeviceId, dict[str, int]] = {device: {} for device in many(case, "allocatedShares", "", _device)}
    for device, amounts in many(case, "consumedCapacity", "", _consumed):
        known = shares.setdefault(device, {})
        for name, nanos in amounts.items():
            known[name] = known.get(name, 0) + nanos
    node = decode_node(inner(case, "node", ""))
    for claim in claims:
        if claim.problem:
            raise InvalidClaim(f"claim {claim.key}: {claim.problem}")
    masks = Masks(Dialect(list_types=features.list_attributes))
    named = [(str(claim.key), claim.spec) for claim in claims]
    problem = problem_of(node, slices, classes, named, usage_of(slices, taken, shares), features, masks)
    solution = _search(problem, order, None, CauseRecorder())
    if solution is None:
        if any(pool.trouble for pool in problem.inventory.pools):
            raise InvalidClaim("invalid resource pools were encountered")
        return None
    return allocations(problem, solution, node.name, classes.get, lambda: str(uuid.uuid4()))


def _device(obj: Json, path: str) -> DeviceId:
    return DeviceId(need(obj, "driver", path), need(obj, "pool", path), need(obj, "device", path))


def _consumed(obj: Json, path: str) -> tuple[DeviceId, dict[str, int]]:
    result = Result("", _device(obj, path), consumed=quantities(obj, "consumed", path))
    return result.device, result.amounts


def _search(problem: Problem, order: str, preference: Preference | None, recorder: CauseRecorder) -> Any:
    if order == "in-tree":
        return Search(problem, max_steps=_CASE_STEPS, recorder=recorder).run()
    return choose(problem, preference, max_steps=_CASE_STEPS, recorder=recorder)


# -- cluster objects -----------------------------------------------------------------------------------------


def answers_of(given: list[Placed], order: str, only: str | None) -> list[Json]:
    """The answer for each node, or for the one named `only`. Raises WireError.

    `claims` names the claims of the allocations, in their order.
    """
    found = decoded_objects(given)
    found.claims = _claims(found)
    snapshot, knows_nodes = snapshot_of([obj for _, obj in given if not _waits(obj)])
    nodes = [node_info for name, node_info in sorted(snapshot.node_infos.items()) if only in (None, name)]
    if not nodes:
        if only is not None:
            raise WireError("nodes", f"none named {shown(only)}")
        raise WireError("nodes", "the files name no node: give a Node or a slice with nodeName")
    if not any(_asked(found, one.node) for one in nodes) and not any(pod.claims for pod in found.pods):
        raise WireError("claims", "the files hold no ResourceClaim, ResourceClaimTemplate or Pod with one")
    if not knows_nodes:
        found.pods = [replace(pod, constraints_are_known=False) for pod in found.pods]
    return [_one_node(found, snapshot, one, order) for one in nodes]


def _claims(found: DecodedObjects) -> list[Claim]:
    """The claims of the files, one of a template for each pod that names it, and one of each other template."""
    named = [
        (pod, entry, ObjectKey(pod.key.namespace, entry.template_name)) for pod in found.pods for entry in pod.claims
    ]
    used = {key for *_, key in named}
    of_pods = [
        replace(found.templates[key], key=ObjectKey(pod.key.namespace, f"{pod.key.name}-{entry.name}"))
        for pod, entry, key in named
        if key in found.templates
    ]
    return [*found.claims, *of_pods, *(claim for key, claim in found.templates.items() if key not in used)]


def _waits(obj: Json) -> bool:
    """Whether the object is a claim without devices; such a claim need not have a name yet."""
    return obj.get("kind") == "ResourceClaim" and not inner(obj, "status", "").get("allocation")


def _one_node(found: DecodedObjects, snapshot: Snapshot, node_info: NodeInfo, order: str) -> Json:
    node = node_info.node
    subject, refusals = {"node": node.name}, list(_refusals(found, snapshot, node))
    if refusals:
        return {**_answer(subject), "why": refusals}
    named = [(str(claim.key), claim.spec) for claim in _asked(found, node)]
    problem = claims_problem(node_info, named, found.classes.get, Masks(), Features())
    preference = None
    if order != "in-tree":
        policy = Policy()
        problem = replace(problem, fabric_partitions=node_info.fabric_partitions)
        preference = ByTopology(node_info, policy, intent_of({}, policy.defaults.topology))
    recorder = CauseRecorder()
    try:
        solution = _search(problem, order, preference, recorder)
    except InvalidClaim as error:
        return _answer(subject, error=str(error))
    except OutOfSteps:
        return _answer(subject, error=_GAVE_UP)
    if solution is None:
        return {**_answer(subject), "why": _why(problem, recorder)}
    made = allocations(problem, solution, node.name, found.classes.get, lambda: str(uuid.uuid4()))
    return {**_answer(subject, made), "claims": [name for name, _ in named]}


def _asked(found: DecodedObjects, node: Node) -> list[Claim]:
    """The claims without devices, also those that pods with extended resources would get on the node."""
    resources, claims = extended_resources(found.classes.values()), list(found.claims)
    for pod in found.pods:
        names = {name for container in pod.containers for name, amount in container.requests if amount}
        classes = {name: class_of_resource(name, found.classes, resources) for name in names - node.allocatable}
        spec, _ = special_claim(pod.containers, {name: class_ for name, class_ in classes.items() if class_})
        if spec.requests:
            key = ObjectKey(pod.key.namespace, f"{pod.key.name}-extended-resources")
            claims.append(Claim(key, str(key), spec=spec, extended=True))
    return claims


def _refusals(found: DecodedObjects, snapshot: Snapshot, node: Node) -> Iterator[str]:
    """Why the claims or pods cannot get the node, whatever its devices are."""
    for claim in found.claims:
        if claim.deleting:
            yield f"claim {claim.key} is being deleted"
        asks = any(option.admin_access for request in claim.spec.requests for option in request.alternatives)
        labels = snapshot.namespaces.get(claim.key.namespace)
        if asks and labels is not None and labels.get(ADMIN_LABEL) != "true":
            yield str(Reason(Code.ADMIN_ACCESS, (claim.key.namespace,)))
    for pod in found.pods:
        if pod.constraints_are_known and not may_run(pod, node):
            yield f"pod {pod.key}: {Reason(Code.NODE_CONSTRAINTS)}"
        for name in {entry.claim_name or pod.claim_statuses.get(entry.name) or "" for entry in pod.claims}:
            shared = snapshot.claims.get(ObjectKey(pod.key.namespace, name))
            pin = shared.allocation.node_selector if shared is not None and shared.allocation is not None else None
            if pin is not None and not pin.matches(node.name, node.labels):
                yield f"claim {pod.key.namespace}/{name} is allocated for other nodes"
            if shared is not None and shared.deleting and not shared.is_reserved_for(pod.uid):
                yield f"claim {shared.key} is being deleted"


def _why(problem: Problem, recorder: CauseRecorder) -> list[str]:
    lines = [
        f"pool {'/'.join(pool.key)}: {pool.trouble or 'is being updated'}"
        for pool in problem.inventory.pools
        if not pool.usable
    ]
    for name, spec in zip(problem.names, problem.specs, strict=True):
        for request in spec.requests:
            for alternative in request.alternatives:
                matching = counted(problem.select(name, alternative).match.bit_count(), "device")
                lines.append(f"claim {name}, request {alternative.name}: the selectors match {matching}")
    for (request_name, bit), (cause, detail) in sorted(recorder.causes.items()):
        pool_device = problem.inventory.devices[bit]
        lines.append(f"request {request_name}: {pool_device.id} {CAUSES[cause]}" + (f" ({detail})" if detail else ""))
    return lines


def _print(answers: list[Json], output: str) -> None:
    console = Screen(soft_wrap=True)
    for line in answers:
        claims = line.pop("claims", ())  # of the allocations
        if output == "json":
            say_json(line)
            continue
        fits = "does not fit" if line["allocations"] is None else "fits"
        console.print(Text.assemble((line["node"], "bold"), f": {line['error'] or fits}"))
        for claim, allocation in zip(claims, line["allocations"] or (), strict=True):
            for result in allocation["devices"]["results"]:
                console.print(f"  {claim} {result['request']}: {result['driver']}/{result['pool']}/{result['device']}")
        for why in line.get("why", []):
            console.print(f"  {why}")


# -- case files: the objects of a cluster, claims for one node, and the recorded answer -----------------------


def load_cases(folder: Path) -> Iterator[tuple[str, Json | WireError]]:
    """Yield (place, case) of a folder or of one file, in name order: one per .json file, one per line of a .jsonl file.

    An error stands for a case that is no JSON object. Raises WireError for a path or a file without cases.
    """
    must_exist(folder)
    paths = [folder] if folder.is_file() else sorted((*folder.glob("*.json"), *folder.glob("*.jsonl")))
    if not paths:
        raise WireError(name_of(folder), "holds no .json or .jsonl files")
    for path in paths:
        content = read_file(path)
        if not content.strip():
            raise WireError(name_of(path), "holds no case: it is empty")
        lines = content.splitlines() if path.suffix == ".jsonl" else [content]
        for number, line in enumerate(lines, 1):
            if line.strip():
                where = f"{path.name}:{number}"
                yield where, _read(line, where)


def _read(line: bytes, where: str) -> Json | WireError:
    try:
        found: Json = json_value(line, where)
    except WireError as error:
        return error
    return found if type(found) is dict else WireError("", "a case must be an object")
