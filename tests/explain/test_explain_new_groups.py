"""`berth explain -f` plans the gangs of files before their pods exist, on a snapshot file and in a console."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from extender.sandbox import carried_machines
from extender.sandbox.machines import gpu_slice, node_object
from extender.sandbox.sandbox_cluster import GPU_CLASS
from tests.worlds.commands import berth, berth_beside
from tests.worlds.gang_pods import NODES, create_gang
from tests.worlds.gang_worlds import CLIQUE, GPU, TRAY
from tests.worlds.group_trees import composite
from tests.worlds.group_trees import pod_group as pod_group_of
from tests.worlds.running_berth import berthing
from tests.worlds.running_berth import claim as claim_object

Json = dict[str, Any]
MIN, TOPOLOGY = "berth.dev/group-min", "berth.dev/group-topology"
CORE = {"schedulingGroup": {"podGroupName": "pg"}}
TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "tray"},
    "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": GPU, "count": 4}}]}}},
}


@pytest.fixture
def fleet(tmp_path: Path) -> list[Json]:
    """Four trays of four GPUs in each of two cliques."""
    kind, found = carried_machines()[TRAY], [GPU_CLASS]
    for i in range(8):
        labels = {CLIQUE: f"c{i // 4}", "kubernetes.io/hostname": f"n{i}"}
        found += [node_object(f"n{i}", kind, labels), gpu_slice(f"n{i}", kind)]
    return found


def template(notes: Json, **spec: Any) -> Json:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "tray"}]
    containers = [{"name": "main", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}]
    made = {"schedulerName": "berth-scheduler", "containers": containers, "resourceClaims": claims, **spec}
    return {"metadata": {"annotations": notes}, "spec": made}


def workload(kind: str, version: str, **spec: Any) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "llm"}, "spec": spec}


def job(notes: Json, parallelism: int, **spec: Any) -> Json:
    return workload("Job", "batch/v1", parallelism=parallelism, template=template(notes, **spec))


def job_set(workers: int, **notes: str) -> Json:
    leader, worker = (template({MIN: str(workers + 1), **notes}) for _ in range(2))
    jobs = [
        {"name": "lead", "template": {"spec": {"template": leader}}},
        {"name": "work", "replicas": workers, "template": {"spec": {"template": worker}}},
    ]
    return workload("JobSet", "jobset.x-k8s.io/v1alpha2", replicatedJobs=jobs)


def worker_set(size: int, **spec: Any) -> Json:
    inner = {"size": size, "workerTemplate": template({})}
    return workload("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", leaderWorkerTemplate=inner, **spec)


def pod_group(minimum: int) -> Json:
    spec = {"schedulingPolicy": {"gang": {"minCount": minimum}}}
    return {**workload("PodGroup", "scheduling.k8s.io/v1beta1", **spec), "metadata": {"name": "pg"}}


def pods(count: int, **spec: Any) -> list[Json]:
    made = {"apiVersion": "v1", "kind": "Pod", **template({}, **spec)}
    return [{**made, "metadata": {"name": f"p{i}", **made["metadata"]}} for i in range(count)]


def explained(folder: Path, fleet: list[Json], *objects: Json, output: str = "table") -> tuple[int, str]:
    """Exit code and output of `berth explain -f`. Lint's notes and warnings are not part of it."""
    cluster, path = folder / "cluster.yaml", folder / "new.yaml"
    cluster.write_text(yaml.safe_dump_all(fleet))
    path.write_text(yaml.safe_dump_all([TEMPLATE, *objects]))
    code, out, _ = berth(["explain", "-f", str(path), "--snapshot", str(cluster), "--output", output])
    return code, out


def group_of(folder: Path, fleet: list[Json], *objects: Json) -> Json:
    _, out = explained(folder, fleet, *objects, output="json")
    found: Json = orjson.loads(out.splitlines()[0])
    return found


NEW: dict[str, tuple[list[Json], str, int]] = {  # objects, the name of the group, its pods
    "job": ([job({MIN: "4", TOPOLOGY: "required"}, 4)], "llm", 4),
    "job with more pods than its minimum": ([job({MIN: "2", TOPOLOGY: "required"}, 4)], "llm", 4),
    "jobset": ([job_set(3)], "llm", 4),
    "leader worker set": ([worker_set(4)], "llm", 4),
    "pod group": ([pod_group(4), *pods(4, **CORE)], "pg", 4),
    "tree of groups": (
        [
            composite("root", 2, level=CLIQUE),
            *(pod_group_of(f"g{i}", "root", 2) for i in range(2)),
            *pods(2, schedulingGroup={"podGroupName": "g0"}),
            *pods(4, schedulingGroup={"podGroupName": "g1"})[2:],
        ],
        "root",
        4,
    ),
    "pod group of a job": ([pod_group(3), job({}, 4, **CORE)], "pg", 4),
    "deployment": (
        [workload("Deployment", "apps/v1", replicas=4, template=template({"berth.dev/group": "g", MIN: "4"}))],
        "g",
        4,
    ),
}


