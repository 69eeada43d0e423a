"""Finds pods that no node of a snapshot could serve, even with all devices free.

`berth lint` loads this module only with --snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from extender.allocation import Features
from extender.cli.cluster_dump import dump_of
from extender.cli.lint_finding import LintFinding
from extender.cli.object_files import Objects
from extender.diagnosis import Explanation, Scenario, apply_scenario, explain, failing_terms
from extender.manifests import HypotheticalPod
from extender.model import Claim, counted
from extender.policy import Policy
from extender.scheduling import Evaluator, PodRequirements, requirements_of
from extender.scheduling.requirements import unprovided_resource
from extender.wire import Json, decode_pod

_SUPPLY = ("DeviceClass", "ResourceSlice", "Node", "DeviceTaintRule", "Namespace")
_MAY_PASS = {"OUT_OF_BUDGET", "POOL_UPDATING", "POOL_INVALID"}  # reasons of nodes that may still get room
_REASONS = 3  # of nodes, in one finding


def impossible_pods(
    pods: list[HypotheticalPod], files: Objects, supply: list[Json], is_named: Callable[[Claim], bool]
) -> Iterator[LintFinding]:
    """Yield the pods that fit on no node even with all devices free, and those with selectors that fail on devices.

    `files` has the claims, of which some may have no pod. `supply` are the objects of the cluster and of the files.
    `is_named`: whether another finding says that a claim asks for more than a node has.
    """
    cluster = dump_of(obj for obj in supply if obj.get("kind") in _SUPPLY).snapshot()
    if not cluster.node_infos:
        return
    evaluator = Evaluator(Features())
    for pod, claims in pods + _pods_of_lone_claims(pods, files):
        snapshot, where = apply_scenario(cluster, claims, Scenario()), f"Pod {pod.key}"
        context = evaluator.evaluation_context(snapshot)
        if resource := unprovided_resource(pod, snapshot):
            yield LintFinding("warning", where, f"no node and no DeviceClass of the snapshot provides {resource}")
        requirements = requirements_of(pod, snapshot, Policy())
        if not isinstance(requirements, PodRequirements):
            continue
        failing = failing_terms(requirements, snapshot, context)
        yield from (LintFinding("warning", where, sentence) for sentence in failing)
        if failing or any(map(is_named, claims)):
            continue
        # Only devices count here: nodes get other labels, and cordons end.
        found = explain(replace(pod, constraints_are_known=False), snapshot, Policy(), context)
        if found.outcome == "refused" and (reasons := _reasons(found)):
            problem = f"fits on no node even with all devices free: {reasons}"
            yield LintFinding("warning", where, problem, next((one for one in found.misses if one[0] == "0"), ""))


def _reasons(found: Explanation) -> str:
    """Why nodes with devices cannot serve the pod; '' if that may pass, or if another finding tells it."""
    told = [one for one in found.unschedulable if one.code != "NO_DEVICES"]
    codes = {one.code for one in told}
    if codes & _MAY_PASS or codes <= {"TOPOLOGY"}:
        return ""
    if len(told) == 1:
        return told[0].reason
    return ", ".join(f"{one.reason} on {counted(one.nodes, 'node')}" for one in told[:_REASONS])


def _pods_of_lone_claims(pods: list[HypotheticalPod], objects: Objects) -> list[HypotheticalPod]:
    """A pod for each claim or template that no pod of the files uses."""
    used = {claim.spec for _, claims in pods for claim in claims}
    found = []
    for claim in (claim for claim in objects.claims if claim.spec not in used and not claim.problem):
        entry = {"name": "claim", "resourceClaimName": claim.key.name}
        metadata = {"name": f"of-{claim.key.name}", "namespace": claim.key.namespace}
        found.append(HypotheticalPod(decode_pod({"metadata": metadata, "spec": {"resourceClaims": [entry]}}), (claim,)))
    return found
