"""`berth lint` recognises groups as `berth serve` does, and checks Berth's annotations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.group_trees import composite
from tests.worlds.group_trees import pod_group as pod_group_of
from tests.worlds.lint_worlds import CLEAN, Json, lint

CONTAINERS = [{"name": "m", "image": "i"}]
SIZE, LEVEL = "berth.dev/group-slice-size", "berth.dev/group-slice-level"
MIN, TOPOLOGY, TIMEOUT = "berth.dev/group-min", "berth.dev/group-topology", "berth.dev/group-timeout"


def template(notes: Json | None = None, labels: Json | None = None, **spec: Any) -> Json:
    return {
        "metadata": {"annotations": notes or {}, "labels": labels or {}},
        "spec": {"containers": CONTAINERS, "schedulerName": "berth-scheduler", **spec},
    }


def pod(name: str, notes: Json | None = None, labels: Json | None = None, **spec: Any) -> Json:
    made = template(notes, labels, **spec)
    return {"apiVersion": "v1", "kind": "Pod", **made, "metadata": {"name": name, **made["metadata"]}}


def workload(kind: str, version: str, **spec: Any) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "w"}, "spec": spec}


def job(notes: Json, **spec: Any) -> Json:
    return workload("Job", "batch/v1", template=template(notes), **spec)


def replicated(role: str, replicas: int, notes: Json, **spec: Any) -> Json:
    return {"name": role, "replicas": replicas, "template": {"spec": {"template": template(notes), **spec}}}


def worker_set(size: int, notes: Json, **spec: Any) -> Json:
    inner = {"size": size, "workerTemplate": template(notes)}
    return workload("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", leaderWorkerTemplate=inner, **spec)


def pod_group(version: str, **spec: Any) -> Json:
    return {"apiVersion": version, "kind": "PodGroup", "metadata": {"name": "pg"}, "spec": spec}


PLUGINS = {"scheduling.x-k8s.io/pod-group": "pg"}
WORKER = {
    f"leaderworkerset.sigs.k8s.io/{key}": text
    for key, text in (("group-key", "a"), ("name", "vllm"), ("group-index", "0"))
}
CORE = {"schedulingGroup": {"podGroupName": "pg"}}
GANG = {"berth.dev/group": "g", MIN: "2"}
RACK_OR_MORE = "topology.kubernetes.io/spine"
TREE = [
    *(pod_group_of(f"g{i}", "root", 2) for i in range(2)),
    *(pod(f"p{i}", schedulingGroup={"podGroupName": f"g{i // 2}"}) for i in range(4)),
]
TWO = [pod("a", GANG), pod("b", GANG)]
CASES: dict[str, tuple[list[Json], int, list[str]]] = {  # objects, exit code, what the findings say
    "good": (TWO, 0, []),
    "annotation misspelt": (
        [pod("a", {"berth.dev/grup": "g"})], 1,
        ["Pod a, metadata.annotations: Berth knows no annotation berth.dev/grup", "did you mean berth.dev/group?"],
    ),
    "annotation of an example": ([pod("a", {"berth.dev/expect-node": "n"})], 0, []),
    "topology": (
        [pod("a", {**GANG, TOPOLOGY: "requird"})], 1,
        ["berth.dev/group-topology: 'requird' is not one of required, preferred, none"],
    ),
    "timeout": ([pod("a", {**GANG, TIMEOUT: "5x"})], 1, ["berth.dev/group-timeout: '5x' is not a duration"]),
    "minimum": ([pod("a", {**GANG, MIN: "four"})], 1, ["berth.dev/group-min: 'four' is not a number from 1"]),
    "no group": ([pod("a", {MIN: "4"})], 1, ["berth.dev/group-min: the pod names no group, as berth.dev/group does"]),
    "label": ([pod("a", labels={"berth.dev/group": "g"})], 1, ["Berth reads berth.dev/group as an annotation"]),
    "annotation of the job": (
        [{**job({MIN: "2"}, parallelism=2), "metadata": {"name": "w", "annotations": {MIN: "2"}}}], 1,
        ["Job w, metadata.annotations: berth.dev/group-min has no effect here",
         "move it to spec.template.metadata.annotations"],
    ),
    "other annotations": (
        [workload("Deployment", "apps/v1", template=template({"berth.dev/topology": "always"}))], 1,
        ["Deployment w, spec.template.metadata.annotations: berth.dev/topology: 'always' is not one of"],
    ),
    "bandwidth and memory": (
        [pod("a", {"berth.dev/min-bandwidth-gbps": "fast", "berth.dev/expected-memory": "60 GB"})], 1,
        ["berth.dev/min-bandwidth-gbps: 'fast' is not a number of GB/s",
         "berth.dev/expected-memory: '60 GB' is not an amount of memory such as 60Gi"],
    ),
    "disagreement": (
        [*TWO, pod("c", {**GANG, MIN: "3"})], 1,
        ["the pods of group g disagree about their minimum (berth.dev/group-min): default/a has 2, default/c has 3"],
    ),
    "a level that does not exist": (
        [pod(name, {**GANG, "berth.dev/group-required": "row"}) for name in "ab"], 0,
        ["Pod a, metadata.annotations: berth.dev/group-required: 'row' is no level: write node or",
         "this check knows only those of the default policy"],
    ),
    "a preferred level that is not nearer than the required one": (
        [pod(name, {**GANG, "berth.dev/group-required": "clique", "berth.dev/group-preferred": "rack"})
         for name in "ab"], 0,
        [("Pod a, metadata.annotations: berth.dev/group-preferred: topology.kubernetes.io/rack has no effect: "
         "the group must be in one domain of nvidia.com/gpu.clique")],
    ),
    "rack required and clique preferred": (
        [pod(name, {**GANG, "berth.dev/group-required": "rack", "berth.dev/group-preferred": "clique"})
         for name in "ab"], 0, [],
    ),
    "levels of members that disagree": (
        [pod("a", {**GANG, "berth.dev/group-required": "rack"}), pod("b", GANG)], 1,
        [("the pods of group g disagree about their required level: default/a has rack, "
         "default/b has none")],
    ),
    "a level that no label can be": (
        [pod("a", {**GANG, "berth.dev/group-preferred": "a rack"})], 1,
        ["berth.dev/group-preferred: 'a rack' is neither a node label nor the name of a level"],
    ),
    "slices": ([pod(name, {**GANG, SIZE: "2", LEVEL: "rack"}) for name in "ab"], 0, []),
    "slices that do not divide the minimum": (
        [pod(name, {**GANG, SIZE: "3", LEVEL: "rack"}) for name in "ab"], 1,
        ["Pod a, metadata.annotations: berth.dev/group-slice-size: 3 does not divide the 2 pods of group default/g"],
    ),
    "a level of slices that does not exist": (
        [pod(name, {**GANG, SIZE: "2", LEVEL: "row"}) for name in "ab"], 0,
        ["Pod a, metadata.annotations: berth.dev/group-slice-level: 'row' is no level: write node or",
         "this check knows only those of the default policy"],
    ),
    "slices of a level that is not nearer than that of the group": (
        [pod(name, {**GANG, SIZE: "2", LEVEL: "rack", "berth.dev/group-required": "clique"}) for name in "ab"], 0,
        [("Pod a, metadata.annotations: berth.dev/group-slice-level: topology.kubernetes.io/rack has no effect: "
         "the pods must be in one domain of nvidia.com/gpu.clique")],
    ),
    "annotations of berth and of kueue": (
        [pod(name, {**GANG, SIZE: "2", LEVEL: "rack", "kueue.x-k8s.io/podset-required-topology": "zone"})
         for name in "ab"], 0,
        ["kueue.x-k8s.io/podset-required-topology has no effect on Berth: berth.dev/group-slice-size takes precedence"],
    ),
    "a size without a level": (
        [pod("a", {**GANG, SIZE: "2"})], 1, ["berth.dev/group-slice-size: has no effect without"],
    ),
    "sub-groups of a JobSet": (
        [workload("JobSet", "jobset.x-k8s.io/v1alpha2", replicatedJobs=[
            replicated("lead", 1, {MIN: "5", "berth.dev/subgroup-required": "node"}),
            replicated("work", 2, {MIN: "5", SIZE: "2", LEVEL: "rack"}, parallelism=2)])], 0, [],
    ),
    "slices that do not divide a replicated job": (
        [workload("JobSet", "jobset.x-k8s.io/v1alpha2", replicatedJobs=[
            replicated("lead", 1, {MIN: "4"}),
            replicated("work", 1, {MIN: "4", SIZE: "2", LEVEL: "rack"}, parallelism=3)])], 1,
        ["berth.dev/group-slice-size: 2 does not divide the 3 pods of sub-group work of group default/w"],
    ),
    "a replicated job with fewer pods than its minimum": (
        [workload("JobSet", "jobset.x-k8s.io/v1alpha2", replicatedJobs=[
            replicated("lead", 1, {MIN: "2", "berth.dev/subgroup-min": "2"}), replicated("work", 1, {MIN: "2"})])], 1,
        ["berth.dev/subgroup-min: sub-group lead of group default/w needs 2 pods, and these files create 1"],
    ),
    "minimums of sub-groups above that of the group": (
        [pod("a", {**GANG, "berth.dev/subgroup": "x", "berth.dev/subgroup-min": "2"}),
         pod("b", {**GANG, "berth.dev/subgroup": "y", "berth.dev/subgroup-min": "1"})], 1,
        ["the minimums of the sub-groups of group default/g are 3 pods together, its own is 2",
         "set berth.dev/group-min to 3"],
    ),
    "no pods in a JobSet": (
        [workload("JobSet", "jobset.x-k8s.io/v1alpha2", replicatedJob=[replicated("lead", 1, {})])], 1,
        ["JobSet w, spec: has no pod template with containers"],
    ),
    "disagreement of a JobSet": (
        [workload("JobSet", "jobset.x-k8s.io/v1alpha2", replicatedJobs=[
            replicated("lead", 1, {MIN: "3"}), replicated("work", 1, {MIN: "2"}, parallelism=2)])], 1,
        ["JobSet w: the pods of group w disagree about", "default/w-lead has 3, default/w-work has 2"],
    ),
    "schedulers": (
        [*TWO, pod("c", GANG, schedulerName="other")], 1,
        ["the pods of group default/g name different schedulers: berth-scheduler, other"],
    ),
    "too few pods": (
        [pod("a", {**GANG, MIN: "4"})], 0, ["warning: ", "group default/g needs 4 pods, and these files create 1"]
    ),
    "too few pods of a Job": (
        [job({MIN: "4"}, parallelism=8, completions=3)], 1,
        ["Job w: group default/w needs 4 pods, and these files create 3: none of them will be placed"],
    ),
    "enough pods of a Job": ([job({MIN: "4"}, parallelism=4)], 0, []),
    "too few pods of a JobSet": (
        [workload("JobSet", "jobset.x-k8s.io/v1alpha2", replicatedJobs=[
            replicated("lead", 1, {MIN: "6"}), replicated("work", 2, {MIN: "6"}, parallelism=2)])], 1,
        ["group default/w needs 6 pods, and these files create 5"],
    ),
    "too few pods of a LeaderWorkerSet": (
        [worker_set(4, {MIN: "5"}, replicas=3)], 1, ["group default/w needs 5 pods, and these files create 4"]
    ),
    "a LeaderWorkerSet": ([worker_set(4, {}, replicas=3)], 0, []),
    "LeaderReady": (
        [worker_set(4, {MIN: "4"}, startupPolicy="LeaderReady")], 0,
        ["warning: ", "group default/w is no gang: with startupPolicy LeaderReady"],
    ),
    "too many pods": (
        [job({MIN: "500"}, parallelism=500)], 1,
        ["group default/w has a minimum of 500; Berth binds at most 400 pods together"],
    ),
    "a DaemonSet": ([workload("DaemonSet", "apps/v1", template=template(GANG))], 0, []),
    "one pod": ([pod("a", {**GANG, MIN: "1"})], 0, ["warning: ", "group default/g has a minimum of 1: it is no gang"]),
    "PodGroup of the plugins": (
        [pod("a", labels=PLUGINS), pod_group("scheduling.x-k8s.io/v1alpha1", minMember=2)], 0,
        ["warning: ", "group default/pg needs 2 pods, and these files create 1"],
    ),
    "core PodGroup": (
        [pod("a", **CORE), pod_group("scheduling.k8s.io/v1beta1", schedulingPolicy={"gang": {"minCount": 3}})], 0,
        ["group default/pg needs 3 pods, and these files create 1"],
    ),
    "no PodGroup": (
        [pod("a", labels=PLUGINS)], 0,
        ["note: ", "PodGroup default/pg is not in these files",
         "create it: without it the pods wait, or are placed alone if",
         "the cluster has no PodGroups of scheduling.x-k8s.io"],
    ),
    "no LeaderWorkerSet": (
        [pod("a", {"leaderworkerset.sigs.k8s.io/size": "2"}, WORKER)], 0,
        ["note: ", "LeaderWorkerSet default/vllm is not in these files, so group default/vllm-0 is no gang"],
    ),
    "PodGroup of another way": (
        [pod("a", **CORE), pod_group("scheduling.x-k8s.io/v1alpha1", minMember=2)], 0,
        ["note: ", "PodGroup default/pg is not in these files"],
    ),
    "a tree of groups": ([composite("root", 2, level="rack"), *TREE], 0, []),
    "a tree without its root": (
        TREE, 0,
        ["note: ", "CompositePodGroup default/root is not in these files",
         "the cluster has no CompositePodGroups of scheduling.k8s.io"],
    ),
    "a tree that lacks a child group": (
        [composite("root", 3), *TREE], 0,
        ["note: ", "child group 3 of CompositePodGroup root is not in these files",
         "create it, or lower minGroupCount: the pods of the whole group wait for it"],
    ),
    "a tree with too few pods": (
        [composite("root", 2), *TREE[:-1]], 0, ["group default/root needs 4 pods, and these files create 3"],
    ),
    "a level that has no effect below another": (
        [composite("root", 2, level="topology.kubernetes.io/rack"), pod_group_of("g0", "root", 2, RACK_OR_MORE),
         *TREE[1:]], 0,
        ["warning: ", f"spec.schedulingConstraints: {RACK_OR_MORE} has no effect"],
    ),
    "a constraint that the policy basic has no use for": (
        [composite("root", level="rack"), *TREE], 0,
        ["warning: ", "CompositePodGroup root, spec.schedulingConstraints: the constraint to rack has no effect"],
    ),
    "a cycle of groups": (
        [composite("root", 2, "root"), *TREE], 1, ["CompositePodGroup root is below itself: root -> root"],
    ),
    "CompositePodGroup with a wrong field": (
        [{**composite("root"), "spec": {"schedulingPolicy": {"gang": {"minGroupCount": "two"}}}}], 1,
        ["CompositePodGroup root, spec.schedulingPolicy.gang.minGroupCount: must be an integer, is 'two'"],
    ),
    "PodGroup with a wrong field": (
        [pod_group("scheduling.x-k8s.io/v1alpha1", minMember="two")], 1,
        ["PodGroup pg, spec.minMember: must be an integer, is 'two'"],
    ),
    "a kind that Berth does not know": (
        [workload("PyTorchJob", "kubeflow.org/v1", specs={"Master": {"template": template({**GANG, MIN: "x"})}})], 1,
        ["PyTorchJob w, spec.specs.Master.template.metadata.annotations: berth.dev/group-min: 'x' is not a number"],
    ),
}  # fmt: skip


def test_an_invalid_member_is_the_only_finding_about_its_group(tmp_path: Path) -> None:
    code, out, *_ = lint(tmp_path, pod("a", GANG), pod("b", {**GANG, MIN: "many"}))
    assert code == 1
    assert "'many' is not a number" in out
    assert out.endswith("\n1 finding\n"), "not that one pod is missing"


@pytest.mark.parametrize(
    ("notes", "problem"),
    [
        ({SIZE: "0", LEVEL: "rack"}, "'0' is not 1 to 3 numbers of pods"),
        ({SIZE: "2,4", LEVEL: "rack,node"}, "slices of 4 pods do not divide those of 2"),
        ({SIZE: "2", LEVEL: "the rack"}, "'the rack' is neither a node label nor the name of a level"),
        ({"berth.dev/subgroup": "g", "berth.dev/subgroup-min": "1"}, "'g' is the name of the group itself"),
    ],
)
def test_one_fault_of_a_part_is_one_finding(tmp_path: Path, notes: Json, problem: str) -> None:
    """The other annotation of the pair has no fault."""
    _, out, *_ = lint(tmp_path, pod("a", {**GANG, **notes}))
    assert problem in out
    assert out.endswith("\n1 finding\n")


@pytest.mark.parametrize("name", CASES)
def test_groups_and_annotations(tmp_path: Path, name: str) -> None:
    objects, errors, words = CASES[name]
    found, out, *_ = lint(tmp_path, *objects)
    severities = re.findall("^(error|warning|note): ", out, re.MULTILINE)
    assert found == (not {"error", "warning"}.isdisjoint(severities)), out
    assert bool(errors) == ("error" in severities), out
    for part in words:
        assert part in out, out
    assert words or out == CLEAN
