"""Run `berth` as the command line does, in this process: a process of its own takes a second of CPU only to start."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import structlog
from structlog.testing import capture_logs
from typer.testing import CliRunner

from extender.cli.main import commands
from extender.model import BerthError


def berth(words: Sequence[str], env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Exit code, standard output and standard error. `main` turns the same errors into exit code 2."""
    logging = structlog.get_config()
    try:
        with capture_logs():  # a server in this process may log meanwhile
            found = CliRunner(env=env).invoke(commands(words), list(words), prog_name="berth")
    finally:
        structlog.configure(**logging)  # some commands set it up for their process
    if isinstance(found.exception, BerthError | OSError):
        return 2, found.stdout, f"{found.stderr}berth: {found.exception}"
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.exit_code, found.stdout, found.stderr


async def berth_beside(words: Sequence[str], env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """In a thread: a server that the command asks runs in this loop."""
    return await asyncio.to_thread(berth, words, env)
