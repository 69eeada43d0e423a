"""The picture of several replays: the quality of placements, waits by size, and the fleet over time, as one SVG.

The elements of SVG at the end are those of the picture of a tuning, too.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator, Sequence

from extender.replay.outcome import NO_GPU, SIZES, Outcome, Sample

_INK, GREY = "#1f2937", "#d1d5db"
_COLOURS = ("#15803d", "#2563eb", "#b45309", "#6b7280", "#7c3aed", "#be123c")
_WIDTH, _LEFT, _PLOT = 920, 60, 800  # of the picture, left of a plot, of a plot
_HEIGHT, _STEP = 130, 190  # of a plot, and from one to the next
_TOP = 70
_HOUR = 3600.0

_SHARES: tuple[tuple[str, Callable[[Outcome], float]], ...] = (
    ("pods joined by links", lambda one: one.joined),
    ("ring against the best", lambda one: one.ring),
    ("NICs near to GPUs", lambda one: one.nic),
    ("gangs in one domain", lambda one: one.in_one),
    ("GPUs allocated", lambda one: one.allocated),
)
_TIMES: tuple[tuple[str, Callable[[Sample], float]], ...] = (
    ("GPUs allocated", lambda one: one.allocated),
    ("GPUs of pods that wait", lambda one: one.waiting),
    ("GPUs free but stranded", lambda one: one.stranded),
    ("GPUs that a large job still finds", lambda one: one.large),
)


def picture(outcomes: Sequence[Outcome]) -> str:
    """The picture as SVG. Each placement has one colour."""
    parts = [*_legend(outcomes)]
    parts += _bars("shares", outcomes, [(name, [of(one) for one in outcomes]) for name, of in _SHARES], _TOP, _percent)
    sizes = [size for size in (NO_GPU, *(name for _, name in SIZES)) if any(size in one.waits for one in outcomes)]
    waits = [
        (size, [one.waits[size][1] / _HOUR if size in one.waits else math.nan for one in outcomes]) for size in sizes
    ]
    parts += _bars("mean wait in hours, by the GPUs of the job", outcomes, waits, _TOP + _STEP, "{:.2f}".format)
    times = _TIMES[:-1] if all(math.isnan(one.large) for one in outcomes) else _TIMES  # links may not be known
    for number, (name, of) in enumerate(times):
        parts += _lines(name, outcomes, of, _TOP + (2 + number) * _STEP)
    height = _TOP + (2 + len(times)) * _STEP
    return svg(_WIDTH, height, parts)


def _legend(outcomes: Sequence[Outcome]) -> Iterator[str]:
    x = float(_LEFT)
    for number, one in enumerate(outcomes):
        yield f'<rect x="{x:g}" y="18" width="12" height="12" fill="{_colour(number)}"/>'
        yield text(x + 18, 29, one.placement)
        x += 60 + 7.5 * len(one.placement)


def _bars(
    title: str,
    outcomes: Sequence[Outcome],
    groups: Sequence[tuple[str, Sequence[float]]],
    top: int,
    shown: Callable[[float], str],
) -> Iterator[str]:
    """Groups of bars, one for each placement; a group without any value is left out."""
    groups = [(name, values) for name, values in groups if not all(map(math.isnan, values))]
    most = max((value for _, values in groups for value in values if not math.isnan(value)), default=0.0) or 1.0
    yield text(_LEFT, top - 10, title, "font-weight='bold'")
    yield line(_LEFT, top + _HEIGHT, _LEFT + _PLOT, top + _HEIGHT)
    for position, (name, values) in enumerate(groups):
        space = _PLOT / len(groups)
        width = min(space * 0.8 / len(outcomes), 60.0)
        x = _LEFT + position * space
        yield text(x, top + _HEIGHT + 16, name)
        for number, value in enumerate(values):
            if math.isnan(value):
                continue
            height, at = (_HEIGHT - 16) * value / most, x + number * width
            yield (
                f'<rect x="{at:.1f}" y="{top + _HEIGHT - height:.1f}" width="{width - 2:.1f}" height="{height:.1f}" '
                f'fill="{_colour(number)}"/>'
            )
            yield text(at, top + _HEIGHT - height - 3, shown(value), "font-size='10'")


def _lines(title: str, outcomes: Sequence[Outcome], of: Callable[[Sample], float], top: int) -> Iterator[str]:
    """A line for each placement, over time."""
    samples = [sample for one in outcomes for sample in one.samples]
    end = max((one.at for one in samples), default=0.0) or 1.0
    most = max(map(of, samples), default=0.0) or 1.0
    yield text(_LEFT, top - 10, title, "font-weight='bold'")
    yield line(_LEFT, top + _HEIGHT, _LEFT + _PLOT, top + _HEIGHT)
    yield line(_LEFT, top, _LEFT + _PLOT, top)
    yield text(_LEFT - 6, top + 4, f"{most:,.0f}", "text-anchor='end'")
    yield text(_LEFT - 6, top + _HEIGHT + 4, "0", "text-anchor='end'")
    yield text(_LEFT + _PLOT, top + _HEIGHT + 16, f"{end / _HOUR:,.1f} h", "text-anchor='end'")
    for number, one in enumerate(outcomes):
        points = " ".join(
            f"{_LEFT + _PLOT * sample.at / end:.1f},{top + _HEIGHT * (1 - of(sample) / most):.1f}"
            for sample in one.samples
        )
        yield f'<polyline points="{points}" fill="none" stroke="{_colour(number)}" stroke-width="1.5"/>'


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _percent(value: float) -> str:
    return f"{value:.0%}"


def svg(width: int, height: int, parts: Sequence[str]) -> str:
    """A whole picture of `parts` on white."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12" fill="{_INK}"><rect width="{width}" height="{height}" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def line(x1: float, y1: float, x2: float, y2: float, colour: str = GREY) -> str:
    """A thin line."""
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}"/>'


def text(x: float, y: float, words: str, more: str = "") -> str:
    """Words that begin at (x, y), or as the attributes in `more` say."""
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{html.escape(words)}</text>'
