"""The event loop of serve and console."""

from __future__ import annotations

import socket
from typing import Any

import uvloop


class EventLoop(uvloop.Loop):
    """uvloop's event loop, but it asks name servers in its default executor, as asyncio's own loop does.

    uvloop asks in threads of libuv. A process waits for these when it ends, and a name server may hang.
    """

    async def getaddrinfo(
        self,
        host: str | bytes | None,
        port: str | bytes | int | None,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002 - inherited
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        """See socket.getaddrinfo."""
        return await self.run_in_executor(None, socket.getaddrinfo, host, port, family, type, proto, flags)
