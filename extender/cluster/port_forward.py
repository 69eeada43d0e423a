"""A port of a pod as a Unix socket, forwarded by the API server as for `kubectl port-forward`.

A WebSocket carries each connection, with the protocol v4.channel.k8s.io of kubelet's streaming server: the first byte
of a message is its channel, 0 for data and 1 for an error. The first message of each channel has the number of the
port instead, in two bytes. A Unix socket in a folder of this user is closed to other users, unlike a port of loopback.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self
from urllib.parse import quote

import aiohttp

from extender.base.text_limits import error_line
from extender.cluster.api_errors import ClusterError, Unavailable
from extender.cluster.client import ApiClient

_PROTOCOL = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1  # channels
_PIECE_BYTES = 64 * 1024
_TOLD_BYTES = 512  # of kubelet's error


class PortForward:
    """Connections to `path` reach the port of the pod, as an async context manager.

    `problem` says why the last connection failed: Forbidden, NotFound and so on of the request to forward, or
    Unavailable with kubelet's error.
    """

    def __init__(self, client: ApiClient, namespace: str, pod: str, port: int) -> None:
        self._client = client
        self._request = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}/portforward"
        self._port = port
        self._stack = AsyncExitStack()
        self.path = ""
        self.problem: ClusterError | None = None

    async def __aenter__(self) -> Self:
        folder = self._stack.enter_context(TemporaryDirectory(prefix="berth-"))
        self.path = str(Path(folder) / "port")
        server = await asyncio.start_unix_server(self._forward, self.path)
        self._stack.callback(server.close)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection until one side closes it."""
        try:
            remote = await self._client.open_websocket(self._request, {"ports": str(self._port)}, _PROTOCOL)
            sending = asyncio.create_task(_send(reader, remote))
            try:
                await self._receive(remote, writer)
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
                await remote.close()
        except ClusterError as error:
            self.problem = error
        finally:
            writer.close()

    async def _receive(self, remote: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
        begun = set[int]()
        async for message in remote:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel = message.data[0]
            if channel not in begun:
                begun.add(channel)
            elif channel == _ERROR:
                self.problem = Unavailable(error_line(message.data[1:].decode("utf-8", "replace"), _TOLD_BYTES))
                return
            elif channel == _DATA:
                writer.write(message.data[1:])
                with suppress(ConnectionError):  # the client has closed its end
                    await writer.drain()


async def _send(reader: asyncio.StreamReader, remote: aiohttp.ClientWebSocketResponse) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(_PIECE_BYTES):
            await remote.send_bytes(bytes([_DATA]) + data)
        await remote.close()
