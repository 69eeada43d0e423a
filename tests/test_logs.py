"""A log line that cannot be written is lost: it ends no task, and changes no answer."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest
import structlog

from extender.cli.logs import Form, set_up_logging
from tests.eventually import eventually
from tests.running_berth import berthing, claim, pod
from tests.supervised_worlds import Breakable, composed


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


async def test_a_bind_without_a_log_is_answered_as_ever() -> None:
    with log_to_full_disk():
        async with berthing({"n1": "t4-4"}) as b:
            b.cluster.apply(claim("c"))
            b.cluster.apply(pod("p", "c"))
            await b.settled()
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
