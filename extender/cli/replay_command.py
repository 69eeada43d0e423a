"""`berth replay`: what Berth, and kube-scheduler without it, would have done with given jobs on a given fleet."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from extender.base.berth_errors import WireError
from extender.base.text_limits import counted
from extender.cli.logs import set_up_logging
from extender.cli.object_files import documents, policy_of
from extender.cli.options import Columns, Output, require_option
from extender.cli.output import Screen, say, say_json, table_screen
from extender.files import name_of, write_file
from extender.policy import Policy
from extender.replay import (
    NO_GPU,
    SIZES,
    Fleet,
    Job,
    JobFile,
    LargeShape,
    Outcome,
    Placer,
    Task,
    fleet_of,
    large_shape,
    placer_of,
    read_jobs,
    run_side_by_side,
)
from extender.replay.emptied_nodes import emptied
from extender.replay.picture import picture
from extender.replay.published_traces import TRACES, read_nodes
from extender.sandbox import parse_nodes

_MINUTE = 60.0
_HOUR = 3600.0
_MAX_REASONS = 5  # why jobs never started: each is a line


def replay_command(
    jobs: Annotated[Path, typer.Argument(help="File of jobs: JSON Lines, CSV, or a published trace.")],
    *,
    columns: Columns = "",
    nodes: Annotated[
        str,
        typer.Option(
            help="Nodes of machine files, such as 42xhgx-h100-8,36xgb200-nvl72-tray/18; or a published list of nodes.",
            metavar="NODES",
        ),
    ] = "",
    snapshot: Annotated[Path | None, typer.Option(help="Nodes and devices of a file of berth snapshot.")] = None,
    is_emptied: Annotated[
        bool,
        typer.Option(
            "--emptied", help="Without the pods of --snapshot that have devices; the GPUs of device plugins count, too."
        ),
    ] = False,
    policy: Annotated[
        list[Path] | None, typer.Option(help="A policy to compare: several, or one with the default.")
    ] = None,
    large: Annotated[
        str,
        typer.Option(
            help="A large job, such as 4x8: how long would its pods find joined GPUs in one domain?",
            metavar="[PODSx]GPUS",
        ),
    ] = "",
    seed: Annotated[int, typer.Option(help="Decides between equal nodes. Equal seeds give equal results.")] = 1,
    picture_file: Annotated[Path | None, typer.Option("--picture", help="Draw the result into this SVG file.")] = None,
    output: Output = "table",
) -> None:
    """Replay jobs on a virtual cluster, with Berth and without it.

    Berth decides with the code of berth serve. Without it, pods go to the first node that fits, or to the emptiest one.

    Example: berth replay examples/replay/jobs.csv --nodes 4xhgx-h100-8,8xgb200-nvl72-tray/4
    """
    set_up_logging("error")  # each bind of each replay would write a line
    file = named_jobs(jobs, columns)
    read = file.jobs
    placers = _placers(policy or [])
    fleet = named_fleet(nodes, snapshot, read, is_emptied=is_emptied)
    file.check(fleet.classes, [one.policy for one in placers if one.is_berth])
    shape = large_shape(large) if large else None
    outcomes = _run([Task(fleet, read, one, seed, shape) for one in placers], len(read))
    if picture_file is not None:
        write_file(picture_file, picture(outcomes).encode())
    if output == "json":
        say_json({"jobs": len(read), "seed": seed, "outcomes": [one.as_json() for one in outcomes]})
        return
    _print(outcomes, shape, file)
    endless = sum(math.isinf(job.duration) for job in read)
    if endless and any(one.started < one.jobs for one in outcomes):
        say(f"{counted(endless, 'job has', 'jobs have')} no duration: what they get is never free again")


def _placers(paths: Sequence[Path]) -> list[Placer]:
    """Berth under each policy, or under the default one; then kube-scheduler without Berth.

    One policy alone is compared with the default one. All domains are those of the first policy's levels.
    """
    policies = [policy_of(path) for path in paths] or [Policy()]
    default = Policy(group_levels=policies[0].group_levels)
    names = [f"Berth, {name_of(path)}" for path in paths] or ["Berth"]
    berth = [placer_of("berth", one, name) for name, one in zip(names, policies, strict=True)]
    if len(paths) == 1 and policies[0].model_dump() != default.model_dump():
        berth.append(placer_of("berth", default, "Berth, default policy"))
    return [*berth, *(placer_of(rule, default) for rule in ("first fit", "emptiest node"))]


def named_jobs(path: Path, columns: str) -> JobFile:
    """The jobs of a file; says on stderr what is not as its trace has it. Raises WireError."""
    notes = Counter[str]()
    found = read_jobs(path, TRACES, columns, notes)
    _say_notes(path, notes)
    return found


def _say_notes(path: Path, notes: Counter[str]) -> None:
    for text, count in notes.items():
        say(f"berth: {name_of(path)}: {text}: {count:,}", err=True)


def named_fleet(nodes: str, snapshot: Path | None, jobs: Sequence[Job], *, is_emptied: bool = False) -> Fleet:
    """The fleet of --nodes and --snapshot. Raises WireError that names the option or the file."""
    require_option(snapshot, "--snapshot", ("--emptied", is_emptied))
    if not nodes and snapshot is None:
        raise WireError("--nodes", "is missing: give --nodes, --snapshot, or both")
    is_list = nodes.endswith(".csv")
    machines = read_nodes(Path(nodes)) if is_list else parse_nodes(nodes) if nodes else []
    objects, notes = documents(snapshot) if snapshot is not None else (), Counter[str]()
    found = fleet_of(machines, emptied(objects, notes) if is_emptied else objects, jobs=jobs)
    if snapshot is not None:
        found.unread(notes)
        _say_notes(snapshot, notes)
    return found


def _run(tasks: Sequence[Task], jobs: int) -> list[Outcome]:
    screen = Screen(stderr=True)
    columns = TextColumn("{task.completed:,.0f} of {task.total:,.0f} jobs"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("", total=jobs * len(tasks))
        return run_side_by_side(tasks, lambda more: bar.advance(task, more))


# -- the table -----------------------------------------------------------------------------------------------------


class _Row(NamedTuple):
    name: str
    cell: Callable[[Outcome], str]


_ROWS = (
    _Row("jobs that started", lambda one: f"{one.started:,} of {one.jobs:,}"),
    _Row("pods whose GPUs links join", lambda one: _percent(one.joined)),
    _Row("ring bandwidth in the mean", lambda one: _amount(one.ring_gbps, " GB/s")),
    _Row("  against the best of the same node", lambda one: _percent(one.ring)),
    _Row("NICs as near to GPUs as possible", lambda one: _percent(one.nic)),
    _Row("gangs in one domain", lambda one: _percent(one.in_one)),
    _Row("domains of a gang", lambda one: _amount(one.domains)),
    _Row("GPUs allocated", lambda one: _percent(one.allocated)),
    _Row("  of them held by half placed gangs", lambda one: _percent(one.held)),
    _Row("GPUs free but stranded", lambda one: _amount(one.stranded)),
    _Row("GPUs that a large job still finds", lambda one: _amount(one.large)),
    _Row("half placed gangs that gave up", lambda one: f"{one.failures:,}"),
)


def _print(outcomes: Sequence[Outcome], large: LargeShape | None, file: JobFile) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for one in outcomes:
        table.add_column(one.placement, justify="right")
    for row in _ROWS:
        cells = [row.cell(one) for one in outcomes]
        if set(cells) != {"-"}:
            table.add_row(row.name, *cells)
    if large is not None:
        table.add_row(f"time in which {large} GPUs find a place", *(_percent(one.large_place) for one in outcomes))
    table.add_row("mean wait (longest) of jobs with")
    for size in (NO_GPU, *(name for _, name in SIZES)):
        if any(size in one.waits for one in outcomes):
            table.add_row(f"  {size}", *(_wait(one, size) for one in outcomes))
    table_screen().print(table)
    if unknown := outcomes[0].unknown_links:
        say(f"{counted(unknown, 'node')}: what joins the GPUs is not known, so the rows of links leave out their pods")
    if len({frozenset(one.started_jobs) for one in outcomes}) > 1:
        only = "; only Berth keeps group_required and its like" if any(map(_has_demands, file.jobs)) else ""
        say(f"not every job started in every column, so the columns are of different jobs{only}")
    for one in outcomes:
        for line in _never(one, file):
            say(f"{one.placement}: {line}")


def _has_demands(job: Job) -> bool:
    """Whether a job has annotations of Berth without which more nodes would do."""
    near = job.group_required or job.group_topology == "required"
    links = (one.topology == "required" or one.min_bandwidth_gbps or one.expected_memory for one in job.templates)
    return bool(near or any(links))


def _never(one: Outcome, file: JobFile) -> Iterator[str]:
    """The jobs that never started, by reason."""
    first = {reason: name for name, reason in list(one.never.items())[::-1]}
    told = list(first)[::-1][:_MAX_REASONS]
    for reason in told:
        more = one.never_for[reason] - 1
        yield f"{file.named(first[reason])}{f' and {more:,} more' if more else ''} never started: {reason}"
    if others := one.jobs - one.started - sum(one.never_for[reason] for reason in told):
        yield f"{counted(others, 'job')} more never started for other reasons"


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{share:.1%}"


def _amount(value: float, unit: str = "") -> str:
    return "-" if math.isnan(value) else f"{value:,.1f}{unit}"


def _wait(outcome: Outcome, size: str) -> str:
    if size not in outcome.waits:
        return "-"
    _, mean, longest = outcome.waits[size]
    return f"{time_text(mean)} ({time_text(longest)})"


def time_text(seconds: float) -> str:
    """A time in words, such as 12 min."""
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE:.0f} min" if seconds < _HOUR else f"{seconds / _HOUR:.1f} h"
