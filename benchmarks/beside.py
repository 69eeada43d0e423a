"""Whether filters wait for what people and machines ask of Berth meanwhile: each filter of a run is either beside a question or
not, and both kinds are compared within that run, because the machine changes faster than one run follows another. A long filter
is beside a question more often than a short one, and who asks needs a core, too: so a control asks another process, which
answers after the same time.
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
SECONDS = 2.5  # of filters per page, gap and control
PAUSE_SECONDS = 0.05  # between two questions

Span = tuple[int, int]  # nanoseconds of the monotonic clock, which processes share


class Beside(NamedTuple):
    """Microseconds, but for `took_ms`: filters beside questions and the others, each as median and 99th percentile."""

    questions: int
    took_ms: float  # median of a question
    beside: tuple[float, float]
    others: tuple[float, float]
    waited: float  # of all filters beside a question, more than others take, per question


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
    return comparison(filters, [(a, b) for a, b in json.loads(asker.stdout.readline())])


def comparison(filters: list[Span], questions: list[Span]) -> Beside:
    """Filters and questions are each in order of time."""
    ends = [end for _, end in filters]
    beside: set[int] = set()
    for start, end in questions:
        first = bisect_left(ends, start)
        beside.update(n for n in range(first, bisect_left(filters, (end, 0))))
    mine, others = [], []
    for number, (start, end) in enumerate(filters):
        (mine if number in beside else others).append((end - start) / 1000)
    usual = statistics.mean(others) if others else 0.0
    return Beside(
        len(questions), statistics.median((end - start) / 1e6 for start, end in questions) if questions else 0.0,
        summary(mine), summary(others), sum(took - usual for took in mine) / max(len(questions), 1),
    )


def summary(times: list[float]) -> tuple[float, float]:
    """(median, 99th percentile)."""
    times = sorted(times)
    return (statistics.median(times), times[int(len(times) * 0.99)]) if times else (0.0, 0.0)


def ask(port: int, path: str) -> None:
    """Ask for a page until ended; then print when each question began and ended. It never takes a core from the others, as
    whoever asks sits elsewhere."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    connection = http.client.HTTPConnection("127.0.0.1", port)
    spans: list[Span] = []
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    print("ready", flush=True)
    until = time.monotonic() + 60
    while not ended and time.monotonic() < until:
        start = time.monotonic_ns()
        connection.request("GET", path)
        connection.getresponse().read()
        spans.append((start, time.monotonic_ns()))
        time.sleep(PAUSE_SECONDS)
    print(json.dumps(spans), flush=True)
