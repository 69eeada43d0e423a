"""`berth allocate`: runs the allocator offline, on files."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from extender.allocation import CAUSES, CauseRecorder, Features, Problem, Search, allocations, choose
from extender.allocation.what_if import problem_of, usage_of
from extender.cel.dra import Dialect, Masks
from extender.cli.cases import Case, CaseError, load_cases
from extender.cli.manifest_checks import checked_files
from extender.cli.object_files import Objects, objects_of
from extender.cli.output import Screen, say_json
from extender.files import name_of
from extender.model import (
    Allocation,
    Claim,
    Code,
    InvalidClaim,
    Node,
    ObjectKey,
    OutOfSteps,
    Reason,
    WireError,
    counted,
    extended_resources,
    shown,
)
from extender.scheduling import may_run
from extender.scheduling.requirements import ADMIN_LABEL, class_of_resource, special_claim
from extender.wire import Json, encode_allocation

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
    output: Annotated[Literal["table", "json"], typer.Option(help="How to print.")] = "table",
    node: Annotated[str | None, typer.Option(help="Only this node.")] = None,
) -> None:
    """Show the devices that claims would get on each node, or why none.

    Exit code 1 if no node fits.

    Example: berth allocate slices.yaml claim.yaml --order in-tree
    """
    if cases is not None:
        unreadable = 0
        for case in load_cases(cases):
            say_json(answer(case, order))
            unreadable += isinstance(case, CaseError) and not case.is_json
        if unreadable:
            raise WireError(name_of(cases), f"{counted(unreadable, 'case')} cannot be read as JSON, see above")
        return
    if not files:
        raise WireError("FILE", "is missing: give files, or --cases DIR")
    found = objects_of(checked_files(files))
    answers = answers_of(found, order, node)
    _print(found, answers, output)
    if all(answer["allocations"] is None for answer in answers):
        raise typer.Exit(1)


def answer(case: Case | CaseError, order: str) -> Json:
    """Return the answer to one case: `name`, `error` (or None) and `allocations` (API form, or None)."""
    if isinstance(case, CaseError):
        return {"name": case.name, "error": case.message, "allocations": None}
    try:
        found = _solve_case(case, order)
    except (InvalidClaim, WireError) as error:
        return {"name": case.name, "error": str(error), "allocations": None}
    except OutOfSteps:
        return {"name": case.name, "error": "gave up: the search used up its steps", "allocations": None}
    encoded = None if found is None else [encode_allocation(allocation) for allocation in found]
    return {"name": case.name, "error": None, "allocations": encoded}


def _solve_case(case: Case, order: str) -> list[Allocation] | None:
    for claim in case.claims:
        if claim.problem:
            raise InvalidClaim(f"claim {claim.key}: {claim.problem}")
    features = Features.from_gates(case.features)
    masks = Masks(Dialect(list_types=features.list_attributes))
    allocated_state = usage_of(case.slices, case.taken, case.shares)
    named = [(str(claim.key), claim.spec) for claim in case.claims]
    problem = problem_of(case.node, case.slices, case.classes, named, allocated_state, features, masks)
    solution = _search(problem, order)
    if solution is None:
        if any(pool.trouble for pool in problem.inventory.pools):
            raise InvalidClaim("invalid resource pools were encountered")
        return None
    return allocations(problem, solution, case.node.name, case.classes.get, lambda: str(uuid.uuid4()))


def _search(problem: Problem, order: str) -> Any:
    if order == "in-tree":
        return Search(problem, max_steps=_CASE_STEPS).run()
    return choose(problem, None, max_steps=_CASE_STEPS)


# -- cluster objects -----------------------------------------------------------------------------------------


def answers_of(found: Objects, order: str, only: str | None) -> list[Json]:
    """The answer for each node, or for the one named `only`. Raises WireError."""
    nodes = [node for node in found.nodes if only in (None, node.name)]
    if not nodes:
        if only is not None:
            raise WireError("nodes", f"none named {shown(only)}")
        raise WireError("nodes", "the files name no node: give a Node or a slice with nodeName")
    if not any(_asked(found, node) for node in nodes) and not any(pod.claims for pod in found.pods):
        raise WireError("claims", "the files hold no ResourceClaim, ResourceClaimTemplate or Pod with one")
    return [_one_node(found, node, order) for node in nodes]


def _one_node(found: Objects, node: Node, order: str) -> Json:
    refusals = list(_refusals(found, node))
    if refusals:
        return {"node": node.name, "error": None, "allocations": None, "why": refusals}
    masks = Masks()
    allocated_state = usage_of(found.slices, found.taken, found.shares)
    named = [(str(claim.key), claim.spec) for claim in _asked(found, node)]
    problem = problem_of(node, found.slices, found.classes, named, allocated_state, Features(), masks)
    recorder = CauseRecorder()
    try:
        solution = (
            Search(problem, max_steps=_CASE_STEPS, observer=recorder).run()
            if order == "in-tree"
            else choose(problem, found.preference(node, problem), max_steps=_CASE_STEPS, observer=recorder)
        )
    except InvalidClaim as error:
        return {"node": node.name, "error": str(error), "allocations": None}
    except OutOfSteps:
        return {"node": node.name, "error": "gave up: the search used up its steps", "allocations": None}
    if solution is None:
        return {"node": node.name, "error": None, "allocations": None, "why": _why(problem, recorder)}
    made = allocations(problem, solution, node.name, found.classes.get, lambda: str(uuid.uuid4()))
    return {"node": node.name, "error": None, "allocations": [encode_allocation(a) for a in made]}


def _asked(found: Objects, node: Node) -> list[Claim]:
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


def _refusals(found: Objects, node: Node) -> Iterator[str]:
    """Why the claims or pods cannot get the node, whatever its devices are."""
    for claim in found.claims:
        if claim.deleting:
            yield f"claim {claim.key} is being deleted"
        asks = any(option.admin_access for request in claim.spec.requests for option in request.alternatives)
        labels = found.namespaces.get(claim.key.namespace)
        if asks and labels is not None and labels.get(ADMIN_LABEL) != "true":
            yield str(Reason(Code.ADMIN_ACCESS, (claim.key.namespace,)))
    for pod in found.pods:
        if pod.constraints_are_known and not found.guesses_nodes and not may_run(pod, node):
            yield f"pod {pod.key}: {Reason(Code.NODE_CONSTRAINTS)}"
        for name in {entry.claim_name or pod.claim_statuses.get(entry.name) or "" for entry in pod.claims}:
            shared = found.allocated.get(ObjectKey(pod.key.namespace, name))
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


def _print(found: Objects, answers: list[Json], output: str) -> None:
    if output == "json":
        for line in answers:
            say_json(line)
        return
    console, nodes = Screen(soft_wrap=True), {node.name: node for node in found.nodes}
    for line in answers:
        fits = "does not fit" if line["allocations"] is None else "fits"
        console.print(Text.assemble((line["node"], "bold"), f": {line['error'] or fits}"))
        for claim, allocation in zip(_asked(found, nodes[line["node"]]), line["allocations"] or [], strict=False):
            for result in allocation["devices"]["results"]:
                console.print(
                    f"  {claim.key} {result['request']}: {result['driver']}/{result['pool']}/{result['device']}"
                )
        for why in line.get("why", []):
            console.print(f"  {why}")
