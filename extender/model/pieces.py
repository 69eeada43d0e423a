"""Long work in pieces: it breathes now and then, and whoever runs it in pieces goes on when there is time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TypeVar

from greenlet import getcurrent, greenlet

T = TypeVar("T")


class _Work(greenlet):
    """Work that somebody runs in pieces."""


def breathe() -> None:
    """Let go of the processor where the work runs in pieces; nothing otherwise."""
    current = getcurrent()
    if isinstance(current, _Work) and current.parent is not None:
        current.parent.switch()


def breathing(items: Iterable[T], every: int) -> Iterator[T]:
    """The items, with a breath before each so many."""
    for number, item in enumerate(items):
        if number % every == 0:
            breathe()
        yield item


def ending(pieces: Generator[None, None, T]) -> Iterator[T | None]:
    """Steps the last of which is the value."""
    yield (yield from pieces)


def run_out(steps: Iterable[None]) -> None:
    """All steps, with a breath after each."""
    for _ in steps:
        breathe()


def in_pieces(work: Callable[[], T]) -> Generator[None, None, T]:
    """Steps between breaths; their value, as of `yield from`, is what the work returns. What it raises is raised."""
    running = _Work(work)
    try:
        found: T = running.switch()
        while not running.dead:
            yield
            found = running.switch()
        return found
    finally:
        if not running.dead:
            running.throw()
