"""Serve posts records: it tries again or gives up by the console's reply, and trusts the named authority alone."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs

from extender.cluster import Credentials
from extender.entry.serve_process import Listen, RecordsTo, run
from extender.extension import Poster, Rejected
from extender.extension.outbox import EpochEnded, NotDelivered
from extender.model import WireError
from extender.sandbox import listening
from extender.sandbox.apiserver.api_server import ApiServer
from extender.sandbox.apiserver.versioned_store import ObjectStore
from tests.certificates import NEEDS_OPENSSL, certificate
from tests.eventually import HANG_SECONDS, eventually
from tests.process_worlds import free_port

pytestmark = pytest.mark.loopback


@pytest.mark.parametrize("status", [301, 307, 401, 408, 429, 500, 503])
async def test_these_answers_are_tried_again(status: int) -> None:
    with pytest.raises(NotDelivered, match=f"the console answers {status}"):
        await _answered(status)


@pytest.mark.parametrize("status", [400, 403, 404, 413, 415, 426])
async def test_these_answers_are_for_good(status: int) -> None:
    with pytest.raises(Rejected, match=f"the console answers {status}: no"):
        await _answered(status)


async def test_a_conflict_ends_the_epoch() -> None:
    with pytest.raises(EpochEnded, match="the console answers 409"):
        await _answered(409)


async def _answered(status: int) -> None:
    """Post to a server that answers with this status and a redirect to itself."""
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


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("tls", [False, True])
def test_an_answer_without_an_end_is_cut_off(tmp_path: Path, tls: bool, new_loop: Any) -> None:
    """aiohttp would parse 1xx answers until its time-out, and meanwhile no other task of the event loop would run."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_answered_without_end(tmp_path, tls))


async def _answered_without_end(tmp_path: Path, tls: bool) -> None:
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
async def test_a_token_file_without_a_token_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    async with Poster("http://127.0.0.1:9", file) as post:
        with pytest.raises(NotDelivered, match="token: "):
            await post(b"{}")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://no.such.host.invalid", "nonsense", "http://[::1"])
async def test_an_unreachable_console_is_an_error(url: str) -> None:
    async with Poster(url) as post:
        with pytest.raises(NotDelivered):
            await post(b"{}")


@NEEDS_OPENSSL
async def test_only_a_console_of_the_named_authority_gets_records(tmp_path: Path) -> None:
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
        (tmp_path / "other").mkdir()
        certificate(tmp_path / "other", "server")
        for others in (None, tmp_path / "other" / "ca.crt"):
            async with Poster(url, ca_file=others) as post:
                with pytest.raises(NotDelivered, match=r"(?i)certificate"):
                    await post(b"{}")


async def test_an_invalid_authority_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("nonsense")
    for name, problem in (("ca", "holds no certificates"), ("absent", "No such file")):
        with pytest.raises(WireError, match=f"--records-ca: .*{name} .*{problem}"):
            async with Poster("https://127.0.0.1:1", ca_file=tmp_path / name):
                pass


@NEEDS_OPENSSL
async def test_serve_reads_a_changed_authority_again(tmp_path: Path) -> None:
    """A console with a certificate of a new authority got no record until serve was restarted."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        certificate(tmp_path / name, "server")
    authority = tmp_path / "ca.crt"
    shutil.copy(tmp_path / "old" / "ca.crt", authority)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "new" / "server.crt", tmp_path / "new" / "server.key")
    delivered = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        delivered.set()
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
            await asyncio.wait_for(delivered.wait(), HANG_SECONDS)
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
