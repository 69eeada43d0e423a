"""`berth run`: starts the sandbox cluster and Berth in one process, and places the example workloads."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.text import Text

from extender.cli.berth_client import SERVER
from extender.cli.logs import set_up_logging
from extender.cli.options import PORTS, parse_listen
from extender.cli.output import Screen
from extender.cli.run_report import GANG_LEGEND, LEGEND, make_gang_table, make_table, totals
from extender.entry.all_in_one import both
from extender.gangs.gang import gang_minimum
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
    write_kubeconfig,
)

Json = dict[str, Any]
# Number of nodes per machine. The fleet is mixed, so that the choice of the node matters as much as of the devices.
FLEET = {
    "a100-pcie-8-bridged": 3,
    "a100-pcie-8-crossed": 2,
    "dgx1-v100": 2,
    "hgx-h100-8": 2,
    "hgx-b200-8-degraded": 1,
    "l40s-8-pix": 2,
    "gb200-nvl72-tray": 8,
    "t4-4": 3,
}
# GPUs that pods hold already: with gaps, the first devices that fit are seldom joined.
BUSY = {
    "a100-pcie-8-bridged-1": (0, 3),
    "a100-pcie-8-bridged-2": (1, 4),
    "a100-pcie-8-bridged-3": (6,),
    "a100-pcie-8-crossed-1": (4,),
    "dgx1-v100-1": (1,),
    "dgx1-v100-2": (6,),
    "hgx-h100-8-1": (5,),
    "hgx-b200-8-degraded-1": (7,),
}
NODES_PER_CLIQUE = {"gb200-nvl72-tray": 4}  # machines whose NVLinks reach other nodes
GROUP_LEVELS = Policy().group_levels
_SETTLE_SECONDS = 30.0  # limit of one wait for the scheduler
_QUIET_SECONDS = 10.0  # a pod that waits without a new attempt for so long is not about to be placed
_PIPE_WIDTH = 120  # columns without a terminal: pipes and CI logs report 80, which would fold reasons


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
    try:
        code = asyncio.run(_run(examples, (listen, console), api_port, once=once))
    except WireError as error:
        if "in use" not in error.problem:
            raise
        free = "berth run --listen 127.0.0.1:0 --console 127.0.0.1:0"
        raise WireError(error.path, f"{error.problem}; free ports: {free}") from error
    raise typer.Exit(code)


async def _run(examples: Path, listen: tuple[str, str], api_port: int, *, once: bool) -> int:
    console = Screen()
    if not console.is_terminal:
        console.width = max(console.width, _PIPE_WIDTH)
    verbs, pages = parse_listen(listen[0]), parse_listen(listen[1], "--console")
    if not 0 <= api_port < PORTS:
        raise WireError("--api-port", f"must be a port below {PORTS}, is {api_port}")
    workloads = load_examples(examples)
    cluster = Cluster()
    add_fleet(cluster)
    nodes, held = sum(FLEET.values()), sum(map(len, BUSY.values()))
    console.print(f"A crowded fleet: {nodes} nodes of {len(FLEET)} kinds; other pods hold {held} GPUs.\n")
    async with (
        cluster.serving(port=api_port) as api_url,
        both(api_url) as (app, console_app),
        listening(app, *verbs) as url,
        listening(console_app, *pages, "--console") as page,
    ):
        await _until(lambda: not app.service.informers.not_ready)
        scheduler = Scheduler(cluster.store, url)
        app.service.supervisor.start("sandbox-scheduler", scheduler.run)
        expectations = await _place(cluster, scheduler, workloads, console)
        rows = Report(cluster.store).rows(expectations, scheduler.pending())
        snapshot = app.service.cache.snapshot()
        gang_report = GangReport(cluster.store, lambda group: gang_minimum(group, snapshot) > 0, GROUP_LEVELS)
        gangs = gang_report.rows(expectations, rows)
        _print_report(console, rows, gangs)
        if once:
            console.print("", "`make run` keeps it running; docs/tutorial-your-own-pod.md is next.", sep="\n")
            return 0 if all(row.is_good for row in rows) and all(gang.is_good for gang in gangs) else 1
        with TemporaryDirectory(prefix="berth-") as folder:
            kubeconfig = write_kubeconfig(Path(folder), api_url)
            waiting = next((row.pod for row in rows if row.berth is None), rows[0].pod if rows else "POD")
            stop = _stop_event()
            _print_next_steps(console, page, kubeconfig, waiting)
            await stop.wait()
        return 0


def add_fleet(cluster: Cluster) -> None:
    """Add the nodes of FLEET to the cluster, and the pods that hold the GPUs in BUSY."""
    machines = carried_machines()
    for kind, count in FLEET.items():
        for number in range(1, count + 1):
            nodes = NODES_PER_CLIQUE.get(kind)
            labels = {GROUP_LEVELS[0]: f"nvl72-{(number - 1) // nodes + 1}"} if nodes else {}
            cluster.add_node(f"{kind}-{number}", machines[kind], labels)
    for node, gpus in BUSY.items():
        cluster.occupy(node, gpus)


def _print_report(console: Screen, rows: list[Row], gangs: list[GangRow]) -> None:
    of_gangs = {pod for gang in gangs for pod in gang.pods}
    single = [row for row in rows if row.pod not in of_gangs or not row.is_good]
    if single:
        console.print(make_table(single, console.width), Text(LEGEND, "dim"), sep="\n", highlight=False)
    if gangs:
        console.print("", make_gang_table(gangs), Text(GANG_LEGEND, "dim"), sep="\n")
    console.print("", *totals(single, gangs), sep="\n", style="bold")


def _print_next_steps(console: Screen, page: str, kubeconfig: Path, pod: str) -> None:
    steps = (
        ("the page", f"open {page}"),
        ("kubectl", f"export KUBECONFIG={kubeconfig}"),
        ("", "kubectl get pods -o wide"),
        *([] if which("berth") else [("berth", f"export PATH={Path(sys.executable).parent}:$PATH")]),
        ("why a pod waits", f"berth explain pod default/{pod}" + _server_option(page)),
        ("your own pod", "docs/tutorial-your-own-pod.md"),
        ("four joined GPUs", "docs/tutorial-nvlink.md"),
        ("the end", "Ctrl-C"),
    )
    console.print("", "Next, in a second terminal:", sep="\n")
    for name, step in steps:
        console.print(f"  {name:<17} {step}", soft_wrap=True, highlight=False)


def _server_option(page: str) -> str:
    return "" if page == SERVER else f" --server {page}"


async def _place(
    cluster: Cluster, scheduler: Scheduler, workloads: list[tuple[str, list[Json]]], console: Screen
) -> list[Expectation]:
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
        await _settled(scheduler, of_file, console)
        expectations += of_file
    return expectations


async def _settled(scheduler: Scheduler, expectations: list[Expectation], console: Screen) -> None:
    """Wait until the pods are bound or pending as expected, or until the scheduler has had no work for a while.

    All pods of a gang may be rejected for a moment: then Berth lets the scheduler retry them.
    """
    clock, calls = asyncio.get_running_loop().time, 0
    quiet_since = clock()
    end, announced = quiet_since + _SETTLE_SECONDS, False
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
        if not announced and clock() - quiet_since > 1:
            names = ", ".join(e.pod for e in waiting)
            console.print(f"No node for {names} yet: waiting {_QUIET_SECONDS:.0f} s for another attempt.")
            announced = True


async def _until(condition: Callable[[], bool]) -> None:
    end = asyncio.get_running_loop().time() + _SETTLE_SECONDS
    while asyncio.get_running_loop().time() < end:
        await asyncio.sleep(0.05)
        if condition():
            return


def _stop_event() -> asyncio.Event:
    """Return an event that SIGINT and SIGTERM set from now on."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
