"""POST /v1/records over real HTTP: records come from serve processes only."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from extender.cluster import ApiClient, Credentials
from extender.console import ReviewResult, TokenReviewer
from extender.console.authentication import Limits
from extender.console.ingest import Ingest
from extender.entry.serve_process import Listen, RecordsTo, run
from extender.extension import Poster
from extender.extension.outbox import NotDelivered, Outbox, Rejected
from extender.model import DEFAULT_MIX, WireError
from extender.records import MAX_BODY, Batch, PolicyState, Record, Released
from extender.records.codec import encode
from extender.runtime import Supervisor
from extender.sandbox import listening
from extender.sandbox.apiserver.api_server import ApiServer
from extender.sandbox.apiserver.status_errors import ApiError
from extender.sandbox.apiserver.tokens import TokenUser
from extender.sandbox.apiserver.versioned_store import ObjectStore
from extender.web.record_routes import Records
from tests.eventually import HANG_SECONDS, eventually
from tests.test_serve import certificate, free_port

BERTH = "system:serviceaccount:berth-system:berth"
TOKENS = {
    "good": TokenUser(BERTH, ("berth-console",)),
    "both": TokenUser(BERTH, ("other", "berth-console")),
    "stranger": TokenUser("system:serviceaccount:default:default", ("berth-console",)),
    "wrong-audience": TokenUser(BERTH, ("https://kubernetes.default.svc",)),
}


def body(sequence: int = 1, *records: Record, epoch: str = "e1") -> bytes:
    return encode(Batch("berth-0", epoch, sequence, 0, PolicyState(1, "d"), DEFAULT_MIX, records))


@dataclass
class Clock:
    now: float = 0.0


@dataclass
class World:
    """A console's endpoint with an API server behind it."""

    api: ApiServer
    tokens: dict[str, TokenUser]
    records: Records
    reviewer: TokenReviewer
    ingest: Ingest
    applied: list[str]
    url: str
    client: httpx.AsyncClient
    clock: Clock

    async def post(self, content: bytes | None = None, token: str = "good", **headers: str) -> httpx.Response:
        given = {"Content-Type": "application/json", "Authorization": f"Bearer {token}".strip(), **headers}
        return await self.client.post("/v1/records", content=body() if content is None else content, headers=given)

    @property
    def reviews(self) -> int:
        return self.api.requests.get("POST tokenreviews", 0)


@asynccontextmanager
async def console(limits: Limits | None = None) -> AsyncIterator[World]:
    tokens = dict(TOKENS)
    api = ApiServer(ObjectStore(), tokens=tokens)
    applied: list[str] = []
    ingest = Ingest(
        lambda epoch, record: applied.append(getattr(record, "claim_uid", "")), lambda epoch: None, lambda: 0.0
    )
    async with listening(api, "127.0.0.1", 0) as address, ApiClient(Credentials(address, None, lambda: None)) as client:
        clock = Clock()
        reviewer = TokenReviewer(client, "berth-console", frozenset({BERTH}), lambda: clock.now, limits)
        records = Records(reviewer, ingest.take)
        async with (
            listening(records, "127.0.0.1", 0) as url,
            httpx.AsyncClient(base_url=url, timeout=HANG_SECONDS) as http,
        ):
            yield World(api, tokens, records, reviewer, ingest, applied, url, http, clock)


# -- what is taken --------------------------------------------------------------------------------------------------


async def test_a_batch_of_berth_is_taken() -> None:
    async with console() as w:
        reply = await w.post(body(1, Released("a"), Released("b")))
        assert (reply.status_code, reply.content) == (204, b"")
        assert (await w.post(body(3, Released("c")), token="both")).status_code == 204
        assert w.applied == ["a", "b", "c"]
        assert w.records.counts == {"204": 2}


