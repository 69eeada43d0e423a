"""The same pods once more: a replay of the running pods on the emptied nodes, by Berth and without it.

Of pods of a device plugin it is not known which GPUs they have today, so they are replayed only where none has claims.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from extender.allocation import Snapshot
from extender.api.fields import Json
from extender.api.label_domains import LabelDomains, label_domains
from extender.api.pods import Pod
from extender.assess.cluster_reading import ClusterReading, claims_of
from extender.assess.gang_spread import GangSpread
from extender.assess.pod_jobs import by_age, by_gang, gang_job, gang_of, pod_job
from extender.assess.pod_sets import PodSet
from extender.base.berth_errors import BerthError
from extender.policy import Policy
from extender.replay import Job, Outcome, Task, fleet_of, placer_of, run_side_by_side, several
from extender.replay.emptied_nodes import plugin_slices
from extender.scheduling import path_labels

_MAX_NODES = 768  # that are replayed: the work grows with the product of nodes and pods
_SEED = 1


@dataclass(frozen=True, slots=True)
class Figures:
    """What one placement gave. Bandwidths in GB/s; None where there is nothing to measure."""

    placement: str
    started: int  # of `jobs`
    joined: float | None  # share of the pods with several GPUs
    gbps: float | None  # mean of their rings
    share: float | None  # of the best of their nodes
    nics: float | None  # share of the pairs of GPU and NIC that are as near as the node allows
    domains: float | None  # of a gang, in the mean
    several: int = 0  # pods with several GPUs, of which `joined` is a share
    joined_pods: int = 0


@dataclass(slots=True)
class Replayed:
    """The replay. `rows` begin with what the cluster has today; `problem` says why there are none."""

    nodes: int = 0
    of_nodes: int = 0
    pods: int = 0
    jobs: int = 0
    left_out: int = 0  # pods on these nodes that cannot be replayed
    wide_gangs: int = 0  # gangs over more domains than they need that are not replayed: some pods are on other nodes
    unlevelled_gangs: int = 0  # gangs on several nodes of which no label says how near they are
    rows: list[Figures] = field(default_factory=list)
    problem: str = ""
    of_plugin: bool = False  # the pods are those of a device plugin


def replayed_pods(
    reading: ClusterReading,
    snapshot: Snapshot,
    sets: Sequence[PodSet],
    gangs: Sequence[GangSpread],
    policy: Policy,
    unknown: Container[str],
) -> Replayed:
    """Replay the pods of the fleet, or of a part of it around its gangs, without the `unknown` nodes."""
    found = Replayed(0, len(snapshot.node_infos), problem=_unread(reading))
    if found.problem:
        return found
    try:
        plugin = {} if _has_claims(reading) else _of_plugins(reading)
        known = {
            name: info.node.labels
            for name, info in snapshot.node_infos.items()
            if (info.fabric is not None or name in plugin) and name not in unknown
        }
        nodes = _sample(known, _nodes_of(gangs, reading), policy.group_levels)
        pods, found.left_out = _pods_on(nodes, reading, snapshot, plugin)
        gang_jobs = (gang_job(job for _, job in members) for members in by_gang(pods, reading))
        jobs = [replace(job, name=f"job-{number}", arrival=float(number)) for number, job in enumerate(gang_jobs)]
        found.pods, found.jobs, found.nodes, found.of_plugin = len(pods), len(jobs), len(nodes), bool(plugin)
        if not jobs:
            found.problem = (
                "no running pod has whole GPUs by known claims, or of a device plugin and of a known product"
            )
            return found
        fleet = fleet_of((), _fleet(nodes, reading, snapshot, plugin, [pod for pod, _ in pods]))
        tasks = [Task(fleet, jobs, placer_of(one, policy), _SEED) for one in ("berth", "first fit", "emptiest node")]
        outcomes = run_side_by_side(tasks)
    except (BerthError, RuntimeError, ValueError) as error:
        found.problem = str(error)
        return found
    chosen = {pod.uid for pod, _ in pods}
    today = [one for one in sets if one.uid in chosen and one.is_measured]
    inside = [one for one in gangs if one.uids <= chosen]
    found.unlevelled_gangs = sum(one.may_be_near for one in gangs)
    found.wide_gangs = sum(one.domains > one.fewest and not one.uids <= chosen for one in gangs)
    pairs = [(one.near, one.pairs) for one in sets if one.uid in chosen and one.pairs]
    nics = sum(near for near, _ in pairs) / sum(count for _, count in pairs) if pairs else None
    found.rows = [_today(today, inside, len(jobs), nics)]
    found.rows += map(_figures, outcomes)
    return found


def _today(sets: Sequence[PodSet], gangs: Sequence[GangSpread], jobs: int, nics: float | None) -> Figures:
    """Measured as a replay does it. `sets` are those of several GPUs whose links are known."""
    domains = sum(one.domains for one in gangs) / len(gangs) if gangs else None
    if not sets:
        return Figures("today", jobs, None, None, None, nics, domains)
    gbps, best = sum(one.gbps for one in sets), sum(one.best_gbps for one in sets)
    joined = sum(one.joined for one in sets)
    share = gbps / best if best else None
    return Figures("today", jobs, joined / len(sets), gbps / len(sets), share, nics, domains, len(sets), joined)


def _figures(outcome: Outcome) -> Figures:
    pods = chain.from_iterable(job.pods for job in outcome.started_jobs.values())
    several = [pod.is_joined for pod in pods if pod.gpus > 1 and pod.knows_links]
    return Figures(
        outcome.placement,
        outcome.started,
        _known(outcome.joined),
        _known(outcome.ring_gbps),
        _known(outcome.ring),
        _known(outcome.nic),
        _known(outcome.domains),
        len(several),
        sum(several),
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _unread(reading: ClusterReading) -> str:
    """Why the pods cannot be placed once more; '' if all kinds were read that decide where they go."""
    may_have_claims = _has_claims(reading) or "Pod" in reading.unread
    kinds = ("ResourceClaim", "Pod", "Node", "ResourceSlice", "DeviceClass") if may_have_claims else ("Node",)
    return next((f"no {several(kind)} were read" for kind in kinds if kind in reading.unread), "")


def _has_claims(reading: ClusterReading) -> bool:
    return any(pod.node_name and claims_of(pod) for pod in reading.pods)


def _of_plugins(reading: ClusterReading) -> Mapping[str, Json]:
    """Node to the slice of the GPUs that a device plugin offers there. Raises WireError."""
    return {one["spec"]["nodeName"]: one for one in plugin_slices(reading.fleet, Counter())}


def _nodes_of(gangs: Iterable[GangSpread], reading: ClusterReading) -> Iterator[frozenset[str]]:
    """The nodes of each gang, those first that are over the most domains more than they need."""
    node_of = {pod.uid: pod.node_name for pod in reading.pods}
    for gang in sorted(gangs, key=lambda one: (one.fewest - one.domains, -one.gpus, one.gang)):
        yield frozenset(node_of[uid] for uid in gang.uids if uid in node_of)


def _sample(
    known: Mapping[str, Mapping[str, str]], gangs: Iterable[frozenset[str]], levels: Sequence[str]
) -> frozenset[str]:
    """At most _MAX_NODES of the known nodes, which have these labels.

    First the nearest domains of the nodes of each gang, whole: a gang with one pod elsewhere is not replayed, and the
    widest would always be out. Then every so many-th other domain, so that the mix of nodes stays, and what fits.
    """
    domains = [label_domains(known.items(), path_labels(level, levels)) for level in levels]
    found = set[str]()
    for nodes in gangs:
        around = {other for name in nodes for other in _domain(name, domains)}
        if known.keys() >= around and len(found | around) <= _MAX_NODES:
            found |= around
    others = list(dict.fromkeys(_domain(name, domains[::-1]) for name in sorted(known.keys() - found)))
    every = max(math.ceil((len(known) - len(found)) / max(_MAX_NODES - len(found), 1)), 1)
    for names in (*others[::every], *others):
        if len(found | names) <= _MAX_NODES:
            found |= names
    return frozenset(found)


def _domain(name: str, domains: Iterable[LabelDomains]) -> frozenset[str]:
    """The nodes of the first domain of a node that is not too large; it alone without one."""
    own = (one.nodes[one.name_of[name]] for one in domains if name in one.name_of)
    return next((nodes for nodes in own if len(nodes) <= _MAX_NODES), frozenset([name]))


def _pods_on(
    nodes: frozenset[str], reading: ClusterReading, snapshot: Snapshot, plugin: Mapping[str, Json]
) -> tuple[list[tuple[Pod, Job]], int]:
    """(the pods on these nodes that are replayed, by age, each with its job; how many are left out).

    Left out are those without claims of their own, whose specs are known, or GPUs of a replayed `plugin`, see
    _of_plugins; and those of a gang of which others are elsewhere.
    """
    found, left_out = list[tuple[Pod, Job]](), 0
    elsewhere = {gang_of(pod, reading) for pod in reading.pods if pod.node_name and pod.node_name not in nodes} - {None}
    for pod in by_age(reading.pods):
        if pod.node_name not in nodes or pod.deleting:
            continue
        is_alone = gang_of(pod, reading) in elsewhere or not (claims_of(pod) or pod.node_name in plugin)
        job = None if is_alone else pod_job(pod, reading, snapshot)
        if job is None:
            left_out += 1
        else:
            found.append((pod, job))
    return found, left_out


def _fleet(
    nodes: frozenset[str],
    reading: ClusterReading,
    snapshot: Snapshot,
    plugin: Mapping[str, Json],
    replayed: Sequence[Pod],
) -> Iterator[Json]:
    """The nodes and their slices, all classes, and what pods that are not replayed use."""
    uids, claims = {pod.uid for pod in replayed}, {key for pod in replayed for key in claims_of(pod)}
    yield from (slice_ for name, slice_ in plugin.items() if name in nodes)
    for obj in reading.fleet:
        spec, kind = obj.get("spec") or {}, obj["kind"]
        name = obj["metadata"]["name"] if kind == "Node" else spec.get("nodeName") if kind == "ResourceSlice" else ""
        if not name or name in nodes:
            yield obj
    for key, claim in snapshot.claims.items():
        if claim.allocation is not None and key not in claims:
            yield reading.claims[key]
    for obj in (*reading.others, *reading.requests.values()):
        if (obj.get("metadata") or {}).get("uid") not in uids:
            yield obj
