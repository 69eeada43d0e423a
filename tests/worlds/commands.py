"""Run `berth` as the command line does, in this process: a process of its own takes a second of CPU only to start."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple
from unittest.mock import patch

import structlog
import typer
from typer.testing import CliRunner

from extender.base.berth_errors import BerthError
from extender.cli.main import commands
from tests.worlds.skipping_loop import LoopbackLoop


class Ended(NamedTuple):
    code: int
    stdout: str
    stderr: str
    message: str  # of the error for which `main` exits with code 2


@cache
def built(first: str) -> Any:
    """What runs a line with this first word. Typer would build it for every line, which takes longer than most run."""
    return typer.main.get_command(commands([first]))


def ended(words: Sequence[str], env: Mapping[str, str] | None = None) -> Ended:
    """The end of a command that logs where it sees fit."""
    logging, code, message = structlog.get_config(), 2, ""
    with CliRunner(env=env).isolation(input=b"") as (stdout, stderr, _):
        try:
            built(words[0] if words else "").main(args=list(words), prog_name="berth")
        except (BerthError, OSError) as error:
            message = f"berth: {error}"
        except SystemExit as exited:
            code = int(exited.code or 0)
        finally:
            structlog.configure(**logging)  # some commands set it up for their process
            sys.stdout.flush()
            sys.stderr.flush()
        return Ended(code, stdout.getvalue().decode(), stderr.getvalue().decode(), message)


def _drop(*_: object) -> str:
    raise structlog.DropEvent


def berth(words: Sequence[str], env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Exit code, standard output and standard error. `main` turns the same errors into exit code 2."""
    logging = structlog.get_config()
    structlog.configure(processors=[_drop])  # not capture_logs: a server in another thread may log at any time
    try:
        found = ended(words, env)
    finally:
        structlog.configure(**logging)
    return found.code, found.stdout, found.stderr + found.message


def berth_run_once(*options: str) -> tuple[int, str, str]:
    """`berth run --once`, which has all its servers in this process: its timers are not waited for."""
    with patch.object(asyncio.events, "new_event_loop", LoopbackLoop):
        return berth(["run", "--once", "--listen", "127.0.0.1:0", "--console", "127.0.0.1:0", *options])


async def berth_beside(words: Sequence[str], env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """In a thread: a server that the command asks runs in this loop."""
    return await asyncio.to_thread(berth, words, env)
