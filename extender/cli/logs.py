"""What is logged and how it looks."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog

Level = Literal["debug", "info", "warning", "error"]
Form = Literal["auto", "json", "pretty"]


def set_up_logging(level: Level = "info", form: Form = "auto") -> None:
    """Lines go to standard error: JSON for machines, colours for a terminal."""
    pretty = sys.stderr.isatty() if form == "auto" else form == "pretty"
    renderer = structlog.dev.ConsoleRenderer() if pretty else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
