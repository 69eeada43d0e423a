"""uvicorn's HTTP protocol with limits: no client can use memory or a connection without a limit.

It also checks the name in a client's certificate.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from extender.web.asgi import WHOLE
from extender.web.http_limits import ClientRates, HttpLimits, RejectionLog

_ONCE = frozenset({b"authorization", b"content-type", b"host", b"origin"})  # else two readers may take different ones
_FREE_CHUNKS = 128  # chunks of a body that may have any size
_UNREAD_BYTES = 64 * 1024  # of a body whose request is answered already
_CHUNK_BYTES = 1024  # that a body must have for each further chunk


def names_of(certificate: dict[str, Any]) -> set[str]:
    """The common name and the DNS names of a certificate, given as `SSLSocket.getpeercert` returns it."""
    common = {value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"}
    return common | {value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"}


def _length(header: tuple[bytes, bytes]) -> int:
    return len(header[0]) + len(header[1])


def _is_repeated(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether a header of `_ONCE` occurs twice."""
    found = [name for name, _ in headers if name in _ONCE]
    return len(found) > len(set(found))


class _HeadTooLarge(Exception):
    """The request line and the headers exceed their limit."""


class _RepeatedHeader(Exception):
    """A header of `_ONCE` occurs twice."""


class _TooManyRequests(Exception):
    """The client's address sends requests faster than it may."""


class _SmallChunks(Exception):
    """A chunked body has too many small chunks: the parser calls Python functions for each of them."""


class _Pipelined(Exception):
    """A client sent a request before it took the answer to its last one."""


