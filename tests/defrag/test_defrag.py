"""berth defrag: the advice, its proof and its commands, beside an exhaustive search, and unusable questions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from extender.assess import advise_restarts, anonymised, restart_advice
from extender.assess.restart_advice import proved
from extender.assess.wanted_pods import Shape
from extender.base.deadline import Deadline
from extender.cli import defrag_command
from extender.cli.cluster_objects import Objects
from extender.defrag import WAIT_COST, AdviceKind, advise, cheapest_restarts
from extender.policy import Policy
from extender.replay import Proof, prove
from extender.sandbox import write_kubeconfig
from tests.worlds.assessed_clusters import objects_of, snapshot_file
from tests.worlds.commands import berth, berth_beside
from tests.worlds.defrag_worlds import (
    DefragWorld,
    crowded_world,
    objects_of_case,
    random_world,
    running,
    sharing,
)
from tests.worlds.running_berth import berthing

Json = dict[str, Any]
UNHELPED = ("impossible", "not-known", "gave-up")
CASES: list[Json] = yaml.safe_load((Path(__file__).parents[1] / "cases" / "defrag.yaml").read_text())

WITH_FOREIGN_GANGS = [case for case in CASES if any("scheduler" in pod and "notes" in pod for pod in case["pods"])]


def asked(folder: Path, objects: list[Json], *words: str) -> tuple[int, str, str]:
    """The exit code of berth defrag about these objects, and what it prints."""
    return berth(["defrag", *words, "--snapshot", str(snapshot_file(folder, objects))])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_case(case: Json, tmp_path: Path) -> None:
    path = str(snapshot_file(tmp_path, objects_of_case(case)))
    words = ["defrag", *case["ask"], "--snapshot", path]
    code, out, err = berth([*words, "--output", "json"])
    found = json.loads(out)["advice"]
    verdict = case.get("verdict", "advice")
    assert (code, [one["verdict"] for one in found]) == (int(verdict in UNHELPED), [verdict] * len(found)), err
    assert [move["restart"] for one in found for move in one["moves"]] == case.get("restarts", [])
    assert [one["is_proved"] for one in found] == [verdict == "advice"] * len(found), [one["proof"] for one in found]
    if "cost" in case:
        assert found[0]["cost"] == case["cost"]
    if "on" in case:
        assert found[0]["placed_on"] == case["on"]
    _, out, _ = berth(words)
    assert [text for text in case.get("says", ()) if text not in out] == []
    assert [text for text in case.get("says_not", ()) if text in out] == []
    _, out, _ = berth([*words, "--output", "commands"])
    told = [one[key] for one in found for key in ("wanted", "jobs", "other_schedulers") if one[key]]
    comments = ("# not known: ", "# each of these answers", *(f"# {text}" for text in told))
    lines = [line for line in out.splitlines() if not line.startswith(comments)]
    assert lines == [command for one in found for command in one["commands"]]
    for one in found:
        assert one["cost"] == sum(move["cost"] for move in one["moves"]) + WAIT_COST * one["waiting_gpus"]


def test_the_commands_hide_nothing_that_matters(tmp_path: Path) -> None:
    """A user who pipes the commands into a shell does not see the table."""
    case = next(one for one in CASES if one["name"] == "without a question, for the largest joined set of each product")
    _, out, _ = asked(tmp_path, objects_of_case(case), "-o", "commands")
    told = out.splitlines()[:2]
    assert told[0].startswith("# not known: the files have no PodDisruptionBudget: ")
    assert told[1] == "# each of these answers is proved alone: carry out one, then ask again"


@pytest.mark.parametrize("output", ["table", "commands"])
def test_a_manifest_for_another_scheduler_may_get_another_node(output: str, tmp_path: Path) -> None:
    path, manifest = snapshot_file(tmp_path, objects_of_case(CASES[0])), tmp_path / "pod.yaml"
    text = MANIFEST.replace("CLASS", "gpu.nvidia.com").replace("schedulerName: berth-scheduler", "priority: 0")
    manifest.write_text(text)
    _, out, _ = berth(["defrag", "-f", str(manifest), "--snapshot", str(path), "-o", output])
    told = "for pod default/new default-scheduler may choose other nodes than Berth, whose choice is named here"
    assert told in out


WORLDS = [
    *(pytest.param(random_world, seed, id=f"random-{seed}") for seed in range(16)),
    *(pytest.param(crowded_world, seed, id=f"crowded-{seed}") for seed in (*range(12), 33, 97, 99)),
]


@pytest.mark.parametrize(("world_for", "seed"), WORLDS)
def test_no_way_is_cheaper_in_the_proof(world_for: Callable[[int], tuple[list[Json], Shape]], seed: int) -> None:
    """No set of restarts, in no order, with no other reserved nodes. Some worlds would need thousands of proofs."""
    world = DefragWorld(*world_for(seed))
    found = world.advice()
    cost = found.cost if found.verdict == "advice" else float("inf")
    assert found.is_proved == (found.verdict == "advice"), found.proof
    if found.verdict != "fits":
        assert world.cheapest_by_force(cost / 1.1, proofs=40) == float("inf")


@pytest.mark.parametrize("case", [*CASES[:6], *WITH_FOREIGN_GANGS], ids=lambda case: case["name"])
def test_a_snapshot_without_names_has_the_same_advice(case: Json, tmp_path: Path) -> None:
    objects, found = objects_of_case(case), list[Json]()
    for given in (objects, list(anonymised(objects))):
        found += json.loads(asked(tmp_path, given, *case["ask"], "--output", "json")[1])["advice"]
    first, second = ((one["verdict"], one["is_proved"], one["cost"], _pods(one)) for one in found)
    assert first == second


def _pods(advice: Json) -> list[int]:
    return [len(move["pods"]) for move in advice["moves"]]


def test_each_pod_of_a_gang_has_devices_of_its_own() -> None:
    """Claims of a file have no UIDs. Then those of one pod were taken for all, and restarted pods got the others."""
    world = DefragWorld(objects_of({"nodes": {"a": "hgx-h100-8", "b": "hgx-h100-8"}}), Shape(8, 2))
    placed = world.cluster().place(world.wanted.asked)
    assert placed is not None
    assert [info.busy.bit_count() for info in placed.cluster.snapshot.node_infos.values()] == [8, 8]


@pytest.mark.parametrize("spec", [{"unschedulable": True}, {"taints": [{"key": "team", "effect": "NoSchedule"}]}])
def test_free_gpus_that_no_pod_may_use_are_no_places(spec: Json) -> None:
    """They were counted as places: pods that must wait seemed not to, so that there might be a cheaper way."""
    objects, shape = crowded_world(0)
    one = objects_of({"nodes": {"z": "hgx-h100-8"}})
    node = next(one for one in one if one["kind"] == "Node")
    node["spec"] = spec
    slices = [obj for obj in one if obj["kind"] == "ResourceSlice"]
    found = DefragWorld([*objects, node, *slices], shape).advice()
    assert (found.cost, found.is_cheapest) == (DefragWorld(objects, shape).advice().cost, True)


def test_a_search_that_ends_early_says_so() -> None:
    """A clock that is past the deadline at once: nothing is known, which is not the same as impossible."""
    world = DefragWorld(objects_of_case(CASES[0]), Shape(8))
    cluster, movable = world.cluster(Deadline(0.0, lambda: 0.0)), world.movable
    found = advise(cluster, world.wanted.asked, movable.restarts, movable.budgets, lambda advice: advice.cost)
    assert (found.verdict, found.is_cheapest) == (AdviceKind.GAVE_UP, False)


@pytest.mark.parametrize("seed", [6, 9, 18])
def test_a_search_that_ends_at_any_point_gives_the_best_advice_that_it_found(seed: int) -> None:
    """The first sets have restarts whose pods would wait. The search ends after each set of further restarts.

    As in a larger cluster, it does not try all sets at the end.
    """
    world, verdicts = DefragWorld(*random_world(seed)), set[tuple[str, bool]]()
    for trials in range(1, 12):
        costs = list[float]()

        def noted(*args: Any, costs: list[float] = costs) -> restart_advice.Proved:
            found = proved(*args)
            costs.append(found.cost)
            return found

        limits = patch.multiple(cheapest_restarts, _MAX_TRIALS=trials, _FEW_NODES=0)
        with limits, patch.object(restart_advice, "proved", noted):
            found = world.advice()
        assert found.cost <= min(costs), trials  # with more nodes reserved, it may cost less
        verdicts.add((found.verdict, found.is_cheapest))
    assert ("advice", False) in verdicts


@pytest.mark.parametrize("seed", [33, 99])
@pytest.mark.parametrize("is_small", [True, False])
def test_other_orders_are_tried_also_after_too_many_trials(seed: int, *, is_small: bool) -> None:
    """In the usual order, more GPUs wait after the first set than must. In a small cluster, nothing is left out."""
    world = DefragWorld(*crowded_world(seed))
    with patch.multiple(cheapest_restarts, _MAX_TRIALS=1, _FEW_NODES=8 if is_small else 0):
        found = world.advice()
    assert (found.cost, found.is_cheapest) == (world.advice().cost, is_small)


def test_a_way_that_the_proof_refutes_does_not_hide_a_dearer_one() -> None:
    """No proof with two restarts places the pod, so the one with one restart counts, after which four GPUs wait."""
    case = next(one for one in CASES if one["name"] == "a further restart gives a place to a restarted pod")

    def of_one(*args: Any) -> Proof:
        return Proof(problem="refuted") if len(args[3].restarts) > 1 else prove(*args)

    with patch.object(restart_advice, "prove", of_one):
        found = DefragWorld(objects_of_case(case), Shape(8)).advice()
    assert ([one.restart for one in found.moves], found.is_proved) == (["pod default/four"], True), found.proof


def test_pods_of_several_namespaces_end_together(tmp_path: Path) -> None:
    """As in the proof: only the last command waits, if a node where pods end is not reserved."""
    case = next(one for one in CASES if one["name"].startswith("a further restart gives a place to pods of one claim"))
    objects = objects_of_case(case)
    for obj in objects:
        if obj["metadata"]["name"] == "r":
            obj["metadata"]["namespace"] = "other"
    _, out, _ = asked(tmp_path, objects, *case["ask"], "--output", "commands")
    deletes = [line for line in out.splitlines() if " delete pod " in line]
    assert deletes == ["kubectl -n default delete pod p q --wait=false", "kubectl -n other delete pod r"]
    assert out.index(" delete pod r") < out.index(" patch pod w") < out.index("--for=condition=PodScheduled")


def test_pods_that_share_a_claim_go_together(tmp_path: Path) -> None:
    objects = objects_of_case({"nodes": {"a": "hgx-h100-8"}, "pods": [{"name": "p", "node": "a", "gpus": [0]}]})
    second = sharing(objects[-2], objects[-1], "q")
    code, out, _ = asked(tmp_path, [*objects, second], "--gpus", "8")
    assert code == 0
    assert "pod default/p and 1 that share its claim" in out
    assert "kubectl -n default delete pod p q" in out


def test_a_pod_waits_for_the_nodes_that_it_may_use() -> None:
    """Those with a taint have free CPU. They are the most, and no reason why it waits."""
    case = next(one for one in CASES if one["name"] == "pods of a Job wait one by one")
    others = objects_of({"nodes": dict.fromkeys("vwxyz", "hgx-h100-8")})
    for obj in others:
        if obj["kind"] == "Node":
            obj["spec"] = {"taints": [{"key": "team", "effect": "NoSchedule"}]}
    nodes = [obj for obj in others if obj["kind"] in ("Node", "ResourceSlice")]
    found = DefragWorld([*objects_of_case(case), *nodes], Shape(8)).advice()
    assert [move.waits for move in found.moves] == ["matching devices are in use for request gpu"]


@pytest.mark.parametrize(
    ("start", "what"), [("2936-02-28T22:00:00Z", "is in the future: 2936"), ("yesterday", "is no time: 'yesterday'")]
)
def test_a_start_that_cannot_be_right_counts_as_now_and_is_told(start: str, what: str, tmp_path: Path) -> None:
    """With one in the future as now, all other pods would have run for years, and the search would compare these."""
    objects = objects_of_case(CASES[0])
    for obj in objects:
        if obj["kind"] == "Pod" and obj["metadata"]["name"] == "large":
            obj["status"]["startTime"] = obj["metadata"]["creationTimestamp"] = start
    words = ["defrag", "--gpus", "8", "--snapshot", str(snapshot_file(tmp_path, objects))]
    _, out, _ = berth([*words, "--output", "json"])
    found = json.loads(out)
    assert [(move["restart"], move["gpu_hours"]) for move in found["advice"][0]["moves"]] == [("pod default/large", 0)]
    told = f"the times of pod default/large cannot be right: metadata.creationTimestamp {what}"
    assert [note for note in found["not_known"] if note.startswith(told)]
    assert told in berth(words)[1]


def test_a_pod_with_extended_resources_is_restarted(tmp_path: Path) -> None:
    """kube-scheduler made its claim. The new pod gets another one."""
    objects = objects_of_case(
        {"nodes": {"a": "hgx-h100-8", "b": "hgx-h100-8"}, "pods": [{"name": "p", "node": "a", "gpus": [0]}]}
    )
    objects += running("fixed", "b", [0], owner="")
    objects[0]["spec"]["extendedResourceName"] = "example.com/gpu"
    pod, claim = (one for one in objects if one["metadata"]["name"] == "p")
    pod["spec"].pop("resourceClaims")
    pod["spec"]["containers"][0]["resources"]["requests"]["example.com/gpu"] = "1"
    pod["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "p", "requestMappings": []}
    claim["metadata"]["annotations"] = {"resource.kubernetes.io/extended-resource-claim": "true"}
    wanted = json.loads(json.dumps(pod))
    wanted["metadata"] |= {"name": "w", "uid": "uid-w"}
    wanted["spec"]["containers"][0]["resources"]["requests"]["example.com/gpu"] = "8"
    del wanted["spec"]["nodeName"], wanted["status"], wanted["metadata"]["ownerReferences"]
    code, out, err = asked(tmp_path, [*objects, wanted], "pod", "w", "--output", "json")
    assert code == 0, err
    (found,) = json.loads(out)["advice"]
    assert [(move["restart"], move["goes_to"]) for move in found["moves"]] == [("pod default/p", ["b"])]
    assert found["proof"].startswith("proved: ")


MANIFEST = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: eight}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: CLASS, count: 8}}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: new}
spec:
  schedulerName: berth-scheduler
  resourceClaims: [{name: gpu, resourceClaimTemplateName: eight}]
  containers: [{name: main, resources: {claims: [{name: gpu}]}}]
"""


