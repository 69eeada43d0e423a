"""`berth run`: starts the sandbox cluster and Berth in one process, and places example workloads or plays jobs."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import typer
from rich.table import Column, Table
from rich.text import Text

from extender.api.gpu_topology import Graph
from extender.base.berth_errors import WireError
from extender.base.text_limits import counted
from extender.cli.logs import set_up_logging
from extender.cli.object_files import policy_of
from extender.cli.options import (
    PAGES,
    PORTS,
    SERVER,
    VERBS,
    Columns,
    PagesAddress,
    VerbsAddress,
    parse_listen,
    require_option,
)
from extender.cli.output import Screen
from extender.cli.replay_commands import named_fleet, named_jobs, time_text
from extender.cli.serve_commands import restart_advisor
from extender.entry.all_in_one import both
from extender.explain.fleet_rows import LargeJob, fleet_stats, large_jobs
from extender.gangs.gang import gang_minimum
from extender.policy import Policy
from extender.replay import Fleet, Job, JobPlayer, fleet_of
from extender.sandbox import ApiError, Cluster, MachineNode, Scheduler, carried_machines, listening, write_kubeconfig
from extender.sandbox.examples import (
    Expectation,
    GangPlacement,
    GangReport,
    GangRow,
    PlacedGpus,
    Report,
    Row,
    carried_examples,
    expectation,
    load_examples,
)
from extender.web.serve_app import ServeApp

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
    "hgx-h100-8-1": (0,),
    "hgx-b200-8-degraded-1": (7,),
}
NODES_PER_CLIQUE = {"gb200-nvl72-tray": 4}  # machines whose NVLinks reach other nodes
_SETTLE_SECONDS = 30.0  # limit of one wait for the scheduler
_POLL_SECONDS = 0.05
_QUIET_SECONDS = 10.0  # a pod that waits without a new attempt for so long is not about to be placed
_TUTORIAL = "docs/tutorial-your-own-pod.md of the repository"  # an installed wheel has no documents
_PIPE_WIDTH = 120  # columns without a terminal: pipes and CI logs report 80, which would fold reasons
_SPEED, _MAX_SPEED = 60.0, 1e6  # seconds of a file of jobs in a second
_MAX_NAMED = 10  # jobs that wait, with their reasons


@dataclass(frozen=True)
class _World:
    """What a run has. `workloads` are placed, unless there are jobs. `is_own`: the fleet is not the built-in one."""

    fleet: Fleet
    is_own: bool
    policy: Policy
    workloads: Sequence[tuple[str, list[Json]]]
    jobs: Sequence[Job]
    speed: float
    once: bool


def run_command(
    *,
    once: Annotated[
        bool,
        typer.Option(
            help="End when the examples are placed, or the jobs are over. "
            "Exit code 0 if all are where their files expect them, or started."
        ),
    ] = False,
    examples: Annotated[Path | None, typer.Option(help="Folder of example workloads. Default: those of Berth.")] = None,
    nodes: Annotated[str, typer.Option(help="Your own fleet, see berth replay.", metavar="NODES")] = "",
    policy: Annotated[Path | None, typer.Option(help="The policy file.")] = None,
    jobs: Annotated[Path | None, typer.Option(help="Play this file of jobs, see berth replay.")] = None,
    columns: Columns = "",
    speed: Annotated[
        float | None, typer.Option(help=f"Seconds of the jobs in a second. Default: {_SPEED:.0f}.")
    ] = None,
    listen: VerbsAddress = VERBS,
    console: PagesAddress = PAGES,
    api_port: Annotated[int, typer.Option(help="The port of the sandbox's API server; 0 takes a free one.")] = 0,
) -> None:
    """Run an embedded cluster with example workloads, or your jobs.

    Example: berth run --once
    """
    set_up_logging("error")  # the table shows the result, and /v1/explain every decision
    require_option(jobs, "--jobs", ("--speed", speed is not None), ("--columns", columns))
    if jobs is not None and examples is not None:
        raise WireError("--jobs", "does not go with --examples: give one of them")
    if speed is not None and not 0 < speed <= _MAX_SPEED:  # also for NaN
        raise WireError("--speed", f"must be a number above 0, at most {_MAX_SPEED:.0f}, is {speed:g}")
    file = named_jobs(jobs, columns) if jobs is not None else None
    read = file.jobs if file is not None else ()
    fleet = named_fleet(nodes, None, read) if nodes else fleet_of(list(_machines()), jobs=read)
    chosen = policy_of(policy) if policy is not None else Policy()
    if file is not None:
        file.check(fleet.classes, [chosen])
    folder = examples or (None if nodes or read else carried_examples())
    workloads = load_examples(folder) if folder is not None else []
    world = _World(fleet, bool(nodes), chosen, workloads, fleet.adapted(read), speed or _SPEED, once)
    try:
        code = asyncio.run(_run(world, parse_listen(listen), parse_listen(console, "--console"), api_port))
    except WireError as error:
        if "in use" not in error.problem:
            raise
        free = "berth run --listen 127.0.0.1:0 --console 127.0.0.1:0"
        raise WireError(error.path, f"{error.problem}; free ports: {free}") from error
    raise typer.Exit(code)


async def _run(world: _World, verbs: tuple[str, int], pages: tuple[str, int], api_port: int) -> int:
    """Start the cluster with its fleet, Berth and the scheduler. Returns the exit code."""
    console, cluster = Screen(), Cluster()
    if not console.is_terminal:
        console.width = max(console.width, _PIPE_WIDTH)
    if not 0 <= api_port < PORTS:
        raise WireError("--api-port", f"must be a port below {PORTS}, is {api_port}")
    console.print(f"{_add_fleet(cluster, world)}\n")
    async with (
        cluster.serving(port=api_port) as api_url,
        both(api_url, world.policy, advisor=restart_advisor) as (app, console_app),
        listening(app, *verbs) as url,
        listening(console_app, *pages, "--console") as page,
    ):
        for _ in range(round(_SETTLE_SECONDS / _POLL_SECONDS)):
            if app.service.informers.not_ready:
                await asyncio.sleep(_POLL_SECONDS)
        scheduler = Scheduler(cluster.store, url)
        app.service.supervisor.start("sandbox-scheduler", scheduler.run)
        run = _Run(world, cluster, app, scheduler, console, api_url, page)
        return await (run.play() if world.jobs else run.place_examples())


class _Run(NamedTuple):
    """A cluster with its parts. `page` is the URL of the console."""

    world: _World
    cluster: Cluster
    app: ServeApp
    scheduler: Scheduler
    console: Screen
    api_url: str
    page: str

    async def place_examples(self) -> int:
        """Place the examples, and return the exit code."""
        world, console, store = self.world, self.console, self.cluster.store
        if not world.workloads:
            console.print(f"No workloads: create pods as {_TUTORIAL} shows, or give --jobs.")
        expectations = list[Expectation]()
        for name, objects in world.workloads:
            expectations += await self._placed(name, objects)
        snapshot = self.app.service.cache.snapshot()
        rows = Report(store, snapshot).rows(expectations, self.scheduler.pending())
        gang_report = GangReport(store, lambda group: gang_minimum(group, snapshot) > 0, world.policy.group_levels)
        gangs = gang_report.rows(expectations, rows)
        _print_report(console, rows, gangs, large_jobs(fleet_stats(snapshot)))
        if world.once:
            console.print("", f"Without --once it runs on. Next: {_TUTORIAL}", sep="\n")
            return 0 if all(row.is_good for row in rows) and all(gang.is_good for gang in gangs) else 1
        stop = _stop_event()
        with self._next_steps(next((row.pod for row in rows if row.berth is None), rows[0].pod if rows else "POD")):
            await stop.wait()
        return 0

    async def _placed(self, name: str, objects: list[Json]) -> list[Expectation]:
        """Create the objects of one file, and wait until its pods are where they go."""
        found = []
        for obj in objects:
            try:
                self.cluster.apply(obj)
            except (ValueError, ApiError) as error:
                raise WireError(name, str(error)) from error
            if obj["kind"] == "Pod":
                found.append(expectation(obj))
        await _settled(self.scheduler, found, self.console)
        return found

    async def play(self) -> int:
        """Play the jobs, and return the exit code: 1 if a job did not start."""
        jobs, speed, console = self.world.jobs, self.world.speed, self.console
        last, arrive = jobs[-1].arrival, counted(len(jobs), "job arrives", "jobs arrive")
        takes = f"at --speed {speed:.10g} this takes {time_text(last / speed)}"
        console.print(f"{arrive} within {time_text(last)}; {takes}.", highlight=False)
        player, stop = JobPlayer(self.cluster, jobs, speed), _stop_event()
        with nullcontext() if self.world.once else self._next_steps(f"{jobs[0].name}-0"), console.status("") as status:
            await self._played(player, stop, lambda: status.update(_progress(player)))
        console.print(_progress(player), style="bold", highlight=False)
        waiting, pending = player.waiting(), self.scheduler.pending()
        for job, pod in list(waiting.items())[:_MAX_NAMED]:
            reasons = "; ".join(sorted(pending.get(pod, {}))) or "not tried yet"
            console.print(f"{job} waits: {reasons}", highlight=False)
        if len(waiting) > _MAX_NAMED:
            console.print(f"and {len(waiting) - _MAX_NAMED:,} more", highlight=False)
        return 1 if waiting else 0

    async def _played(self, player: JobPlayer, stop: asyncio.Event, tell: Callable[[], None]) -> None:
        """Play the jobs until `stop`; with --once also until no job is to arrive, to end or about to start."""
        quiet = _Quiet(self.scheduler)
        while not stop.is_set():
            player.create_due()
            await asyncio.sleep(_POLL_SECONDS)
            tell()
            seconds = quiet.seconds(also=not player.has_events)
            if self.world.once and seconds and (not player.waiting() or seconds > _QUIET_SECONDS):
                return

    @contextmanager
    def _next_steps(self, pod: str) -> Iterator[None]:
        """Say what a user can do now, with a kubeconfig that lasts as long."""
        with TemporaryDirectory(prefix="berth-") as folder:
            _print_next_steps(self.console, self.page, write_kubeconfig(Path(folder), self.api_url, self.page), pod)
            yield


class _Quiet:
    """How long the scheduler has had no work."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._calls = scheduler, 0
        self._clock = asyncio.get_running_loop().time
        self._since = self._clock()

    def seconds(self, *, also: bool = True) -> float:
        """The seconds since its last work; 0 if it has some, or unless `also`."""
        made, now = sum(self._scheduler.calls.values()), self._clock()
        if made != self._calls or not self._scheduler.idle or not also:
            self._calls, self._since = made, now
        return now - self._since


