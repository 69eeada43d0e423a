"""`berth console`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from extender.cli.addresses import parse_key, parse_listen
from extender.cli.logs import Form, Level, set_up_logging
from extender.cli.serve_command import HOST_HELP, PAGE_FILE_HELP, needs, parse_tls
from extender.entry.console_process import Pages, Policies, RecordsFrom, serve_console
from extender.model import ObjectKey

AUDIENCE = "berth-console"
SENDER = "system:serviceaccount:berth-system:berth"


def console_command(
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Reach the cluster by this file; without it, from inside a pod.")
    ] = None,
    listen: Annotated[
        str, typer.Option(help="Where people and their programs ask.", metavar="HOST:PORT")
    ] = "127.0.0.1:8889",
    policy: Annotated[
        Path | None, typer.Option(help="The policy's YAML file that berth serve reads; read again when it changes.")
    ] = None,
    candidate: Annotated[
        Path | None,
        typer.Option(help="A policy that is compared with the active one and decides nothing; may come and go."),
    ] = None,
    policy_configmap: Annotated[
        str | None, typer.Option(help="Where an Event says that the policy is wrong.", metavar="NAMESPACE/NAME")
    ] = None,
    records: Annotated[
        str | None, typer.Option(help="Where berth serve sends its records.", metavar="HOST:PORT")
    ] = None,
    records_from: Annotated[
        list[str] | None,
        typer.Option(
            help=f"As which user the API server must know the sender. May be repeated. [default: {SENDER}]",
            metavar="USER",
        ),
    ] = None,
    records_audience: Annotated[
        str | None, typer.Option(help=f"For which audience the sender's token must be. [default: {AUDIENCE}]")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate of both addresses; read again when it changes.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key.")] = None,
    page_token_file: Annotated[Path | None, typer.Option(help=PAGE_FILE_HELP.capitalize())] = None,
    page_host: Annotated[list[str] | None, typer.Option(help=HOST_HELP.capitalize(), metavar="NAME")] = None,
    log_level: Annotated[Level, typer.Option(help="The least that is logged.")] = "info",
    log_format: Annotated[Form, typer.Option(help="auto: pretty on a terminal, JSON elsewhere.")] = "auto",
) -> None:
    """Answer people: explain, the page, nodes, claims, audit, metrics of the fleet. Berth places pods without it.

    Example: berth console --kubeconfig ~/.kube/config --records 127.0.0.1:8890
    """
    set_up_logging(log_level, log_format)
    needs(records, "--records", ("--records-from", records_from), ("--records-audience", records_audience))
    tls = parse_tls(tls_cert, tls_key, None, None)
    pages = Pages(parse_listen(listen), page_token_file, tuple(page_host or ()), tls)
    shown_at = ObjectKey(*parse_key(policy_configmap, "--policy-configmap")) if policy_configmap is not None else None
    sender = None
    if records is not None:
        users = frozenset(records_from or (SENDER,))
        sender = RecordsFrom(parse_listen(records, "--records"), records_audience or AUDIENCE, users)
    serve_console(kubeconfig, pages, sender, Policies(policy, candidate, shown_at))