@pytest.mark.parametrize("output", ["table", "commands"])
def test_without_a_question_there_is_no_answer_for_classes_of_other_names(output: str, tmp_path: Path) -> None:
    objects: list[Json] = json.loads(json.dumps(objects_of_case(CASES[0])))
    next(one for one in objects if one["kind"] == "DeviceClass")["metadata"]["name"] = "gpus"
    code, out, err = berth(["defrag", "--snapshot", str(snapshot_file(tmp_path, objects)), "--output", output])
    said = err if output == "commands" else out
    assert (code, said.splitlines()[0]) == (
        1,
        "no answer: no node has GPUs with a DeviceClass of their driver's name: ask with --gpus, --class",
    )


def test_claims_of_ended_pods_are_no_restarts(tmp_path: Path) -> None:
    objects = [*objects_of({"nodes": {"a": "hgx-h100-8"}}), *running("done", "a", [0]), *running("p", "a", [1])]
    objects[-4]["status"]["phase"] = "Succeeded"
    objects[-1]["status"]["reservedFor"][0]["uid"] = "another"
    _, out, _ = asked(tmp_path, objects, "--gpus", "8")
    assert (
        "claims that no restart frees, because their pods have ended: Kubernetes frees the devices without a restart"
        in out
    )
    assert "claims that no restart frees, because they are reserved for no pod that was read: claim default/p" in out