async def test_the_outbox_reaches_the_console(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("expired\n")
    async with console() as w, Poster(w.url, token) as post:
        box = Outbox(post, "berth-0", lambda: (PolicyState(1, "d"), DEFAULT_MIX), lambda: 0.0, period=0.0)
        supervisor = Supervisor()
        supervisor.start("outbox", box.run)
        for n in range(600):
            box.put(Released(str(n)))
        await eventually(lambda: w.records.counts["401"])
        token.write_text("good\n")  # as the kubelet renews it
        await eventually(lambda: box.sent == 600)
        await supervisor.stop()
        assert w.applied == [str(n) for n in range(600)]
        assert w.ingest.counts["gaps"] == 0
        assert box.lost == 0


# -- rejected requests --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"token": ""}, 401),
        ({"token": "forged"}, 401),
        ({"token": "x" * 9000}, 401),
        ({"Authorization": "Basic Z29vZA=="}, 401),
        ({"Authorization": ""}, 401),
        ({"token": "wrong-audience"}, 401),
        ({"token": "stranger"}, 403),
        ({"Content-Type": "text/plain"}, 415),
    ],
)
async def test_strangers_are_refused_before_their_body_is_read(headers: dict[str, str], status: int) -> None:
    async with console() as w:
        reply = await w.post(b"{" * 100, **headers)
        assert reply.status_code == status
        assert reply.json()["error"]
        assert ("www-authenticate" in reply.headers) == (status == 401)
        assert not w.applied
        assert not w.ingest.streams()
        assert w.records.counts == {str(status): 1}


async def test_only_post_is_answered() -> None:
    async with console() as w:
        assert (await w.client.get("/v1/records")).status_code == 405
        assert w.reviews == 0


async def test_an_unauthenticated_body_is_not_read_at_all() -> None:
    """The answer comes although the body never does."""
    async with console() as w:
        port = int(w.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /v1/records HTTP/1.1\r\nHost: c\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
        )
        assert b" 401 " in await reader.readline()
        writer.close()


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (b"", 400, "batch: is no JSON"),
        (b"[" * 100_000, 400, "depth limit"),
        (
            body().replace(b'"version":1', b'"version":2'),
            400,
            "version: 2 is not known here: this Berth reads version 1",
        ),
        (body().replace(b'"sequence":1', b'"sequence":' + b"9" * 400), 400, "number is infinity"),
        (body().replace(b'"lost":0', b'"lost":-1'), 400, "lost: "),
        (b" " * (MAX_BODY + 1), 413, "larger than 1048576 bytes"),
    ],
)
async def test_bad_batches_are_refused_with_their_fault(content: bytes, status: int, words: str) -> None:
    async with console() as w:
        reply = await w.post(content)
        assert reply.status_code == status
        assert words in reply.json()["error"]
        assert not w.ingest.streams()
        assert w.records.counts == {"version" if "version" in words else str(status): 1}


async def test_an_ended_process_is_told_so_and_drops_its_records() -> None:
    async with console() as w:
        await w.post(body(1, epoch="old"))
        await w.post(body(1, epoch="new"))
        reply = await w.post(body(2, Released("a"), epoch="old"))
        assert reply.status_code == 409
        assert "epoch old of berth-0 has ended" in reply.json()["error"]
        assert not w.applied


def fails(*_: object) -> None:
    raise ZeroDivisionError


async def test_a_bug_of_the_console_is_no_success() -> None:
    async with console() as w:
        w.ingest = Ingest(fails, lambda epoch: None, lambda: 0.0)
        records = Records(w.reviewer, w.ingest.take)
        async with listening(records, "127.0.0.1", 0) as url:
            headers = {"Content-Type": "application/json", "Authorization": "Bearer good"}
            reply = await w.client.post(f"{url}/v1/records", content=body(1, Released("a")), headers=headers)
            assert reply.status_code == 500
            assert records.counts == {"500": 1}


# -- the API server -------------------------------------------------------------------------------------------------


async def test_reviews_are_remembered_for_a_while() -> None:
    async with console() as w:
        for _ in range(3):
            await w.post(token="good")
            await w.post(token="forged")
        assert w.reviews == 2
        w.clock.now = 6.0
        await w.post(token="good")
        await w.post(token="forged")
        assert w.reviews == 3
        w.clock.now = 61.0
        await w.post(token="good")
        assert w.reviews == 4


