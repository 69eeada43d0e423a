"""The format and the limits of log lines."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Literal

import structlog

from extender.model import cut

Level = Literal["debug", "info", "warning", "error"]
Form = Literal["auto", "json", "pretty"]

_VALUE_BYTES = 1024  # limit of one value of a line; a reason or an API server's message is shorter
_TRACEBACK_BYTES = 8192
_PLAIN = (bool, int, float, type(None))


def set_up_logging(level: Level = "info", form: Form = "auto") -> None:
    """Log to standard error; `auto` means colours on a terminal and JSON lines elsewhere."""
    pretty = sys.stderr.isatty() if form == "auto" else form == "pretty"
    renderer = structlog.dev.ConsoleRenderer() if pretty else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _limited,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


def _limited(_: object, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Cut every value of a line. A list or object that is too long is replaced by its text, cut."""
    for name, value in line.items():
        if isinstance(value, str):
            line[name] = cut(value, _TRACEBACK_BYTES if name == "exception" else _VALUE_BYTES)
        elif not isinstance(value, _PLAIN) and len(text := str(value)) > _VALUE_BYTES:
            line[name] = cut(text, _VALUE_BYTES)
    return line