def test_pods_of_a_device_plugin_may_use_gpus_that_seem_free(tmp_path: Path) -> None:
    """Slices and the plugin may offer the same GPUs. Only the kubelet knows which ones such a pod has."""
    pod, _ = running("plug", "a", [0])
    del pod["spec"]["resourceClaims"]
    pod["spec"]["containers"][0]["resources"] = {"requests": {"nvidia.com/gpu": "8"}}
    objects = [*objects_of({"nodes": {"a": "hgx-h100-8"}}), pod]
    _, out, _ = asked(tmp_path, objects, "--gpus", "8")
    assert "GPUs that seem free may be in use, as a device plugin serves default/plug on a" in out.splitlines()[0]


def test_the_claim_of_the_wanted_pod_is_nothing_that_stays(tmp_path: Path) -> None:
    """It has devices before its pod has a node."""
    pod, claim = running("w", "a", [0])
    del pod["spec"]["nodeName"], pod["status"]
    claim["status"]["reservedFor"] = []
    objects = [*objects_of({"nodes": {"a": "hgx-h100-8"}}), pod, claim]
    _, out, _ = asked(tmp_path, objects, "pod", "w")
    assert "pod default/w: there is room now on a" in out
    assert "reserved for no pod" not in out


PRIORITY_CLASS = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}}


