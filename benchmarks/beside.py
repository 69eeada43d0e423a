"""Whether filters wait for what people and machines ask of Berth meanwhile. A long filter is beside a question more often than
a short one, and who asks needs a core, too: so every other question goes to another process, the control, which answers after
the same time. Filters beside either are compared within one run, because the machine changes faster than one run follows another.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import statistics
import subprocess
import time
from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

PAGES = {"livez": "/livez", "metrics": "/metrics", "explain": "/v1/explain/default/never"}
GAPS = (0.0, 0.002)  # seconds between two filters: none, and about what kube-scheduler needs
SECONDS = 5.0  # of filters per page and gap
PAUSE_SECONDS = 0.05  # between two questions
ASKING_SECONDS = 0.0003  # to ask the control and be answered at once

Span = tuple[int, int]  # nanoseconds of the monotonic clock, which processes share


class Beside(NamedTuple):
    """Microseconds, but for `took_ms`: filters beside questions, those beside the control and the others, each as median and
    99th percentile."""

    questions: int
    took_ms: float  # median of a question
    beside: tuple[float, float]
    control: tuple[float, float]
    others: tuple[float, float]


def compared(asker: subprocess.Popen, ask: Callable[[], object], gap: float) -> Beside:
    """Ask again and again, each time after a gap in seconds, while the asker does; ends it."""
    filters, until = [], time.monotonic() + SECONDS
    while time.monotonic() < until:
        start = time.monotonic_ns()
        ask()
        filters.append((start, time.monotonic_ns()))
        if gap:
            time.sleep(gap)
    asker.terminate()
    assert asker.stdout is not None
    questions, control = ([(start, end) for start, end in spans] for spans in json.loads(asker.stdout.readline()))
    return comparison(filters, questions, control)


def comparison(filters: list[Span], questions: list[Span], control: list[Span]) -> Beside:
    """All in order of time; nobody asks both at once. What counts as beside is as long for each question, whenever it was
    answered: one that is answered before the next filter would else be beside long filters only, which were in hand when it came."""
    lengths = sorted(end - start for start, end in questions)
    window = lengths[int(len(lengths) * 0.9)] if lengths else 0
    mine, theirs = (at_once(filters, [(start, start + window) for start, _ in spans]) for spans in (questions, control))
    took = [(end - start) / 1000 for start, end in filters]
    others = set(range(len(filters))) - mine - theirs
    return Beside(
        len(questions), statistics.median(lengths) / 1e6 if lengths else 0.0,
        *(summary([took[n] for n in which]) for which in (mine, theirs, others)),
    )


def at_once(filters: list[Span], questions: list[Span]) -> set[int]:
    """The filters that were in hand at the same time as one of the questions."""
    ends = [end for _, end in filters]
    return {n for start, end in questions for n in range(bisect_left(ends, start), bisect_left(filters, (end, 0)))}


def summary(times: list[float]) -> tuple[float, float]:
    """(median, 99th percentile)."""
    times = sorted(times)
    return (statistics.median(times), times[int(len(times) * 0.99)]) if times else (0.0, 0.0)


def ask(port: int, path: str, late: int) -> None:
    """Ask for a page and the control in turn until ended; then print when each question of both began and ended. It never takes
    a core from the others, as whoever asks sits elsewhere."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    page, control = http.client.HTTPConnection("127.0.0.1", port), http.client.HTTPConnection("127.0.0.1", late)
    spans: tuple[list[Span], list[Span]] = ([], [])
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    print("ready", flush=True)
    until = time.monotonic() + 60
    while not ended and time.monotonic() < until:
        start, end = asked(page, path)
        spans[0].append((start, end))
        time.sleep(PAUSE_SECONDS)
        spans[1].append(asked(control, f"/{max((end - start) / 1e9 - ASKING_SECONDS, 0):.5f}"))
        time.sleep(PAUSE_SECONDS)
    print(json.dumps(spans), flush=True)


def asked(connection: http.client.HTTPConnection, path: str) -> Span:
    start = time.monotonic_ns()
    connection.request("GET", path)
    connection.getresponse().read()
    return start, time.monotonic_ns()
