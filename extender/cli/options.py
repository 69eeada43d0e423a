"""Options that several commands share, and their checks before a command starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import SplitResult, urlsplit

import typer

from extender.api.object_meta import MAX_SUBDOMAIN, is_label, is_subdomain
from extender.base.berth_errors import WireError
from extender.base.text_limits import shown

if TYPE_CHECKING:
    from extender.entry.listening import Tls

PORTS = 65536
_PORT_DIGITS = 5


def parse_listen(text: str, option: str = "--listen") -> tuple[str, int]:
    """Return (host, port) of HOST:PORT; an empty host means every interface. Raises WireError."""
    host, colon, port = text.rpartition(":")
    digits = port.isascii() and port.isdecimal() and len(port) <= _PORT_DIGITS
    host = host[1:-1] if host[:1] + host[-1:] == "[]" else host
    if not colon or not digits or int(port) >= PORTS or "[" in host or "]" in host:
        raise WireError(option, f"must be HOST:PORT with a port below {PORTS}, is {shown(text)}")
    return host or "0.0.0.0", int(port)  # noqa: S104 - ':8888' means every interface


def parse_url(text: str, option: str) -> str:
    """Return the URL of a server without a slash at its end. Raises WireError."""
    if "@" in text:
        raise WireError(option, "must not hold a user name or password")  # the message leaves the URL out
    if not _is_url(text):
        wanted = f"http://HOST:PORT or https://HOST:PORT with a port from 1 to {PORTS - 1}"
        raise WireError(option, f"must be {wanted}, is {shown(text)}")
    return text.rstrip("/")


def _is_url(text: str) -> bool:
    try:
        found: SplitResult = urlsplit(text)
        host, port = found.hostname or "", found.port
    except ValueError:  # urlsplit rejects the brackets or the port
        return False
    plain = text.isascii() and text.isprintable() and " " not in text and not found.query and not found.fragment
    return plain and found.scheme in ("http", "https") and bool(host) and port != 0


def parse_node(text: str, option: str, room_bytes: int = 0) -> str:
    """Return the name of a node. The caller adds `room_bytes` bytes to it. Raises WireError."""
    most = MAX_SUBDOMAIN - room_bytes
    if not is_subdomain(text) or len(text) > most:
        wanted = f"a DNS-1123 name of at most {most} characters: lower-case letters, digits, '-' and '.'"
        raise WireError(option, f"must be {wanted}, is {shown(text)}")
    return text


def parse_key(text: str, option: str) -> tuple[str, str]:
    """Return (namespace, name) of NAMESPACE/NAME. Raises WireError."""
    namespace, slash, name = text.partition("/")
    if not slash or not is_label(namespace) or not is_subdomain(name):
        raise WireError(option, f"must be NAMESPACE/NAME, is {shown(text)}")
    return namespace, name


def check_namespace(namespace: str, *, everywhere: bool = False) -> None:
    """Raises WireError for a value that is no name of a namespace, or that --all-namespaces contradicts."""
    if namespace and not is_label(namespace):
        raise WireError("--namespace", f"must be the name of a namespace, is {shown(namespace)}")
    if namespace and everywhere:
        raise WireError("--all-namespaces", f"does not go with --namespace {namespace}")


def require_option(chosen: object, option: str, *others: tuple[str, object]) -> None:
    """Raise WireError if one of `others`, (option, value) pairs, is given without the option that they need."""
    for name, value in others:
        if value and chosen is None:
            raise WireError(name, f"goes with {option}")


def parse_tls(
    certificate: Path | None, key: Path | None, client_ca: Path | None, client_name: str | None
) -> Tls | None:
    """Return the TLS settings; None without a certificate. Raises WireError if an option lacks the one it needs."""
    from extender.entry.listening import Tls  # the server: most commands run without it

    require_option(client_ca, "--client-ca", ("--client-name", client_name))
    require_option(certificate, "--tls-cert", ("--tls-key", key), ("--client-ca", client_ca))
    require_option(key, "--tls-key", ("--tls-cert", certificate))
    return Tls(certificate, key, client_ca, client_name) if certificate is not None and key is not None else None


VERBS, PAGES = "127.0.0.1:8888", "127.0.0.1:8889"
SERVER = f"http://{PAGES}"
NAMESPACE = "berth-system"
VerbsAddress = Annotated[str, typer.Option(help="The address for kube-scheduler.", metavar="HOST:PORT")]
PagesAddress = Annotated[str, typer.Option(help="The address of the pages and of explain.", metavar="HOST:PORT")]
Output = Annotated[Literal["table", "json"], typer.Option("-o", "--output", help="How to print.")]
WideOutput = Annotated[Literal["table", "wide", "json", "yaml"], typer.Option("-o", "--output", help="How to print.")]
ListOutput = Annotated[
    Literal["table", "wide", "json", "yaml", "name"], typer.Option("-o", "--output", help="How to print.")
]
Namespace = Annotated[
    str, typer.Option("-n", "--namespace", help="Default: that of the context, if a context leads to the console.")
]
AllNamespaces = Annotated[bool, typer.Option("-A", "--all-namespaces", help="In all namespaces.")]
Watch = Annotated[bool, typer.Option("-w", "--watch", help="Go on, and print what changes, until Ctrl-C.")]
Kubeconfig = Annotated[
    Path | None,
    typer.Option(help="Default: $KUBECONFIG, ~/.kube/config, or the pod's account."),
]
BerthNamespace = Annotated[str, typer.Option(help="The namespace in which Berth is installed.", metavar="NAMESPACE")]
BerthPolicy = Annotated[
    Path | None, typer.Option(help="The policy of Berth. Default: that of the cluster's Berth, or every default.")
]
Context = Annotated[str, typer.Option(help="Default: the current context.")]
Columns = Annotated[
    str,
    typer.Option(
        help="Columns of any CSV file of jobs, such as arrival=submitted,duration=hours*3600,gpus=gpu_num.",
        metavar="FIELD=COLUMN,…",
    ),
]
