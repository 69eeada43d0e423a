"""The screen of `berth assess`: what is worst of each list in one screen, or every row with whole sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from rich.console import OverflowMethod
from rich.table import Table

from extender.assess import Assessment
from extender.assess.texts import HEADS, gang_cells, headline, product_cells, replay_cells, set_cells
from extender.cli.output import Screen

T = TypeVar("T")
_ROWS = 3  # of each table, but for _MORE_ROWS: all of it is one screen, 50 lines of 100 columns
_MORE_ROWS = 5  # products, and what is not known
_SENTENCE = "reason"
_TEXTS = frozenset({"node", "GPUs", "of", _SENTENCE})  # columns that may be cut
_LEAST_WIDTH, _GAP = 8, 2  # characters of a column, and between two


class AssessmentScreen:
    """Prints an assessment. What is worst has one line for each row; `every_row` prints all."""

    def __init__(self, screen: Screen, *, every_row: bool) -> None:
        self._screen = screen
        self._every_row = every_row

    def print(self, found: Assessment) -> None:
        """Print it."""
        for line in found.verdict.sentences:
            self._screen.print(line, style="bold")
        for line in headline(found):
            self._screen.print(line)
        products = [product_cells(one, is_known=found.knows_claims) for one in found.fleet.products]
        self._table("GPUs", HEADS["products"], products, _MORE_ROWS)
        self._sets(found)
        self._waiting(found)
        self._replay(found)
        self._not_known([*found.lacking, *found.unreadable, *found.unknown])
        if not self._every_row:
            self._screen.print("\n--all prints every row with whole sentences, --html draws them.")

    def _sets(self, found: Assessment) -> None:
        is_all = self._every_row
        sets = [one for one in found.sets if is_all or one.is_below_best]
        columns = slice(None if is_all else -1)  # all links of these are known
        title, rows = "pods with several GPUs" if is_all else "worst pods", (set_cells(one)[columns] for one in sets)
        self._table(title, HEADS["sets"][columns], rows)
        gangs = [one for one in found.gangs if is_all or one.domains > one.fewest]
        self._table("gangs", HEADS["gangs"], map(gang_cells, gangs))
        broken = [row for row in _broken(found) if is_all or row[_BROKEN.index(_BY_SMALL_PODS)] != "0"]
        self._table("sets of joined GPUs, and racks", _BROKEN, broken)
        breakers = [(one.pod, one.node, f"{one.gpus} of {one.of}", one.beside) for one in found.fleet.breakers]
        if is_all:
            self._table("pods that alone, or with one other, break a set", HEADS["breakers"], breakers)

    def _waiting(self, found: Assessment) -> None:
        rows = [(one.first, str(one.pods), self._reason(one.first, one.reason)) for one in found.waiting]
        self._table("waiting pods", HEADS["waiting"], rows)

    def _reason(self, pod: str, reason: str) -> str:
        return reason if self._every_row else reason.removeprefix(f"pod {pod} ")  # no room for the name twice

    def _replay(self, found: Assessment) -> None:
        replay = found.replay
        if not replay.rows:
            self._screen.print(f"\nreplay: not computed: {replay.problem}", style="bold")
            return
        self._table("same pods again", HEADS["replay"], map(replay_cells, replay.rows), len(replay.rows))

    def _not_known(self, lines: Sequence[str]) -> None:
        if lines:
            self._screen.print(f"\nwhat is not known{self._part(lines, _MORE_ROWS)}", style="bold")
        for line in self._shown(lines, _MORE_ROWS):
            self._screen.print(f"  {line}", no_wrap=not self._every_row, overflow=self._overflow)

    def _table(self, title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], most: int = _ROWS) -> None:
        """A table whose first head is its title."""
        found = list(rows)
        if not found:
            return
        heads, shown = [f"{title}{self._part(found, most)}", *heads[1:]], self._shown(found, most)
        table, columns = Table(box=None, pad_edge=False, header_style="bold"), list[Sequence[str]]()
        for head, width, cells in zip(heads, self._widths(heads, shown), zip(*shown, strict=True), strict=True):
            table.add_column(head, no_wrap=not self._every_row, overflow=self._overflow, width=width)
            columns.append(cells if width is None or head == _SENTENCE else told_apart(cells, width))
        for row in zip(*columns, strict=True):
            table.add_row(*row)
        self._screen.print()
        self._screen.print(table)

    def _widths(self, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Sequence[int | None]:
        """The widths of the columns. A narrow screen cuts the longest texts, then the first column, but no numbers."""
        if self._every_row:
            return [None] * len(heads)
        widths = [max(map(len, cells)) for cells in zip(heads, *rows, strict=True)]
        texts = [column for column, head in enumerate(heads) if head in _TEXTS]
        for _ in range(sum(widths) + _GAP * (len(widths) - 1) - self._screen.width):
            longest = max(texts, default=0, key=lambda column: widths[column])
            widths[longest if widths[longest] > _LEAST_WIDTH else 0] -= 1
        return widths

    @property
    def _overflow(self) -> OverflowMethod:
        return "fold" if self._every_row else "ellipsis"

    def _shown(self, rows: Sequence[T], most: int) -> Sequence[T]:
        return rows if self._every_row else rows[:most]

    def _part(self, rows: Sequence[object], most: int) -> str:
        shown = len(self._shown(rows, most))
        return f" ({shown} of {len(rows):,})" if shown < len(rows) else ""


def told_apart(cells: Sequence[str], width: int) -> list[str]:
    """The cells, cut to this width where most of them still differ: at the end, or else near the middle."""
    middle = width // 2
    places = sorted(range(width), key=lambda place: (place != width - 1, abs(place - middle)))
    return max(([_cut(cell, place, width) for cell in cells] for place in places), key=lambda found: len({*found}))


def _cut(text: str, place: int, width: int) -> str:
    """The text with an ellipsis at this place, if it is wider."""
    return text if len(text) <= width else f"{text[:place]}…{text[len(text) - (width - 1 - place) :]}"


_BY_SMALL_PODS = "broken by small pods"
_BROKEN = ("", "whole", "in use", _BY_SMALL_PODS, "free GPUs in these", "closed")


def _broken(found: Assessment) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [
        [one.product, *map(str, (one.whole, one.used, one.broken, one.free, one.closed))] for one in found.fleet.sets
    ]
    rows += [
        [one.label, *map(str, (one.whole, one.full + one.used, one.broken, one.free, one.closed))]
        for one in found.fleet.domains
    ]
    return rows
