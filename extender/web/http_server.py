"""uvicorn's server with a time-out for TLS handshakes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial

import uvicorn


class Server(uvicorn.Server):
    """A uvicorn server. `handshake_seconds` is the time-out of a TLS handshake; uvicorn itself allows 60 s."""

    def __init__(self, config: uvicorn.Config, handshake_seconds: float) -> None:
        super().__init__(config)
        self._handshake_seconds = handshake_seconds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections on sockets that `listen_on` bound."""
        config = self.config
        make: Callable[..., asyncio.Protocol] = config.http_protocol_class
        protocol = partial(make, config=config, server_state=self.server_state, app_state={})
        seconds = self._handshake_seconds if config.ssl is not None else None
        loop = asyncio.get_running_loop()
        self.servers = []
        for bound in sockets or ():
            listening = await loop.create_server(
                protocol, sock=bound, ssl=config.ssl, ssl_handshake_timeout=seconds, backlog=config.backlog
            )
            self.servers.append(listening)
        self.started = True
