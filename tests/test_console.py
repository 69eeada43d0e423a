"""Serve and console over real HTTP, each with its own watches: the console shows serve's decisions, and serve works
without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from extender.cluster import ApiClient, Credentials
from extender.entry.console_process import Pages, Policies, RecordsFrom
from extender.entry.console_process import run as run_console
from extender.extension import Poster, Service
from extender.policy import Policy
from extender.sandbox import Cluster, carried_machines, listening
from extender.sandbox.apiserver.tokens import TokenUser
from extender.web.serve_app import Probes, ServeApp
from tests.eventually import HANG_SECONDS, answers, eventually
from tests.process_starter import start
from tests.process_worlds import free_port, process, write_kubeconfig
from tests.running_berth import berthing, claim, pod

Json = dict[str, Any]
BERTH = "system:serviceaccount:berth-system:berth"
TOKENS = {
    "good": TokenUser(BERTH, ("berth-console",)),
    "other-account": TokenUser("system:serviceaccount:x:y", ("berth-console",)),
}


def sandbox() -> Cluster:
    cluster = Cluster(bookmark_seconds=0.5, tokens=TOKENS)
    for name in ("n1", "n2"):
        cluster.add_node(name, carried_machines()["t4-4"])
    return cluster


@dataclass
class Serve:
    """One replica of serve."""

    service: Service
    client: httpx.AsyncClient
    cluster: Cluster

    def _pod(self, name: str) -> Json:
        found = self.cluster.store.get("pods", ("default", name))
        assert found is not None
        return {k: v for k, v in found.items() if k not in ("kind", "apiVersion")}

    async def filter(self, name: str) -> list[str]:
        async def filter_reply() -> Json | None:
            body = {"Pod": self._pod(name), "Nodes": None, "NodeNames": ["n1", "n2"]}
            found = (await self.client.post("/filter", json=body)).json()
            return None if found["Error"] else found

        return (await eventually(filter_reply, f"filter of {name}"))["NodeNames"]

    async def bind(self, name: str, node: str) -> str:
        body = {"PodName": name, "PodNamespace": "default", "PodUID": self._pod(name)["metadata"]["uid"], "Node": node}
        return str((await self.client.post("/bind", json=body)).json()["Error"])


@asynccontextmanager
async def serve(
    cluster: Cluster, api: str, records: str = "", token: Path | None = None, replica: str = ""
) -> AsyncIterator[Serve]:
    """A replica of serve that sends records to this address, or none."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(ApiClient(Credentials(api, None, lambda: None)))
        post = await stack.enter_async_context(Poster(records, token)) if records else None
        service = await stack.enter_async_context(Service(client, Policy(), post=post, replica=replica))
        url = await stack.enter_async_context(listening(ServeApp(service, Probes(service)), "127.0.0.1", 0))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=HANG_SECONDS, verify=False))
        await eventually(lambda: not service.informers.not_ready)
        yield Serve(service, http, cluster)


@asynccontextmanager
async def console(api: str, pages: int, records: int) -> AsyncIterator[httpx.AsyncClient]:
    """The console as `berth console` runs it, and a client of its pages."""
    sender = RecordsFrom(("127.0.0.1", records), "berth-console", frozenset({BERTH}))
    credentials = Credentials(api, None, lambda: None)
    task = asyncio.create_task(run_console(credentials, Pages(("127.0.0.1", pages)), sender, Policies()))
    try:
        await answers(f"http://127.0.0.1:{pages}/readyz", 200)
        url = f"http://127.0.0.1:{pages}"
        async with httpx.AsyncClient(base_url=url, timeout=HANG_SECONDS, verify=False) as client:
            yield client
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


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


def good_token(folder: Path) -> Path:
    (folder / "token").write_text("good")
    return folder / "token"


async def test_the_console_sees_the_decisions_of_serve(tmp_path: Path) -> None:
    cluster, pages, records = sandbox(), free_port(), free_port()
    async with (
        cluster.serving() as api,
        console(api, pages, records) as people,
        serve(cluster, api, f"http://127.0.0.1:{records}", good_token(tmp_path)) as one,
    ):
        for name, count in (("p", 2), ("late", 5)):
            cluster.apply(claim(name, count))
            cluster.apply(pod(name, name))
        node = (await one.filter("p"))[0]
        await sees(people, "ffffffhh")
        assert await one.filter("late") == []
        waiting = await explained(people, "late", "attempts")
        assert waiting["outcome"] == "refused"
        assert waiting["attempts"][0]["fitting"] == 0
        assert waiting["remembered_since"]
        assert await one.bind("p", node) == ""
        await sees(people, "ffffffuu")
        found = await explained(people, "p", "decision")
        assert found["outcome"] == "bound"
        assert found["decision"]["chosen"]["node"] == node
        assert found["decision"]["runner_up"] in {"n1", "n2"} - {node}
        assert found["decision"]["chosen"]["parts"]
        fleet = (await people.get("/v1/fleet")).json()
        assert [decided["pod"] for decided in fleet["decisions"]] == ["default/p"]
        assert fleet["remembered_since"]
        assert [waits["pod"] for waits in fleet["pending"]] == ["default/late"]


