"""Berth's servers on sockets, and connections that send bytes of a test's own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from extender.entry.listening import Tls, server
from extender.sandbox import running
from extender.web.asgi import HttpLimits
from extender.web.console.console_app import Access, ConsoleApp
from extender.web.http_server import listen_on
from extender.web.serve_app import Probes, ServeApp
from tests.worlds.eventually import HANG_SECONDS
from tests.worlds.running_berth import AtOneAddress, berthing

LIMITS = HttpLimits(head_bytes=4096)
SOON = 0.2  # seconds; a limit that a test waits for
JSON = b"Content-Type: application/json\r\n"
FILTER = b"POST /filter HTTP/1.1\r\nHost: localhost\r\n" + JSON
EXPLAIN = b"POST /v1/explain HTTP/1.1\r\nHost: localhost\r\n" + JSON
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def listening(
    app: Any, limits: HttpLimits, tls: Tls | None = None, clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[tuple[Any, int]]:
    """(the server, its port)."""
    web = server(app, ("127.0.0.1", 0), limits, tls, clock=clock)
    async with running(web, listen_on("--listen", "127.0.0.1", 0)):
        ticking = asyncio.create_task(web.main_loop())
        yield web, web.servers[0].sockets[0].getsockname()[1]
        ticking.cancel()


@asynccontextmanager
async def berth(limits: HttpLimits = LIMITS, access: Access | None = None) -> AsyncIterator[int]:
    """The port of a Berth whose verbs and pages have these limits; the console answers all paths that serve does not
    have.
    """
    async with berthing({"n1": "t4-4"}) as b:
        verbs = ServeApp(b.app.service, Probes(b.app.service), limits=limits)
        async with listening(AtOneAddress(verbs, ConsoleApp(b.console, access, limits)), limits) as (_, port):
            yield port


@asynccontextmanager
async def pages(access: Access | None = None) -> AsyncIterator[int]:
    """The port of a console."""
    async with berthing({"n1": "t4-4"}) as b, listening(ConsoleApp(b.console, access), LIMITS) as (_, port):
        yield port


async def connected(port: int, data: bytes = b"", source: str = "127.0.0.1") -> Connection:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    writer.write(data)
    await writer.drain()
    return reader, writer


async def hang_up(*connections: Connection) -> None:
    for _, writer in connections:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def left(connection: Connection, again: bytes = b"") -> bytes:
    """All that the server sends until it closes; meanwhile `again` is sent again and again."""
    reader, writer = connection

    async def send() -> None:
        while again:
            writer.write(again)
            await writer.drain()
            await asyncio.sleep(0)

    sending = asyncio.create_task(send())
    try:
        return await asyncio.wait_for(reader.read(), HANG_SECONDS)
    except ConnectionError:
        return b""
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await hang_up(connection)


@asynccontextmanager
async def kept(port: int) -> AsyncIterator[Callable[[bytes], Awaitable[bytes]]]:
    """A function that sends a head without its last line over one connection, and returns the head of the answer."""
    reader, writer = await connected(port)

    async def ask(head: bytes) -> bytes:
        writer.write(head + b"\r\n")
        found = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HANG_SECONDS)
        length = next(line for line in found.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
        return found

    try:
        yield ask
    finally:
        await hang_up((reader, writer))


async def status(port: int, data: bytes, source: str = "127.0.0.1") -> int:
    """Of the answer to a request; 0 where there is none."""
    connection = await connected(port, data, source)
    try:
        line = await asyncio.wait_for(connection[0].readline(), HANG_SECONDS)
        return int(line.split()[1]) if line else 0
    finally:
        await hang_up(connection)


HEAD = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
