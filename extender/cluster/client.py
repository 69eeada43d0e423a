"""Requests to the API server: JSON bytes in and out, errors of our own, no models."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson
from aiohttp.http_exceptions import LineTooLong

from extender.cluster.api_errors import Gone, Unavailable, error_for
from extender.cluster.credentials import Credentials, TokenCache
from extender.model import one_line
from extender.wire import lenient_loads

Json = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
_JSON = "application/json"
_MOST_TOLD = 500  # bytes of what the server says about a refusal
_REQUEST_SECONDS = 15.0  # one write; a bind has a handful and the scheduler's time-out for it is 30 s
_OPEN_SECONDS = 30.0  # until a watch is accepted; an API server under load keeps it in a queue for 15
_READ_BYTES = (
    5 * 1024 * 1024
)  # half of the longest line: an object has 1.5 MiB in etcd, and JSON writes `<` in six bytes
_CONNECTIONS = 64  # writes in flight; the API server's default limit for mutations is 200


class ApiClient:
    """An async context manager around one connection pool."""

    def __init__(self, credentials: Credentials, user_agent: str = "berth") -> None:
        self._credentials = credentials
        self._token = TokenCache(credentials.token)
        self._user_agent = user_agent
        self._session: aiohttp.ClientSession | None = None
        self.answers: Counter[tuple[str, str]] = Counter()  # requests by method and HTTP status, '' where none came

    async def __aenter__(self) -> Self:
        tls: Any = self._credentials.tls if self._credentials.tls is not None else True
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_CONNECTIONS + 16, ssl=tls),  # 16 watches beside the writes
            headers={"User-Agent": self._user_agent, "Accept": _JSON},
            read_bufsize=_READ_BYTES,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Json:
        return await self._request("GET", path, params=params)

    async def post(self, path: str, body: Json) -> Json:
        return await self._request("POST", path, body=body)

    async def patch(self, path: str, body: Json, content_type: str = MERGE_PATCH) -> Json:
        return await self._request("PATCH", path, body=body, content_type=content_type)

    async def put(self, path: str, body: Json) -> Json:
        return await self._request("PUT", path, body=body)

    async def delete(self, path: str, body: Json | None = None) -> Json:
        return await self._request("DELETE", path, body=body)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str = _JSON,
    ) -> Json:
        headers = await self._headers(content_type)
        try:
            async with self._open().request(
                method,
                self._credentials.url + path,
                params=params,
                data=None if body is None else orjson.dumps(body),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=_REQUEST_SECONDS),
                allow_redirects=False,  # a redirected POST would become a GET
            ) as response:
                content = await response.read()
                self.answers[method, str(response.status)] += 1
                if response.status >= 300:  # noqa: PLR2004 - anything but success
                    told = _message(content) or f"{method} {path} is answered {response.status}"
                    raise error_for(response.status, told, _retry_after(response))
                return await _object(content)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            self.answers[method, ""] += 1
            raise Unavailable(f"{method} {path}: {error or type(error).__name__}") from error

    async def lines(self, path: str, params: Mapping[str, str], silence_seconds: float) -> AsyncGenerator[bytes, None]:
        """The lines of a watch, after an empty one that says that the server has accepted it. Ends when the server ends
        it, and when the server says nothing for so many seconds. Close it where it is not read to its end. Raises Gone
        where a line is too long: only a list shows that object."""
        headers = await self._headers(_JSON)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_REQUEST_SECONDS, sock_read=silence_seconds)
        try:
            async with asyncio.timeout(_OPEN_SECONDS):
                opened = await self._open().get(
                    self._credentials.url + path, params=params, headers=headers, timeout=timeout, allow_redirects=False
                )
            async with opened as response:
                if response.status != 200:  # noqa: PLR2004 - OK
                    raise error_for(response.status, _message(await response.read()), _retry_after(response))
                yield b""
                with suppress(aiohttp.SocketTimeoutError):
                    async for line in response.content:
                        yield line
        except LineTooLong as error:
            raise Gone(f"watch {path}: an event is longer than {2 * _READ_BYTES} bytes") from error
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise Unavailable(f"watch {path}: {error or type(error).__name__}") from error

    def _open(self) -> aiohttp.ClientSession:
        assert self._session is not None, "the client is used outside its context"
        return self._session

    async def _headers(self, content_type: str) -> dict[str, str]:
        token = await self._token.get()
        found = {"Content-Type": content_type}
        if token:
            found["Authorization"] = token if token.lower().startswith("bearer ") else f"Bearer {token}"
        return found


async def decode_json(content: bytes) -> Any:
    """The value of a JSON text from the API server, see lenient_loads: a thread mends what orjson refuses, which takes
    long for large texts. Raises ValueError."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return await asyncio.to_thread(lenient_loads, content)


async def _object(content: bytes) -> Json:
    """An answer of the API server. Raises ValueError where it is no JSON object: a proxy may have answered."""
    found = await decode_json(content)
    if not isinstance(found, dict):
        words = one_line(content[:_MOST_TOLD].decode("utf-8", "replace"))
        raise ValueError(f"the answer is no JSON object: {words}")  # noqa: TRY004 - as orjson for what is no JSON
    return found


def _message(content: bytes) -> str:
    try:
        status = orjson.loads(content)
    except orjson.JSONDecodeError:
        return one_line(content[:_MOST_TOLD].decode("utf-8", "replace"), _MOST_TOLD)
    return one_line(str(status.get("message", status) if isinstance(status, dict) else status), _MOST_TOLD)


def _retry_after(response: aiohttp.ClientResponse) -> float:
    try:
        return max(0.0, float(response.headers.get("Retry-After", "1")))
    except ValueError:
        return 1.0
