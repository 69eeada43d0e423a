"""A log line that cannot be written is lost: it ends no task, and changes no answer."""

from __future__ import annotations

import io
import json
import os
import select
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from textwrap import dedent
from typing import IO

import pytest
import structlog

from extender.cli.logs import Form, set_up_logging
from tests.worlds.eventually import HANG_SECONDS, eventually
from tests.worlds.running_berth import berthing, claim, pod
from tests.worlds.supervised_worlds import Breakable, composed


class Unprintable(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


@contextmanager
def log_to(file: IO[str], form: Form = "json") -> Iterator[None]:
    """The log of a process whose standard error is this file. In a fixture, pytest would change it back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", file)
        set_up_logging("info", form)
        try:
            yield
        finally:
            structlog.reset_defaults()


@contextmanager
def log_to_full_disk() -> Iterator[None]:
    file = Path("/dev/full").open("w")  # noqa: SIM115 - its end raises, too
    with log_to(file):
        yield
    with suppress(OSError):
        file.close()


def test_a_full_disk_loses_lines() -> None:
    with log_to_full_disk():
        structlog.get_logger("berth.web").error("failed", problem="a bug")


def test_a_closed_standard_error_loses_lines() -> None:
    closed = io.StringIO()
    closed.close()
    with log_to(closed):
        structlog.get_logger("berth.web").error("failed")


@pytest.mark.parametrize("form", ["json", "pretty"])
def test_a_value_without_a_text_loses_its_line_alone(form: Form) -> None:
    log, file = structlog.get_logger("berth.web"), io.StringIO()
    with log_to(file, form):
        log.error("failed", problem=Unprintable())
        log.error("the next")
    assert "the next" in file.getvalue()


@pytest.mark.parametrize("size", [100, 1000, 9000])
def test_a_reader_that_does_not_read_blocks_nothing_and_is_told_how_many_lines_are_missing(size: int) -> None:
    """A line of 9,000 bytes takes three pages of a pipe. It is cut where the pipe, of 16 or 256 pages, is full; the
    next line begins on a line of its own."""
    read, write = os.pipe()
    lines, done = 1_500_000 // size, threading.Event()

    def log() -> None:
        for number in range(lines):
            structlog.get_logger("berth.web").error("failed", number=number, exception="y" * size)
        done.set()

    with os.fdopen(write, "w") as file, log_to(file):
        writer = threading.Thread(target=log, daemon=True)
        writer.start()
        ended = done.wait(HANG_SECONDS)
        os.set_blocking(read, False)
        shown = b"".join(iter(lambda: _read(read), b""))
        for event in ("after all", "the next"):
            structlog.get_logger("berth.web").error(event)
        last = _read(read)
    os.close(read)  # ends a thread that still waits
    assert ended
    whole = [json.loads(line) for line in shown.splitlines(keepends=True) if line.endswith(b"\n")]
    assert [line["number"] for line in whole] == list(range(len(whole)))
    assert len(shown) > 60_000
    assert size < select.PIPE_BUF or not shown.endswith(b"\n"), "the last line was cut"
    found = [json.loads(line) for line in (shown + last).splitlines()[-2:]]
    assert [(line["event"], line.get("lost_lines")) for line in found] == [
        ("after all", lines - len(whole)),
        ("the next", None),
    ]


def test_a_terminal_that_ctrl_s_stopped_loses_lines() -> None:
    screen, terminal = os.openpty()
    with os.fdopen(screen, "rb"), os.fdopen(terminal, "w") as file, log_to(file):
        termios.tcflow(terminal, termios.TCOOFF)
        for _ in range(1000):
            structlog.get_logger("berth.web").error("failed")
        termios.tcflow(terminal, termios.TCOON)
        structlog.get_logger("berth.web").error("after all")
        shown = _read(screen)
    assert json.loads(shown) == json.loads(shown) | {"event": "after all", "lost_lines": 1000}


def _read(descriptor: int) -> bytes:
    with suppress(BlockingIOError):
        return os.read(descriptor, 1024 * 1024)
    return b""


def test_lines_of_libraries_have_the_same_form() -> None:
    lines = """
        import logging
        from extender.cli.logs import set_up_logging
        set_up_logging("info", "json")
        set_up_logging("info", "json")
        for text in ("slow: %d", "%d and %d"):
            logging.getLogger("asyncio").warning(text, 3)
    """
    done = subprocess.run([sys.executable, "-c", dedent(lines)], capture_output=True, text=True, check=True)
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["event"] == "slow: 3"


async def test_a_bind_without_a_log_is_answered_as_ever() -> None:
    with log_to_full_disk():
        async with berthing({"n1": "t4-4"}) as b:
            await b.create(claim("c"), pod("p", "c"))
            await b.filter("p")
            assert await b.bind("p", "n1") == ""
            assert b.node_of("p") == "n1"
            assert "bound to node n1 already" in await b.bind("p", "n2")


async def test_every_task_is_started_again_without_a_log() -> None:
    supervisor = Breakable()
    with log_to_full_disk():
        async with composed(supervisor):
            for name in supervisor.names:
                runs = supervisor.runs[name]
                supervisor.break_(name)
                await eventually(lambda name=name, runs=runs: supervisor.runs[name] > runs)
            assert supervisor.failing == {}
