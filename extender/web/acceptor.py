"""Accepts connections, and limits those whose TLS handshake has not ended."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import structlog

_AT_ONCE = 16  # connections in one turn of the event loop
_PAUSE_SECONDS = 0.5  # before the next attempt, if no file descriptor is left


class Acceptor:
    """Accepts on a bound socket, in place of the loop's own server: uvloop closes that one for good after an error.

    `connect` makes the protocol of an accepted connection and returns after its handshake. At most `most` connections
    have an unfinished handshake: a new one replaces the oldest. If `admits` returns False for the address of a client,
    its connection is closed at once. It has the methods of a server that uvicorn calls.
    """

    def __init__(
        self,
        bound: socket.socket,
        connect: Callable[[socket.socket], Awaitable[object]],
        most: int,
        admits: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self.sockets = (bound,)
        self._bound = bound
        self._connect = connect
        self._most = most
        self._admits = admits
        self._loop = asyncio.get_running_loop()
        self._unfinished: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._again: asyncio.TimerHandle | None = None
        bound.setblocking(False)
        self._loop.add_reader(bound, self._accept)

    def close(self) -> None:
        """Stop. Connections with a complete handshake stay."""
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._bound)
        self._bound.close()
        for task in self._unfinished:
            task.cancel()

    async def wait_closed(self) -> None:
        """Return at once: nothing is left open."""

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, address = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                structlog.get_logger("berth.web").warning("cannot accept connections", problem=str(error))
                self._loop.remove_reader(self._bound)
                self._again = self._loop.call_later(_PAUSE_SECONDS, self._loop.add_reader, self._bound, self._accept)
                return
            if not self._admits(address[0]):
                accepted.close()
                continue
            accepted.setblocking(False)
            self._start(accepted)

    def _start(self, accepted: socket.socket) -> None:
        if len(self._unfinished) >= self._most:
            oldest = next(iter(self._unfinished))
            del self._unfinished[oldest]
            oldest.cancel()
        task = self._loop.create_task(self._connected(accepted))
        self._unfinished[task] = None

        def end(ended: asyncio.Task[None]) -> None:
            self._unfinished.pop(ended, None)
            if ended.cancelled():
                accepted.close()
            elif (fault := ended.exception()) is not None:
                accepted.close()
                if not isinstance(fault, OSError):  # a client that fails its handshake, or leaves
                    structlog.get_logger("berth.web").error("a connection failed", exc_info=fault)

        task.add_done_callback(end)

    async def _connected(self, accepted: socket.socket) -> None:
        await self._connect(accepted)
