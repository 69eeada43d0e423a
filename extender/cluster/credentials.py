"""Address and credentials of the API server: of a kubeconfig as kubectl chooses it, or of the pod's account."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from extender.base.berth_errors import WireError
from extender.base.text_limits import one_line, shown
from extender.cluster.api_errors import ClusterError
from extender.cluster.tls import is_token, tls_context
from extender.files import read_mounted

_REFRESH_SECONDS = 30.0  # between two reads of the token; the client checks files and expiry on every read
_USABLE_SECONDS = 240.0  # age limit of a read token; the client renews a token five minutes before it expires
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MAX_TOKEN = 64 * 1024  # bytes
_DEFAULT = "~/.kube/config"
_HUNG_SECONDS = 60.0  # a read that takes longer is given up
_MAX_HUNG = 4  # reads given up that still block a thread
_PATIENCE_SECONDS = 15.0  # time-out of a request that waits for a token


@dataclass(frozen=True, slots=True)
class Credentials:
    """Address, TLS and token of the API server.

    `token` may block: it reads files and runs credential plugins. It raises ClusterError. `context` is that of the
    kubeconfig, and `namespace` its default namespace; both are empty in a pod.
    """

    url: str
    tls: ssl.SSLContext | None
    token: Callable[[], str | None]
    context: str = ""
    namespace: str = ""


def kubeconfigs(given: Path | None) -> list[Path]:
    """The kubeconfig files to use, as kubectl chooses them: the given one, those of $KUBECONFIG, or ~/.kube/config.

    An empty list: there is none, so the pod's service account counts. Raises WireError if $KUBECONFIG names no file
    that exists.
    """
    if given is not None:
        return [given]
    named = [path for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    home = os.path.expanduser(_DEFAULT)  # noqa: PTH111 - Path.expanduser raises for a user without a home
    paths = [Path(path) for path in named or [home] if os.path.exists(path)]  # noqa: PTH110 - Path.exists may raise
    if named and not paths:
        raise WireError("$KUBECONFIG", f"names no file that exists: {shown(os.pathsep.join(named))}")
    return paths


def load_credentials(kubeconfig: Path | None, context: str = "") -> Credentials:
    """Credentials from a kubeconfig file, from those of `kubeconfigs` (None), or from the pod's service account.

    `context` names one of the kubeconfig instead of its current one. Blocks while a credential plugin runs. Raises
    WireError or ClusterError with the fault, or with the failed plugin.
    """
    paths = kubeconfigs(kubeconfig)
    if not paths:
        return _of_service_account()
    from extender.cluster.kubeconfig_loader import load_kubeconfigs  # of 16 MiB, which no pod needs

    return Credentials(*load_kubeconfigs(paths, context))


def _of_service_account() -> Credentials:
    """Credentials as kubelet mounts them. It replaces the token's file; the address and the authority stay."""
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{word}", "") for word in ("HOST", "PORT"))
    problem = "" if host and port else "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set"
    if not problem:
        try:
            _account_token()
            tls = tls_context(str(_ACCOUNT / "ca.crt"))
            return Credentials(f"https://{f'[{host}]' if ':' in host else host}:{port}", tls, _account_token)
        except ClusterError as error:
            problem = str(error)
        except OSError as error:
            problem = f"cannot read {_ACCOUNT / 'ca.crt'}: {one_line(str(error), 512)}"
    raise ClusterError(
        f"cannot read credentials from the pod's service account: {problem}; "
        "outside a pod, give --kubeconfig FILE or set KUBECONFIG"
    )


def _account_token() -> str:
    """The header's value. Raises ClusterError."""
    try:
        found = read_mounted(_ACCOUNT / "token", _MAX_TOKEN).decode("ascii", "replace").strip()
    except (WireError, OSError) as error:
        raise ClusterError(f"cannot read the token: {one_line(str(error), 512)}") from error
    if not is_token(found):
        raise ClusterError("cannot read the token: it is not printable ASCII text")
    return f"Bearer {found}"


class TokenCache:
    """The token of requests. A thread reads a new token before the old one expires, one read at a time.

    Requests use the old token until the read ends. After a minute another read begins beside one that hangs.
    """

    def __init__(
        self,
        read: Callable[[], str | None],
        clock: Callable[[], float] = time.monotonic,
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> None:
        self._read = read
        self._clock = clock
        self._patience_seconds = patience_seconds
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
            async with asyncio.timeout(self._patience_seconds):
                return await asyncio.shield(self._reading)
        except TimeoutError:
            raise ClusterError(
                f"no credentials within {self._patience_seconds:.0f} s; a credential plugin may hang"
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
