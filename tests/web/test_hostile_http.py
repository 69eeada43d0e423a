"""Limits of memory, connections, handshakes and log lines hold for every client, over real sockets."""

from __future__ import annotations

import asyncio
import errno
import socket
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from extender.base.timers import TokenBuckets
from extender.entry.listening import server
from extender.web.asgi import PAGES, HttpLimits, RejectionLog
from extender.web.console.console_app import ConsoleApp
from extender.web.http_server import Connection, Server, _Acceptor
from extender.web.serve_app import Probes
from tests.worlds.eventually import HANG_SECONDS, eventually
from tests.worlds.http_worlds import (
    EXPLAIN,
    FILTER,
    HEAD,
    JSON,
    LIMITS,
    SOON,
    berth,
    connected,
    hang_up,
    kept,
    left,
    listening,
    status,
)
from tests.worlds.running_berth import berthing
from tests.worlds.skipping_loop import in_virtual_time

ENDLESS = {
    "a header without end": (HEAD + b"X: ", b"x" * 1024),
    "headers without end": (HEAD, b"x: y\r\n" * 100),
    "a path without end": (b"GET /", b"x" * 1024),
    "a method without end": (b"", b"\r\n" * 512),
}


def causes(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """The causes of the rejections among log lines."""
    return [line["because"] for line in lines if line["event"] == "rejected"]


@pytest.mark.parametrize("name", ENDLESS)
async def test_headers_are_limited(name: str) -> None:
    first, again = ENDLESS[name]
    async with berth() as port:
        with capture_logs() as lines:
            await left(await connected(port, first), again)
            await eventually(lambda: bool(causes(lines)))
        assert set(causes(lines)) == {"headers too large"}
        assert await status(port, HEAD + b"\r\n") == 200


async def test_headers_that_come_in_one_piece_are_limited_too() -> None:
    async with berth() as port:
        assert await status(port, HEAD + b"X: " + b"x" * 4096 + b"\r\n\r\n") == 431
        assert await status(port, HEAD + b"X: " + b"x" * 3072 + b"\r\n\r\n") == 200
        assert await status(port, HEAD + b"X: " + b"x" * 4096) == 431, "also before their end"


def connection_of(web: Server, kind: type[Connection] = Connection) -> Connection:
    """A connection of a server that is not started."""
    return kind(web, config=web.config, server_state=web.server_state, app_state={})


async def test_headers_beyond_their_limit_are_not_parsed() -> None:
    """65,000 headers that came in one piece once took 25 ms of the event loop."""
    parsed = 0

    class Counting(Connection):
        def on_header(self, name: bytes, value: bytes) -> None:
            nonlocal parsed
            parsed += 1
            super().on_header(name, value)

    made = connection_of(server(None, ("127.0.0.1", 0), LIMITS), Counting)
    made.connection_made(Mock(get_extra_info=Mock(return_value=None)))
    made.data_received(b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 65_000)
    made.connection_lost(None)
    assert parsed <= LIMITS.head_bytes / 4 + 1


async def test_a_connection_whose_handshake_fails_takes_no_memory() -> None:
    """Half handshakes of one client once took 400 MB in three minutes: each connection and its parser kept each other,
    until the collector looked for old cycles.
    """
    web = server(None, ("127.0.0.1", 0), LIMITS)
    made = weakref.ref(connection_of(web))
    assert made() is None, "uvloop drops it without connection_made and connection_lost"


@pytest.mark.parametrize("request_", [FILTER, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"])
@pytest.mark.parametrize("coding", [b"chunked", b"gzip, chunked", b"Chunked"])
async def test_chunked_bodies_are_rejected(request_: bytes, coding: bytes) -> None:
    """Four clients that sent chunks of one byte, also after the answer, once made a filter request take seconds."""
    async with berth() as port:
        chunks = b"1\r\nx\r\n" * 64
        with capture_logs() as lines:
            found = await left(await connected(port, request_ + b"Transfer-Encoding: " + coding + b"\r\n\r\n"), chunks)
            await eventually(lambda: bool(causes(lines)))
        assert found.startswith(b"HTTP/1.1 411") or not found, "the answer may be lost with the connection"
        assert set(causes(lines)) == {"a body needs a Content-Length"}
        assert await status(port, HEAD + b"\r\n") == 200


async def test_a_body_that_goes_on_after_the_answer_ends_the_connection() -> None:
    """48 clients that sent bodies to the probes, which read none, once kept /livez waiting for 6 s."""
    async with berth() as port:
        head = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\n"
        found = await left(await connected(port, head), b"x" * 1024)
        assert found.startswith(b"HTTP/1.1 200") or not found, "the answer may be lost with the connection"
        assert await status(port, HEAD + b"\r\n") == 200


async def test_a_client_that_still_sends_a_small_body_gets_its_answer_and_keeps_the_connection() -> None:
    """A close at once would reset the connection, and with it the answer that says what is wrong."""
    head = b"POST /filter HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n"
    async with berth() as port, kept(port) as ask:
        assert b" 415 " in await ask(head)
        assert b" 415 " in await ask(b" " * 60_000 + head)


async def test_a_client_that_floods_the_probes_gets_429_and_others_get_their_answers() -> None:
    """64 connections that asked for /metrics without a pause once made a filter request a hundred times slower."""
    now = [0.0]
    limits = HttpLimits(per_client=20)
    async with berthing({"n1": "t4-4"}) as b:
        probes = Probes(b.app.service)
        async with listening(probes, limits, clock=lambda: now[0]) as (_, port), kept(port) as ask:
            for _ in range(18):
                assert b" 200 " in await ask(HEAD)
            found = await left(await connected(port, HEAD + b"\r\n"))
            assert found.startswith(b"HTTP/1.1 429")
            assert b"connection: close" in found
            assert await left(await connected(port, HEAD + b"\r\n")) == b"", "a connection counts, too"
            assert await status(port, HEAD + b"\r\n", source="127.0.0.2") == 200, "kubelet has a rate of its own"
            now[0] += 0.16
            assert [await status(port, HEAD + b"\r\n") for _ in range(2)] == [200, 429]
            now[0] += 60
            begun = [await connected(port, b"G") for _ in range(10)]
            await asyncio.sleep(0)
            assert await left(await connected(port)) == b"", "a request counts from its first byte"
            await hang_up(*begun)


async def test_a_client_that_floods_the_console_leaves_connections_to_others() -> None:
    """300 connections that asked for /version without a pause had kubelet's connections reset, and it ends such a
    console.
    """
    async with (
        berthing({"n1": "t4-4"}) as b,
        listening(ConsoleApp(b.console), PAGES, clock=lambda: 0.0) as (_, port),
        kept(port) as ask,
    ):
        answers = [await ask(b"GET /version HTTP/1.1\r\nHost: localhost\r\n") for _ in range(100)]
        assert all(b" 200 " in answer for answer in answers)
        begun = [await connected(port) for _ in range(100)]
        assert await asyncio.wait_for(begun[-1][0].read(), HANG_SECONDS) == b"", "the 101st connection"
        assert await status(port, HEAD + b"\r\n", source="127.0.0.2") == 200, "kubelet"
        await hang_up(*begun)


async def test_a_client_that_opens_connections_too_fast_is_cut_off_and_others_get_their_answers() -> None:
    """Half a million connections in 15 s kept kubelet waiting for 4 s: its connection had to wait for its turn."""
    limits = HttpLimits(per_client=2)
    async with berthing({"n1": "t4-4"}) as b, listening(Probes(b.app.service), limits, clock=lambda: 0.0) as (_, port):
        first = [await connected(port) for _ in range(3)]
        assert await asyncio.wait_for(first[2][0].read(), HANG_SECONDS) == b""
        assert await status(port, HEAD + b"\r\n", source="127.0.0.2") == 200
        assert not any(reader.at_eof() for reader, _ in first[:2])
        await hang_up(*first)


def test_the_addresses_with_a_rate_are_bounded() -> None:
    rates = TokenBuckets[str](20, 1 / 20, remembered=1024)
    for number in range(5000):
        assert rates.take(f"10.0.{number // 256}.{number % 256}", 0.0)
    assert len(rates) == 1024


IDLE_LIMIT = HttpLimits(idle_seconds=SOON)
BODY_LIMIT = HttpLimits(body_seconds=SOON)
SILENT = {
    "nothing": (IDLE_LIMIT, b"", b""),
    "half a head": (IDLE_LIMIT, HEAD, b""),
    "a head that drips": (IDLE_LIMIT, HEAD, b"x"),
    "lines that drip": (IDLE_LIMIT, b"\r\n", b"\r\n"),
    "idle after an answer": (IDLE_LIMIT, HEAD + b"\r\n", b""),
    "half a body": (BODY_LIMIT, FILTER + b"Content-Length: 100\r\n\r\n{", b""),
    "half a body of a page": (BODY_LIMIT, EXPLAIN + b"Content-Length: 100\r\n\r\n{", b""),
    "a body after the reply": (BODY_LIMIT, HEAD + b"Content-Length: 100000000\r\n\r\n", b"x"),
}


@pytest.mark.parametrize("name", SILENT)
async def test_connections_that_say_nothing_more_are_closed(name: str) -> None:
    """Only the limit of the case is short: on a busy machine another one could end the connection first."""
    limits, first, drop = SILENT[name]
    async with berth(limits) as port:
        reader, writer = await connected(port, first)

        async def drip() -> None:
            while drop:
                writer.write(drop)
                await asyncio.sleep(SOON / 10)

        dripping = asyncio.create_task(drip())
        with suppress(ConnectionResetError):
            await asyncio.wait_for(reader.read(), HANG_SECONDS)
        dripping.cancel()
        await hang_up((reader, writer))


async def test_a_new_connection_takes_the_place_of_the_one_that_waits_longest() -> None:
    async with berth(replace(LIMITS, connections=3)) as port:
        with capture_logs() as lines:
            waiting = [await connected(port) for _ in range(3)]
            for reader, writer in waiting:
                writer.write(HEAD + b"\r\n")
                await reader.readuntil(b"ok")
            assert await status(port, HEAD + b"\r\n") == 200
            assert await asyncio.wait_for(waiting[0][0].read(), HANG_SECONDS) == b""
            waiting[2][1].write(HEAD + b"\r\n")
            assert b"200" in await waiting[2][0].readline()
        assert causes(lines)[0] == "too many connections"
        await hang_up(*waiting)


async def test_a_new_connection_takes_the_place_of_one_whose_body_is_incomplete() -> None:
    """256 users' bodies that did not arrive once kept kubelet from the console's probes, again and again for 10 s."""
    async with berth(replace(LIMITS, connections=2)) as port:
        slow = [await connected(port, FILTER + b"Content-Length: 9\r\nExpect: 100-continue\r\n\r\n") for _ in range(2)]
        for reader, _ in slow:
            assert b"100 Continue" in await reader.readline()
        assert await status(port, HEAD + b"\r\n") == 200
        await left(slow[0])  # ends: the server has closed it
        slow[1][1].write(b"{" * 9)
        assert await slow[1][0].readuntil(b" Bad Request") == b"\r\nHTTP/1.1 400 Bad Request"
        await hang_up(slow[1])


async def test_a_new_connection_is_closed_where_all_others_are_in_use() -> None:
    asked, answer = 0, asyncio.Event()

    async def slow(scope: dict, receive: object, send: Callable[[dict], Awaitable[None]]) -> None:
        nonlocal asked
        asked += 1
        await answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    # No time limit closes the new connection within the patience of `left`.
    async with listening(slow, replace(LIMITS, connections=2, idle_seconds=2 * HANG_SECONDS)) as (_, port):
        busy = [await connected(port, HEAD + b"\r\n") for _ in range(2)]
        await eventually(lambda: asked == len(busy))
        assert await left(await connected(port)) == b""
        answer.set()
        assert [await reader.readuntil(b" 200 ") for reader, _ in busy] == [b"HTTP/1.1 200 "] * 2
        assert await status(port, HEAD + b"\r\n") == 200, "it takes the place of one that waits"
        await hang_up(*busy)


@pytest.mark.parametrize("request_", [FILTER, EXPLAIN])
async def test_the_sum_of_bodies_is_limited(request_: bytes) -> None:
    """Twenty bodies of 15 MB once needed 400 MB."""
    head = request_ + b"Content-Length: 1000000\r\n\r\n"
    async with berth(replace(LIMITS, bodies_bytes=1_500_000)) as port:
        first = await connected(port, head + b" " * 900_000)
        second = await connected(port, head + b" " * 900_000)
        answers = {asyncio.create_task(one[0].readline()): one for one in (first, second)}
        done, _ = await asyncio.wait(answers, timeout=HANG_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        (refused,) = done
        assert b"503" in refused.result()
        other = next(task for task in answers if task is not refused)
        answers[other][1].write(b" " * 100_000)
        assert b"400" in await asyncio.wait_for(other, HANG_SECONDS), "the other one is read to its end"
        assert await status(port, head + b" " * 1_000_000) == 400, "their memory is free again"
        await hang_up(*answers.values())


@pytest.mark.parametrize("request_", [FILTER, EXPLAIN])
async def test_a_body_that_is_announced_too_large_is_not_waited_for(request_: bytes) -> None:
    async with berth() as port:
        assert await status(port, request_ + b"Content-Length: 999999999\r\n\r\n") == 413


async def test_a_client_that_does_not_wait_for_the_answer_is_cut_off() -> None:
    async with berth() as port:
        with capture_logs() as lines:
            found = await left(await connected(port, (FILTER + b"Content-Length: 2\r\n\r\n{}") * 1000))
        assert found.count(b"HTTP/1.1 ") <= 1
        assert causes(lines) == ["pipelined request"]
        assert await status(port, HEAD + b"\r\n") == 200


NOT_HTTP = [
    b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    b"what?\r\n\r\n",
]


@pytest.mark.parametrize("data", NOT_HTTP)
async def test_bytes_that_are_not_http_get_400(data: bytes) -> None:
    async with berth() as port:
        found = await left(await connected(port, data))
    assert found.startswith(b"HTTP/1.1 400")
    assert b"x-content-type-options: nosniff" in found.lower()


REPEATED = {"content-type": "application/json", "host": "localhost", "origin": "http://localhost", "authorization": "x"}


@pytest.mark.parametrize("name", REPEATED)
@pytest.mark.parametrize("path", ["/filter", "/v1/explain", "/livez"])
async def test_a_repeated_header_that_decides_on_access_is_refused(path: str, name: str) -> None:
    """The verbs once took the last Content-Type, and the pages the first one."""
    headers = {"host": "localhost", "content-type": "application/json", "content-length": "2", "connection": "close"}
    lines = [*headers.items(), *([] if name in headers else [(name, REPEATED[name])]), (name.upper(), REPEATED[name])]
    head = "".join(f"{key}: {value}\r\n" for key, value in [*lines, ("accept", "a"), ("accept", "b")])
    async with berth() as port:
        with capture_logs() as logged:
            found = await left(await connected(port, f"POST {path} HTTP/1.1\r\n{head}\r\n{{}}".encode()))
    assert found.startswith(b"HTTP/1.1 400")
    assert causes(logged) == ["a header is repeated"]


async def test_an_upgrade_is_answered_as_if_it_were_none() -> None:
    async with berth() as port:
        found = await left(await connected(port, HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\nframes"))
    assert found.startswith(b"HTTP/1.1 200")
    assert found.endswith(b"ok")


FOREIGN = [
    (b"Origin: http://evil.example\r\n" + JSON, 403), (b"Origin: null\r\n" + JSON, 403),
    (b"origin: http://localhost\r\n" + JSON, 403),
    (b"", 415), (b"Content-Type: text/plain\r\n", 415), (b"Content-Type: application/x-www-form-urlencoded\r\n", 415),
    (JSON, 400), (b"Content-Type: Application/JSON; charset=utf-8\r\n", 400),
]  # fmt: skip


@pytest.mark.parametrize("verb", [b"filter", b"prioritize", b"bind", b"preempt"])
async def test_the_verbs_are_for_kube_scheduler(verb: bytes) -> None:
    async with berth() as port:
        for headers, wanted in FOREIGN:
            request = b"POST /" + verb + b" HTTP/1.1\r\nHost: localhost\r\n" + headers + b"Content-Length: 1\r\n\r\n["
            assert await status(port, request) == wanted, headers


def test_rejections_are_logged_at_a_limited_rate() -> None:
    now = [0.0]
    log = RejectionLog(lambda: now[0])
    with capture_logs() as lines:
        for _ in range(1000):
            log.note("not HTTP", client="10.1.2.3")
        log.note("client certificate")
        assert [line["because"] for line in lines] == ["not HTTP"] * 5 + ["client certificate"], (
            "one cause does not hide another"
        )
        now[0] += 10
        for _ in range(1000):
            log.note("not HTTP", client="10.1.2.3")
        assert len(lines) == 7
        assert lines[-1]["left_out"] == 995
        now[0] += 3600
        log.note("not HTTP", client="10.1.2.3")
        assert lines[-1]["left_out"] == 999


PATIENT = HttpLimits(write_seconds=30.0, idle_seconds=1000.0)


class Full(asyncio.Transport):
    """Its buffer is full: the client reads less than the server writes."""

    aborted = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        del name
        return default

    def get_write_buffer_size(self) -> int:
        return 1

    def abort(self) -> None:
        self.aborted = True


@pytest.mark.parametrize("reads_after", [29.0, 31.0])
def test_an_answer_is_paused_for_a_limited_time(reads_after: float) -> None:
    async def aborted() -> bool:
        web = server(None, ("127.0.0.1", 0), PATIENT)
        one, transport = web.connection(), Full()
        one.connection_made(transport)
        one.pause_writing()
        await asyncio.sleep(reads_after)
        await web.on_tick(1)
        one.resume_writing()
        await asyncio.sleep(PATIENT.write_seconds)
        await web.on_tick(1)
        return transport.aborted

    assert in_virtual_time(aborted()) == (reads_after > PATIENT.write_seconds)


class _Full(socket.socket):
    """A socket that once finds no file descriptor for a connection."""

    failed = False

    def accept(self) -> tuple[socket.socket, Any]:
        if not self.failed:
            self.failed = True
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def test_a_server_accepts_again_after_an_error() -> None:
    """5,000 half-open TLS handshakes took all 1,024 file descriptors; uvloop then closed the server for good."""
    bound, accepted = _Full(), []
    bound.bind(("127.0.0.1", 0))
    bound.listen()

    async def connect(sock: socket.socket) -> None:
        accepted.append(sock)

    acceptor = _Acceptor(bound, connect, 3, lambda _: True)
    connection = await connected(bound.getsockname()[1])
    await eventually(lambda: accepted)
    acceptor.close()
    accepted[0].close()
    await hang_up(connection)


async def test_a_new_connection_replaces_the_one_whose_handshake_takes_longest() -> None:
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    bound.listen()
    acceptor = _Acceptor(bound, lambda sock: asyncio.Event().wait(), 3, lambda _: True)
    connections = [await connected(bound.getsockname()[1]) for _ in range(5)]
    for reader, _ in connections[:2]:
        assert await asyncio.wait_for(reader.read(), HANG_SECONDS) == b""
    assert not any(reader.at_eof() for reader, _ in connections[2:])
    acceptor.close()
    for reader, _ in connections[2:]:
        assert await asyncio.wait_for(reader.read(), HANG_SECONDS) == b""
    await hang_up(*connections)
