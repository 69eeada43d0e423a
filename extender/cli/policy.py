"""`berth policy`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
import yaml

from extender.cli.objects import documents
from extender.policy import Policy, PolicyError, load_policy

policy_app = typer.Typer(no_args_is_help=True, help="Look at policies.")


@policy_app.command("check")
def check_command(
    files: Annotated[list[Path], typer.Argument(help="Policy files, or manifests with a ConfigMap that has policy.yaml.")],
) -> None:
    """Check policies offline, as before a merge. Exit code 1 where one is wrong.

    Example: berth policy check manifests/base/policy.yaml
    """
    wrong = False
    for path in files:
        try:
            load_policy(_policy_text(path))
            typer.echo(f"{path}: good")
        except PolicyError as error:
            wrong = True
            typer.echo(f"{path}: {error}", err=True)
    if wrong:
        raise typer.Exit(1)


@policy_app.command("show")
def show_command(
    file: Annotated[Path | None, typer.Argument(help="A policy file; without it, the default policy.")] = None,
) -> None:
    """Print a policy with every default filled in.

    Example: berth policy show
    """
    policy = load_policy(_policy_text(file)) if file is not None else Policy()
    typer.echo(yaml.safe_dump(policy.model_dump(mode="json"), sort_keys=False), nl=False)


def _policy_text(path: Path) -> str:
    """The text of a policy file, or of the ConfigMap that carries it."""
    text = path.read_text()
    for obj in documents(path) if "kind:" in text else ():
        if obj.get("kind") == "ConfigMap":
            return str((obj.get("data") or {}).get("policy.yaml") or "")
    return text
