"""The picture of a tuning: what each candidate changes for the stated aim, against what it changes for another aim.

A point is a candidate, in the mean of the first draws; better is up, and to the right. A line joins the points that no
other beats in both. The cross is the interval of the judged candidate on the other draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from extender.replay.picture import line, svg, text
from extender.tune.aims import AIMS, Aim, Interval, frontier
from extender.tune.tuning import Tuning

_WIDTH, _LEFT, _TOP, _PLOT, _STEP = 920, 90, 70, 300, 430  # of the picture; of a plot, and from one to the next
_MARGIN_SHARE = 0.08  # of an axis, beyond its values
_ROW_PIXELS = 16  # pixels from one line of the legend to the next
_FRONT, _BEATEN, _JUDGED = "#15803d", "#9ca3af", "#2563eb"


def frontier_picture(found: Tuning) -> str:
    """The picture as SVG. Candidates on a frontier have numbers, which a legend explains."""
    others = [aim for aim in AIMS.values() if aim is not found.aim and _is_measured(found, aim)]
    title = f"What candidates change, tuned for {found.aim.name}: better is up and to the right"
    parts = [text(_LEFT, 28, title, "font-weight='bold'")]
    numbers = dict[int, int]()  # by candidate; 0 is the present policy
    for column, other in enumerate(others):
        parts += _Plot(found, other, _LEFT + column * _STEP).parts(numbers)
    top = _TOP + _PLOT + 70
    names = ["no change", *map(found.words, found.trials)]
    for row, (candidate, number) in enumerate(numbers.items()):
        parts.append(text(_LEFT, top + row * _ROW_PIXELS, f"{number}   {names[candidate]}"))
    if found.candidate is not None:
        words = f"blue: {found.words(found.candidate)} on the draws that judge it"
        parts.append(text(_LEFT, top + len(numbers) * _ROW_PIXELS, words, f"fill='{_JUDGED}'"))
    return svg(_WIDTH, top + (len(numbers) + 1) * _ROW_PIXELS + 10, parts)


def _is_measured(found: Tuning, aim: Aim) -> bool:
    return any(not math.isnan(one[aim.name]) for one in found.before)


class _Span(NamedTuple):
    """How much better a figure became, in the unit for people: the mean, and the ends of its interval."""

    low: float
    mean: float
    high: float


def _better(aim: Aim, change: Interval) -> _Span:
    ends = [aim.sign * aim.scale * value for value in (change.low, change.mean, change.high)]
    return _Span(*(ends if aim.sign > 0 else ends[::-1]))


class _Axis:
    """Places values, and 0, between two pixels."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        self.least, self.most = min(0.0, *values), max(0.0, *values)
        if self.least == self.most:
            self.least, self.most = -1.0, 1.0
        margin = (self.most - self.least) * _MARGIN_SHARE
        self._from, self._size = self.least - margin, self.most - self.least + 2 * margin
        self._first, self._length = first, last - first

    def at(self, value: float) -> float:
        """The pixel of a value."""
        return self._first + self._length * (value - self._from) / self._size


class _Plot:
    """One plot: `other` to the right, the stated aim up."""

    def __init__(self, found: Tuning, other: Aim, left: int) -> None:
        self._aims, self._left = (other, found.aim), left
        self._points = {0: (0.0, 0.0)}
        for number, trial in enumerate(found.trials, 1):
            x, y = (_better(aim, found.trial_change(aim, trial)).mean for aim in self._aims)
            if not math.isnan(x + y):
                self._points[number] = x, y
        spans = [_better(aim, found.judged_change(aim)) for aim in self._aims] if found.candidate else []
        self._judged = spans if all(map(math.isfinite, (value for span in spans for value in span))) else []
        given = list(zip(*self._points.values(), strict=True))
        ends = [list(span) for span in self._judged] or [[], []]
        self._x = _Axis([*given[0], *ends[0]], left, left + _PLOT)
        self._y = _Axis([*given[1], *ends[1]], _TOP + _PLOT, _TOP)

    def parts(self, numbers: dict[int, int]) -> Iterator[str]:
        """The elements. Candidates on the frontier get the next number in `numbers`, unless they have one."""
        yield f'<rect x="{self._left}" y="{_TOP}" width="{_PLOT}" height="{_PLOT}" fill="none" stroke="{_BEATEN}"/>'
        yield line(self._x.at(0), _TOP, self._x.at(0), _TOP + _PLOT)
        yield line(self._left, self._y.at(0), self._left + _PLOT, self._y.at(0))
        yield from self._titles()
        candidates = list(self._points)
        front = [candidates[i] for i in frontier(list(self._points.values()))]
        places = {one: (self._x.at(x), self._y.at(y)) for one, (x, y) in self._points.items()}
        path = " ".join("{:.1f},{:.1f}".format(*places[one]) for one in front)
        yield f'<polyline points="{path}" fill="none" stroke="{_FRONT}"/>'
        for one, (x, y) in sorted(places.items(), key=lambda item: item[0] in front):
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{_FRONT if one in front else _BEATEN}"/>'
        for one in front:
            x, y = places[one]
            yield text(x + 6, y - 6, str(numbers.setdefault(one, len(numbers) + 1)))
        if self._judged:
            right, up = self._judged
            x, y = self._x.at(right.mean), self._y.at(up.mean)
            yield line(self._x.at(right.low), y, self._x.at(right.high), y, _JUDGED)
            yield line(x, self._y.at(up.low), x, self._y.at(up.high), _JUDGED)

    def _titles(self) -> Iterator[str]:
        other, aim = self._aims
        bottom, middle = _TOP + _PLOT, self._left + _PLOT / 2
        yield text(self._left, _TOP - 10, _title(aim))
        for value in (self._y.least, self._y.most):
            yield text(self._left - 6, self._y.at(value) + 4, _amount(aim, value), "text-anchor='end'")
        for value in (self._x.least, self._x.most):
            yield text(self._x.at(value), bottom + 16, _amount(other, value), "text-anchor='middle'")
        yield text(middle, bottom + 34, _title(other), "text-anchor='middle'")


def _title(aim: Aim) -> str:
    return f"{aim.title},{aim.change_unit}"


def _amount(aim: Aim, value: float) -> str:
    """A change of the figure itself: of a wait, better is less."""
    return f"{aim.sign * value:+.3g}" if value else "0"
