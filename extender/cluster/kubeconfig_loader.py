"""Kubeconfig files, by the rules of the official Python client. Its modules take 16 MiB."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kubernetes.client import Configuration
from kubernetes.config.config_exception import ConfigException
from kubernetes.config.dateutil import parse_rfc3339
from kubernetes.config.exec_provider import ExecProvider
from kubernetes.config.kube_config import FileOrData, KubeConfigLoader, KubeConfigMerger

from extender.api.documents import one_value
from extender.base.berth_errors import WireError
from extender.base.text_limits import one_line, shown
from extender.cluster.api_errors import ClusterError
from extender.cluster.credentials import CONSOLE_EXTENSION
from extender.cluster.tls import is_token, tls_context
from extender.files import name_of, read_mounted

_MAX_BYTES = 1024 * 1024  # limit of a kubeconfig


Loaded = tuple[str, ssl.SSLContext | None, Callable[[], str | None], str, str, str]


def load_kubeconfigs(paths: list[Path], context: str = "") -> Loaded:
    """The fields of Credentials from these files, of the current context if none is named.

    Blocks while a plugin runs. Raises WireError or ClusterError.
    """
    configuration = Configuration()
    source = os.pathsep.join(map(name_of, paths))
    for path in paths:
        _check(path, name_of(path))
    try:
        used = _load(paths, configuration, context)
        tls = _tls(configuration)
    except ClusterError:
        raise
    except Exception as error:
        raise ClusterError(f"cannot read credentials from {source}: {_reason(error)}") from error
    url = str(configuration.host).rstrip("/")
    if not url.startswith(("http://", "https://")):
        problem = f"the server {shown(url)} is not an http:// or https:// address"
        raise ClusterError(f"cannot read credentials from {source}: {problem}")
    return url, tls, lambda: _token(configuration), *used


def _check(kubeconfig: Path, source: str) -> None:
    """Raises WireError if the file is too large or not a mapping. The client itself has no such limits."""
    found = one_value(read_mounted(kubeconfig, _MAX_BYTES), source, _MAX_BYTES)
    if type(found) is not dict:
        raise WireError(source, "is not a kubeconfig: it must be a mapping")


def _reason(error: Exception) -> str:
    text = one_line(str(error), 512).removesuffix(".")
    if isinstance(error, ssl.SSLError):
        return f"a certificate or key in it is invalid ({text})"
    known = isinstance(error, ConfigException | OSError)
    return text if known else f"a field has an unexpected value ({type(error).__name__}: {text})"


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
            if not (isinstance(status["token"], str) and is_token(status["token"])):
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


def _load(paths: list[Path], configuration: Configuration, context: str) -> tuple[str, str, str]:
    """Like load_kube_config of the client, with _Loader. Returns the context's name, its namespace and its console."""
    merged = KubeConfigMerger(os.pathsep.join(map(str, paths)))  # type: ignore[no-untyped-call] # as above
    if merged.config is None:
        raise ConfigException("the file has no configuration")
    named = {"active_context": context or None, "config_base_path": None}
    options = {**named, "config_persister": merged.save_changes}
    loader = _Loader(merged.config, **options)  # type: ignore[no-untyped-call] # as above
    loader.load_and_set(configuration)  # type: ignore[no-untyped-call] # as above
    used: Any = loader.current_context
    context_of: dict[str, Any] = used["context"]
    namespace = str(context_of.get("namespace") or "default")
    named_objects = {one.get("name"): one.get("extension") for one in context_of.get("extensions") or ()}
    console = (named_objects.get(CONSOLE_EXTENSION) or {}).get("server", "")
    return str(used["name"]), namespace, str(console)


def _token(configuration: Configuration) -> str | None:
    try:
        found = configuration.get_api_key_with_prefix("authorization", "BearerToken")
    except ClusterError:
        raise
    except Exception as error:
        raise ClusterError(f"cannot read the token: {_reason(error)}") from error
    token = found.strip() if found else None  # client-go strips the text of a file, too
    if token and not is_token(token):
        raise ClusterError("cannot read the token: it is not printable ASCII text")
    return token


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
