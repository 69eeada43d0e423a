"""The options of the commands that ask a console: at a URL, on this machine, or in a cluster.

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
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from inspect import Parameter, signature
from pathlib import Path
from threading import Thread
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from extender.api.fields import Json
from extender.base.berth_errors import WireError
from extender.base.text_limits import one_line
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
