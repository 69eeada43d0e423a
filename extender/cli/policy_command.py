"""`berth policy`: checks and prints policies, and asks a running console about them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.table import Table

from extender.cli.berth_client import SERVER, PolicyDiffReply, PolicyStatusReply, Server, Token, ask
from extender.cli.fleet_commands import Output
from extender.cli.object_files import policy_of
from extender.cli.output import say, say_json, table_screen
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
            say(f"{name_of(path)}: good")
        except (PolicyError, WireError) as error:
            code = max(code, 2 if isinstance(error, UnreadablePolicy | WireError) else 1)
            say(str(error), err=True)
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
    say(yaml.safe_dump(policy.model_dump(mode="json"), sort_keys=False), nl=False)


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
        say_json(found)
    else:
        say(f"policy of generation {found['generation']} is in force")
        for subject, problem in (("a newer policy", found["problem"]), ("the candidate", found["candidate_problem"])):
            if problem:
                say(f"{subject} was rejected: {problem}")
        say(
            "the console compares a candidate; see `berth policy diff`"
            if found["candidate"]
            else "there is no candidate policy"
        )
        if output == "wide":
            say(yaml.safe_dump(found["policy"], sort_keys=False), nl=False)
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
        say_json(found)
    elif found["candidate"]:
        console = table_screen()
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
        say(f"no candidate policy: {advice}{problem}", err=True)
        raise typer.Exit(1)


def _differences(changed: list[dict[str, Any]], *, wide: bool) -> Table:
    table = Table("pod", "active policy", "candidate", "why the candidate")
    for one in changed:
        other = one["candidate"]
        table.add_row(
            one["pod"],
            _choice(one["active"], wide=wide),
            _choice(other, wide=wide) if other else "nowhere",
            "; ".join(f"{p['name']} {p['value']:.2f}" for p in other["parts"]) if other else "",
        )
    return table


def _choice(chosen: dict[str, Any], *, wide: bool) -> str:
    devices = ", ".join(chosen["devices"]) if wide else counted(len(chosen["devices"]), "device")
    speed = f", predicted {chosen['ring_gbps']:.0f} GB/s" if chosen["ring_gbps"] else ""
    return f"{chosen['node']} ({devices}{speed})"