def _progress(player: JobPlayer) -> str:
    now = player.progress
    return (
        f"After {time_text(now.at)} of the jobs' time {now.arrived:,} of {counted(now.jobs, 'job')} arrived: "
        f"{now.waiting:,} wait, {now.running:,} run, {now.ended:,} ended."
    )


def _machines() -> Iterator[MachineNode]:
    """The nodes of FLEET."""
    machines = carried_machines()
    for kind, count in FLEET.items():
        for number in range(1, count + 1):
            nodes = NODES_PER_CLIQUE.get(kind)
            labels = {Policy().group_levels[0]: f"nvl72-{(number - 1) // nodes + 1}"} if nodes else {}
            yield MachineNode(f"{kind}-{number}", machines[kind], labels)


def _add_fleet(cluster: Cluster, world: _World) -> str:
    """Add the objects of the fleet, and to the built-in one the pods that hold the GPUs in BUSY. Describe them."""
    own = [obj for obj in world.fleet.objects if obj["kind"] != "DeviceClass"]  # the cluster has the classes
    for obj in own:
        cluster.apply(obj)
    nodes = sum(obj["kind"] == "Node" for obj in own)
    if world.is_own:
        return f"Your fleet: {counted(nodes, 'node')}."
    for node, gpus in BUSY.items():
        cluster.occupy(node, gpus)
    return f"A crowded fleet: {nodes} nodes of {len(FLEET)} kinds; other pods hold {sum(map(len, BUSY.values()))} GPUs."


