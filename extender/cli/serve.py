"""`berth serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from extender.cli.addresses import parse_key, parse_listen, parse_url
from extender.cli.logs import Form, Level, set_up_logging
from extender.model.claim import ObjectKey
from extender.model.errors import WireError
from extender.serve import Listen, Policies, serve
from extender.service.tracing import Traces

_FILE_HELP = (
    "A file with the token that explain and the page ask for; read again when it changes. "
    "Where they are not on loopback they are closed without one."
)
_HOST_HELP = "A further name by which the pages may be asked for, such as that of a Service. May be repeated."


def serve_command(
    kubeconfig: Annotated[Path | None, typer.Option(help="Reach the cluster by this file; without it, from inside a pod.")] = None,
    listen: Annotated[str, typer.Option(help="Where kube-scheduler finds Berth.", metavar="HOST:PORT")] = "127.0.0.1:8888",
    policy: Annotated[Path | None, typer.Option(help="The policy's YAML file (the mounted ConfigMap); read again when it changes.")] = None,
    candidate: Annotated[Path | None, typer.Option(help="A policy that is compared with the active one and decides nothing; may come and go.")] = None,
    policy_configmap: Annotated[str | None, typer.Option(help="Where an Event says that the policy is wrong.", metavar="NAMESPACE/NAME")] = None,
    pages: Annotated[str | None, typer.Option(help="An address of their own for probes, metrics, explain and the page; the verbs are not there.", metavar="HOST:PORT")] = None,
    metrics: Annotated[str | None, typer.Option(help="An address for scrapes, which a process of its own answers: none reaches the verbs'.", metavar="HOST:PORT")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate of the verbs' address; read again when it changes.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key.")] = None,
    client_ca: Annotated[Path | None, typer.Option(help="Answer only clients with a certificate of this authority.")] = None,
    client_name: Annotated[str | None, typer.Option(help="Of those, only the one with this common name or DNS name.")] = None,
    page_token_file: Annotated[Path | None, typer.Option(help=_FILE_HELP)] = None,
    page_host: Annotated[list[str] | None, typer.Option(help=_HOST_HELP, metavar="NAME")] = None,
    traces: Annotated[str | None, typer.Option(help="Send a trace per pod to this OpenTelemetry collector (OTLP over HTTP; needs berth[traces]).", metavar="URL")] = None,
    log_level: Annotated[Level, typer.Option(help="The least that is logged; one line per decision is info.")] = "info",
    log_format: Annotated[Form, typer.Option(help="auto: pretty on a terminal, JSON elsewhere.")] = "auto",
) -> None:
    """Serve the extender's verbs for a cluster.

    Example: berth serve --kubeconfig ~/.kube/config --policy policy.yaml
    """
    set_up_logging(log_level, log_format)
    if (tls_cert is None) != (tls_key is None):
        raise WireError("--tls-cert", "goes with --tls-key")
    if client_ca is not None and tls_cert is None:
        raise WireError("--client-ca", "goes with --tls-cert and --tls-key")
    if client_name is not None and client_ca is None:
        raise WireError("--client-name", "goes with --client-ca")
    address = parse_listen(pages, "--pages") if pages is not None else None
    scraped = parse_listen(metrics, "--metrics") if metrics is not None else None
    shown_at = ObjectKey(*parse_key(policy_configmap, "--policy-configmap")) if policy_configmap is not None else None
    spans = Traces(parse_url(traces, "--traces")) if traces is not None else None
    where = Listen(
        *parse_listen(listen), address, scraped, tls_cert, tls_key, client_ca, client_name, page_token_file,
        tuple(page_host or ()),
    )
    serve(kubeconfig, where, Policies(policy, candidate, shown_at), spans)