@pytest.mark.parametrize("name", NEW)
def test_a_gang_that_does_not_exist_yet_is_planned_whole(tmp_path: Path, fleet: list[Json], name: str) -> None:
    objects, group, size = NEW[name]
    code, out = explained(tmp_path, fleet, *objects)
    assert code == 0, out
    place = f"group default/{group} fits: {size} pods in {CLIQUE}=c0"
    assert out.splitlines()[0] == place, out
    assert "in no group" not in out, "all that is true of its pods alone is of no use"
    found = group_of(tmp_path, fleet, *objects)
    assert (found["group"], found["outcome"], found["domain"]) == (f"default/{group}", "fits", "c0")
    assert [one["node"] for one in found["plan"]] == ["n0", "n1", "n2", "n3"]
    assert len({device for one in found["plan"] for device in one["devices"]}) == 4 * size


def test_the_example_of_a_jobset_with_slices(tmp_path: Path, fleet: list[Json]) -> None:
    """Each Job of three workers is in one clique of four trays; the leader takes a GPU of a tray that is left."""
    path = Path(__file__).parents[2] / "examples" / "gangs" / "jobset.yaml"
    assert berth(["lint", str(path)])[0] == 0
    found = group_of(tmp_path, fleet, *yaml.safe_load_all(path.read_text()))
    assert (found["group"], found["outcome"], found["minimum"]) == ("default/train", "fits", 7)
    cliques = [(one["part"], one["pods"], one["domain"]) for one in found["parts"]]
    assert cliques == [("slice 0 of sub-group workers", 3, "c0"), ("slice 1 of sub-group workers", 3, "c1")]


def test_leaders_and_workers_are_members_of_one_gang(tmp_path: Path, fleet: list[Json]) -> None:
    found = group_of(tmp_path, fleet, job_set(3))
    names = [one["pod"] for one in found["plan"]]
    assert names == ["default/llm-lead-0", "default/llm-work-0", "default/llm-work-1", "default/llm-work-2"]


def test_a_new_gang_without_room_names_the_domain_with_most_room_and_a_near_miss(
    tmp_path: Path, fleet: list[Json]
) -> None:
    code, out = explained(tmp_path, fleet, job({MIN: "6", TOPOLOGY: "required"}, 6))
    assert code == 1
    assert "group default/llm does not fit in this fleet: even if all other pods ended" in out
    assert f"the most room would be in {CLIQUE}=c0, for 4 of 6 pods" in out
    assert "it fits with topology preferred instead of required, across the cluster" in out
    assert "  or: it fits with a minimum of 4 instead of 6 members" in out
    assert "if it were in no group: pod default/llm fits on" in out
    rows = explained(tmp_path, fleet, job({MIN: "6", TOPOLOGY: "required"}, 6), output="json")[1].splitlines()
    group, alone = map(orjson.loads, rows)
    assert (group["outcome"], group["room"], group["room_if_empty"]) == ("refused", 4, 4)
    assert (alone["pod"], alone["outcome"], alone["gang"]) == ("default/llm", "refused", "default/llm")


def test_node_selectors_that_allow_too_few_nodes_are_named(tmp_path: Path, fleet: list[Json]) -> None:
    found = group_of(tmp_path, fleet, job({MIN: "4"}, 4, nodeSelector={CLIQUE: "absent"}))
    assert found["sentence"] == (
        "group default/llm does not fit in this fleet: even if all other pods ended, "
        "no node that it may use would have room for one of its pods; "
        "node selector, node affinity, taints and cordons leave 0 of 8 nodes to pod default/llm-0 "
        "(node selector or node affinity 8); "
        "now no node that it may use has room even for one of them"
    )


