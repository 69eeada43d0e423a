"""uvicorn's server with time-outs for TLS handshakes and for clients that do not read."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from functools import partial

import uvicorn

from extender.web.acceptor import Acceptor
from extender.web.http_limits import ClientRates, HttpLimits


class Server(uvicorn.Server):
    """A uvicorn server. A TLS handshake may take `handshake_seconds` of the limits; uvicorn itself allows 60 s.

    `clock` returns seconds.
    """

    def __init__(self, config: uvicorn.Config, limits: HttpLimits, clock: Callable[[], float]) -> None:
        super().__init__(config)
        self._limits = limits
        most = limits.connections_per_second
        self._rates = ClientRates(most, clock) if most is not None else None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections on sockets that `listen_on` bound."""
        config = self.config
        make: Callable[..., asyncio.Protocol] = config.http_protocol_class
        protocol = partial(make, config=config, server_state=self.server_state, app_state={})
        seconds = self._limits.handshake_seconds if config.ssl is not None else None
        loop = asyncio.get_running_loop()
        self.servers = []
        for bound in sockets or ():
            _limit_unread(bound, self._limits.write_seconds)
            bound.listen(config.backlog)
            connect = partial(loop.connect_accepted_socket, protocol, ssl=config.ssl, ssl_handshake_timeout=seconds)
            acceptor = Acceptor(bound, connect, self._limits.handshakes, self._admits)
            self.servers.append(acceptor)  # type: ignore[arg-type] # it has the methods that uvicorn calls
        self.started = True

    def _admits(self, client: str) -> bool:
        return self._rates is None or self._rates.take(client)


def _limit_unread(listening: socket.socket, seconds: float) -> None:
    """Have the kernel close each accepted connection whose client reads nothing for this time.

    The kernel takes up to 4 MiB for such a client before it pauses the writer: an hour of small updates.
    """
    if sys.platform == "linux":
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1000))
