"""The output of `berth run`: the GPUs of each pod as link diagrams, the gangs, and the totals."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from extender.model import Graph, counted
from extender.sandbox import GangPlacement, GangRow, PlacedGpus, Row

LEGEND = """0 1 GPUs of the pod  ○ free  # held  ━ joined by NVLink  GB/s: predicted
first fit: the first devices that fit, on the same node"""
GANG_LEGEND = """● a node with a pod of the gang  ○ another node of the domain
first fit: each pod on the first node by name that fits"""
_WIDE = 120  # columns; a narrower terminal gets the node names below the diagrams
_DIAGRAM = 15  # columns of a diagram of eight GPUs
_JOINED, _SPLIT, _FAINT = "bold green", "bold red", "dim"


def make_table(rows: list[Row], width: int) -> Table:
    """Return the pods as a table for a terminal of `width` columns, one row per pod."""
    table = _table(("pod", "Berth", "GB/s", "first fit", "GB/s"))
    table.columns[2].justify = table.columns[4].justify = "right"
    for row in rows:
        cells = _cell(row.berth, width), _gbps(row.berth), _diagram(row.first_fit), _gbps(row.first_fit)
        if row.note:
            cells = Text(f"{'' if row.berth else 'waits: '}{row.note}"), *cells[1:]
        table.add_row(_marked(row.pod, is_good=row.is_good, waits=row.berth is None), *cells)
    return table


def make_gang_table(gangs: list[GangRow]) -> Table:
    """Return the gangs as a table: the nodes of the domains that each gang is in, lit where a pod of it is."""
    table = _table(("gang", "Berth", "first fit"))
    for gang in gangs:
        name = _marked(gang.gang, is_good=gang.is_good, waits=gang.waits)
        table.add_row(name, _domains(gang.berth), _domains(gang.first_fit))
    return table


def totals(rows: list[Row], gangs: list[GangRow]) -> list[str]:
    """Return the sentences that compare Berth with first fit. Jobs of one GPU do not count."""
    jobs = [row for row in rows if row.berth is not None and len(row.berth.gpus) > 1]
    sentences = []
    if jobs:
        joined = sum(row.berth is not None and row.berth.is_joined for row in jobs)
        first_fit = sum(row.first_fit is not None and row.first_fit.is_joined for row in jobs)
        number = len(jobs)
        by_first_fit = f"first fit on the same nodes {first_fit} of {number}"
        pods = "multi-GPU pods outside of gangs" if gangs else "multi-GPU pods"
        sentences.append(f"Joined by NVLink: Berth {joined} of {number} {pods}, {by_first_fit}.")
    both = [(row.berth.gbps, row.first_fit.gbps) for row in jobs if row.berth and row.first_fit]
    if sum(b for _, b in both):
        times = sum(a for a, _ in both) / sum(b for _, b in both)
        sentences.append(f"Predicted ring bandwidth of these pods in sum: {times:.1f} times that of first fit.")
    if gangs:
        inside, first_fit = sum(g.berth.is_in_one for g in gangs), sum(g.first_fit.is_in_one for g in gangs)
        number = len(gangs)
        sentences.append(
            f"Whole in one domain: Berth {inside} of {counted(number, 'gang')}, first fit {first_fit} of {number}."
        )
    return sentences


def diagram(placement: PlacedGpus) -> Text:
    """Return the GPUs of a node: the GPUs of the pod as digits, joined GPUs with ━ between them."""
    graph = placement.graph
    groups = _groups(graph) if graph is not None else [[gpu] for gpu in placement.gpus]
    lit = _JOINED if placement.is_joined or len(placement.gpus) < 2 else _SPLIT  # noqa: PLR2004 - one GPU is joined
    text = Text()
    for number, group in enumerate(groups):
        text.append(" " if number else "")
        for position, gpu in enumerate(group):
            text.append("━" if position else "", _FAINT)
            if gpu in placement.gpus:
                text.append(str(gpu), lit)
            else:
                text.append("#" if gpu in placement.busy else "○", _FAINT)
    return text


def _groups(graph: Graph) -> list[list[int]]:
    """The GPUs in groups whose members all have NVLinks to each other, or into the same switch."""
    groups: list[list[int]] = []
    for gpu in range(graph.size):
        home = next((group for group in groups if all(_are_joined(graph, gpu, other) for other in group)), None)
        if home is None:
            groups.append([gpu])
        else:
            home.append(gpu)
    return groups


def _are_joined(graph: Graph, a: int, b: int) -> bool:
    return bool(graph.links[a][b] or (graph.switch_links[a] and graph.switch_links[b]))


def _diagram(placement: PlacedGpus | None) -> Text:
    return diagram(placement) if placement is not None and placement.gpus else Text("-", _FAINT)


def _cell(placement: PlacedGpus | None, width: int) -> Text:
    if placement is None:
        return Text("-", _FAINT)
    if not placement.gpus:
        return Text(placement.node, _FAINT)
    text = diagram(placement)
    if width < _WIDE:
        return text.append(f"\n{placement.node}", _FAINT)
    text.pad_right(max(_DIAGRAM - len(text), 0))
    return text.append(f"  {placement.node}", _FAINT)


def _domains(placement: GangPlacement) -> Text:
    text = Text(placement.words)
    for domain in placement.domains:
        text.append("\n")
        for has_pod in domain.has_pod:
            text.append("●" if has_pod else "○", (_JOINED if placement.is_in_one else _SPLIT) if has_pod else _FAINT)
        text.append(f" {domain.name}", _FAINT)
    return text


def _table(names: Sequence[str]) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")  # no name is cut on a narrow terminal
    return table


def _marked(name: str, *, is_good: bool, waits: bool) -> Text:
    if not is_good:
        return Text(f"✗ {name}", "red")
    return Text.assemble(("…", "yellow") if waits else ("✓", "green"), f" {name}")


def _gbps(placement: PlacedGpus | None) -> str:
    return f"{placement.gbps:.0f}" if placement is not None and placement.gbps else "-"
