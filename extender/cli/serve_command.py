"""`berth serve`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from extender.cli.logs import Form, Level, set_up_logging
from extender.cli.options import (
    HOST_HELP,
    PAGE_FILE_HELP,
    Kubeconfig,
    parse_listen,
    parse_tls,
    parse_url,
    require_option,
)
from extender.entry.listening import Pages
from extender.entry.serve_process import Listen, serve
from extender.serve import Traces

Probes = Annotated[
    str | None, typer.Option(help="A separate address for probes and metrics, without TLS.", metavar="HOST:PORT")
]
PolicyFile = Annotated[
    Path | None, typer.Option(help="The policy file (the mounted ConfigMap). Berth reads it again when it changes.")
]
Certificate = Annotated[
    Path | None, typer.Option(help="The certificate of the verbs' address. Berth reads it again when it changes.")
]
ClientAuthority = Annotated[
    Path | None, typer.Option(help="Answer only clients with a certificate of this certificate authority.")
]
ClientName = Annotated[str | None, typer.Option(help="Answer only the client with this common name or DNS name.")]
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


def serve_command(
    kubeconfig: Kubeconfig = None,
    listen: Annotated[
        str, typer.Option(help="The address for kube-scheduler.", metavar="HOST:PORT")
    ] = "127.0.0.1:8888",
    policy: PolicyFile = None,
    probes: Probes = None,
    tls_cert: Certificate = None,
    tls_key: Annotated[Path | None, typer.Option(help="The key of the certificate.")] = None,
    client_ca: ClientAuthority = None,
    client_name: ClientName = None,
    console: ConsoleAddress = None,
    page_token_file: Annotated[Path | None, typer.Option(help=f"With --console: {PAGE_FILE_HELP}")] = None,
    page_host: Annotated[list[str] | None, typer.Option(help=f"With --console: {HOST_HELP}", metavar="NAME")] = None,
    traces: Collector = None,
    log_level: Annotated[Level, typer.Option(help="The lowest level that is logged; decisions are info.")] = "info",
    log_format: Annotated[Form, typer.Option(help="auto: pretty on a terminal, JSON elsewhere.")] = "auto",
) -> None:
    """Serve the extender's verbs for a cluster.

    Example: berth serve --kubeconfig ~/.kube/config --policy policy.yaml --console 127.0.0.1:8889
    """
    set_up_logging(log_level, log_format)
    address = parse_listen(probes, "--probes") if probes is not None else None
    where = Listen(parse_listen(listen), address, parse_tls(tls_cert, tls_key, client_ca, client_name))
    of_console = (("--page-token-file", page_token_file), ("--page-host", page_host))
    require_option(console, "--console", *of_console)
    to = None
    if console is not None:
        from extender.cli.restart_advisor import restart_advisor  # here, so that serve alone loads no console

        to = Pages(parse_listen(console, "--console"), page_token_file, tuple(page_host or ()), advisor=restart_advisor)
    spans = Traces(parse_url(traces, "--traces")) if traces is not None else None
    serve(kubeconfig, where, policy, to, spans)
