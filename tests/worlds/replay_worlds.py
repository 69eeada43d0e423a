"""Replays for tests: jobs, fleets of machine files, and what the sandbox makes of the same jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from extender.replay import Job, Outcome, Task, fleet_of, placer_of, run_replay
from extender.replay.placers import Rule
from extender.sandbox import Cluster, MachineNode, parse_nodes
from extender.sandbox.apiserver.versioned_store import ObjectStore
from tests.worlds.eventually import eventually
from tests.worlds.running_berth import served

T = TypeVar("T")
Placed = Mapping[str, tuple[str, tuple[str, ...]]]
"""By pod: its node and its devices, as driver/pool/device."""


def replayed(jobs: Sequence[Job], nodes: str, rule: Rule = "berth", seed: int = 1) -> Outcome:
    """The outcome of a replay on nodes of machine files."""
    return run_replay(fleet_of(parse_nodes(nodes), jobs=jobs), jobs, placer_of(rule), seed)


def in_turn(tasks: Sequence[Task], measure: Callable[[Task, Outcome], T], progress: Callable[[int], None]) -> list[T]:
    """As measured_side_by_side, in this process."""
    found = list[T]()
    for task in tasks:
        told = [0]

        def tell(arrived: int, told: list[int] = told) -> None:
            progress(arrived - told[-1])
            told.append(arrived)

        outcome = run_replay(task.fleet, task.jobs, task.placer, task.seed, tell, task.large)
        found.append(measure(task, outcome))
    return found


def placed(outcome: Outcome, jobs: Sequence[Job]) -> Placed:
    """The placement of each pod of a replay."""
    return {
        name: (pod.node, tuple(sorted(pod.devices)))
        for job in jobs
        if job.name in outcome.started_jobs
        for (name, _), pod in zip(job.named_pods(), outcome.started_jobs[job.name].pods, strict=True)
    }


async def placed_in_sandbox(jobs: Sequence[Job], nodes: Sequence[MachineNode]) -> Placed:
    """What `berth run` makes of the jobs, one after the other: its API server, its scheduler and serve over HTTP."""
    cluster = Cluster(bookmark_seconds=0.5)
    for node in nodes:
        cluster.add_node(node.name, node.machine, node.labels)
    async with served(cluster) as (_, scheduler):
        for job in jobs:
            for name, template in job.named_pods():
                cluster.apply(template.claim_object(name))
            for name, template in job.named_pods():
                cluster.apply(job.pod(name, template, plain=False))
            names = [name for name, _ in job.named_pods()]
            await eventually(lambda names=names: _bound(cluster.store, names), scheduler.pending)
        return {name: _placement(cluster.store, name) for job in jobs for name, _ in job.named_pods()}


def _bound(store: ObjectStore, pods: Sequence[str]) -> bool:
    return all(((store.get("pods", ("default", pod)) or {}).get("spec") or {}).get("nodeName") for pod in pods)


def _placement(store: ObjectStore, pod: str) -> tuple[str, tuple[str, ...]]:
    bound, claim = store.get("pods", ("default", pod)), store.get("resourceclaims", ("default", pod))
    assert bound is not None
    assert claim is not None
    results = claim["status"]["allocation"]["devices"]["results"]
    return bound["spec"]["nodeName"], tuple(sorted(f"{r['driver']}/{r['pool']}/{r['device']}" for r in results))
