"""Address and credentials of the API server: of a kubeconfig as kubectl chooses it, or of the pod's account."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from extender.base.berth_errors import WireError
from extender.base.text_limits import one_line, shown
from extender.cluster.api_errors import ClusterError
from extender.cluster.tls import is_token, tls_context
from extender.files import read_mounted

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MAX_TOKEN = 64 * 1024  # bytes
_DEFAULT = "~/.kube/config"
CONSOLE_EXTENSION = "console.berth.dev"  # of a context: {"server": URL}


@dataclass(frozen=True, slots=True)
class Credentials:
    """Address, TLS and token of the API server.

    `token` may block: it reads files and runs credential plugins. It raises ClusterError. `context` is that of the
    kubeconfig, and `namespace` its default namespace; both are empty in a pod. `console` is the URL of Berth's console
    if the context names one, as that of the sandbox does; else empty.
    """

    url: str
    tls: ssl.SSLContext | None
    token: Callable[[], str | None]
    context: str = ""
    namespace: str = ""
    console: str = ""


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
