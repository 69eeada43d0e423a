"""The ASGI application of `berth console`: it checks access, then FastAPI routes the request.

`Access` rejects requests by their headers: protection against other web sites in a user's browser. The pages are for
their own origin. The Host header exposes a page of another site whose name resolves to this address (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from extender.base.berth_errors import WireError
from extender.console import Console, PacedLock
from extender.files import read_mounted
from extender.runtime.informers import NOT_READY
from extender.web.asgi import (
    PAGES,
    PROBE_PATHS,
    TEXT,
    Answer,
    BodyReader,
    HttpLimits,
    Receive,
    RejectionLog,
    Scope,
    Send,
    header,
    is_json,
    not_json,
    probe,
    problem,
)
from extender.web.console.console_metrics import METRICS
from extender.web.console.console_routes import PATHS, explain_hypothetical, routes
from extender.web.metrics import Scrapes

MAX_TOKEN_BYTES = 4096  # bytes of the token file
_HOST = re.compile(r"(?:\[([0-9a-f.]*:[0-9a-f:.]*)\]|([^][:@/\s]+))(?::[0-9]{0,5})?")  # [IPv6], or a name or IPv4; port


class Access:
    """Access rules of the pages: a request needs a Host of this server, the same origin, and the token.

    `host` is the address that the server listens on; `names` are more host names. Explain and fleet need
    the token, except on a loopback address without a token file. They are closed while no token file is named, or
    while the file is absent, empty, above 4 KiB or no regular file. The file is read for every request, so a new token
    needs no restart.
    """

    def __init__(self, host: str = "127.0.0.1", names: Iterable[str] = (), token_file: Path | None = None) -> None:
        self._address = _address(host)
        self._names = {"localhost", host.lower(), *(name.lower() for name in names)}
        self._token_file = token_file
        self._needs_token = token_file is not None or not _is_loopback(self._address, host)

    def rejection(self, scope: Scope, *, open_to_all: bool) -> Answer | None:
        """The error answer to a request that the rules forbid, else None. `open_to_all` paths need no token."""
        host = header(scope, b"host")
        if not self._is_ours(host.decode("latin-1")):
            return problem(403, "the Host of the request is not a name of this server: the option --page-host adds one")
        origin = header(scope, b"origin")
        if origin and origin.partition(b"://")[2].lower() != host.lower():
            return problem(403, "the Origin of the request is another site")
        if scope["method"] == "POST" and not is_json(header(scope, b"content-type")):
            return not_json()
        return None if open_to_all or not self._needs_token else self._rejection_by_token(scope)

    def _rejection_by_token(self, scope: Scope) -> Answer | None:
        token = b""
        if self._token_file is not None:
            with suppress(WireError):
                token = read_mounted(self._token_file, MAX_TOKEN_BYTES).strip()
        if not token:
            return problem(
                403, "closed until there is a token: the option --page-token-file names a file that holds one"
            )
        if not secrets.compare_digest(header(scope, b"authorization"), b"Bearer " + token):
            return Answer(401, b"a bearer token is needed", TEXT, ((b"www-authenticate", b"Bearer"),))
        return None

    def _is_ours(self, host: str) -> bool:
        """Whether a Host header has a name or an address of this server.

        A server on all interfaces accepts every IP address, since it does not know those of Services and port
        forwards. This is safe: DNS rebinding needs a name in the Host header.
        """
        parts = _HOST.fullmatch(host.lower())
        if parts is None:
            return False
        name = parts[1] or parts[2]
        if name in self._names:
            return True
        found = _address(name)
        everywhere = self._address is not None and self._address.is_unspecified
        return found is not None and (everywhere or found == self._address or found.is_loopback)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_loopback(address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, host: str) -> bool:
    return address.is_loopback if address is not None else host == "localhost"


# Paths without a token: kubelet and Prometheus have none, and the files of the page have no data of the cluster.
_OPEN = (*PROBE_PATHS, "/metrics", "/version", *PATHS)
# A cache with missing kinds would answer wrongly.
_OF_CLUSTER = ("/v1/explain", "/v1/restarts", "/v1/fleet", "/v1/nodes", "/v1/claims")
# The answer with 5,000 claims has a megabyte, and takes 25 ms of the event loop.
_LARGE = ("/v1/fleet", "/v1/nodes", "/v1/claims", "/v1/audit", "/v1/policy")
_MAX_WAITING = 16  # requests for these


class ConsoleApp:
    """Probes, metrics, explain, fleet and the page. `access` has the access rules, by default those of loopback.

    `limits` are those of the bodies.
    """

    def __init__(
        self,
        console: Console,
        access: Access | None = None,
        limits: HttpLimits = PAGES,
        rejections: RejectionLog | None = None,
    ) -> None:
        self.console = console
        self._access = access or Access()
        self._bodies = BodyReader(limits)
        self._rejections = rejections or RejectionLog()
        self._scrapes = Scrapes(METRICS, console)
        self._lock = PacedLock(_MAX_WAITING, "requests wait for their answer")
        self._app: Any = routes(console)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        answer = await self._shortcut(scope, receive)
        if answer is not None:
            await answer.to(send)
        elif scope["path"].startswith(_LARGE):
            async with self._lock.one():
                began = time.monotonic()
                try:
                    await self._app(scope, receive, send)
                finally:
                    self._lock.blocked = time.monotonic() - began
        else:
            await self._app(scope, receive, send)

    async def _shortcut(self, scope: Scope, receive: Receive) -> Answer | None:
        """The answer to a request that is rejected or that needs no FastAPI, else None."""
        path, reads = scope["path"], scope["method"] in ("GET", "HEAD")
        if reads and path in PROBE_PATHS:  # before the check of the Host header, which kubelet sets to any name
            return probe(path, self.console.informers)
        rejected = self._access.rejection(scope, open_to_all=path in _OPEN)
        if rejected is not None:
            host = header(scope, b"host").decode("latin-1")
            self._rejections.note("page not allowed", status=rejected.status, host=host)
            return rejected
        if reads and path == "/metrics":
            return self._scrapes.answer()
        missing = self.console.informers.not_ready
        if missing and path.startswith(_OF_CLUSTER):
            return problem(503, f"{NOT_READY}{missing}")
        if path.startswith(_LARGE) and self._lock.full:
            return problem(429, self._lock.full)
        if path == "/v1/explain" and scope["method"] == "POST":
            return await explain_hypothetical(self.console, self._bodies, scope, receive)
        return None
