"""Explain over real HTTP and offline: causes, the nearest miss, hypothetical changes, and decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import httpx
import orjson
import pytest
import structlog
import yaml
from typer.testing import CliRunner

from extender.base.berth_errors import WireError
from extender.cli.cluster_objects import take_dump
from extender.cli.main import commands
from extender.manifests import hypothetical
from extender.sandbox import write_kubeconfig
from tests.worlds.eventually import eventually
from tests.worlds.explain_worlds import refused, run_pod, why
from tests.worlds.running_berth import berthing, claim, pod

cli = commands()

H100, A100 = "hgx-h100-8", "a100-pcie-8-bridged"
DRIVER = "gpu.nvidia.com"


async def test_near_misses_name_the_claim_whose_devices_are_needed() -> None:
    async with berthing({"n1": H100, "n2": A100}) as b:
        for i in range(2):
            assert await run_pod(b, f"big-{i}", [claim(f"big-{i}", 8)])
        await run_pod(b, "late", [claim("late", 2)])
        found = await why(b, "late")
        assert found["outcome"] == "refused"
        assert found["nodes"] == 2
        assert [(g["code"], g["nodes"]) for g in found["unschedulable"]] == [("IN_USE", 2)]
        assert found["unschedulable"][0]["causes"][0].startswith("gpu-0, gpu-1")
        assert "held by pod default/big-" in found["unschedulable"][0]["causes"][0]
        assert any(
            m.startswith("fits on n1 if gpu-0, gpu-1") and "held by pod default/big-" in m for m in found["misses"]
        ), found["misses"]
        again = await why(b, "late", free="default/big-0")
        assert again["outcome"] == "fits"
        assert again["fitting"] == 1
        gone = await why(b, "late", free="default/big-0", without=again["best"][0]["node"])
        assert gone["outcome"] == "refused"
        assert gone["nodes"] == 1


async def test_a_pod_s_own_hold_is_no_obstacle_and_costs_no_ranking() -> None:
    """Filter holds the last GPUs of the better node for the pod; explained, it has both nodes, and others have one."""
    async with berthing({"n1": H100, "n2": A100, "n3": A100}) as b:
        service = b.app.service
        await run_pod(b, "other", [claim("other", 8)])  # has n1
        for name in ("p", "q"):
            b.cluster.apply(claim(name, 8))
            b.cluster.apply(pod(name, name))
        await b.settled()
        before = await why(b, "p")
        chosen = (await b.filter("p"))["NodeNames"][0]
        assert service.cache.reservations.held_for(
            next(pod.uid for pod in service.cache.store.pods.values() if pod.key.name == "p")
        )
        await b.filter("q")
        evaluations = service.filter_service.rankings.evaluations
        found = await why(b, "p")
        assert service.filter_service.rankings.evaluations - evaluations <= 1, "the cached ranking is used"
        assert before["fitting"] == 2
        assert found["nodes"] == 3
        assert found["best"][0]["node"] == chosen
        assert found["best"][0]["devices"] == before["best"][0]["devices"]
        assert [(g["code"], g["nodes"]) for g in found["unschedulable"]] == [("HELD", 1), ("IN_USE", 1)], (
            "q holds the other"
        )
        assert (await why(b, "q"))["best"][0]["node"] != chosen


async def test_selector_terms_name_the_values_of_devices() -> None:
    async with berthing({"n1": H100, "n2": H100}) as b:
        selector = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].productName == 'H100'"
        await run_pod(b, "p", [claim("p", 1, selector)])
        found = await why(b, "p")
        assert (
            "`device.attributes['gpu.nvidia.com'].productName == 'H100'` matches none of 16 devices; 16 have "
            "'NVIDIA H100 80GB HBM3'" in found["sentence"]
        )
        await run_pod(b, "q", [claim("q", 1, f"device.capacity['{DRIVER}'].memory.compareTo(quantity('90Gi')) >= 0")])
        assert "16 have 79.6Gi" in (await why(b, "q"))["sentence"] or "16 have 8" in (await why(b, "q"))["sentence"]
        await run_pod(b, "r", [claim("r", 1, f"device.attributes['{DRIVER}'].colour == 'green'")])
        assert "`colour` is published by 0 of 16 devices" in (await why(b, "r"))["sentence"]


async def test_a_selector_that_does_not_compile_names_claim_request_and_place() -> None:
    async with berthing({"n1": H100}) as b:
        await run_pod(b, "broken", [claim("broken", 1, "device.driver == 1")])
        found = await why(b, "broken")
        text = found["sentence"]
        assert found["outcome"] == "refused", text
        assert "default/broken" in text, text
        assert "request gpu" in text, text
        assert "1:15" in text, text
        (finding,) = [term for term in found["terms"] if "does not compile" in term]
        assert "request gpu" in finding
        assert "\n" not in finding
        assert await run_pod(b, "fine", [claim("fine", 1)]), "other claims are unaffected"


async def test_too_few_on_one_node_and_no_nvlink_set() -> None:
    async with berthing({"n1": A100, "n2": A100}) as b:
        await run_pod(b, "p", [claim("p", 16)])
        assert any(
            m == "no node has 16 free devices for request gpu; 2 nodes have 8" for m in (await why(b, "p"))["misses"]
        )
        await run_pod(b, "q", [claim("q", 4)], {"berth.dev/topology": "required"})
        assert any(
            m == "no node has 4 free matching GPUs that links join; 2 nodes have 2"
            for m in (await why(b, "q"))["misses"]
        )


async def test_bad_questions_get_exact_answers() -> None:
    async with berthing({"n1": H100}) as b:
        reply = await b.client.get("/v1/explain/default/absent")
        assert reply.status_code == 404
        assert "default/absent" in reply.json()["error"]
        await run_pod(b, "p", [claim("p", 9)])
        reply = await b.client.get("/v1/explain/default/p", params={"without": "n7"})
        assert reply.status_code == 400
        assert "'n7'" in reply.json()["error"]
        for bad, named in (
            (b"{", "unexpected end"),
            (b'{"objects": [], "x": 1}', "x"),
            (b'{"objects": [{"kind": "Service"}]}', "Service"),
        ):
            reply = await b.client.post("/v1/explain", content=bad)
            assert reply.status_code == 400, reply.text
            assert named in reply.json()["error"], reply.text


async def test_explaining_changes_nothing() -> None:
    async with berthing({"n1": H100}) as b:
        await run_pod(b, "a", [claim("a", 8)])
        await run_pod(b, "p", [claim("p", 2)])
        await refused(b, "p", "0/1 nodes are available: 1 in use.")
        await eventually(lambda: b.console.event_recorder.events == 1)
        allocated = b.app.service.cache.allocated_devices
        pools = list(b.app.service.cache.slices.pools.by_pool)
        before = {key: allocated.pool(key) for key in pools}
        writes = b.cluster.store.version
        await why(b, "p", free="default/a")
        assert {key: allocated.pool(key) for key in pools} == before
        assert b.cluster.store.version == writes


JOB = {
    "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"},
    "spec": {"template": {"spec": {
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "four"}],
        "containers": [{"name": "main", "resources": {"claims": [{"name": "gpus"}]}}],
    }}},
}  # fmt: skip
TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "four"},
    "spec": {"spec": claim("x", 4)["spec"]},
}  # fmt: skip


def test_what_if_for_a_job_from_a_server_and_from_a_snapshot(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump_all([JOB, TEMPLATE]))
    cluster_dump = tmp_path / "cluster_dump.json"
    answers: list[dict] = []

    async def body() -> None:
        async with berthing({"n1": H100, "n2": A100}) as b:
            hopper = f"device.attributes['{DRIVER}'].architecture == 'Hopper'"
            assert await run_pod(b, "a", [claim("a", 6, hopper)]) == "n1"
            assert not await run_pod(b, "stuck", [claim("stuck", 8, hopper)])
            cluster_dump.write_bytes(await take_dump(write_kubeconfig(tmp_path, b.api)))
            reply = await b.client.post("/v1/explain", content=orjson.dumps({"objects": [JOB, TEMPLATE]}))
            answers.extend(reply.json())

    asyncio.run(body())
    assert answers[0]["outcome"] == "fits", answers
    assert answers[0]["best"][0]["node"] == "n2", answers
    offline = CliRunner().invoke(cli, ["explain", "-f", str(job), "--snapshot", str(cluster_dump), "--output", "json"])
    assert offline.exit_code == 0, offline.output
    assert orjson.loads(offline.output) == answers[0]
    held = CliRunner().invoke(cli, ["explain", "-f", str(job), "--snapshot", str(cluster_dump), "--without", "n2"])
    assert held.exit_code == 1
    assert "no node has 4 free devices for request gpus; 1 node has 2" in " ".join(held.output.split()).replace(
        "request gpu;", "request gpus;"
    )
    stuck = ["explain", "pod", "default/stuck", "--snapshot", str(cluster_dump)]
    table = CliRunner(env={"COLUMNS": "200"}).invoke(cli, stuck).output
    assert "n1: gpu-0, gpu-1, gpu-2, gpu-3 and 2 more, held by pod default/a" in table, (
        "a device is beside its own node"
    )
    freed = CliRunner().invoke(cli, [*stuck, "--free", "default/a"])
    assert freed.exit_code == 0
    assert "fits on" in freed.output


async def test_a_pod_of_another_scheduler_is_told_before_its_nodes() -> None:
    async with berthing({"n1": H100}) as b:
        await b.create(claim("c", 2), pod("typo", "c", schedulerName="berth-schedular"))
        advice = "Berth does not place it: write schedulerName: berth-scheduler. With it, pod default/"
        assert (await why(b, "typo"))["sentence"].startswith(
            f"pod default/typo names scheduler berth-schedular; {advice}typo fits on 1 of 1 node"
        )
        reply = await b.client.post("/v1/explain", content=orjson.dumps({"objects": [JOB, TEMPLATE]}))
        sentence = reply.json()[0]["sentence"]
        assert " names no scheduler; " in sentence, sentence
        assert advice in sentence


async def test_a_missing_template_is_named_with_the_command_that_shows_it() -> None:
    async with berthing({"n1": H100}) as b:
        await b.create(pod("p", resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "hh"}]))
        assert (await why(b, "p"))["sentence"] == (
            "pod default/p: claim gpu is not created from template hh yet; if it stays so, check that the template "
            "exists: kubectl -n default get resourceclaimtemplate hh"
        )


def test_a_pod_of_a_file_needs_its_template_and_the_error_says_where_it_is() -> None:
    """The console has no right to read templates."""
    claims = [{"name": "gpu", "resourceClaimTemplateName": "hh"}]
    with pytest.raises(WireError, match="output of: kubectl -n default get resourceclaimtemplate hh -o yaml"):
        hypothetical([pod("p", resourceClaims=claims)])


def test_a_server_that_is_not_there_is_named() -> None:
    found = CliRunner().invoke(cli, ["explain", "default/p", "--server", "http://127.0.0.1:9"])
    assert found.exit_code != 0
    assert "http://127.0.0.1:9" in str(found.exception)
    assert not isinstance(found.exception, httpx.HTTPError)


async def test_one_event_when_the_reason_changes() -> None:
    async with berthing({"n1": H100}) as b:
        await run_pod(b, "a", [claim("a", 8)])
        await run_pod(b, "p", [claim("p", 2)])
        await refused(b, "p", "0/1 nodes are available: 1 in use.")
        await eventually(lambda: len(b.cluster.store.all("events")) == 1)
        event = b.cluster.store.all("events")[0]
        assert event["regarding"]["name"] == "p"
        assert event["reason"] == "NotPlaced"
        assert "matching devices are in use" in event["note"]
        assert "held by pod default/a" in event["note"]
        await refused(b, "p", "0/2 nodes are available: 2 in use.")
        await run_pod(b, "q", [claim("q", 2)])
        await refused(b, "q", "0/1 nodes are available: 1 in use.")
        await eventually(lambda: len(b.cluster.store.all("events")) > 1)
        regarded = [event["regarding"]["name"] for event in b.cluster.store.all("events")]
        assert sorted(regarded) == ["p", "q"], "events come in order: nothing about p stands before that about q"


async def test_a_bare_name_must_be_unique() -> None:
    async with berthing({"n1": H100}) as b:
        await run_pod(b, "p", [claim("p", 9)])

        def ask(name: str) -> Awaitable[httpx.Response]:
            return b.client.post("/v1/explain", content=orjson.dumps({"pod": name}))

        assert (await ask("p")).json()[0]["pod"] == "default/p"
        b.cluster.apply({"kind": "Namespace", "metadata": {"name": "other"}})
        twin = pod("p", "p")
        twin["metadata"]["namespace"] = "other"
        await b.create(twin)
        reply = await ask("p")
        assert reply.status_code == 404
        assert reply.json()["error"] == "pod name 'p' is ambiguous: default/p, other/p"
        assert (await ask("other/p")).status_code == 200


async def test_narrate_describes_the_search_on_one_node_line_by_line() -> None:
    async with berthing({"n1": H100}) as b:
        await run_pod(b, "first", [claim("first", 6)])
        await run_pod(b, "late", [claim("late", 4, f"device.driver == '{DRIVER}'")])
        found = (await b.client.post("/v1/explain", json={"pod": "default/late", "narrate": "n1"})).json()[0]
        narration = found["narration"]
        assert narration[0] == "node n1: 16 devices"
        assert narration[1].startswith("request gpu: selectors match gpu-0, gpu-1")
        assert {
            "request gpu: in use gpu-0, gpu-1, gpu-2, gpu-3, gpu-4, gpu-5",
            "request gpu: left gpu-6, gpu-7",
        } <= set(narration)
        assert narration[-1] == "unschedulable: matching devices are in use for request gpu"
        fits = (
            await b.client.post("/v1/explain", json={"pod": "default/late", "free": ["default/first"], "narrate": "n1"})
        ).json()[0]
        assert any(line.startswith("chosen: ") for line in fits["narration"])
        assert fits["narration"][-1].startswith("score ")
        unknown = await b.client.post("/v1/explain", json={"pod": "default/late", "narrate": "n9"})
        assert unknown.status_code == 400
        assert "narrate: node 'n9' is not known" in unknown.text


async def test_one_line_per_decision() -> None:
    with structlog.testing.capture_logs() as lines:
        async with berthing({"n1": H100}) as b:
            await run_pod(b, "p", [claim("p", 2)])
            await run_pod(b, "q", [claim("q", 7)])
            await refused(b, "q", "0/1 nodes are available: 1 in use.")
            await eventually(lambda: any(line["event"] == "not placed" for line in lines))
    (bound,) = [line for line in lines if line["event"] == "bound"]
    assert (bound["pod"], bound["node"], bound["claims"], len(bound["devices"])) == (
        "default/p",
        "n1",
        ["default/p"],
        2,
    )
    assert bound["seconds"] >= 0
    assert bound["generation"] > 0
    (line,) = [line for line in lines if line["event"] == "not placed"]
    assert line["pod"] == "default/q"
    assert line["because"].startswith("pod default/q fits nowhere")


async def test_extended_resources_that_no_node_has_are_explained() -> None:
    """The request for them differs by node, so the pod requirements themselves do not list it."""
    async with berthing({"n1": "t4-4"}) as b:
        resources = {"limits": {"nvidia.com/gpu": "9"}, "requests": {"nvidia.com/gpu": "9"}}
        await b.create(pod("many", containers=[{"name": "main", "image": "pause", "resources": resources}]))
        assert not (await b.filter("many"))["NodeNames"]
        reply = await b.client.get("/v1/explain/default/many")
        assert reply.status_code == 200, reply.text
        assert reply.json()["outcome"] == "refused", reply.text