async def test_holds_that_end_vanish_from_the_console(tmp_path: Path) -> None:
    cluster, pages, records = sandbox(), free_port(), free_port()
    async with (
        cluster.serving() as api,
        console(api, pages, records) as people,
        serve(cluster, api, f"http://127.0.0.1:{records}", good_token(tmp_path)) as one,
    ):
        cluster.apply(claim("p"))
        cluster.apply(pod("p", "p"))
        await one.filter("p")
        await sees(people, "fffffffh")
        cluster.store.remove("pods", ("default", "p"))
        await sees(people, "ffffffff")


async def test_a_restarted_console_says_since_when_it_remembers(tmp_path: Path) -> None:
    """The console explains earlier decisions from the annotations of bound pods, and takes serve's next records."""
    cluster, pages, records = sandbox(), free_port(), free_port()
    async with (
        cluster.serving() as api,
        serve(cluster, api, f"http://127.0.0.1:{records}", good_token(tmp_path)) as one,
    ):
        for name in ("p", "q"):
            cluster.apply(claim(name))
            cluster.apply(pod(name, name))
        cluster.apply(pod("other", "q", schedulerName="default-scheduler"))
        cluster.apply(pod("no-devices"))
        async with console(api, pages, records) as people:
            assert await one.bind("p", (await one.filter("p"))[0]) == ""
            first = await explained(people, "p", "decision")
        async with console(api, pages, records) as people:
            reply = await people.get("/v1/explain/default/p")
            known = reply.json()
            assert known["outcome"] == "bound", known
            assert "decision" not in known, known
            assert "pod default/p was bound to" in known["sentence"]
            assert "score " in known["sentence"]
            since = (await people.get("/v1/fleet")).json()["remembered_since"]
            assert since >= first["remembered_since"]
            assert known["remembered_since"] == since
            assert (await people.get("/v1/explain/default/q")).json()["remembered_since"] == since
            waiting = {"pod": "default/q", "pods": 1, "since": "", "nearest": ""}
            fleet = (await people.get("/v1/fleet")).json()
            assert fleet["waiting"] == 1
            assert fleet["pending"] == [{**waiting, "sentence": f"no filter request is remembered since {since}"}]
            unknown = (await people.get("/v1/explain/default/absent")).json()["error"]
            assert unknown.endswith(f"no decision about it is remembered since {since}")
            assert await one.bind("q", (await one.filter("q"))[0]) == ""
            assert (await explained(people, "q", "decision"))["remembered_since"] == since


async def test_serve_decides_the_same_without_a_console(tmp_path: Path) -> None:
    """Serve chooses the same nodes and devices without a console, with a dead one, and with one that rejects the
    records.
    """
    (tmp_path / "token").write_text("other-account")
    chosen: list[tuple[str, Any, str]] = []
    for where in ("none", "dead", "rejects"):
        cluster, pages, records = sandbox(), free_port(), free_port()
        async with AsyncExitStack() as stack:
            api = await stack.enter_async_context(cluster.serving())
            if where == "rejects":
                await stack.enter_async_context(console(api, pages, records))
            address = f"http://127.0.0.1:{records}" if where != "none" else ""
            one = await stack.enter_async_context(serve(cluster, api, address, tmp_path / "token"))
            for name, count in (("p", 2), ("q", 3), ("late", 5)):
                cluster.apply(claim(name, count))
                cluster.apply(pod(name, name))
                nodes = await one.filter(name)
                chosen.append((name, nodes, await one.bind(name, nodes[0]) if nodes else ""))
            results = [c["status"].get("allocation", {}).get("devices") for c in cluster.store.all("resourceclaims")]
            chosen.append(
                ("devices", [[(r["pool"], r["device"]) for r in found["results"]] for found in results if found], "")
            )
            outbox = one.service.outbox
            assert (outbox is None) == (where == "none")
            if outbox is not None:
                await eventually(lambda box=outbox: box.failures)
                assert outbox.sent == 0
                text = (await one.client.get("/metrics")).text
                assert "berth_records_failures_total" in text
                assert "berth_records_failures_total 0.0" not in text
    third = len(chosen) // 3
    assert chosen[:third] == chosen[third : 2 * third] == chosen[2 * third :]
    assert [found[1:] for found in chosen[:third] if found[0] == "late"] == [([], "")]


