"""The options of the commands that ask a console: at a URL, on this machine, or in a cluster. The pods that words name.

`--server` names a URL; `--kubeconfig`, `--context` or `--berth-namespace` name the console of a cluster. Without these,
$BERTH_SERVER names a URL: it is no envvar of the option, because what is typed wins. Else $KUBECONFIG names a cluster.
Else `berth` asks 127.0.0.1:8889 if something answers there, which is `berth run`; else the cluster of ~/.kube/config.
`kubectl berth` never asks 127.0.0.1:8889: a sandbox must not answer for the cluster of the context. The kubeconfig of
the sandbox names its console.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial, wraps
from inspect import Parameter, signature
from pathlib import Path
from threading import Thread
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import typer

from extender.api.fields import Json
from extender.api.object_meta import ObjectKey
from extender.base.berth_errors import BerthError, WireError
from extender.base.text_limits import one_line, shown
from extender.cli.console_client import ConsoleClient, FleetReply
from extender.cli.options import NAMESPACE, SERVER, BerthNamespace, Context, parse_url

Server = Annotated[
    str,
    typer.Option(
        help="The URL of the console. Default: $BERTH_SERVER, the console of $KUBECONFIG's cluster, "
        f"{SERVER} (not kubectl berth), or the console of ~/.kube/config's cluster."
    ),
]
Token = Annotated[
    str, typer.Option(envvar="BERTH_TOKEN", help="The token of the console. Default: that of the cluster's Secret.")
]
ConsoleKubeconfig = Annotated[
    Path | None, typer.Option("--kubeconfig", help="The kubeconfig that leads to the console. Default: as kubectl.")
]
_CONNECT_SECONDS = 1.0  # to this machine
_COMPLETION_SECONDS = 3.0  # for which a shell waits for names
_MAX_NAMES = 200


def console_of(
    server: Server = "",
    token: Token = "",
    kubeconfig: ConsoleKubeconfig = None,
    context: Context = "",
    berth_namespace: BerthNamespace = NAMESPACE,
) -> ConsoleClient:
    """The client of the console that these options name. Raises BerthError."""
    if not (token.isascii() and token.isprintable()):
        raise WireError("--token", "must be visible ASCII characters")
    of_cluster = [("--kubeconfig", kubeconfig), ("--context", context)]
    of_cluster += [("--berth-namespace", berth_namespace if berth_namespace != NAMESPACE else "")]
    typed = [f"{option} {one_line(str(value))}" for option, value in of_cluster if value]
    if server and typed:
        raise WireError("--server", f"does not go with {typed[0]}: each names a console")
    if not server and not typed:
        server = os.environ.get("BERTH_SERVER", "")
        names_cluster = os.environ.get("KUBECONFIG") or Path(sys.argv[0]).name.startswith("kubectl")
        if not server and not names_cluster and _listens(SERVER):
            server = SERVER
    if server:
        return ConsoleClient(parse_url(server, "--server"), token)
    # The client of the API server:
    from extender.cli.installed_console import InstalledConsole, credentials_of_cluster

    found = credentials_of_cluster(kubeconfig, context)
    if found.console:
        where = f"the console of context {one_line(found.context)}"
        return ConsoleClient(parse_url(found.console, where), token, found.namespace)
    return InstalledConsole(found, berth_namespace, token)


ConsoleMaker = Callable[[], ConsoleClient]


def asks_console(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of `console_of` in place of its parameter `console`, a ConsoleMaker."""
    own, way = signature(command, eval_str=True), signature(console_of, eval_str=True).parameters

    @wraps(command)
    def run(**given: Any) -> None:
        command(console=partial(console_of, **{name: given.pop(name) for name in way}), **given)

    kept = [one for one in own.parameters.values() if one.name != "console"]
    options = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in way.values()]
    run.__signature__ = own.replace(parameters=[*kept, *options])  # type: ignore[attr-defined] # typer reads it
    return run


def _listens(url: str) -> bool:
    found = urlsplit(url)
    try:
        with socket.create_connection((found.hostname or "", found.port or 0), _CONNECT_SECONDS):
            return True
    except OSError:
        return False


# -- the names that a shell completes ----------------------------------------------------------------------------------


def node_names(context: typer.Context, incomplete: str) -> list[str]:
    """The names of nodes that begin so."""
    return _names(context, incomplete, lambda _, fleet: [node["name"] for node in fleet["nodes"]])


def pod_names(context: typer.Context, incomplete: str) -> list[str]:
    """The pods that wait and begin so: NAME in the namespace of the context, NAMESPACE/NAME elsewhere."""

    def found(console: ConsoleClient, fleet: Json) -> list[str]:
        own = context.params.get("namespace") or console.namespace
        return [one["pod"].removeprefix(f"{own}/") for one in fleet["pending"]]

    return _names(context, incomplete, found)


def _names(context: typer.Context, incomplete: str, names_of: Callable[[ConsoleClient, Json], list[str]]) -> list[str]:
    found: list[str] = []

    def ask() -> None:
        given = context.params
        texts = [str(given.get(name) or "") for name in ("server", "token", "context")]
        with suppress(Exception):  # an error text would appear among the completed words
            console = console_of(
                texts[0], texts[1], given.get("kubeconfig"), texts[2], given.get("berth_namespace") or NAMESPACE
            )
            names = names_of(console, console.ask("/v1/fleet", FleetReply))
            found.extend([name for name in names if name.startswith(incomplete)][:_MAX_NAMES])

    asking = Thread(target=ask, daemon=True)  # it does not hold up the end of the process
    asking.start()
    asking.join(_COMPLETION_SECONDS)
    return list(found)


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
    """What a user can name instead of an object that `explain` does not explain; None for any other word."""
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