async def test_a_token_that_is_taken_back_is_refused_once_its_review_is_old() -> None:
    async with console() as w:
        assert (await w.post()).status_code == 204
        del w.tokens["good"]
        assert (await w.post()).status_code == 204
        w.clock.now = 61.0
        assert (await w.post()).status_code == 401


@pytest.mark.parametrize("code", [401, 403, 404, 429, 500, 503])
async def test_nobody_is_let_in_while_the_api_server_fails(code: int) -> None:
    async def failing(method: str, path: str) -> ApiError:
        return ApiError(code, "Failed", "secret words of the API server")

    async with console() as w:
        w.api.intercept = failing
        reply = await w.post()
        assert reply.status_code == 503
        assert "secret" not in reply.text
        w.api.intercept = None
        assert (await w.post()).status_code == 204  # a failure is not remembered


async def test_a_stranger_cannot_flood_the_api_server_nor_shut_berth_out() -> None:
    async with console(Limits(burst=5.0, per_second=1.0, tokens=8)) as w:
        assert (await w.post()).status_code == 204
        statuses = [(await w.post(token=f"guess-{n}")).status_code for n in range(50)]
        assert statuses == [401] * 4 + [429] * 46
        assert w.reviews == 5
        w.clock.now = 61.0  # Berth's review is too old now, and the bucket is full again
        for n in range(50):
            await w.post(token=f"guess-again-{n}")
        assert (await w.post()).status_code == 204
        assert w.reviews == 5 + 5 + 1


async def test_a_stranger_on_another_address_leaves_serve_its_reviews() -> None:
    """The console does not know serve's token: it has restarted, or the token was rotated."""
    async with console(Limits(burst=5.0)) as w:
        transport = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
        async with httpx.AsyncClient(base_url=w.url, transport=transport, timeout=HANG_SECONDS) as http:
            stranger = replace(w, client=http)
            statuses = [(await stranger.post(token=f"guess-{n}")).status_code for n in range(50)]
        assert statuses == [401] * 5 + [429] * 45
        assert (await w.post()).status_code == 204
        assert w.reviewer.sources == 2


async def test_reviews_and_sources_that_are_remembered_are_limited() -> None:
    async with console(Limits(tokens=8, sources=4)) as w:
        for n in range(40):
            await w.reviewer.review(f"guess-{n}", f"10.0.0.{n}")
        assert w.reviews == 40
        assert (w.reviewer.remembered, w.reviewer.sources) == (8, 4)


async def test_few_reviews_are_under_way_at_once_and_fewer_of_one_source() -> None:
    async with console(Limits(in_flight=3, in_flight_per_source=2)) as w:
        arrived, go = 0, asyncio.Event()

        async def slow(method: str, path: str) -> None:
            nonlocal arrived
            arrived += 1
            await go.wait()

        w.api.intercept = slow
        waiting = [asyncio.create_task(w.reviewer.review(f"guess-{n}", "stranger")) for n in range(2)]
        await eventually(lambda: arrived == 2)
        assert (await w.reviewer.review("guess", "stranger")).result is ReviewResult.BUSY
        waiting.append(asyncio.create_task(w.reviewer.review("good", "serve")))
        await eventually(lambda: arrived == 3)
        assert (await w.reviewer.review("both", "serve")).result is ReviewResult.BUSY
        go.set()
        await asyncio.gather(*waiting)
        w.api.intercept = None
        assert (await w.reviewer.review("good", "serve")).result is ReviewResult.ALLOWED


# -- the poster -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 307, 401, 408, 429, 500, 503])
async def test_these_answers_are_tried_again(status: int) -> None:
    with pytest.raises(NotDelivered, match=f"the console answers {status}"):
        await _answered(status)


