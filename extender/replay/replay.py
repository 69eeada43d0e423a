"""One replay: jobs arrive, wait, run and end on a virtual cluster, in virtual time. Several run side by side.

The cluster is the cache of serve and what fills it (`virtual_api`), kube-scheduler's queue (`virtual_scheduler`) and a
placer. With Berth, the placer is `Decisions`: the filter, the gangs, the holds and the binds of serve. Time moves
from event to event (`virtual_cluster`). Equal input and seed give equal outcomes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Generic, NamedTuple, TypeVar

import structlog

from extender.api.object_meta import ObjectKey
from extender.api.pod_amounts import Amounts
from extender.api.pods import Pod, decode_pod, with_constraints
from extender.api.resource_claims import Claim, Result, decode_claim
from extender.base.berth_errors import BerthError
from extender.cel.dra import Masks
from extender.replay.fleets import Fleet, allocated_gpus, with_claim_gpus
from extender.replay.jobs import Job
from extender.replay.outcome import LargeShape, Meter, Outcome, PlacedPod, placed_pod
from extender.replay.placers import Placer, placing_of
from extender.replay.virtual_cluster import VirtualCluster, in_virtual_time
from extender.replay.virtual_scheduler import FORBIDDEN, Waiting, excluding_taint, likely_reason
from extender.scheduling import UsableNodes
from extender.topology.device_pairs import possible_devices
from extender.topology.link_knowledge import Links, links_of

PATIENCE_SECONDS = 600.0  # how long pods of a half placed gang wait for the last one, without Berth
_ROUND_SECONDS = 60.0
_PAUSE_SECONDS = 600.0  # after the last start and end of a job: by then no gang of Berth pauses any more
_RESTARTS_SECONDS = 10 * PATIENCE_SECONDS  # how long half placed gangs start again while no job comes, starts or ends
_SAMPLES = 60
_PROGRESS_STEPS = 200  # how often a replay tells its progress
T = TypeVar("T")
_NO_NICS = "the fleet has no NICs in ResourceSlices, and the job asks for some (nics)"
_SETTLED_SECONDS = 0.001  # after a moment, all that happens in it is done


class _Pod(NamedTuple):
    pod: Pod
    claim: Claim | None
    template: Job


@dataclass(eq=False)
class _Run:
    """A job in the cluster. `attempt` counts its restarts; `nodes` are those of its bound pods, by UID."""

    job: Job
    attempt: int = 0
    pods: dict[str, _Pod] = field(default_factory=dict)  # by UID
    nodes: dict[str, str] = field(default_factory=dict)
    gpus: dict[str, float] = field(default_factory=dict)  # that its bound pods have got, by UID
    runs: bool = False

    def of(self, template: Job, *, gangs: bool) -> Hashable:
        """The class of pods of a template in the queue. `gangs`: whether the placer knows gangs."""
        return (self.job.name, self.attempt) if gangs and self.job.is_gang else template.shape


def run_replay(
    fleet: Fleet,
    jobs: Sequence[Job],
    placer: Placer,
    seed: int = 1,
    progress: Callable[[int], None] = lambda _: None,
    large: LargeShape | None = None,
) -> Outcome:
    """Replay the jobs, which are in the order of their arrival. `progress` is told how many have arrived.

    `large` is the job for which places are looked for while others run.

    Raises WireError for an object of the fleet that cannot be read.
    """
    return in_virtual_time(Replay(fleet, jobs, placer, seed, progress, large).run())


class Replay:
    """See run_replay. `run` must run in a VirtualLoop."""

    def __init__(
        self,
        fleet: Fleet,
        jobs: Sequence[Job],
        placer: Placer,
        seed: int,
        progress: Callable[[int], None],
        large: LargeShape | None,
    ) -> None:
        self._fleet = fleet
        self._jobs = fleet.adapted(jobs)
        self._placer = placer
        self._seed = seed
        self._progress = progress
        self._large = large
        self._pending = 0  # ends of jobs to come
        self._changed = 0.0  # when a job arrived, started or ended last
        self._stuck: list[_Run] = []  # half placed gangs that would only be half placed again
        self._ended = asyncio.Event()
        self._runs: dict[str, _Run] = {}  # by name of the job
        self._run_of: dict[str, _Run] = {}  # by UID of the pod
        self._failures = 0
        self._waiting_gpus = 0.0
        self._templates: dict[Hashable, Claim] = {}  # by shape of the job
        self._usable = UsableNodes()
        self._masks = Masks()

    async def run(self) -> Outcome:
        """Replay all jobs, and return what was found."""
        self._cluster = VirtualCluster(self._placer.policy, self._bound)
        self.decisions = self._cluster.decisions
        self._fleet.apply(self.decisions.cache)
        room = self._fleet.room()
        placing = placing_of(self._placer, self.decisions, self._cluster.api, len(room.names))
        durations = [one.duration for one in self._jobs if one.duration < math.inf]
        self._until = self._jobs[-1].arrival or max(durations, default=1.0)
        snapshot = self.decisions.cache.snapshot()
        self._jobs = with_claim_gpus(self._jobs, snapshot)
        self._nodes = {name: node_info.node for name, node_info in snapshot.node_infos.items()}
        self._unmeasured = self._fleet.unlinked | {
            name for name, one in snapshot.node_infos.items() if links_of(one) is Links.UNKNOWN
        }
        self._meter = Meter(snapshot, self._placer.policy.group_levels, self._until, self._large, self._unmeasured)
        await self._cluster.run(placing, room, self._seed, self._replay)
        now = asyncio.get_running_loop().time()
        return self._meter.outcome(self._placer.name, len(self._jobs), now, self._failures, self._never_started())

    # -- events ----------------------------------------------------------------------------------------------

    async def _replay(self) -> None:
        """Create the jobs at their times, and wait for the end of all that start."""
        loop = asyncio.get_running_loop()
        self._cluster.supervisor.spawn("samples", self._samples())
        for arrived, job in enumerate(self._jobs, 1):
            if job.arrival > loop.time():
                await asyncio.sleep(job.arrival - loop.time())
            self._create(_Run(job))
            self._change()
            self._progress(arrived)
        patience = _PAUSE_SECONDS if self._placer.is_berth else _RESTARTS_SECONDS
        while self._pending or (self._cluster.scheduler.has_work and loop.time() < self._changed + patience):
            if self._pending:
                self._ended.clear()
                await self._ended.wait()
            else:  # no job will end: only pauses and restarts of gangs, and back-offs may be left
                await asyncio.sleep(_ROUND_SECONDS)

    async def _samples(self) -> None:
        """Note the state of the fleet at equal intervals."""
        for number in range(_SAMPLES + 1):
            at = self._until * number / _SAMPLES
            await asyncio.sleep(max(at + _SETTLED_SECONDS - asyncio.get_running_loop().time(), 0.0))
            self._meter.sample(at, self._waiting_gpus, self.decisions.cache.snapshot())

    def _create(self, run: _Run) -> None:
        """The pods and the claims of a job, which then wait."""
        job, berth = run.job, self._placer.is_berth
        self._runs[job.name] = run
        self._waiting_gpus += job.all_gpus
        created, nodes, in_gang = list[Waiting](), dict[int, frozenset[str] | None](), berth and job.is_gang
        for name, one in job.named_pods(run.attempt):
            uid = f"uid-{name}"
            obj = job.pod(name, one, plain=not berth)
            obj["metadata"] |= {"uid": uid, "resourceVersion": "1"}
            pod, claim = decode_pod(obj), self._claim(one, name)
            run.pods[uid] = _Pod(pod, claim, one)
            self._run_of[uid] = run
            if id(one) not in nodes:  # the others of this template have the same constraints
                nodes[id(one)] = self._usable.of((with_constraints(pod, obj),), self._nodes, 0).get(uid)
            of, requests = run.of(one, gangs=berth), Amounts(one.cpu, one.ram, 1)
            shape = job.shape if in_gang else one.shape
            created.append(Waiting(pod, of, shape, requests, in_gang, priority=one.priority, nodes=nodes[id(one)]))
            self._cluster.api.create(pod, [claim] if claim is not None else [])
        for waiting in created:
            self._cluster.scheduler.add(waiting)

    def _claim(self, template: Job, name: str) -> Claim | None:
        if template.claim_spec is None:
            return None
        known = self._templates.get(template.shape)
        if known is None:
            known = self._templates[template.shape] = decode_claim(template.claim_object(name))
        return replace(known, key=ObjectKey(known.key.namespace, name), uid=f"claim-{name}")

    def _bound(self, uid: str, node: str) -> None:
        """A pod has a node. With its last pod, a job starts."""
        run, now = self._run_of[uid], asyncio.get_running_loop().time()
        run.nodes[uid] = node
        gpus = run.gpus[uid] = self._gpus_of(run, uid)
        self._waiting_gpus -= run.pods[uid].template.pod_gpus
        self._meter.use(gpus, gpus, now)
        if len(run.nodes) == len(run.pods):
            run.runs = True
            used = sum(run.gpus.values())
            self._meter.use(0, -used, now)
            snapshot = self.decisions.cache.snapshot()
            pods = [self._measured(run, one) for one in run.pods]
            self._meter.started(run.job, now, used, pods, snapshot)
            self._change()
            if run.job.duration < math.inf:
                self._pending += 1
                asyncio.get_running_loop().call_at(now + run.job.duration, self._over, run)
        elif len(run.nodes) == 1 and not self._placer.is_berth:
            asyncio.get_running_loop().call_at(now + PATIENCE_SECONDS, self._give_up, run)

    def _gpus_of(self, run: _Run, uid: str) -> float:
        """The GPUs that a bound pod has got."""
        pod = run.pods[uid]
        if pod.template.claim is None:
            return pod.template.gpus
        return allocated_gpus(self.decisions.cache.snapshot().node_infos[run.nodes[uid]], self._results(pod.claim))

    def _results(self, claim: Claim | None) -> Sequence[Result]:
        """The devices of a pod."""
        stored = self.decisions.cache.store.claims[claim.key] if claim is not None else None
        return stored.allocation.results if stored is not None and stored.allocation is not None else ()

    def _measured(self, run: _Run, uid: str) -> PlacedPod:
        claim, node, snapshot = run.pods[uid].claim, run.nodes[uid], self.decisions.cache.snapshot()
        results, specs, node_info = self._results(claim), [claim.spec] if claim else [], snapshot.node_infos[node]
        possible = possible_devices(node_info, results, specs, snapshot.classes.get, self._masks)
        return placed_pod(node_info, results, possible, knows_links=node not in self._unmeasured)

    def _over(self, run: _Run) -> None:
        """The work of a job is done."""
        self._pending -= 1
        self._end(run)
        self._change()
        self._ended.set()

    def _end(self, run: _Run) -> None:
        """All pods of a job are deleted: it has ended, or gave up."""
        now, job = asyncio.get_running_loop().time(), run.job
        for uid, (pod, claim, template) in run.pods.items():
            self._cluster.scheduler.remove(uid, run.of(template, gangs=self._placer.is_berth))
            self._cluster.api.delete(pod, claim.key if claim is not None else None)
            del self._run_of[uid]
        used = sum(run.gpus.values())
        self._meter.use(-used, 0 if run.runs else -used, now)
        self._waiting_gpus -= job.all_gpus - sum(run.pods[uid].template.pod_gpus for uid in run.nodes)
        del self._runs[job.name]
        self._cluster.scheduler.requeue()

    def _change(self) -> None:
        """A job has arrived, started or ended."""
        self._changed = asyncio.get_running_loop().time()
        for run in self._stuck:
            asyncio.get_running_loop().call_at(self._changed + PATIENCE_SECONDS, self._give_up, run)
        self._stuck.clear()

    def _give_up(self, run: _Run) -> None:
        """The pods of a half placed gang run out of patience. Its controller creates all again.

        In the years in which a file of jobs may have no event, it would do so a million times.
        """
        if run.runs or self._runs.get(run.job.name) is not run:
            return
        if asyncio.get_running_loop().time() > self._changed + _RESTARTS_SECONDS:
            self._stuck.append(run)
        else:
            self._failures += 1
            self._end(run)
            self._create(_Run(run.job, run.attempt + 1))

    def _never_started(self) -> dict[str, str]:
        """The jobs that did not start, each with a reason of its first pod or an equal one, see likely_reason."""
        found, taints, waiting = dict[str, str](), dict[Hashable, str](), self._cluster.scheduler.waiting
        by_shape = {one.shape: one for one in reversed(waiting) if one.reasons}
        for one in waiting:
            job = self._run_of[one.pod.uid].job
            if job.name not in found:
                equal = one if one.reasons else by_shape.get(one.shape)
                why = self._reason(equal) if equal is not None else "was not tried"
                lacks_nics = any(one.nics for one in job.templates) and not self._fleet.has_nics
                found[job.name] = _NO_NICS if lacks_nics else why
                if found[job.name] == FORBIDDEN:
                    found[job.name] += self._taint_of(one.pod, taints)
        return found

    def _reason(self, waiting: Waiting) -> str:
        """The likely reason of a pod without the name of its gang: many gangs may have one reason."""
        group = re.escape(self._run_of[waiting.pod.uid].job.name)
        return re.sub(rf"\bgroup {group}(?![\w.-])", "its group", likely_reason(waiting.reasons))

    def _taint_of(self, pod: Pod, taints: dict[Hashable, str]) -> str:
        """The end of the reason of a pod whose nodes are excluded. `taints` has those of other shapes."""
        run = self._run_of[pod.uid]
        template = run.pods[pod.uid].template
        if template.shape not in taints:
            constrained = with_constraints(pod, run.job.pod(pod.key.name, template, plain=True))
            taints[template.shape] = excluding_taint(constrained, self._nodes.values())
        return taints[template.shape]


# -- several replays, each in a process of its own, at most one for each core ----------------------------------------


@dataclass(frozen=True)
class Task:
    """One replay."""

    fleet: Fleet
    jobs: Sequence[Job]
    placer: Placer
    seed: int
    large: LargeShape | None = None


@dataclass(frozen=True)
class _Result(Generic[T]):
    """What a process ends with."""

    value: T


def run_side_by_side(tasks: Sequence[Task], progress: Callable[[int], None] = lambda _: None) -> list[Outcome]:
    """The outcomes in the order of the tasks. `progress` is told how many more jobs have arrived.

    Raises the first BerthError of a replay, also if its process was killed.
    """
    return measured_side_by_side(tasks, _whole, progress)


def measured_side_by_side(
    tasks: Sequence[Task], measure: Callable[[Task, Outcome], T], progress: Callable[[int], None]
) -> list[T]:
    """What `measure` makes of each outcome, within the process of its replay. See run_side_by_side."""
    results: dict[int, T] = {}
    waiting = list(enumerate(tasks))[::-1]
    running: dict[Connection, int] = {}
    with _processes() as start:
        while waiting or running:
            while waiting and len(running) < (os.cpu_count() or 1):
                number, task = waiting.pop()
                running[start(task, measure)] = number
            for ready in wait(list(running)):
                assert isinstance(ready, Connection), "only pipes are waited for"
                try:
                    found = ready.recv()
                except EOFError:
                    name = tasks[running[ready]].placer.name
                    raise BerthError(f"the process of the replay of {name} ended: was the memory enough?") from None
                if isinstance(found, BaseException):
                    raise found
                if isinstance(found, _Result):
                    results[running.pop(ready)] = found.value
                    ready.close()
                else:
                    progress(found)
    return [results[number] for number in range(len(tasks))]


def _whole(_: Task, outcome: Outcome) -> Outcome:
    return outcome


@contextmanager
def _processes() -> Iterator[Callable[[Task, Callable[[Task, Outcome], object]], Connection]]:
    """Starts processes, and ends those that still run."""
    started = list[BaseProcess]()
    # A fork has the jobs and the fleet at once. Elsewhere it is not safe, and they are sent.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)

    def start(task: Task, measure: Callable[[Task, Outcome], object]) -> Connection:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(task, measure, theirs), daemon=True)
        process.start()
        started.append(process)
        theirs.close()
        return ours

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.join()


def _run(task: Task, measure: Callable[[Task, Outcome], object], pipe: Connection) -> None:
    """The work of a process: numbers of arrived jobs, and then the result or an error."""
    if not structlog.is_configured():  # a process that is no fork: each bind would write a line
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    every, told, parent = max(len(task.jobs) // _PROGRESS_STEPS, 1), 0, os.getppid()

    def progress(arrived: int) -> None:
        nonlocal told
        if arrived - told >= every or arrived == len(task.jobs):
            if os.getppid() != parent:  # it was killed
                raise SystemExit(1)
            pipe.send(arrived - told)
            told = arrived

    try:
        outcome = run_replay(task.fleet, task.jobs, task.placer, task.seed, progress, task.large)
        pipe.send(_Result(measure(task, outcome)))
    except KeyboardInterrupt:
        return
    except BerthError as error:
        pipe.send(BerthError(str(error)))
    except Exception as error:  # noqa: BLE001 - the parent raises it; not all errors can be sent as they are
        pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))
