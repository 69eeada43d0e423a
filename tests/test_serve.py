"""`berth serve` as a process: its addresses, a policy that changes, a console in its process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from extender.entry.serve_process import application
from extender.model import ObjectKey, Pod, PodClaim
from extender.sandbox import Cluster, listening
from extender.web.asgi import Receive, Scope, Send
from tests.commands import berth_beside
from tests.eventually import HANG_SECONDS, answers, eventually
from tests.http_worlds import connected, hang_up, status
from tests.process_starter import ROOT
from tests.process_worlds import filtered, served, served_with_console
from tests.running_berth import claim, pod


@pytest.mark.parametrize(
    ("status", "message"),
    [(403, "resourceclaims is forbidden"), (404, "the server could not find the requested resource")],
)
async def test_not_ready_names_each_missing_kind_with_its_cause(status: int, message: str) -> None:
    """Missing rights and an API version that is not served: named in one sentence, with the next step."""
    cluster = Cluster()

    async def api(scope: Scope, receive: Receive, send: Send) -> None:
        if "resourceclaims" not in scope.get("path", ""):
            await cluster.api(scope, receive, send)
            return
        body = json.dumps({"kind": "Status", "message": message, "code": status}).encode()
        await send(
            {"type": "http.response.start", "status": status, "headers": [(b"content-length", str(len(body)).encode())]}
        )
        await send({"type": "http.response.body", "body": body})

    async with listening(api, "127.0.0.1", 0) as url, application(url) as app:
        informers = app.service.informers
        text = f"not listed yet: resourceclaims ({message}); run berth doctor for a remedy"
        await eventually(lambda: informers.not_ready == text, lambda: informers.not_ready)
        answer = app.service.filter(Pod(ObjectKey("d", "p"), "u", (PodClaim("g", "c"),)), ["n1"])
        assert answer.error.startswith("berth is not ready, not listed yet: resourceclaims")
        assert app.service.filter(Pod(ObjectKey("d", "q"), "v"), ["n1"]).passed is None, "pods without devices pass"
        cluster.store.cut_watches()


BODY = b'{"Pod": {"metadata": {"name": "p", "namespace": "x"}}, "NodeNames": ["n1"]}'


async def test_verbs_and_probes_can_have_addresses_of_their_own(tmp_path: Path) -> None:
    client = httpx.AsyncClient(headers={"Content-Type": "application/json"}, timeout=HANG_SECONDS, verify=False)
    async with served(tmp_path) as (verbs, probes), client:
        assert (await client.post(f"http://127.0.0.1:{verbs}/filter", content=BODY)).json()["NodeNames"] == ["n1"]
        assert (await client.post(f"http://127.0.0.1:{probes}/filter", content=BODY)).status_code == 405
        for path in ("/livez", "/readyz", "/metrics"):
            assert (await client.get(f"http://127.0.0.1:{verbs}{path}")).status_code == 404
            assert (await client.get(f"http://127.0.0.1:{probes}{path}")).status_code == 200
        reply = await client.get(f"http://127.0.0.1:{probes}/metrics")
        assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert reply.headers["x-content-type-options"] == "nosniff"


async def test_a_process_may_have_as_many_files_open_as_its_addresses_have_connections(tmp_path: Path) -> None:
    """Many systems start a process with a soft limit of 1,024 files, some with 256."""
    async with served(tmp_path, shell="ulimit -Sn 200") as (verbs, _):
        waiting = [await connected(verbs) for _ in range(300)]
        assert await status(verbs, b"GET /filter HTTP/1.1\r\nHost: localhost\r\n\r\n") == 405
        assert not any(reader.at_eof() for reader, _ in waiting), "no connection had to end first"
        await hang_up(*waiting)


async def test_one_address_has_both_and_nothing_for_people(tmp_path: Path) -> None:
    client = httpx.AsyncClient(headers={"Content-Type": "application/json"}, timeout=HANG_SECONDS, verify=False)
    async with served(tmp_path, probes=False) as (port, _), client:
        assert (await client.post(f"http://127.0.0.1:{port}/filter", content=BODY)).json()["NodeNames"] == ["n1"]
        for path, status in (
            ("/livez", 200),
            ("/readyz", 200),
            ("/metrics", 200),
            ("/", 404),
            ("/v1/fleet", 404),
            ("/v1/explain/a/b", 404),
        ):
            assert (await client.get(f"http://127.0.0.1:{port}{path}")).status_code == status, path


def test_serve_loads_nothing_of_the_console() -> None:
    """serve loads neither the packages of the console nor the framework of its pages."""
    code = "import sys; import extender.entry.serve_process; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    others = (
        "extender.console",
        "extender.diagnosis",
        "extender.manifests",
        "extender.cel.dra.terms",
        "extender.web.console",
        "extender.web.record_routes",
        "extender.entry.console_process",
        "extender.entry.desk",
        "fastapi",
        "starlette",
    )
    loaded = done.stdout.split()
    assert "extender.extension.service" in loaded
    assert not [name for name in loaded if any(name == other or name.startswith(f"{other}.") for other in others)]


async def test_policy_is_read_again_and_a_wrong_one_is_not_used(tmp_path: Path) -> None:
    """kubelet changes a ConfigMap volume in this way: it replaces the link ..data."""
    for name, text in (("one", "candidates: 1"), ("wrong", "candidates: many"), ("two", "candidates: 2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "policy.yaml").symlink_to("..data/policy.yaml")

    def swap(to: str) -> None:
        (tmp_path / "next").symlink_to(to)
        (tmp_path / "next").rename(tmp_path / "..data")

    async with served(tmp_path, "--policy", str(tmp_path / "policy.yaml")) as (_, probes):
        metrics = f"http://127.0.0.1:{probes}/metrics"
        await answers(metrics, 200, "berth_policy_generation 1.0")
        swap("wrong")
        await answers(metrics, 200, "berth_policy_refused 1.0")
        await answers(metrics, 200, "berth_policy_generation 1.0")
        swap("two")
        await answers(metrics, 200, "berth_policy_generation 2.0")
        await answers(metrics, 200, "berth_policy_refused 0.0")


async def test_a_candidate_is_compared_and_decides_nothing(tmp_path: Path) -> None:
    """Two nodes alike but for their use: pack takes the one in use, the candidate's spread the empty one."""
    (tmp_path / "policy.yaml").write_text("packing: pack\nweights: {packing: 50}")
    candidate = tmp_path / "candidate.yaml"
    async with (
        served_with_console(tmp_path, "--policy", str(tmp_path / "policy.yaml"), "--candidate", str(candidate)) as (
            verbs,
            pages,
        ),
        httpx.AsyncClient(timeout=HANG_SECONDS, verify=False) as client,
    ):
        policy_url = f"http://127.0.0.1:{pages}/v1/policy"
        assert (await client.get(f"{policy_url}/diff")).json()["candidate"] is False
        candidate.write_text("packing: sideways")
        await answers(policy_url, 200, "packing: must be")
        candidate.write_text("packing: spread\nweights: {packing: 50}")
        await answers(f"{policy_url}/diff", 200, '"candidate":true')
        api = yaml.safe_load((tmp_path / "kubeconfig").read_text())["clusters"][0]["cluster"]["server"]
        for obj in (claim("busy"), pod("busy", "busy"), claim("next"), pod("next", "next")):
            kind, base = ("pods", "/api/v1") if obj["kind"] == "Pod" else ("resourceclaims", "/apis/resource.k8s.io/v1")
            assert (await client.post(f"{api}{base}/namespaces/default/{kind}", json=obj)).status_code < 300
        names = ["n1", "n2"]
        pods = {p["metadata"]["name"]: p for p in (await client.get(f"{api}/api/v1/pods")).json()["items"]}
        names_bound = ("busy", "next")
        for name in names_bound:
            body = {"Pod": pods[name], "Nodes": None, "NodeNames": names}
            found = await filtered(client, verbs, body)
            uid = pods[name]["metadata"]["uid"]
            bind = {"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": found["NodeNames"][0]}
            assert (await client.post(f"http://127.0.0.1:{verbs}/bind", json=bind)).json()["Error"] == ""
            await answers(f"{policy_url}/diff", 200, f'"compared":{1 + names_bound.index(name)}')
        (changed,) = (await client.get(f"{policy_url}/diff")).json()["changed"]
        assert changed["pod"] == "default/next"
        assert changed["active"]["node"] != changed["candidate"]["node"]
        server = ("--server", f"http://127.0.0.1:{pages}")
        _, text, _ = await berth_beside(["policy", "diff", *server])
        assert "the candidate changes 1 of the last 2 decisions" in text
        assert "default/next" in text
        code, text, _ = await berth_beside(["policy", "status", *server])
        assert "the console compares a candidate" in text
        assert code == 0
        candidate.unlink()
        await answers(f"{policy_url}/diff", 200, '"candidate":false')


