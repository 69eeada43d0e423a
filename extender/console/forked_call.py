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
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from extender.base.berth_errors import BerthError

T = TypeVar("T")
_MORE_BYTES = 96 << 20  # that the child may allocate beyond the memory of its parent, by default
_CHUNK_BYTES = 1 << 16
_starting: list[Callable[[], NoReturn]] = []  # the work for the child of the running `os.fork`; empty otherwise


def _become_child() -> None:
    """Do the work of the child in this fork hook, and never return: so later hooks, those of libraries, do not run.

    The hook of OpenTelemetry would start a thread. A hook that hangs would do so before the child sets its timer.
    """
    for run in _starting:
        run()


os.register_at_fork(after_in_child=_become_child)


class ForkedCallFailed(BerthError):
    """The child could not start, or ended without a result."""


async def forked(work: Callable[[], T], seconds: float, more_bytes: int = _MORE_BYTES) -> T:
    """The result of `work`, computed by a child process on a copy of this process's memory as it is now.

    `work` only computes: the child has one thread, no event loop, no open file and no socket. The kernel ends the child
    after `seconds`, and limits its memory to `more_bytes` beyond that of this process. A cancelled call ends its child.
    Raises ForkedCallFailed, BerthError with the text of a BerthError in the child, or RuntimeError with the traceback
    of another error there.
    """
    child, read_fd = _fork(partial(_outcome, work, more_bytes), seconds)
    try:
        data = await _everything(read_fd)
    except BaseException:
        with suppress(ProcessLookupError):  # it has ended, and this process ignores SIGCHLD
            os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.close(read_fd)
        status = _wait(child)
    found = _decoded(data, status, seconds)
    if isinstance(found, Exception):
        raise found
    result: T = found
    return result


def _fork(outcome: Callable[[int], bytes], seconds: float) -> tuple[int, int]:
    """Fork; returns the child's process id, and the pipe with its outcome. Raises ForkedCallFailed."""
    try:
        read_fd, write_fd = os.pipe()
    except OSError as error:
        raise ForkedCallFailed(f"cannot start a process: {error}") from error
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns of threads, whose locks stay as they are in the child. `work` takes no such lock.
            warnings.simplefilter("ignore", DeprecationWarning)
            _starting.append(partial(_run, outcome, write_fd, seconds))
            child = os.fork()
            if child == 0:  # the hook failed before `_run` could end this process
                os._exit(1)
    except OSError as error:
        os.close(write_fd)
        os.close(read_fd)
        raise ForkedCallFailed(f"cannot start a process: {error}") from error
    finally:
        _starting.clear()
    os.close(write_fd)
    return child, read_fd


def _wait(child: int) -> int:
    """The wait status of a child that has closed its pipe or was killed, so that this blocks for a moment only.

    A thread could wait instead, but in a container at its limit of processes no thread starts.
    """
    with suppress(ChildProcessError):  # this process ignores SIGCHLD, so the kernel keeps no status
        return os.waitpid(child, 0)[1]
    return 0


def _run(outcome: Callable[[int], bytes], write_fd: int, seconds: float) -> NoReturn:
    """The child: send the outcome, and end without clean-up, because all handlers belong to the parent."""
    try:
        signal.set_wakeup_fd(-1)  # it wakes the parent's event loop
        for number in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        _write(write_fd, outcome(write_fd))
        os._exit(0)
    finally:
        os._exit(1)


def _limit_memory(more_bytes: int) -> None:
    """Without a limit, the kernel would end the parent, too, as soon as both exceed the memory of their container."""
    with suppress(OSError):  # only Linux has the file
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        wanted, limits = pages * resource.getpagesize() + more_bytes, resource.getrlimit(resource.RLIMIT_AS)
        most = min([wanted, *(limit for limit in limits if limit != resource.RLIM_INFINITY)])
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _close_files(kept: int) -> None:
    """Close all files but one: a socket that the parent closes would stay open here.

    If a standard file was closed at the start of the parent, a socket may have its number. So these are closed, too.
    """
    for fd in [int(path.name) for path in Path("/dev/fd").iterdir()]:
        if fd != kept:
            with suppress(OSError):  # the file of the listing itself
                os.close(fd)


def _outcome(work: Callable[[], Any], more_bytes: int, write_fd: int) -> bytes:
    """The pickled result, or what the parent raises."""
    try:
        gc.freeze()  # a collection would write to the pages of all objects, and so copy them
        _limit_memory(more_bytes)
        _close_files(write_fd)
    except OSError as error:
        return pickle.dumps(ForkedCallFailed(f"cannot prepare a process: {error}"))
    try:
        return pickle.dumps(work())
    except BerthError as error:
        return pickle.dumps(BerthError(str(error)))
    except MemoryError:
        return pickle.dumps(ForkedCallFailed(f"gave up: the work takes more than {more_bytes >> 20} MiB"))
    except BaseException:  # noqa: BLE001 - the parent raises it
        return pickle.dumps(RuntimeError(traceback.format_exc()))


def _write(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


async def _everything(fd: int) -> bytes:
    """Read a pipe to its end. A transport would close the pipe, too: uvloop does so in a later turn of its loop."""
    loop, chunks, ended = asyncio.get_running_loop(), list[bytes](), asyncio.Event()

    def read() -> None:
        chunks.append(os.read(fd, _CHUNK_BYTES))
        if not chunks[-1]:
            loop.remove_reader(fd)
            ended.set()

    loop.add_reader(fd, read)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(fd)
    return b"".join(chunks)


def _decoded(data: bytes, status: int, seconds: float) -> Any:
    """What the child sent. Raises ForkedCallFailed."""
    try:
        return pickle.loads(data)  # noqa: S301 - a child of this process wrote it
    except (EOFError, pickle.UnpicklingError) as error:
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGALRM:
            raise ForkedCallFailed(f"gave up: the work took more than {seconds:.2g} s") from error
        how = f"was ended by signal {-code}" if code < 0 else "ended without a result"
        raise ForkedCallFailed(f"the process of the work {how}") from error