@pytest.mark.parametrize(
    ("name", "words", "code", "message"),
    [
        ("high", [], 2, "priorityClassName high: is a class that the files do not have: add it with -f, or give its"),
        ("high", ["--priority", "5"], 0, "there is room after 1 restart"),
        ("high", ["-f", "class.json"], 0, "there is room after 1 restart"),
        ("system-cluster-critical", [], 0, "there is room after 1 restart"),
        ("", [], 1, "because they have a priority above 0: default/p"),
    ],
)
def test_the_priority_of_a_manifest_is_that_of_its_class(
    name: str, words: list[str], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    objects = [*objects_of({"nodes": {"a": "hgx-h100-8"}}), *running("p", "a", [0], priority=5)]
    claim, pod = Shape(8).objects()
    pod["spec"] = {**pod["spec"], **({"priorityClassName": name} if name else {})}
    snapshot_file(tmp_path, [claim, pod], "want.json")
    snapshot_file(tmp_path, [{**PRIORITY_CLASS, "value": 5}], "class.json")
    asked = ["defrag", "-f", "want.json", *words, "--snapshot", str(snapshot_file(tmp_path, objects))]
    found, out, err = berth(asked)
    assert (found, message in out + err) == (code, True), out + err


def test_a_manifest_is_a_question(tmp_path: Path) -> None:
    path, manifest = snapshot_file(tmp_path, objects_of_case(CASES[0])), tmp_path / "pod.yaml"
    manifest.write_text(MANIFEST.replace("CLASS", "gpu.nvidia.com"))
    code, out, err = berth(["defrag", "-f", str(manifest), "--snapshot", str(path)])
    assert code == 0, err
    assert "pod default/new: there is room after 1 restart" in out
    assert "the files have no PodDisruptionBudget" in out


WORKLOADS = {
    "Job": ("{parallelism: 3, template: POD}", "pod default/new (one of 3)"),
    "Deployment": ("{replicas: 2, template: POD}", "pod default/new (one of 2)"),
    "StatefulSet": ("{replicas: 1, template: POD}", "pod default/new"),
    "DaemonSet": ("{template: POD}", "pod default/new (one of several)"),
    "LeaderWorkerSet": (
        "{replicas: 3, leaderWorkerTemplate: {size: 2, workerTemplate: POD}}",
        "group default/new (one of 3)",
    ),
}


@pytest.mark.parametrize("kind", WORKLOADS)
def test_of_pods_that_are_placed_apart_one_has_the_answer(kind: str, tmp_path: Path) -> None:
    """The first line says of how many, because there may be no room for the others."""
    spec, text = WORKLOADS[kind]
    template, pod = yaml.safe_load_all(MANIFEST.replace("CLASS", "gpu.nvidia.com").replace("count: 8", "count: 4"))
    made = yaml.safe_load(spec.replace("POD", json.dumps({"spec": pod["spec"]})))
    api = "leaderworkerset.x-k8s.io/v1" if kind == "LeaderWorkerSet" else "apps/v1"
    workload = {"apiVersion": api, "kind": kind, "metadata": {"name": "new"}, "spec": made}
    snapshot_file(tmp_path, [template, workload], "workload.json")
    code, out, err = asked(tmp_path, objects_of_case(CASES[0]), "-f", str(tmp_path / "workload.json"))
    assert code == 0, err
    assert out.startswith(f"{text}: there is room now on ")


def test_a_group_whose_minimum_runs_is_no_question(tmp_path: Path) -> None:
    case = next(one for one in CASES if one["name"].startswith("of a group whose minimum runs"))
    code, out, err = asked(tmp_path, objects_of_case(case), "group", "w")
    assert (code, out) == (2, "")
    assert "group default/w: is no gang that lacks pods, each of its pods is placed alone: name one of them" in err


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (None, "as failed: Job default/young-owner may fail, look at backoffLimit"),
        ({"backoffLimit": 0}, "as failed: Job default/young-owner (backoffLimit 0, 0 pods failed before) fails then"),
        ({}, "and counts them as failed\n"),
        ({"podFailurePolicy": {}}, "as failed: Job default/young-owner may fail, look at backoffLimit"),
    ],
)
@pytest.mark.parametrize("output", ["table", "commands"])
def test_what_a_restart_does_to_a_job_is_told(output: str, fields: Json | None, told: str, tmp_path: Path) -> None:
    """Its controller gives up after so many failed pods. Files may have the Jobs; no command lists them."""
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"namespace": "default", "name": "young-owner"}}
    objects = objects_of_case(CASES[0]) + ([{**job, "spec": fields, "status": {}}] if fields is not None else [])
    code, out, err = asked(tmp_path, objects, "--gpus", "8", "--output", output)
    assert (code, err) == (0, "")
    assert "a Job creates deleted pods again some seconds later, when others may have their places" in out
    assert told in out