async def test_explain_asks_for_the_token_and_probes_do_not(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    async with (
        served_with_console(tmp_path, "--page-token-file", str(tmp_path / "token")) as (_, pages),
        httpx.AsyncClient(timeout=HANG_SECONDS, verify=False) as client,
    ):
        url = f"http://127.0.0.1:{pages}/v1/explain/x/p"
        assert (await client.get(url)).status_code == 401
        assert (await client.get(url, headers={"Authorization": "Bearer wrong"})).status_code == 401
        assert (await client.get(url, headers={"Authorization": "Bearer s3cret"})).status_code == 404
        assert (await client.get(f"http://127.0.0.1:{pages}/metrics")).status_code == 200


async def test_pages_that_the_network_reaches_are_closed_without_a_token(tmp_path: Path) -> None:
    serving = served_with_console(tmp_path, "--page-host", "berth.example", host="0.0.0.0")
    async with serving as (_, pages), httpx.AsyncClient(verify=False) as client:
        url = f"http://127.0.0.1:{pages}"
        reply = await client.get(f"{url}/v1/fleet")
        assert reply.status_code == 403
        assert "--page-token-file" in reply.text
        for path in ("/livez", "/readyz", "/metrics"):
            assert (await client.get(url + path)).status_code == 200
        assert (await client.get(f"{url}/metrics", headers={"Host": "berth.example"})).status_code == 200
        assert (await client.get(f"{url}/metrics", headers={"Host": "evil.example"})).status_code == 403
