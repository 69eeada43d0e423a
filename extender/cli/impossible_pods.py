"""Finds pods that no node of a snapshot could serve, even with all devices free.

`berth lint` loads this module only with --snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator

from extender.allocation import Features
from extender.cli.cluster_dump import dump_of
from extender.cli.lint_finding import LintFinding
from extender.cli.object_files import Objects
from extender.diagnosis import Scenario, apply_scenario, explain, failing_terms
from extender.manifests import HypotheticalPod
from extender.policy import Policy
from extender.scheduling import Evaluator, PodRequirements, requirements_of, unprovided_resource
from extender.wire import Json, decode_pod

_SUPPLY = ("DeviceClass", "ResourceSlice", "Node", "DeviceTaintRule", "Namespace")
# Reasons that other findings name, or that say nothing about the pod.
_NAMED = {"NO_DEVICES", "NO_MATCH", "TOO_FEW", "TOPOLOGY", "OUT_OF_BUDGET", "POOL_UPDATING", "POOL_INVALID"}


def impossible_pods(pods: list[HypotheticalPod], files: Objects, supply: list[Json]) -> Iterator[LintFinding]:
    """Yield the pods that fit on no node even with all devices free, and those with selectors that fail on devices.

    `files` has the claims, of which some may have no pod. `supply` are the objects of the cluster and of the files.
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
        found = explain(pod, snapshot, Policy(), context)
        if found.outcome == "refused" and not failing and found.unschedulable[0].code not in _NAMED:
            problem = f"fits on no node even with all devices free: {found.unschedulable[0].reason}"
            yield LintFinding("warning", where, problem, next((one for one in found.misses if one[0] == "0"), ""))


def _pods_of_lone_claims(pods: list[HypotheticalPod], objects: Objects) -> list[HypotheticalPod]:
    """A pod for each claim or template that no pod of the files uses."""
    used = {claim.spec for _, claims in pods for claim in claims}
    found = []
    for claim in (claim for claim in objects.claims if claim.spec not in used and not claim.problem):
        entry = {"name": "claim", "resourceClaimName": claim.key.name}
        metadata = {"name": f"of-{claim.key.name}", "namespace": claim.key.namespace}
        found.append(HypotheticalPod(decode_pod({"metadata": metadata, "spec": {"resourceClaims": [entry]}}), (claim,)))
    return found
