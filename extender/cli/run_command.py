"""`berth run`: starts the sandbox cluster and Berth in one process, and places the example workloads."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from extender.cli.addresses import PORTS, parse_listen
from extender.cli.logs import set_up_logging
from extender.entry.desk import both
from extender.model import WireError
from extender.policy import Policy
from extender.sandbox import (
    ApiError,
    Cluster,
    Expectation,
    GangReport,
    GangRow,
    Report,
    Row,
    Scheduler,
    carried_machines,
    expectation,
    listening,
    load_examples,
)
from extender.scheduling import gang_minimum

Json = dict[str, Any]
# Number of nodes per machine. The fleet is mixed, so that the choice of the node matters as much as of the devices.
FLEET = {
    "a100-pcie-8-bridged": 3,
    "dgx1-v100": 2,
    "hgx-h100-8": 2,
    "hgx-b200-8-degraded": 1,
    "h100-pcie-8-bridged": 2,
    "l40s-8-pix": 2,
    "gb200-nvl72-tray": 8,
    "t4-4": 3,
}
NODES_PER_CLIQUE = {"gb200-nvl72-tray": 4}  # machines whose NVLinks reach other nodes
GROUP_LEVELS = Policy().group_levels
_SETTLE_SECONDS = 30.0  # limit of one wait for the scheduler
_QUIET_SECONDS = 10.0  # a pod that waits without a new attempt for so long is not about to be placed
_PENDING = "pending"
_PIPE_WIDTH = 118  # columns without a terminal: pipes and CI logs report 80, which would fold reasons


def run_command(
    *,
    once: Annotated[
        bool,
        typer.Option(help="End when the examples are placed. Exit code 0 if all are where their files expect them."),
    ] = False,
    examples: Annotated[Path, typer.Option(help="Folder of example workloads.")] = Path("examples"),
    listen: Annotated[
        str, typer.Option(help="The address for kube-scheduler.", metavar="HOST:PORT")
    ] = "127.0.0.1:8888",
    console: Annotated[
        str, typer.Option(help="The address of the pages and of explain.", metavar="HOST:PORT")
    ] = "127.0.0.1:8889",
    api_port: Annotated[int, typer.Option(help="The port of the sandbox's API server; 0 takes a free one.")] = 0,
) -> None:
    """Run Berth on an embedded cluster and place the example workloads.

    Example: berth run --once
    """
    set_up_logging("error")  # the table shows the result, and /v1/explain every decision
    raise typer.Exit(asyncio.run(_run(examples, (listen, console), api_port, once=once)))


async def _run(examples: Path, listen: tuple[str, str], api_port: int, *, once: bool) -> int:
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, _PIPE_WIDTH)
    verbs, pages = parse_listen(listen[0]), parse_listen(listen[1], "--console")
    if not 0 <= api_port < PORTS:
        raise WireError("--api-port", f"must be a port below {PORTS}, is {api_port}")
    workloads = load_examples(examples)
    cluster = Cluster()
    add_fleet(cluster)
    console.print(f"Fleet: {sum(FLEET.values())} nodes of {len(FLEET)} kinds.")
    async with (
        cluster.serving(port=api_port) as api_url,
        both(api_url) as (app, console_app),
        listening(app, *verbs) as url,
        listening(console_app, *pages, "--console") as page,
    ):
        await _until(lambda: not app.service.informers.not_ready)
        scheduler = Scheduler(cluster.store, url)
        task = asyncio.create_task(scheduler.run())
        try:
            expectations = await _place(cluster, scheduler, workloads)
            rows = Report(cluster.store).rows(expectations, scheduler.pending())
            console.print(make_table(rows))
            snapshot = app.service.cache.snapshot()
            gang_report = GangReport(cluster.store, lambda group: gang_minimum(group, snapshot) > 0, GROUP_LEVELS)
            gangs = gang_report.rows(expectations, rows)
            if gangs:
                console.print("", make_gang_table(gangs), sep="\n")
            if once:
                return 0 if all(row.good for row in rows) and all(gang.good for gang in gangs) else 1
            console.print(
                f"API server: {api_url}   Berth: {url} (/filter, /prioritize, /bind)   Page: {page}   Ctrl-C ends all."
            )
            await _signal()
            return 0
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def add_fleet(cluster: Cluster) -> None:
    """Add the nodes of FLEET to the cluster."""
    machines = carried_machines()
    for kind, count in FLEET.items():
        for number in range(1, count + 1):
            nodes = NODES_PER_CLIQUE.get(kind)
            labels = {GROUP_LEVELS[0]: f"nvl72-{(number - 1) // nodes + 1}"} if nodes else {}
            cluster.add_node(f"{kind}-{number}", machines[kind], labels)


async def _place(cluster: Cluster, scheduler: Scheduler, workloads: list[tuple[str, list[Json]]]) -> list[Expectation]:
    """Create the examples, one file after the other."""
    expectations: list[Expectation] = []
    for name, objects in workloads:
        of_file = []
        for obj in objects:
            try:
                cluster.apply(obj)
            except (ValueError, ApiError) as error:
                raise WireError(name, str(error)) from error
            if obj["kind"] == "Pod":
                of_file.append(expectation(obj))
        await _settled(scheduler, of_file)
        expectations += of_file
    return expectations


async def _settled(scheduler: Scheduler, expectations: list[Expectation]) -> None:
    """Wait until the pods are bound or pending as expected, or until the scheduler has had no work for a while.

    All pods of a gang may be rejected for a moment: then Berth lets the scheduler retry them.
    """
    clock, calls = asyncio.get_running_loop().time, 0
    quiet_since = clock()
    end = quiet_since + _SETTLE_SECONDS
    while clock() < end:
        await asyncio.sleep(0.05)
        made = sum(scheduler.calls.values())
        if made != calls or not scheduler.idle:
            calls, quiet_since = made, clock()
            continue
        pending = scheduler.pending()
        waiting = [e for e in expectations if f"default/{e.pod}" in pending]
        if all(e.is_pending_for(pending[f"default/{e.pod}"]) for e in waiting):
            return
        if clock() - quiet_since > _QUIET_SECONDS:
            return


def make_table(rows: list[Row]) -> Table:
    """Return the result as a table, one row per pod. Bandwidths are in GB/s."""
    table = _table("Example workloads", ("pod", "node", "devices", "joined by", "GB/s", "first fit"))
    table.columns[4].justify = table.columns[5].justify = "right"
    for row in rows:
        bandwidths = _gbps(row.gbps), _gbps(row.first_fit_gbps)
        table.add_row(_marked(row.pod, row), _node(row), _positions(row.devices), row.joined, *bandwidths)
    return table


def make_gang_table(gangs: list[GangRow]) -> Table:
    """Return the gangs as a table: for each gang the domains of its nodes, and then the node of each pod."""
    table = _table("Gangs", ("gang and its pods", "Berth", "first fit"))
    for gang in gangs:
        table.add_row(_marked(gang.gang, gang), gang.domain, gang.first_fit_domain, style="bold")
        for row in gang.members:
            table.add_row(f"  {row.pod}", row.node or _PENDING, row.first_fit_node or "none")
        table.add_section()
    return table


def _table(title: str, names: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")  # no name is cut on a narrow terminal
    return table


def _marked(name: str, row: Row | GangRow) -> str:
    return f"[green]✓[/] {name}" if row.good else f"[red]✗ {name}[/]"


def _node(row: Row) -> str:
    return f"{row.node or _PENDING}: {escape(row.note)}" if row.note else row.node


def _positions(devices: Sequence[str]) -> str:
    """The positions of devices on their node: '1 2' for gpu-1 and gpu-2, '0-7' for eight."""
    left, words = [int(device.rpartition("-")[2]) for device in devices], list[str]()
    while left:
        run = next((n for n, position in enumerate(left) if position != left[0] + n), len(left))
        is_long = run > 2  # noqa: PLR2004 - '1 2' is as short as '1-2'
        words += [f"{left[0]}-{left[run - 1]}"] if is_long else map(str, left[:run])
        left = left[run:]
    return " ".join(words)


def _gbps(value: float) -> str:
    return f"{value:.0f}" if value else "-"


async def _until(condition: Callable[[], bool]) -> None:
    end = asyncio.get_running_loop().time() + _SETTLE_SECONDS
    while asyncio.get_running_loop().time() < end:
        await asyncio.sleep(0.05)
        if condition():
            return


async def _signal() -> None:
    done = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, done.set)
    await done.wait()
