"""The format and the limits of log lines. If the reader of standard error does not read, lines are lost: a wait would
block all calls.
"""

from __future__ import annotations

import fcntl
import logging
import os
import select
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from typing import IO, Any, Literal, TextIO, cast

import structlog

from extender.base.text_limits import cut

Level = Literal["debug", "info", "warning", "error"]
Form = Literal["auto", "json", "pretty"]

_VALUE_BYTES = 1024  # limit of one value of a line; a reason or an API server's message is shorter
_TRACEBACK_BYTES = 8192
_PLAIN = (bool, int, float, type(None))


def set_up_logging(level: Level = "info", form: Form = "auto") -> None:
    """Log to standard error; `auto` means colours on a terminal and JSON lines elsewhere.

    A log call never raises: it would end the task that logs, or turn a bind that succeeded into an error. And it never
    waits: nothing else would run meanwhile. Lines of libraries get the same format.
    """
    file = LossyFile(sys.stderr)
    pretty = sys.stderr.isatty() if form == "auto" else form == "pretty"
    renderer = structlog.dev.ConsoleRenderer() if pretty else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            file.tell_lost,
            _limited,
            renderer,
        ],
        wrapper_class=_never_raising(structlog.make_filtering_bound_logger(getattr(logging, level.upper()))),
        logger_factory=lambda *_: structlog.WriteLogger(cast("TextIO", file)),
    )
    logging.basicConfig(handlers=[_OfLibraries(logging.WARNING)])


class _OfLibraries(logging.Handler):
    """Passes on what uvicorn and asyncio log."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):  # the text cannot be made
            structlog.get_logger(record.name).log(record.levelno, record.getMessage(), exc_info=record.exc_info)


def _never_raising(logger_class: Any) -> Any:
    """A subclass that loses a line if its text cannot be made, or standard error is full, closed or a broken pipe."""

    class NeverRaising(logger_class):  # type: ignore[misc]  # structlog makes the class while Berth runs
        def _proxy_to_logger(self, *arguments: Any, **values: Any) -> None:
            with suppress(Exception):
                super()._proxy_to_logger(*arguments, **values)

    return NeverRaising


def _limited(_: object, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Cut every value of a line. A list or object that is too long is replaced by its text, cut."""
    for name, value in line.items():
        if isinstance(value, str):
            line[name] = cut(value, _TRACEBACK_BYTES if name == "exception" else _VALUE_BYTES)
        elif not isinstance(value, _PLAIN) and len(text := str(value)) > _VALUE_BYTES:
            line[name] = cut(text, _VALUE_BYTES)
    return line


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
