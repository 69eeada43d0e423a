"""uvicorn's server and protocol with limits: no client can use memory, time or a connection without a limit.

A command binds its sockets with `listen_on` before it starts anything, so that an address in use is a one-line error.

uvicorn itself limits how long an idle connection stays open and how long the shutdown takes; both options are used. It
has none for the rest, so the classes here add it:

* `_Acceptor` accepts in place of the loop's own server, which knows no limit of unfinished TLS handshakes, and which
  uvloop closes for good after an error. It closes new connections of an address that opens too many.
* `Connection` is uvicorn's protocol. It rejects a head that is too long, and a request that is one too many of its
  client; it has no pipelining and no chunked bodies, whose cost the announced length does not show.
* `Server.on_tick` closes the connections that wait too long for their client. uvicorn calls it every 0.1 s.

At the limit of connections a new one replaces the one that has waited for its client longest. So kubelet's probe gets
a connection even if one client holds all of them. uvicorn's `limit_concurrency` would answer 503 to kubelet as well.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import httptools
import structlog
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from extender.base.berth_errors import WireError
from extender.base.text_limits import one_line
from extender.base.timers import TokenBuckets
from extender.web.asgi import HttpLimits, RejectionLog

_ACCEPTED_AT_ONCE = 16  # connections in one turn of the event loop
_ACCEPT_PAUSE_SECONDS = 0.5  # before the next attempt, if no file descriptor is left
_ONCE = frozenset({b"authorization", b"content-type", b"host", b"origin"})  # else two readers may take different ones
_CHUNKED = b"transfer-encoding"
_SEPARATOR_BYTES = 4  # bytes of a header beside its name and value
_UNREAD_BYTES = 64 * 1024  # of a body whose request is answered already
_MAX_CLIENTS = 1024  # of clients, with a rate of their own


def listen_on(option: str, host: str, port: int) -> list[socket.socket]:
    """One listening socket for each address of the host. Raises WireError, which names option and address."""
    address = f"[{host}]:{port}" if ":" in host else f"{one_line(host)}:{port}"
    with ExitStack() as undo:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            bound = [undo.enter_context(_bound(family, where)) for family, _, _, _, where in dict.fromkeys(found)]
        except (OSError, ValueError) as error:  # ValueError: the host is not a valid DNS name
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise WireError(option, f"cannot listen on {address}: {reason}") from error
        undo.pop_all()
    return bound


def _bound(family: int, where: tuple[object, ...]) -> socket.socket:
    # asyncio sets TCP_NODELAY only if the protocol is given. Without it, a reply in two parts waits for an ACK.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(where)
        made.listen()  # before listen, a second socket could bind the same address
    except OSError:
        made.close()
        raise
    return made


class Server(uvicorn.Server):
    """A server on sockets that `listen_on` bound.

    With `client_name`, a connection is closed if the client's certificate does not have this name. `clock` returns
    seconds.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        limits: HttpLimits,
        rejections: RejectionLog | None = None,
        client_name: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(config)
        self.limits = limits
        self.rejections = rejections or RejectionLog()
        self.client_name = client_name
        self._clock = clock
        most = limits.per_client
        self._rates: TokenBuckets[str] | None = TokenBuckets(most, 1 / most, _MAX_CLIENTS) if most is not None else None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections on sockets that `listen_on` bound."""
        ssl, loop = self.config.ssl, asyncio.get_running_loop()
        seconds = self.limits.handshake_seconds if ssl is not None else None
        self.servers = []
        for bound in sockets or ():
            bound.listen(self.config.backlog)
            connect = partial(loop.connect_accepted_socket, self.connection, ssl=ssl, ssl_handshake_timeout=seconds)
            acceptor = _Acceptor(bound, connect, self.limits.handshakes, self.admits)
            self.servers.append(acceptor)  # type: ignore[arg-type] # it has the methods that uvicorn calls
        self.started = True

    def connection(self) -> Connection:
        """A new connection, before its handshake."""
        return Connection(self, config=self.config, server_state=self.server_state, app_state={})

    def admits(self, client: str) -> bool:
        """Whether this address may open another connection, or send another request."""
        return self._rates is None or self._rates.take(client, self._clock())

    async def on_tick(self, counter: int) -> bool:
        """Close the connections that have waited for their client too long."""
        now = asyncio.get_running_loop().time()
        for one in [one for one in self._connections() if one.is_overdue(now)]:
            one.hang_up()
        return await super().on_tick(counter)

    def make_room(self) -> None:
        """Close the connection that has waited for its client longest, if there are too many.

        The newest connection is the one that has waited least: it is closed if all others are in use.
        """
        found = self._connections()
        if len(found) > self.limits.connections:
            self.rejections.note("too many connections", most=self.limits.connections)
            min((one for one in found if one.waits), key=lambda one: one.since).hang_up()

    def limit_unsent(self, newest: Connection) -> None:
        """Hang up on the clients that take their answers the longest, until the others have few enough bytes."""
        paused = sorted((one for one in self._connections() if one.pausing), key=lambda one: one.paused_at)
        total = sum(one.unsent for one in paused)
        for one in paused:
            if total > self.limits.unsent_bytes and one is not newest:
                total -= one.unsent
                self.rejections.note("answer not taken", client=one.peer)
                one.hang_up()

    def _connections(self) -> set[Connection]:
        return self.server_state.connections  # type: ignore[return-value] # `connection` makes them all


class Connection(HttpToolsProtocol):
    """One connection: uvicorn's protocol with limits. Times are those of the event loop, in seconds."""

    def __init__(self, server: Server, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        # The parser refers to its connection. If a TLS handshake fails, no connection_lost would end that cycle, and
        # the collector looks for old cycles every 15 minutes only.
        self.parser = None  # type: ignore[assignment] # until the connection is made
        self._server = server
        self._unparsed = 0  # bytes outside of bodies since the last complete head
        self._head = 0  # bytes of the current head's headers
        self._receives = False  # a request whose body is incomplete
        self._unread = 0  # bytes of a body that came after its answer
        self._is_over = False  # later data is ignored
        self.since = 0.0  # when the client had to send its next bytes
        self.pausing, self.paused_at = False, 0.0  # whether its buffer of unsent bytes is full, and since when

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn's own
        super().connection_made(transport)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn: such data is ignored
        self.since = self.loop.time()
        wanted = self._server.client_name
        if wanted is not None:
            names = names_of(transport.get_extra_info("peercert") or {})
            if wanted not in names:
                self._server.rejections.note("client certificate", wanted=wanted, certificate=sorted(names))
                self.hang_up()
                return
        self._server.make_room()

    def data_received(self, data: bytes) -> None:
        """Parse data as uvicorn does, but with limits and without a log line for each bad request."""
        if self._is_over:
            return
        self._unset_keepalive_if_required()
        self._unparsed += len(data)
        try:
            self.parser.feed_data(data)
            if self._unparsed > self._server.limits.head_bytes:
                self._reject(431, "headers too large")
        except httptools.HttpParserUpgrade:
            self._is_over, self.cycle.keep_alive = True, False  # the request is answered without the upgrade
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._reject(*(cause.args if isinstance(cause, _Rejected) else (400, "not HTTP")))

    # -- callbacks of the parser --------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._answers or self.flow.write_paused:
            raise _Rejected(400, "pipelined request")
        if not self._server.admits(self.peer):
            raise _Rejected(429, "too many requests")
        self._head = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head += len(name) + len(value) + _SEPARATOR_BYTES
        if self._head > self._server.limits.head_bytes:
            raise _Rejected(431, "headers too large")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._head + len(self.url) > self._server.limits.head_bytes:
            raise _Rejected(431, "headers too large")
        headers = dict(self.headers)
        if sum(name in _ONCE for name, _ in self.headers) > len(_ONCE & headers.keys()):
            raise _Rejected(400, "a header is repeated")
        if _CHUNKED in headers:
            raise _Rejected(411, "a body needs a Content-Length")
        self._receives, self._unparsed, self._unread, self.since = True, 0, 0, self.loop.time()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        self._unread += 0 if self._answers else len(body)
        if self._unread > _UNREAD_BYTES:  # a close at once would take the answer from a client that still sends
            self.hang_up()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._receives = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.since = self.loop.time()

    # -- limits ------------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether it is the client's turn: it has to send a request, or the rest of one."""
        return self._receives or not self._answers

    @property
    def unsent(self) -> int:
        """Bytes that the client has not taken yet."""
        return self.transport.get_write_buffer_size()

    @property
    def _answers(self) -> bool:
        """Whether a request has no complete answer yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def is_overdue(self, now: float) -> bool:
        """Whether the client has not sent, or not taken, its bytes in time."""
        limits = self._server.limits
        if self.pausing:
            return now - self.paused_at > limits.write_seconds
        return self.waits and now - self.since > (limits.body_seconds if self._receives else limits.idle_seconds)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.pausing, self.paused_at = True, self.loop.time()
        self._server.limit_unsent(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.pausing = False

    def hang_up(self) -> None:
        """Abort the connection: a regular close would wait for a client that does not read."""
        self._is_over = True
        self.connections.discard(self)
        self._unset_keepalive_if_required()
        self.transport.abort()

    def _reject(self, status: int, because: str) -> None:
        """Close the connection with an answer; without one if a request is not answered yet: the client pipelines."""
        self._server.rejections.note(because, client=self.peer)
        if self._answers or self.pausing:
            self.hang_up()
            return
        self._is_over = True
        lines = [*self.server_state.default_headers, (b"content-type", b"text/plain; charset=utf-8")]
        lines += [(b"content-length", b"%d" % len(because)), (b"connection", b"close")]
        head = b"".join(b"%b: %b\r\n" % line for line in lines)
        self.transport.write(STATUS_LINE[status] + head + b"\r\n" + because.encode())
        self.transport.close()

    @property
    def peer(self) -> str:
        """The client's address."""
        return self.client[0] if self.client else "?"


class _Rejected(Exception):
    """A request that the parser must not go on with: (status, cause)."""


def names_of(certificate: dict[str, Any]) -> set[str]:
    """The common name and the DNS names of a certificate, given as `SSLSocket.getpeercert` returns it."""
    common = {value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"}
    return common | {value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"}


class _Acceptor:
    """Accepts on a bound socket. `connect` makes the protocol of a connection and returns after its handshake.

    At most `most` connections have an unfinished handshake: a new one replaces the oldest. If `admits` returns False
    for the address of a client, its connection is closed at once.
    """

    def __init__(
        self,
        bound: socket.socket,
        connect: Callable[..., Awaitable[object]],
        most: int,
        admits: Callable[[str], bool],
    ) -> None:
        self.sockets = (bound,)
        self._bound, self._connect, self._most, self._admits = bound, connect, most, admits
        self._loop = asyncio.get_running_loop()
        self._unfinished: dict[asyncio.Future[object], None] = {}  # handshakes, the oldest first
        self._again: asyncio.TimerHandle | None = None
        bound.setblocking(False)
        self._loop.add_reader(bound, self._accept)

    def close(self) -> None:
        """Stop. Connections with a complete handshake stay."""
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._bound)
        self._bound.close()
        for task in self._unfinished:
            task.cancel()

    async def wait_closed(self) -> None:
        """Return at once: nothing is left open."""

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, address = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                structlog.get_logger("berth.web").warning("cannot accept connections", problem=str(error))
                self._loop.remove_reader(self._bound)
                pause = _ACCEPT_PAUSE_SECONDS
                self._again = self._loop.call_later(pause, self._loop.add_reader, self._bound, self._accept)
                return
            if not self._admits(address[0]):
                accepted.close()
                continue
            accepted.setblocking(False)
            self._start(accepted)

    def _start(self, accepted: socket.socket) -> None:
        if len(self._unfinished) >= self._most:
            oldest = next(iter(self._unfinished))
            del self._unfinished[oldest]
            oldest.cancel()
        task = asyncio.ensure_future(self._connect(sock=accepted))
        self._unfinished[task] = None
        task.add_done_callback(partial(self._end, accepted))

    def _end(self, accepted: socket.socket, task: asyncio.Future[object]) -> None:
        self._unfinished.pop(task, None)
        fault = None if task.cancelled() else task.exception()
        if task.cancelled() or fault is not None:
            accepted.close()
        if fault is not None and not isinstance(fault, OSError):  # OSError: the client fails its handshake, or leaves
            structlog.get_logger("berth.web").error("a connection failed", exc_info=fault)
