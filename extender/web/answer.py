"""A whole answer, sent without what a framework adds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import orjson

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

JSON, TEXT = b"application/json", b"text/plain; charset=utf-8"


class Answer(NamedTuple):
    """What goes back: HTTP status, body and its media type."""

    status: int
    body: bytes
    type: bytes = JSON
    more: tuple[tuple[bytes, bytes], ...] = ()  # further headers

    async def to(self, send: Send) -> None:
        """As ASGI messages."""
        headers = [(b"content-type", self.type), (b"content-length", b"%d" % len(self.body)), *self.more]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


def problem(status: int, text: str) -> Answer:
    """`{"error": text}`."""
    return Answer(status, orjson.dumps({"error": text}))
