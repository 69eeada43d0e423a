"""Whole requests and whole answers, without what a framework adds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import orjson

from extender.model.errors import BerthError, WireError

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_BODY_SECONDS = 10.0  # to arrive; kube-scheduler itself gives up after 5
JSON, TEXT = b"application/json", b"text/plain; charset=utf-8"
WHOLE = "berth.whole"  # in the scope of a request whose body has arrived


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


class TooLarge(BerthError):
    """The body is larger than any that is meant."""


async def body_of(scope: Scope, receive: Receive, most: int) -> bytes:
    """The body of a request, of at most so many bytes. Raises TooLarge, or WireError where it does not arrive."""
    if WHOLE in scope:
        return await _whole(receive, most)  # a time-out costs more than all the rest here
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            return await _whole(receive, most)
    except TimeoutError:
        raise WireError("body", f"did not arrive within {_BODY_SECONDS:.0f} s") from None


async def _whole(receive: Receive, most: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise WireError("body", "the connection closed before the body was complete")
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise TooLarge(f"the body is larger than {most} bytes")
        parts.append(part)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)
