"""The elements of the pictures of replays and of tuning."""

from __future__ import annotations

import html
from collections.abc import Sequence

_INK, GREY = "#1f2937", "#d1d5db"


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
