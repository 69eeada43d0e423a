"""Standard error for log lines. If its reader does not read, lines are lost: a wait would block all calls."""

from __future__ import annotations

import fcntl
import os
import select
from collections.abc import MutableMapping
from contextlib import suppress
from typing import IO, Any

# The kernel keeps this much for a slow reader, some 2,500 lines: the most that a process without rights can have.
_PIPE_BYTES = 1024 * 1024


class LossyFile:
    """A file for `structlog.WriteLogger`. A pipe or a socket gets only the bytes that it takes without a wait.

    A terminal that Ctrl-S stopped takes none. A terminal that hangs may block: it can be ready for less than a line.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._poll = select.poll()
        self._fd = -1
        self._cut = False  # whether the last line lacks its end
        self.lost = 0  # lines since the last whole one
        with suppress(OSError, ValueError, AttributeError):  # no descriptor, no pipe, not Linux
            self._fd = file.fileno()
            self._poll.register(self._fd, select.POLLOUT)
            fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def write(self, line: str) -> None:
        """Write a line, or count it as lost. Raises OSError if nothing can be written any more."""
        if self._fd < 0:
            self._file.write(line)
            return
        rest = memoryview(b"\n" * self._cut + line.encode(errors="backslashreplace"))
        while rest:
            if not self._poll.poll(0):
                self.lost += 1
                return
            written = os.write(self._fd, rest[: select.PIPE_BUF])  # a pipe that is ready takes so many bytes
            rest = rest[written:]
            self._cut = bool(rest)
        self.lost = 0

    def flush(self) -> None:
        if self._fd < 0:
            self._file.flush()

    def tell_lost(self, _: object, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """A processor of structlog: the next line says how many are missing before it."""
        return {**line, "lost_lines": self.lost} if self.lost else line
