"""`berth completion`, and the names that a shell completes: nodes, and pods that wait.

A name comes from the console that the options and the environment name. Nothing is printed if no console answers
within a moment: a shell shows what a completion prints.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread
from typing import Annotated, Literal

import typer
from typer._completion_classes import completion_init
from typer._completion_shared import get_completion_script

from extender.api.fields import Json
from extender.cli.console_client import NAMESPACE, ConsoleClient, console_of
from extender.cli.console_replies import FleetReply
from extender.cli.output import say

_COMPLETION_SECONDS = 3.0  # for which a shell waits for names
_MAX_NAMES = 200  # names
_VARIABLE, _PLUGIN_VARIABLE = "_BERTH_COMPLETE", "_KUBECTL_BERTH_COMPLETE"  # what typer reads; by the program's name
_NO_FILES = ":4"  # the directive of cobra, which kubectl reads: do not add the names of files


def completion_command(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell that reads the output.")],
) -> None:
    """Print the script by which a shell completes commands and names.

    kubectl completes `kubectl berth` without it, if kubectl_complete-berth is on the PATH.

    Example: berth completion bash > ~/.local/share/bash-completion/completions/berth
    """
    say(get_completion_script(prog_name="berth", complete_var=_VARIABLE, shell=shell))


def completed_words(run: Callable[[Sequence[str]], None]) -> None:
    """Print what may follow the words before the cursor, for the script of a shell or for kubectl.

    kubectl gives the words as arguments, and reads a directive at the end. `run` runs berth with the words.
    """
    completion_init()
    for_kubectl = _VARIABLE not in os.environ
    if for_kubectl:
        words, sys.argv = sys.argv[1:], ["kubectl-berth"]
        line = {"COMP_WORDS": shlex.join(["berth", *words]), "COMP_CWORD": str(len(words))}
        os.environ.update({**line, _PLUGIN_VARIABLE: "complete_bash"})
    words = (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()
    try:
        run(words[1:])
    except SystemExit:
        if for_kubectl:
            say(_NO_FILES)
        raise


def node_names(context: typer.Context, incomplete: str) -> list[str]:
    """The names of nodes that begin so."""
    return _names(context, incomplete, lambda _, fleet: [node["name"] for node in fleet["nodes"]])


def pod_names(context: typer.Context, incomplete: str) -> list[str]:
    """The pods that wait and begin so: NAME in the namespace of the context, NAMESPACE/NAME elsewhere."""

    def found(console: ConsoleClient, fleet: Json) -> list[str]:
        own = context.params.get("namespace") or console.namespace
        return [one["pod"].removeprefix(f"{own}/") for one in fleet["pending"]]

    return _names(context, incomplete, found)


def _names(context: typer.Context, incomplete: str, names_of: Callable[[ConsoleClient, Json], list[str]]) -> list[str]:
    found: list[str] = []

    def ask() -> None:
        given = context.params
        texts = [str(given.get(name) or "") for name in ("server", "token", "context")]
        with suppress(Exception):  # an error text would appear among the completed words
            console = console_of(
                texts[0], texts[1], given.get("kubeconfig"), texts[2], given.get("berth_namespace") or NAMESPACE
            )
            names = names_of(console, console.ask("/v1/fleet", FleetReply))
            found.extend([name for name in names if name.startswith(incomplete)][:_MAX_NAMES])

    asking = Thread(target=ask, daemon=True)  # it does not hold up the end of the process
    asking.start()
    asking.join(_COMPLETION_SECONDS)
    return list(found)
