"""Complete requests and answers over plain ASGI, without a framework; and the probes, which every process answers.

/livez gets no answer while the event loop is blocked; /readyz fails until every kind is listed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from extender.base.berth_errors import BerthError, WireError
from extender.base.text_limits import cut
from extender.web.http_limits import HttpLimits

if TYPE_CHECKING:  # the node agent must not load the cache and CEL
    from extender.runtime.informers import Informers

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_PROBLEM_BYTES = 4096  # of an error text; an invalid policy may have many errors

JSON, TEXT = b"application/json", b"text/plain; charset=utf-8"


def header(scope: Scope, wanted: bytes) -> bytes:
    """The value of the header `wanted`, a lower-case name; empty if the header is absent."""
    found: bytes = next((value for name, value in scope["headers"] if name == wanted), b"")
    return found


class Answer(NamedTuple):
    """An HTTP answer: status, body, media type and more headers."""

    status: int
    body: bytes
    type: bytes = JSON
    more: tuple[tuple[bytes, bytes], ...] = ()

    async def to(self, send: Send) -> None:
        """Send the answer as ASGI messages."""
        headers = [(b"content-type", self.type), (b"content-length", b"%d" % len(self.body)), *self.more]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


def problem(status: int, text: str) -> Answer:
    """An error answer with the body `{"error": text}`."""
    return Answer(status, orjson.dumps({"error": cut(text, _PROBLEM_BYTES)}))


def is_json(content_type: bytes) -> bool:
    """Whether a Content-Type is JSON."""
    return content_type == b"application/json" or content_type.partition(b";")[0].strip().lower() == b"application/json"


def not_json() -> Answer:
    """The answer to a request whose Content-Type is another one."""
    return problem(415, "the Content-Type of the request must be application/json")


class TooLarge(BerthError):
    """The body of a request exceeds its limit."""


class TooManyBodies(BerthError):
    """All incomplete bodies together exceed their limit."""


class BodyReader:
    """Reads bodies of requests, and limits the total size of the incomplete ones."""

    def __init__(self, limits: HttpLimits) -> None:
        self._left = limits.bodies_bytes

    async def read(self, scope: Scope, receive: Receive, most: int) -> bytes:
        """Read the body of a request, of `most` bytes at most.

        Raises TooLarge, TooManyBodies, or WireError if the connection ends before: the server closes it if the body
        takes too long.
        """
        too_large = TooLarge(f"the body is larger than {most} bytes")
        if int(header(scope, b"content-length") or 0) > most:
            raise too_large
        body, more = bytearray(), True
        try:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise WireError("body", "the connection closed before the body was complete")
                part: bytes = message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) + len(part) > most:
                    raise too_large
                if not more and not body:  # it arrived at once, as those of kube-scheduler do
                    return part
                body += part
                self._left -= len(part)
                if more and self._left < 0:
                    raise TooManyBodies("too many requests are incomplete: try again")
            return bytes(body)
        finally:
            self._left += len(body)


PROBES = ("/livez", "/readyz")


def probe(path: str, informers: Informers) -> Answer:
    """The answer to GET of one of PROBES: 200, or 503 with the problems as text. Warnings follow in both cases.

    No answer to /livez in time says that the event loop is blocked: kubelet waits for 5 s.
    """
    if path == "/livez":
        return Answer(200, b"ok", TEXT)
    problems = "; ".join(filter(None, (informers.not_ready, informers.degraded)))
    text = "; ".join([problems or "ok", *informers.warnings])
    return Answer(503 if problems else 200, text.encode(), TEXT)
