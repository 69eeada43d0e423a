"""Runs a pure function in a forked child process, so that its work does not block the event loop."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import resource
import signal
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from extender.model import BerthError

T = TypeVar("T")
_MORE_BYTES = 96 << 20  # that the child may allocate beyond the memory of its parent


class ForkedCallFailed(BerthError):
    """The child could not start, or ended without a result."""


async def forked(work: Callable[[], T], seconds: float) -> T:
    """The result of `work`, computed by a child process on a copy of this process's memory as it is now.

    `work` only computes: the child has one thread, no event loop, no open file and no socket. The kernel ends the child
    after `seconds`, and limits its memory. A cancelled call ends its child. Raises ForkedCallFailed, BerthError with
    the text of a BerthError in the child, or RuntimeError with the traceback of another error there.
    """
    read_fd, write_fd = os.pipe()
    with os.fdopen(read_fd, "rb", buffering=0) as replies:
        try:
            child = _fork(work, write_fd, seconds)
        finally:
            os.close(write_fd)
        try:
            outcome, value = _decoded(await _everything(replies), seconds)
        finally:
            os.kill(child, signal.SIGKILL)  # it may have ended, but keeps its number until waitpid
            await asyncio.shield(asyncio.to_thread(os.waitpid, child, 0))
    if outcome == "fault":
        raise RuntimeError(value)
    if outcome == "spent":
        raise ForkedCallFailed(value)
    if outcome == "error":
        raise BerthError(value)
    result: T = value
    return result


def _fork(work: Callable[[], Any], write_fd: int, seconds: float) -> int:
    """Fork; returns the child's process id. Raises ForkedCallFailed."""
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns of threads, whose locks stay as they are in the child. `work` takes no such lock.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
    except OSError as error:
        raise ForkedCallFailed(f"cannot start a process: {error}") from error
    if child == 0:
        _run(work, write_fd, seconds)
    return child


def _run(work: Callable[[], Any], write_fd: int, seconds: float) -> NoReturn:
    """The child: send the outcome, and end without clean-up, because all handlers belong to the parent."""
    try:
        signal.set_wakeup_fd(-1)  # it wakes the parent's event loop
        for number in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        _limit_memory()
        gc.freeze()  # a collection would write to the pages of all objects, and so copy them
        _close_files(write_fd)
        _write(write_fd, pickle.dumps(_outcome(work)))
        os._exit(0)
    finally:
        os._exit(1)


def _limit_memory() -> None:
    """Without a limit, the kernel would end the parent, too, as soon as both exceed the memory of their container."""
    with suppress(OSError):  # only Linux has the file
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + _MORE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _close_files(kept: int) -> None:
    """Close all files but the standard ones: a socket that the parent closes would stay open here."""
    for fd in [int(path.name) for path in Path("/dev/fd").iterdir()]:
        if fd not in (*range(3), kept):
            with suppress(OSError):  # the file of the listing itself
                os.close(fd)


def _outcome(work: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "result", work()
    except BerthError as error:
        return "error", str(error)
    except MemoryError:
        return "spent", f"gave up: the work takes more than {_MORE_BYTES >> 20} MiB"
    except BaseException:  # noqa: BLE001 - the parent raises it
        return "fault", traceback.format_exc()


def _write(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


async def _everything(replies: Any) -> bytes:
    """Read an open pipe to its end."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), replies)
    try:
        return await reader.read()
    finally:
        transport.close()


def _decoded(data: bytes, seconds: float) -> tuple[str, Any]:
    try:
        outcome: tuple[str, Any] = pickle.loads(data)  # noqa: S301 - a child of this process wrote it
    except (EOFError, pickle.UnpicklingError) as error:
        raise ForkedCallFailed(f"gave up: the work took more than {seconds:.2g} s") from error
    return outcome