def _print_report(console: Screen, rows: list[Row], gangs: list[GangRow], large: list[LargeJob]) -> None:
    of_gangs = {pod for gang in gangs for pod in gang.pods}
    single = [row for row in rows if row.pod not in of_gangs or not row.is_good]
    if single:
        console.print(_pod_table(single, console.width), Text(LEGEND, "dim"), sep="\n", highlight=False)
    if gangs:
        console.print("", _gang_table(gangs), Text(GANG_LEGEND, "dim"), sep="\n")
    console.print("", *_totals(single, gangs), sep="\n", style="bold")
    if large:
        found = ", ".join(f"{job.gpus} x {job.where}" for job in large)
        console.print(f"The next large job still finds {found}.", style="bold", highlight=False)


def _print_next_steps(console: Screen, page: str, kubeconfig: Path, pod: str) -> None:
    server = "" if page == SERVER else f" --server {page}"
    steps = (
        ("the page", f"open {page}"),
        ("kubectl", f"export KUBECONFIG={kubeconfig}"),
        ("", "kubectl get pods -o wide"),
        *([] if which("berth") else [("berth", f"export PATH={Path(sys.executable).parent}:$PATH")]),
        ("why a pod waits", f"berth explain pod default/{pod}{server}"),
        ("your own pod", _TUTORIAL),
        ("four joined GPUs", "docs/tutorial-nvlink.md there"),
        ("the end", "Ctrl-C"),
    )
    console.print("", "Next, in a second terminal:", sep="\n")
    for name, step in steps:
        console.print(f"  {name:<17} {step}", soft_wrap=True, highlight=False)


