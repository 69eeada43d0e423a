"""`berth lint`: finds mistakes in classes, claims, slices and pods before they reach a cluster."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import yaml

from extender.allocation import Features, has_room
from extender.allocation.nodes import WholePool
from extender.cel import BudgetExceeded, CompileError, EvalError
from extender.cel.dra import Dialect, Masks, Selector, check_cost, compile_selector
from extender.cli.claim_kinds import drivers_in
from extender.cli.lint_finding import LintFinding, did_you_mean
from extender.cli.manifest_checks import check_manifests, print_findings, read_manifests
from extender.cli.object_files import Objects, documents, objects_of
from extender.cli.output import say
from extender.cli.select_command import dialect_of, one_sentence
from extender.files import name_of
from extender.manifests import HypotheticalPod, hypothetical_pods
from extender.model import (
    GPU,
    MARKER_CLASS,
    OTHER,
    Capacity,
    Claim,
    Device,
    DeviceRequest,
    Graph,
    PoolKey,
    Slice,
    WireError,
    counted,
    driver_of,
    members,
    own_name,
)
from extender.scheduling.requirements import too_many_claims
from extender.topology.agent_slices import fabric_of
from extender.topology.sets import largest_joined

Json = dict[str, Any]
_ADMIN_LABEL = "resource.kubernetes.io/admin-access"
_OF_AMOUNTS = "(kubernetes.Quantity, kubernetes.Quantity)"  # in an error about an operator
_SUPPLY = ("DeviceClass", "ResourceSlice")


def lint_command(
    files: Annotated[list[Path], typer.Argument(help="Kubernetes objects in YAML or JSON.")],
    *,
    as_new: Annotated[
        str | None,
        typer.Option(help="Check selectors as the API server of this version does, e.g. 1.36.", metavar="VERSION"),
    ] = None,
    snapshot: Annotated[
        Path | None, typer.Option(help="A file made by `berth snapshot`, for the classes and slices of a cluster.")
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Print the corrected manifests; findings go to standard error.")
    ] = False,
    output: Annotated[Literal["table", "json"], typer.Option(help="How to print.")] = "table",
) -> None:
    """Check classes, claims and pods against the schema and slices.

    Exit code 1 for an error or a warning, also one that --fix corrects; notes do not count. Exit code 2 if a file or
    document cannot be read; the others are checked all the same.

    Example: berth lint classes.yaml claims.yaml slices.yaml
    """
    raw, found, unreadable = read_manifests(files)
    lost = bool(found)
    cluster = list(documents(snapshot)) if snapshot is not None else []
    given = [(str(snapshot), obj) for obj in cluster if obj.get("kind") in _SUPPLY]
    checked = check_manifests(raw, [obj for _, obj in given])
    found += checked.findings
    if snapshot is not None:
        found += _without_devices(cluster, snapshot)
    problems: dict[int, WireError] = {}
    supply = objects_of(checked.objects + given, problems)
    found += findings(supply, dialect_of(as_new))
    if not any(obj.get("kind") == "Node" for obj in cluster):  # else impossible_pods finds them, node by node
        found += missing_in_slices(supply)
    # An object with an error is often unreadable because of it.
    found += [
        LintFinding("error", problem.path, problem.problem)
        for position, problem in problems.items()
        if position not in checked.faulty
    ]
    made = [obj for _, obj in checked.objects]
    found += _admin_access(supply, made)
    found += _of_pods(made, supply, cluster)
    found = list(dict.fromkeys(found))  # several pods may use one template
    prints_manifests = fix and not unreadable and not lost
    if found or not unreadable:
        print_findings(found, output, to_stderr=fix, fixing=prints_manifests)
    for error in unreadable:
        say(f"berth: {error}", err=True)
    if fix and not prints_manifests:
        say("berth: --fix prints no manifests, because they would lack what it cannot read", err=True)
    elif fix:
        say(yaml.safe_dump_all(made, sort_keys=False), nl=False)
    if unreadable:
        raise typer.Exit(2)
    if any(finding.severity != "note" for finding in found):
        raise typer.Exit(1)


def _of_pods(made: list[Json], supply: Objects, cluster: list[Json]) -> list[LintFinding]:
    """The findings about the pods that the files create, and with a snapshot (`cluster`) about claims without a pod."""
    found, pods = list[LintFinding](), list[HypotheticalPod]()
    with contextlib.suppress(WireError):  # other checks name the faults of pods and templates
        pods = hypothetical_pods(made)
        found += refused_pods(pods)
        found += impossible_topologies(pods, supply)
    if cluster:
        from extender.cli.impossible_pods import impossible_pods  # it loads the cache and the explanations

        with contextlib.suppress(WireError):
            found += impossible_pods(pods, supply, [*cluster, *made], partial(_asks_for_too_many, supply, Masks()))
    return found


def _without_devices(cluster: list[Json], snapshot: Path) -> Iterator[LintFinding]:
    """Yield a note if the snapshot is of a cluster without DRA. Raises WireError if it is no snapshot."""
    kinds = {obj.get("kind") for obj in cluster}
    if not kinds.isdisjoint(_SUPPLY):
        return
    if "Node" not in kinds:
        raise WireError(name_of(snapshot), f"holds none of {', '.join(_SUPPLY)}: `berth snapshot` makes such files")
    problem = f"the cluster has no {' and no '.join(_SUPPLY)}"
    yield LintFinding("note", name_of(snapshot), problem, "install the DRA driver of your devices")


def findings(objects: Objects, dialect: Dialect) -> Iterator[LintFinding]:
    """Yield the findings about slices, classes, selectors and counts, in this order."""
    for slice_ in objects.slices:
        if slice_.problem:
            yield LintFinding("error", f"ResourceSlice {slice_.name}", slice_.problem)
    yield from _faulty_pools(objects)
    devices = [(device, s.pool.driver) for s in objects.slices if not s.problem for device in s.devices]
    for class_ in objects.classes.values():
        if class_.problem:
            yield LintFinding("error", objects.origins[f"DeviceClass {class_.name}"], class_.problem)
    for where, expression in _selectors(objects):
        # Berth's own class holds an annotation and matches no device by design.
        of_own = where.startswith(f"{objects.origins.get(f'DeviceClass {MARKER_CLASS}')},")
        yield from _selector(where, expression, dialect, [] if of_own else devices)
    yield from _unknown_classes(objects)
    yield from _too_many(objects)


def _faulty_pools(objects: Objects) -> Iterator[LintFinding]:
    """Yield what the slices of one pool make unusable together."""
    pools: dict[PoolKey, list[Slice]] = {}
    for slice_ in objects.slices:
        pools.setdefault(slice_.pool, []).append(slice_)
    for pool, slices in pools.items():
        whole = WholePool(slices)
        newest, trouble = whole.slices(whole.newest), whole.facts(whole.newest).unknown_counter
        if (
            trouble and len({slice_.name for slice_ in newest}) >= newest[0].slice_count
        ):  # else the files may lack the slice with the counters
            yield LintFinding("error", f"pool {pool.driver}/{pool.name}", trouble, "no node can use the pool")


def refused_pods(pods: list[HypotheticalPod]) -> Iterator[LintFinding]:
    """Yield the pods with more claims, or more requests in them, than Berth reads."""
    for pod, claims in pods:
        reason = too_many_claims(pod, claims)
        if reason is not None:
            where = f"Pod {pod.key}, spec.resourceClaims"
            yield LintFinding("error", where, str(reason), "ask for more devices in fewer claims, or make several pods")


def impossible_topologies(pods: list[HypotheticalPod], objects: Objects) -> Iterator[LintFinding]:
    """Yield the pods that require NVLink between more GPUs than it joins on any node with a fabric slice."""
    graphs = [fabric.graph for slice_ in objects.fabric.values() if (fabric := fabric_of(slice_.devices)) is not None]
    if not graphs:
        return
    for pod, claims in pods:
        if pod.annotations.get("berth.dev/topology") != "required":
            continue
        for option in (o for claim in claims for r in claim.spec.requests for o in r.alternatives[:1]):
            if not _asks_for_gpus(option, objects) or _is_joined_anywhere(graphs, option.count):
                continue
            yield LintFinding(
                "warning",
                f"Pod {pod.key}, annotation berth.dev/topology",
                f"no node joins {option.count} GPUs by NVLink",
                "ask for fewer GPUs, or topology: preferred",
            )


def _asks_for_gpus(option: DeviceRequest, objects: Objects) -> bool:
    """Whether a request asks for several devices that may be GPUs."""
    class_ = objects.classes.get(option.class_name)
    drivers = drivers_in([*option.selectors, *(class_.selectors if class_ is not None else ())], option.class_name)
    kinds = {driver_of(driver).kind for driver in drivers} or {OTHER}
    return option.mode == "ExactCount" and option.count > 1 and not kinds.isdisjoint((GPU, OTHER))


def _is_joined_anywhere(graphs: list[Graph], count: int) -> bool:
    return any(largest_joined(graph, (1 << graph.size) - 1, count) == count for graph in graphs)


def _selectors(objects: Objects) -> Iterator[tuple[str, str]]:
    for class_ in objects.classes.values():
        for i, expression in enumerate(class_.selectors):
            yield f"{objects.origins[f'DeviceClass {class_.name}']}, spec.selectors[{i}]", expression
    for claim in objects.claims:
        for request in claim.spec.requests:
            for option in request.alternatives:
                for i, expression in enumerate(option.selectors):
                    where = objects.origins[f"ResourceClaim {claim.key}"]
                    yield f"{where}, request {option.name}, selectors[{i}]", expression


def _selector(
    where: str, expression: str, dialect: Dialect, devices: list[tuple[Device, str]]
) -> Iterator[LintFinding]:
    try:
        selector = compile_selector(expression, dialect)
        if not dialect.stored:
            check_cost(expression, dialect)
    except CompileError as error:
        problem = one_sentence(error)
        hint = "compare amounts with compareTo: a.compareTo(b) >= 0" if _OF_AMOUNTS in problem else ""
        yield LintFinding("error", where, problem, hint)
        return
    if dialect.stored:
        try:
            check_cost(expression, Dialect(stored=False, list_types=False))
        except CompileError as error:
            hint = "shorten the lists that the expression iterates over, or check less"
            if error.issues:  # of the types; the stored form has none
                hint = "an API server with the feature gate DRAListTypeAttributes accepts it"
            yield LintFinding("warning", where, f"the API server would reject it as new: {one_sentence(error)}", hint)
    if not devices:
        return
    for read in sorted(selector.reads):
        kind, _, name = read.partition(":")
        if not name or name.endswith("*"):
            continue
        if not any(_publishes(device, kind, name, driver) for device, driver in devices):
            yield LintFinding("warning", where, f"`{name}` is published by 0 of {counted(len(devices), 'device')}")
    matched, problem = _outcome(selector, devices)
    if not matched:
        first = f" (first error: {problem})" if problem else ""
        yield LintFinding("warning", where, f"matches 0 of {counted(len(devices), 'device')}{first}")


def _publishes(device: Device, kind: str, name: str, driver: str) -> bool:
    if kind == "attributes":
        return name in device.attributes.schema.index
    return _capacity(device, name, driver) is not None


def _outcome(selector: Selector, devices: list[tuple[Device, str]]) -> tuple[int, str]:
    """Return (number of devices that match, first error or '')."""
    matched, problem = 0, ""
    for device, driver in devices:
        try:
            matched += selector.match(device, driver)
        except (EvalError, BudgetExceeded) as error:
            problem = problem or f"{driver} device {device.name}: {error}"
    return matched, problem


def _unknown_classes(objects: Objects) -> Iterator[LintFinding]:
    """Yield the requests whose class is not in the files. Files without any class are claims alone: no findings.

    Files with slices describe a cluster, so the class is missing there. In others the class may be in the cluster.
    """
    if not objects.classes:
        return
    severity, condition = ("error", "") if objects.slices else ("note", ": the cluster must have it")
    for claim in objects.claims:
        for request in claim.spec.requests:
            for option in request.alternatives:
                if option.class_name not in objects.classes:
                    yield LintFinding(
                        severity,
                        f"{objects.origins[f'ResourceClaim {claim.key}']}, request {option.name}, deviceClassName",
                        f"no DeviceClass {option.class_name!r} in these files{condition}",
                        did_you_mean(option.class_name, list(objects.classes)),
                    )


def _admin_access(objects: Objects, made: list[Json]) -> Iterator[LintFinding]:
    """Yield the claims with admin access, except those in a namespace of the files that allows it."""
    metadata = [obj.get("metadata") or {} for obj in made if obj.get("kind") == "Namespace"]
    allowed = {one.get("name") for one in metadata if (one.get("labels") or {}).get(_ADMIN_LABEL) == "true"}
    for claim in objects.claims:
        namespace = claim.key.namespace or "default"
        options = (option for request in claim.spec.requests for option in request.alternatives)
        if namespace not in allowed and any(option.admin_access for option in options):
            problem = f'adminAccess needs the label {_ADMIN_LABEL}: "true" on namespace {namespace}'
            yield LintFinding("note", objects.origins[f"ResourceClaim {claim.key}"], problem)


def _too_many(objects: Objects) -> Iterator[LintFinding]:
    """Yield the requests for more devices than match on any one node."""
    if not objects.slices:
        return
    masks = Masks()
    for claim in objects.claims:
        for option in (o for request in claim.spec.requests for o in request.alternatives):
            class_ = objects.classes.get(option.class_name)
            if class_ is None or option.mode != "ExactCount":
                continue
            most = _most_on_a_node(objects, [*class_.selectors, *option.selectors], masks)
            if 0 < most < option.count:
                yield LintFinding(
                    "warning",
                    f"{objects.origins[f'ResourceClaim {claim.key}']}, request {option.name}, count",
                    f"asks for {option.count} devices; the most that match on one node is {most}",
                    f"ask for at most {counted(most, 'device')}, or give several pods a claim each",
                )


def _asks_for_too_many(objects: Objects, masks: Masks, claim: Claim) -> bool:
    """Whether no node has enough devices for some request alone, so that `findings` says why."""

    def is_short(option: DeviceRequest) -> bool:
        class_ = objects.classes.get(option.class_name)
        selectors = [*(class_.selectors if class_ is not None else ()), *option.selectors]
        return _most_on_a_node(objects, selectors, masks) < (option.count if option.mode == "ExactCount" else 1)

    return any(all(map(is_short, request.alternatives)) for request in claim.spec.requests)


def missing_in_slices(objects: Objects) -> Iterator[LintFinding]:
    """Yield the attributes of constraints and the amounts of capacity that no device of a request has."""
    masks = Masks()
    for claim in objects.claims:
        for option in (o for request in claim.spec.requests for o in request.alternatives):
            class_ = objects.classes.get(option.class_name)
            devices = _matching(objects, [*class_.selectors, *option.selectors], masks) if class_ is not None else []
            if not devices:
                continue  # other checks name the class, and selectors without a match
            where = f"{objects.origins[f'ResourceClaim {claim.key}']}, request {option.name}"
            attributes = [one.attribute for one in claim.spec.constraints if one.attribute and one.covers(option.name)]
            for found in (*_missing_attributes(attributes, devices), *_missing_amounts(option, devices)):
                yield found.within(where)


def _missing_attributes(names: list[str], devices: list[tuple[Device, str]]) -> Iterator[LintFinding]:
    for name in dict.fromkeys(names):
        if "/" not in name or any(name in device.attributes for device, _ in devices):
            continue  # other checks name an attribute without a domain
        known = sorted({one for device, _ in devices for one in device.attributes})
        same = [one for one in known if one.rpartition("/")[2] == name.rpartition("/")[2]]
        problem = f"0 of {counted(len(devices), 'device')} that it matches have {name}, which must be equal or distinct"
        yield LintFinding("warning", "", problem, f"did you mean {same[0]}?" if same else did_you_mean(name, known))


def _missing_amounts(option: DeviceRequest, devices: list[tuple[Device, str]]) -> Iterator[LintFinding]:
    able, features = counted(len(devices), "device"), Features()
    for name, amount in (option.capacity or {}).items():
        found = [one.value for device, driver in devices if (one := _capacity(device, name, driver)) is not None]
        most = max(found, key=lambda value: value.nanos, default=None)
        if most is None:
            known = sorted({one for device, _ in devices for one in device.capacity})
            advice = did_you_mean(name, known) or (f"they have {', '.join(known)}" if known else "")
            yield LintFinding("warning", "capacity", f"0 of {able} that it matches have the capacity {name}", advice)
        elif amount.nanos > most.nanos:
            problem = f"asks for {amount} of {name}; the largest device that it matches has {most}"
            yield LintFinding("warning", "capacity", problem, f"ask for at most {most}")
        elif not any(
            has_room(device, driver, DeviceRequest("", "", capacity={name: amount}), None, features)
            for device, driver in devices
        ):  # to one request, while no other has a part of it
            problem = f"0 of {able} that it matches give {amount} of {name} to one request: see their requestPolicy"
            yield LintFinding("warning", "capacity", problem)


def _matching(objects: Objects, expressions: list[str], masks: Masks) -> list[tuple[Device, str]]:
    """The devices that match all expressions, with their drivers."""
    found: list[tuple[Device, str]] = []
    for slice_ in objects.slices:
        match = (1 << len(slice_.devices)) - 1
        for expression in expressions:
            match &= masks.of(expression, slice_).match
        found += [(slice_.devices[bit], slice_.pool.driver) for bit in members(match)]
    return found


def _capacity(device: Device, name: str, driver: str) -> Capacity | None:
    return device.capacity.get(own_name(name, driver))


def _most_on_a_node(objects: Objects, expressions: list[str], masks: Masks) -> int:
    counts: Counter[str] = Counter()
    for slice_ in objects.slices:
        match = (1 << len(slice_.devices)) - 1
        for expression in expressions:
            match &= masks.of(expression, slice_).match
        counts[slice_.selection.node_name or slice_.pool.name] += match.bit_count()
    return max(counts.values(), default=0)
