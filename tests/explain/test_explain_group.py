"""`berth explain group` and its route over real HTTP, from a console beside serve and from a snapshot file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson

from extender.cli.cluster_objects import take_dump
from extender.sandbox import write_kubeconfig
from extender.sandbox.apiserver.registry import RESOURCES
from tests.worlds.applications import console, console_application, serve
from tests.worlds.commands import berth_beside
from tests.worlds.eventually import eventually
from tests.worlds.explain_worlds import GROUP_PATH as PATH
from tests.worlds.explain_worlds import group_explained as explained
from tests.worlds.explain_worlds import refused
from tests.worlds.gang_pods import NO_ROOM, NODES, change, create_gang, delete, member, reasons
from tests.worlds.gang_worlds import GPU
from tests.worlds.process_worlds import free_port
from tests.worlds.running_berth import TWO_NODES, berthing, claim, cluster_of, pod

Json = dict[str, Any]


async def test_the_life_of_a_gang_as_the_route_tells_it() -> None:
    async with berthing(NODES) as b:
        b.cluster.apply(claim("big", 8))
        b.cluster.apply(pod("big", "big"))
        await create_gang(b, 2, minimum=3)
        node = (await b.filter("big"))["NodeNames"][0]
        assert await b.bind("big", node) == ""
        (reason,) = await reasons(b, "p0")
        await refused(b, "p0", reason)
        found = await explained(b)
        assert found["outcome"] == "waiting"
        assert found["sentence"] == "group default/job waits for 1 pod: 2 of at least 3 exist"
        assert found["members"][0]["reason"] == "waits until at least 3 pods of group job and their claims exist"
        assert (found["since"], found["since_event"]) == (found["members"][0]["since"], "the first pod exists")

        member(b, "p2")
        await b.settled()
        assert await reasons(b, "p2") == {NO_ROOM}
        found = await explained(b)
        assert found["outcome"] == "refused"
        assert (found["minimum"], found["missing"], found["room"]) == (3, 3, 2)
        assert [miss["sentence"] for miss in found["misses"]] == [
            "fits with a minimum of 2 instead of 3 members",
            f"fits across the cluster without default/big (8 devices on {node})",
        ]
        assert [(one["node"], one["pods"]) for one in found["holders"]] == [(node, ["default/big"])]
        assert (await explained(b, free="default/big"))["outcome"] == "fits"
        gone = await explained(b, without=node)
        assert (gone["outcome"], gone["holders"]) == ("refused", [])
        assert (await b.client.get("/v1/explain/default/p0")).json()["gang"] == "default/job"
        assert (await b.client.get("/v1/explain/default/big")).json().get("gang", "") == ""

        delete(b, "pods", "big")
        delete(b, "resourceclaims", "big")
        await b.settled()
        assert (await explained(b))["outcome"] == "fits"


async def test_unknown_groups_and_bad_questions_get_exact_answers() -> None:
    async with berthing(NODES) as b:
        reply = await b.client.get("/v1/explain/group/default/absent")
        assert reply.status_code == 404
        wanted = (
            "no pod that waits, and no claim with devices, belongs to a group default/absent; "
            "the pods of a Job or a JobSet are a group only with the annotation berth.dev/group-min"
        )
        assert reply.json()["error"] == wanted
        member(b, "p0")
        await b.settled()
        reply = await b.client.get(PATH, params={"without": "n7"})
        assert reply.status_code == 400
        assert "'n7'" in reply.json()["error"]


async def test_a_job_without_a_minimum_is_told_that_it_is_no_gang_and_how_it_would_be_one() -> None:
    async with berthing(NODES) as b:
        for i in range(2):
            b.cluster.apply(claim(f"j{i}", 4))
            made = pod(f"j{i}", f"j{i}")
            made["spec"]["schedulingGates"] = [{"name": "g"}] if i else []
            made["metadata"]["labels"] = {
                "batch.kubernetes.io/job-name": "train-lead-0",
                "jobset.sigs.k8s.io/jobset-name": "train",
            }
            b.cluster.apply(made)
        await b.settled()
        for kind, source, name in (
            ("JobSet", "jobset.sigs.k8s.io/jobset-name", "train"),
            ("Job", "batch.kubernetes.io/job-name", "train-lead-0"),
        ):
            (found,) = (await b.client.get(f"/v1/explain/group/default/{name}")).json()
            assert (found["outcome"], found["source"]) == ("no-gang", source)
            assert found["sentence"] == (
                f"{kind} default/{name} is no gang: it has no minimum, so its pods are placed one by one; "
                "the annotation berth.dev/group-min on its pods would make it a gang"
            )
            members = [(one["pod"], one["state"]) for one in found["members"]]
            assert members == [("default/j0", "waiting"), ("default/j1", "gated")]
        url = str(b.client.base_url)
        code, out, _ = await berth_beside(["explain", "group", "default/train", "--server", url])
        assert (code, out.splitlines()[0].startswith("JobSet default/train is no gang")) == (0, True)


async def test_bound_members_without_devices_are_read() -> None:
    """Only such a pod is bound. The console's cache has neither the pod nor a claim of it."""
    cluster, notes = cluster_of(TWO_NODES), {"berth.dev/group": "job", "berth.dev/group-min": "3"}
    cluster.apply(pod("leader", annotations=notes, nodeName="n1"))
    for name in ("p0", "p1"):
        cluster.apply(claim(name, 4))
        cluster.apply(pod(name, name, annotations=notes))
    async with cluster.serving() as api, console(api, free_port()) as people:

        async def both_wait() -> bool:
            reply = await people.get(PATH)
            return reply.status_code == 200 and len(reply.json()[0]["members"]) >= 2

        await eventually(both_wait, "the console sees the members")
        (found,) = (await people.get(PATH)).json()
        assert (found["outcome"], found["bound"], found["missing"]) == ("fits", 1, 2)
        assert {one["state"] for one in found["members"]} == {"bound", "waiting"}
        assert (await people.get("/v1/explain/default/p0")).json()["outcome"] == "fits"
        cluster.api.registry.delete(RESOURCES["", "pods"], ("default", "leader"))
        (found,) = (await people.get(PATH)).json()
        assert found["sentence"] == "group default/job waits for 1 pod: 2 of at least 3 exist"


