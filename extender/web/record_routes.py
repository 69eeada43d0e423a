"""POST /v1/records as ASGI: batches of records from serve. The sender is authenticated before its body is read."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import structlog

from extender.console import ReviewResult, StaleEpoch, TokenReviewer
from extender.model import BerthError, WireError
from extender.records import MAX_BODY, Batch, UnknownVersion, decode
from extender.web.access_control import header
from extender.web.asgi import Answer, BodyReader, Receive, Scope, Send, TooLarge, TooManyBodies, problem
from extender.web.http_limits import RECORDS, RejectionLog

PATH = "/v1/records"
_UNAUTHENTICATED = ((b"www-authenticate", b"Bearer"),)
_BY_RESULT = {
    ReviewResult.UNAUTHENTICATED: 401,
    ReviewResult.FORBIDDEN: 403,
    ReviewResult.BUSY: 429,
    ReviewResult.UNAVAILABLE: 503,
}
_BY_ERROR: dict[type[BerthError], int] = {  # the first matching type counts
    UnknownVersion: 400,
    WireError: 400,
    StaleEpoch: 409,
    TooLarge: 413,
    TooManyBodies: 503,
}
_NO_CONTENT = 204
_LARGE = 64 * 1024  # bytes of a body, which take some 5 ms to decode; one of a mebibyte may take 150


class Records:
    """Authenticates and decodes batches of records, and passes them to `take`.

    `counts` maps the HTTP status of answers, as text, to the number of requests; requests with records of an unknown
    version count as `version`. A caller may pass its own counter.
    """

    def __init__(
        self,
        reviewer: TokenReviewer,
        take: Callable[[Batch], Awaitable[None]],
        rejections: RejectionLog | None = None,
        counts: Counter[str] | None = None,
    ) -> None:
        self._reviewer = reviewer
        self._take = take
        self._bodies = BodyReader(RECORDS)
        self._rejections = rejections or RejectionLog()
        self._log = structlog.get_logger("berth.web")
        self.counts: Counter[str] = Counter() if counts is None else counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        rejected = await self._rejection(scope) or await self._taken(scope, receive)
        if rejected is not None:
            await rejected.to(send)
            return
        self.counts[str(_NO_CONTENT)] += 1
        await send({"type": "http.response.start", "status": _NO_CONTENT, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def _rejection(self, scope: Scope) -> Answer | None:
        """Check headers and token. Returns the error answer to a request whose body is not read, else None."""
        if scope["path"] != PATH:
            return self._rejected(404, f"this address only serves {PATH}")
        if scope["method"] != "POST":
            return self._rejected(405, f"{PATH} takes POST, not {scope['method']}")
        if header(scope, b"content-type").partition(b";")[0].strip().lower() != b"application/json":
            return self._rejected(415, "the Content-Type of the request must be application/json")
        review = await self._reviewer.review(_token(scope), _source(scope))
        if review.result is ReviewResult.ALLOWED:
            return None
        return self._rejected(_BY_RESULT[review.result], review.result.value, review.detail)

    async def _taken(self, scope: Scope, receive: Receive) -> Answer | None:
        """Read the batch and pass it to `take`. Returns the error answer if that fails, else None."""
        try:
            body = await self._bodies.read(scope, receive, MAX_BODY)
            await self._take(await asyncio.to_thread(decode, body) if len(body) > _LARGE else decode(body))
        except tuple(_BY_ERROR) as error:
            status = next(status for kind, status in _BY_ERROR.items() if isinstance(error, kind))
            return self._rejected(status, str(error), count="version" if isinstance(error, UnknownVersion) else "")
        except Exception:  # noqa: BLE001 - after a bug the answer must not be 204
            self._log.exception("records cannot be applied")
            return self._rejected(500, "the console failed: see its log")
        return None

    def _rejected(self, status: int, text: str, detail: str = "", count: str = "") -> Answer:
        """Count and log a rejection. `detail` only goes to the log."""
        self.counts[count or str(status)] += 1
        self._rejections.note(f"records: {HTTPStatus(status).phrase}", path=PATH, status=status, problem=detail or text)
        answer = problem(status, text)
        return answer._replace(more=_UNAUTHENTICATED) if status == HTTPStatus.UNAUTHORIZED else answer


def _token(scope: Scope) -> str:
    scheme, _, token = header(scope, b"authorization").partition(b" ")
    return token.strip().decode("latin-1") if scheme.lower() == b"bearer" else ""


def _source(scope: Scope) -> str:
    client = scope.get("client")  # None on a Unix socket
    return str(client[0]) if client else ""
