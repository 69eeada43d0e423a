"""`berth assess`: what Berth would do on a cluster, with nothing installed there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeVar

import orjson
import typer
from rich.console import OverflowMethod
from rich.table import Table

from extender.api.fields import Json
from extender.assess import (
    BUDGET,
    Assessment,
    ClusterReading,
    anonymised,
    anonymous_levels,
    assess,
    clock_faults,
    html_page,
    job_lines,
    newest_time,
    reading_of,
)
from extender.assess.texts import HEADS, gang_cells, headline, product_cells, replay_cells, set_cells
from extender.base.berth_errors import WireError
from extender.base.text_limits import counted
from extender.cache import ClusterCache
from extender.cli.cluster_objects import UsedPolicy, from_cluster, from_files, reduced, used_policy
from extender.cli.logs import set_up_logging
from extender.cli.options import NAMESPACE, BerthNamespace, BerthPolicy, Context, Kubeconfig, Output, require_option
from extender.cli.output import Screen, say, say_json, table_screen
from extender.files import name_of, write_file
from extender.runtime.informers import watched_resources

T = TypeVar("T")
_ROWS = 3  # of each table, but for _MORE_ROWS: all of it is one screen, 50 lines of 100 columns
_MORE_ROWS = 5  # products, and what is not known
_SENTENCE = "reason"
_TEXTS = frozenset({"node", "GPUs", "of", _SENTENCE})  # columns that may be cut
_LEAST_WIDTH, _GAP = 8, 2  # characters of a column, and between two
Share = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        max=1.0,
        metavar="SHARE",
        help="Exit code 1 if the pods with several GPUs have less than this share of the best bandwidth.",
    ),
]


def assess_command(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Snapshots, or lists that kubectl get -o json wrote. Default: the cluster."),
    ] = None,
    *,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    save: Annotated[Path | None, typer.Option(help="Write what was read into this file, for berth assess.")] = None,
    anonymise: Annotated[
        bool, typer.Option("--anonymise", help="Names in --save and --jobs become numbers; secrets are left out.")
    ] = False,
    jobs_file: Annotated[
        Path | None,
        typer.Option("--jobs", help="Write the pods with devices into this file of jobs, for berth replay."),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the assessment with pictures into this HTML file.")] = None,
    fail_below: Share = None,
    replay: Annotated[bool, typer.Option(help="Replay the running pods with Berth and without it.")] = True,
    policy: BerthPolicy = None,
    berth_namespace: BerthNamespace = NAMESPACE,
    every_row: Annotated[bool, typer.Option("--all", help="Every row, not only one screen.")] = False,
    output: Output = "table",
) -> None:
    """Say what Berth would do on a cluster where it is not installed.

    It only reads. --fail-below compares the percentage of the best sets' bandwidth (bandwidth.share). Exit code 1 also
    if that, or the set of a pod with several GPUs, is not known.

    Example: berth assess --kubeconfig ~/.kube/config --html assessment.html
    """
    set_up_logging("error")  # each bind of the replay would write a line
    require_option(save, "--save", ("--anonymise", anonymise))
    objects, refused, where, is_live, of_files = from_files(files) if files else from_cluster(kubeconfig, context)
    used = used_policy(policy, kubeconfig, context, berth_namespace, is_live=is_live)
    saved = list(anonymised(objects, used.policy.group_levels) if anonymise else _without_secrets(objects))
    if save is not None:
        _save(save, saved, used.policy.group_levels, anonymise=anonymise)
    reading = reading_of(objects, refused, where, is_live=is_live, files=of_files)
    reading.lacking += filter(None, (used.problem, clock_faults(reading, _now(reading))))
    if jobs_file is not None:
        levels = used.policy.group_levels
        read = reading_of(saved, refused, where, is_live=is_live) if anonymise else reading
        _write_jobs(jobs_file, read, anonymous_levels(levels) if anonymise else levels)
    found = _assessed(reading, used, where if is_live else "", replays=replay)
    if html is not None:
        write_file(html, html_page(found).encode())
    if output == "json":
        say_json(found.as_json())
    else:
        AssessmentScreen(table_screen(), every_row=every_row).print(found)
    if fail_below is not None:
        _judge(found, fail_below)


def _assessed(reading: ClusterReading, used: UsedPolicy, cluster: str, *, replays: bool) -> Assessment:
    with Screen(stderr=True).status("assessing"):
        found = assess(reading, used.policy, used.source, cluster, replays=replays)
    found.unknown += [used.unread] if used.unread else []  # of no matter in most clusters, so it is the last
    return found


def _judge(found: Assessment, least: float) -> None:
    if why := _failure(found, least):
        say(f"berth: --fail-below: {why}", err=True)
        raise typer.Exit(1)


def _failure(found: Assessment, least: float) -> str:
    """Why --fail-below fails; '' if it does not."""
    if not found.knows_claims:
        return "no ResourceClaims were read, so which pods have which GPUs is not known"
    if not found.knows_pods and any(one.counted for one in found.fleet.products):
        return "no Pods were read, so which of them have GPUs of a device plugin is not known"
    if found.unread_pods:
        which = counted(found.unread_pods, "running pod has", "running pods have")
        return f"{which} GPUs that are not known: see `what is not known`"
    if unknown := found.plugin_several + found.shared_several:  # one GPU alone has no set
        which = counted(unknown, "pod has", "pods have")
        return f"{which} several GPUs of a device plugin: which ones only the kubelet knows"
    share, unmeasured = found.bandwidth.share, found.bandwidth.pods - found.bandwidth.measured
    if unmeasured:
        return f"the links of {unmeasured:,} of {counted(found.bandwidth.pods, 'pod')} with several GPUs are not known"
    if share is not None and share < least:
        return f"the share of the best bandwidth is {share:.3f}, below {least:g}"
    return ""


# -- writing -----------------------------------------------------------------------------------------------------------


def _without_secrets(objects: Iterable[Json]) -> Iterator[Json]:
    """The objects as `berth snapshot` has them. Malformed ones and those that Berth does not read are left out."""
    kinds = {one.list_kind.removesuffix("List") for one in watched_resources(ClusterCache())} | {BUDGET}
    for obj in objects:
        with suppress(AttributeError, KeyError, TypeError, WireError):
            kept = reduced(obj) if obj.get("kind") in kinds else None
            if kept is not None:
                yield kept


def _save(path: Path, items: Sequence[Json], levels: Sequence[str], *, anonymise: bool) -> None:
    write_file(path, orjson.dumps({"apiVersion": "v1", "kind": "List", "items": items}, option=orjson.OPT_INDENT_2))
    if anonymise and (named := anonymous_levels(levels)) != list(levels):
        say(f"berth: to assess {name_of(path)}, write into the policy: group_levels: [{', '.join(named)}]", err=True)


def _now(reading: ClusterReading) -> datetime:
    clock = datetime.now(UTC)
    return clock if reading.is_live else newest_time(reading, clock)


def _write_jobs(path: Path, reading: ClusterReading, levels: Sequence[str]) -> None:
    found = job_lines(reading, reading.cache.snapshot(), _now(reading), levels)
    write_file(path, b"".join(orjson.dumps(line) + b"\n" for line in found.lines))
    if found.left_out:
        known = "claims nor 1 to 32 whole GPUs of a device plugin and known product"
        why = f"shared or unknown claims, admin access, or neither {known}"
        say(f"berth: {counted(found.left_out, 'pod is', 'pods are')} not in {name_of(path)}: {why}", err=True)
    if few := found.too_few:
        why = f"its group has fewer pods than its minimum, and waits for the others (such as {few[0]})"
        say(f"berth: {counted(len(few), 'pod is', 'pods are')} not in {name_of(path)}: {why}", err=True)
    if refused := found.refused.most_common():
        more = f"; and {len(refused) - 1} more reasons" if len(refused) > 1 else ""
        which = counted(found.refused.total(), "pod is", "pods are")
        why = f"a replay would refuse the file: {refused[0][0]}{more}"
        say(f"berth: {which} not in {name_of(path)}: {why}", err=True)
    for what, names in sorted(found.lost.items(), key=lambda one: -len(one[1])):
        which = f"{counted(len(names), 'pod has', 'pods have')} {what} (such as {names[0]})"
        say(f"berth: {name_of(path)}: {which}", err=True)


# -- the screen: what is worst of each list in one screen, or every row with whole sentences -----------------------


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
        waiting = [(one.first, str(one.pods), self._reason(one.first, one.reason)) for one in found.waiting]
        self._table("waiting pods", HEADS["waiting"], waiting)
        if found.replay.rows:
            rows = found.replay.rows
            self._table("same pods again", HEADS["replay"], map(replay_cells, rows), len(rows))
        else:
            self._screen.print(f"\nreplay: not computed: {found.replay.problem}", style="bold")
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

    def _reason(self, pod: str, reason: str) -> str:
        return reason if self._every_row else reason.removeprefix(f"pod {pod} ")  # no room for the name twice

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