def test_obstacles_of_a_new_gang(tmp_path: Path, fleet: list[Json]) -> None:
    for node in ("n0", "n4"):
        obj = claim_object(f"{node}-gpus", 1)
        obj |= {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
        results = [{"request": "gpu", "driver": GPU, "pool": node, "device": "gpu-0"}]
        consumers = [{"resource": "pods", "name": f"on-{node}", "uid": node}]
        obj["metadata"]["uid"] = node
        obj["status"] = {"allocation": {"devices": {"results": results}}, "reservedFor": consumers}
        fleet = [*fleet, obj]
    found = group_of(tmp_path, fleet, job({MIN: "4", TOPOLOGY: "required"}, 4))
    assert (found["outcome"], found["room"], found["room_if_empty"]) == ("refused", 3, 4)
    assert f"fits in {CLIQUE}=c0 without default/on-n0 (1 device on n0)" in [m["sentence"] for m in found["misses"]]
    assert found["holders"][0]["pods"] == ["default/on-n0"]


def test_the_groups_of_new_pods_may_be_in_the_cluster_alone(tmp_path: Path, fleet: list[Json]) -> None:
    groups = [composite("root", 2, level=CLIQUE), *(pod_group_of(f"g{i}", "root", 2) for i in range(2))]
    new = pods(4, schedulingGroup={"podGroupName": "g1"})
    found = group_of(tmp_path, [*fleet, *groups], *new)
    assert found["sentence"] == "group default/root waits for pods of sub-group g0: it needs at least 2"
    new[:2] = pods(2, schedulingGroup={"podGroupName": "g0"})
    assert group_of(tmp_path, [*fleet, *groups], *new)["outcome"] == "fits"


INCOMPLETE: dict[str, tuple[list[Json], str]] = {
    "too few pods": ([pod_group(4), *pods(2, **CORE)], "group default/pg waits for 2 pods: 2 of at least 4 exist"),
    "no root": (
        [pod_group_of("pg", "root", 2), *pods(2, **CORE)],
        "group default/root waits for CompositePodGroup root, which does not exist",
    ),
    "no PodGroup": (pods(2, **CORE), "group default/pg waits for PodGroup pg, which does not exist"),
    "a minimum of one": (
        [{**pods(1)[0], "metadata": {"name": "p0", "annotations": {"berth.dev/group": "g", MIN: "1"}}}],
        "group default/g is no gang: its minimum is 1, and a gang has at least 2, so each pod is placed alone",
    ),
}


@pytest.mark.parametrize("name", INCOMPLETE)
def test_a_new_group_that_has_no_plan_says_why(tmp_path: Path, fleet: list[Json], name: str) -> None:
    objects, sentence = INCOMPLETE[name]
    found = group_of(tmp_path, fleet, *objects)
    assert found["sentence"] == sentence


def test_five_thousand_members_of_a_small_minimum_are_planned_in_part(tmp_path: Path, fleet: list[Json]) -> None:
    found = group_of(tmp_path, fleet, job({MIN: "4"}, 5000))
    assert (found["outcome"], len(found["plan"])) == ("fits", 4)
    assert found["sentence"].endswith("of its 5000 pods, Berth plans 400 together and places the others one by one")


def test_pods_of_another_scheduler_are_planned_and_told_so(tmp_path: Path, fleet: list[Json]) -> None:
    """Before a move to Berth, manifests name no scheduler."""
    found = group_of(tmp_path, fleet, job({MIN: "4"}, 4, schedulerName=""))
    assert found["outcome"] == "fits"
    assert found["sentence"].endswith("Berth places its pods only with schedulerName berth-scheduler, which they lack")


def test_a_workload_of_unknown_size_is_planned_with_its_minimum(tmp_path: Path, fleet: list[Json]) -> None:
    specs = {role: {"template": template({"berth.dev/group": "g", MIN: "4"})} for role in ("Master", "Worker")}
    found = group_of(tmp_path, fleet, workload("PyTorchJob", "kubeflow.org/v1", specs=specs))
    assert [one["pod"] for one in found["plan"]] == [
        f"default/llm-{role}-{i}" for role, i in ((0, 0), (1, 0), (1, 1), (1, 2))
    ]
    assert found["sentence"].endswith("the manifests do not say how many pods it gets: 4 are assumed")


def test_each_replica_of_a_leader_worker_set_is_such_a_group(tmp_path: Path, fleet: list[Json]) -> None:
    found = group_of(tmp_path, fleet, worker_set(4, replicas=3))
    assert found["sentence"].endswith("the manifests create 3 such groups: this is the plan of one")


def test_the_groups_of_one_file_are_explained_one_by_one(tmp_path: Path, fleet: list[Json]) -> None:
    other = job({MIN: "4"}, 4)
    other["metadata"] = {"name": "other"}
    code, out = explained(tmp_path, fleet, job({MIN: "4"}, 4), other)
    assert code == 0
    assert out.startswith("Each group is explained as if the others did not exist.\n")
    assert "group default/llm fits" in out
    assert "group default/other fits" in out


async def test_a_console_plans_a_new_gang_beside_a_group_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / "new.yaml"
    new = [
        {**one, "metadata": {"name": one["metadata"]["name"], "annotations": {"berth.dev/group": "job", MIN: "2"}}}
        for one in pods(2)
    ]
    path.write_text(yaml.safe_dump_all([TEMPLATE, *new]))
    async with berthing(NODES) as b:
        url = str(b.client.base_url)
        code, out, _ = await berth_beside(["explain", "-f", str(path), "--server", url])
        assert code == 0, out
        assert "group default/job fits: 2 pods" in out
        assert "exists" not in out
        await create_gang(b, 3)
        code, out, _ = await berth_beside(["explain", "-f", str(path), "--server", url])
        assert code == 0, out
        assert "the cluster has a group default/job already" in out
        reply = await b.client.post("/v1/explain", json={"objects": [TEMPLATE, new[0], new[0]]})
        assert reply.status_code == 400
        assert "two pods of group default/job have the name p0" in reply.json()["error"]
        reply = await b.client.post("/v1/explain", json={"objects": [TEMPLATE, job({MIN: "2"}, 0)]})
        assert reply.json()[0]["sentence"] == "group default/llm has no pods: the manifests create none"
