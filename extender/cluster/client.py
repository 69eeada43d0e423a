"""The HTTP client of the API server: JSON in and out, protobuf for one object, failures as ClusterError.

The times in what it sends come from the wall clock of this machine.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import orjson
import structlog
from aiohttp import ClientWebSocketResponse

from extender.api.fields import Json, lenient_loads
from extender.api.protobuf import PROTOBUF
from extender.base.text_limits import error_line, one_line
from extender.cluster.api_errors import ClusterError, Gone, NotServed, TooLong, Unavailable, error_for
from extender.cluster.credentials import Credentials

_REFRESH_SECONDS = 30.0  # between two reads of the token; the client checks files and expiry on every read
_USABLE_SECONDS = 240.0  # age limit of a read token; the client renews a token five minutes before it expires
_HUNG_SECONDS = 60.0  # a read that takes longer is given up
_MAX_HUNG = 4  # reads given up that still block a thread
_PATIENCE_SECONDS = 15.0  # time-out of a request that waits for a token
_T = TypeVar("_T")
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
_JSON = "application/json"
_MAX_TOLD = 400  # bytes of an error text from the server; a reason has 512, with what Berth says about it
_REQUEST_SECONDS = 15.0  # time-out of one request; a bind has about 5 within its time-out of 30 s in kube-scheduler
_OPEN_SECONDS = 30.0  # time-out for the start of a watch; a busy API server queues it for up to 15 s
_READ_BYTES = 256 * 1024  # of a watch that are read at once: many events, when they come fast
_MAX_LINE = 10 << 20  # bytes of an event: an object has up to 1.5 MiB in etcd, and JSON escapes `<` as six bytes
_MAX_BYTES = 32 << 20  # of a response; an object has at most 1.5 MiB in etcd, and six times as much in JSON
_MAX_CONNECTIONS = 64  # concurrent requests; the API server's default limit for mutations is 200


class TokenCache:
    """The token of requests. A thread reads a new token before the old one expires, one read at a time.

    Requests use the old token until the read ends. After a minute another read begins beside one that hangs. `clock`
    returns seconds.
    """

    def __init__(self, read: Callable[[], str | None], clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._token: str | None = None
        self._usable_until = float("-inf")
        self._due = float("-inf")
        self._reading: asyncio.Future[str | None] | None = None
        self._began = float("-inf")
        self._hung: set[asyncio.Future[str | None]] = set()
        self._log = structlog.get_logger("berth.credentials")

    async def get(self) -> str | None:
        """The token, or None if requests need no token. Raises ClusterError if no token is available."""
        now = self._clock()
        usable = now < self._usable_until
        if self._reading is not None and now - self._began >= _HUNG_SECONDS and len(self._hung) < _MAX_HUNG:
            self._hung.add(self._reading)
            self._reading = None
            self._log.warning("a credential plugin hangs; it is started again", seconds=round(now - self._began))
        if self._reading is None and (now >= self._due or not usable):
            self._began = now
            self._reading = asyncio.get_running_loop().run_in_executor(None, self._read)
            self._reading.add_done_callback(self._done)
        if usable or self._reading is None:
            return self._token
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                return await asyncio.shield(self._reading)
        except TimeoutError:
            raise ClusterError(
                f"no credentials within {_PATIENCE_SECONDS:.0f} s; a credential plugin may hang"
            ) from None

    def _done(self, reading: asyncio.Future[str | None]) -> None:
        self._hung.discard(reading)
        if self._reading is reading:
            self._reading = None
        if reading.cancelled():
            return
        now = self._clock()
        self._due = now + _REFRESH_SECONDS
        error = reading.exception()
        if error is None:
            self._token, self._usable_until = reading.result(), now + _USABLE_SECONDS
        else:
            self._log.warning("credentials cannot be refreshed", problem=str(error))


class ApiClient:
    """A client with one connection pool, as an async context manager. All requests raise ClusterError.

    A response has at most 32 MiB, and comes within 15 s; a watch has no such limits, but starts within 30 s.
    """

    def __init__(self, credentials: Credentials, user_agent: str = "berth") -> None:
        self._credentials = credentials
        self._token = TokenCache(credentials.token)
        self._user_agent = user_agent
        self._session: aiohttp.ClientSession  # inside the async context
        self.answers: Counter[tuple[str, str]] = Counter()  # requests by (method, HTTP status); '' for no response

    async def __aenter__(self) -> Self:
        tls: Any = self._credentials.tls if self._credentials.tls is not None else True
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_MAX_CONNECTIONS + 16, ssl=tls),  # plus 16 watches
            headers={"User-Agent": self._user_agent, "Accept": _JSON},
            read_bufsize=_READ_BYTES,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def get(self, path: str, params: Mapping[str, str] | None = None, most_bytes: int = _MAX_BYTES) -> Json:
        """Raises TooLong for a response with more than `most_bytes`."""
        return await self._request("GET", path, _object, params=params, most_bytes=most_bytes)

    async def get_protobuf(self, path: str) -> bytes:
        return await self._request("GET", path, _bytes, accept=PROTOBUF)

    async def post(self, path: str, body: Json) -> Json:
        return await self._request("POST", path, _object, body=body)

    async def patch(self, path: str, body: Json | list[Json], content_type: str = MERGE_PATCH) -> Json:
        return await self._request("PATCH", path, _object, body=body, content_type=content_type)

    async def put(self, path: str, body: Json | bytes) -> Json:
        """Bytes are an object as protobuf."""
        content_type = PROTOBUF if isinstance(body, bytes) else _JSON
        return await self._request("PUT", path, _object, body=body, content_type=content_type)

    async def delete(self, path: str, body: Json | None = None) -> Json:
        return await self._request("DELETE", path, _object, body=body)

    async def _request(
        self,
        method: str,
        path: str,
        decode: Callable[[bytes], Awaitable[_T]],
        *,
        params: Mapping[str, str] | None = None,
        body: Json | list[Json] | bytes | None = None,
        content_type: str = _JSON,
        accept: str = _JSON,
        most_bytes: int = _MAX_BYTES,
    ) -> _T:
        headers = await self._headers(content_type) | {"Accept": accept}
        try:
            async with self._session.request(
                method,
                self._credentials.url + path,
                params=params,
                data=body if body is None or isinstance(body, bytes) else orjson.dumps(body),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=_REQUEST_SECONDS),
                allow_redirects=False,  # a redirected POST would become a GET
            ) as response:
                content = await _read(response, most_bytes)
                self.answers[method, str(response.status)] += 1
                if response.status >= 300:  # noqa: PLR2004 - not success
                    message = _message(content) or f"{method} {path}: HTTP status {response.status}"
                    if response.status == 404 and not _says_not_found(content):  # noqa: PLR2004 - Not Found
                        raise NotServed(message)
                    raise error_for(response.status, message, _retry_after(response))
                return await decode(content)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            self.answers[method, ""] += 1
            raise Unavailable(f"{method} {path}: {str(error) or type(error).__name__}") from error

    async def lines(self, path: str, params: Mapping[str, str], silence_seconds: float) -> AsyncGenerator[bytes, None]:
        """The lines of a watch. The first line is empty: the server accepted the watch.

        The iterator ends when the server ends the watch, or after `silence_seconds` without a line. A caller that stops
        early must close it. Raises ClusterError; Gone for a line that is too long, because only a list can show that
        object.
        """
        headers = await self._headers(_JSON)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_REQUEST_SECONDS)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_OPEN_SECONDS):
                opened = await self._session.get(
                    self._credentials.url + path, params=params, headers=headers, timeout=timeout, allow_redirects=False
                )
            async with opened as response:
                if response.status != 200:  # noqa: PLR2004 - OK
                    raise error_for(response.status, await _refusal(path, response), _retry_after(response))
                yield b""
                rest = bytearray()  # grows in place: a long event has many pieces
                deadline = loop.time() + silence_seconds
                while data := await _some(response, deadline):
                    *complete, last = data.split(b"\n")
                    for line in complete:
                        yield b"".join((rest, line, b"\n"))
                        rest.clear()
                    rest += last
                    if len(rest) > _MAX_LINE:
                        raise Gone(f"watch {path}: an event is longer than {_MAX_LINE} bytes")
                    if complete:
                        deadline = loop.time() + silence_seconds
                if rest and response.content.at_eof():
                    yield bytes(rest)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise Unavailable(f"watch {path}: {str(error) or type(error).__name__}") from error

    async def open_websocket(self, path: str, params: Mapping[str, str], protocol: str) -> ClientWebSocketResponse:
        """An open WebSocket, which the caller closes. Raises ClusterError: of a refusal only the status is known."""
        headers = await self._headers(_JSON) | {"Accept": "*/*"}  # the API server answers 406 to JSON here
        try:
            async with asyncio.timeout(_OPEN_SECONDS):
                return await self._session.ws_connect(
                    self._credentials.url + path, params=params, headers=headers, protocols=(protocol,)
                )
        except aiohttp.WSServerHandshakeError as error:
            raise error_for(error.status, f"GET {path}: HTTP status {error.status}", 1.0) from error
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise Unavailable(f"GET {path}: {str(error) or type(error).__name__}") from error

    async def _headers(self, content_type: str) -> dict[str, str]:
        token = await self._token.get()
        found = {"Content-Type": content_type}
        if token:
            found["Authorization"] = token if token.lower().startswith("bearer ") else f"Bearer {token}"
        return found


async def _read(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """The body of a response. Raises TooLong if it has more bytes."""
    try:
        await response.content.readexactly(most_bytes + 1)
    except asyncio.IncompleteReadError as error:
        return error.partial
    raise TooLong(f"the response has more than {most_bytes} bytes")


async def _refusal(path: str, response: aiohttp.ClientResponse) -> str:
    """The message with which the server refuses a watch, if it comes within the time of a request.

    The response of a watch has no time-out of its own.
    """
    content = b""
    with suppress(aiohttp.ClientError, TimeoutError, TooLong):
        async with asyncio.timeout(_REQUEST_SECONDS):
            content = await _read(response, _MAX_BYTES)
    return _message(content) or f"watch {path}: HTTP status {response.status}"


async def _some(response: aiohttp.ClientResponse, deadline: float) -> bytes:
    """Read the data that has come; wait for some until the deadline. Returns b"" if none came, or none will come."""
    with suppress(TimeoutError):
        async with asyncio.timeout_at(deadline):
            return await response.content.read(_READ_BYTES)
    return b""


async def decode_json(content: bytes) -> Any:
    """The value of a JSON text from the API server. Raises ValueError.

    lenient_loads decodes what orjson rejects, in a thread, because it is slow for large texts.
    """
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return await asyncio.to_thread(lenient_loads, content)


async def _bytes(content: bytes) -> bytes:
    return content


async def _object(content: bytes) -> Json:
    """The JSON object of a response. Raises ValueError for other content, such as an error page of a proxy."""
    found = await decode_json(content)
    if not isinstance(found, dict):
        text = one_line(content[:_MAX_TOLD].decode("utf-8", "replace"))
        raise ValueError(f"the response is not a JSON object: {text}")  # noqa: TRY004 - orjson raises the same
    return found


def _says_not_found(content: bytes) -> bool:
    """Whether the content is the metav1.Status about an object that does not exist."""
    try:
        status = orjson.loads(content)
    except orjson.JSONDecodeError:
        return False
    return isinstance(status, dict) and (status.get("kind"), status.get("reason")) == ("Status", "NotFound")


def _message(content: bytes) -> str:
    """The message of a metav1.Status, or the start of the content."""
    try:
        status = orjson.loads(content)
    except orjson.JSONDecodeError:
        return one_line(content[:_MAX_TOLD].decode("utf-8", "replace"), _MAX_TOLD)
    return error_line(str(status.get("message", status) if isinstance(status, dict) else status), _MAX_TOLD)


def _retry_after(response: aiohttp.ClientResponse) -> float:
    """Seconds of the Retry-After header; 1 without a valid one."""
    try:
        return max(0.0, float(response.headers.get("Retry-After", "1")))
    except ValueError:
        return 1.0


# -- times of this machine as the Kubernetes API writes them -------------------------------------------------


WallClock = Callable[[], datetime.datetime]
"""Returns the time with its zone."""


def utc_now() -> datetime.datetime:
    """The time of this machine's clock."""
    return datetime.datetime.now(datetime.UTC)


def now_rfc3339(clock: WallClock = utc_now) -> str:
    """The current time as metav1.Time, with seconds."""
    return clock().isoformat()[:19] + "Z"  # ten times faster than strftime


def now_micro() -> str:
    """The current time as metav1.MicroTime, with microseconds."""
    return utc_now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def seconds_since(stamp: str, clock: WallClock) -> float:
    """Seconds since an RFC 3339 time; 0 for ''. Raises ValueError for other texts."""
    if not stamp:
        return 0.0
    return (clock() - datetime.datetime.fromisoformat(stamp)).total_seconds()
