"""The fleet as rows for the page and as figures for /metrics: nodes with one letter per GPU, groups of pods, claims.

Letters: f free, c closed, h held, u allocated, 1..9 tenths of the memory allocated in shares, d in use without a claim
(drift), x unhealthy. A closed GPU is in no use, but its driver or a rule taints it, or its node takes no pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import NamedTuple

from extender.allocation import FleetBaseline, NodeInfo, Snapshot, blocking_taint
from extender.allocation.nodes import UNUSED
from extender.allocation.nodes.locality import Locality, Nearness, published_locality
from extender.api.fields import Json
from extender.api.gpu_topology import DISTANCES, WHOLE, Graph
from extender.api.nodes import Node
from extender.api.object_meta import ObjectKey
from extender.api.pod_groups import GroupKey, name_on_claims
from extender.api.quantity import NANO
from extender.api.resource_claims import Claim, Reservation, Result
from extender.base.bits import members
from extender.base.text_limits import one_line
from extender.explain.gang_question import reservations_by_pod
from extender.explain.near_misses import claims_of_node
from extender.gangs.gang import gang_minimum
from extender.topology.device_pairs import near_words
from extender.topology.products import link_name
from extender.topology.score_parts import left_over, stranded, unclaimed_bytes
from extender.topology.sets import largest_joined
from extender.vendors import (
    GPU,
    VENDORS,
    amount_of_memory,
    driver_of,
    gpu_identities,
    is_partition,
    product_of,
)

STATES = {"f": "free", "c": "closed", "h": "held", "u": "allocated", "s": "shared", "d": "drifting", "x": "unhealthy"}
CONDITIONS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")  # of taints; a cordon has one, too
_GROUPS = (
    ("zone", "topology.kubernetes.io/zone"),
    ("rack", "topology.kubernetes.io/rack"),
    *(("clique", vendor.clique_label) for vendor in VENDORS if vendor.clique_label),
)
_MAX_NODES = 64  # of one group
_MAX_LARGE = 3  # products that `large_jobs` names
_MAX_OTHERS = 64  # devices of one driver: a node may have 2,048 channels
_MAX_BESIDE = 4  # names of one driver beside a GPU
_DRIVER, _AGENT, _GPU, _ROOT = "driver", "agent", "its GPU", "its PCIe root"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def shown_bits(node_info: NodeInfo) -> list[int]:
    """The device bits of the node's GPUs: those of the fabric in its order, then the others.

    A part of a GPU, such as a MIG device, counts unless the whole GPU is there, too.
    """
    found = node_info.inventory
    shown = [bit for bit in node_info.gpu_bits if bit >= 0]
    others = [
        (first + position, device.device, device.id)
        for first, pool in found.pool_devices
        if driver_of(pool.key.driver).kind == GPU
        for position, device in enumerate(pool.devices)
        if found.reachable >> first + position & 1 and first + position not in node_info.gpu_bits
    ]
    if not others:
        return shown
    whole = set().union(*(gpu_identities(found.devices[bit].device, found.devices[bit].id) for bit in shown))
    for _, device, id_ in others:
        if not is_partition(device, id_.driver):
            whole |= gpu_identities(device, id_)
    return shown + [
        bit
        for bit, device, id_ in others
        if not is_partition(device, id_.driver) or whole.isdisjoint(gpu_identities(device, id_))
    ]


def takes_no_pods(node: Node) -> bool:
    """Whether a node is cordoned, or not well."""
    return any(taint.key.startswith(CONDITIONS) for taint in node.taints)


def closed_devices(node_info: NodeInfo) -> int:
    """Mask of the devices that are tainted, or whose node takes no pods, in use or not.

    A device taint counts even if claims of some team tolerate it. Other taints of nodes do not count.
    """
    if takes_no_pods(node_info.node):
        return -1
    devices = enumerate(node_info.inventory.devices)
    return sum(1 << bit for bit, one in devices if one.device.taints and blocking_taint(one.device, ()) is not None)


def other_devices(node_info: NodeInfo) -> list[Json]:
    """The drivers of other devices than GPUs, as JSON: how many devices the node can use, and how many are free."""
    taken = node_info.busy | closed_devices(node_info)
    return [
        {"driver": driver, "free": (mask & ~taken).bit_count(), "devices": mask.bit_count()}
        for driver, mask in sorted(_other_masks(node_info).items())
    ]


def _other_masks(node_info: NodeInfo) -> dict[str, int]:
    """Driver to mask of its devices that the node can use, without the drivers of GPUs."""
    masks: dict[str, int] = {}
    for first, pool in node_info.inventory.pool_devices:
        driver = pool.key.driver
        if driver_of(driver).kind != GPU:
            mask = ((1 << len(pool.devices)) - 1) << first & node_info.inventory.reachable
            masks[driver] = masks.get(driver, 0) | mask
    return masks


def _letter(node_info: NodeInfo, bit: int, closed: int) -> str:
    """The state letter of a device. The first one counts: held, unhealthy, drift, shared, allocated, closed, free."""
    if node_info.held >> bit & 1:
        return "h"
    if _note(node_info, bit):
        return "x"
    if node_info.drift >> bit & 1:
        return "d"
    used = shared_tenths(node_info, bit)
    if used:
        return str(used)
    if node_info.busy >> bit & 1:
        return "u"
    return "c" if closed >> bit & 1 else "f"


def letters(node_info: NodeInfo) -> str:
    """The state letters of all GPUs, in the order of the fabric."""
    closed = closed_devices(node_info)
    return "".join(_letter(node_info, bit, closed) for bit in shown_bits(node_info))


def shared_tenths(node_info: NodeInfo, bit: int) -> int:
    """Tenths of the memory that shares use, 1..9; 0 for a device without shares."""
    pool_device = node_info.inventory.devices[bit]
    shares = node_info.allocated_state.pools.get(node_info.inventory.pools[pool_device.pool].key, UNUSED).shares.get(
        pool_device.id.device
    )
    if shares is None:
        return 0
    total = node_info.inventory.devices[bit].memory_bytes * NANO
    used = amount_of_memory(shares) or 0
    return min(max(10 * used // total, 1), 9) if total else 1


def product(node_info: NodeInfo) -> str:
    """The product name of the node's GPUs: of most of them, if there are several."""
    if node_info.fabric is not None and node_info.fabric.product and not node_info.fabric.products:
        return node_info.fabric.product
    gpus = [node_info.inventory.devices[bit] for bit in shown_bits(node_info)]
    names = Counter(product_of(gpu.device, gpu.id.driver) or gpu.id.driver for gpu in gpus)
    if names:
        return one_line(names.most_common(1)[0][0])
    return "other devices" if node_info.inventory.devices else "no devices"


