"""How far the pods of each running gang are spread: over how many domains, and how few would have been enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from extender.allocation import Snapshot
from extender.api.foreign_gangs import ForeignGang
from extender.api.label_domains import label_domains
from extender.api.pod_groups import GroupKey
from extender.api.pods import Pod
from extender.assess.cluster_reading import ClusterReading
from extender.assess.fleet_state import plugin_requests, plugin_row
from extender.assess.pod_sets import PodSet, whole_gpus
from extender.explain.fleet_rows import product
from extender.scheduling import path_labels

NODE = "node"


@dataclass(frozen=True, slots=True)
class GangSpread:
    """The pods with GPUs of a gang that run. `level` is the nearest label that all their nodes have, or `node`."""

    gang: str
    source: str  # the label or field that names the gang
    pods: int
    gpus: int
    nodes: int
    level: str
    domains: int
    fewest: int  # domains of this level whose nodes hold the pods, if all GPUs were free
    uids: frozenset[str]

    @property
    def may_be_near(self) -> bool:
        """Whether it is not known how near its nodes are: no label says it."""
        return self.level == NODE and self.nodes > 1


class _Share(NamedTuple):
    """GPUs of one product that a pod has on its node."""

    uid: str
    node: str
    product: str
    gpus: int


def gang_spreads(
    pods: Iterable[Pod], sets: Iterable[PodSet], reading: ClusterReading, snapshot: Snapshot, levels: Sequence[str]
) -> list[GangSpread]:
    """The gangs of at least two pods with GPUs, those with the most GPUs first.

    Pods of a job without a group (see JOB_KINDS) count as one, too: `source` says so.
    """
    found: dict[GroupKey | ForeignGang, list[_Share]] = {}
    grouped = {pod.uid: (key, pod) for pod in pods if pod.node_name and (key := gang_key(pod, reading)) is not None}
    shares = [_Share(one.uid, one.node, one.product, one.count) for one in sets]
    shares += [
        _Share(uid, pod.node_name, plugin_row(name, pod.node_name, snapshot), amount)
        for uid, (_, pod) in grouped.items()
        for name, amount in plugin_requests(pod).items()
        if name in reading.offered.get(pod.node_name, ())
    ]
    for one in shares:
        if one.uid in grouped:
            found.setdefault(grouped[one.uid][0], []).append(one)
    gangs = {key: members for key, members in found.items() if len({one.uid for one in members}) > 1}
    if not gangs:
        return []
    domains = {level: _domains(reading, snapshot, level, levels) for level in (*levels, NODE)}
    spreads = [_spread(key, members, domains) for key, members in gangs.items()]
    return sorted(spreads, key=lambda one: (-one.gpus, one.gang))


def group_of(pod: Pod) -> GroupKey | None:
    """The group that a pod names, or the job that it is of; None if it has none."""
    if pod.membership is not None and pod.membership.key.name:
        return pod.membership.key
    return pod.jobs[0] if pod.jobs else None


def gang_key(pod: Pod, reading: ClusterReading) -> GroupKey | ForeignGang | None:
    """The group of a pod, its gang of another scheduler, or the job that it is of; None if it has none."""
    group = group_of(pod)
    return group if group is not None and pod.membership is not None else reading.foreign_gangs.get(pod.uid, group)


Sizes = Counter[tuple[str, int]]
"""GPUs of one product, to the number of pods that need so many, or of nodes that have so many."""
Room = frozenset[tuple[tuple[str, int], int]]
"""The Sizes of the nodes of a domain."""


@dataclass(frozen=True, slots=True)
class _Domains:
    of: Mapping[str, str]  # node to domain
    alike: Mapping[Room, int]  # how many domains have these nodes


def _domains(reading: ClusterReading, snapshot: Snapshot, level: str, levels: Sequence[str]) -> _Domains:
    infos = snapshot.node_infos
    if level == NODE:
        of = {name: name for name in infos}
    else:
        labels = ((name, info.node.labels) for name, info in infos.items())
        of = dict(label_domains(labels, path_labels(level, levels)).name_of)
    nodes = dict[str, Sizes]()
    for name, domain in of.items():
        sizes = nodes.setdefault(domain, Counter())
        sizes[product(infos[name]), whole_gpus(infos[name]).bit_count()] += 1
        for resource, amount in reading.offered.get(name, {}).items():
            sizes[plugin_row(resource, name, snapshot), amount] += 1
    return _Domains(of, Counter(frozenset(sizes.items()) for sizes in nodes.values()))


def _spread(key: GroupKey | ForeignGang, members: Sequence[_Share], domains: Mapping[str, _Domains]) -> GangSpread:
    nodes = {one.node for one in members}
    level = next(level for level, one in domains.items() if all(node in one.of for node in nodes))
    one, gpus = domains[level], sum(member.gpus for member in members)
    now = len({one.of[node] for node in nodes})
    fewest = fewest_domains(Counter((member.product, member.gpus) for member in members), one.alike)
    return GangSpread(
        str(key),
        key.key if isinstance(key, ForeignGang) else key.source.value,
        len({member.uid for member in members}),
        gpus,
        len(nodes),
        level,
        now,
        min(fewest, now),  # for pods of several sizes it is only a good choice
        frozenset(member.uid for member in members),
    )


def fewest_domains(pods: Sizes, domains: Mapping[Room, int]) -> int:
    """How few of so many domains hold the pods, each on one node: the fewest for pods of one size, else few of them.

    If all together do not hold them, those that hold some.
    """
    total, left, found = _gpus(pods), pods, 0
    for room in sorted(domains, key=lambda room: total - _gpus(_beside(pods, room)), reverse=True):
        for _ in range(domains[room]):
            if not left or (rest := _beside(left, room)) == left:
                break
            left, found = rest, found + 1
    return found


def _gpus(pods: Sizes) -> int:
    return sum(size * count for (_, size), count in pods.items())


def _beside(pods: Sizes, room: Room) -> Sizes:
    """The pods that find no place on these nodes. The largest ones go first, each to the smallest node with room."""
    free, left = Counter(dict(room)), pods.copy()
    for name, size in sorted(pods, key=lambda one: -one[1]):
        while left[name, size] and (fitting := [of for of in +free if of[0] == name and of[1] >= size]):
            gpus = min(fitting)[1]
            free[name, gpus] -= 1
            free[name, gpus - size] += 1
            left[name, size] -= 1
    return +left
