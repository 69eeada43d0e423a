"""The format and the limits of log lines."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, Literal, TextIO, cast

import structlog

from extender.cli.log_file import LossyFile
from extender.model import cut

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
