"""A snapshot without names: nothing that a user wrote is left in it, and it is assessed as the snapshot with names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from extender.api.group_topology import Level, level_label
from extender.api.nodes import decode_node
from extender.api.pod_groups import leader_worker_set_marks
from extender.api.pods import decode_pod
from extender.api.resource_claims import decode_claim
from extender.assess import anonymised
from extender.cli.cluster_objects import dump_of
from extender.gangs.gang import gang_minimum
from extender.scheduling import may_run
from tests.worlds.assessed_clusters import CASES, GPU_CLASS, assessed, changed, objects_of, snapshot_file
from tests.worlds.commands import berth
from tests.worlds.group_trees import composite, pod_group
from tests.worlds.running_berth import pod

pytestmark = pytest.mark.usefixtures("replays_in_turn")

Json = dict[str, Any]
SECRET = "acme"


def constrained() -> Json:
    """What limits the nodes of a pod, with a name in each place."""
    terms = [
        {
            "matchExpressions": [
                {"key": f"{SECRET}.com/team", "operator": "In", "values": [SECRET]},
                {"key": "generation", "operator": "Gt", "values": ["450"]},
                {"key": "topology.kubernetes.io/rack", "operator": "NotIn", "values": [f"{SECRET}-other"]},
            ],
            "matchFields": [{"key": "metadata.name", "operator": "In", "values": [f"{SECRET}-n"]}],
        }
    ]
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {
        "nodeSelector": {f"{SECRET}.com/team": SECRET, "kubernetes.io/hostname": f"{SECRET}-n"},
        "affinity": {"nodeAffinity": affinity, "podAffinity": {SECRET: SECRET}},
        "tolerations": [{"key": SECRET, "operator": "Equal", "value": SECRET, "effect": "NoSchedule"}],
        "priority": 5,
    }


def test_pods_may_use_the_same_nodes() -> None:
    labels = {f"{SECRET}.com/team": SECRET, "generation": "123456", "topology.kubernetes.io/rack": "r"}
    nodes = {
        f"{SECRET}-n": {"machine": "t4-4", "labels": labels},
        "no-team": {"machine": "t4-4", "labels": {**labels, f"{SECRET}.com/team": "b"}},
        "old": {"machine": "t4-4", "labels": {**labels, "generation": "99"}},
        "rack": {"machine": "t4-4", "labels": {**labels, "topology.kubernetes.io/rack": f"{SECRET}-other"}},
        "tainted": {"machine": "t4-4", "labels": labels},
    }
    objects = objects_of({"nodes": nodes, "pods": [{"name": name, "count": 1} for name in ("all", "terms", "none")]})
    taint = {"key": SECRET, "value": SECRET, "effect": "NoSchedule"}
    of = {(one["kind"], one["metadata"]["name"]): one for one in objects}
    of["Node", f"{SECRET}-n"]["spec"] = of["Node", "tainted"]["spec"] = {"taints": [taint]}
    of["Pod", "all"]["spec"] |= constrained()
    limits = constrained()
    (required,) = limits["affinity"]["nodeAffinity"].values()
    del limits["nodeSelector"], required["nodeSelectorTerms"][0]["matchFields"]
    of["Pod", "terms"]["spec"] |= limits
    text = json.dumps(list(anonymised(objects)))
    assert (SECRET in text, "123456" in text) == (False, False), "of numbers that pods compare, the order stays"
    assert usable(objects) == usable(list(anonymised(objects))) == [[1, 0, 0, 0, 0], [1, 0, 0, 0, 1], [0, 1, 1, 1, 0]]


def usable(objects: list[Json]) -> list[list[int]]:
    """For each pod, which nodes it may use, in the order of the file."""
    nodes = [decode_node(one) for one in objects if one["kind"] == "Node"]
    pods = [decode_pod(one) for one in objects if one["kind"] == "Pod"]
    return [[int(may_run(pod, node)) for node in nodes] for pod in pods]


def test_groups_and_their_trees_stay() -> None:
    tree = [composite("root", 2, "", f"{SECRET}.com/block"), pod_group("a", "root", 3), pod_group("b", "root", 2)]
    sets: list[Json] = [
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": name, "namespace": "default", "annotations": notes},
            "spec": {"leaderWorkerTemplate": {"size": 4}},
        }
        for name, notes in (("s", {}), ("late", {"leaderworkerset.sigs.k8s.io/exclusive-topology": SECRET}))
    ]
    pods = [pod("p", schedulingGroup={"podGroupName": "a"})]
    for one in sets:
        labels, notes = leader_worker_set_marks(one["metadata"]["name"], 4)
        worker = pod("w", annotations=notes)
        pods.append({**worker, "metadata": {**worker["metadata"], "labels": labels}})
    node = {"kind": "Node", "metadata": {"name": "n", "labels": {f"{SECRET}.com/block": "b"}}}
    objects = [node, *tree, *sets, *({**one, "metadata": {**one["metadata"], "namespace": "default"}} for one in pods)]
    numbered = list(anonymised(objects))
    assert SECRET not in json.dumps(numbered)
    assert minimums(objects) == minimums(numbered) == [5, 4, 0]
    (level,) = numbered[1]["spec"]["schedulingConstraints"]["topology"]
    assert level["key"] in numbered[0]["metadata"]["labels"]


LAYERS = [{"topology": f"{SECRET}.com/block", "size": 4}, {"topology": "topology.kubernetes.io/rack", "size": 2}]
ASKED: list[Json] = [  # annotations of pods that name levels of the topology, or parts of the group
    {"kueue.x-k8s.io/podset-required-topology": f"{SECRET}.com/block"},
    {"kai.scheduler/topology-preferred-placement": f"{SECRET}.com/block"},
    {"berth.dev/group-required": "block"},
    {"berth.dev/group-required": "rack", "berth.dev/group-preferred": "node"},
    {"berth.dev/subgroup": f"{SECRET}-s", "berth.dev/subgroup-required": f"{SECRET}.com/block"},
    {"berth.dev/group-slice-level": "block, topology.kubernetes.io/rack", "berth.dev/group-slice-size": "4,2"},
    {"kueue.x-k8s.io/podset-slice-required-topology-constraints": json.dumps(LAYERS)},
    {"kueue.x-k8s.io/podset-group-name": SECRET, "kueue.x-k8s.io/podset-required-topology": f"{SECRET}.com/block"},
    {"berth.dev/group-topology": "required"},
]


@pytest.mark.parametrize("notes", ASKED, ids=lambda notes: next(iter(notes)))
def test_levels_that_annotations_name_stay(notes: Json) -> None:
    """Under another name, that of the same label of the nodes."""
    labels = [{f"{SECRET}.com/block": f"{SECRET}{i // 2}", "topology.kubernetes.io/rack": f"r{i}"} for i in range(4)]
    nodes = {f"n{i}": {"machine": "t4-4", "labels": one} for i, one in enumerate(labels)}
    objects = objects_of({"nodes": nodes, "pods": [{"name": "p", "count": 1}]})
    obj = next(one for one in objects if one["kind"] == "Pod")
    obj["metadata"]["annotations"] = {"berth.dev/group": f"{SECRET}-g", **notes}
    numbered = list(anonymised(objects))
    assert SECRET not in json.dumps(numbered)
    before, after = asked(objects), asked(numbered)
    assert before == after
    assert any(before), before


def asked(objects: list[Json]) -> tuple[Any, ...]:
    """What the first pod asks of its group. A level is how it divides the nodes."""
    nodes = [decode_node(one) for one in objects if one["kind"] == "Node"]
    levels = [label for node in nodes for label in node.labels]
    membership = next(decode_pod(one) for one in objects if one["kind"] == "Pod").membership
    assert membership is not None
    assert not membership.problem

    def divided(level: Level | None) -> list[int]:
        label = level_label(level, list(dict.fromkeys(levels)))
        values = [node.name if label == "node" else node.labels.get(label, "") for node in nodes]
        return [values.index(one) for one in values] if label else []

    topology, parts = membership.topology, membership.subgroups
    slices = [(one.size, divided(one.level)) for one in parts.slices]
    return topology.nearness, divided(topology.required), divided(topology.preferred), divided(parts.required), slices


def test_the_part_of_a_group_stays_on_claims() -> None:
    objects = objects_of({"nodes": {"n": "t4-4"}, "pods": [{"name": "p", "count": 1}]})
    of = {one["kind"]: one for one in objects}
    of["Pod"]["metadata"]["annotations"] = {"berth.dev/subgroup": f"{SECRET}-s"}
    of["Pod"]["spec"]["schedulingGroup"] = {"podGroupName": f"{SECRET}-g"}
    marks = {"berth.dev/group": f"spec.schedulingGroup={SECRET}-g", "berth.dev/group-part": f"{SECRET}-s/3"}
    of["ResourceClaim"]["metadata"]["annotations"] = marks
    numbered = {one["kind"]: one for one in anonymised(objects)}
    assert SECRET not in json.dumps(numbered)
    claim, group = decode_claim(numbered["ResourceClaim"]), numbered["Pod"]["spec"]["schedulingGroup"]["podGroupName"]
    assert claim.group == f"spec.schedulingGroup={group}"
    assert claim.group_part == numbered["Pod"]["metadata"]["annotations"]["berth.dev/subgroup"] + "/3"


def minimums(objects: list[Json]) -> list[int]:
    """The minimum of the gang of each pod, in the order of the file."""
    cache = dump_of(objects)
    pods = [cache.store.in_tree(decode_pod(one)) for one in objects if one["kind"] == "Pod"]
    return [gang_minimum(one.membership, cache.snapshot()) for one in pods if one.membership is not None]


def everything() -> list[Json]:
    """Objects of each kind, with each field that `berth assess` reads. Berth does not know one of the drivers."""
    nodes = {"n": {"machine": "hgx-h100-8", "labels": {"topology.kubernetes.io/rack": "r", "team": "t"}}}
    pods = [{"name": "p", "node": "n", "gpus": [0, 1], "group": "g"}, {"name": "w", "count": 16}]
    objects = objects_of({"agent": True, "nodes": nodes, "pods": pods})
    of = {(one["kind"], one["metadata"]["name"]): one for one in objects}
    of["Node", "n"]["spec"] = {"taints": [{"key": "nvidia.com/gpu", "value": "v", "effect": "NoSchedule"}]}
    of["Node", "n"]["metadata"]["labels"]["nvidia.com/gpu.product"] = "NVIDIA-H100-80GB-HBM3"
    for one in objects:
        if one["kind"] == "ResourceSlice":
            del one["spec"]["devices"][1:]  # the others are alike
    spec = of["Pod", "p"]["spec"]
    spec |= constrained() | {"schedulerName": "default-scheduler", "schedulingGates": [{"name": "gate"}]}
    spec["initContainers"] = [{"name": "i", "resources": {"requests": {"nvidia.com/gpu": "1", "gpus.io/x": "1"}}}]
    spec["containers"][0]["resources"]["claims"] = [{"name": "gpu", "request": "gpu"}]
    claim = of["ResourceClaim", "p"]
    request = claim["spec"]["devices"]["requests"][0]
    toleration = {"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}
    expression = "device.attributes['gpu.io'].shape == 'large' && device.attributes['gpu.io'].count == 5"
    request["exactly"] |= {
        "allocationMode": "ExactCount",
        "tolerations": [toleration],
        "selectors": [{"cel": {"expression": expression}}],
        "capacity": {"requests": {"memory": "1Gi", "gpu.io/slots": "1"}},
    }
    claim["spec"]["devices"]["constraints"] = [{"requests": ["gpu"], "matchAttribute": "gpu.io/shape"}]
    claim["status"]["allocation"]["devices"]["results"][0] |= {
        "shareID": "s",
        "consumedCapacity": {"gpu.io/slots": "1"},
    }
    # What no assessment reads is left out.
    for one in objects:
        one["metadata"]["managedFields"] = [{"manager": "m"}]
        one["metadata"].setdefault("annotations", {}).update({"n": "n", "berth.dev/decision": "d"})
    of["Pod", "p"]["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "j", "controller": True}]
    of["Pod", "p"]["status"]["conditions"] = [{"type": "PodScheduled", "message": "m"}]
    spec["containers"][0] |= {"env": [{"name": "KEY", "value": "v"}], "image": "i"}
    claim["spec"]["devices"]["config"] = [{"opaque": {"parameters": {"key": "k"}}}]
    of["Node", "n"]["status"]["addresses"] = [{"address": "a"}]
    return [*objects, *unknown_driver()]


def unknown_driver() -> list[Json]:
    """The slice, class and taint rule of a driver that Berth does not know, and a group of pods."""
    use = {"counterSet": "s", "counters": {"slots": {"value": "1"}}}
    device = {
        "name": "d",
        "attributes": {
            "shape": {"string": "large"},
            "count": {"int": 5},
            "model": {"string": "NVIDIA H100"},
            "cudaDriverVersion": {"version": "1.2.3"},
            "release": {"version": "1.2.3"},
            "gpu.io/shapes": {"strings": ["large"]},
            "pcieRoot": {"strings": ["pci0000:01"]},
        },
        "capacity": {"memory": {"value": "1Gi"}, "slots": {"value": "1", "requestPolicy": {"default": "1"}}},
        "consumesCounters": [use],
        "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}],
    }
    api = {"apiVersion": "resource.k8s.io/v1"}
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 2}
    slices = [
        {"driver": "gpu.io", "nodeName": "n", "pool": pool, "devices": [device]},
        {"driver": "gpu.io", "nodeName": "n", "pool": pool, "sharedCounters": [{"name": "s", **use}]},
    ]
    selectors = [{"cel": {"expression": "'shape' in device.attributes['gpu.io'] // why"}}]
    spec = {"selectors": selectors, "extendedResourceName": "gpus.io/x"}
    rule = {"deviceSelector": {"driver": "gpu.io", "pool": "n", "device": "d"}, "taint": {"key": "k", "effect": "None"}}
    return [
        *(
            {**api, "kind": "ResourceSlice", "metadata": {"name": f"s{number}"}, "spec": one}
            for number, one in enumerate(slices)
        ),
        {**api, "kind": "DeviceClass", "metadata": {"name": "large"}, "spec": spec},
        {
            **api,
            "apiVersion": "resource.k8s.io/v1beta2",
            "kind": "DeviceTaintRule",
            "metadata": {"name": "r"},
            "spec": rule,
        },
        {
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": {"name": "g", "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"minMember": 2},
        },
    ]


def planted(value: Any) -> Iterator[None]:
    """Plant a secret in one text after the other, as a value and as a key; each is taken out again."""
    places = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in list(places):
        if isinstance(one, dict | list):
            yield from planted(one)
        elif isinstance(one, str) and key != "kind":
            for text in (SECRET, f"{one}{SECRET}", f"{SECRET}-{one}", f"{SECRET}.com/{one}", f"1 {SECRET}"):
                value[key] = text
                yield
            value[key] = one
        elif isinstance(one, int) and not isinstance(one, bool):
            value[key] = SECRET
            yield
            value[key] = one
        if isinstance(value, dict):
            del value[key]
            for text in (f"{key}{SECRET}", f"{SECRET}.com/{key}"):
                value[text] = one
                yield
                del value[text]
            value[key] = one


def test_no_text_that_a_company_could_have_chosen_is_left() -> None:
    objects = everything()
    assert SECRET not in json.dumps(list(anonymised([one for one in objects if one["kind"] != "Pod"])))
    for one in objects:
        if one["kind"] == "Pod":
            one["spec"] = json.loads(json.dumps(one["spec"]).replace(SECRET, "other"))
    count = 0
    for _ in planted(objects):
        found = json.dumps(list(anonymised(objects)))
        assert SECRET not in found, found[max(found.index(SECRET) - 200, 0) :][:300]
        count += 1
    assert count > 500
    assert "NVIDIA H100" in found  # the product, without which nothing can be said


def test_what_fits_stays_the_same() -> None:
    """Names of unknown drivers, classes and attributes become numbers everywhere, so that expressions still hold."""
    objects = list(anonymised(everything()))
    of = {one["kind"]: one for one in objects}
    device = next(one for one in objects if one["kind"] == "ResourceSlice" and "gpu.io" not in str(one))["spec"]
    assert device["driver"] == "gpu.nvidia.com"
    own = [one["spec"] for one in objects if one["kind"] == "ResourceSlice"][-2]
    (shape, count), text = list(own["devices"][0]["attributes"])[:2], own["devices"][0]["attributes"]
    expression = next(one for one in objects if one["kind"] == "ResourceClaim")["spec"]["devices"]["requests"][0]
    assert expression["exactly"]["selectors"][0]["cel"]["expression"] == (
        f'device.attributes["{own["driver"]}"].{shape} == "{text[shape]["string"]}" && '
        f'device.attributes["{own["driver"]}"].{count} == {text[count]["int"]}'
    )
    assert of["DeviceClass"]["spec"]["selectors"][0]["cel"]["expression"].startswith(f'"{shape}" in device.attributes')
    assert of["DeviceTaintRule"]["spec"]["deviceSelector"]["driver"] == own["driver"]


@pytest.mark.parametrize(
    ("value", "literal"),
    [
        ({"string": "10.20.30.44"}, "'10.20.30.44'"),
        ({"string": "4711"}, "'4711'"),
        ({"string": "1320220012345"}, "'1320220012346'"),
        ({"string": "10.20.30.44"}, "'10.20.30.45'"),
        ({"version": "1.2.3"}, "semver('1.2.3')"),
        ({"string": "NVIDIA H100"}, "'NVIDIA H100'"),
    ],
    ids=["address", "serial", "another serial", "another address", "version", "product"],
)
def test_a_literal_of_an_expression_is_no_name_and_holds_as_before(value: Json, literal: str) -> None:
    """Addresses and serials look like amounts: a selector told them, and no device met it any more."""
    slice_ = unknown_driver()[0]
    name = "model" if "NVIDIA" in literal else "cudaDriverVersion" if "version" in value else "serial"
    slice_["spec"]["devices"][0]["attributes"] = {name: value}
    compared = f".compareTo({literal}) == 0" if "version" in value else f" == {literal}"
    expression = f"device.attributes['gpu.io'].{name}{compared} && device.capacity['gpu.io'].memory >= quantity('1Gi')"
    class_ = {**GPU_CLASS, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
    made, of = anonymised([slice_, class_])
    (found,) = made["spec"]["devices"][0]["attributes"].values()
    text = of["spec"]["selectors"][0]["cel"]["expression"]
    is_known = next(iter(value.values())) in literal
    assert (next(iter(found.values())) in text) == is_known
    assert ("1320220012346" in text, "10.20" in text, "4711" in text) == (False, False, False)
    assert "quantity('1Gi')" in text


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        ("device.attributes['gpu.io'].serial == 1320220012346", False),
        ("1320220012346 != device.attributes['gpu.io'].serial", False),
        ("device.attributes['gpu.io']['serial'] == 1320220012346", False),
        ("device.attributes['gpu.io'].serial in [7, 1320220012346]", False),
        ("device.attributes['gpu.io'].numaNode == 13", True),
        ("13 == device.attributes['gpu.io'].numaNode", True),
        ("device.attributes['gpu.io'].shapes.size() > 13", True),
        ("device.capacity['gpu.io'].memory.asInteger() == 13", True),
    ],
)
def test_a_number_that_no_device_has_is_replaced_if_an_attribute_is_compared_with_it(text: str, stays: bool) -> None:
    class_ = {**GPU_CLASS, "spec": {"selectors": [{"cel": {"expression": text}}]}}
    *_, of = anonymised([*unknown_driver()[:1], class_])
    found = of["spec"]["selectors"][0]["cel"]["expression"]
    assert ("13" in found) == stays


def test_a_malformed_object_is_left_out() -> None:
    node, *others = objects_of({"nodes": {"a": "dgx1-v100"}, "pods": [{"name": "p", "count": 1}]})
    others[-2]["spec"]["containers"] = 7
    assert [obj["kind"] for obj in anonymised([node, *others])] == [
        "DeviceClass", "Node", "ResourceSlice", "ResourceClaim",
    ]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_assessment_stays(case: Json, tmp_path: Path) -> None:
    objects = objects_of(case)
    named = assessed(snapshot_file(tmp_path, objects))
    numbered = assessed(snapshot_file(tmp_path, list(anonymised(objects)), "numbered.json"))
    assert numbered["unreadable"] == []
    for name in ("nodes", "bandwidth", "near", "pairs", "plugin_pods", "plugin_gpus", "lacking"):
        assert numbered[name] == named[name], name
    assert numbered["fleet"]["products"] == named["fleet"]["products"]
    parts, parts_named = ([text for text in one["unknown"] if "not counted" in text] for one in (numbered, named))
    assert parts == parts_named
    rates = ("joined", "gbps", "best_gbps", "now_gbps", "links", "near", "pairs")
    for row, other in zip(_sorted(numbered["sets"], rates), _sorted(named["sets"], rates), strict=True):
        assert row == other
    counts = ("pods", "gpus", "nodes", "level", "domains", "fewest")
    assert _sorted(numbered["gangs"], counts) == _sorted(named["gangs"], counts)


def _sorted(rows: list[Json], fields: tuple[str, ...]) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in fields) for row in rows)


def test_what_a_pod_requests_as_a_whole_stays() -> None:
    whole: Json = {"resources": {"requests": {"cpu": "9"}}, "overhead": {"cpu": "250m", "memory": "1Gi"}}
    objects = objects_of({"nodes": {"a": "dgx1-v100"}, "pods": [{"name": "p", "count": 1}]})
    next(one for one in objects if one["kind"] == "Pod")["spec"] |= whole
    (pod,) = (one for one in anonymised(objects) if one["kind"] == "Pod")
    assert {name: pod["spec"].get(name) for name in whole} == whole


def test_names_keep_their_order() -> None:
    """First fit takes nodes, pods and claims by name: with node-10 before node-2 it was another replay."""
    numbers = [7, 11, 1, 4, 10, 2, 12, 3, 8, 5, 9, 6]
    nodes = {f"n{number}": "t4-4" for number in numbers}
    pods = [{"name": f"p{number}", "node": f"n{number}", "gpus": [0]} for number in numbers]
    objects = objects_of({"nodes": nodes, "pods": pods})
    for obj in objects:
        if obj["kind"] in ("Pod", "ResourceClaim"):
            obj["metadata"]["namespace"] = f"team-{obj['metadata']['name']}"
        if obj["kind"] == "ResourceSlice":
            obj["spec"]["devices"][0]["name"] = f"card{obj['spec']['nodeName']}"
    numbered = list(anonymised(objects))
    assert [order(objects, *place) for place in ORDERED] == [order(numbered, *place) for place in ORDERED]


ORDERED: list[tuple[str, tuple[str | int, ...]]] = [
    ("Node", ("metadata", "name")),
    ("Pod", ("metadata", "name")),
    ("Pod", ("metadata", "namespace")),
    ("Pod", ("metadata", "uid")),
    ("ResourceClaim", ("metadata", "name")),
    ("ResourceSlice", ("metadata", "name")),
    ("ResourceSlice", ("spec", "pool", "name")),
    ("ResourceSlice", ("spec", "devices", 0, "name")),
]


def order(objects: list[Json], kind: str, path: tuple[str | int, ...]) -> list[int]:
    """The places of the objects of a kind, in the order of their texts at this path."""
    texts = []
    for obj in (one for one in objects if one["kind"] == kind):
        text: Any = obj
        for step in path:
            text = text[step]
        texts.append(text)
    return sorted(range(len(texts)), key=texts.__getitem__)


def test_jobs_beside_an_anonymous_snapshot_have_its_names(tmp_path: Path) -> None:
    """The two files leave the company together, and a replay takes both."""
    label = f"{SECRET}.com/team"
    nodes = {name: {"machine": "hgx-h100-8", "labels": {label: f"{SECRET}-{name}"}} for name in "ab"}
    pods = [{"name": f"{SECRET}-{name}", "node": name, "gpus": [0, 1]} for name in "ab"]
    objects = objects_of({"nodes": nodes, "pods": pods})
    first, second = (one for one in objects if one["kind"] == "Pod")
    first["spec"]["nodeSelector"] = {label: f"{SECRET}-a"}
    first["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    second["metadata"]["creationTimestamp"] = "2026-01-01T00:01:00Z"
    terminated = {"state": {"terminated": {"finishedAt": "2026-01-01T01:01:00Z", "message": SECRET}}}
    second["status"] = {"phase": "Succeeded", "containerStatuses": [{"name": SECRET, **terminated}]}
    objects[-1]["status"] = {}
    path, saved, jobs = snapshot_file(tmp_path, objects), tmp_path / "saved.json", tmp_path / "jobs.jsonl"
    assessed(path, "--save", str(saved), "--anonymise", "--jobs", str(jobs))
    assert SECRET not in jobs.read_text() + saved.read_text()
    lines = [json.loads(line) for line in jobs.read_text().splitlines()]
    assert [(line["arrival"], line.get("duration")) for line in lines] == [(0, None), (60, 3600)]
    code, out, err = berth(["replay", str(jobs), "--snapshot", str(saved), "--emptied", "--output", "json"])
    assert code == 0, err
    started = json.loads(out)["outcomes"][0]["started_jobs"]
    nodes_of = [[pod["node"] for pod in job["pods"]] for job in started.values()]
    assert (len(started), nodes_of[0]) == (2, ["node-1"])


def test_that_gpus_are_shared_or_parts_stays() -> None:
    strategy, gke = "nvidia.com/gpu.sharing-strategy", "cloud.google.com/gke-"
    of_gke = f"{gke}gpu-sharing-strategy", f"{gke}max-shared-clients-per-gpu", f"{gke}gpu-partition-size"
    given = [
        {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED"},
        {"nvidia.com/gpu.product": f"{SECRET}-MIG-1g.10gb"},
        {"nvidia.com/gpu.replicas": "4", strategy: "time-slicing"},
        {"nvidia.com/gpu.replicas": SECRET, strategy: SECRET},
        {f"{gke}accelerator": SECRET},
        dict(zip(of_gke, ("time-sharing", "4", "1g.10gb"), strict=True)),
        dict.fromkeys(of_gke, SECRET),
    ]
    nodes = {f"n{number}": {"machine": "hgx-h100-8", "labels": labels} for number, labels in enumerate(given)}
    found = [one["metadata"]["labels"] for one in anonymised(objects_of({"nodes": nodes})) if one["kind"] == "Node"]
    kept = [{name: text for name, text in labels.items() if name.startswith("nvidia.com/gpu.")} for labels in found]
    assert kept[0] == given[0]
    assert kept[1]["nvidia.com/gpu.product"].endswith("-MIG-1g.10gb")
    assert kept[2] == given[2]
    assert found[5].items() >= given[5].items()
    assert SECRET not in str(found)


def test_what_schedulers_say_and_requests_of_device_plugins_stay_without_names(tmp_path: Path) -> None:
    """Which waiting pods fit is the same in the file without names."""
    nodes, gpu = "0/1 nodes are available: 1", {"nvidia.com/gpu": "1"}
    told = {
        "vpc.amazonaws.com/efa": f"{nodes} Insufficient vpc.amazonaws.com/efa.",
        "acme.com/dpu": f"{nodes} Insufficient acme.com/dpu.",
        "ports": f"{nodes} node(s) didn't have free ports for the requested pod ports.",
        "volume": '0/1 nodes are available: persistentvolumeclaim "acme" not found.',
        "queue": "queue acme has no quota left",
        "taint": f"{nodes} node(s) had untolerated taint {{acme.com/team: acme}}. preemption: acme",
    }
    pods: list[Json] = [
        {"name": f"w{number}", "plugin": gpu | ({name: "1"} if "/" in name else {}), "told": text}
        for number, (name, text) in enumerate(told.items())
    ]
    offered = {"nvidia.com/gpu": "8", "acme.com/dpu": "2"}
    objects = objects_of({"nodes": {"a": {"machine": "hgx-h100-8", "plugin": offered}}, "pods": pods})
    numbered = list(anonymised(objects))
    text = json.dumps(numbered)
    assert SECRET not in text
    for kept in (
        f"{nodes} Insufficient vpc.amazonaws.com/efa",
        f"{nodes} Insufficient example.com/resource-1",
        f"{nodes} node(s) didn't have free ports",
        f"{nodes} node(s) had untolerated taint",
        "0/1 nodes are available: persistentvolumeclaim",
    ):
        assert kept in text
    named, unnamed = (assessed(snapshot_file(tmp_path, one)) for one in (objects, numbered))
    assert named["verdict"] == unnamed["verdict"]
    assert "fit now, each alone or with its gang: 2 of 6; by their devices 3 more" in str(named["verdict"])
    assert "no node offers vpc.amazonaws.com/efa" in str(unnamed["waiting"])


def test_a_part_of_a_product_in_small_letters_stays_in_expressions() -> None:
    """A text that is in no product becomes a number."""
    product = "device.attributes['gpu.nvidia.com'].productName.lowerAscii().contains"
    selectors = [{"cel": {"expression": f"{product}('h100') || {product}('acme')"}}]
    objects = objects_of({"nodes": {"a": "hgx-h100-8"}, "class": {"selectors": selectors}})
    (found,) = (one["spec"] for one in anonymised(objects) if one["kind"] == "DeviceClass")
    expression = found["selectors"][0]["cel"]["expression"]
    assert ("('h100')" in expression, "acme" in expression) == (True, False)


def test_a_claim_that_is_allocated_keeps_its_nodes(tmp_path: Path) -> None:
    """A second pod that waits for it can go to these alone."""
    nodes = {name: {"machine": "t4-4", "labels": {f"{SECRET}/pool": name}} for name in "ab"}
    objects = objects_of({"nodes": nodes, "pods": [{"name": "p", "node": "a", "gpus": [0]}, {"name": "w", "count": 1}]})
    changed(objects, "Pod", "w", "spec.resourceClaims.0.resourceClaimName", "p")
    fields = [{"key": "metadata.name", "operator": "In", "values": ["a"]}]
    labels = [{"key": f"{SECRET}/pool", "operator": "In", "values": ["a"]}]
    for term in ({"matchFields": fields}, {"matchExpressions": labels}):
        changed(objects, "ResourceClaim", "p", "status.allocation.nodeSelector", {"nodeSelectorTerms": [term]})
        numbered = list(anonymised(objects))
        assert SECRET not in json.dumps(numbered)
        for one in (objects, numbered):
            (row,) = assessed(snapshot_file(tmp_path, one))["waiting"]
            assert "fits on 1 of 2 nodes" in row["reason"]
