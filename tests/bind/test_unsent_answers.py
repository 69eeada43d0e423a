"""Clients that do not take their answers: over real sockets, they cost no memory and no connection for long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from structlog.testing import capture_logs

from extender.web.asgi import HttpLimits
from tests.worlds.eventually import HANG_SECONDS, eventually
from tests.worlds.http_worlds import HEAD, SOON, connected, hang_up, left, listening

_NEVER = 10 * HANG_SECONDS


class Long:
    """An application with a long answer."""

    async def __call__(self, scope: dict, receive: object, send: Callable[[dict], Awaitable[None]]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 64 * 1024 * 1024})


async def test_the_server_closes_a_connection_whose_client_does_not_read() -> None:
    async with listening(Long(), HttpLimits(write_seconds=SOON)) as (web, port):
        connection = await connected(port, HEAD + b"\r\n")
        await eventually(lambda: bool(web.server_state.total_requests))
        await eventually(lambda: not web.server_state.connections)
        await hang_up(connection)


async def test_answers_that_clients_do_not_take_are_limited_together() -> None:
    """Of 240 clients that did not read, each could make a console hold the claims of a large fleet: 9 MB."""
    limits = HttpLimits(write_seconds=_NEVER, unsent_bytes=150 << 20)
    async with listening(Long(), limits) as (web, port):
        with capture_logs() as lines:
            silent = [await connected(port, HEAD + b"\r\n") for _ in range(5)]
            await eventually(lambda: web.server_state.total_requests == 5)
            await eventually(lambda: len(web.server_state.connections) == 2)
            found = await left(await connected(port, HEAD + b"Connection: close\r\n\r\n"))
        assert len(found) > 64 << 20, "a client that takes its answer gets it"
        assert {line["because"] for line in lines if line["event"] == "rejected"} == {"answer not taken"}
        await hang_up(*silent)


async def test_a_request_of_a_client_that_takes_no_answer_is_not_answered() -> None:
    """Its second answer waited for the first one, and so did all requests for large answers, which take turns."""
    limits = HttpLimits(write_seconds=_NEVER)
    async with listening(Long(), limits) as (web, port):
        with capture_logs() as lines:
            connection = await connected(port, HEAD + b"\r\n")
            await eventually(lambda: web.server_state.total_requests == 1)
            connection[1].write(HEAD + b"\r\n")
            await eventually(lambda: not web.server_state.connections)
        assert "pipelined request" in {line.get("because") for line in lines}
        await hang_up(connection)
