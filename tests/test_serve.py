"""`berth serve` as a process: its addresses, TLS with client certificates, a policy that changes, a console beside
it."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from extender.cli.main import commands
from extender.cluster import load_credentials
from extender.entry.listening import Tls, server
from extender.entry.serve_process import application
from extender.model import ObjectKey, Pod, PodClaim
from extender.policy import Policy, load_policy
from extender.sandbox import Cluster, carried_machines, listening
from extender.sockets import listen_on
from extender.web.asgi import Receive, Scope, Send
from extender.web.http_limits import HttpLimits
from tests.eventually import HANG_SECONDS, answers, eventually
from tests.running_berth import berthing, claim, pod

cli = commands()
ROOT = Path(__file__).resolve().parents[1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_kubeconfig(folder: Path, api: str) -> Path:
    """A kubeconfig for an API server without credentials."""
    config = {
        "clusters": [{"name": "c", "cluster": {"server": api}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
        "users": [{"name": "u", "user": {}}],
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    return folder / "kubeconfig"


@asynccontextmanager
async def process(folder: Path, *words: str) -> AsyncIterator[None]:
    """A process of berth, which ends well when it is told to."""
    command = [sys.executable, "-m", "extender", *words, "--kubeconfig", str(folder / "kubeconfig")]
    running = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        running.terminate()
        assert await running.wait() == 0


@asynccontextmanager
async def sandbox(folder: Path) -> AsyncIterator[Cluster]:
    """Two nodes, and a kubeconfig in the folder."""
    cluster = Cluster()
    for name in ("n1", "n2"):
        cluster.add_node(name, carried_machines()["t4-4"])
    async with cluster.serving() as api:
        write_kubeconfig(folder, api)
        yield cluster


@asynccontextmanager
async def served(folder: Path, *options: str, probes: bool = True) -> AsyncIterator[tuple[int, int]]:
    """(port of the verbs, port of the probes, perhaps the same) of a berth serve that is ready."""
    verbs, other = free_port(), free_port()
    more = ("--probes", f"127.0.0.1:{other}") if probes else ()
    async with sandbox(folder), process(folder, "serve", "--listen", f"127.0.0.1:{verbs}", *more, *options):
        await answers(f"http://127.0.0.1:{other if probes else verbs}/readyz", 200)
        yield verbs, other if probes else verbs


@asynccontextmanager
async def served_with_console(folder: Path, *options: str, host: str = "127.0.0.1") -> AsyncIterator[tuple[int, int]]:
    """(port of the verbs, port of the console) of a berth serve with the console in its process."""
    pages = free_port()
    async with served(folder, "--console", f"{host}:{pages}", *options, probes=False) as (verbs, _):
        await answers(f"http://127.0.0.1:{pages}/readyz", 200)
        yield verbs, pages


@pytest.mark.parametrize(
    ("status", "message"),
    [(403, "resourceclaims is forbidden"), (404, "the server could not find the requested resource")],
)
async def test_not_ready_says_what_is_missing_and_why(status: int, message: str) -> None:
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
        told = f"not listed yet: resourceclaims ({message}); run berth doctor for a remedy"
        await eventually(lambda: informers.not_ready == told, lambda: informers.not_ready)
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
    """Neither its packages nor the framework of its pages."""
    code = "import sys; import extender.entry.serve_process; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    others = (
        "extender.console",
        "extender.diagnosis",
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
    """As kubelet changes a ConfigMap volume: the link ..data is swapped."""
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


async def filtered(client: httpx.AsyncClient, port: int, body: dict) -> dict:
    """The first answer without an error: the watch may not show the claim yet."""

    async def judged() -> dict | None:
        found = (await client.post(f"http://127.0.0.1:{port}/filter", json=body)).json()
        return None if found["Error"] else found

    return await eventually(judged, "a filter without an error")


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
        told = f"http://127.0.0.1:{pages}/v1/policy"
        assert (await client.get(f"{told}/diff")).json()["candidate"] is False
        candidate.write_text("packing: sideways")
        await answers(told, 200, "packing: Input should be")
        candidate.write_text("packing: spread\nweights: {packing: 50}")
        await answers(f"{told}/diff", 200, '"candidate":true')
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
            await answers(f"{told}/diff", 200, f'"compared":{1 + names_bound.index(name)}')
        (changed,) = (await client.get(f"{told}/diff")).json()["changed"]
        assert changed["pod"] == "default/next"
        assert changed["active"]["node"] != changed["candidate"]["node"]
        done = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "extender",
            "policy",
            "diff",
            "--server",
            f"http://127.0.0.1:{pages}",
            stdout=subprocess.PIPE,
        )
        text = (await done.communicate())[0].decode()
        assert "the candidate changes 1 of the last 2 decisions" in text
        assert "default/next" in text
        done = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "extender",
            "policy",
            "status",
            "--server",
            f"http://127.0.0.1:{pages}",
            stdout=subprocess.PIPE,
        )
        assert "the console compares a candidate" in (await done.communicate())[0].decode()
        assert done.returncode == 0
        candidate.unlink()
        await answers(f"{told}/diff", 200, '"candidate":false')


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
    async with serving as (_, pages), httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{pages}"
        reply = await client.get(f"{url}/v1/fleet")
        assert reply.status_code == 403
        assert "--page-token-file" in reply.text
        for path in ("/livez", "/readyz", "/metrics"):
            assert (await client.get(url + path)).status_code == 200
        assert (await client.get(f"{url}/metrics", headers={"Host": "berth.example"})).status_code == 200
        assert (await client.get(f"{url}/metrics", headers={"Host": "evil.example"})).status_code == 403


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
async def test_a_handshake_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    certificate(tmp_path, "server")
    tls = Tls(tmp_path / "server.crt", tmp_path / "server.key")
    async with berthing({"n1": "t4-4"}) as b:
        web = server(b.app, ("127.0.0.1", 0), HttpLimits(head_seconds=0.2), tls)
        serving = web._serve(listen_on("--listen", "127.0.0.1", 0))  # noqa: SLF001 - serve() would catch the signals
        task = asyncio.create_task(serving)
        await eventually(lambda: web.started)
        reader, writer = await asyncio.open_connection("127.0.0.1", web.servers[0].sockets[0].getsockname()[1])
        assert await asyncio.wait_for(reader.read(), HANG_SECONDS) == b""
        writer.close()
        await writer.wait_closed()
        web.should_exit = True
        await task


def certificate(folder: Path, name: str) -> None:
    """A key and a certificate signed by the folder's authority, made by openssl."""
    ca = folder / "ca.crt"

    def run(*args: str) -> None:
        subprocess.run(["openssl", *args], check=True, capture_output=True)

    if not ca.exists():
        run(
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            str(folder / "ca.key"),
            "-out",
            str(ca),
            "-days",
            "2",
            "-subj",
            "/CN=authority",
        )
    run(
        "req",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        str(folder / f"{name}.key"),
        "-out",
        str(folder / f"{name}.csr"),
        "-subj",
        f"/CN={name}",
    )
    (folder / "ext").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
    run(
        "x509",
        "-req",
        "-in",
        str(folder / f"{name}.csr"),
        "-CA",
        str(ca),
        "-CAkey",
        str(folder / "ca.key"),
        "-CAcreateserial",
        "-out",
        str(folder / f"{name}.crt"),
        "-days",
        "2",
        "-extfile",
        str(folder / "ext"),
    )


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
async def test_only_the_scheduler_s_certificate_is_answered_and_ours_is_read_again(tmp_path: Path) -> None:
    for name in ("server", "scheduler", "stranger"):
        certificate(tmp_path, name)
    paths = [str(tmp_path / name) for name in ("server.crt", "server.key", "ca.crt")]
    async with served(
        tmp_path, "--tls-cert", paths[0], "--tls-key", paths[1], "--client-ca", paths[2], "--client-name", "scheduler"
    ) as (verbs, _):
        url = f"https://127.0.0.1:{verbs}/filter"
        plain = ssl.create_default_context(cafile=paths[2])
        async with httpx.AsyncClient(verify=plain) as client:
            with pytest.raises(httpx.HTTPError):
                await client.get(url)
        stranger = ssl.create_default_context(cafile=paths[2])
        stranger.load_cert_chain(tmp_path / "stranger.crt", tmp_path / "stranger.key")
        async with httpx.AsyncClient(verify=stranger) as client:
            with pytest.raises(httpx.HTTPError):
                await client.get(url)
        known = ssl.create_default_context(cafile=paths[2])
        known.load_cert_chain(tmp_path / "scheduler.crt", tmp_path / "scheduler.key")
        await answers(url, 405, verify=known)
        first = await serial(verbs, tmp_path)
        certificate(tmp_path, "server")

        async def renewed() -> bool:
            return await serial(verbs, tmp_path) != first

        await eventually(renewed, "the new certificate is used")


