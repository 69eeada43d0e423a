"""The output of all commands: the only module that prints.

Node names, selectors or error messages come from outside. They are shown as they are: no markup, no emoji codes, and
characters that could control a terminal or change the direction of text are escaped.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import orjson
import typer
import yaml
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from extender.api.fields import Json
from extender.base.text_limits import visible

_WATCH_SECONDS = 2.0  # between two questions of --watch
_PIPE_WIDTH = 10_000  # columns of a table that no terminal shows: a program reads whole cells


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text, on standard error if `err`."""
    typer.echo(visible(text), err=err, nl=nl)


def say_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    typer.echo(_printable_json(orjson.dumps(value)))


def say_value(value: Any, output: str) -> None:
    """Print a value as one line of JSON, or as a document of YAML."""
    if output == "yaml":
        say(yaml.safe_dump(value, sort_keys=False, explicit_start=True, width=_PIPE_WIDTH), nl=False)
    else:
        say_json(value)


def say_content(content: bytes) -> None:
    """Print JSON that is encoded already."""
    typer.echo(_printable_json(content).encode())


def _printable_json(content: bytes) -> str:
    """The same JSON, with the escapes of JSON for characters that cannot be printed."""
    text = content.decode()
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def watch_changes(ask: Callable[[], list[Json]], show: Callable[[list[Json]], None], last: list[Json]) -> None:
    """Show what is new in each answer, until Ctrl-C."""
    with suppress(KeyboardInterrupt):
        while True:
            time.sleep(_WATCH_SECONDS)
            before, last = set(map(orjson.dumps, last)), ask()
            if changed := [one for one in last if orjson.dumps(one) not in before]:
                show(changed)


class Screen(Console):
    """A rich console for text from outside. Styles come as `style` or as rich's Text, not as markup."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """The text of a string, escaped."""
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of anything; a Text with characters to escape loses its styles."""
        if isinstance(renderable, Text) and visible(renderable.plain) != renderable.plain:
            renderable = Text(visible(renderable.plain))
        return super().render(renderable, options)


def table_screen() -> Screen:
    """The console of commands that print tables."""
    return Screen(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
