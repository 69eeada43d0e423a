"""The recipes of CONTRIBUTING.md: a weight, an annotation or a field of the requirements is in all its files."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.allocation import Features, NodeInfo
from extender.allocation.what_if import with_devices_allocated
from extender.api.device_classes import decode_class
from extender.api.nodes import Node, Taint
from extender.api.pod_annotations import PodIntent
from extender.api.pod_groups import GroupSource, membership_of
from extender.api.pods import decode_pod
from extender.api.reasons import Code
from extender.api.resource_claims import Result, decode_claim
from extender.api.resource_slices import Attributes
from extender.cache import ClusterCache
from extender.cel.dra import Masks
from extender.lint.pod_findings import annotation_findings
from extender.manifests import PodTemplate
from extender.policy import Policy, Weights, load_policy
from extender.sandbox import carried_machines
from extender.sandbox.machines import gpu_slice, node_object
from extender.scheduling import EvaluationContext, Placement, PodRequirements, evaluate, requirements_of
from extender.topology.score_parts import ScorePart
from extender.web import serve_metrics
from extender.web.console import console_metrics
from extender.web.metrics import COUNTER, MetricSource
from tests.worlds.filled_caches import device_slice, put
from tests.worlds.running_berth import claim, pod

ROOT = Path(__file__).resolve().parents[2]
ANNOTATION = re.compile(r"berth\.dev/[a-z-]+[a-z]")
# Fields without which `key` tells statuses apart all the same.
NOT_IN_KEY = {
    "namespace": "no status of a node depends on it: the namespace pays for the evaluation",
    "pending_claims": "their names and the contents of their specs are in the key",
    "allocated_claims": "callers of a ranking leave out the nodes that `mismatch` names, and then call `beside_own`",
    "promised_claims": "as allocated_claims",
    "claim_selectors": "as allocated_claims",
    "node_selectors": "as allocated_claims",
    "compute_domain": "as allocated_claims",
    "membership": "as allocated_claims: callers leave out the nodes that `outside_domain` names",
    "group": "proximity to the group is added to a ranking's score, for the pod that asks",
    "cpu": "`with_cpu` adds it to a ranking's score, for the pod that asks",
    "mappings": "they follow from the special claim, whose resources `for_node` adds to the key",
    "key": "is the key",
}


@dataclass
class Asked:
    """A pod with one claim, and all other input of its requirements."""

    annotations: dict[str, str] = field(default_factory=dict)
    claim: dict[str, Any] = field(default_factory=lambda: claim("c"))
    device_class: dict[str, Any] = field(default_factory=dict)
    policy: Policy = field(default_factory=Policy)
    claim_name: str = "c0"
    resources: dict[str, str] = field(default_factory=dict)


class World:
    """A cluster with one claim and one class. `requirements` makes the requirements of a pod in it."""

    def __init__(self) -> None:
        self.cache = ClusterCache()

    def requirements(self, asked: Asked) -> PodRequirements:
        spec = {"extendedResourceName": "example.com/gpu", **asked.device_class}
        name = "gpu.nvidia.com"
        self.cache.apply_class(name, decode_class({"metadata": {"name": name}, "spec": spec}))
        found = decode_claim(asked.claim)
        self.cache.apply_claim(found.key, found)
        body = pod("p", "c", annotations=asked.annotations)
        body["spec"]["resourceClaims"][0]["name"] = asked.claim_name
        body["spec"]["containers"][0]["resources"] = {"requests": asked.resources}
        requirements = requirements_of(decode_pod(body), self.cache.snapshot(), asked.policy)
        assert isinstance(requirements, PodRequirements), f"give the annotation a valid value in VALUES: {requirements}"
        return requirements


POLICY = Policy()
CHANGES: dict[str, Callable[[], Asked]] = {
    "claim_names": lambda: Asked(policy=POLICY, claim_name="other"),
    "specs": lambda: Asked(policy=POLICY, claim=claim("c", 2)),
    "classes": lambda: Asked(policy=POLICY, device_class={"selectors": [{"cel": {"expression": "true"}}]}),
    "intent": lambda: Asked({"berth.dev/topology": "required"}, policy=POLICY),
    "policy": lambda: Asked(policy=load_policy("headroom: roomy")),
    "extended": lambda: Asked(policy=POLICY, resources={"example.com/gpu": "1"}),
}
# Annotations that change no status of a node, with their readers.
KEEP_THE_KEY = {
    "berth.dev/group": "the group of the requirements",
    "berth.dev/group-min": "the gang planner",
    "berth.dev/group-topology": "the gang planner",
    "berth.dev/group-required": "the gang planner",
    "berth.dev/group-preferred": "the gang planner",
    "berth.dev/group-slice-size": "the gang planner",
    "berth.dev/group-slice-level": "the gang planner",
    "berth.dev/subgroup": "the gang planner",
    "berth.dev/subgroup-required": "the gang planner",
    "berth.dev/subgroup-min": "the gang planner",
    "berth.dev/group-timeout": "the gang planner",
    "berth.dev/decision": "Berth writes it",
    "berth.dev/allocator": "Berth writes it to a claim",
    "berth.dev/group-part": "Berth writes it to a claim",
    "berth.dev/cpu": "Berth writes it to a claim",
    "berth.dev/wake": "Berth writes it to a DeviceClass",
}
# Berth writes them to objects other than pods.
WRITTEN_ELSEWHERE = {"berth.dev/allocator", "berth.dev/group-part", "berth.dev/cpu", "berth.dev/wake"}
VALUES = {
    "berth.dev/bandwidth": "9",
    "berth.dev/topology": "required",
    "berth.dev/min-bandwidth-gbps": "9",
    "berth.dev/expected-memory": "9Gi",
    "berth.dev/group-min": "2",
    "berth.dev/group-topology": "required",
    "berth.dev/group-required": "rack",
    "berth.dev/group-preferred": "rack",
    "berth.dev/group-slice-size": "2",
    "berth.dev/group-slice-level": "rack",
    "berth.dev/subgroup-required": "rack",
    "berth.dev/subgroup-min": "2",
    "berth.dev/group-timeout": "30s",
}


@cache
def berth_annotations() -> set[str]:
    """The annotations of the code: whole string constants, and those that are a prefix and a name."""
    found: set[str] = set()
    for path in (ROOT / "extender").rglob("*.py"):
        text = path.read_text()
        if "sandbox" in path.parts or ("berth.dev/" not in text and "ANNOTATION_PREFIX" not in text):
            continue
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Constant(value=str(text)) if ANNOTATION.fullmatch(text):
                    found.add(text)
                case ast.BinOp(left=ast.Name(id="ANNOTATION_PREFIX"), right=ast.Constant(value=str(name))):
                    found.add(f"berth.dev/{name}")
    return found - {"berth.dev/berth", "berth.dev/defrag"}  # the reporting controller of Events, and a taint of nodes


def test_every_field_of_the_requirements_is_in_the_key_or_need_not_be() -> None:
    known = CHANGES.keys() | NOT_IN_KEY.keys()
    unknown = {one.name for one in fields(PodRequirements)} - known
    assert not unknown, f"add {unknown} to `key` of _requirements and to CHANGES, or say in NOT_IN_KEY why not"
    assert known == {one.name for one in fields(PodRequirements)}
    assert CHANGES.keys().isdisjoint(NOT_IN_KEY)


@pytest.mark.parametrize("name", CHANGES)
def test_pods_that_differ_in_a_field_have_different_keys(name: str) -> None:
    world = World()
    plain, again = world.requirements(Asked(policy=POLICY)), world.requirements(Asked(policy=POLICY))
    other = world.requirements(CHANGES[name]())
    assert plain.key == again.key
    assert getattr(plain, name) != getattr(other, name)
    assert plain.key != other.key


@pytest.mark.parametrize("name", sorted(berth_annotations()))
def test_an_annotation_changes_the_key_unless_it_need_not(name: str) -> None:
    world, value = World(), VALUES.get(name, "x")
    same = world.requirements(Asked(policy=POLICY)).key == world.requirements(Asked({name: value}, policy=POLICY)).key
    assert same == (name in KEEP_THE_KEY), f"give {name} a field of PodIntent, or name its reader in KEEP_THE_KEY"


@pytest.mark.parametrize("name", sorted(berth_annotations()))
def test_the_linter_knows_every_annotation_of_users(name: str) -> None:
    template = PodTemplate({"metadata": {"annotations": {name: VALUES.get(name, "x")}}}, "")
    found = [one for one in annotation_findings({}, [template]) if one.problem.startswith("Berth knows no annotation")]
    assert bool(found) == (name in WRITTEN_ELSEWHERE), f"add {name} to ANNOTATION_READERS or OWN_ANNOTATIONS"


def test_annotations_are_found_in_the_code() -> None:
    assert berth_annotations() >= {"berth.dev/topology", "berth.dev/group", "berth.dev/group-min", "berth.dev/decision"}
    assert berth_annotations() >= KEEP_THE_KEY.keys() | VALUES.keys()


def test_the_page_on_policy_lists_the_annotations() -> None:
    text = (ROOT / "docs" / "policy.md").read_text()
    listed = set(re.findall(r"^\| `(berth\.dev/[a-z-]+)` \|", text, re.MULTILINE))
    assert listed == berth_annotations(), "a line of the annotations in docs/policy.md for each"


def test_the_manifest_names_every_weight() -> None:
    manifest = yaml.safe_load((ROOT / "manifests" / "base" / "policy.yaml").read_text())
    named = yaml.safe_load(manifest["data"]["policy.yaml"])["weights"]
    assert named == Weights().model_dump(), "name each weight and its default in manifests/base/policy.yaml"


def test_the_page_on_tuning_names_every_weight() -> None:
    (block,) = re.findall(r"```yaml\n(weights.*?)```", (ROOT / "docs" / "tune.md").read_text(), re.DOTALL)
    assert yaml.safe_load(block)["weights"] == Weights().model_dump(), (
        "name each weight and its default in docs/tune.md"
    )


OTHER_NODE = Node("other", {"zone": "b"}, frozenset({"example.com/gpu"}), (Taint("k", "v", "NoSchedule"),))
# One whole GPU, two, and a choice of alternatives: together they have every part that `parts` yields.
TWO_GPUS = claim("c", 2, capacity={"requests": {"memory": "10Gi"}})
ALTERNATIVES = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [
    {"name": "gpu", "firstAvailable": [
        {"name": name, "deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": count}
        for name, count in (("two", 2), ("one", 1))
    ]}
]}}}  # fmt: skip
GPU_AND_NIC = {"spec": {"devices": {"requests": [
    {"name": name, "exactly": {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 1,
     "selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}]}}
    for name, driver in (("gpu", "gpu.nvidia.com"), ("nic", "nic"))
]}}}  # fmt: skip


def on_other_node(node_info: NodeInfo) -> NodeInfo:
    """The same devices on a node with another name, other labels, allocatable resources and taints."""
    return replace(node_info, node=OTHER_NODE)


def all_equal(attributes: Attributes, value: str) -> Attributes:
    """The same attributes, all with this value."""
    return Attributes(attributes.schema, (value,) * len(attributes))


def with_other_names(node_info: NodeInfo) -> NodeInfo:
    """Devices with other names and other attributes, each with its own; the fabric and the use stay."""
    devices = tuple(
        replace(
            one, device=replace(one.device, name=f"other-{bit}", attributes=all_equal(one.device.attributes, str(bit)))
        )
        for bit, one in enumerate(node_info.inventory.devices)
    )
    return replace(node_info, inventory=replace(node_info.inventory, devices=devices))


def in_trouble(node_info: NodeInfo) -> NodeInfo:
    """All devices have a fault."""
    return replace(node_info, troubled=(1 << len(node_info.inventory.devices)) - 1)


def with_use_of(driver: str, number: int, node_info: NodeInfo) -> NodeInfo:
    """The device with this number, of those of a driver, is in use."""
    found = [one.id for one in node_info.inventory.devices if one.id.driver == driver]
    return with_devices_allocated(node_info, [Result("r", found[number])])


ON_A_ROOT = {"resource.kubernetes.io/pcieRoot": {"string": "pci0000:17"}}  # that of the machine's first GPU
NICS = device_slice("n1", "nic", [{"name": "nic-0", "attributes": ON_A_ROOT}, {"name": "nic-1"}])


def scored(
    request: dict[str, Any],
    change: Callable[[NodeInfo], NodeInfo] = lambda same: same,
    more: dict[str, Any] | None = None,
) -> tuple[ScorePart, ...]:
    """The parts of the score for a claim on a machine with NVLink, and with one more slice, after a change."""
    world, machine = World(), carried_machines()["hgx-h100-8"]
    if more is not None:
        put(world.cache, more)
    put(world.cache, node_object("n1", machine, {}), gpu_slice("n1", machine))
    requirements = world.requirements(Asked(claim={**request, "metadata": claim("c")["metadata"]}))
    snapshot = world.cache.snapshot()
    context = EvaluationContext(Masks(), Features(), snapshot.baseline)
    found = evaluate(change(snapshot.node_infos["n1"]), requirements, context)
    assert isinstance(found, Placement)
    return found.parts


@pytest.mark.parametrize("request_", [claim("c"), TWO_GPUS, ALTERNATIVES, GPU_AND_NIC])
@pytest.mark.parametrize("change", [on_other_node, with_other_names])
def test_parts_read_nothing_in_which_nodes_that_share_a_score_differ(
    request_: dict[str, Any], change: Callable[[NodeInfo], NodeInfo]
) -> None:
    score = partial(scored, request_, more=NICS)
    assert score() == score(change), "nodes that differ in it share one score"
    assert score(in_trouble) == score(lambda same: change(in_trouble(same)))


def test_parts_of_a_choice_without_gpus_read_only_how_many_gpus_are_in_use() -> None:
    """Such a choice is shared by all nodes of one hardware with so many GPUs in use, see `placement_key`."""
    request = claim("c", selector="device.driver == 'nic'")
    first, last = (scored(request, partial(with_use_of, "gpu.nvidia.com", number), NICS) for number in (0, -1))
    assert first == last, "these two nodes share one score"
    assert "1 of 8 GPUs in use before (pack)" in {part.sentence for part in first}
    assert scored(request, partial(with_use_of, "nic", -1), NICS) == scored(request, more=NICS)


def test_every_weight_has_a_part_of_the_score() -> None:
    found = {part.name for request in (TWO_GPUS, ALTERNATIVES, GPU_AND_NIC) for part in scored(request, more=NICS)}
    assert found | {"clique"} == set(Weights.model_fields), "add the missing part to `parts`, or delete its weight"


def test_the_page_on_concepts_lists_the_parts_of_the_score() -> None:
    text = (ROOT / "docs" / "concepts.md").read_text()
    (sentence,) = re.findall(r"weighted mean of parts between 0 and 1\.(.*?) The\s+\[policy\]", text, re.DOTALL)
    assert set(re.findall(r"`([a-z_]+)`", sentence)) == set(Weights.model_fields), "name each part in docs/concepts.md"


def read_by(function: str, file: str, values: set[str]) -> set[str]:
    """The attributes of these values that a function reads."""
    tree = ast.parse((ROOT / "extender" / file).read_text())
    (body,) = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function)
    found = (node for node in ast.walk(body) if isinstance(node, ast.Attribute))
    return {node.attr for node in found if ast.unparse(node.value) in values}


def intents_read_by(function: str, file: str = "scheduling/evaluate.py") -> set[str]:
    """The fields of PodIntent that a function reads, itself or by a property."""
    found = read_by(function, file, {"intent", "requirements.intent", "self._intent"})
    for name in found - set(PodIntent._fields):
        found = found - {name} | read_by(name, "api/pod_annotations.py", {"self"})
    assert "topology" in found
    return found


def test_each_intent_that_rejects_a_set_is_in_may_reject_sets() -> None:
    """Otherwise the gang planner counts devices on a node where it must try sets."""
    rejecting, known = intents_read_by("_rejection"), intents_read_by("may_reject_sets")
    assert rejecting <= known, f"may_reject_sets must read {rejecting - known}, as _rejection does"


def test_each_intent_that_rejects_a_set_orders_the_sets() -> None:
    """Otherwise the first set that solves the problem is rejected on a node with another set that fits."""
    rejecting, ordering = intents_read_by("_rejection"), intents_read_by("_need", "topology/preference.py")
    assert rejecting <= ordering, f"_need must read {rejecting - ordering}, as _rejection does"


def test_the_first_source_of_a_group_that_a_pod_has_counts() -> None:
    """In the order of GroupSource. A pod names neither a CompositePodGroup nor, in its metadata, a ComputeDomain."""
    sources = [one for one in GroupSource if one not in {GroupSource.COMPOSITE, GroupSource.COMPUTE_DOMAIN}]
    for number, first in enumerate(sources):
        names = {one.value: "x" for one in sources[number:]}
        core = names.get(GroupSource.CORE.value, "")
        found = membership_of({"labels": names, "annotations": {**names, "berth.dev/group-min": "2"}}, core)
        assert found is not None
        assert found.key.source is first, f"`_name` must read {first} at its place"


@pytest.mark.parametrize("metric", [*serve_metrics.METRICS, *console_metrics.METRICS], ids=lambda metric: metric.name)
def test_the_name_of_a_counter_alone_ends_in_total(metric: MetricSource[Any]) -> None:
    """prometheus_client adds the ending to a counter without it, so docs/metrics.md would name another metric."""
    assert metric.name.endswith("_total") == (metric.family is COUNTER)


def codes_named(path: Path) -> set[str]:
    """The names after `Code.` in a module."""
    text = path.read_text()
    return {
        node.attr
        for node in ast.walk(ast.parse(text if "Code." in text else ""))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Code"
    }


def test_every_reason_is_returned() -> None:
    others = [path for path in (ROOT / "extender").rglob("*.py") if path.name != "reasons.py"]
    unused = {code.name for code in Code} - set[str]().union(*map(codes_named, others))
    assert not unused, f"no code returns {unused}: return it, or delete it"