async def serial(port: int, folder: Path) -> str:
    """The serial number of the certificate that a server shows to the scheduler."""

    def asked() -> str:
        done = subprocess.run(
            [
                "openssl",
                "s_client",
                "-connect",
                f"127.0.0.1:{port}",
                "-cert",
                str(folder / "scheduler.crt"),
                "-key",
                str(folder / "scheduler.key"),
            ],
            input=b"",
            capture_output=True,
            check=False,
        )
        return subprocess.run(
            ["openssl", "x509", "-noout", "-serial"], input=done.stdout, capture_output=True, check=True
        ).stdout.decode()

    return await asyncio.to_thread(asked)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
async def test_an_authority_that_changes_is_trusted_without_a_restart(tmp_path: Path) -> None:
    certificate(tmp_path, "server")
    (tmp_path / "other").mkdir()
    certificate(tmp_path / "other", "scheduler")
    paths = [str(tmp_path / name) for name in ("server.crt", "server.key", "ca.crt")]
    ours = ssl.create_default_context(cafile=paths[2])
    ours.load_cert_chain(tmp_path / "other" / "scheduler.crt", tmp_path / "other" / "scheduler.key")
    async with served(tmp_path, "--tls-cert", paths[0], "--tls-key", paths[1], "--client-ca", paths[2]) as (verbs, _):
        url = f"https://127.0.0.1:{verbs}/filter"
        async with httpx.AsyncClient(verify=ours) as client:
            with pytest.raises(httpx.HTTPError):
                await client.get(url)
        both = (tmp_path / "ca.crt").read_text() + (tmp_path / "other" / "ca.crt").read_text()
        (tmp_path / "ca.crt").write_text(both)
        await answers(url, 405, verify=ours)


