"""Address and credentials of the API server, by the rules of the official Python client."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from kubernetes import config
from kubernetes.client import Configuration
from kubernetes.config.config_exception import ConfigException
from kubernetes.config.dateutil import parse_rfc3339
from kubernetes.config.exec_provider import ExecProvider
from kubernetes.config.kube_config import FileOrData, KubeConfigLoader, KubeConfigMerger

from extender.cluster.api_errors import ClusterError
from extender.cluster.tls import tls_context
from extender.files import name_of, read_mounted
from extender.model import WireError, one_line, shown
from extender.wire import one_value

_REFRESH_SECONDS = 30.0  # between two reads of the token; the client checks files and expiry on every read
_USABLE_SECONDS = 240.0  # age limit of a read token; the client renews a token five minutes before it expires
_MOST_BYTES = 1024 * 1024  # limit of a kubeconfig
_DEFAULT = "~/.kube/config"
_HUNG_SECONDS = 60.0  # a read that takes longer is given up
_MOST_HUNG = 4  # reads given up that still block a thread
_PATIENCE_SECONDS = 15.0  # time-out of a request that waits for a token


@dataclass(frozen=True, slots=True)
class Credentials:
    """Address, TLS and token of the API server.

    `token` may block: it reads files and runs credential plugins. It raises ClusterError.
    """

    url: str
    tls: ssl.SSLContext | None
    token: Callable[[], str | None]


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


def load_credentials(kubeconfig: Path | None) -> Credentials:
    """Credentials from a kubeconfig file, from those of `kubeconfigs` (None), or from the pod's service account.

    Blocks while a credential plugin runs. Raises WireError or ClusterError with the fault, or with the failed plugin.
    """
    configuration = Configuration()
    paths = kubeconfigs(kubeconfig)
    source = os.pathsep.join(map(name_of, paths)) or "the pod's service account"
    for path in paths:
        _check(path, name_of(path))
    try:
        if paths:
            _load_kubeconfigs(paths, configuration)
        else:
            config.load_incluster_config(configuration)  # type: ignore[no-untyped-call] # the client is half typed
        tls = _tls(configuration)
    except ClusterError:
        raise
    except Exception as error:
        outside = "" if paths else "; outside a pod, give --kubeconfig FILE or set KUBECONFIG"
        raise ClusterError(f"cannot read credentials from {source}: {_reason(error)}{outside}") from error
    url = str(configuration.host).rstrip("/")
    if not url.startswith(("http://", "https://")):
        problem = f"the server {shown(url)} is not an http:// or https:// address"
        raise ClusterError(f"cannot read credentials from {source}: {problem}")
    return Credentials(url, tls, lambda: _token(configuration))


def _check(kubeconfig: Path, source: str) -> None:
    """Raises WireError if the file is too large or not a mapping. The client itself has no such limits."""
    found = one_value(read_mounted(kubeconfig, _MOST_BYTES), source, _MOST_BYTES)
    if type(found) is not dict:
        raise WireError(source, "is not a kubeconfig: it must be a mapping")


def _reason(error: Exception) -> str:
    text = one_line(str(error), 512).removesuffix(".")
    if isinstance(error, ssl.SSLError):
        return f"a certificate or key in it is invalid ({text})"
    known = isinstance(error, ConfigException | OSError)
    return text if known else f"a field has an unexpected value ({type(error).__name__}: {text})"


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
        if self._reading is not None and now - self._began >= _HUNG_SECONDS and len(self._hung) < _MOST_HUNG:
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


class _Loader(KubeConfigLoader):
    """A loader that raises if a credential plugin fails. The client's own loader only logs it."""

    def _load_from_exec_plugin(self) -> bool | None:
        user: Any = self._user
        cluster: Any = self._cluster
        if "exec" not in user:
            return None
        plugin = user["exec"]
        folder = self._get_base_path(cluster.path)  # type: ignore[no-untyped-call] # as above
        try:
            self._use(ExecProvider(plugin, folder, cluster).run(), folder)  # type: ignore[no-untyped-call] # as above
        except Exception as error:  # the plugin's output may have any value in any field
            # The message omits the arguments, as in kubectl: /readyz is public, and an argument may be a secret.
            command, why = plugin.safe_get("command"), _reason(error).removeprefix("exec: ")
            raise ClusterError(f"credential plugin {command} failed: {why}") from error
        return True

    def _use(self, status: dict[str, Any], folder: str) -> None:
        if "token" in status:
            if not (isinstance(status["token"], str) and _is_token(status["token"])):
                raise ConfigException("its token is not printable ASCII text")
            self.token = f"Bearer {status['token']}"
        elif "clientCertificateData" in status and "clientKeyData" in status:
            self.cert_file = _file(status, "clientCertificateData", folder)
            self.key_file = _file(status, "clientKeyData", folder)
        else:
            raise ConfigException("its output has neither a token nor a client certificate with its key")
        if "expirationTimestamp" in status:
            self.expiry = parse_rfc3339(status["expirationTimestamp"])  # type: ignore[no-untyped-call] # as above


def _file(status: dict[str, Any], field: str, folder: str) -> str:
    """The path of a file with the content of the field."""
    found = FileOrData(status, None, field, folder, False)  # type: ignore[no-untyped-call] # as above; not base64
    return str(found.as_file())  # type: ignore[no-untyped-call] # as above


def _load_kubeconfigs(paths: list[Path], configuration: Configuration) -> None:
    """Like load_kube_config of the client, with _Loader."""
    merged = KubeConfigMerger(os.pathsep.join(map(str, paths)))  # type: ignore[no-untyped-call] # as above
    if merged.config is None:
        raise ConfigException("the file has no configuration")
    options = {"config_base_path": None, "config_persister": merged.save_changes}
    loader = _Loader(merged.config, **options)  # type: ignore[no-untyped-call] # as above
    loader.load_and_set(configuration)  # type: ignore[no-untyped-call] # as above


def _token(configuration: Configuration) -> str | None:
    try:
        found = configuration.get_api_key_with_prefix("authorization", "BearerToken")
    except ClusterError:
        raise
    except Exception as error:
        raise ClusterError(f"cannot read the token: {_reason(error)}") from error
    token = found.strip() if found else None  # client-go strips the text of a file, too
    if token and not _is_token(token):
        raise ClusterError("cannot read the token: it is not printable ASCII text")
    return token


def _is_token(text: str) -> bool:
    """Whether it can be sent in a header."""
    return bool(text) and text.isascii() and text.isprintable()


def _tls(configuration: Configuration) -> ssl.SSLContext | None:
    if not str(configuration.host).startswith("https"):
        return None
    context = tls_context(configuration.ssl_ca_cert)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