async def test_bound_members_that_terminate_are_read() -> None:
    """The claims of an earlier gang are all that the console's cache has of its pods. One pod of the new one exists."""
    cluster, notes = cluster_of(TWO_NODES), {"berth.dev/group": "job", "berth.dev/group-min": "2"}

    def create(name: str) -> None:
        cluster.apply(claim(name, 4))
        cluster.apply(pod(name, name, annotations=notes))

    for name in ("p0", "p1"):
        create(name)
    async with cluster.serving() as api, console(api, free_port()) as people, serve(cluster, api) as s:
        nodes = {name: (await s.filter(name))["NodeNames"][0] for name in ("p0", "p1")}
        assert set(await asyncio.gather(*(s.bind(name, node) for name, node in nodes.items()))) == {""}
        for resource in (("", "pods"), ("resource.k8s.io", "resourceclaims")):
            cluster.api.registry.delete(RESOURCES[resource], ("default", "p1"))
        old = cluster.store.get("pods", ("default", "p0"))
        assert old is not None
        ends = {**old["metadata"], "deletionTimestamp": "2026-11-23T23:00:00Z"}
        cluster.store.put("pods", ("default", "p0"), {**old, "metadata": ends})
        create("p2")

        async def incomplete() -> bool:
            (found,) = (await people.get(PATH)).json()
            return found["sentence"] == "group default/job waits for 1 pod: 1 of at least 2 exist"

        await eventually(incomplete, "the pod that terminates does not count")


