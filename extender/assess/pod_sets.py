"""The GPUs that each pod has on its node, by its claims: how links join them, and how near its NICs are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from extender.allocation import NodeInfo, Snapshot
from extender.allocation.nodes.locality import Nearness
from extender.api.claim_specs import ClaimSpec
from extender.api.pods import Pod
from extender.api.resource_claims import Result
from extender.api.resource_slices import PoolKey
from extender.assess.cluster_reading import ClusterReading
from extender.base.bits import members, union
from extender.cache import ALL_NODES
from extender.cel.dra import Masks
from extender.explain.fleet_rows import product, shown_bits
from extender.topology.affinity import near_pairs, nearest
from extender.topology.device_pairs import device_pairs, possible_devices
from extender.topology.link_knowledge import Links, links_of
from extender.topology.score_parts import product_gbps
from extender.topology.sets import bandwidth, best_gbps, is_joined
from extender.vendors import GPU, driver_of, is_partition


@dataclass(frozen=True, slots=True)
class PodSet:
    """Devices of one pod on one node. `gpus` are positions in the node's fabric, as a mask; bandwidths are in GB/s."""

    pod: str
    uid: str
    node: str
    product: str
    gpus: int
    names: tuple[str, ...]  # of these GPUs
    links: Links
    joined: bool = False
    gbps: float = 0.0  # of a ring over the GPUs; 0 for one GPU
    best_gbps: float = 0.0  # of the best set of this size, if all GPUs of the node were free
    now_gbps: float = 0.0  # of the best set out of its own GPUs and those that are free now
    near: int = 0  # pairs of a GPU and a NIC that are as near as the node allows
    pairs: int = 0  # of so many GPUs and NICs, the most that can be
    nics: str = ""  # the pairs in words

    @property
    def count(self) -> int:
        return self.gpus.bit_count()

    @property
    def is_several(self) -> bool:
        return self.count > 1

    @property
    def is_below_best(self) -> bool:
        """Whether its node, when all of it was free, could have given faster GPUs, or nearer NICs."""
        return self.near < self.pairs or (self.is_measured and self.gbps < self.best_gbps)

    @property
    def is_measured(self) -> bool:
        """Whether it has several GPUs, and the links between them are known."""
        return self.is_several and self.links is not Links.UNKNOWN


def pod_sets(reading: ClusterReading, snapshot: Snapshot) -> list[PodSet]:
    """The devices of every pod that a claim is reserved for, by node and pod; pods without a whole GPU are left out."""
    pods = {pod.uid: pod for pod in reading.pods}
    names, results, specs, masks = dict[str, str](), dict[str, list[Result]](), dict[str, list[ClaimSpec]](), Masks()
    for key, claim in snapshot.claims.items():
        for consumer in claim.reserved_for if claim.allocation is not None else ():
            assert claim.allocation is not None
            names[consumer.uid] = f"{key.namespace}/{consumer.name}"
            results.setdefault(consumer.uid, []).extend(claim.allocation.results)
            specs.setdefault(consumer.uid, []).append(claim.spec)
    found = list[PodSet]()
    for uid, given in results.items():
        for node in _nodes(pods.get(uid), given, reading, snapshot):
            node_info = snapshot.node_infos[node]
            possible = possible_devices(node_info, given, specs[uid], snapshot.classes.get, masks)
            if (one := _measured(node_info, names[uid], uid, given, possible)) is not None:
                found.append(one)
    return sorted(found, key=lambda one: (one.node, one.pod))


def _nodes(pod: Pod | None, results: Iterable[Result], reading: ClusterReading, snapshot: Snapshot) -> Iterator[str]:
    """The nodes on which the devices are: that of the pod, or of their pools if only the claim is known."""
    if pod is not None and pod.node_name:
        yield from (name for name in (pod.node_name,) if name in snapshot.node_infos)
        return
    devices = (one.device for one in results)
    pools = {PoolKey(one.driver, one.pool) for one in devices if driver_of(one.driver).kind == GPU}
    yield from sorted(reading.cache.slices.nodes_of(pools) & snapshot.node_infos.keys() - {ALL_NODES})


def _measured(node_info: NodeInfo, pod: str, uid: str, results: Iterable[Result], possible: int) -> PodSet | None:
    """The set of a pod on one node; None without a whole GPU there."""
    bits = (node_info.inventory.index.get(one.device) for one in results if not one.share_id and not one.admin_access)
    taken = 0
    for bit in bits:
        taken |= 1 << bit if bit is not None else 0
    gpus, fabric, devices = node_info.positions(taken), node_info.fabric, node_info.inventory.devices
    if fabric is None:
        names = tuple(devices[bit].id.device for bit in members(taken & whole_gpus(node_info)))
        where, mask = node_info.node.name, (1 << len(names)) - 1
        return PodSet(pod, uid, where, product(node_info), mask, names, Links.UNKNOWN) if names else None
    if not gpus:
        return None
    names = tuple(devices[bit].id.device for bit in members(node_info.devices(gpus)))
    name, links = product(node_info), links_of(node_info)
    if gpus.bit_count() == 1 and node_info.locality is None:
        return PodSet(pod, uid, node_info.node.name, name, gpus, names, links)
    near, pairs = near_pairs(node_info.locality, taken, possible)
    count, graph = gpus.bit_count(), fabric.graph
    gbps = bandwidth(graph, gpus) if count > 1 else 0.0
    now = max(best_gbps(graph, gpus | node_info.positions(~node_info.busy), count), gbps) if count > 1 else 0.0
    return PodSet(
        pod,
        uid,
        node_info.node.name,
        name,
        gpus,
        names,
        links,
        is_joined(graph, gpus),
        gbps,
        max(product_gbps(node_info, gpus), gbps) if count > 1 else 0.0,
        now,
        near,
        pairs,
        device_pairs(node_info, taken, lambda _: None).text() if pairs else "",
    )


def whole_gpus(node_info: NodeInfo) -> int:
    """The GPUs of a node that are no parts, as a mask of its devices: also those that nothing tells apart."""
    devices = ((bit, node_info.inventory.devices[bit]) for bit in shown_bits(node_info))
    return union([1 << bit for bit, one in devices if not is_partition(one.device, one.id.driver)])


def says_locality(node_info: NodeInfo) -> bool:
    """Whether the locality of GPUs and of other devices of the node can be compared."""
    locality = node_info.locality
    return locality is not None and any(one > Nearness.UNKNOWN for one in nearest(locality).values())


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Figures of pods with several GPUs. Those whose links are not known are only counted."""

    pods: int
    measured: int
    joined: int
    gbps: float  # the sum of the measured ones
    best_gbps: float

    @property
    def share(self) -> float | None:
        """The share of the best bandwidth of their nodes; None if none is measured."""
        return self.gbps / self.best_gbps if self.best_gbps else None


def bandwidth_of(sets: Iterable[PodSet]) -> Bandwidth:
    """The sums over the pods with several GPUs."""
    several = [one for one in sets if one.is_several]
    measured = [one for one in several if one.is_measured]
    return Bandwidth(
        len(several),
        len(measured),
        sum(one.joined for one in measured),
        sum(one.gbps for one in measured),
        sum(one.best_gbps for one in measured),
    )
