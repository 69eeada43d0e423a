"""The event loop of the processes, and their HTTP servers: certificates, protocol, and their run until a signal."""

from __future__ import annotations

import asyncio
import math
import resource
import signal
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from extender.base.berth_errors import BerthError, WireError
from extender.files import name_of, read_mounted
from extender.runtime.file_reload import ReloadedFiles
from extender.web.asgi import HttpLimits, RejectionLog
from extender.web.http_server import Server

_MAX_OPEN_FILES = 4096
_MAX_CERTIFICATE_BYTES = 1024 * 1024  # bytes of one file


@dataclass(frozen=True, slots=True)
class Tls:
    """The certificate and key of a server.

    With `client_ca`, clients need a certificate of that authority. With `client_name`, the certificate must also have
    this common name or DNS name.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None
    client_name: str | None = None

    @property
    def files(self) -> list[Path]:
        """The files of certificates and keys."""
        return [path for path in (self.certificate, self.key, self.client_ca) if path is not None]


@dataclass(frozen=True, slots=True)
class Pages:
    """The address of the console's pages, as (host, port), and its options.

    In the process of serve, an explanation delays filter requests that arrive during it.
    """

    address: tuple[str, int]
    token: Path | None = None  # a file with the token for explain, fleet and page
    hosts: tuple[str, ...] = ()  # more host names that requests may have
    tls: Tls | None = None
    cluster: str = ""  # the name of the cluster that the page shows
    docs: str = ""  # the URL of the documentation to which the page links
    # See RestartQuestions of extender.console, whose types neither serve alone nor the agent loads: hence Any.
    advisor: Callable[[Any], Any] | None = None


class ServerEnded(BerthError):
    """A server ended although no signal came. The process ends too, and kubelet restarts it."""


def server(
    app: Any,
    address: tuple[str, int],
    limits: HttpLimits,
    tls: Tls | None = None,
    rejections: RejectionLog | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Server:
    """Make a server for an ASGI application, without an access log. `address` is (host, port).

    `clock` returns seconds.
    """
    config = uvicorn.Config(
        app,
        host=address[0],
        port=address[1],
        log_level="error",  # its warnings are about requests of any client
        log_config=None,  # its lines go the way of all log lines, see cli/logs.py
        access_log=False,
        lifespan="off",
        timeout_keep_alive=math.ceil(limits.idle_seconds),
        timeout_graceful_shutdown=limits.end_seconds,
        ws="none",
        loop="uvloop",
        proxy_headers=False,
        server_header=False,
        headers=[("X-Content-Type-Options", "nosniff")],
        ssl_certfile=tls.certificate if tls else None,
        ssl_keyfile=tls.key if tls else None,
        ssl_ca_certs=str(tls.client_ca) if tls and tls.client_ca else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if tls and tls.client_ca else ssl.CERT_NONE,
    )
    return Server(config, limits, rejections, tls.client_name if tls else None, clock)


async def serve_all(servers: Mapping[Server, list[socket.socket]], *end_waits: Callable[[], None]) -> None:
    """Run all servers on their sockets until SIGINT or SIGTERM. Raises ServerEnded if a server ends by itself.

    The servers then wait for the running requests. Each of `end_waits` ends requests that wait for something else.

    uvicorn's own serve() raises the signal again at its end. That would kill the process before the running binds
    complete.
    """
    _raise_file_limit()
    stopped = asyncio.Event()

    def stop() -> None:
        stopped.set()
        for one in servers:
            one.should_exit = True
        for end in end_waits:
            end()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    running = {
        asyncio.create_task(one._serve(bound)): one  # noqa: SLF001 - see above
        for one, bound in servers.items()
    }
    try:
        ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        early = [running[task] for task in ended] if not stopped.is_set() else []
    finally:
        stop()
        await asyncio.wait(running)
    await asyncio.gather(*running)
    if early:
        addresses = ", ".join(f"{one.config.host}:{one.config.port}" for one in early)
        raise ServerEnded(f"the server at {addresses} ended, although no signal came")


def _raise_file_limit() -> None:
    """Let the process have as many files open as its connections need, as Go programs do, if the hard limit allows it.

    Many systems start a process with a soft limit of 1,024. The verbs, pages and probes of one process, with
    their handshakes and the connections to the API server, may need 1,800.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(_MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def check_certificates(tls: Tls | None) -> None:
    """Raise WireError unless the files have a certificate with its key, and a certificate of the client authority."""
    if tls is None:
        return
    _contents_of(tls)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.certificate, tls.key, _no_password)
    except (OSError, ValueError) as error:
        files = f"{name_of(tls.certificate)} and {name_of(tls.key)}"
        raise WireError("--tls-cert", f"{files} are no certificate and its key without a password: {error}") from error
    if tls.client_ca is None:
        return
    try:
        context.load_verify_locations(tls.client_ca)
    except (OSError, ValueError) as error:
        raise WireError("--client-ca", f"{name_of(tls.client_ca)} holds no certificates: {error}") from error


def _no_password() -> bytes:
    """Without a password function, OpenSSL asks at the terminal."""
    return b""


def load_certificates(servers: Sequence[Server], tls: Tls) -> None:
    """Load the files into the running servers, after `check_certificates`. Raises OSError.

    Without the check, a certificate of another key would take its key from a running server. A new client authority is
    added, and the old one is trusted until the next start of the process, so server and client can change one after the
    other.
    """
    for context in [one.config.ssl for one in servers if one.config.ssl is not None]:
        context.load_cert_chain(tls.certificate, tls.key, _no_password)
        if context.verify_mode is ssl.CERT_REQUIRED and tls.client_ca is not None:
            context.load_verify_locations(tls.client_ca)


def reloaded_certificates(servers: Sequence[Server], tls: Tls) -> ReloadedFiles[None]:
    """The files of running servers. If they changed, a thread checks them, and then the event loop uses them."""
    return ReloadedFiles(
        "certificates",
        tls.files,
        _MAX_CERTIFICATE_BYTES,
        lambda _: check_certificates(tls),
        lambda _: load_certificates(servers, tls),
        known=_contents_of(tls),
    )


def _contents_of(tls: Tls) -> list[bytes]:
    """The contents of the files. Raises WireError, also for a pipe."""
    return [read_mounted(path, _MAX_CERTIFICATE_BYTES) for path in tls.files]


class EventLoop(uvloop.Loop):
    """uvloop's event loop, but it asks name servers in its default executor, as asyncio's own loop does.

    uvloop asks in threads of libuv. A process waits for these when it ends, and a name server may hang.
    """

    async def getaddrinfo(
        self,
        host: str | bytes | None,
        port: str | bytes | int | None,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002 - inherited
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        """See socket.getaddrinfo."""
        return await self.run_in_executor(None, socket.getaddrinfo, host, port, family, type, proto, flags)