class Listener:
    """The state that all connections to one address share.

    With `client_name`, a connection is closed if the client's certificate does not have this name. `clock` returns
    seconds.
    """

    def __init__(
        self,
        client_name: str | None,
        limits: HttpLimits,
        rejections: RejectionLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client_name = client_name
        self.limits = limits
        self.rejections = rejections
        self.rates = ClientRates(limits.requests_per_second, clock) if limits.requests_per_second else None
        # Connections without a complete request that waits for its answer, the longest idle first.
        self.waiting: OrderedDict[Protocol, None] = OrderedDict()
        self.writing: dict[Protocol, None] = {}  # connections whose client takes its answer slowly, the oldest first


class Protocol(HttpToolsProtocol):
    """One connection: uvicorn's protocol with limits."""

    def __init__(self, listener: Listener, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        # The parser refers to its connection. If a TLS handshake fails, no connection_lost would end that cycle, and
        # the collector looks for old cycles every 15 minutes only.
        self.parser = None  # type: ignore[assignment] # until the connection is made
        self._listener = listener
        self._unparsed = 0  # bytes outside of bodies since the last complete head or message
        self._chunks = self._body_bytes = self._length = 0  # of the current request; its Content-Length, or 0
        self._in_head = self._head_is_timed = False
        self._is_over = False  # True: later data is ignored
        self._writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn's own
        super().connection_made(transport)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn: such data is ignored
        names, wanted = names_of(transport.get_extra_info("peercert") or {}), self._listener.client_name
        if wanted is not None and wanted not in names:
            self._listener.rejections.note("client certificate", wanted=wanted, certificate=sorted(names))
            self.hang_up()
        elif self._has_room():
            self._wait(self._listener.limits.idle_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._listener.waiting.pop(self, None)
        self._unset_keepalive_if_required()
        self._cancel_writing()

    def data_received(self, data: bytes) -> None:
        start, view = 0, memoryview(data)  # no copy: a request with 5,000 names has 180 KB
        while start < len(data):  # in pieces: the parser calls a Python function for each header
            end = start + max(self._listener.limits.head_bytes, self._length - self._body_bytes)
            self._feed(view[start:end])
            start = end
        if self.cycle is not None and not self.cycle.more_body:
            self.cycle.scope[WHOLE] = True  # type: ignore[literal-required] # a key of our own

    def _feed(self, data: memoryview) -> None:
        """Parse data in place of uvicorn's data_received, which has no limits and logs each bad request.

        The data has at most as many bytes as a head, or as the rest of a body.
        """
        if self._is_over:
            return
        self._unparsed += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._end_after_answer()  # the request is answered without the upgrade
        except httptools.HttpParserError as error:
            self._reject_for(error.__context__)
        else:
            if self._unparsed > self._listener.limits.head_bytes:
                self._reject(431, "headers too large")
            elif self._in_head and not self._head_is_timed:
                self._head_is_timed = True
                self._wait(self._listener.limits.head_seconds)

    # -- callbacks of the parser --------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        # The second answer would wait for the client to take the first one, and other requests for the second answer.
        if self.cycle is not None and (not self.cycle.response_complete or self.flow.write_paused):
            raise _Pipelined
        if self._listener.rates is not None and not self._listener.rates.take(self.peer):
            raise _TooManyRequests
        self._in_head = True
        self._chunks = self._body_bytes = self._length = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        most = self._listener.limits.head_bytes
        if self._unparsed > most and len(self.url) + sum(map(_length, self.headers)) > most:
            raise _HeadTooLarge
        self._in_head = self._head_is_timed = False
        self._unparsed = 0
        headers = dict(self.headers)
        if len(headers) < len(self.headers) and _is_repeated(self.headers):
            raise _RepeatedHeader
        self._length = int(headers.get(b"content-length", b"0"))
        self._listener.waiting.move_to_end(self)
        self._unset_keepalive_if_required()
        super().on_headers_complete()
        self.headers = []  # drops trailers, which must not become headers of the request

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        self._body_bytes += len(body)
        if self.cycle.response_complete and self._body_bytes > _UNREAD_BYTES:
            self.hang_up()  # nothing reads the rest of this body
            self._is_over = True
            return
        super().on_body(body)

    def on_chunk_complete(self) -> None:
        """Called by the parser after each chunk."""
        self._chunks += 1
        if self._body_bytes < (self._chunks - _FREE_CHUNKS) * _CHUNK_BYTES:
            raise _SmallChunks

    def on_message_complete(self) -> None:
        self._unparsed = 0
        if not self.cycle.response_complete:
            self._listener.waiting.pop(self, None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """This replaces uvicorn's method, which starts the next pipelined request: pipelining is rejected here."""
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        # A client that still sends its body, or that does not read its answer, gets less time than an idle one.
        is_ending = self.cycle.more_body or self.transport.is_closing()
        self._wait(self._listener.limits.head_seconds if is_ending else self._listener.limits.idle_seconds)

    # -- limits ------------------------------------------------------------------------------------------

    def _has_room(self) -> bool:
        """Whether the connection may stay. At the limit, the longest idle connection is closed for it."""
        if len(self.connections) <= self._listener.limits.connections:
            return True
        oldest = next(iter(self._listener.waiting), self)
        self._listener.rejections.note("too many connections", most=self._listener.limits.connections)
        oldest.hang_up()
        return oldest is not self

    def _wait(self, seconds: float) -> None:
        """Close the connection unless a request completes its head within `seconds`."""
        self._listener.waiting[self] = None
        self._listener.waiting.move_to_end(self)
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.hang_up)

    def hang_up(self) -> None:
        """Abort the connection: a regular close would wait for a client that does not read."""
        self.connections.discard(self)
        self._listener.waiting.pop(self, None)
        self._cancel_writing()
        self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._cancel_writing()
        self._writing = self.loop.call_later(self._listener.limits.write_seconds, self.hang_up)
        self._listener.writing[self] = None
        self._limit_unsent()

    def _limit_unsent(self) -> None:
        """Hang up on the clients that take their answers the longest, until the others have few enough bytes."""
        unsent = {one: one.transport.get_write_buffer_size() for one in self._listener.writing}
        most, total = self._listener.limits.unsent_bytes, sum(unsent.values())
        for one, size in unsent.items():
            if total <= most or one is self:
                return
            total -= size
            self._listener.rejections.note("answer not taken", client=one.peer)
            one.hang_up()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_writing()

    def _cancel_writing(self) -> None:
        self._listener.writing.pop(self, None)
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    # -- rejections --------------------------------------------------------------------------------------

    def _reject_for(self, cause: BaseException | None) -> None:
        if isinstance(cause, _Pipelined):
            self._listener.rejections.note("pipelined request", client=self.peer)
            self._end_after_answer()
        elif isinstance(cause, _HeadTooLarge):
            self._reject(431, "headers too large")
        elif isinstance(cause, _RepeatedHeader):
            self._reject(400, "a header is repeated")
        elif isinstance(cause, _SmallChunks):
            self._reject(400, "chunks too small")
        elif isinstance(cause, _TooManyRequests):
            self._reject(429, "too many requests")
        else:
            self._reject(400, "not HTTP")

    def _reject(self, status: int, because: str) -> None:
        self._listener.rejections.note(because, client=self.peer)
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle.response_started or not self.cycle.more_body:
                self._end_after_answer()
                return
            self.cycle.disconnected = True  # the handler waits for the rest of a body that cannot be parsed
            self.cycle.message_event.set()
        self._is_over = True
        lines = [*self.server_state.default_headers, (b"content-type", b"text/plain; charset=utf-8")]
        lines += [(b"content-length", b"%d" % len(because)), (b"connection", b"close")]
        head = b"".join(b"%b: %b\r\n" % line for line in lines)
        self.transport.write(STATUS_LINE[status] + head + b"\r\n" + because.encode())
        self.transport.close()
        self._wait(self._listener.limits.head_seconds)

    def _end_after_answer(self) -> None:
        """Ignore all later data, and close the connection after the answer to the running or last request."""
        self._is_over = True
        if self.cycle is not None:
            self.cycle.keep_alive = False
            if self.cycle.response_complete:
                self.transport.close()

    @property
    def peer(self) -> str:
        """The client's address."""
        return self.client[0] if self.client else "?"
