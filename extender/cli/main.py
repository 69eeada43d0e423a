"""`berth`: the entry point of all commands.

`commands` imports only the module of the command that runs, because `berth serve` keeps every import in memory.
"""

from __future__ import annotations

import gc
import os
import re
import shlex
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperGroup

from extender import __version__
from extender.base.berth_errors import BerthError, WireError
from extender.base.text_limits import one_line, printable, shown
from extender.cli.logs import set_up_logging
from extender.cli.output import say

_ASK, _CHECK, _RUN, _OTHER = "Ask a cluster", "Check files and machines", "Run", "Others"
# Command: (module of extender.cli, its function or typer group, its panel in the help). In the order of the help.
_COMMANDS = {
    "assess": ("assess_command", "assess_command", _ASK),
    "claims": ("fleet_commands", "claims_command", _ASK),
    "defrag": ("defrag_command", "defrag_command", _ASK),
    "doctor": ("doctor_command", "doctor_command", _ASK),
    "explain": ("explain_command", "explain_command", _ASK),
    "nodes": ("fleet_commands", "nodes_command", _ASK),
    "snapshot": ("cluster_objects", "snapshot_command", _ASK),
    "top": ("fleet_commands", "top_command", _ASK),
    "allocate": ("allocate_command", "allocate_command", _CHECK),
    "fabric": ("fabric_command", "fabric_command", _CHECK),
    "lint": ("lint_command", "lint_command", _CHECK),
    "policy": ("policy_command", "policy_app", _CHECK),
    "select": ("select_command", "select_command", _CHECK),
    "agent": ("serve_commands", "agent_command", _RUN),
    "console": ("serve_commands", "console_command", _RUN),
    "replay": ("replay_commands", "replay_command", _RUN),
    "run": ("run_command", "run_command", _RUN),
    "serve": ("serve_commands", "serve_command", _RUN),
    "tune": ("replay_commands", "tune_command", _RUN),
    "completion": ("main", "completion_command", _OTHER),
}
_PROCESSES = {  # what these import when they run: here the collector is off, and the modules are frozen with the others
    "agent": ("agent.reader_process", "agent.slice_publisher", "entry.listening"),
    "console": ("entry.console_process",),
    "serve": ("entry.serve_process",),
}
_OWN_OPTIONS = ("-h", "--help", "--version")  # of berth itself, not of a command
_FLAGS = ("-A", "--all-namespaces", "-w", "--watch")  # options without a value that may stand before the command
_HAS_VALUE = re.compile("--[^=]+=|-[a-zA-Z].")  # an option with its value in the same word
_USAGE_BYTES = 1024
_COMPLETION, _PLUGIN_COMPLETION = "_BERTH_COMPLETE", "_KUBECTL_BERTH_COMPLETE"  # read by typer; by the program's name
_NO_FILES = ":4"  # the directive of cobra, which kubectl reads: do not add the names of files


class _Commands(TyperGroup):
    """The group of all commands. An unusable option or argument raises BerthError, as other unusable input does."""

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order of the help; typer lists groups last."""
        order = list(_COMMANDS)
        return sorted(super().list_commands(ctx), key=lambda name: order.index(name) if name in order else len(order))

    def main(self, args: Sequence[str] | None = None, *more: Any, **extra: Any) -> NoReturn:
        """Run the command that the arguments name, and exit. Raises BerthError."""
        words = _as_typer_reads(sys.argv[1:] if args is None else args)
        try:
            code = super().main(words, *more, **{**extra, "standalone_mode": False})
        except typer.TyperException as error:
            from extender.policy import in_plain_words  # pydantic takes 6 MiB, which the node agent does without

            message = in_plain_words(error.format_message())
            if not message:  # typer has printed the help
                sys.exit(2)
            raise BerthError(one_line(f"{message.rstrip('.')}{_value(error)}", _USAGE_BYTES)) from error
        sys.exit(code)


def _as_typer_reads(words: Sequence[str]) -> list[str]:
    """The words with what kubectl takes, too: options before the command, and -o=json."""
    first = 0  # the position of the command
    while first < len(words) and words[first].startswith("-") and words[first] not in _OWN_OPTIONS:
        first += 1 if words[first] in _FLAGS or _HAS_VALUE.match(words[first]) else 2
    if first < len(words) and words[first] in _COMMANDS:
        words = [words[first], *words[:first], *words[first + 1 :]]
    return [re.sub("^(-[a-zA-Z])=", "\\1", word) for word in words]


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
        add_completion=False,  # `berth completion` prints the scripts
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
        help="Topology- and memory-aware scheduling of GPU claims (DRA) for Kubernetes 1.34 and newer.",
    )
    app.callback()(_all_commands)
    first = arguments[0] if arguments else ""
    alone = first in (*_COMMANDS, "version", "--version")
    for name in _PROCESSES.get(first, ()):
        import_module(f"extender.{name}")
    for name, (module, attribute, panel) in _COMMANDS.items():
        if alone and name != first:
            continue
        found = getattr(import_module(f"extender.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name, rich_help_panel=panel)
        else:
            app.command(name, rich_help_panel=panel)(found)
    app.command("version", rich_help_panel=_OTHER)(version_command)
    return app


def version_command() -> None:
    """Print the version."""
    say(__version__)


def completion_command(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell that reads the output.")],
) -> None:
    """Print the script by which a shell completes commands and names.

    kubectl completes `kubectl berth` without it, if kubectl_complete-berth is on the PATH.

    Example: berth completion bash > ~/.local/share/bash-completion/completions/berth
    """
    from typer._completion_shared import get_completion_script

    say(get_completion_script(prog_name="berth", complete_var=_COMPLETION, shell=shell))


def _complete() -> None:
    """Print what may follow the words before the cursor, for the script of a shell or for kubectl.

    kubectl gives the words as arguments, and reads a directive at the end.
    """
    from typer._completion_classes import completion_init  # seldom needed

    completion_init()
    for_kubectl = _COMPLETION not in os.environ
    if for_kubectl:
        words, sys.argv = sys.argv[1:], ["kubectl-berth"]
        line = {"COMP_WORDS": shlex.join(["berth", *words]), "COMP_CWORD": str(len(words))}
        os.environ.update({**line, _PLUGIN_COMPLETION: "complete_bash"})
    words = (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()
    try:
        commands(words[1:])()
    except SystemExit:
        if for_kubectl:
            say(_NO_FILES)
        raise


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
        if _COMPLETION in os.environ or Path(sys.argv[0]).name.startswith("kubectl_complete"):
            _complete()
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
