"""Where the API server is and who we are, by the kubernetes client's own rules."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kubernetes import config
from kubernetes.client import Configuration
from kubernetes.config.config_exception import ConfigException

from extender.cluster.errors import ClusterError

_TOKEN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to reach the API server. `token` is asked before each request, so that rotated tokens are used."""

    url: str
    tls: ssl.SSLContext | None
    token: Callable[[], str | None]


def load_credentials(kubeconfig: Path | None) -> Credentials:
    """From a kubeconfig file, or from the pod's service account. Raises ClusterError saying what is missing."""
    configuration = Configuration()
    try:
        if kubeconfig is not None:
            config.load_kube_config(config_file=str(kubeconfig), client_configuration=configuration)  # type: ignore[no-untyped-call] # the client is not typed
        else:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call] # as above
    except (ConfigException, OSError) as error:
        where = str(kubeconfig) if kubeconfig is not None else "the pod's service account"
        raise ClusterError(f"cannot read credentials from {where}: {error}") from error
    return Credentials(str(configuration.host).rstrip("/"), _tls(configuration), _Token(configuration))


class _Token:
    """The client reads its whole configuration anew for every token asked for: once in a while is enough, as tokens are
    renewed long before they expire."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._known: str | None = None
        self._until = float("-inf")

    def __call__(self) -> str | None:
        now = time.monotonic()
        if now >= self._until:
            self._known, self._until = _token(self._configuration), now + _TOKEN_SECONDS
        return self._known


def _token(configuration: Configuration) -> str | None:
    return configuration.get_api_key_with_prefix("authorization") or configuration.get_api_key_with_prefix("BearerToken")


def _tls(configuration: Configuration) -> ssl.SSLContext | None:
    if not str(configuration.host).startswith("https"):
        return None
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    # Python 3.13 on refuses authorities without the key usage extension; clusters have such ones, and kubectl takes them.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
