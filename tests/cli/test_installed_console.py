"""`kubectl berth` finds the console of the cluster and its token by the kubeconfig, or says in one sentence why not."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import WSMsgType, web

from extender.entry.listening import Tls
from extender.sandbox import write_kubeconfig
from extender.web.console.console_app import Access, ConsoleApp
from tests.worlds.certificates import NEEDS_OPENSSL, certificate
from tests.worlds.commands import berth_beside
from tests.worlds.eventually import eventually
from tests.worlds.http_worlds import LIMITS, listening
from tests.worlds.running_berth import Berthing, berthing, claim, pod

Json = dict[str, Any]
SECRET = "berth-page-token"
PODS = "/api/v1/namespaces/berth-system/pods"


def console_pod(**status: Any) -> Json:
    """The pod of manifests/base/console.yaml, as far as it says how to ask it."""
    console = next(
        one
        for one in yaml.safe_load_all(Path("manifests/base/console.yaml").read_text())
        if one["kind"] == "Deployment"
    )
    template = console["spec"]["template"]
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return {
        "metadata": {"name": "berth-console-1", **template["metadata"]},
        "spec": template["spec"],
        "status": status or ready,
    }


def refusal(code: int, reason: str, message: str) -> web.Response:
    status = {"kind": "Status", "apiVersion": "v1", "reason": reason, "message": message, "code": code}
    return web.json_response(status, status=code)


@dataclass
class FakeApi:
    """An API server with a console's pod, the Secret of its token, and kubelet's port forward behind it."""

    port: int  # of the console on this machine
    pods: list[Json] = field(default_factory=lambda: [console_pod()])
    secret: str | None = "right"
    refused: str = ""  # the part of a path that the user may not read
    user_token: str = "user"
    events: list[Json] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        if request.headers.get("Authorization") != f"Bearer {self.user_token}":
            return refusal(401, "Unauthorized", "Unauthorized")
        resource = request.path.split("/")[5]
        if self.refused and request.path.endswith(self.refused):
            return refusal(403, "Forbidden", f'{resource} is forbidden: User "ann" cannot get resource "{resource}"')
        if request.path == PODS and request.query["labelSelector"] == "app=berth-console":
            return web.json_response({"items": self.pods})
        if request.path == f"/api/v1/namespaces/berth-system/secrets/{SECRET}" and self.secret is not None:
            return web.json_response({"data": {"token": base64.b64encode(self.secret.encode()).decode()}})
        if request.path == f"{PODS}/berth-console-1/portforward":
            return await self._forward(request)
        if request.path.endswith("/events"):
            assert request.query["fieldSelector"] == (
                "involvedObject.kind=Pod,involvedObject.name=llm,reason=FailedScheduling"
            )
            return web.json_response({"items": self.events})
        if request.path.endswith("/pods"):
            return web.json_response({"items": []})
        return refusal(404, "NotFound", f'{resource} "{request.path.rpartition("/")[2]}" not found')

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        """As kubelet's streaming server: see its portforward/websocket.go."""
        assert request.query["ports"] == "8889", "the container's port, not one of this machine"
        if request.headers["Accept"] != "*/*":
            return web.Response(status=406)
        remote = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await remote.prepare(request)
        port = (8889).to_bytes(2, "little")
        for channel in (b"\0", b"\1"):
            await remote.send_bytes(channel + port)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            await remote.send_bytes(b"\1error forwarding port 8889 to pod x: connection refused")
            return remote
        coming = asyncio.create_task(self._copy(reader, remote))
        async for message in remote:
            if message.type is WSMsgType.BINARY and message.data[:1] == b"\0":
                writer.write(message.data[1:])
        coming.cancel()
        writer.close()
        return remote

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, remote: web.WebSocketResponse) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1000):  # smaller than a reply
                await remote.send_bytes(b"\0" + data)


