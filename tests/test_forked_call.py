"""A forked call computes on a copy of the process, and its child ends in any case."""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from pathlib import Path

import pytest

from extender.console.forked_call import ForkedCallFailed, forked
from extender.model import BerthError, WireError
from tests.eventually import HANG_SECONDS, eventually


def has_ended(pid: int) -> bool:
    """Whether the parent has taken the child's end, too."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def work_forever(written: Path) -> None:
    written.write_text(str(os.getpid()))
    while True:
        time.sleep(0.01)


async def test_the_result_comes_from_another_process_and_changes_nothing_here() -> None:
    known = ["before"]

    def work() -> tuple[int, str]:
        known.append("in the child")
        return os.getpid(), "x" * 1_000_000

    pid, text = await forked(work, HANG_SECONDS)
    assert pid != os.getpid()
    assert len(text) == 1_000_000
    assert known == ["before"]
    assert has_ended(pid)


async def test_the_child_has_no_socket_of_its_parent() -> None:
    """A connection that the parent closes would stay open in the child."""
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    async with server:
        names = await forked(lambda: [str(path.readlink()) for path in fds() if path.is_symlink()], HANG_SECONDS)
    assert not [name for name in names if "socket" in name or "eventpoll" in name], names


def fds() -> list[Path]:
    return [Path(f"/proc/self/fd/{fd}") for fd in range(3, 256)]


async def test_the_kernel_ends_a_child_that_works_too_long(tmp_path: Path) -> None:
    with pytest.raises(ForkedCallFailed, match=r"gave up: the work took more than 1 s"):
        await forked(partial(work_forever, tmp_path / "pid"), 1.0)
    assert has_ended(int((tmp_path / "pid").read_text()))


async def test_a_child_that_takes_too_much_memory_gives_up() -> None:
    with pytest.raises(ForkedCallFailed, match="gave up: the work takes more than 96 MiB"):
        await forked(lambda: len(bytearray(1 << 30)), HANG_SECONDS)


async def test_a_call_that_is_cancelled_ends_its_child(tmp_path: Path) -> None:
    task = asyncio.create_task(forked(partial(work_forever, tmp_path / "pid"), HANG_SECONDS))
    pid = int(await eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert has_ended(pid)


async def test_an_error_of_the_child_reaches_the_caller() -> None:
    def reject() -> None:
        raise WireError("count", "must be a number")

    def fail() -> None:
        raise KeyError("lost")

    with pytest.raises(BerthError, match="count: must be a number"):
        await forked(reject, HANG_SECONDS)
    with pytest.raises(RuntimeError, match=r"in fail(.|\n)*KeyError: 'lost'"):
        await forked(fail, HANG_SECONDS)
