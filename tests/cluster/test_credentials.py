"""Credentials, and errors by status code. Plugins run in a thread, one at a time, before their token expires."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from structlog.testing import capture_logs

from extender.cluster import (
    ApiClient,
    ClusterError,
    Conflict,
    Credentials,
    Forbidden,
    NotFound,
    TooMany,
    Unavailable,
    credentials,
    load_credentials,
)
from extender.cluster.api_errors import Gone, Invalid, Unexpected, error_for
from extender.cluster.client import TokenCache
from extender.sandbox import listening, write_kubeconfig
from extender.web.asgi import Answer, Receive, Scope, Send
from tests.worlds.certificates import NEEDS_OPENSSL, certificate
from tests.worlds.eventually import HANG_SECONDS, eventually


def kubeconfig(folder: Path, script: str, *args: str) -> Path:
    """A kubeconfig whose user is a credential plugin: this Python with a script."""
    (folder / "plugin.py").write_text(script)
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(folder / "plugin.py"), *args],
        "interactiveMode": "Never",
    }
    return of_user(folder, {"exec": plugin})


def of_user(folder: Path, user: dict[str, object]) -> Path:
    path = write_kubeconfig(folder, "http://127.0.0.1:1")
    found = yaml.safe_load(path.read_text())
    found["users"][0]["user"] = user
    path.write_text(yaml.safe_dump(found))
    return path


def printing(status: object) -> str:
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    return f"print({json.dumps(json.dumps(answer))})"


ODD_ANSWERS = {
    printing({"token": "t", "expirationTimestamp": 5}): "an unexpected value",
    printing({"token": {"a": 1}}): "printable ASCII text",
    printing({"token": "t\r\nX-Other: header"}): "printable ASCII text",
    printing({"token": "t\u00e9"}): "printable ASCII text",
    printing({"token": ""}): "printable ASCII text",
    printing([]): "neither a token nor a client certificate",
    printing(5): "an unexpected value",
    "print('[' * 100_000)": "an unexpected value",
}


def test_a_plugin_s_token_is_used(tmp_path: Path) -> None:
    found = load_credentials(kubeconfig(tmp_path, printing({"token": "t0"})))
    assert found.token() == "Bearer t0"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("import sys; sys.exit('no network')", "process returned 1. no network"),
        ("print('hello')", "failed to decode process output"),
        (printing({}), "neither a token nor a client certificate"),
        (printing({"clientCertificateData": "x"}), "neither a token nor a client certificate"),
        (printing({"token": "t", "expirationTimestamp": "soon"}), "soon"),
        ("print('{}')", "missing key 'apiVersion'"),
    ],
)
def test_a_plugin_that_fails_is_named_with_its_reason(tmp_path: Path, script: str, words: str) -> None:
    with pytest.raises(ClusterError) as raised:
        load_credentials(kubeconfig(tmp_path, script, "--token", "s3cret"))
    assert str(raised.value).startswith(f"credential plugin {sys.executable} failed: ")
    assert words in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_a_plugin_that_does_not_exist_is_named(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, "")
    path.write_text(path.read_text().replace(sys.executable, "/nowhere/plugin"))
    with pytest.raises(ClusterError, match=r"credential plugin /nowhere/plugin failed: .*No such file"):
        load_credentials(path)


def test_a_plugin_that_fails_later_is_named_too(tmp_path: Path) -> None:
    """Its token has expired, and it cannot renew it."""
    found = load_credentials(
        kubeconfig(tmp_path, printing({"token": "t0", "expirationTimestamp": "2020-01-01T00:00:00Z"}))
    )
    (tmp_path / "plugin.py").write_text("import sys; sys.exit('revoked')")
    with pytest.raises(ClusterError, match=r"credential plugin .* failed: process returned 1. revoked"):
        found.token()
    for script, words in ODD_ANSWERS.items():
        (tmp_path / "plugin.py").write_text(script)
        with pytest.raises(ClusterError, match=f"credential plugin .* failed: .*{words}"):
            found.token()


@pytest.mark.parametrize(("text", "token"), [("t0\n", "Bearer t0"), ("t0\r\nX-Other: header", None)])
def test_a_token_is_one_line_of_text(tmp_path: Path, text: str, token: str | None) -> None:
    (tmp_path / "token").write_text(text)
    found = load_credentials(of_user(tmp_path, {"tokenFile": str(tmp_path / "token")}))
    if token is not None:
        assert found.token() == token
    else:
        with pytest.raises(ClusterError, match="printable ASCII text"):
            found.token()


class Plugin:
    """The source of a TokenCache: each read waits until `release` and returns the next token."""

    def __init__(self) -> None:
        self.reads = 0
        self.problem = ""
        self.release = threading.Semaphore(0)
        self.threads: set[int] = set()

    def __call__(self) -> str:
        self.reads += 1
        number = self.reads
        self.threads.add(threading.get_ident())
        self.release.acquire(timeout=60)  # a test that fails must not leave a thread behind
        if self.problem:
            raise ClusterError(self.problem)
        return f"t{number}"


async def test_one_plugin_runs_at_a_time_beside_the_loop_and_ahead_of_expiry() -> None:
    plugin, now = Plugin(), [0.0]
    cache = TokenCache(plugin, clock=lambda: now[0])
    asked = [asyncio.create_task(cache.get()) for _ in range(5)]
    await eventually(lambda: plugin.reads == 1)  # the loop turns while the plugin runs
    plugin.release.release()
    assert await asyncio.gather(*asked) == ["t1"] * 5
    assert threading.get_ident() not in plugin.threads
    assert await cache.get() == "t1"
    now[0] = 31.0
    assert [await cache.get(), await cache.get()] == ["t1", "t1"], "the last token serves while the next is read"
    plugin.release.release()
    await eventually(lambda: plugin.reads == 2)
    found = []
    while "t2" not in found:
        found.append(await cache.get())
        await asyncio.sleep(0)
    assert set(found) <= {"t1", "t2"}
    assert plugin.reads == 2


async def test_a_plugin_that_fails_leaves_the_last_token_while_it_lives() -> None:
    plugin, now = Plugin(), [0.0]
    plugin.release.release()
    cache = TokenCache(plugin, clock=lambda: now[0])
    assert await cache.get() == "t1"
    plugin.problem = "credential plugin p failed: revoked"
    with capture_logs() as lines:
        now[0] = 31.0
        assert await cache.get() == "t1"
        plugin.release.release()
        await eventually(lambda: bool(lines))
        assert await cache.get() == "t1", "not asked again at once"
        assert plugin.reads == 2, "not asked again at once"
        now[0] = 300.0
        plugin.release.release()
        with pytest.raises(ClusterError, match="credential plugin p failed: revoked"):
            await cache.get()
    assert lines[0] == {"event": "credentials cannot be refreshed", "problem": plugin.problem, "log_level": "warning"}


async def test_another_read_begins_beside_one_that_hangs_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.cluster.client._PATIENCE_SECONDS", 0.01)
    plugin, now = Plugin(), [0.0]
    cache = TokenCache(plugin, clock=lambda: now[0])

    async def reads_begin(number: int) -> bool:
        with pytest.raises(ClusterError, match="a credential plugin may hang"):
            await cache.get()
        return plugin.reads == number

    await eventually(lambda: reads_begin(1))
    for number in range(2, 6):
        now[0] += 60.0
        await eventually(lambda number=number: reads_begin(number))
    now[0] += 60.0
    assert not await reads_begin(6), "four hang, so no further thread is spent"
    plugin.release.release(5)

    async def served() -> bool:
        try:
            return (await cache.get() or "").startswith("t")
        except ClusterError:
            return False

    await eventually(served)


async def test_a_request_without_credentials_says_why_and_is_not_sent() -> None:
    def read() -> str:
        raise ClusterError("credential plugin p failed: revoked")

    async with ApiClient(Credentials("http://127.0.0.1:9", None, read)) as client:
        with pytest.raises(ClusterError, match="plugin p failed"):
            await client.get("/api/v1/nodes")
        with pytest.raises(ClusterError, match="plugin p failed"):
            await anext(client.lines("/api/v1/nodes", {}, 1.0))


# -- statuses ------------------------------------------------------------------------------------------------

STATUSES: dict[type[ClusterError], tuple[int, ...]] = {
    Unexpected: (300, 301, 304, 405, 406, 413, 415, 418, 600, 999),
    Invalid: (400, 422),
    Forbidden: (401, 403),
    NotFound: (404,),
    Unavailable: (408, 500, 502, 503, 504, 599),
    Conflict: (409,),
    Gone: (410,),
    TooMany: (429,),
}


@pytest.mark.parametrize("error", STATUSES)
def test_each_status_has_its_class_of_error(error: type[ClusterError]) -> None:
    for status in STATUSES[error]:
        for message in ("words", 'spec: Invalid value: {"say": "x: Forbidden: y"}: words'):
            found = error_for(status, message, 1.0)
            assert type(found) is error
            assert "words" in str(found)
            assert error is not Unexpected or str(status) in str(found)


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[ApiClient]:
    """A client of a server that always sends this answer."""

    async def api(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await answer.to(send)

    async with listening(api, "127.0.0.1", 0) as url, ApiClient(Credentials(url, None, lambda: None)) as client:
        yield client


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("1", 1.0),
        ("3600", 5.0),
        ("inf", 5.0),
        ("nan", 0.0),
        ("-7", 0.0),
        ("0", 0.0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 1.0),
        ("1e400", 5.0),
    ],
)
async def test_retry_after_is_capped(header: str, seconds: float) -> None:
    async with answering(Answer(429, b"{}", more=((b"retry-after", header.encode()),))) as client:
        with pytest.raises(TooMany) as raised:
            await client.post("/api/v1/nodes", {})
    assert raised.value.retry_after == seconds


@asynccontextmanager
async def dribbling(status: int) -> AsyncIterator[ApiClient]:
    """A client of a server whose responses have this status, and bodies of 20 bytes that do not end."""

    async def api(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 20, "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass

    async with listening(api, "127.0.0.1", 0) as url, ApiClient(Credentials(url, None, lambda: None)) as client:
        yield client


@pytest.mark.parametrize(("status", "error"), [(500, Unavailable), (410, Gone), (404, NotFound)])
async def test_a_refused_watch_ends_although_its_body_does_not(
    status: int, error: type[ClusterError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extender.cluster.client._REQUEST_SECONDS", 0.2)
    async with dribbling(status) as client, asyncio.timeout(HANG_SECONDS):
        with pytest.raises(error, match=f"watch /api/v1/nodes: HTTP status {status}"):
            await anext(client.lines("/api/v1/nodes", {}, HANG_SECONDS))


async def test_a_response_has_a_limited_length() -> None:
    async with dribbling(200) as client, asyncio.timeout(HANG_SECONDS):
        with pytest.raises(Unavailable, match="the response has more than 19 bytes"):
            await client.get("/api/v1/nodes", most_bytes=19)


async def test_a_redirected_write_is_no_success() -> None:
    """If the client followed the redirect, the POST would become a GET, and its 200 would look like a successful
    Binding.
    """
    seen = []

    async def api(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope["method"], scope["path"]))
        status, headers = (302, [(b"location", b"/login")]) if scope["path"] != "/login" else (200, [])
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})

    async with listening(api, "127.0.0.1", 0) as url, ApiClient(Credentials(url, None, lambda: None)) as client:
        with pytest.raises(Unexpected, match="302"):
            await client.post("/binding", {})
    assert seen == [("POST", "/binding")]


@pytest.mark.parametrize("body", [b"", b"<html>login</html>", b"[]", b"7", b"null"])
async def test_an_answer_that_is_no_object_is_an_error(body: bytes) -> None:
    async with answering(Answer(200, body)) as client:
        with pytest.raises(Unavailable):
            await client.get("/api/v1/nodes")


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that kubelet mounts into a pod, and the environment of its containers."""
    (tmp_path / "token").write_text("first\n")
    certificate(tmp_path, "server")  # and ca.crt
    monkeypatch.setattr(credentials, "_ACCOUNT", tmp_path)
    for name, value in {"HOST": "10.0.0.1", "PORT": "443"}.items():
        monkeypatch.setenv(f"KUBERNETES_SERVICE_{name}", value)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    return tmp_path


@NEEDS_OPENSSL
def test_the_account_of_a_pod_needs_no_kubernetes_client(account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubelet replaces the token."""
    found = load_credentials(None)
    assert (found.url, found.token()) == ("https://10.0.0.1:443", "Bearer first")
    assert found.tls is not None
    (account / "token").write_text("second")
    assert found.token() == "Bearer second"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    assert load_credentials(None).url == "https://[fd00::1]:443"


@NEEDS_OPENSSL
@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("token", None, "cannot read the token"),
        ("token", "", "it is not printable ASCII text"),
        ("token", "a\nb", "it is not printable ASCII text"),
        ("token", "\u00e4", "it is not printable ASCII text"),
        ("token", "x" * 70_000, "cannot read the token"),
        ("ca.crt", None, "ca.crt"),
        ("ca.crt", "", "ca.crt"),
    ],
)
def test_an_account_that_cannot_be_used_is_named(account: Path, file: str, content: str | None, problem: str) -> None:
    (account / file).unlink() if content is None else (account / file).write_text(content)
    with pytest.raises(ClusterError, match="cannot read credentials from the pod's service account") as raised:
        load_credentials(None)
    assert problem in str(raised.value)
