"""Counts of the work that a function makes, which are equal on a busy machine: calls and lines of Python.

The garbage collector does not run meanwhile: it would call the finalizers of what earlier tests left.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any


class TooMuchWork(BaseException):
    """Not an Exception: no code that is counted must catch it."""


def calls_of(work: Callable[[], object], events: Collection[str] = ("call",)) -> int:
    """How many calls of Python functions the work makes, resumed generators included; "c_call" are those of C."""
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in events

    with _without_collector():
        before = sys.getprofile()
        sys.setprofile(count)
        try:
            work()
        finally:
            sys.setprofile(before)
    return calls


def lines_of(work: Callable[[], object], most: float = inf) -> int:
    """How many lines of Python the work runs, each round of a loop included. Raises TooMuchWork after so many."""
    lines = 0

    def count(_: object, event: str, __: object) -> Any:
        nonlocal lines
        lines += event == "line"
        if lines > most:
            raise TooMuchWork
        return count

    with _without_collector():
        before = sys.gettrace()
        sys.settrace(count)
        try:
            work()
        finally:
            sys.settrace(before)
    return lines


@contextmanager
def _without_collector() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
