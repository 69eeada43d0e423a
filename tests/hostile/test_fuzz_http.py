"""Damaged requests over real sockets: each is answered below 500 or the connection is closed, and the next good request
is answered. `make fuzz` runs it for long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.web.asgi import HttpLimits
from tests.worlds.eventually import HANG_SECONDS, eventually
from tests.worlds.fuzzing import BODIES, InLoop, mutated, no_faults_logged, profile
from tests.worlds.http_worlds import LIMITS, berth, connected, hang_up

BODY = orjson.dumps(BODIES["a pod with claims"]["body"])
HEAD = b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GOOD = b"POST /filter" + HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
REQUESTS = [
    GOOD,
    b"POST /prioritize" + HEAD + b'Transfer-Encoding: chunked\r\n\r\n4\r\n{"Po\r\n3\r\nd":\r\n0\r\n\r\n',
    b"GET /livez" + HEAD + b"\r\nGET /readyz" + HEAD + b"\r\n",
    b"POST /bind" + HEAD + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
    b"GET /v1/explain/default/p?without=n1" + HEAD + b"Authorization: Bearer x\r\nAccept-Encoding: gzip\r\n\r\n",
    b"POST /v1/explain" + HEAD + b"Content-Length: 2\r\n\r\n{}",
    b"GET /metrics HTTP/1.0\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
]  # fmt: skip
PIECES = [
    b"\r\n", b"\n", b"\r", b"\x00", b"\xff", b" ", b":", b"Host: x\r\n", b"Content-Length: 5\r\n",
    b"Content-Length: -1\r\n",
    b"Content-Length: 99999999999999999999\r\n", b"Content-Length: 1, 2\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n", b"Transfer-Encoding : chunked\r\n", b" folded\r\n",
    b"FFFFFFFFFFFFFFFFFF\r\n", b"-1\r\n",
    b"0;x=y\r\n", b"HTTP/9.9", b"HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00",
    b"GET http://x:99999/ HTTP/1.1\r\n",
    b"Connection: upgrade\r\nUpgrade: h2c\r\n", b"Expect: x\r\n", b"Origin: http://evil\r\n",
    b"X: " + b"y" * 5000 + b"\r\n", b"/" * 3000,
]  # fmt: skip
SOON = HttpLimits(head_bytes=LIMITS.head_bytes, idle_seconds=0.05, body_seconds=0.05)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request with pieces that do not belong there, or with some of its bytes changed."""
    text = draw(st.sampled_from(REQUESTS))
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(text)))
        text = text[:place] + draw(st.sampled_from(PIECES)) + text[place:]
    return draw(st.one_of(st.just(text), mutated(text), st.binary(max_size=60)))


class World:
    """A Berth on a real port that closes silent connections soon."""

    def __init__(self) -> None:
        self._loop = InLoop(berth(SOON))
        self._port, self.close = self._loop.made, self._loop.close

    def check(self, data: bytes, cut: int) -> None:
        self._loop.run(self._check(data, cut))

    async def _check(self, data: bytes, cut: int) -> None:
        answer = await self._sent(data[:cut], data[cut:])
        for line in answer.split(b"\r\n"):
            if line.startswith(b"HTTP/1."):
                assert 100 <= int(line.split()[1]) < 500, line
        assert b"Traceback" not in answer
        await eventually(self._answers, "a good request is answered")

    async def _answers(self) -> bool:
        """On a busy machine the server may close a good request, too, because it arrived too slowly."""
        return (await self._sent(GOOD)).startswith(b"HTTP/1.1 200 ")

    async def _sent(self, *parts: bytes) -> bytes:
        """All that the server sends until it closes the connection."""
        connection = await connected(self._port)
        try:
            for part in parts:
                connection[1].write(part)
                await connection[1].drain()
                await asyncio.sleep(0)
            return await asyncio.wait_for(connection[0].read(), HANG_SECONDS)
        except ConnectionError:
            return b""
        finally:
            with suppress(ConnectionError):
                await hang_up(connection)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def test_damaged_requests(world: World, caplog: pytest.LogCaptureFixture) -> None:
    @profile(2)
    @given(requests(), st.integers(0, 400))
    def one(data: bytes, cut: int) -> None:
        world.check(data, cut)

    with no_faults_logged():
        one()
    assert not [record for record in caplog.records if record.exc_info and record.levelno >= logging.ERROR]
