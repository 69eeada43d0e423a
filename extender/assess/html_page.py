"""An assessment as one HTML file: no script, no font, no request, so that it can be mailed and opened anywhere."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence

from extender.assess.assessment import Assessment
from extender.assess.node_picture import BAD, FREE, OTHER, USED, bar, node_picture
from extender.assess.pod_sets import PodSet
from extender.assess.texts import HEADS, gang_cells, headline, product_cells, replay_cells, set_cells
from extender.base.text_limits import counted, printable

_MOST = 60  # pods with a picture, and rows of other tables
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
        *(f"<p class='lead'>{_text(line)}</p>" for line in headline(found)),
        *_products(found),
        *_sets(found),
        *_section("Gangs", HEADS["gangs"], map(gang_cells, found.gangs)),
        *_broken(found),
        *_section("Waiting pods", HEADS["waiting"], ((one.first, str(one.pods), one.reason) for one in found.waiting)),
        *_replay(found),
        *_list("What is not known", [*found.lacking, *found.unknown, *found.unreadable]),
        "</html>\n",
    ]
    return "\n".join(parts)


def _products(found: Assessment) -> Iterator[str]:
    yield "<h2>GPUs</h2><p class='legend'>"
    for name, colour in (("free", FREE), ("allocated", USED), ("stranded", OTHER), ("unhealthy or drifting", BAD)):
        yield f"<span><span class='dot' style='background:{colour}'></span>{name}</span>"
    yield "</p>"
    rows = []
    for one in found.fleet.products:
        bad, stranded = one.unhealthy + one.drifting, min(one.stranded, one.free)
        used = one.allocated + one.shared
        amounts = (("free", one.free - stranded, FREE), ("allocated", used, USED))
        picture = bar([*amounts, ("stranded", round(stranded, 1), OTHER), ("unhealthy", bad, BAD)])
        rows.append([*map(_text, product_cells(one)), picture])
    yield _table([*HEADS["products"], ""], rows)


def _sets(found: Assessment) -> Iterator[str]:
    if not found.sets:
        return
    yield "<h2>Pods with several GPUs, the worst first</h2>"
    rows = [[_picture(one, found), *map(_text, set_cells(one))] for one in found.sets[:_MOST]]
    yield _table(["", *HEADS["sets"]], rows)
    yield from _more(len(found.sets))


def _picture(one: PodSet, found: Assessment) -> str:
    graph = found.graphs.get(one.node)
    return node_picture(graph, one.gpus) if graph is not None else ""


def _broken(found: Assessment) -> Iterator[str]:
    fleet = found.fleet
    lines = [
        f"{one.product}: {one.whole} joined sets are whole, {one.full} in use, {one.broken} broken, "
        f"with {counted(one.free, 'free GPU')}"
        for one in fleet.sets
    ]
    lines += [
        f"{one.label}: {one.whole} domains are whole, {one.full + one.used} in use by large jobs, {one.broken} broken "
        f"by small pods, with {counted(one.free, 'free GPU')}"
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
        yield _table(heads, [list(map(_text, row)) for row in given[:_MOST]])
        yield from _more(len(given))


def _list(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield f"<h2>{title}</h2><ul>{''.join(f'<li>{_text(line)}</li>' for line in lines)}</ul>"


def _more(count: int) -> Iterator[str]:
    if count > _MOST:
        yield f"<p>and {count - _MOST:,} more, which the JSON has</p>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{_text(one)}</th>" for one in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _text(words: str) -> str:
    return html.escape(printable(words))