def largest_free_set(node_info: NodeInfo) -> int:
    """The size of the largest set of free GPUs that links join in a ring; 0 without one."""
    if node_info.fabric is None:
        return 0
    free = ~(node_info.busy | closed_devices(node_info))
    return largest_joined(node_info.fabric.graph, node_info.positions(free), len(node_info.gpu_bits))


def node_row(node_info: NodeInfo) -> Json:
    """The row of one node in the overview, as JSON."""
    labels = node_info.node.labels
    groups = {name: labels[label] for name, label in _GROUPS if label in labels}
    gpus, others = letters(node_info), other_devices(node_info)
    found = {"name": node_info.node.name, "product": product(node_info), "gpus": gpus}
    largest = largest_free_set(node_info)
    more: Json = {**({"largest": largest} if largest else {}), **({"others": others} if others else {})}
    return {**found, **link_digits(node_info, len(gpus)), **more, **groups}


def link_digits(node_info: NodeInfo, count: int = 0) -> dict[str, str]:
    """The links of GPUs as text: one base-36 digit each, so that the rows of 5,000 nodes stay short.

    The GPUs are those of the fabric that the driver publishes, then others without links: `count`, if it is larger.

    `links` has a digit for each pair of GPUs (0 1, 0 2, … 1 2, …), `switch` one for each GPU. A key is absent if all
    its digits are 0. `link` is what users call one of the links; it is absent without any.
    """
    positions = [position for position, bit in enumerate(node_info.gpu_bits) if bit >= 0]
    if node_info.fabric is None or not positions:
        return {}
    found = _digits_of(node_info.fabric.graph, (*positions, *[-1] * (count - len(positions))))
    return {**found, "link": _link_name(node_info)} if found else {}