async def test_two_replicas_are_one_history(tmp_path: Path) -> None:
    cluster, pages, records = sandbox(), free_port(), free_port()
    address, token = f"http://127.0.0.1:{records}", good_token(tmp_path)
    async with (
        cluster.serving() as api,
        console(api, pages, records) as people,
        serve(cluster, api, address, token, "a") as one,
        serve(cluster, api, address, token, "b") as other,
    ):
        for name in ("p", "q", "late"):
            cluster.apply(claim(name, 5 if name == "late" else 1))
            cluster.apply(pod(name, name))

        async def placed(by: Serve, name: str) -> bool:
            """Both replicas may choose one device. Then the later writer gives up, and the pod is tried again."""
            return await by.bind(name, (await by.filter(name))[0]) == ""

        assert await one.filter("late") == []
        assert await other.filter("late") == []
        await asyncio.gather(eventually(lambda: placed(one, "p")), eventually(lambda: placed(other, "q")))
        for name in ("p", "q"):
            await explained(people, name, "decision")

        async def both_attempts() -> bool:
            return len((await explained(people, "late", "attempts"))["attempts"]) == 2

        await eventually(both_attempts, "the attempts of both replicas")
        processes = (await people.get("/v1/processes")).json()
        assert {found["replica"] for found in processes} == {"a", "b"}
        await sees(people, "ffffffuu")


async def test_processes_and_policy_keep_their_fields(tmp_path: Path) -> None:
    """`berth policy status` and others read them."""
    cluster, pages, records = sandbox(), free_port(), free_port()
    async with (
        cluster.serving() as api,
        console(api, pages, records) as people,
        serve(cluster, api, f"http://127.0.0.1:{records}", good_token(tmp_path)),
    ):

        async def heard() -> list[Json]:
            return (await people.get("/v1/processes")).json()

        (found,) = await eventually(heard, "serve's first batch")
        assert set(found) == {"replica", "epoch", "heard_seconds", "last", "lost", "policy", "mix"}
        assert set(found["policy"]) == {"generation", "digest", "problem"}
        assert found["mix"]
        assert set(found["mix"][0][0]) == {"cpu", "memory", "gpus", "milli", "models"}
        status = (await people.get("/v1/policy")).json()
        assert set(status) == {
            "generation",
            "digest",
            "problem",
            "policy",
            "processes",
        }
        assert status["policy"] == Policy().model_dump(mode="json")
        assert status["digest"] == found["policy"]["digest"]


async def test_two_processes(tmp_path: Path) -> None:
    """As they are deployed: `berth serve --records` and `berth console --records`, and a console that is killed."""
    cluster, verbs, pages, records = sandbox(), free_port(), free_port(), free_port()
    token = str(good_token(tmp_path))
    (tmp_path / "policy.yaml").write_text("candidates: 1")
    policy = ("--policy", str(tmp_path / "policy.yaml"))
    people = (
        "console",
        "--listen",
        f"127.0.0.1:{pages}",
        "--records",
        f"127.0.0.1:{records}",
        "--policy-configmap",
        "berth-system/berth-policy",
        *policy,
    )
    async with cluster.serving() as api, AsyncExitStack() as stack:
        write_kubeconfig(tmp_path, api)
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{verbs}", timeout=HANG_SECONDS, verify=False)
        )
        sender = ("--records", f"http://127.0.0.1:{records}", "--records-token-file", token)
        await stack.enter_async_context(process(tmp_path, "serve", "--listen", f"127.0.0.1:{verbs}", *sender, *policy))
        killed = start(*people, "--kubeconfig", str(tmp_path / "kubeconfig"))
        await answers(f"http://127.0.0.1:{verbs}/readyz", 200)
        await answers(f"http://127.0.0.1:{pages}/v1/processes", 200, '"epoch"')
        killed.kill()
        await asyncio.to_thread(killed.wait)
        cluster.apply(claim("p"))
        cluster.apply(pod("p", "p"))
        one = Serve(None, client, cluster)  # type: ignore[arg-type]  # never read here
        assert await one.bind("p", (await one.filter("p"))[0]) == "", "a dead console stops nothing"
        await stack.enter_async_context(process(tmp_path, *people))
        await answers(f"http://127.0.0.1:{pages}/v1/processes", 200, '"epoch"')
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
    cluster, pages, records = sandbox(), free_port(), free_port()

    async def api(scope: Json, receive: Any, send: Any) -> None:
        if scope["path"].endswith("/resourceclaims"):
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"{}"})
        else:
            await cluster.api(scope, receive, send)

    async with listening(api, "127.0.0.1", 0) as url:
        sender = RecordsFrom(("127.0.0.1", records), "berth-console", frozenset({BERTH}))
        credentials = Credentials(url, None, lambda: None)
        task = asyncio.create_task(run_console(credentials, Pages(("127.0.0.1", pages)), sender, Policies()))
        try:
            await answers(f"http://127.0.0.1:{pages}{path}", 503, "berth is not ready, not listed yet: resourceclaims")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
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
