"""Starts processes of `berth` as forks of one that has imported its modules.

A start by exec takes 0.7 s of CPU, nearly all of it for imports, and the tests start a hundred processes.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
# With them come the modules that the commands import when they run.
_MODULES = (
    "cli.main", "cli.run_command", "agent.reader_process", "agent.slice_publisher", "entry.serve_process",
    "entry.console_process",
)  # fmt: skip
_MAX_BYTES = 65_536  # of the arguments and the environment


class Started:
    """A process, with attributes of subprocess.Popen."""

    def __init__(self, status: socket.socket, stdout: IO[bytes] | None, stderr: IO[bytes] | None) -> None:
        self._status, self.stdout, self.stderr = status, stdout, stderr
        self.pid = int(status.recv(32))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with suppress(BlockingIOError):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        """The exit code. Raises TimeoutError after these seconds."""
        if self.returncode is None:
            self._status.settimeout(timeout)
            self.returncode = int(self._status.recv(32))
            self._status.close()
        return self.returncode

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def start(
    *words: str,
    module: str = "extender",
    stdout: int = subprocess.DEVNULL,
    stderr: int = subprocess.DEVNULL,
    env: Mapping[str, str] | None = None,
) -> Started:
    """Start `python -m MODULE WORDS…` in the checkout. Each stream is DEVNULL, PIPE or a file descriptor."""
    request = json.dumps([[module, *words], dict(os.environ if env is None else env)]).encode()
    assert len(request) < _MAX_BYTES
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, ExitStack() as opened:
        (out, read_out), (err, read_err) = _stream(stdout, opened), _stream(stderr, opened)
        socket.send_fds(_starter(), [request], [theirs.fileno(), out, err])
    return Started(mine, read_out, read_err)


def _stream(given: int, opened: ExitStack) -> tuple[int, IO[bytes] | None]:
    """What the process writes to, and what the caller reads from."""
    if given == subprocess.DEVNULL:
        return opened.enter_context(open(os.devnull, "wb")).fileno(), None  # noqa: PTH123 - shorter
    if given == subprocess.PIPE:
        read, write = os.pipe()
        opened.callback(os.close, write)
        return write, os.fdopen(read, "rb")
    return given, None


@cache
def _starter() -> socket.socket:
    """The way to a process that waits for requests. It ends with this process."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "tests.worlds.process_starter", str(theirs.fileno())]
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])

    def end() -> None:
        mine.close()
        process.wait()

    atexit.register(end)
    return mine


# -- in the process that waits for requests ----------------------------------------------------------------------


def main() -> None:
    """Answer requests. In a fork it returns or raises where the process that was asked for ends."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, and these end this
    for name in _MODULES:
        import_module(f"extender.{name}")
    gc.freeze()
    while True:
        request, files, _, _ = socket.recv_fds(requests, _MAX_BYTES, 3)
        if not request:
            return
        if os.fork() == 0:
            requests.close()
            _watch(request, *files)
            return
        for file in files:
            os.close(file)
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _watch(request: bytes, status: int, stdout: int, stderr: int) -> None:
    """Fork the process; tell its PID, and how it ended."""
    pid = os.fork()
    if pid == 0:
        for source, target in ((stdout, 1), (stderr, 2)):
            os.dup2(source, target)
        for file in (status, stdout, stderr):
            os.close(file)
        _run(*json.loads(request))
        return
    os.write(status, b"%d" % pid)
    os.write(status, b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _run(words: list[str], env: dict[str, str]) -> None:
    """Run a module in this process, as `python -m` does."""
    os.environ.clear()
    os.environ.update(env)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = words
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a text file
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
