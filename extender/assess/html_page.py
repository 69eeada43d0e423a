"""An assessment as one HTML file: no script, no font, no request, so that it can be mailed and opened anywhere."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Sequence

from extender.api.gpu_topology import Graph
from extender.assess.assessment import Assessment
from extender.assess.pod_sets import PodSet
from extender.assess.texts import HEADS, gang_cells, headline, product_cells, replay_cells, set_cells
from extender.base.text_limits import counted, printable

_FREE, _USED, _OTHER, _BAD, _CLOSED = "#22a06b", "#2563eb", "#cbd5e1", "#be123c", "#475569"
_SIZE, _MIDDLE, _RING, _DOT = 120, 60, 42, 9  # of a picture of a node, in pixels
_BAR, _BAR_HEIGHT = 360, 16
_MAX_ROWS = 60  # pods with a picture, and rows of other tables
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1f2937;max-width:1080px;margin:2em auto;padding:0 1em}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.3em .8em .3em 0;border-bottom:1px solid #e5e7eb;vertical-align:top}
th{font-weight:600;color:#475569}.lead{font-size:1.15em}.legend span{margin-right:1.2em}
.dot{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.3em}
"""


def html_page(found: Assessment) -> str:
    """The page."""
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>berth assess</title>",
        f"<style>{_STYLE}</style><h1>berth assess</h1>",
        *(f"<p class='lead'><strong>{_text(line)}</strong></p>" for line in found.verdict.sentences),
        *(f"<p class='lead'>{_text(line)}</p>" for line in headline(found)),
        *_products(found),
        *_sets(found),
        *_section("Gangs", HEADS["gangs"], map(gang_cells, found.gangs)),
        *_broken(found),
        *_section("Waiting pods", HEADS["waiting"], ((one.first, str(one.pods), one.reason) for one in found.waiting)),
        *_replay(found),
        *_list("What is not known", [*found.lacking, *found.unreadable, *found.unknown]),
        "</html>\n",
    ]
    return "\n".join(parts)


def _products(found: Assessment) -> Iterator[str]:
    yield "<h2>GPUs</h2><p class='legend'>"
    states = ("free", "allocated", "stranded", "unhealthy or drifting", "closed or not known")
    for name, colour in zip(states, (_FREE, _USED, _OTHER, _BAD, _CLOSED), strict=True):
        yield f"<span><span class='dot' style='background:{colour}'></span>{name}</span>"
    yield "</p>"
    rows = []
    for one in found.fleet.products:
        bad, stranded = one.unhealthy + one.drifting, min(one.stranded, one.free)
        used = one.allocated + one.shared
        amounts = (("free", one.free - stranded, _FREE), ("allocated", used, _USED))
        is_known = found.knows_claims or one.counted
        shut = ("closed or not known", one.closed + one.unknown, _CLOSED)
        parts = [*amounts, ("stranded", round(stranded, 1), _OTHER), ("unhealthy", bad, _BAD), shut] if is_known else []
        rows.append([*map(_text, product_cells(one, is_known=is_known)), _bar(parts)])
    yield _table([*HEADS["products"], ""], rows)


def _sets(found: Assessment) -> Iterator[str]:
    if not found.sets:
        return
    yield "<h2>Pods with several GPUs, the worst first</h2>"
    rows = [[_picture(one, found), *map(_text, set_cells(one))] for one in found.sets[:_MAX_ROWS]]
    yield _table(["", *HEADS["sets"]], rows)
    yield from _more(len(found.sets))


def _broken(found: Assessment) -> Iterator[str]:
    fleet = found.fleet
    lines = [
        f"{one.product}, joined sets: {one.whole} whole, {one.used} in use, {one.broken} broken, "
        f"with {counted(one.free, 'free GPU')}, {one.closed} closed"
        for one in fleet.sets
    ]
    lines += [
        f"{one.label}: {one.whole} whole, {one.full + one.used} in use by large jobs, {one.broken} broken by small "
        f"pods, with {counted(one.free, 'free GPU')}, {one.closed} closed"
        for one in fleet.domains
    ]
    yield from _list("Sets and racks broken by small pods", lines)
    rows = ((one.pod, one.node, f"{one.gpus} of {one.of}", one.beside) for one in fleet.breakers)
    yield from _section("Pods that alone, or with one other, break a set", HEADS["breakers"], rows)


def _replay(found: Assessment) -> Iterator[str]:
    if found.replay.rows:
        yield from _section("The same pods through Berth", HEADS["replay"], map(replay_cells, found.replay.rows))
    else:
        yield f"<h2>The same pods through Berth</h2><p>Not computed: {_text(found.replay.problem)}.</p>"


def _section(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    given = list(rows)
    if given:
        yield f"<h2>{title}</h2>"
        yield _table(heads, [list(map(_text, row)) for row in given[:_MAX_ROWS]])
        yield from _more(len(given))


def _list(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield f"<h2>{title}</h2><ul>{''.join(f'<li>{_text(line)}</li>' for line in lines)}</ul>"


def _more(count: int) -> Iterator[str]:
    if count > _MAX_ROWS:
        yield f"<p>and {count - _MAX_ROWS:,} more, which the JSON has</p>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{_text(one)}</th>" for one in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _text(words: str) -> str:
    return html.escape(printable(words))


# -- pictures --------------------------------------------------------------------------------------------------------


def _picture(one: PodSet, found: Assessment) -> str:
    """The GPUs of the pod's node in a ring. Those of the pod are dark, and so are the links between them."""
    graph = found.graphs.get(one.node)
    if graph is None:
        return ""
    angles = [2 * math.pi * i / graph.size - math.pi / 2 for i in range(graph.size)]
    points = [(_MIDDLE + _RING * math.cos(angle), _MIDDLE + _RING * math.sin(angle)) for angle in angles]
    parts = "".join([*_links(graph, one.gpus, points), *_dots(one.gpus, points)])
    return f'<svg width="{_SIZE}" height="{_SIZE}" viewBox="0 0 {_SIZE} {_SIZE}" role="img">{parts}</svg>'


def _links(graph: Graph, gpus: int, points: Sequence[tuple[float, float]]) -> Iterator[str]:
    for a in range(graph.size):
        for b in range(a):
            if graph.links[a][b]:
                yield _line(points[a], points[b], own=bool(gpus >> a & gpus >> b & 1))
        if graph.switch_links[a]:
            yield _line(points[a], (_MIDDLE, _MIDDLE), own=bool(gpus >> a & 1))
    if any(graph.switch_links):
        yield f'<rect x="{_MIDDLE - 6}" y="{_MIDDLE - 6}" width="12" height="12" rx="2" fill="#64748b"/>'


def _line(one: tuple[float, float], other: tuple[float, float], *, own: bool) -> str:
    colour, width = (_USED, 2.5) if own else (_OTHER, 1)
    ends = f'x1="{one[0]:.1f}" y1="{one[1]:.1f}" x2="{other[0]:.1f}" y2="{other[1]:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"/>'


def _dots(gpus: int, points: Sequence[tuple[float, float]]) -> Iterator[str]:
    for i, (x, y) in enumerate(points):
        colour, ink = (_USED, "white") if gpus >> i & 1 else ("#eef2f7", "#334155")
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_DOT}" fill="{colour}" stroke="{_OTHER}"/>'
        yield f'<text x="{x:.1f}" y="{y + 3.5:.1f}" font-size="10" text-anchor="middle" fill="{ink}">{i}</text>'


def _bar(parts: Iterable[tuple[str, float, str]]) -> str:
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
