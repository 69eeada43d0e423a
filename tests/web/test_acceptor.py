"""Unfinished handshakes are limited, and no error of an accept ends a server."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

from extender.web.http_server import _Acceptor
from tests.worlds.eventually import HANG_SECONDS, eventually
from tests.worlds.http_worlds import connected, hang_up


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
