"""How far the pods of each running gang are spread: over how many domains, and how few would have been enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from extender.allocation import Snapshot
from extender.api.label_domains import label_domains
from extender.api.pod_groups import GroupKey
from extender.api.pods import Pod
from extender.assess.cluster_reading import ClusterReading
from extender.assess.fleet_state import plugin_product, plugin_requests
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
    fewest: int  # domains of this level that have so many GPUs of the product, if all were free
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
    found: dict[GroupKey, list[_Share]] = {}
    grouped = {pod.uid: (key, pod) for pod in pods if pod.node_name and (key := group_of(pod)) is not None}
    shares = [_Share(one.uid, one.node, one.product, one.count) for one in sets]
    shares += [
        _Share(uid, pod.node_name, plugin_product(name, pod.node_name, snapshot), amount)
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


@dataclass(frozen=True, slots=True)
class _Domains:
    of: Mapping[str, str]  # node to domain
    gpus: Mapping[str, Counter[str]]  # by product: GPUs of each domain


def _domains(reading: ClusterReading, snapshot: Snapshot, level: str, levels: Sequence[str]) -> _Domains:
    infos = snapshot.node_infos
    if level == NODE:
        of = {name: name for name in infos}
    else:
        labels = ((name, info.node.labels) for name, info in infos.items())
        of = dict(label_domains(labels, path_labels(level, levels)).name_of)
    gpus = dict[str, Counter[str]]()
    for name, domain in of.items():
        gpus.setdefault(product(infos[name]), Counter())[domain] += whole_gpus(infos[name]).bit_count()
        for resource, amount in reading.offered.get(name, {}).items():
            gpus.setdefault(plugin_product(resource, name, snapshot), Counter())[domain] += amount
    return _Domains(of, gpus)


def _spread(key: GroupKey, members: Sequence[_Share], domains: Mapping[str, _Domains]) -> GangSpread:
    nodes = {one.node for one in members}
    level = next(level for level, one in domains.items() if all(node in one.of for node in nodes))
    one, gpus = domains[level], sum(member.gpus for member in members)
    sizes, left, fewest = Counter[str](), gpus, 0
    for name in {member.product for member in members}:
        sizes.update(one.gpus[name])
    for _, size in sizes.most_common():
        if left <= 0:
            break
        left -= size
        fewest += 1
    return GangSpread(
        str(key),
        key.source.value,
        len({member.uid for member in members}),
        gpus,
        len(nodes),
        level,
        len({one.of[node] for node in nodes}),
        fewest,
        frozenset(member.uid for member in members),
    )