async def test_a_group_that_runs_counts_no_pod_that_terminates_or_has_ended(tmp_path: Path) -> None:
    """A gang was created again while finalizers keep its old pods and their claims; then one pod of the new one fails.

    The explanation of the console, the row of the group and a snapshot file count the pods that run.
    """
    async with berthing({f"n{i}": "t4-4" for i in range(6)}) as b:
        for name, node in (("old0", "n0"), ("old1", "n1"), ("new0", "n2"), ("new1", "n3"), ("new2", "n4")):
            old = name.startswith("old")
            notes = {"berth.dev/group": "job", "berth.dev/group-min": "4" if old else "2"}
            b.cluster.apply(pod(name, f"{name}-gpus", annotations=notes, nodeName=node))
            b.cluster.apply(claim(f"{name}-gpus", 4))
            results = [{"request": "gpu", "driver": GPU, "pool": node, "device": f"gpu-{i}"} for i in range(4)]
            status = {
                "allocation": {"devices": {"results": results}},
                "reservedFor": [{"resource": "pods", "name": name, "uid": b.pod(name)["metadata"]["uid"]}],
            }
            change(b, name, "status", phase="Failed" if name == "new2" else "Running")
            change(b, name, "metadata", **({"deletionTimestamp": "2026-11-23T23:00:00Z"} if old else {}))
            change(b, f"{name}-gpus", "metadata", "resourceclaims", annotations={"berth.dev/group": "job"})
            change(b, f"{name}-gpus", "status", "resourceclaims", **status)
        await b.settled()
        found = await explained(b)
        runs = "group default/job runs: 2 pods bound across the cluster; its minimum is 2, and no pod waits"
        assert (found["outcome"], found["bound"], found["sentence"]) == ("runs", 2, runs)
        assert [one["pod"] for one in found["members"]] == ["default/new0", "default/new1"]
        assert not b.console.cache.store.bound_members, "nothing is left of the read"
        path = tmp_path / "snapshot.json"
        path.write_bytes(await take_dump(write_kubeconfig(tmp_path, b.api)))
        _, out, _ = await berth_beside(["explain", "group", "default/job", "--snapshot", str(path), "--output", "json"])
        offline = orjson.loads(out)
        assert (offline["sentence"], offline["members"]) == (runs, found["members"])
        (row,) = (await b.client.get("/v1/fleet")).json()["groups"]
        assert (row["group"], row["bound"]) == ("default/job", 2)


async def test_a_pod_that_failed_before_it_had_a_node_is_no_member() -> None:
    async with berthing(NODES) as b:
        for i in range(3):
            member(b, f"p{i}")
        failed = b.pod("p2")
        b.cluster.store.put("pods", ("default", "p2"), {**failed, "status": {"phase": "Failed"}})
        await b.settled()
        found = await explained(b)
        assert found["sentence"] == "group default/job waits for 1 pod: 2 of at least 3 exist"
        assert {one["pod"]: one["state"] for one in found["members"]}["default/p2"] == "deleted"
        assert await reasons(b, "p0") == {"waits until at least 3 pods of group job and their claims exist"}


async def test_the_command(tmp_path: Path) -> None:
    async with berthing(NODES) as b:
        await create_gang(b, 4, topology="none")
        url = str(b.client.base_url)
        code, out, err = await berth_beside(["explain", "group", "default/job", "--server", url])
        assert (code, err) == (1, "")
        assert "group default/job does not fit in this fleet: even if all other pods ended, the most room" in out
        assert "named by berth.dev/group; 0 of at least 4 bound; topology none" in out
        assert "default/p3" in out
        code, out, _ = await berth_beside(["explain", "group", "default/job", "--server", url, "--output", "json"])
        assert code == 1
        assert orjson.loads(out)["misses"][0]["sentence"] == "fits with a minimum of 3 instead of 4 members"
        code, out, _ = await berth_beside(["explain", "pod", "default/p0", "--server", url])
        assert "berth explain group default/job" in out
        code, out, err = await berth_beside(["explain", "group", "default/none", "--server", url])
        assert code == 2
        assert "belongs to a group default/none" in err

        cluster_dump = tmp_path / "snapshot.json"
        cluster_dump.write_bytes(await take_dump(write_kubeconfig(tmp_path, b.api)))
        offline = ["explain", "group", "default/job", "--snapshot", str(cluster_dump)]
        code, out, err = await berth_beside(offline)
        assert (code, err) == (1, "")
        assert "the most room would be across the cluster, for 3 of 4 pods" in out
        code, out, _ = await berth_beside([*offline, "--without", "n0"])
        assert "for 2 of 4 pods" in out
        code, out, _ = await berth_beside(["explain", "pod", "default/p0", "--snapshot", str(cluster_dump)])
        assert code == 1
        assert "pod default/p0 waits with its group: group default/job does not fit in this fleet" in out


