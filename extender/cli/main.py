"""`berth`: the entry point of all commands.

`commands` imports only the module of the command that runs, because `berth serve` keeps every import in memory.
"""

from __future__ import annotations

import gc
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from extender import __version__
from extender.base.berth_errors import BerthError, WireError
from extender.base.text_limits import one_line, printable, shown
from extender.cli.logs import set_up_logging
from extender.cli.output import say

_COMMANDS = {  # command: (module of extender.cli, its function or typer group)
    "serve": ("serve_command", "serve_command"),
    "console": ("console_command", "console_command"),
    "agent": ("agent_command", "agent_command"),
    "fabric": ("fabric_command", "fabric_command"),
    "run": ("run_command", "run_command"),
    "replay": ("replay_command", "replay_command"),
    "assess": ("assess_command", "assess_command"),
    "allocate": ("allocate_command", "allocate_command"),
    "select": ("select_command", "select_command"),
    "lint": ("lint_command", "lint_command"),
    "explain": ("explain_command", "explain_command"),
    "doctor": ("doctor_command", "doctor_command"),
    "nodes": ("fleet_commands", "nodes_command"),
    "claims": ("fleet_commands", "claims_command"),
    "top": ("fleet_commands", "top_command"),
    "policy": ("policy_command", "policy_app"),
    "snapshot": ("snapshot_command", "snapshot_command"),
}
_USAGE_BYTES = 1024


class _Commands(TyperGroup):
    """The group of all commands. An unusable option or argument raises BerthError, as other unusable input does."""

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        """Run the command that the arguments name, and exit. Raises BerthError."""
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False})
        except typer.TyperException as error:
            from extender.policy import in_plain_words  # pydantic takes 6 MiB, which the node agent does without

            message = in_plain_words(error.format_message())
            if not message:  # typer has printed the help
                sys.exit(2)
            raise BerthError(one_line(f"{message.rstrip('.')}{_value(error)}", _USAGE_BYTES)) from error
        sys.exit(code)


def _value(error: typer.TyperException) -> str:
    """Return the value that pydantic rejected, or '' if the message shows it already."""
    from pydantic import ValidationError

    faults = error.__cause__.errors() if isinstance(error.__cause__, ValidationError) else ()
    found = [shown(fault["input"]) for fault in faults[:1]]
    return "".join(f" (is {text})" for text in found if text not in error.message)


def commands(arguments: Sequence[str] = ()) -> typer.Typer:
    """Return an app with the command that is the first argument, or with all commands if the first is not one."""
    app = typer.Typer(
        name="berth",
        cls=_Commands,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="Topology- and memory-aware scheduling of GPU claims (DRA) for Kubernetes 1.34 and newer.",
    )
    app.callback()(_all_commands)
    app.command("version")(version_command)
    first = arguments[0] if arguments else ""
    alone = first in (*_COMMANDS, "version", "--version")
    for name, (module, attribute) in _COMMANDS.items():
        if alone and name != first:
            continue
        found = getattr(import_module(f"extender.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    return app


def version_command() -> None:
    """Print the version."""
    say(__version__)


def _print_version(asked: bool) -> None:  # noqa: FBT001 - typer calls it
    if asked:
        version_command()
        raise typer.Exit


def _all_commands(
    version: Annotated[  # noqa: FBT002 - the form that typer reads
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run a command and exit: 0 success, 1 findings or no node fits, 2 unusable input (one line on stderr)."""
    set_up_logging()
    try:
        for position, argument in enumerate(sys.argv[1:], 1):
            if not argument.isascii() and argument != argument.encode("utf-8", "replace").decode():
                raise WireError(f"argument {position}", f"is not UTF-8: {shown(argument)}")
        app = commands(sys.argv[1:])
        gc.freeze()  # the modules stay
        gc.enable()  # see extender/__main__.py
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see extender/__main__.py
            signal.signal(signal.SIGINT, signal.default_int_handler)
        app()
    except (BerthError, OSError) as error:
        _fail(str(error))
    except Exception as error:  # noqa: BLE001 - a bug in Berth: the user gets the line of code, not the traceback
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        fault = f"{type(error).__name__} at {where}: {one_line(str(error))}"
        _fail(f"a fault in Berth itself, please report it: {fault}")


def _fail(message: str) -> NoReturn:
    with suppress(OSError):  # standard error may be on a full disk
        say(f"berth: {printable(message)}", err=True)
    sys.exit(2)
