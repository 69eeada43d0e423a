"""`berth console`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from extender.api.object_meta import ObjectKey
from extender.cli.logs import Form, Level, set_up_logging
from extender.cli.options import (
    DOCS_HELP,
    HOST_HELP,
    PAGE_FILE_HELP,
    Kubeconfig,
    parse_key,
    parse_listen,
    parse_tls,
    parse_url,
)
from extender.cli.restart_advisor import restart_advisor
from extender.entry.console_process import serve_console
from extender.entry.listening import Pages


def console_command(
    kubeconfig: Kubeconfig = None,
    listen: Annotated[
        str, typer.Option(help="The address of the pages and of explain.", metavar="HOST:PORT")
    ] = "127.0.0.1:8889",
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
    tls_key: Annotated[Path | None, typer.Option(help="The key of the certificate.")] = None,
    page_token_file: Annotated[Path | None, typer.Option(help=PAGE_FILE_HELP)] = None,
    page_host: Annotated[list[str] | None, typer.Option(help=HOST_HELP, metavar="NAME")] = None,
    cluster_name: Annotated[str, typer.Option(help="The name of the cluster, which the page shows.")] = "",
    docs_url: Annotated[str | None, typer.Option(help=DOCS_HELP, metavar="URL")] = None,
    log_level: Annotated[Level, typer.Option(help="The lowest level that is logged.")] = "info",
    log_format: Annotated[Form, typer.Option(help="auto: pretty on a terminal, JSON elsewhere.")] = "auto",
) -> None:
    """Serve explain, the pages, audit and fleet metrics.

    `berth serve` places pods without the console.

    Example: berth console --kubeconfig ~/.kube/config
    """
    set_up_logging(log_level, log_format)
    tls = parse_tls(tls_cert, tls_key, None, None)
    docs = parse_url(docs_url, "--docs-url") if docs_url is not None else ""
    hosts = tuple(page_host or ())
    pages = Pages(parse_listen(listen), page_token_file, hosts, tls, cluster_name, docs, restart_advisor)
    shown_at = ObjectKey(*parse_key(policy_configmap, "--policy-configmap")) if policy_configmap is not None else None
    serve_console(kubeconfig, pages, policy, shown_at)
