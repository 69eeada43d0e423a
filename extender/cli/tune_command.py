"""`berth tune`: the weights of the policy that serve an aim best with one's own jobs, if any do beyond noise."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
import yaml
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from extender.base.text_limits import counted
from extender.cli.logs import set_up_logging
from extender.cli.object_files import policy_of
from extender.cli.options import Columns, Output
from extender.cli.output import Screen, say, say_json, table_screen
from extender.cli.replay_command import named_fleet, named_jobs, time_text
from extender.files import name_of, write_file
from extender.policy import Policy
from extender.replay import Fleet, Job
from extender.tune import AIMS, MAX_DRAWS, Aim, Interval, Tuning, frontier_picture, interval, tune

_MAX_ROWS = 10  # candidates of the table
_MIN_DRAWS = 5
_LONG_SECONDS = 60.0  # seconds; a shorter tuning needs no notice


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
    found = _run(fleet, read, present, AIMS[aim], seed, draws)
    name = name_of(policy) if policy is not None else "the default policy"
    if picture_file is not None:
        write_file(picture_file, frontier_picture(found).encode())
    if write_policy is not None and found.is_better:
        write_file(write_policy, policy_file(found).encode())
    if output == "json":
        say_json({"jobs": len(read), "seed": seed, **found.as_json()})
    else:
        _print(found, name)
    if write_policy is not None:
        say(f"{name_of(write_policy)} is {'' if found.is_better else 'not '}written", err=True)


def _run(fleet: Fleet, jobs: Sequence[Job], policy: Policy, aim: Aim, seed: int, draws: int) -> Tuning:
    screen = Screen(stderr=True)
    columns = (
        TextColumn("{task.percentage:.0f} % of at most {task.fields[replays]} replays"),
        BarColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
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


# -- the table -----------------------------------------------------------------------------------------------------


def _print(found: Tuning, name: str) -> None:
    screen = table_screen()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for aim in AIMS.values():
        table.add_column(aim.title, justify="right")
    table.add_row(name, *(_amount(aim, _mean(found, aim)) for aim in AIMS.values()))
    for trial in found.best_trials[:_MAX_ROWS]:
        table.add_row(found.words(trial), *(_change(aim, found.trial_change(aim, trial)) for aim in AIMS.values()))
    screen.print(table)
    if len(found.trials) > _MAX_ROWS:
        screen.print(f"and {counted(len(found.trials) - _MAX_ROWS, 'candidate')} more: --output json has all")
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


def _amount(aim: Aim, value: float) -> str:
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
