"""Options and arguments that several commands share, and their checks before a command starts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple
from urllib.parse import SplitResult, urlsplit

import typer

from extender.api.object_meta import MAX_SUBDOMAIN, ObjectKey, is_label, is_subdomain
from extender.base.berth_errors import BerthError, WireError
from extender.base.text_limits import one_line, shown

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
Context = Annotated[str, typer.Option(help="Default: the current context.")]
Columns = Annotated[
    str,
    typer.Option(
        help="Columns of any CSV file of jobs, such as arrival=submitted,duration=hours*3600,gpus=gpu_num.",
        metavar="FIELD=COLUMN,…",
    ),
]


# -- pods, groups and other objects that words name --------------------------------------------------------------------

_PODS, _GROUPS = ("pod", "po"), ("group", "gang", "pg", "podgroup")
NODE_KINDS, CLAIM_KINDS = ("node", "no"), ("claim", "resourceclaim")
_WORKLOADS = (
    "deploy", "deployment", "sts", "statefulset", "rs", "replicaset", "ds", "daemonset", "job", "cj", "cronjob",
    "jobset", "lws", "leaderworkerset",
)  # fmt: skip


class Named(NamedTuple):
    """A pod or a group. Without a namespace its name is to be unique in the cluster."""

    is_group: bool
    namespace: str
    name: str
    first: str = ""  # the part before the slash: it may be a kind, in place of a namespace

    @property
    def text(self) -> str:
        """NAMESPACE/NAME or NAME."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def group_key(self) -> ObjectKey:
        """The key of a group. Its namespace is '-', which the console knows, if none is given."""
        return ObjectKey(self.namespace or "-", self.name)

    def of_wrong_kind(self) -> BerthError | None:
        """What to name instead; None if the words can only name a pod or a group."""
        return None if self.is_group else _wrong_kind(self.first, self.name)


def explained(words: Sequence[str], namespace: str) -> Named:
    """The pod or group that words name, such as POD, NAMESPACE/POD, pod/POD or group GROUP.

    `namespace` is that of --namespace, or ''. Raises WireError or BerthError.
    """
    if not words:
        raise WireError("NAMESPACE/NAME", "is missing: name a pod, or give -f FILE")
    kind, *rest = words
    if not rest:  # one word: NAME, NAMESPACE/NAME, KIND/NAME
        first, slash, last = kind.partition("/")
        is_kind = slash and (_is(first, _PODS + _GROUPS) or "." in first)  # deployments.apps is no namespace
        if is_kind:
            kind, rest = first, [last]
        else:
            kind, rest = ("pod", [kind]) if slash or not _is(kind, _PODS + _GROUPS) else (kind, [""])
    if wrong := _wrong_kind(kind, rest[0]):
        raise wrong
    is_group = _is(kind, _GROUPS)
    parts = rest[0].split("/")
    if not _is(kind, _PODS + _GROUPS) or len(rest) > 1 or len(parts) > 2 or not all(parts):  # noqa: PLR2004 - see Named
        given = shown(" ".join(words))
        raise WireError("NAMESPACE/NAME", f"must name one {'group' if is_group else 'pod'}, is {given}")
    if len(parts) > 1 and namespace:
        raise WireError("--namespace", f"does not go with a name that has a namespace, is {shown(namespace)}")
    return Named(is_group, parts[0], parts[1], parts[0]) if len(parts) > 1 else Named(is_group, namespace, parts[0])


def _is(kind: str, kinds: Collection[str]) -> bool:
    """Whether a word such as claim, claims or resourceclaim.resource.k8s.io is one of these kinds."""
    word = kind.partition(".")[0]
    return word in kinds or word.removesuffix("s") in kinds


def _wrong_kind(kind: str, name: str) -> BerthError | None:
    """What to name instead of an object of a kind that nobody explains; None for any other word."""
    kind, name = one_line(kind), one_line(name)
    if _is(kind, NODE_KINDS):
        ways = f"berth nodes {name} shows the node"
    elif _is(kind, CLAIM_KINDS):
        ways = f"name a pod that uses the claim; berth claims {name} lists it"
    elif _is(kind, _WORKLOADS) or "." in kind:
        ways = "name one of its pods (kubectl get pods lists them), or give its manifest with -f FILE"
    else:
        return None
    return BerthError(f"{kind} {name} is no pod and no group: {ways}")


def without_kind(name: str, kinds: Collection[str]) -> str:
    """The name of KIND/NAME for one of these kinds; anything else as it is."""
    kind, slash, rest = name.partition("/")
    return rest if slash and _is(kind, kinds) else name


def freed(names: Iterable[str], namespace: str) -> list[str]:
    """The pods of --free as NAMESPACE/NAME; a bare name or pod/NAME is a pod of this namespace, or of default."""
    found = (without_kind(name, _PODS) for name in names)
    return [name if "/" in name else f"{namespace or 'default'}/{name}" for name in found]
