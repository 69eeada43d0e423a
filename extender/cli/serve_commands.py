"""`berth serve`, `berth console` and `berth agent`. Each loads the code of its own process only."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from extender.api.object_meta import ObjectKey
from extender.cli.logs import Form, Level, set_up_logging
from extender.cli.options import (
    PAGES,
    VERBS,
    Kubeconfig,
    PagesAddress,
    VerbsAddress,
    parse_key,
    parse_listen,
    parse_node,
    parse_tls,
    parse_url,
    require_option,
)

if TYPE_CHECKING:
    from extender.cache import ClusterCache
    from extender.console import RestartAdvisor

_PAGE_FILE = (
    "The file with the token of explain and the pages. Berth reads it for every request. "
    "Without a token Berth serves them on loopback only."
)
_PAGE_HOST = "A further host name of the pages, such as that of a Service. May be repeated."
TlsKey = Annotated[Path | None, typer.Option(help="The key of the certificate.")]
ConsoleAddress = Annotated[
    str | None,
    typer.Option(
        help="Run the console in this process at this address. An explanation may then delay a filter request.",
        metavar="HOST:PORT",
    ),
]
Collector = Annotated[
    str | None,
    typer.Option(
        help="Send a trace per pod to this OpenTelemetry collector (OTLP over HTTP; needs berth\\[traces]).",
        metavar="URL",
    ),
]
LogFormat = Annotated[Form, typer.Option(help="auto: pretty on a terminal, JSON elsewhere.")]


def serve_command(
    kubeconfig: Kubeconfig = None,
    listen: VerbsAddress = VERBS,
    policy: Annotated[
        Path | None,
        typer.Option(help="The policy file (the mounted ConfigMap). Berth reads it again when it changes."),
    ] = None,
    probes: Annotated[
        str | None, typer.Option(help="A separate address for probes and metrics, without TLS.", metavar="HOST:PORT")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="The certificate of the verbs' address. Berth reads it again when it changes.")
    ] = None,
    tls_key: TlsKey = None,
    client_ca: Annotated[
        Path | None, typer.Option(help="Answer only clients with a certificate of this certificate authority.")
    ] = None,
    client_name: Annotated[
        str | None, typer.Option(help="Answer only the client with this common name or DNS name.")
    ] = None,
    console: ConsoleAddress = None,
    page_token_file: Annotated[Path | None, typer.Option(help=f"With --console: {_PAGE_FILE}")] = None,
    page_host: Annotated[list[str] | None, typer.Option(help=f"With --console: {_PAGE_HOST}", metavar="NAME")] = None,
    traces: Collector = None,
    log_level: Annotated[Level, typer.Option(help="The lowest level that is logged; decisions are info.")] = "info",
    log_format: LogFormat = "auto",
) -> None:
    """Serve the extender's verbs for a cluster.

    Example: berth serve --kubeconfig ~/.kube/config --policy policy.yaml --console 127.0.0.1:8889
    """
    from extender.entry.listening import Pages
    from extender.entry.serve_process import Listen, serve
    from extender.serve import Traces

    set_up_logging(log_level, log_format)
    address = parse_listen(probes, "--probes") if probes is not None else None
    where = Listen(parse_listen(listen), address, parse_tls(tls_cert, tls_key, client_ca, client_name))
    of_console = (("--page-token-file", page_token_file), ("--page-host", page_host))
    require_option(console, "--console", *of_console)
    to = None
    if console is not None:
        to = Pages(parse_listen(console, "--console"), page_token_file, tuple(page_host or ()), advisor=restart_advisor)
    spans = Traces(parse_url(traces, "--traces")) if traces is not None else None
    serve(kubeconfig, where, policy, to, spans)


def console_command(
    kubeconfig: Kubeconfig = None,
    listen: PagesAddress = PAGES,
    policy: Annotated[
        Path | None,
        typer.Option(help="The policy file that berth serve uses. The console reads it again when it changes."),
    ] = None,
    policy_configmap: Annotated[
        str | None,
        typer.Option(help="The ConfigMap that gets an Event when the policy is invalid.", metavar="NAMESPACE/NAME"),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="The certificate of the pages. The console reads it again when it changes.")
    ] = None,
    tls_key: TlsKey = None,
    page_token_file: Annotated[Path | None, typer.Option(help=_PAGE_FILE)] = None,
    page_host: Annotated[list[str] | None, typer.Option(help=_PAGE_HOST, metavar="NAME")] = None,
    cluster_name: Annotated[str, typer.Option(help="The name of the cluster, which the page shows.")] = "",
    docs_url: Annotated[
        str | None,
        typer.Option(
            help="Where your copy of the documentation is. The page links to it; without an address it has no such "
            "link.",
            metavar="URL",
        ),
    ] = None,
    log_level: Annotated[Level, typer.Option(help="The lowest level that is logged.")] = "info",
    log_format: LogFormat = "auto",
) -> None:
    """Serve explain, the pages, audit and fleet metrics.

    `berth serve` places pods without the console.

    Example: berth console --kubeconfig ~/.kube/config
    """
    from extender.entry.console_process import serve_console
    from extender.entry.listening import Pages

    set_up_logging(log_level, log_format)
    tls = parse_tls(tls_cert, tls_key, None, None)
    docs = parse_url(docs_url, "--docs-url") if docs_url is not None else ""
    hosts = tuple(page_host or ())
    pages = Pages(parse_listen(listen), page_token_file, hosts, tls, cluster_name, docs, restart_advisor)
    shown_at = ObjectKey(*parse_key(policy_configmap, "--policy-configmap")) if policy_configmap is not None else None
    serve_console(kubeconfig, pages, policy, shown_at)


def agent_command(
    node: Annotated[str, typer.Option(envvar="NODE_NAME", help="This node's name (the downward API's spec.nodeName).")],
    kubeconfig: Kubeconfig = None,
    probes: Annotated[
        str,
        typer.Option(help="The address of the liveness probe and of the metrics, without TLS.", metavar="HOST:PORT"),
    ] = "127.0.0.1:8886",
) -> None:
    """Publish this node's NVLinks and GPU memory as a ResourceSlice.

    The driver of the slice is fabric.berth.dev.

    Example: berth agent --node gpu-worker-1
    """
    from extender.topology.agent_slices import DRIVER

    name = parse_node(node, "--node", room_bytes=len(DRIVER) + 1)  # the slice is named after driver and node
    asyncio.run(_run_agent(name, kubeconfig, parse_listen(probes, "--probes")))


async def _run_agent(node: str, kubeconfig: Path | None, probes: tuple[str, int]) -> None:
    """Publish until SIGINT or SIGTERM. The slice stays: the next agent on the node takes it over."""
    from extender.agent.reader_process import AgentApp, ReaderProcess
    from extender.agent.slice_publisher import SlicePublisher
    from extender.cluster import ApiClient, load_credentials
    from extender.entry.listening import serve_all, server
    from extender.runtime.supervisor import DaemonThreads, Supervisor
    from extender.web.asgi import PROBES
    from extender.web.http_server import listen_on

    asyncio.get_running_loop().set_default_executor(DaemonThreads())
    credentials = load_credentials(kubeconfig)
    sockets, supervisor, reader = listen_on("--probes", *probes), Supervisor(), ReaderProcess()
    async with ApiClient(credentials, user_agent="berth-agent") as client:
        supervisor.start("publisher", SlicePublisher(client, node, reader.read).run)
        try:
            await serve_all({server(AgentApp(reader, supervisor), probes, PROBES): sockets})
        finally:
            await supervisor.stop()
            await reader.stop()


def restart_advisor(cache: ClusterCache) -> RestartAdvisor:
    """The console's advisor for one question about this cache.

    Its proof runs the code of serve, which the console loads with the first question.
    """
    from extender.assess import ConsoleAdvisor

    return ConsoleAdvisor(cache)
