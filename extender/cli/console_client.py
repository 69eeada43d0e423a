"""The HTTP client of the commands that ask a console: at a URL, on this machine, or in a cluster.

`--server` names a URL; `--kubeconfig`, `--context` or `--berth-namespace` name the console of a cluster. Without these,
$BERTH_SERVER names a URL: it is no envvar of the option, because what is typed wins. Else $KUBECONFIG names a cluster.
Else `berth` asks 127.0.0.1:8889 if something answers there, which is `berth run`; else the cluster of ~/.kube/config.
`kubectl berth` never asks 127.0.0.1:8889: a sandbox must not answer for the cluster of the context. The kubeconfig of
the sandbox names its console. A reply that does not have Berth's shape raises an error; no command prints it.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from functools import partial, wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, Protocol
from urllib.parse import urlsplit

import httpx
import orjson
import typer
from pydantic import TypeAdapter, ValidationError

from extender.api.documents import json_value
from extender.base.berth_errors import BerthError, WireError
from extender.base.text_limits import one_line
from extender.cli.options import Context, parse_url

SERVER = "http://127.0.0.1:8889"
NAMESPACE = "berth-system"
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
BerthNamespace = Annotated[str, typer.Option(help="The namespace in which Berth is installed.", metavar="NAMESPACE")]
_ANSWER_SECONDS = 30.0
_CONNECT_SECONDS = 1.0  # to this machine
_ERROR_BYTES = 1024  # of an error's text
_OK, _BAD_REQUEST, _UNAUTHORIZED, _NOT_FOUND = 200, 400, 401, 404


class NotKnown(BerthError):
    """The console does not know the object of the question."""


class _Route(Protocol):
    """The way to a console: where it is and whose token is sent, for messages; the default namespace, or ''."""

    namespace: str

    @property
    def address(self) -> str: ...

    @property
    def token_from(self) -> str: ...

    def send(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str], seconds: float
    ) -> httpx.Response: ...

    def attempts(self, namespace: str, pod: str) -> str: ...


class ConsoleClient:
    """Asks one console. `namespace` is the default namespace of the context that leads to it; '' without a context."""

    def __init__(self, route: _Route) -> None:
        self._route = route
        self.namespace = route.namespace

    def ask(self, path: str, shape: Any, body: bytes | None = None) -> Any:
        """Send GET, or POST when there is a `body`, and return the decoded JSON of the reply.

        `shape` is the pydantic type that the reply must have. Raises BerthError; NotKnown for 404.
        """
        method = "GET" if body is None else "POST"
        reply = self._route.send(method, path, body, {"Content-Type": "application/json"}, _ANSWER_SECONDS)
        address = one_line(self._route.address)
        if reply.status_code == _UNAUTHORIZED:
            raise BerthError(_rejected(address, self._route.token_from))
        problem = _own_problem(reply) if reply.status_code != _OK else ""
        if reply.status_code == _NOT_FOUND and problem:
            raise NotKnown(problem)
        if reply.status_code == _BAD_REQUEST and problem:  # it names the part of the question
            raise BerthError(problem)
        if reply.status_code != _OK:
            problem = problem or one_line(reply.text, _ERROR_BYTES)
            raise BerthError(f"{address}{path} answers {reply.status_code}: {problem}")
        try:
            found = json_value(reply.content, f"{address}{path}")
            TypeAdapter(shape).validate_python(found)
        except (WireError, ValidationError) as error:
            raise WireError(
                "--server", f"{address}{path} does not answer as Berth does; is `berth console` there?"
            ) from error
        return found

    def attempts(self, pod: str) -> str:
        """How often kube-scheduler did not place the pod NAMESPACE/NAME; '' if this way shows no Events."""
        return self._route.attempts(*pod.split("/"))


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
        return ConsoleClient(_Url(parse_url(server, "--server"), token))
    # The client of the API server:
    from extender.cli.installed_console import InstalledConsole, credentials_of_cluster

    found = credentials_of_cluster(kubeconfig, context)
    if found.console:
        where = f"the console of context {one_line(found.context)}"
        return ConsoleClient(_Url(parse_url(found.console, where), token, found.namespace))
    return ConsoleClient(InstalledConsole(found, berth_namespace, token))


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


class _Url:
    """A console at a URL. `namespace` is that of the context that names the URL; '' without a context."""

    def __init__(self, address: str, token: str, namespace: str = "") -> None:
        self.address, self.namespace = address, namespace
        self.token_from = "--token or BERTH_TOKEN" if token else ""
        self._secret = {"Authorization": f"Bearer {token}"} if token else {}

    def send(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str], seconds: float
    ) -> httpx.Response:
        # Loading certificate authorities takes longer than the request; plain HTTP needs none.
        tls, url = not self.address.startswith("http://"), f"{self.address}{path}"
        try:
            sent = {**headers, **self._secret}
            return httpx.request(method, url, content=content, headers=sent, timeout=seconds, verify=tls)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            reason = one_line(str(error)) or type(error).__name__
            address = one_line(self.address)
            raise WireError("--server", f"{address} does not answer ({reason}); is `berth console` there?") from error

    def attempts(self, _namespace: str, _pod: str) -> str:
        """The console may not read Events, and a URL leads to no API server."""
        return ""


def _rejected(address: str, token_from: str) -> str:
    if not token_from:
        return f"{address} needs a token: give --token, or set BERTH_TOKEN"
    later = "; it reads a changed Secret within two minutes" if token_from.startswith("Secret") else ""
    return f"{address} rejects the token of {token_from}{later}"


def _own_problem(reply: httpx.Response) -> str:
    """The text of Berth's own error; '' if the body has none."""
    try:
        found = orjson.loads(reply.content)
    except orjson.JSONDecodeError:
        return ""
    message = found.get("error") if isinstance(found, dict) else None
    return one_line(message, _ERROR_BYTES) if isinstance(message, str) else ""
