"""Checks of claims against the classes and slices of the files, and of a cluster if its snapshot is given.

Each check takes `Given` and yields its findings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from extender.allocation import Features, Snapshot
from extender.allocation.nodes import WholePool
from extender.api.claim_specs import DeviceRequest
from extender.api.device_classes import MARKER_CLASS
from extender.api.fields import Json
from extender.api.pods import decode_pod
from extender.api.resource_claims import Claim
from extender.api.resource_slices import Device, PoolKey, Slice, own_name
from extender.api_schema import LintFinding, did_you_mean
from extender.base.berth_errors import WireError
from extender.base.text_limits import counted, one_line
from extender.cel import BudgetExceeded, CompileError, EvalError, position
from extender.cel.dra import Dialect, Masks, Selector, check_cost, compile_selector
from extender.explain import NO_RELEASE_HELPS, Explanation, explain, failing_terms, unmet_localities
from extender.explain.scenario import Scenario, apply_scenario
from extender.manifests import DecodedObjects, HypotheticalPod
from extender.policy import Policy
from extender.scheduling import EvaluationContext, Evaluator, PodRequirements, requirements_of
from extender.scheduling.requirements import ADMIN_LABEL, too_many_claims, unprovided_resource

_MAY_PASS = {"OUT_OF_BUDGET", "POOL_UPDATING", "POOL_INVALID"}  # reasons of nodes that may still get room
_OF_AMOUNTS = "(kubernetes.Quantity, kubernetes.Quantity)"  # in an error about an operator
_MAX_SENTENCE_BYTES = 1024
_MAX_REASONS = 3  # of nodes, in one finding
_LONE = "-"  # the name that a pod has for a claim which no pod of the files uses; users can write no such name


@dataclass(frozen=True, slots=True)
class Given:
    """What the checks know. `objects` are those of the files, with the classes and slices of the cluster.

    `files` are the objects of the files alone, and `pods` the pods that they create, each with file, document and
    object. `snapshot` has all of them; None if no node is given or named by a slice. `knows_nodes`: nodes are given.
    """

    objects: DecodedObjects
    unreadable: list[WireError]  # the objects that cannot be decoded
    files: list[Json]
    pods: list[tuple[str, HypotheticalPod]]
    dialect: Dialect
    snapshot: Snapshot | None
    knows_nodes: bool

    def options(self) -> Iterator[tuple[Claim, DeviceRequest, str]]:
        """Yield (claim, alternative of a request, its place) for all claims."""
        for claim, place in self.objects.placed_claims():
            for option in (o for request in claim.spec.requests for o in request.alternatives):
                yield claim, option, f"{place}, request {option.name}"

    def selectors(self, option: DeviceRequest) -> list[str] | None:
        """The selectors of an alternative and of its class; None if the class is not known."""
        class_ = self.objects.classes.get(option.class_name)
        return None if class_ is None else [*class_.selectors, *option.selectors]


def faulty_slices(given: Given) -> Iterator[LintFinding]:
    for slice_ in given.objects.slices:
        if slice_.problem:
            yield LintFinding("error", f"ResourceSlice {slice_.name}", slice_.problem)


def faulty_pools(given: Given) -> Iterator[LintFinding]:
    """What the slices of one pool make unusable together."""
    pools: dict[PoolKey, list[Slice]] = {}
    for slice_ in given.objects.slices:
        pools.setdefault(slice_.pool, []).append(slice_)
    for pool, slices in pools.items():
        whole = WholePool(slices)
        newest, trouble = whole.slices(whole.newest), whole.facts(whole.newest).unknown_counter
        # A pool that is not complete may have the counters in a slice that the files lack.
        if trouble and len({slice_.name for slice_ in newest}) >= newest[0].slice_count:
            yield LintFinding("error", f"pool {pool.driver}/{pool.name}", trouble, "no node can use the pool")


def faulty_classes(given: Given) -> Iterator[LintFinding]:
    for class_ in given.objects.classes.values():
        if class_.problem:
            yield LintFinding("error", given.objects.origins[f"DeviceClass {class_.name}"], class_.problem)


def faulty_selectors(given: Given) -> Iterator[LintFinding]:
    """The selectors that do not compile, those that read names without a value, and those that match no device."""
    devices = [(device, s.pool.driver) for s in given.objects.slices if not s.problem for device in s.devices]
    for class_ in given.objects.classes.values():
        where = given.objects.origins[f"DeviceClass {class_.name}"]
        for i, expression in enumerate(class_.selectors):
            # Berth's own class holds an annotation and matches no device by design.
            seen = [] if class_.name == MARKER_CLASS else devices
            yield from _selector(f"{where}, spec.selectors[{i}]", expression, given.dialect, seen)
    for _, option, where in given.options():
        for i, expression in enumerate(option.selectors):
            yield from _selector(f"{where}, selectors[{i}]", expression, given.dialect, devices)


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
    return own_name(name, driver) in device.capacity


def _outcome(selector: Selector, devices: list[tuple[Device, str]]) -> tuple[int, str]:
    """Return (number of devices that match, first error or '')."""
    matched, problem = 0, ""
    for device, driver in devices:
        try:
            matched += selector.match(device, driver)
        except (EvalError, BudgetExceeded) as error:
            problem = problem or f"{driver} device {device.name}: {error}"
    return matched, problem


def one_sentence(error: CompileError) -> str:
    """Return the issues of the compiler in one line, each with line and column."""
    if not error.issues:
        return one_line(str(error), _MAX_SENTENCE_BYTES)
    places = [position(error.source, issue.offset) for issue in error.issues]
    found = [
        f"{issue.message} (line {line}, column {column})"
        for issue, (line, column) in zip(error.issues, places, strict=True)
    ]
    return one_line(f"compilation failed: {'; '.join(found)}", _MAX_SENTENCE_BYTES)


def unknown_classes(given: Given) -> Iterator[LintFinding]:
    """The requests whose class is not in the files. Files without any class are claims alone: no findings.

    Files with slices describe a cluster, so the class is missing there. In others the class may be in the cluster.
    """
    known = list(given.objects.classes)
    severity, condition = ("error", "") if given.objects.slices else ("note", ": the cluster must have it")
    for _, option, where in given.options():
        if known and option.class_name not in known:
            problem = f"no DeviceClass {option.class_name!r} in these files{condition}"
            advice = did_you_mean(option.class_name, known)
            yield LintFinding(severity, f"{where}, deviceClassName", problem, advice)


def unreadable_objects(given: Given) -> Iterator[LintFinding]:
    return (LintFinding("error", problem.path, problem.problem) for problem in given.unreadable)


def admin_access(given: Given) -> Iterator[LintFinding]:
    """The claims with admin access, except those in a namespace of the files that allows it."""
    metadata = [obj.get("metadata") or {} for obj in given.files if obj.get("kind") == "Namespace"]
    allowed = {one.get("name") for one in metadata if (one.get("labels") or {}).get(ADMIN_LABEL) == "true"}
    for claim, place in given.objects.placed_claims():
        namespace = claim.key.namespace or "default"
        options = (option for request in claim.spec.requests for option in request.alternatives)
        if namespace not in allowed and any(option.admin_access for option in options):
            problem = f'adminAccess needs the label {ADMIN_LABEL}: "true" on namespace {namespace}'
            yield LintFinding("note", place, problem)


def refused_pods(given: Given) -> Iterator[LintFinding]:
    """The pods with more claims, or more requests in them, than Berth reads."""
    for where, (pod, claims, _) in given.pods:
        reason = too_many_claims(pod, claims)
        if reason is not None:
            field = f"{where}, spec.resourceClaims"
            yield LintFinding("error", field, str(reason), "ask for more devices in fewer claims, or make several pods")


def impossible_pods(given: Given) -> Iterator[LintFinding]:
    """The pods that fit on no node even with all devices free, and those with selectors that fail."""
    if given.snapshot is None:
        return
    evaluator, masks = Evaluator(Features()), Masks()
    for where, (pod, claims, _) in given.pods + _pods_of_lone_claims(given):
        snapshot = apply_scenario(given.snapshot, claims, Scenario())
        context = evaluator.evaluation_context(snapshot)
        if given.knows_nodes and (resource := unprovided_resource(pod, snapshot)):
            yield LintFinding("warning", where, f"no node and no DeviceClass of the snapshot provides {resource}")
        requirements = requirements_of(pod, snapshot, Policy())
        if not isinstance(requirements, PodRequirements):
            continue
        failing = failing_terms(requirements, snapshot, context) if given.knows_nodes else []
        yield from (LintFinding("warning", where, sentence) for sentence in failing)
        if failing or any(_is_told(given, claim, masks) for claim in claims):
            continue  # other findings say why
        # Only devices count here: nodes get other labels, and cordons end.
        found = explain(replace(pod, constraints_are_known=False), snapshot, Policy(), context)
        if found.outcome == "refused" and (unmet := list(_unmet_localities(requirements, snapshot, context))):
            yield from (one.within(where) for one in unmet)
        elif found.outcome == "refused" and (reasons := _reasons(found)):
            problem = f"fits on no node even with all devices free: {reasons}"
            advice = next((miss for miss in found.misses if miss != NO_RELEASE_HELPS), "")
            yield LintFinding("warning", where, problem, advice)


def _unmet_localities(
    requirements: PodRequirements, snapshot: Snapshot, context: EvaluationContext
) -> Iterator[LintFinding]:
    """The constraints on locality that no node of the snapshot meets, for example a PCIe root of both GPU and NIC."""
    for claim, constraint, why in unmet_localities(requirements, snapshot.node_infos.values(), context):
        name = requirements.claim_names[claim]
        where = f"{'' if name == _LONE else f'claim {name}, '}matchAttribute {constraint.attribute}"
        advice = "remove the constraint: Berth then chooses devices that are near each other (weights.affinity)"
        yield LintFinding("warning", where, why, advice)


def _is_told(given: Given, claim: Claim, masks: Masks) -> bool:
    """Whether `faulty_selectors` says of a request that no device can serve it."""

    def matches_none(option: DeviceRequest) -> bool:
        texts = given.selectors(option) or option.selectors
        return any(not any(masks.of(text, slice_).match for slice_ in given.objects.slices) for text in texts)

    return any(all(map(matches_none, request.alternatives)) for request in claim.spec.requests)


def _reasons(found: Explanation) -> str:
    """Why nodes with devices cannot serve the pod; '' if that may pass."""
    told = [one for one in found.unschedulable if one.code != "NO_DEVICES"]
    if not _MAY_PASS.isdisjoint(one.code for one in told):
        return ""
    if len(told) == 1:
        return told[0].reason
    return ", ".join(f"{one.reason} on {counted(one.nodes, 'node')}" for one in told[:_MAX_REASONS])


def _pods_of_lone_claims(given: Given) -> list[tuple[str, HypotheticalPod]]:
    """A pod for each claim or template that no pod of the files uses, with file, document and object of the claim."""
    used = {claim.spec for _, pod in given.pods for claim in pod.claims}
    found = []
    for claim, place in given.objects.placed_claims():
        if claim.spec in used:
            continue
        entry = {"name": _LONE, "resourceClaimName": claim.key.name}
        metadata = {"name": f"of-{claim.key.name}", "namespace": claim.key.namespace}
        pod = decode_pod({"metadata": metadata, "spec": {"resourceClaims": [entry]}})
        found.append((place, HypotheticalPod(pod, (claim,))))
    return found