def test_authorities_that_kubectl_takes_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 verifies strictly by default and rejects an authority without the key usage extension."""
    made = ssl.create_default_context

    def strict(**kwargs: Any) -> ssl.SSLContext:
        context = made(**kwargs)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    # Stands in for Python 3.13 on every version.
    monkeypatch.setattr(ssl, "create_default_context", strict)
    (tmp_path / "kubeconfig").write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "users": [{"name": "u", "user": {"token": "t"}}],
                "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            }
        )
    )
    found = load_credentials(tmp_path / "kubeconfig").tls
    assert found is not None
    assert found.verify_mode is ssl.CERT_REQUIRED
    assert not found.verify_flags & ssl.VERIFY_X509_STRICT


def test_policies_are_checked_offline(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("weights: {links: 3}")
    found = CliRunner().invoke(cli, ["policy", "check", str(ROOT / "manifests" / "base" / "policy.yaml"), str(bad)])
    assert found.exit_code == 1
    assert "good" in found.output
    assert "weights.links" in found.output
    shown = CliRunner().invoke(cli, ["policy", "show", str(ROOT / "manifests" / "base" / "policy.yaml")])
    assert load_policy(shown.output) == Policy(), "the manifest says what the default says"


WRONG_OPTIONS = [
    ("serve --tls-cert x", "--tls-key"), ("serve --client-ca x", "--tls-cert"),
    ("serve --tls-cert x --tls-key y --client-name x", "--client-ca"),
    ("serve --probes nowhere", "--probes"), ("serve --console nowhere", "--console"),
    ("serve --candidate x", "--console"),
    ("serve --page-token-file x", "--console"), ("serve --page-host x", "--console"),
    ("serve --records-token-file x", "--records"),
    ("serve --records-ca x", "--records"), ("serve --records http://c:1 --console :1", "--records"),
    ("serve --records c:1", "--records"),
    ("serve --records http://c:1 --records-ca x", "--records-ca: is for an https:// URL of --records"),
    ("console --records :1 --records-from=", "--records-from: must not be empty"),
    ("console --records :1 --records-audience=", "--records-audience: must not be empty"),
    ("serve --records http://user@c:1", "--records"),
    ("console --listen nowhere", "--listen"), ("console --records nowhere", "--records"),
    ("console --records-from x", "--records"),
    ("console --records-audience x", "--records"), ("console --tls-key y", "--tls-cert"),
    ("console --policy-configmap x", "--policy-configmap"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "words"), WRONG_OPTIONS)
def test_options_that_do_not_go_together(line: str, words: str) -> None:
    found = CliRunner().invoke(cli, line.split())
    assert words in str(found.exception), found.output


def test_an_address_that_is_taken(tmp_path: Path) -> None:
    kubeconfig = str(write_kubeconfig(tmp_path, "http://127.0.0.1:9"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [
            sys.executable,
            "-m",
            "extender",
            "serve",
            "--kubeconfig",
            kubeconfig,
            "--listen",
            f"127.0.0.1:{free_port()}",
            "--probes",
            address,
        ]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert ended.returncode == 2
    assert f"berth: --probes: cannot listen on {address}: Address already in use" in ended.stderr
