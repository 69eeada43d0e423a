"""`berth`: all commands in one place."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from extender import __version__
from extender.cli import agent, allocate, doctor, explain, fabric, fleet, lint, policy, run, select, serve
from extender.cli.logs import set_up_logging
from extender.model.errors import BerthError

app = typer.Typer(
    name="berth", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Topology- and memory-aware scheduling of GPU claims (DRA) for Kubernetes 1.34 and newer.",
)
app.command("serve")(serve.serve_command)
app.command("agent")(agent.agent_command)
app.command("fabric")(fabric.fabric_command)
app.command("run")(run.run_command)
app.command("allocate")(allocate.allocate_command)
app.command("select")(select.select_command)
app.command("lint")(lint.lint_command)
app.command("explain")(explain.explain_command)
app.command("doctor")(doctor.doctor_command)
app.command("nodes")(fleet.nodes_command)
app.command("claims")(fleet.claims_command)
app.command("top")(fleet.top_command)
app.add_typer(policy.policy_app, name="policy")
app.command("snapshot")(explain.snapshot_command)


@app.command("version")
def version_command() -> None:
    """Print the version."""
    typer.echo(__version__)


def _print_version(asked: bool) -> None:  # noqa: FBT001 - typer calls it
    if asked:
        version_command()
        raise typer.Exit


@app.callback()
def _all_commands(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")] = False,  # noqa: FBT002 - as typer reads it
) -> None:
    pass


def main() -> None:
    """Entry point: deliberate errors are one line on standard error and exit code 2."""
    set_up_logging()
    try:
        app()
    except (BerthError, OSError) as error:
        typer.echo(f"berth: {error}", err=True)
        sys.exit(2)