@dataclass
class World:
    api: FakeApi
    berth: Berthing
    kubeconfig: Path
    token: Path

    async def run(self, *words: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
        known = {"KUBECONFIG": str(self.kubeconfig), "BERTH_SERVER": "", "BERTH_TOKEN": ""}
        return await berth_beside(list(words), known | (env or {}))


@asynccontextmanager
async def serving(api: FakeApi) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """A console that wants a token, in a cluster to which a kubeconfig leads; the program is kubectl's plugin."""
    token = tmp_path / "token"
    token.write_text("right")
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/kubectl-berth"])
    async with berthing({"n1": "t4-4", "n2": "t4-4"}) as b:
        access = Access("0.0.0.0", token_file=token)
        async with listening(ConsoleApp(b.console, access), LIMITS) as (_, port):
            api = FakeApi(port)
            async with serving(api) as url:
                config = {
                    "current-context": "prod",
                    "contexts": [
                        {"name": "prod", "context": {"cluster": "c", "user": "ann", "namespace": "training"}},
                        {"name": "other", "context": {"cluster": "c", "user": "bob"}},
                    ],
                    "clusters": [{"name": "c", "cluster": {"server": url}}],
                    "users": [
                        {"name": "ann", "user": {"token": "user"}}, {"name": "bob", "user": {"token": "other"}},
                    ],
                }  # fmt: skip
                path = tmp_path / "kubeconfig"
                path.write_text(yaml.safe_dump(config))
                yield World(api, b, path, token)


async def test_the_console_is_found_with_the_rights_of_the_user(world: World) -> None:
    code, out, err = await world.run("nodes", "-o", "name")
    assert (code, out, err) == (0, "node/n1\nnode/n2\n", "")
    assert world.api.asked == [
        PODS, f"/api/v1/namespaces/berth-system/secrets/{SECRET}", f"{PODS}/berth-console-1/portforward",
    ]  # fmt: skip


async def test_a_token_of_the_user_needs_no_right_to_read_secrets(world: World) -> None:
    world.api.refused = SECRET
    code, out, _ = await world.run("nodes", "-o", "name", "--token", "right")
    assert (code, out) == (0, "node/n1\nnode/n2\n")


async def test_names_have_the_namespace_of_the_context(world: World) -> None:
    for namespace, name in (("training", "llm"), ("default", "llm"), ("web", "only")):
        one = {**pod(name, "none"), "metadata": {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}"}}
        world.berth.cluster.apply(one)
    await eventually(lambda: world.berth.console.overview.fleet()["waiting"] == 3)

    async def explained(*words: str) -> str:
        code, out, err = await world.run("explain", *words, "-o", "json")
        return json.loads(out)["pod"] if code != 2 else err

    assert await explained("llm") == "training/llm"
    assert await explained("pod/llm") == "training/llm"
    assert await explained("llm", "-n", "default") == "default/llm"
    assert await explained("default/llm") == "default/llm"
    assert await explained("only") == "web/only", "no other pod has this name"
    assert "ambiguous: default/llm, training/llm" in await explained("llm", "-A")
    assert await explained("nosuch") == "berth: pod training/nosuch does not exist"
    assert (await explained("deploy/x")).startswith("berth: deploy x is no pod and no group: name one of")


BEGAN, ENDED = "2026-11-26T11:29:00.500000Z", "2026-11-26T11:31:59.000000Z"


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([], ""),
        (None, ""),  # the user may not list them
        ([{"eventTime": BEGAN}], "1 attempt, 11:29 UTC"),
        ([{"eventTime": BEGAN, "series": {"count": 8, "lastObservedTime": ENDED}}], "8 attempts, 11:29 to 11:31 UTC"),
        ([{"firstTimestamp": BEGAN[:19] + "Z", "lastTimestamp": ENDED[:19] + "Z", "count": 8, "eventTime": None}],
         "8 attempts, 11:29 to 11:31 UTC"),
        ([{"eventTime": "2026-11-25T23:59:00.000000Z"}, {"eventTime": BEGAN, "series": None}],
         "2 attempts, 2026-11-25 23:59 to 2026-11-26 11:29 UTC"),
    ],
)  # fmt: skip
async def test_the_attempts_of_kube_scheduler_are_one_line(world: World, events: list[Json] | None, told: str) -> None:
    one = {**pod("llm", "none"), "metadata": {"name": "llm", "namespace": "training", "uid": "u"}}
    world.berth.cluster.apply(one)
    await eventually(lambda: world.berth.console.overview.fleet()["waiting"] == 1)
    world.api.events, world.api.refused = events or [], "/events" if events is None else ""
    code, out, err = await world.run("explain", "llm")
    assert (code, err, out.startswith("pod training/llm: claim training/none is not known yet\n")) == (0, "", True)
    assert [line for line in out.splitlines() if "attempt" in line] == ([f"  {told}"] if told else [])


async def test_manifests_without_a_namespace_are_applied_in_that_of_the_context(world: World, tmp_path: Path) -> None:
    one = claim("of-training")
    one["metadata"] |= {"namespace": "training", "uid": "c"}
    world.berth.cluster.apply(one)
    await world.berth.settled()
    path = tmp_path / "pod.yaml"
    given = pod("new", "of-training")
    del given["metadata"]["namespace"]
    path.write_text(yaml.safe_dump(given))
    for words, name, outcome in (
        ([], "training/new", "fits"), (["-n", "training"], "training/new", "fits"),
        (["-n", "default"], "default/new", "waiting"), (["-A"], "default/new", "waiting"),
    ):  # fmt: skip
        _, out, err = await world.run("explain", "-f", str(path), "-o", "json", *words)
        assert [(found["pod"], found["outcome"]) for found in map(json.loads, out.splitlines())] == [(name, outcome)], (
            err
        )


