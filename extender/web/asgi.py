"""Complete requests and answers over plain ASGI, without a framework; their limits; and the probes of every process.

/livez gets no answer while the event loop is blocked; /readyz fails until every kind is listed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
import structlog

from extender.base.berth_errors import BerthError, WireError
from extender.base.text_limits import cut
from extender.base.timers import TokenBuckets

if TYPE_CHECKING:  # the node agent must not load the cache and CEL
    from extender.runtime.informers import Informers

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_PROBLEM_BYTES = 4096  # of an error text; an invalid policy may have many errors
_LINES_AT_ONCE, _LINE_SECONDS = 5, 10.0  # of the log, for each cause of a rejection

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


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of one listening address. Sizes are bytes, times are seconds."""

    connections: int = 512  # each concurrent bind needs one; a process often has 1024 file descriptors
    head_bytes: int = 16 * 1024  # request line and headers; kube-scheduler's take 200 bytes
    # An unfinished handshake takes 80 KB and does not count as a connection. kube-scheduler's takes some ms.
    handshakes: int = 256
    handshake_seconds: float = 2.0
    # In which a client sends the head of its next request. Longer than the 90 s after which kube-scheduler closes idle
    # connections: no request meets a closed socket.
    idle_seconds: float = 120.0
    body_seconds: float = 10.0  # until a body has arrived; kube-scheduler itself times out after 5
    bodies_bytes: int = 64 * 1024 * 1024  # of all incomplete bodies together
    unsent_bytes: int = 256 * 1024 * 1024  # of all answers that their clients have not taken yet, beside the newest
    write_seconds: float = 30.0  # in which a client takes nothing of an answer
    end_seconds: int = 20  # for running requests at shutdown; a pod gets 30 s to terminate
    # New connections and requests of one client address in a second; as many more in a burst. A request beyond them
    # gets 429; a connection is closed at once, so that others do not wait for their turn.
    per_client: int | None = None


VERBS = HttpLimits()
# kubelet and a Prometheus send one request in a second each, at most.
PROBES = HttpLimits(connections=64, bodies_bytes=1024 * 1024, per_client=100)
# Pages end after 1 s: a page asks again.
# The claims of 5,000 full nodes of 8 GPUs have 9 MB. The users of one port forward share an address.
PAGES = HttpLimits(
    connections=256, bodies_bytes=16 * 1024 * 1024, unsent_bytes=64 * 1024 * 1024, end_seconds=1, per_client=200
)


class RejectionLog:
    """Logs rejected requests and connections at a limited rate for each cause.

    `left_out` of a line counts the lines of its cause that were suppressed before it. `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._log = structlog.get_logger("berth.web")
        self._lines: TokenBuckets[str] = TokenBuckets(_LINES_AT_ONCE, _LINE_SECONDS, remembered=64)
        self._left_out: Counter[str] = Counter()

    def note(self, cause: str, **facts: object) -> None:
        """Log a rejection. `cause` must be a constant, so that there are few buckets. `facts` are more log fields."""
        if not self._lines.take(cause, self._clock()):
            self._left_out[cause] += 1
            return
        self._log.warning("rejected", because=cause, left_out=self._left_out.pop(cause, 0), **facts)


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


class GetApp:
    """An application that answers GET of these paths. `otherwise` is the answer to other paths."""

    def __init__(self, answers: Mapping[str, Callable[[], Answer]], otherwise: str) -> None:
        self._answers = answers
        self._otherwise = otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive  # requests have no body
        if scope["type"] == "http":
            await self.answer(scope["method"], scope["path"]).to(send)

    def answer(self, method: str, path: str) -> Answer:
        """The answer to one request."""
        if method not in ("GET", "HEAD"):
            return Answer(405, b"only GET is answered", TEXT)
        found = self._answers.get(path)
        return found() if found is not None else Answer(404, self._otherwise.encode(), TEXT)


PROBE_PATHS = ("/livez", "/readyz")


def probe(path: str, informers: Informers) -> Answer:
    """The answer to GET of one of PROBE_PATHS: 200, or 503 with the problems as text. Warnings follow in both cases.

    No answer to /livez in time says that the event loop is blocked: kubelet waits for 5 s.
    """
    if path == "/livez":
        return Answer(200, b"ok", TEXT)
    problems = "; ".join(filter(None, (informers.not_ready, informers.degraded)))
    text = "; ".join([problems or "ok", *informers.warnings])
    return Answer(503 if problems else 200, text.encode(), TEXT)
