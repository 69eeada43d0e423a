"""`berth policy`: checks and prints policies, and asks a running console about them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
import yaml

from extender.base.berth_errors import WireError
from extender.base.text_limits import shown
from extender.cli.console_client import PolicyStatusReply
from extender.cli.console_options import ConsoleMaker, asks_console
from extender.cli.object_files import policy_of
from extender.cli.options import WideOutput
from extender.cli.output import say, say_value
from extender.files import name_of
from extender.policy import Policy, PolicyError, UnreadablePolicy
from extender.vendors import VENDORS

policy_app = typer.Typer(no_args_is_help=True, help="Check and print policies.")


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
            policy = policy_of(path)
            say(f"{name_of(path)}: good")
            _tell_products(policy)
        except (PolicyError, WireError) as error:
            code = max(code, 2 if isinstance(error, UnreadablePolicy | WireError) else 1)
            say(str(error), err=True)
    if code:
        raise typer.Exit(code)


def _tell_products(policy: Policy) -> None:
    """Say which words of the vendor files each entry of `products` goes with. GPUs may have other names."""
    known = [word for vendor in VENDORS for one in vendor.products for word in one.names]
    for name in policy.product_names:
        products = [one for vendor in VENDORS if (one := vendor.product(name)) is not None]
        found = [word for one in products for word in one.names if word in name]
        found += [word for word in known if name in word and word not in found]
        cased = [word for word in known if name.lower() in word.lower()]
        if found:
            say(f"  products: {shown(name)} goes with {', '.join(found)} of the vendor files")
        else:
            hint = f"; upper and lower case count: {', '.join(cased)}" if cased else ""
            say(f"  products: {shown(name)} goes with no product of the vendor files{hint}")


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
@asks_console
def status_command(
    *,
    output: WideOutput = "table",
    console: ConsoleMaker,
) -> None:
    """Say which policy Berth uses, and why it rejected a newer one.

    Exit code 1 if it rejected one.

    Example: berth policy status --server http://127.0.0.1:8889
    """
    found = console().ask("/v1/policy", PolicyStatusReply)
    if output in ("json", "yaml"):
        say_value(found, output)
    else:
        say(f"policy of generation {found['generation']} is in force")
        if found["problem"]:
            say(f"a newer policy was rejected: {found['problem']}")
        for name in found["unmatched_products"]:
            say(f"products: no GPU of the fleet has {shown(name)} in its product name")
        if output == "wide":
            say(yaml.safe_dump(found["policy"], sort_keys=False), nl=False)
    if found["problem"]:
        raise typer.Exit(1)
