"""`berth policy`: checks and prints policies, and asks a running console about them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from extender.cli.berth_client import SERVER, PolicyDiffReply, PolicyStatusReply, Server, Token, ask
from extender.cli.fleet_commands import Output
from extender.cli.object_files import policy_of
from extender.files import name_of
from extender.model import WireError, counted
from extender.policy import Policy, PolicyError, UnreadablePolicy

policy_app = typer.Typer(no_args_is_help=True, help="Check, print and compare policies.")


@policy_app.command("check")
def check_command(
    files: Annotated[
        list[Path], typer.Argument(help="Policy files, or manifests of a ConfigMap with the key policy.yaml.")
    ],
) -> None:
    """Check policy files offline.

    Exit code 1 if a policy is invalid, 2 if a file cannot be read.

    Example: berth policy check manifests/base/policy.yaml
    """
    code = 0
    for path in files:
        try:
            policy_of(path)
            typer.echo(f"{name_of(path)}: good")
        except (PolicyError, WireError) as error:
            code = max(code, 2 if isinstance(error, UnreadablePolicy | WireError) else 1)
            typer.echo(str(error), err=True)
    if code:
        raise typer.Exit(code)


@policy_app.command("show")
def show_command(
    file: Annotated[Path | None, typer.Argument(help="A policy file. Default: the default policy.")] = None,
) -> None:
    """Print a policy with every default filled in.

    Example: berth policy show
    """
    policy = policy_of(file) if file is not None else Policy()
    typer.echo(yaml.safe_dump(policy.model_dump(mode="json"), sort_keys=False), nl=False)


@policy_app.command("status")
def status_command(
    server: Server = SERVER,
    token: Token = "",
    output: Annotated[Output, typer.Option(help="How to print.")] = "table",
) -> None:
    """Say which policy Berth uses, and why it rejected a newer one.

    Exit code 1 if it rejected one.

    Example: berth policy status --server http://127.0.0.1:8889
    """
    found = ask(server, token, "/v1/policy", PolicyStatusReply)
    if output == "json":
        typer.echo(orjson.dumps(found).decode())
    else:
        typer.echo(f"policy of generation {found['generation']} is in force")
        for subject, problem in (("a newer policy", found["problem"]), ("the candidate", found["candidate_problem"])):
            if problem:
                typer.echo(f"{subject} was rejected: {problem}")
        typer.echo(
            "the console compares a candidate; see `berth policy diff`"
            if found["candidate"]
            else "there is no candidate policy"
        )
        if output == "wide":
            typer.echo(yaml.safe_dump(found["policy"], sort_keys=False), nl=False)
    if found["problem"] or found["candidate_problem"]:
        raise typer.Exit(1)


@policy_app.command("diff")
def diff_command(
    server: Server = SERVER,
    token: Token = "",
    output: Annotated[Output, typer.Option(help="How to print.")] = "table",
) -> None:
    """Show the recent decisions that the candidate policy changes.

    Exit code 1 if there is no candidate.

    Example: berth policy diff --output wide
    """
    found = ask(server, token, "/v1/policy/diff", PolicyDiffReply)
    if output == "json":
        typer.echo(orjson.dumps(found).decode())
    elif found["candidate"]:
        console = Console(width=None if sys.stdout.isatty() else 160)
        if found["changed"]:
            console.print(_differences(found["changed"], wide=output == "wide"))
        missed = f"; not compared: {found['left_out']}" if found["left_out"] else ""
        compared = counted(found["compared"], "decision")
        console.print(f"the candidate changes {len(found['changed'])} of the last {compared}{missed}")
    if not found["candidate"]:
        problem = f"; {found['problem']}" if found["problem"] else ""
        advice = (
            "put it into the ConfigMap berth-policy as candidate.yaml, or start berth console with --candidate FILE"
        )
        typer.echo(f"no candidate policy: {advice}{problem}", err=True)
        raise typer.Exit(1)


def _differences(changed: list[dict[str, Any]], *, wide: bool) -> Table:
    table = Table("pod", "active policy", "candidate", "why the candidate")
    for one in changed:
        other = one["candidate"]
        table.add_row(
            escape(one["pod"]),
            escape(_choice(one["active"], wide=wide)),
            escape(_choice(other, wide=wide)) if other else "nowhere",
            escape("; ".join(f"{p['name']} {p['value']:.2f}" for p in other["parts"])) if other else "",
        )
    return table


def _choice(chosen: dict[str, Any], *, wide: bool) -> str:
    devices = ", ".join(chosen["devices"]) if wide else counted(len(chosen["devices"]), "device")
    speed = f", predicted {chosen['ring_gbps']:.0f} GB/s" if chosen["ring_gbps"] else ""
    return f"{chosen['node']} ({devices}{speed})"