async def test_claims_are_those_of_the_context(world: World) -> None:
    for namespace in ("training", "default"):
        one = claim("c")
        one["metadata"] |= {"namespace": namespace, "uid": namespace}
        world.berth.cluster.apply(one)
    await world.berth.settled()
    name = "resourceclaim.resource.k8s.io/c\n"
    assert await world.run("claims", "-o", "name") == (0, name, "")
    assert await world.run("claims", "-o", "name", "-A") == (0, name * 2, "")
    code, out, _ = await world.run("claims", "-n", "default", "-o", "yaml")
    assert (code, [one["claim"] for one in yaml.safe_load(out)]) == (0, ["default/c"])
    assert (await world.run("claims", "claim/nosuch"))[0] == 1


async def test_another_context_has_another_user(world: World) -> None:
    code, _, err = await world.run("nodes", "--context", "other")
    assert (code, err) == (2, "berth: cannot list pods in namespace berth-system of context other: Unauthorized")
    for words in (["snapshot"], ["doctor"], ["fabric", "n1"]):
        assert await world.run(*words, "--context", "other") == (2, "", "berth: Unauthorized")
    code, _, err = await world.run("nodes", "--context", "nosuch")
    assert (code, "Expected object with name nosuch" in err) == (2, True)


async def test_the_sandbox_does_not_answer_for_a_cluster(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A sandbox on the laptop must not answer for production."""
    local = f"http://127.0.0.1:{world.api.port}"
    monkeypatch.setattr("extender.cli.console_options.SERVER", local)
    code, out, _ = await world.run("nodes", "-o", "name")
    assert (code, out) == (0, "node/n1\nnode/n2\n")
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/berth"])
    for words in ([], ["--context", "prod"]):
        assert await world.run("nodes", "-o", "name", *words) == (0, "node/n1\nnode/n2\n", ""), "KUBECONFIG is set"
    _, _, err = await world.run("nodes", env={"KUBECONFIG": "/nonexistent"})
    assert err == "berth: $KUBECONFIG: names no file that exists: '/nonexistent'"
    home = tmp_path / "home"
    (home / ".kube").mkdir(parents=True)
    (home / ".kube/config").write_bytes(world.kubeconfig.read_bytes())
    env = {"KUBECONFIG": "", "HOME": str(home)}
    code, _, err = await world.run("nodes", env=env)
    assert (code, err) == (2, f"berth: {local} needs a token: give --token, or set BERTH_TOKEN")
    monkeypatch.setattr("extender.cli.console_options.SERVER", "http://127.0.0.1:9")
    code, out, _ = await world.run("nodes", "-o", "name", env=env)
    assert (code, out) == (0, "node/n1\nnode/n2\n"), "nothing answers on this machine"


async def test_the_kubeconfig_of_the_sandbox_names_its_console(world: World, tmp_path: Path) -> None:
    """Its API server has no pod of a console. `kubectl berth` and `berth` ask the same one, at any port."""
    env = {"KUBECONFIG": str(write_kubeconfig(tmp_path, "http://127.0.0.1:9", f"http://127.0.0.1:{world.api.port}"))}
    assert await world.run("nodes", "-o", "name", "--token", "right", env=env) == (0, "node/n1\nnode/n2\n", "")
    env = {"KUBECONFIG": str(write_kubeconfig(tmp_path, "http://127.0.0.1:9", "127.0.0.1"))}
    _, _, err = await world.run("nodes", env=env)
    assert err.startswith("berth: the console of context berth-sandbox: must be http://HOST:PORT or https://HOST:PORT")


async def test_what_is_typed_wins_over_the_environment(world: World) -> None:
    """With BERTH_SERVER of a sandbox, `--context prod` once told about the sandbox."""
    env = {"BERTH_SERVER": "http://127.0.0.1:9"}
    for words in (["--context", "prod"], ["--kubeconfig", str(world.kubeconfig)]):
        assert await world.run("nodes", "-o", "name", *words, env=env) == (0, "node/n1\nnode/n2\n", "")
    code, _, err = await world.run("nodes", "--berth-namespace", "none", env=env)
    assert (code, "in namespace none of context prod" in err) == (2, True)
    assert "http://127.0.0.1:9 does not answer" in (await world.run("nodes", env=env))[2]
    code, _, err = await world.run("nodes", "--server", "http://127.0.0.1:9", "--context", "prod")
    assert (code, err) == (2, "berth: --server: does not go with --context prod: each names a console")


@NEEDS_OPENSSL
async def test_pages_with_tls_are_asked_with_the_authority_of_the_user(world: World, tmp_path: Path) -> None:
    """The components mtls and separate: the certificate has the name localhost, as docs/install.md says."""
    certificate(tmp_path, "server")
    tls = Tls(tmp_path / "server.crt", tmp_path / "server.key", None, None)
    world.api.pods[0]["spec"]["containers"][0]["args"].append("--tls-cert=/etc/berth-tls/tls.crt")
    async with listening(ConsoleApp(world.berth.console, Access("0.0.0.0", token_file=world.token)), LIMITS, tls) as (
        _,
        world.api.port,
    ):
        code, out, err = await world.run("nodes", "-o", "name", env={"SSL_CERT_FILE": str(tmp_path / "ca.crt")})
        assert (code, out, err) == (0, "node/n1\nnode/n2\n", "")
        code, _, err = await world.run("nodes")
        assert (code, "CERTIFICATE_VERIFY_FAILED" in err) == (2, True)


async def test_explain_watches_the_pod(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It prints the first answer, nothing while it stays the same, and the next one; Ctrl-C is no error."""
    world.berth.cluster.apply(claim("c", 9))
    world.berth.cluster.apply(pod("p", "c"))
    await eventually(lambda: world.berth.console.overview.fleet()["waiting"] == 1)
    loop, turns = asyncio.get_running_loop(), iter(range(3))

    async def change() -> None:
        waiting = world.berth.pod("p")
        changed = {**waiting, "spec": {**waiting["spec"], "schedulerName": "another"}}
        world.berth.cluster.store.put("pods", ("default", "p"), changed)
        await world.berth.settled()

    def sleep(_: float) -> None:
        turn = next(turns)
        if turn == 1:
            asyncio.run_coroutine_threadsafe(change(), loop).result()
        if turn == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("extender.cli.output.time.sleep", sleep)
    code, out, _ = await world.run("explain", "default/p", "-w", "-o", "json")
    assert code == 1
    sentences = [json.loads(line)["sentence"] for line in out.splitlines()]
    assert len(sentences) == 2
    assert sentences[1].startswith("pod default/p names scheduler another; ")


PLACE = "namespace berth-system of context prod"
PROBLEMS: dict[str, tuple[Json, str]] = {
    "no pod": ({"pods": []}, (f"no pod has the label app=berth-console in {PLACE}: "
               "--berth-namespace names another namespace, --server another console")),
    "not ready": ({"pods": [console_pod(phase="Running")]},
                  f"pod berth-console-1 in {PLACE} is not ready: its readiness probe fails"),
    "no image": ({"pods": [console_pod(phase="Pending", containerStatuses=[
                     {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}])]},
                 f"pod berth-console-1 in {PLACE} is not ready: ImagePullBackOff no such image"),
    "no right to pods": ({"refused": "pods"},
                         f'cannot list pods in {PLACE}: pods is forbidden: User "ann" cannot get resource "pods"'),
    "no right to the Secret": ({"refused": SECRET},
                               (f'cannot get Secret {SECRET} in {PLACE}: secrets is forbidden: User "ann" cannot get '
                               'resource "secrets"; who knows the token can set BERTH_TOKEN')),
    "no Secret": ({"secret": None}, (f"cannot get Secret {SECRET} in {PLACE}: it does not exist; "
                  "docs/install.md has the command that makes it")),
    "wrong token": ({"secret": "wrong"}, (f"pod berth-system/berth-console-1 rejects the token of Secret "
                    f"berth-system/{SECRET}; it reads a changed Secret within two minutes")),
    "no right to forward": ({"refused": "portforward"},
                            f"your account may not get and create pods/portforward in {PLACE}"),
    "nothing listens": ({"port": 9}, (f"cannot forward port 8889 of pod berth-console-1 in {PLACE}: "
                        "error forwarding port 8889 to pod x: connection refused")),
}  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
async def test_what_is_missing_is_said_in_one_sentence(name: str, world: World) -> None:
    changes, sentence = PROBLEMS[name]
    for key, value in changes.items():
        setattr(world.api, key, value)
    code, out, err = await world.run("nodes")
    assert (code, out, err) == (2, "", f"berth: {sentence}")


async def test_no_kubeconfig_is_said_in_one_sentence(world: World, tmp_path: Path) -> None:
    nowhere = {"KUBECONFIG": "", "HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": ""}
    code, _, err = await world.run("nodes", env=nowhere)
    sentence = "no kubeconfig leads to a cluster: set KUBECONFIG, or give --kubeconfig FILE; --server names a console"
    assert (code, err) == (2, f"berth: {sentence}")