def _link_name(node_info: NodeInfo) -> str:
    """What users call a link of the node's GPUs."""
    assert node_info.fabric is not None
    return link_name(node_info.fabric.product, node_info.inventory.whole_gpus[0])


def _digits_of(graph: Graph, positions: tuple[int, ...]) -> dict[str, str]:
    pairs = "".join(_digit(graph.links[a][b]) if b >= 0 else "0" for a, b in combinations(positions, 2))
    switched = "".join(_digit(graph.switch_links[position]) if position >= 0 else "0" for position in positions)
    return {name: text for name, text in (("links", pairs), ("switch", switched)) if text.strip("0")}


def _digit(links: int) -> str:
    return _DIGITS[min(links, len(_DIGITS) - 1)]


def totals(rows: Iterable[Json]) -> dict[str, int]:
    """The number of GPUs by state name."""
    counted: Counter[str] = Counter()
    for found in rows:
        counted.update(found["gpus"])
    named = {name: counted[code] for code, name in STATES.items()}
    named["shared"] = sum(count for code, count in counted.items() if code.isdigit())
    return named


def node_detail(node_info: NodeInfo, snapshot: Snapshot) -> Json:
    """The details of one node, as JSON: devices with claims, localities and memory in bytes, and the GPU topology.

    The GPUs come first; of each other driver at most 64 devices follow, those in use first.
    """
    by_device = _claims_by_device(claims_of_node(node_info, snapshot))
    fabric, closed = node_info.fabric, closed_devices(node_info)
    gpus, devices = shown_bits(node_info), []
    bits = gpus.copy()
    for _, mask in sorted(_other_masks(node_info).items()):
        bits += [*members(mask & node_info.busy), *members(mask & ~node_info.busy)][:_MAX_OTHERS]
    for bit in bits:
        pool_device = node_info.inventory.devices[bit]
        position = node_info.gpu_bits.index(bit) if bit in node_info.gpu_bits else -1
        state = fabric.gpus[position] if fabric is not None and position >= 0 else None
        devices.append(
            {
                "name": pool_device.id.device,
                "driver": pool_device.id.driver,
                "pool": pool_device.id.pool,
                "state": _letter(node_info, bit, closed),
                "memory": node_info.inventory.devices[bit].memory_bytes,
                "live_free": state.memory_free_bytes if state and node_info.agent_is_fresh else None,
                "note": _note(node_info, bit),
                "claims": by_device.get(str(pool_device.id), []),
                "place": _place_row(node_info, bit),
                "beside": _beside(node_info, bit, node_info.busy | closed) if bit in gpus else [],
            }
        )
    found: Json = {**node_row(node_info), "devices": devices, "largest_free_set": largest_free_set(node_info)}
    if fabric is not None:
        found["fabric"] = {
            "source": fabric.source.value,
            "link": _link_name(node_info),
            "links": fabric.graph.links,
            "switch_links": fabric.graph.switch_links,
            "link_gbps": fabric.graph.link_gbps,
            "numa": fabric.graph.numa,
            "distance": [[DISTANCES[d] if d < len(DISTANCES) else "?" for d in line] for line in fabric.graph.distance],
        }
    return found


def claim_rows(snapshot: Snapshot) -> list[Json]:
    """All claims with their devices and pods, as JSON, sorted by key."""
    return [
        {
            "claim": str(key),
            "devices": [str(r.device) for r in claim.allocation.results] if claim.allocation else [],
            "pods": [consumer.name for consumer in claim.reserved_for],
            "ours": claim.is_of_berth,
            "problem": claim.problem,
        }
        for key, claim in sorted(snapshot.claims.items())
    ]


