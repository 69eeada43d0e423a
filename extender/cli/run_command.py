"""`berth run`: starts the sandbox cluster and Berth in one process, and places the example workloads."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from extender.cli.addresses import PORTS, parse_listen
from extender.cli.logs import set_up_logging
from extender.entry.desk import both
from extender.model import WireError
from extender.sandbox import (
    ApiError,
    Cluster,
    Report,
    Row,
    Scheduler,
    carried_machines,
    expectation,
    listening,
    load_examples,
)

Json = dict[str, Any]
# Number of nodes per machine. The fleet is mixed, so that the choice of the node matters as much as of the devices.
FLEET = {
    "a100-pcie-8-bridged": 3,
    "dgx1-v100": 2,
    "hgx-h100-8": 2,
    "hgx-b200-8-degraded": 1,
    "h100-pcie-8-bridged": 2,
    "l40s-8-pix": 2,
    "gb200-nvl72-tray": 2,
    "t4-4": 3,
}
_SETTLE_SECONDS = 30.0  # limit of one wait for the scheduler
_TABLE_WIDTH = 118  # columns the table needs; pipes and CI logs report 80


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
    console = Console(width=max(Console().width, _TABLE_WIDTH))
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
            rows = await _place(cluster, scheduler, workloads)
            console.print(make_table(rows))
            if once:
                return 0 if all(row.good for row in rows) else 1
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
            cluster.add_node(f"{kind}-{number}", machines[kind])


async def _place(cluster: Cluster, scheduler: Scheduler, workloads: list[tuple[str, list[Json]]]) -> list[Row]:
    expectations = []
    for name, objects in workloads:
        for obj in objects:
            try:
                cluster.apply(obj)
            except (ValueError, ApiError) as error:
                raise WireError(name, str(error)) from error
            if obj["kind"] == "Pod":
                expectations.append(expectation(obj))
        await _until(lambda: scheduler.idle)
    return Report(cluster.store).rows(expectations, scheduler.pending())


def make_table(rows: list[Row]) -> Table:
    """Return the result as a table, one row per pod. Bandwidths are in GB/s."""
    table = Table(title="Example workloads", title_justify="left")
    for name in ("pod", "node", "devices", "joined by", "GB/s", "first fit", "result"):
        table.add_column(name, justify="right" if name in ("GB/s", "first fit") else "left")
    for row in rows:
        devices = " ".join(device.removeprefix("gpu-") for device in row.devices)
        result = f"[green]✓[/] {row.note}" if row.good else f"[red]✗ {row.note}[/]"
        table.add_row(row.pod, row.node, devices, row.joined, _gbps(row.gbps), _gbps(row.first_fit_gbps), result)
    return table


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