async def _settled(scheduler: Scheduler, expectations: list[Expectation], console: Screen) -> None:
    """Wait until the pods are bound or pending as expected, or until the scheduler has had no work for a while.

    All pods of a gang may be rejected for a moment: then Berth lets the scheduler retry them.
    """
    clock, quiet, announced = asyncio.get_running_loop().time, _Quiet(scheduler), False
    end = clock() + _SETTLE_SECONDS
    while clock() < end:
        await asyncio.sleep(_POLL_SECONDS)
        seconds, pending = quiet.seconds(), scheduler.pending()
        waiting = [e for e in expectations if f"default/{e.pod}" in pending]
        if seconds and (
            seconds > _QUIET_SECONDS or all(e.is_pending_for(pending[f"default/{e.pod}"]) for e in waiting)
        ):
            return
        if not announced and seconds > 1:
            names = ", ".join(e.pod for e in waiting)
            console.print(f"No node for {names} yet: waiting {_QUIET_SECONDS:.0f} s for another attempt.")
            announced = True


def _stop_event() -> asyncio.Event:
    """Return an event that SIGINT and SIGTERM set from now on."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


# -- the report: the GPUs of each pod as link diagrams, the gangs, and the totals ------------------------------

LEGEND = """0 1 GPUs of the pod  ○ free  # held  ━ joined  GB/s: predicted
first fit: the first devices that fit, on the same node"""
GANG_LEGEND = """● a node with a pod of the gang  ○ another node of the domain
first fit: each pod on the first node by name that fits"""
_WIDE_COLUMNS = 120  # columns; a narrower terminal gets the node names below the diagrams
_DIAGRAM_COLUMNS = 15  # columns of a diagram of eight GPUs
_JOINED, _SPLIT, _FAINT = "bold green", "bold red", "dim"


def _pod_table(rows: list[Row], width: int) -> Table:
    """Return the pods as a table for a terminal of `width` columns, one row per pod."""
    table = _table("pod", "Berth", "GB/s", "first fit", "GB/s")
    table.columns[2].justify = table.columns[4].justify = "right"
    for row in rows:
        cells = _cell(row.berth, width), _gbps(row.berth), _diagram(row.first_fit), _gbps(row.first_fit)
        if row.note:
            cells = Text(f"{'' if row.berth else 'waits: '}{row.note}"), *cells[1:]
        table.add_row(_marked(row.pod, is_good=row.is_good, waits=row.berth is None), *cells)
    return table


def _gang_table(gangs: list[GangRow]) -> Table:
    """Return the gangs as a table: the nodes of the domains that each gang is in, lit where a pod of it is."""
    table = _table("gang", "Berth", "first fit")
    for gang in gangs:
        name = _marked(gang.gang, is_good=gang.is_good, waits=gang.waits)
        table.add_row(name, _domains(gang.berth), _domains(gang.first_fit))
    return table


def _totals(rows: list[Row], gangs: list[GangRow]) -> list[str]:
    """Return the sentences that compare Berth with first fit. Jobs of one GPU do not count."""
    jobs = [row for row in rows if row.berth is not None and len(row.berth.gpus) > 1]
    sentences = []
    if jobs:
        number, joined = len(jobs), sum(row.berth is not None and row.berth.is_joined for row in jobs)
        first_fit = sum(row.first_fit is not None and row.first_fit.is_joined for row in jobs)
        by_first_fit = f"first fit on the same nodes {first_fit} of {number}"
        pods = "multi-GPU pods outside of gangs" if gangs else "multi-GPU pods"
        sentences.append(f"Joined by links: Berth {joined} of {number} {pods}, {by_first_fit}.")
    paired = [(row.berth, row.first_fit) for row in rows if row.berth and row.first_fit and row.berth.pairs]
    if paired:
        number = sum(berth.pairs for berth, _ in paired)
        near, first_fit = sum(berth.near for berth, _ in paired), sum(other.near for _, other in paired)
        pairs = counted(number, "pair")
        sentences.append(f"GPU and NIC beside each other: Berth {near} of {pairs}, first fit {first_fit} of {number}.")
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


def _drawn(placement: PlacedGpus) -> Text:
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
    """The GPUs in groups whose members all have links to each other, or into the same switch."""
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
    return _drawn(placement) if placement is not None and placement.gpus else Text("-", _FAINT)


def _cell(placement: PlacedGpus | None, width: int) -> Text:
    if placement is None:
        return Text("-", _FAINT)
    if not placement.gpus:
        return Text(placement.node, _FAINT)
    text = _drawn(placement)
    if width < _WIDE_COLUMNS:
        return text.append(f"\n{placement.node}", _FAINT)
    text.pad_right(max(_DIAGRAM_COLUMNS - len(text), 0))
    return text.append(f"  {placement.node}", _FAINT)


def _domains(placement: GangPlacement) -> Text:
    text = Text(placement.words)
    for domain in placement.domains:
        text.append("\n")
        for has_pod in domain.has_pod:
            text.append("●" if has_pod else "○", (_JOINED if placement.is_in_one else _SPLIT) if has_pod else _FAINT)
        text.append(f" {domain.name}", _FAINT)
    return text


def _table(*names: str) -> Table:
    heads = [Column(name, overflow="fold") for name in names]  # no name is cut on a narrow terminal
    return Table(*heads, show_edge=False, pad_edge=False)


def _marked(name: str, *, is_good: bool, waits: bool) -> Text:
    if not is_good:
        return Text(f"✗ {name}", "red")
    return Text.assemble(("…", "yellow") if waits else ("✓", "green"), f" {name}")


def _gbps(placement: PlacedGpus | None) -> str:
    return f"{placement.gbps:.0f}" if placement is not None and placement.gbps else "-"