@pytest.mark.parametrize("status", [400, 403, 404, 409, 413, 415, 426])
async def test_these_answers_are_for_good(status: int) -> None:
    with pytest.raises(Rejected, match=f"the console answers {status}: no"):
        await _answered(status)


async def _answered(status: int) -> None:
    """Post to a server that answers so, and redirects to itself."""
    asked = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal asked
        asked += 1
        headers = [(b"location", b"/elsewhere"), (b"set-cookie", b"a=b")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"no" + b"!" * 100_000})

    async with listening(app, "127.0.0.1", 0) as url, Poster(url) as post:
        try:
            await post(b"{}")
        finally:
            assert asked == 1


@pytest.mark.parametrize("tls", [False, True])
async def test_an_answer_without_an_end_is_cut_off(tmp_path: Path, tls: bool) -> None:
    """aiohttp would parse 1xx answers until its time-out, and meanwhile no other task of the event loop would run."""
    context = None
    if tls:
        certificate(tmp_path, "server")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    sent = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        with suppress(OSError):
            while True:
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)
                await writer.drain()
                sent += 1
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    url = f"{'https' if tls else 'http'}://localhost:{server.sockets[0].getsockname()[1]}"
    async with server, Poster(url, ca_file=tmp_path / "ca.crt" if tls else None) as post:
        with pytest.raises(NotDelivered, match="more than 16384 bytes"):
            await post(b"{}")


async def test_the_limit_of_an_answer_counts_each_answer_alone() -> None:
    """One connection carries many batches."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"0"), (b"x", b"y" * 4000)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body"})

    async with listening(app, "127.0.0.1", 0) as url, Poster(url) as post:
        for _ in range(10):
            await post(b"{}")


@pytest.mark.parametrize("content", [b"", b"  \n", b"two\nlines", b"\xff\xfe", b"x" * 20_000, None])
async def test_a_token_file_without_a_token_is_told(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    async with Poster("http://127.0.0.1:9", file) as post:
        with pytest.raises(NotDelivered, match="token: "):
            await post(b"{}")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://no.such.host.invalid", "nonsense", "http://[::1"])
async def test_a_console_that_cannot_be_reached_is_told(url: str) -> None:
    async with Poster(url) as post:
        with pytest.raises(NotDelivered):
            await post(b"{}")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
async def test_only_a_console_of_the_named_authority_is_told(tmp_path: Path) -> None:
    certificate(tmp_path, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
    async with server:
        async with Poster(url, ca_file=tmp_path / "ca.crt") as post:
            await post(b"{}")
        async with Poster(url) as post:
            with pytest.raises(NotDelivered, match=r"(?i)certificate"):
                await post(b"{}")


async def test_an_authority_that_is_none_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("nonsense")
    for name, problem in (("ca", "holds no certificates"), ("absent", "No such file")):
        with pytest.raises(WireError, match=f"--records-ca: .*{name} .*{problem}"):
            async with Poster("https://127.0.0.1:1", ca_file=tmp_path / name):
                pass


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
async def test_serve_reads_a_changed_authority_again(tmp_path: Path) -> None:
    """A console with a certificate of a new authority got no record until serve was restarted."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        certificate(tmp_path / name, "server")
    authority = tmp_path / "ca.crt"
    shutil.copy(tmp_path / "old" / "ca.crt", authority)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "new" / "server.crt", tmp_path / "new" / "server.key")
    told = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        told.set()
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    to = RecordsTo(f"https://localhost:{server.sockets[0].getsockname()[1]}", ca=authority)
    async with server, listening(ApiServer(ObjectStore()), "127.0.0.1", 0) as api:
        with capture_logs() as lines:
            credentials = Credentials(api, None, lambda: None)
            serving = asyncio.create_task(run(credentials, Listen(("127.0.0.1", free_port())), console=to))
            await eventually(lambda: any("certificate" in line.get("problem", "") for line in lines))
            shutil.copy(tmp_path / "new" / "ca.crt", authority)
            await asyncio.wait_for(told.wait(), HANG_SECONDS)
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
