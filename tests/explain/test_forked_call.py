"""A forked call computes on a copy of the process, and its child ends in any case."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

from extender.base.berth_errors import BerthError, WireError
from extender.console import ForkedCallFailed, forked_call
from extender.console.forked_call import forked
from extender.serve import Traces
from tests.worlds.eventually import HANG_SECONDS, eventually


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
    """A connection that the parent closes would stay open in the child: also in place of a closed standard file."""

    def open_files() -> list[str]:
        return [str(one.readlink()) for one in (Path(f"/proc/self/fd/{fd}") for fd in range(256)) if one.is_symlink()]

    server, kept = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0), os.dup(0)
    async with server:
        os.dup2(server.sockets[0].fileno(), 0)
        try:
            names = await forked(open_files, HANG_SECONDS)
        finally:
            os.dup2(kept, 0)
            os.close(kept)
    assert not [name for name in names if "socket" in name or "eventpoll" in name], names


async def test_no_hook_of_a_library_runs_in_the_child() -> None:
    """A hook that hangs would do so before the child sets its timer."""
    ran: list[str] = []
    os.register_at_fork(after_in_child=lambda: ran.append("in the child"))
    assert await forked(lambda: list(ran), HANG_SECONDS) == []


async def test_a_child_whose_work_cannot_begin_is_no_copy_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(forked_call, "_run", fails)
    with pytest.raises(ForkedCallFailed):
        await forked(os.getpid, HANG_SECONDS)


async def test_the_child_has_one_thread_although_traces_have_their_own() -> None:
    traces = Traces("http://127.0.0.1:9")  # it sends nothing: there is no span
    try:
        assert threading.active_count() > 1
        assert await forked(threading.active_count, HANG_SECONDS) == 1
    finally:
        traces.close()


async def test_the_kernel_ends_a_child_that_works_too_long(tmp_path: Path) -> None:
    """Attack: leave processes behind with questions that are cancelled or never end."""
    with pytest.raises(ForkedCallFailed, match=r"gave up: the work took more than 1 s"):
        await forked(partial(work_forever, tmp_path / "pid"), 1.0)
    assert has_ended(int((tmp_path / "pid").read_text()))


async def test_a_child_that_takes_too_much_memory_gives_up() -> None:
    """Attack: leave processes behind with questions that are cancelled or never end."""
    with pytest.raises(ForkedCallFailed, match="gave up: the work takes more than 96 MiB"):
        await forked(lambda: len(bytearray(1 << 30)), HANG_SECONDS)


async def test_a_call_that_is_cancelled_ends_its_child(tmp_path: Path) -> None:
    """Attack: leave processes behind with questions that are cancelled or never end."""
    task = asyncio.create_task(forked(partial(work_forever, tmp_path / "pid"), HANG_SECONDS))
    pid = int(await eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert has_ended(pid)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_a_call_that_is_cancelled_at_its_start_closes_its_files_once(new_loop: Any, turns: int) -> None:
    """A file that is closed twice may be a new connection of another client by then."""

    async def cancel_early() -> None:
        task = asyncio.create_task(forked(partial(time.sleep, HANG_SECONDS), HANG_SECONDS))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(cancel_early())


async def test_an_error_of_the_child_reaches_the_caller() -> None:
    def reject() -> None:
        raise WireError("count", "must be a number")

    def fail() -> None:
        raise KeyError("lost")

    with pytest.raises(BerthError, match="count: must be a number"):
        await forked(reject, HANG_SECONDS)
    with pytest.raises(RuntimeError, match=r"in fail(.|\n)*KeyError: 'lost'"):
        await forked(fail, HANG_SECONDS)


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "the process of the work was ended by signal 9"),
        (lambda: os._exit(3), "the process of the work ended without a result"),
    ],
)
async def test_a_child_that_ends_early_did_not_take_too_long(end: Any, sentence: str) -> None:
    """The kernel kills a process of a container that has no memory left."""
    with pytest.raises(ForkedCallFailed, match=sentence):
        await forked(end, HANG_SECONDS)


async def test_a_result_that_cannot_be_sent_is_a_fault() -> None:
    with pytest.raises(RuntimeError, match="pickle"):
        await forked(lambda: threading.Lock(), HANG_SECONDS)


class NoThreads(ThreadPoolExecutor):
    """An executor in a container that is at its limit of processes."""

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        raise RuntimeError("can't start new thread")


async def test_no_child_stays_a_zombie() -> None:
    """Where no thread can start, and in a process that ignores SIGCHLD, as a parent process hands it down."""
    asyncio.get_running_loop().set_default_executor(NoThreads())
    before = signal.getsignal(signal.SIGCHLD)
    try:
        for handler in (before, signal.SIG_IGN):
            signal.signal(signal.SIGCHLD, handler)
            assert has_ended(await forked(os.getpid, HANG_SECONDS))
    finally:
        signal.signal(signal.SIGCHLD, before)


async def test_no_free_file_is_said() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(ForkedCallFailed, match=r"cannot start a process: .*Too many open files"):
            await forked(os.getpid, HANG_SECONDS)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_process_with_a_limit_of_memory_has_children() -> None:
    """A child must not ask for more memory than the limit of its parent, as `ulimit -v` sets it."""
    lines = [
        "import asyncio, pathlib, resource",
        "from extender.console.forked_call import forked",
        "most = int(pathlib.Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize() + (64 << 20)",
        "resource.setrlimit(resource.RLIMIT_AS, (most, most))",
        "print(asyncio.run(forked(lambda: 'computed', 30.0)))",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert done.stdout == "computed\n", done.stderr