async def test_a_snapshot_file_has_the_groups_of_a_console(tmp_path: Path) -> None:
    """The objects and annotations that name a minimum, and what keeps members from nodes or from the group."""
    plugins, kueue = {"scheduling.x-k8s.io/pod-group": "labelled"}, {"kueue.x-k8s.io/pod-group-name": "queued"}
    total = {"kueue.x-k8s.io/pod-group-total-count": "2"}
    async with berthing(NODES) as b:
        kind = {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup"}
        b.cluster.apply({**kind, "metadata": {"name": "labelled", "namespace": "default"}, "spec": {"minMember": 3}})
        for i in range(3):
            b.cluster.apply(claim(f"a{i}", 8))
            made = pod(f"a{i}", f"a{i}", nodeSelector={"kubernetes.io/hostname": f"n{min(i, 1)}"})
            made["metadata"]["labels"] = plugins
            b.cluster.apply(made)
        for i in range(2):
            made = pod(f"b{i}", annotations=total)
            made["spec"]["schedulingGates"] = [{"name": "g"}] if i else []
            made["metadata"]["labels"] = kueue
            b.cluster.apply(made)
        worker = {"spec": {"containers": [{"name": "w", "image": "i", "env": [{"name": "TOKEN", "value": "hidden"}]}]}}
        workers: Json = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
        workers |= {"metadata": {"name": "set", "namespace": "default"}}
        inner = {"size": 3, "workerTemplate": worker}
        b.cluster.apply({**workers, "spec": {"startupPolicy": "LeaderCreated", "leaderWorkerTemplate": inner}})
        labels = {"group-key": "5ba93c9d", "name": "set", "group-index": "0"}
        made = pod("set-0", annotations={"leaderworkerset.sigs.k8s.io/size": "3"})
        made["metadata"]["labels"] = {f"leaderworkerset.sigs.k8s.io/{key}": text for key, text in labels.items()}
        await b.create(made)
        known_objects = b.console.cache.store.group_policies
        names = {"labelled", "set"}
        await eventually(lambda: {key.name for key in known_objects} == names, "the console knows the objects")
        path = tmp_path / "snapshot.json"
        path.write_bytes(await take_dump(write_kubeconfig(tmp_path, b.api)))
        for name, text in (
            ("labelled", "for 2 of 3 pods"),
            ("set-0", "group default/set-0 waits for 2 pods: 1 of at least 3 exist"),
            ("queued", "waits for 1 pod: 1 of at least 2 exist, and 1 more with scheduling gates"),
        ):
            (known,) = (await b.client.get(f"/v1/explain/group/default/{name}")).json()
            words = ["explain", "group", f"default/{name}", "--snapshot", str(path), "--output", "json"]
            _, out, err = await berth_beside(words)
            assert orjson.loads(out)["sentence"] == known["sentence"], err
            assert text in known["sentence"]
        assert "hidden" not in path.read_text(), "templates have environments, too"


async def test_a_name_without_namespace_is_that_of_one_group(tmp_path: Path) -> None:
    async with berthing(NODES) as b:
        await create_gang(b, 2, minimum=3)
        asked = ["--server", str(b.client.base_url)]
        for words in (["group", "job"], ["podgroup/job"], ["group", "job", "-A"]):
            _, out, err = await berth_beside(["explain", *words, *asked])
            assert "group default/job waits for 1 pod: 2 of at least 3 exist" in out, err
        _, _, err = await berth_beside(["explain", "group", "absent", *asked])
        assert "belongs to a group absent;" in err
        other = pod("q", annotations={"berth.dev/group": "job", "berth.dev/group-min": "2"})
        other["metadata"]["namespace"] = "other"
        b.cluster.apply(other)
        await b.settled()
        ambiguous = "berth: group name 'job' is ambiguous: default/job, other/job"
        assert (await berth_beside(["explain", "group", "job", *asked]))[1:] == ("", ambiguous)
        _, out, _ = await berth_beside(["explain", "group", "job", "-n", "other", *asked])
        assert "group other/job waits for 1 pod" in out
        path = tmp_path / "snapshot.json"
        path.write_bytes(await take_dump(write_kubeconfig(tmp_path, b.api)))
        assert (await berth_beside(["explain", "group", "job", "--snapshot", str(path)]))[1:] == ("", ambiguous)


async def test_wrong_words_of_the_command() -> None:
    for words, wanted in (
        (["group"], "must name one group"),
        (["group", "a/b/c"], "must name one group"),
        (["group", "a/b", "c/d"], "must name one group"),
        (["group", "a/b", "--narrate", "n1"], "takes no -f, --policy or --narrate"),
    ):
        code, _, err = await berth_beside(["explain", *words, "--server", "http://127.0.0.1:9"])
        assert code == 2, words
        assert wanted in err, words


async def test_a_console_keeps_no_list_of_changed_groups() -> None:
    """Only serve reads that list; in a console it would grow with every pod that names a group."""
    async with berthing(NODES) as b, console_application(b.api) as other:
        store = other.console.cache.store
        await eventually(lambda: not other.console.informers.not_ready)
        for i in range(3):
            member(b, f"p{i}")
        await eventually(lambda: len(store.pods) == 3, "the console sees the members")
        assert not store.changed_members
        assert not store.resized_groups
