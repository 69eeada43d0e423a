"""Pictures of an assessment as inline SVG: the links of a node with the GPUs of a pod, and bars of states."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Sequence

from extender.api.gpu_topology import Graph

FREE, USED, OTHER, BAD = "#22a06b", "#2563eb", "#cbd5e1", "#be123c"
_SIZE, _MIDDLE, _RING, _DOT = 120, 60, 42, 9  # of a picture of a node, in pixels
_BAR, _BAR_HEIGHT = 360, 16


def node_picture(graph: Graph, gpus: int) -> str:
    """The GPUs of a node in a ring. Those of the mask are dark, and so are the links between them."""
    places = [_place(i, graph.size) for i in range(graph.size)]
    parts = [*_links(graph, gpus, places), *_dots(graph, gpus, places)]
    return f'<svg width="{_SIZE}" height="{_SIZE}" viewBox="0 0 {_SIZE} {_SIZE}" role="img">{"".join(parts)}</svg>'


def _place(i: int, size: int) -> tuple[float, float]:
    angle = 2 * math.pi * i / size - math.pi / 2
    return _MIDDLE + _RING * math.cos(angle), _MIDDLE + _RING * math.sin(angle)


def _links(graph: Graph, gpus: int, places: Sequence[tuple[float, float]]) -> Iterator[str]:
    for a in range(graph.size):
        for b in range(a):
            if graph.links[a][b]:
                yield _line(places[a], places[b], own=bool(gpus >> a & gpus >> b & 1))
        if graph.switch_links[a]:
            yield _line(places[a], (_MIDDLE, _MIDDLE), own=bool(gpus >> a & 1))
    if any(graph.switch_links):
        yield f'<rect x="{_MIDDLE - 6}" y="{_MIDDLE - 6}" width="12" height="12" rx="2" fill="#64748b"/>'


def _line(one: tuple[float, float], other: tuple[float, float], *, own: bool) -> str:
    colour, width = (USED, 2.5) if own else (OTHER, 1)
    ends = f'x1="{one[0]:.1f}" y1="{one[1]:.1f}" x2="{other[0]:.1f}" y2="{other[1]:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"/>'


def _dots(graph: Graph, gpus: int, places: Sequence[tuple[float, float]]) -> Iterator[str]:
    for i, (x, y) in enumerate(places[: graph.size]):
        colour, ink = (USED, "white") if gpus >> i & 1 else ("#eef2f7", "#334155")
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_DOT}" fill="{colour}" stroke="{OTHER}"/>'
        yield f'<text x="{x:.1f}" y="{y + 3.5:.1f}" font-size="10" text-anchor="middle" fill="{ink}">{i}</text>'


def bar(parts: Iterable[tuple[str, float, str]]) -> str:
    """One bar of (name, amount, colour) parts, each as wide as its share. Without amounts, an empty bar."""
    given = [(name, amount, colour) for name, amount, colour in parts if amount > 0]
    total, x, found = sum(amount for _, amount, _ in given) or 1.0, 0.0, []
    for name, amount, colour in given:
        width = _BAR * amount / total
        title = html.escape(f"{name}: {amount:g}")
        found.append(
            f'<rect x="{x:.1f}" y="0" width="{width:.1f}" height="{_BAR_HEIGHT}" fill="{colour}">'
            f"<title>{title}</title></rect>"
        )
        x += width
    return f'<svg width="{_BAR}" height="{_BAR_HEIGHT}" role="img">{"".join(found)}</svg>'
