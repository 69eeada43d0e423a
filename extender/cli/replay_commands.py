"""`berth replay`: what Berth, and kube-scheduler without it, would have done with given jobs on a given fleet.

`berth tune`: the weights of the policy that serve an aim best with these jobs, if any do beyond noise.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
import yaml
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
from extender.tune import AIMS, MAX_DRAWS, Aim, Interval, Tuning, frontier_picture, interval, tune

_MINUTE = 60.0
_HOUR = 3600.0
_MAX_REASONS = 5  # why jobs never started: each is a line
_MAX_CANDIDATES = 10  # candidates of the table
_MIN_DRAWS = 5
_LONG_SECONDS = 60.0  # seconds; a shorter tuning needs no notice


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


def _progress(text: str) -> Progress:
    """A bar with this text; it shows nothing if standard error is no terminal."""
    screen = Screen(stderr=True)
    columns = TextColumn(text), BarColumn(), TimeRemainingColumn()
    return Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal)


def _run(tasks: Sequence[Task], jobs: int) -> list[Outcome]:
    with _progress("{task.completed:,.0f} of {task.total:,.0f} jobs") as bar:
        task = bar.add_task("", total=jobs * len(tasks))
        return run_side_by_side(tasks, lambda more: bar.advance(task, more))


# -- the table of a replay -----------------------------------------------------------------------------------------


_ROWS: tuple[tuple[str, Callable[[Outcome], str]], ...] = (
    ("jobs that started", lambda one: f"{one.started:,} of {one.jobs:,}"),
    ("pods whose GPUs links join", lambda one: _percent(one.joined)),
    ("ring bandwidth in the mean", lambda one: _amount(one.ring_gbps, " GB/s")),
    ("  against the best of the same node", lambda one: _percent(one.ring)),
    ("NICs as near to GPUs as possible", lambda one: _percent(one.nic)),
    ("gangs in one domain", lambda one: _percent(one.in_one)),
    ("domains of a gang", lambda one: _amount(one.domains)),
    ("GPUs allocated", lambda one: _percent(one.allocated)),
    ("  of them held by half placed gangs", lambda one: _percent(one.held)),
    ("GPUs free but stranded", lambda one: _amount(one.stranded)),
    ("GPUs that a large job still finds", lambda one: _amount(one.large)),
    ("half placed gangs that gave up", lambda one: f"{one.failures:,}"),
)


def _print(outcomes: Sequence[Outcome], large: LargeShape | None, file: JobFile) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for one in outcomes:
        table.add_column(one.placement, justify="right")
    for name, cell in _ROWS:
        cells = [cell(one) for one in outcomes]
        if set(cells) != {"-"}:
            table.add_row(name, *cells)
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


# -- tuning ---------------------------------------------------------------------------------------------------------


def tune_command(
    jobs: Annotated[Path, typer.Argument(help="See berth replay.")],
    *,
    aim: Annotated[
        Literal["bandwidth", "utilisation", "large-jobs"],
        typer.Option(help="Ring bandwidth, GPUs allocated, or the wait of jobs with more than 4 GPUs."),
    ],
    columns: Columns = "",
    nodes: Annotated[str, typer.Option(help="See berth replay.", metavar="NODES")] = "",
    snapshot: Annotated[Path | None, typer.Option(help="See berth replay.")] = None,
    is_emptied: Annotated[bool, typer.Option("--emptied", help="See berth replay.")] = False,
    policy: Annotated[Path | None, typer.Option(help="The present policy. Default: the default one.")] = None,
    draws: Annotated[int, typer.Option(min=_MIN_DRAWS, max=MAX_DRAWS, help="Draws that judge the candidate.")] = 10,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal results.")] = 1,
    write_policy: Annotated[
        Path | None, typer.Option(help="Write the better policy, if there is one, into this file.")
    ] = None,
    picture_file: Annotated[
        Path | None, typer.Option("--picture", help="Draw aim against aim into this SVG file.")
    ] = None,
    output: Output = "table",
) -> None:
    """Find the weights that serve an aim best, by replays of your jobs.

    A change is recommended only if it is better beyond noise.

    Example: berth tune examples/replay/two-products.csv --nodes 2xa100-pcie-8-bridged,3xhgx-h100-8 --aim large-jobs
    """
    set_up_logging("error")  # each bind of each replay would write a line
    file = named_jobs(jobs, columns)
    read = file.jobs
    present = policy_of(policy) if policy is not None else Policy()
    fleet = named_fleet(nodes, snapshot, read, is_emptied=is_emptied)
    file.check(fleet.classes, [present])
    found = _tuned(fleet, read, present, AIMS[aim], seed, draws)
    name = name_of(policy) if policy is not None else "the default policy"
    if picture_file is not None:
        write_file(picture_file, frontier_picture(found).encode())
    if write_policy is not None and found.is_better:
        write_file(write_policy, policy_file(found).encode())
    if output == "json":
        say_json({"jobs": len(read), "seed": seed, **found.as_json()})
    else:
        _print_tuning(found, name)
    if write_policy is not None:
        say(f"{name_of(write_policy)} is {'' if found.is_better else 'not '}written", err=True)


def _tuned(fleet: Fleet, jobs: Sequence[Job], policy: Policy, aim: Aim, seed: int, draws: int) -> Tuning:
    with _progress("{task.percentage:.0f} % of at most {task.fields[replays]} replays") as bar:
        task = bar.add_task("", replays=0)
        done, started = 0, time.monotonic()

        def tell(more: int, replays: int) -> None:
            nonlocal done
            bar.update(task, advance=more, total=replays * len(jobs), replays=replays)
            if done < len(jobs) <= done + more:  # the first replay runs alone
                _say_time(time.monotonic() - started, replays)
            done += more

        return tune(fleet, jobs, policy, aim, seed, draws, tell)


def _say_time(seconds: float, replays: int) -> None:
    """How long a tuning may take, if that is long. `seconds` are those of its first replay."""
    cores = os.cpu_count() or 1
    most = (replays - 1) * seconds / cores
    if most >= _LONG_SECONDS:
        each = f"at most {replays - 1} more replays of some {time_text(seconds)}, on {counted(cores, 'core')}"
        say(f"{each}: up to {time_text(most)}", err=True)


def policy_file(found: Tuning) -> str:
    """The better policy as YAML, with what was found as a comment."""
    policy = found.best_policy
    fields = {**policy.model_dump(mode="json", exclude_unset=True), "weights": policy.weights.model_dump()}
    aim = found.aim
    assert found.candidate is not None, "there is a better policy"
    return (
        f"# berth tune, aim {aim.name}: {found.words(found.candidate)}\n"
        f"# {aim.title}: {_change(aim, found.judged_change(aim))}\n"
        + yaml.safe_dump(fields, sort_keys=False, default_flow_style=None, width=110)
    )


def _print_tuning(found: Tuning, name: str) -> None:
    screen = table_screen()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for aim in AIMS.values():
        table.add_column(aim.title, justify="right")
    table.add_row(name, *(_aim_amount(aim, _mean(found, aim)) for aim in AIMS.values()))
    for trial in found.best_trials[:_MAX_CANDIDATES]:
        table.add_row(found.words(trial), *(_change(aim, found.trial_change(aim, trial)) for aim in AIMS.values()))
    screen.print(table)
    if len(found.trials) > _MAX_CANDIDATES:
        screen.print(f"and {counted(len(found.trials) - _MAX_CANDIDATES, 'candidate')} more: --output json has all")
    if found.dropped:
        screen.print(
            f"{counted(len(found.dropped), 'candidate')} that served the jobs as they are less: not tried further"
        )
    screen.print()
    if found.candidate is not None:
        screen.print(f"{found.words(found.candidate)}, on {counted(len(found.judged), 'other draw')} of the jobs:")
        for aim in AIMS.values():
            screen.print(f"  {aim.title}: {_change(aim, found.judged_change(aim))}{_significance(aim, found)}")
    elif not found.trials:
        screen.print("No other weight changes where one of the jobs goes, or when.")
    else:
        screen.print("No candidate is better in the mean.")
    if found.is_better:
        assert found.candidate is not None, "it is better"
        screen.print(f"Better for {found.aim.name}: {found.words(found.candidate)}.", style="bold")
    else:
        screen.print(f"No difference beyond noise: keep {name}.", style="bold")


def _mean(found: Tuning, aim: Aim) -> float:
    return interval([one[aim.name] for one in found.before]).mean


def _significance(aim: Aim, found: Tuning) -> str:
    change = found.judged_change(aim)
    if _is_none(change):
        return ""
    if change.sign:
        return ", better" if change.sign == aim.sign else ", worse"
    return ", no difference beyond noise" if change.draws else ""


def _aim_amount(aim: Aim, value: float) -> str:
    return "-" if math.isnan(value) else f"{value * aim.scale:,.1f}{aim.unit}"


def _change(aim: Aim, change: Interval) -> str:
    """Such as '-36.5 min (-67.7 to -5.3)'; the interval is in brackets."""
    if not change.draws:
        return "-"
    if _is_none(change):
        return "no difference"
    mean, low, high = (value * aim.scale for value in change[:3])
    return f"{mean:+,.1f}{aim.change_unit} ({low:+,.1f} to {high:+,.1f})"


def _is_none(change: Interval) -> bool:
    return change[:3] == (0, 0, 0)
