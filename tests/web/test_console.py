"""Serve and console over real HTTP, each with its own watches: the console shows serve's decisions, and serve works
without it.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from extender.cluster import Credentials
from extender.entry.console_process import run as run_console
from extender.entry.listening import Pages
from extender.policy import Policy
from extender.sandbox import Cluster, listening, write_kubeconfig
from tests.worlds.applications import console, serve
from tests.worlds.eventually import answers, eventually, in_background
from tests.worlds.process_starter import start
from tests.worlds.process_worlds import filtered, free_port, process
from tests.worlds.running_berth import TWO_NODES, Serving, berthing, claim, client_at, cluster_of, pod

Json = dict[str, Any]


async def letters(client: httpx.AsyncClient) -> str:
    """The state of every GPU, by the console."""
    return "".join(node["gpus"] for node in (await client.get("/v1/fleet")).json()["nodes"])


async def sees(client: httpx.AsyncClient, wanted: str) -> None:
    """Wait until the console shows these numbers of GPUs by state."""

    async def seen() -> bool:
        return "".join(sorted(await letters(client))) == wanted

    await eventually(seen, f"the console shows {wanted}")


async def explained(client: httpx.AsyncClient, name: str, key: str) -> Json:
    """The explanation of a pod, once it has this field and that is not empty."""

    async def field_of_pod() -> Json | None:
        reply = await client.get(f"/v1/explain/default/{name}")
        return reply.json() if reply.status_code == 200 and reply.json().get(key) else None

    return await eventually(field_of_pod, f"{key} of {name}")


def tried(cluster: Cluster, name: str, message: str) -> None:
    """kube-scheduler could not place the pod."""
    obj = cluster.store["pods", ("default", name)]
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    cluster.store.put("pods", ("default", name), {**obj, "status": {"conditions": [condition]}})


async def test_the_console_sees_the_decisions_of_serve() -> None:
    """By the API server alone: neither process knows an address of the other."""
    cluster, pages = cluster_of(TWO_NODES), free_port()
    async with cluster.serving() as api, console(api, pages) as people, serve(cluster, api) as one:
        for name, count in (("p", 2), ("late", 5)):
            await one.create(claim(name, count), pod(name, name))
        node = (await one.filter("p"))["NodeNames"][0]
        assert not (await one.filter("late"))["NodeNames"]
        why = "0/2 nodes are available: 2 too few matching devices"
        tried(cluster, "late", why)
        assert await one.bind("p", node) == ""
        await sees(people, "ffffffuu")
        found = await explained(people, "p", "decision")
        assert found["outcome"] == "bound"
        assert found["decision"]["chosen"]["node"] == node
        assert found["decision"]["runner_up"] in {"n1", "n2"} - {node}
        assert found["decision"]["chosen"]["parts"]
        assert len(found["decision"]["chosen"]["devices"]) == 2

        async def decided() -> Json | None:
            fleet = (await people.get("/v1/fleet")).json()
            return fleet if fleet["decisions"] and fleet["pending"][0]["sentence"] == why else None

        fleet = await eventually(decided, "the page has the decision and the reason")
        assert [one["pod"] for one in fleet["decisions"]] == ["default/p"]
        assert fleet["decisions"][0]["devices"] == 2
        assert fleet["remembered_since"]
        assert [waits["pod"] for waits in fleet["pending"]] == ["default/late"]
        assert (await explained(people, "late", "outcome"))["outcome"] == "refused"


async def test_a_restarted_console_explains_earlier_decisions() -> None:
    """From the annotations and claims of bound pods. The list of the page starts again."""
    cluster, pages = cluster_of(TWO_NODES), free_port()
    async with cluster.serving() as api, serve(cluster, api) as one:
        for name in ("p", "q"):
            await one.create(claim(name), pod(name, name))
        await one.create(pod("other", "q", schedulerName="default-scheduler"), pod("no-devices"))
        async with console(api, pages) as people:
            assert await one.bind("p", (await one.filter("p"))["NodeNames"][0]) == ""
            first = await explained(people, "p", "decision")
        async with console(api, pages) as people:
            known = await explained(people, "p", "decision")
            assert known["outcome"] == "bound", known
            assert known["sentence"].startswith("pod default/p was bound to n")
            assert known["decision"]["chosen"] == first["decision"]["chosen"]
            fleet = (await people.get("/v1/fleet")).json()
            assert (fleet["decisions"], fleet["waiting"]) == ([], 1)
            assert fleet["pending"][0]["pod"] == "default/q"
            assert fleet["pending"][0]["sentence"] == "kube-scheduler has not reported an attempt yet"
            unknown = (await people.get("/v1/explain/default/absent")).json()["error"]
            assert unknown == "pod default/absent does not exist"


async def test_the_decision_of_a_deleted_pod_is_not_told_for_a_new_one_of_its_name() -> None:
    cluster, pages = cluster_of(TWO_NODES), free_port()
    async with cluster.serving() as api, serve(cluster, api) as one, console(api, pages) as people:
        await one.create(claim("p"), pod("p", "p"))
        assert await one.bind("p", (await one.filter("p"))["NodeNames"][0]) == ""
        await explained(people, "p", "decision")
        for kind in ("pods", "resourceclaims"):
            cluster.store.remove(kind, ("default", "p"))
        cluster.apply(claim("p", 9))
        cluster.apply(pod("p", "p"))

        async def waits() -> bool:
            found = (await people.get("/v1/explain/default/p")).json()
            return found.get("outcome") == "refused" and "decision" not in found

        await eventually(waits, "the new pod waits")


async def test_the_policy_keeps_its_fields() -> None:
    """`berth policy status` and others read them."""
    cluster, pages = cluster_of(TWO_NODES), free_port()
    async with cluster.serving() as api, console(api, pages) as people:
        status = (await people.get("/v1/policy")).json()
        assert set(status) == {"generation", "digest", "problem", "policy", "unmatched_products"}
        assert status["policy"] == Policy().model_dump(mode="json")


async def test_two_processes(tmp_path: Path) -> None:
    """As they are deployed: `berth serve` and `berth console`, and a console that is killed."""
    cluster, verbs, pages = cluster_of(TWO_NODES), free_port(), free_port()
    (tmp_path / "policy.yaml").write_text("candidates: 1")
    policy = ("--policy", str(tmp_path / "policy.yaml"))
    people = ("console", "--listen", f"127.0.0.1:{pages}", "--policy-configmap", "berth-system/berth-policy", *policy)
    async with cluster.serving() as api, AsyncExitStack() as stack:
        write_kubeconfig(tmp_path, api)
        client = await stack.enter_async_context(client_at(f"http://127.0.0.1:{verbs}"))
        await stack.enter_async_context(process(tmp_path, "serve", "--listen", f"127.0.0.1:{verbs}", *policy))
        killed = start(*people, "--kubeconfig", str(tmp_path / "kubeconfig"))
        await answers(f"http://127.0.0.1:{verbs}/readyz", 200)
        await answers(f"http://127.0.0.1:{pages}/readyz", 200)
        killed.kill()
        await asyncio.to_thread(killed.wait)
        cluster.apply(claim("p"))
        cluster.apply(pod("p", "p"))
        one = Serving(cluster, None, client, api)  # type: ignore[arg-type]  # never read here
        found = await filtered(client, verbs, {"Pod": one.pod("p"), "Nodes": None, "NodeNames": list(TWO_NODES)})
        assert await one.bind("p", found["NodeNames"][0]) == "", "a dead console stops nothing"
        await stack.enter_async_context(process(tmp_path, *people))
        await answers(f"http://127.0.0.1:{pages}/v1/explain/default/p", 200, "bound")
        (tmp_path / "policy.yaml").write_text("candidates: many")
        await answers(
            f"{api}/apis/events.k8s.io/v1/events",
            200,
            "the last good policy stays in force: candidates: must be an integer",
        )
        await answers(f"http://127.0.0.1:{verbs}/metrics", 200, "berth_policy_refused 1.0")
        (tmp_path / "policy.yaml").write_text("candidates: 2")
        await answers(f"http://127.0.0.1:{verbs}/metrics", 200, "berth_policy_refused 0.0")


@pytest.mark.parametrize("path", ["/v1/fleet", "/v1/explain/a/b", "/v1/nodes/a", "/v1/claims"])
async def test_the_console_says_when_it_is_not_ready(path: str) -> None:
    cluster, pages = cluster_of(TWO_NODES), free_port()

    async def api(scope: Json, receive: Any, send: Any) -> None:
        if scope["path"].endswith("/resourceclaims"):
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"{}"})
        else:
            await cluster.api(scope, receive, send)

    async with listening(api, "127.0.0.1", 0) as url:
        credentials = Credentials(url, None, lambda: None)
        async with in_background(run_console(credentials, Pages(("127.0.0.1", pages)))):
            await answers(f"http://127.0.0.1:{pages}{path}", 503, "berth is not ready, not listed yet: resourceclaims")
        cluster.store.cut_watches()


@pytest.mark.parametrize("named", ["a/../../../services?limit=9", "a/..", "../p", "a/p?watch=1", "a/p#x"])
async def test_a_question_about_a_pod_reads_no_other_path_of_the_api(named: str) -> None:
    """The console once read any path for such a question, with its own token."""
    async with berthing({"n1": "t4-4"}) as b:
        watched, others = {one.kind.path for one in b.app.service.informers.reflectors.values()}, list[str]()

        async def seen(_: str, path: str) -> None:
            others.extend({path} - watched)

        b.cluster.api.intercept = seen
        reply = await b.client.post("/v1/explain", json={"pod": named})
        assert reply.status_code == 404
        assert f"pod {named} does not wait for Berth" in reply.text
        assert not others