def _note(node_info: NodeInfo, bit: int) -> str:
    if node_info.fabric is None or bit not in node_info.gpu_bits:
        return ""
    state = node_info.fabric.gpus[node_info.gpu_bits.index(bit)]
    return "" if state.healthy else state.note or "unhealthy"


def _claims_by_device(claims: Iterable[Claim]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for claim in claims:
        for result in claim.allocation.results if claim.allocation is not None else ():
            found.setdefault(str(result.device), []).append(str(claim.key))
    return found


# -- the locality of devices: where they are, who says so, and what is free beside a GPU ------------------------------


def _place_row(node_info: NodeInfo, bit: int) -> Json:
    """The PCIe roots and the NUMA nodes of a device, the first one counts, with the source of each, as JSON."""
    pool_device = node_info.inventory.devices[bit]
    own_roots, own_numa = published_locality(pool_device.device, pool_device.id.driver)
    state = None
    if node_info.fabric is not None and bit in node_info.gpu_bits:
        state = node_info.fabric.gpus[node_info.gpu_bits.index(bit)]
    is_of_gpu = is_partition(pool_device.device, pool_device.id.driver)
    roots, roots_from = own_roots, _DRIVER
    if not roots and state is not None and state.pcie_root:
        roots, roots_from = (state.pcie_root,), _AGENT
    elif not roots and is_of_gpu:
        roots, roots_from = _roots_like(node_info, bit), _GPU
    agent = (state.numa,) if state is not None and state.numa is not None else ()
    locality = node_info.locality
    numa = locality.numa[bit] if locality is not None else own_numa + tuple(n for n in agent if n not in own_numa)
    other = _GPU if is_of_gpu else _ROOT
    numa_from = [_DRIVER if node in own_numa else _AGENT if node in agent else other for node in numa]
    return {"roots": list(roots), "roots_from": roots_from if roots else "", "numa": list(numa), "numa_from": numa_from}


def _roots_like(node_info: NodeInfo, bit: int) -> tuple[str, ...]:
    """The PCIe root of another device that is on the same one."""
    locality = node_info.locality
    if locality is None or not locality.roots[bit]:
        return ()
    for other, pool_device in enumerate(node_info.inventory.devices):
        roots, _ = published_locality(pool_device.device, pool_device.id.driver)
        if roots and locality.roots[other] == locality.roots[bit]:
            return roots
    return ()


def _beside(node_info: NodeInfo, bit: int, taken: int) -> list[Json]:
    """The nearest free devices of each other driver, as JSON, without those that are far or not known to be near.

    `taken` is the mask of the devices that are not free.
    """
    locality = node_info.locality
    if locality is None or taken >> bit & 1:
        return []
    driver = locality.kind(bit)
    found = (_nearest(node_info, locality, bit, mask & ~taken) for other, mask in locality.kinds if other != driver)
    return [one for one in found if one is not None]


def _nearest(node_info: NodeInfo, locality: Locality, bit: int, mask: int) -> Json | None:
    free = members(mask)
    best = max((locality.nearness(bit, other) for other in free), default=Nearness.FAR)
    if best <= Nearness.FAR:
        return None
    near = [other for other in free if locality.nearness(bit, other) is best]
    devices = node_info.inventory.devices
    return {
        "driver": devices[near[0]].id.driver,
        "devices": [devices[other].id.device for other in near[:_MAX_BESIDE]],
        "more": len(near[_MAX_BESIDE:]),
        "nearness": near_words(locality, bit, near[0]),
    }


# -- groups of pods: how many members wait, and which GPUs the others have -----------------------------------------


@dataclass(slots=True)
class _Members:
    """The members of a group. `devices` are the devices of those that are not waiting, by node."""

    waiting: int = 0
    held: int = 0  # waiting members with devices held
    minimum: int = 0
    bound: set[str] = field(default_factory=set)  # UIDs
    devices: dict[str, list[Result]] = field(default_factory=dict)


def group_rows(snapshot: Snapshot, most: int, gone: Container[str]) -> list[Json]:
    """At most `most` groups of at least two pods, as JSON: those with waiting pods first, then the largest.

    `gone` are the UIDs of members that are known to terminate.
    """
    by_pod = reservations_by_pod(snapshot)
    waiting = {(key.namespace, key.on_claims): key for key in snapshot.members if key.name}
    size = Counter({name: len(snapshot.members[key]) for name, key in waiting.items()})
    size.update({name: len(claims) for name, claims in snapshot.group_claims.items()})
    names = [name for name, members in size.items() if members > 1]
    found = list[Json]()
    for name in sorted(names, key=lambda name: (name not in waiting, -size[name], name)):
        if len(found) == most:
            break
        group = _members(name, waiting.get(name), snapshot, by_pod)
        group.bound = {uid for uid in group.bound if uid not in gone}
        if group.waiting + len(group.bound) > 1:
            found.append(_group_row(name, group, snapshot))
    return found


def _members(
    name: tuple[str, str], key: GroupKey | None, snapshot: Snapshot, by_pod: dict[str, list[Reservation]]
) -> _Members:
    found = _Members()
    pods = snapshot.members.get(key, {}) if key is not None else {}
    for uid, pod in pods.items():
        found.waiting += 1
        found.held += uid in by_pod
        found.minimum = found.minimum or (gang_minimum(pod.membership, snapshot) if pod.membership else 0)
        for reservation in by_pod.get(uid, ()):
            found.devices.setdefault(reservation.node, []).extend(reservation.results)
    for claim_key, node in snapshot.group_claims.get(name, {}).items():
        _add_claim(found, claim_key, node, snapshot, pods.keys())
    return found


def _add_claim(found: _Members, key: ObjectKey, node: str, snapshot: Snapshot, waiting: Container[str]) -> None:
    claim = snapshot.claims.get(key)
    if claim is None or claim.allocation is None:
        return
    found.bound.update(consumer.uid for consumer in claim.reserved_for if consumer.uid not in waiting)
    found.devices.setdefault(node, []).extend(claim.allocation.results)


def _group_row(name: tuple[str, str], group: _Members, snapshot: Snapshot) -> Json:
    namespace, on_claims = name
    nodes = sorted(group.devices)
    return {
        "group": f"{namespace}/{name_on_claims(on_claims)}",
        "minimum": group.minimum,
        "waiting": group.waiting,
        "held": group.held,
        "bound": len(group.bound),
        "nodes": {node: _shown_gpus(node, group.devices[node], snapshot) for node in nodes[:_MAX_NODES]},
        "more_nodes": len(nodes[_MAX_NODES:]),
    }


def _shown_gpus(node: str, results: Iterable[Result], snapshot: Snapshot) -> list[int]:
    """The devices as indexes of the letters in the row of the node."""
    node_info = snapshot.node_infos.get(node)
    if node_info is None:
        return []
    index = {bit: position for position, bit in enumerate(shown_bits(node_info))}
    bits = {node_info.inventory.index.get(result.device) for result in results}
    return sorted(index[bit] for bit in bits if bit in index)


# -- figures by GPU product ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class FleetStats:
    """Sums over the nodes of one product."""

    gpus: int = 0  # number of GPUs
    free: int = 0  # GPUs without any allocation, share or hold, that are not closed
    closed: int = 0  # GPUs without any, that are tainted or on nodes that take no pods
    drifting: int = 0  # GPUs in use without a claim
    unhealthy: int = 0
    largest_set: int = 0  # largest set of free GPUs that links join on one node
    largest_nodes: int = 0  # nodes with such a set
    clique_gpus: int = 0  # the most joined GPUs of one NVLink clique on nodes whose GPUs are all free
    clique_nodes: int = 0  # these nodes
    unclaimed_bytes: int = 0
    live_free_bytes: int = 0  # sum over GPUs with fresh agent data
    stranded: float = 0.0  # free GPUs or parts of GPUs that the expected request mix cannot use

    def add(self, other: FleetStats) -> None:
        """Add the statistics of one node, but for what differs between equal nodes: `live_free_bytes` and cliques."""
        self.gpus += other.gpus
        self.free += other.free
        self.closed += other.closed
        self.drifting += other.drifting
        self.unhealthy += other.unhealthy
        if other.largest_set > self.largest_set:
            self.largest_set, self.largest_nodes = other.largest_set, 0
        if other.largest_set == self.largest_set:
            self.largest_nodes += other.largest_nodes
        self.unclaimed_bytes += other.unclaimed_bytes
        self.stranded += other.stranded


def fleet_stats(snapshot: Snapshot) -> dict[str, FleetStats]:
    """The statistics by product. Nodes of one allocation signature and the same GPUs share one computation."""
    found: dict[str, FleetStats] = {}
    by_signature: dict[tuple[object, ...], FleetStats] = {}
    cliques: dict[tuple[str, str], list[int]] = {}  # the sets of nodes whose GPUs are all free, by product and clique
    for node_info in snapshot.node_infos.values():
        bits = tuple(shown_bits(node_info))
        if bits:
            key = node_info.state.allocation_signature, bits, takes_no_pods(node_info.node)
            stats = by_signature.get(key)
            if stats is None:
                stats = by_signature[key] = _stats_of(node_info, bits, snapshot)
            total = found.setdefault(product(node_info), FleetStats())
            total.add(stats)
            total.live_free_bytes += _live_free(node_info)
            labels = node_info.node.labels
            clique = next((labels[label] for name, label in _GROUPS if name == "clique" and label in labels), "")
            if clique and stats.free == stats.gpus:
                cliques.setdefault((product(node_info), clique), []).append(stats.largest_set)
    for (name, _), sets in cliques.items():
        most = max((found[name].clique_gpus, found[name].clique_nodes), (sum(sets), len(sets)))
        found[name].clique_gpus, found[name].clique_nodes = most
    return found


class LargeJob(NamedTuple):
    """The largest job of one product that still finds free GPUs that links join."""

    gpus: int
    where: str  # the product and the nodes, in words


def large_jobs(stats: Mapping[str, FleetStats]) -> list[LargeJob]:
    """What the next large job still finds, the largest first: on one node, or on whole nodes of one clique."""
    found = []
    for name, one in stats.items():
        if one.clique_nodes > 1 and one.clique_gpus > one.largest_set:
            where = f"{name} on {one.clique_nodes} nodes of one clique"
            found.append(LargeJob(one.clique_gpus, where))
        elif one.largest_set > 1:
            nodes = "one node" if one.largest_nodes == 1 else f"each of {one.largest_nodes} nodes"
            found.append(LargeJob(one.largest_set, f"{name} on {nodes}"))
    return sorted(found, key=lambda job: (-job.gpus, job.where))[:_MAX_LARGE]


def _stats_of(node_info: NodeInfo, bits: tuple[int, ...], snapshot: Snapshot) -> FleetStats:
    states = letters(node_info)
    return FleetStats(
        gpus=len(bits),
        free=states.count("f"),
        closed=states.count("c"),
        drifting=node_info.drift.bit_count(),
        unhealthy=sum(not gpu.healthy for gpu in node_info.fabric.gpus) if node_info.fabric is not None else 0,
        largest_set=largest_free_set(node_info),
        largest_nodes=1,
        unclaimed_bytes=sum(unclaimed_bytes(node_info, bit) for bit in bits if not node_info.busy >> bit & 1),
        stranded=stranded_gpus(node_info, snapshot.baseline),
    )


def stranded_gpus(node_info: NodeInfo, baseline: FleetBaseline) -> float:
    """The free GPUs, and free parts of shared ones, that an average job of the request mix cannot use."""
    if node_info.fabric is None:
        return 0.0
    unhealthy = sum(1 << bit for bit in node_info.gpu_bits if bit >= 0 and _note(node_info, bit))
    not_free = closed_devices(node_info) | node_info.drift | unhealthy
    usable = replace(node_info, busy=node_info.busy | not_free)
    return stranded(left_over(usable, node_info.partly_used), baseline) / WHOLE


def _live_free(node_info: NodeInfo) -> int:
    if node_info.fabric is None or not node_info.agent_is_fresh:
        return 0
    return sum(gpu.memory_free_bytes or 0 for gpu in node_info.fabric.gpus)
