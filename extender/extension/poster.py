"""Posts batches of records to the console."""

from __future__ import annotations

import asyncio
import ssl
from functools import partial
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from extender.cluster import tls_context
from extender.extension.outbox import EpochEnded, NotDelivered, Rejected
from extender.files import name_of, read_mounted
from extender.model import WireError, one_line
from extender.runtime import LimitedCall

_SECONDS = 5.0  # of one request
_CONNECT_SECONDS = 2.0
_MOST_TOKEN = 16 * 1024  # bytes of the token file; the token of a service account has 1,000 to 2,000
_MOST_ANSWER = 16 * 1024  # bytes of an answer with its header; the console's answers have less than 2,000
_MOST_PROBLEM = 512  # bytes of the console's error text
_RETRIED = (401, 408, 429)  # of the 4xx; a 401 ends when kubelet has renewed the token


class _LimitedAnswer(asyncio.Protocol):
    """Passes at most `_MOST_ANSWER` bytes to aiohttp's protocol of the connection, then closes the connection.

    aiohttp parses any number of 1xx answers before the answer, and meanwhile the event loop serves no filter request.
    """

    def __init__(self, protocol: ResponseHandler, transport: asyncio.Transport) -> None:
        self._protocol = protocol
        self._transport = transport
        self._left = _MOST_ANSWER

    def data_received(self, data: bytes) -> None:
        passed, self._left = data[: max(0, self._left)], self._left - len(data)
        if passed:
            self._protocol.data_received(passed)
        if self._left < 0:
            self._transport.abort()  # connection_lost comes after the reader has taken what was passed

    def eof_received(self) -> None:
        self._protocol.eof_received()

    def connection_lost(self, exc: BaseException | None) -> None:
        too_large = OSError(f"the answer has more than {_MOST_ANSWER} bytes") if self._left < 0 else None
        self._protocol.connection_lost(too_large or exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()


class _Connector(aiohttp.TCPConnector):
    """Limits the bytes of each answer, also of those that come before the next request."""

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's signature
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        transport, protocol = connection.transport, connection.protocol
        if transport is not None and protocol is not None:  # uvloop's transport is no asyncio.Transport
            transport.set_protocol(_LimitedAnswer(protocol, transport))
        return connection


class Poster:
    """An async context manager around one connection to the console at the base URL `url`.

    The token file is read for each batch, since kubelet renews the token. The certificate authorities of `ca_file` are
    read at the start and by `load_authorities`.
    """

    def __init__(self, url: str, token_file: Path | None = None, ca_file: Path | None = None) -> None:
        self._url = url.rstrip("/") + "/v1/records"
        self._token_file = token_file
        self._token = LimitedCall(partial(read_mounted, token_file, _MOST_TOKEN)) if token_file is not None else None
        self._ca_file = ca_file
        self._session: aiohttp.ClientSession | None = None
        self._ssl: ssl.SSLContext | bool = True

    async def __aenter__(self) -> Self:
        self.load_authorities()
        self._session = aiohttp.ClientSession(
            connector=_Connector(limit=1),
            timeout=aiohttp.ClientTimeout(total=_SECONDS, sock_connect=_CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "berth", "Content-Type": "application/json"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    def load_authorities(self) -> None:
        """Read the file of certificate authorities, for the next connection. Raises WireError if it holds none."""
        if self._ca_file is not None:
            self._ssl = _trusting(self._ca_file)

    async def __call__(self, body: bytes) -> None:
        """Post one batch. Raises NotDelivered if a later try may succeed, Rejected if none can, EpochEnded."""
        assert self._session is not None, "the poster is used outside its context"
        try:
            async with self._session.post(
                self._url, data=body, headers=await self._authorization(), allow_redirects=False, ssl=self._ssl
            ) as response:
                if response.status >= 300:  # noqa: PLR2004 - anything but success
                    raise _error(response.status, await response.content.read(_MOST_PROBLEM))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, WireError) as error:
            raise NotDelivered(one_line(str(error) or type(error).__name__, _MOST_PROBLEM)) from error

    async def _authorization(self) -> dict[str, str]:
        if self._token_file is None or self._token is None:
            return {}
        content = await self._token()
        token = content.decode("ascii", "replace").strip()
        if not token.isascii() or not token.isprintable() or not token:
            raise WireError(name_of(self._token_file), "holds no token")
        return {"Authorization": f"Bearer {token}"}


def _error(status: int, text: bytes) -> NotDelivered | Rejected:
    problem = f"the console answers {status}: {one_line(text.decode('utf-8', 'replace'), _MOST_PROBLEM)}"
    if status == HTTPStatus.CONFLICT:
        return EpochEnded(problem)
    rejected = 400 <= status < 500 and status not in _RETRIED  # noqa: PLR2004 - client errors
    return Rejected(problem) if rejected else NotDelivered(problem)


def _trusting(ca_file: Path) -> ssl.SSLContext:
    """Raises WireError if the file holds no certificate."""
    try:
        return tls_context(str(ca_file))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise WireError("--records-ca", f"{name_of(ca_file)} holds no certificates: {reason}") from error