def test_more_seconds_are_named_only_if_the_time_was_over() -> None:
    world = DefragWorld(*random_world(1))
    found = advise_restarts(world.facts, world.wanted, world.movable, Policy(), Deadline(0.0, lambda: 0.0))
    assert found.verdict == AdviceKind.GAVE_UP
    assert found.sentence.endswith("before the search gave up: give berth defrag more --seconds, or ask for less")


PODS_OF = "is no group of Berth: 2 waiting pods are of"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("js", f"default/js: {PODS_OF} JobSet js, so name one, such as pod js-0"),
        ("pg", f"default/pg: {PODS_OF} scheduling.k8s.io/group-name pg, so name one, such as pod js-0"),
        ("llm-6b", f"default/llm-6b: {PODS_OF} ReplicaSet llm-6b, so name one, such as pod js-0"),
        ("llm", f"default/llm: {PODS_OF} Deployment llm, so name one, such as pod js-0"),
        ("gated", "default/gated: has no waiting pod: 1 pod has a scheduling gate"),
        ("away", "default/away: has no waiting pod; one of this name waits in another namespace: give -n other"),
        ("nobody", "default/nobody: has no waiting pod; groups that wait in this namespace: g"),
    ],
)
def test_a_name_that_is_no_group_is_answered_with_what_to_name(name: str, told: str, tmp_path: Path) -> None:
    labels = {"jobset.sigs.k8s.io/jobset-name": "js", "batch.kubernetes.io/job-name": "js-w-0"}
    labels |= {"pod-template-hash": "6b"}
    pods = [
        one for pod in ("js-0", "js-1") for one in running(pod, "", [], count=8, labels=labels, owner_name="llm-6b")
    ]
    for pod in pods[::2]:
        pod["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "pg"}
    groups = [running(f"of-{group}", "", [], count=8, group=group)[0] for group in ("g", "gated", "away")]
    groups[1]["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    groups[2]["metadata"]["namespace"] = "other"
    objects = [*objects_of_case(CASES[0]), *pods, *groups]
    assert asked(tmp_path, objects, "group", name) == (2, "", f"berth: group {told}")


@pytest.mark.parametrize("name", ["vc", "pg-vc"])
def test_a_group_of_volcano_has_two_names(name: str, tmp_path: Path) -> None:
    """The pods are a gang of Berth by the annotation; kubectl get podgroups shows the other name."""
    notes = {"berth.dev/group-min": "2", "scheduling.k8s.io/group-name": "pg-vc"}
    pods = [running(f"w-{number}", "", [], count=8, labels={"volcano.sh/job-name": "vc"}) for number in range(2)]
    for pod, _ in pods:
        pod["metadata"]["annotations"] = notes
    _, out, err = asked(tmp_path, [*objects_of_case(CASES[0]), *pods[0], *pods[1]], "group", name)
    assert out.startswith("group default/vc: there is room after"), err


VOLCANO = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: tf}
spec:
  minAvailable: 3
  tasks:
  - {replicas: 1, name: ps, template: {spec: {containers: [{name: main}]}}}
  - {replicas: 2, name: worker, template: {spec: SPEC}}
"""
LEVEL = {"berth.dev/group": "g", "berth.dev/group-min": "2", "berth.dev/group-required": "no/level"}
PLUGIN = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "8", "cpu": "1"}}}
NO_QUESTIONS: dict[str, tuple[Callable[[Json], str], str]] = {  # what is made of a pod, and the answer
    "pods that are not one gang: Berth reads the minimum of a Volcano Job from berth.dev/group-min alone": (
        lambda pod: VOLCANO.replace("SPEC", json.dumps(pod["spec"])),
        "the files: make several pods that are not one gang: give those of one pod or one gang",
    ),
    "a device plugin: no DeviceClass has the resource": (
        lambda pod: json.dumps({**pod, "spec": {"containers": [PLUGIN]}}),
        "pod default/new: asks for nvidia.com/gpu, and no DeviceClass of the cluster has such an extended resource",
    ),
    "a wrong level: no node has its label, so no restart can help": (
        lambda pod: yaml.safe_dump_all([{**pod, "metadata": {"name": name, "annotations": LEVEL}} for name in "ab"]),
        "group default/g: pod annotation berth.dev/group-required: 'no/level' is no level: write node or ",
    ),
}


@pytest.mark.parametrize("name", NO_QUESTIONS)
def test_a_file_that_is_no_question(name: str, tmp_path: Path) -> None:
    made, told = NO_QUESTIONS[name]
    template, pod = yaml.safe_load_all(MANIFEST.replace("CLASS", "gpu.nvidia.com"))
    (tmp_path / "file.yaml").write_text(f"{json.dumps(template)}\n---\n{made(pod)}")
    code, out, err = asked(tmp_path, objects_of_case(CASES[0]), "-f", str(tmp_path / "file.yaml"))
    assert (code, out) == (2, "")
    assert f"berth: {told}" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pod", "young"], "pod default/young: is bound to node a: berth defrag is for pods that wait"),
        (["job/young"], "job young is no pod and no group: name one of its pods"),
        (["pod", "nobody"], "pod default/nobody: was not found among the pods that wait for devices"),
        (["group", "nobody"], "group default/nobody: has no waiting pod"),
        (["pod", "p", "--gpus", "8"], "a pod or a group: does not go with --gpus"),
        (["--pods", "2"], "--pods: goes with --gpus"),
        (["--gpus", "8", "--in", "rack"], "--in: is for several pods: give --pods, too\n"),
        (["--gpus", "8", "--pods", "2", "--in", "nosuch.label"], "--in: no node has the label nosuch.label"),
        (["pod", "plain"], "pod default/plain: asks for no devices"),
        (["--gpus", "0"], "Invalid value for '--gpus': must be at least 1 (is '0')"),
        (["--gpus", "33"], "Invalid value for '--gpus': must be at most 32 (is '33')"),
        (["--gpus", "8", "--class", "none"], "--class: device class none does not exist"),
        (["--gpus", "8", "--selector", "device.("], "--selector: "),
        (["-f", "FILE"], "device class none does not exist"),
        (["--snapshot", "missing.json"], "missing.json"),
    ],
)
def test_a_question_that_is_none(words: list[str], message: str, tmp_path: Path) -> None:
    objects = objects_of_case({**CASES[0], "pods": [*CASES[0]["pods"], {"name": "plain"}]})
    path, manifest = snapshot_file(tmp_path, objects), tmp_path / "pod.yaml"
    manifest.write_text(MANIFEST.replace("CLASS", "none"))
    given = [str(manifest) if word == "FILE" else word for word in words]
    code, out, err = berth(["defrag", *given, "--snapshot", str(path)])
    assert (code, out) == (2, "")
    assert message in f"{err}\n"
    assert err.count("\n") == 0


@pytest.mark.parametrize(
    ("name", "path", "value", "message"),
    [
        ("guard", ("spec", "selector"), 5, "PodDisruptionBudget guard: spec.selector: must be an object, is 5"),
        ("guard", ("status", "disruptionsAllowed"), "x", "status.disruptionsAllowed: must be an integer, is 'x'"),
        ("bare", ("spec", "priority"), "high", "Pod bare: spec.priority: must be an integer, is 'high'"),
        ("bare", ("spec", "containers"), [{"resources": {"requests": {"cpu": "many"}}}], "Pod bare: cpu: "),
    ],
)
def test_an_object_that_cannot_be_read_is_named(
    name: str, path: tuple[str, str], value: object, message: str, tmp_path: Path
) -> None:
    objects = objects_of_case(next(case for case in CASES if "budgets" in case))
    next(one for one in objects if one["metadata"]["name"] == name)[path[0]][path[1]] = value
    code, out, err = asked(tmp_path, objects, "--gpus", "8")
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("lacking", "what"),
    [
        (("ResourceClaim",), "which devices are in use"),
        (("ResourceClaim", "Pod"), "which devices are in use"),
        (("ResourceSlice",), "which devices there are"),
        (("DeviceClass",), "which devices a class has"),
    ],
)
def test_what_was_not_read_is_not_taken_for_absent(lacking: tuple[str, ...], what: str, tmp_path: Path) -> None:
    objects = [one for one in objects_of_case(CASES[0]) if one["kind"] not in lacking]
    code, out, err = asked(tmp_path, objects, "--gpus", "8")
    assert (code, out) == (2, "")
    assert f"no readable {lacking[0]} (there is none), so it is not known {what}" in err


def test_a_cluster_that_lists_no_claims_is_refused() -> None:
    objects = [one for one in objects_of_case(CASES[0]) if one["kind"] != "ResourceClaim"]
    listed = Objects(objects, {"ResourceClaim": "403 Forbidden"}, "the cluster")
    with patch.object(defrag_command, "from_cluster", lambda *_, **__: listed):
        code, out, err = berth(["defrag", "--gpus", "8"])
    assert (code, out) == (2, "")
    assert "the cluster: has no readable ResourceClaim (403 Forbidden)" in err


@pytest.mark.parametrize("output", ["table", "commands"])
def test_what_is_not_proved_is_no_advice(output: str, tmp_path: Path) -> None:
    """Nothing is deleted for a room that serve's own code does not find."""
    path = str(snapshot_file(tmp_path, objects_of_case(CASES[0])))
    with patch.object(restart_advice, "prove", lambda *_: Proof(reasons={}, problem="the virtual cluster broke")):
        code, out, err = berth(["defrag", "--gpus", "8", "--snapshot", path, "--output", output])
    headline = (
        "a pod with 8 joined GPUs: no advice, 1 restart seemed to make room: not proved: the virtual cluster broke"
    )
    assert code == 1
    assert headline in (err if output == "commands" else out)
    assert "there is room" not in out + err
    assert "kubectl -n" not in out


async def test_a_cluster_is_read(tmp_path: Path) -> None:
    async with berthing({"n1": "dgx1-v100"}) as b:
        await b.settled()
        write_kubeconfig(tmp_path, b.api)
        code, out, err = await berth_beside(["defrag", "--gpus", "8", "--kubeconfig", str(tmp_path / "kubeconfig")])
    assert code == 0, err
    assert "a pod with 8 joined GPUs: there is room now" in out
    assert "PodDisruptionBudgets could not be listed" in out


async def test_the_policy_of_the_berth_that_is_installed_decides(tmp_path: Path) -> None:
    """A label is a level only by the policy; --policy comes first."""
    kubeconfig, policy = ["--kubeconfig", str(tmp_path / "kubeconfig")], tmp_path / "policy.yaml"
    words = ["defrag", "--gpus", "4", "--pods", "2", "--in", "other", *kubeconfig]
    policy.write_text("{}")
    async with berthing({"n1": "dgx1-v100"}) as b:
        store = b.cluster.store
        await b.settled()
        write_kubeconfig(tmp_path, b.api)
        metadata = store["nodes", ("", "n1")]["metadata"]
        labelled = metadata | {"labels": metadata.get("labels", {}) | {"example.com/row": "1"}}
        store.put("nodes", ("", "n1"), store["nodes", ("", "n1")] | {"metadata": labelled})
        key = ("berth-system", "berth-policy")
        installed = {"metadata": {"namespace": key[0], "name": key[1]}}
        without = await berth_beside(words)
        store.put("configmaps", key, installed | {"data": {"policy.yaml": "group_levels: [example.com/row]"}})
        found, by_file = await berth_beside(words), await berth_beside([*words, "--policy", str(policy)])
        store.put("configmaps", key, installed | {"data": {"policy.yaml": "candidates: 0"}})
        _, wrong, _ = await berth_beside(["defrag", "--gpus", "8", *kubeconfig])
    assert "nor one of the policy's group_levels" in without[2]
    assert "those of domains that nodes have: example.com/row" in found[2]
    assert by_file == without
    assert "candidates: must be at least 1" in " ".join(wrong.split())
