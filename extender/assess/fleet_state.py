"""The GPUs of a fleet: by product and state, those that no typical job can use, and joined sets that pods break."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from extender.allocation import NodeInfo, Snapshot
from extender.api.label_domains import label_domains
from extender.api.pods import Pod
from extender.assess.cluster_reading import ClusterReading, Unread
from extender.assess.pod_sets import PodSet, says_locality, whole_gpus
from extender.base.bits import members
from extender.explain.fleet_rows import (
    STATES,
    closed_devices,
    largest_free_set,
    letters,
    product,
    shown_bits,
    stranded_gpus,
    takes_no_pods,
)
from extender.scheduling import path_labels
from extender.topology.link_knowledge import Links, is_equal_for_all, links_of
from extender.topology.sets import joined_sets
from extender.vendors import driver_of, is_partition, parent_of
from extender.vendors.node_labels import PLUGIN_RESOURCES, plugin_product

_MAX_BREAKERS = 20  # pods that are named
_MAX_MOVED = 2  # more pods break a set together: to move them costs too much


@dataclass(slots=True)
class ProductState:
    """The GPUs of one product. A device plugin's GPUs are `counted`: how many are in use is known, not which.

    For `closed` see fleet_rows.
    """

    product: str
    nodes: int = 0
    gpus: int = 0
    free: int = 0
    closed: int = 0
    unknown: int = 0  # free or not: beside pods whose claims were not read, or of a device plugin without any pods
    allocated: int = 0
    shared: int = 0
    unhealthy: int = 0
    drifting: int = 0
    stranded: float = 0.0
    largest_set: int | None = 0  # of free GPUs on one node that links join; None: which ones links join is not known
    counted: bool = False
    parts: bool = False  # they are no GPUs, but MIG devices or partitions of GPUs that are not offered as a whole
    cards: int | None = None  # of parts: these GPUs; None if some part does not name its GPU


@dataclass(slots=True)
class BrokenSets:
    """Sets of GPUs of one product that links join: on a board, or by a bridge. Only those of known links."""

    product: str
    whole: int = 0  # all free
    used: int = 0  # more than half in use
    broken: int = 0  # half or less in use
    closed: int = 0  # half or less in use, but not all others can be used
    free: int = 0  # GPUs in broken sets


@dataclass(frozen=True, slots=True)
class Breaker:
    """A pod that keeps a joined set from being whole, alone or with one other pod."""

    pod: str
    node: str
    gpus: int  # of both in the set
    of: int  # GPUs of the set
    beside: str = ""  # the other pod


@dataclass(slots=True)
class BrokenDomains:
    """Domains of nodes with GPUs, such as racks, by one label."""

    label: str
    whole: int = 0  # all GPUs free
    full: int = 0  # none free
    broken: int = 0  # some are free, and pods that one node could hold have others
    used: int = 0  # some are free, and all others belong to gangs over several nodes
    closed: int = 0  # none in use, but not all can be used
    free: int = 0  # GPUs in broken domains


@dataclass(slots=True)
class NodeFacts:
    """What is known of the links of the nodes of one product."""

    product: str
    links: Links
    equal: bool  # whether every set of one size is as good as any other
    readable: bool  # whether Berth's agent can read the links
    nodes: int = 0
    with_nics: int = 0  # nodes where the places of GPUs and NICs can be compared


@dataclass(slots=True)
class FleetState:
    """All of it."""

    products: list[ProductState] = field(default_factory=list)
    sets: list[BrokenSets] = field(default_factory=list)
    breakers: list[Breaker] = field(default_factory=list)
    domains: list[BrokenDomains] = field(default_factory=list)
    facts: list[NodeFacts] = field(default_factory=list)


def with_parted_gpus_in_use(snapshot: Snapshot) -> Snapshot:
    """The snapshot in which a GPU is in use if claims have partitions of it: no claim can get the whole GPU."""
    infos = snapshot.node_infos
    parted = {name: replace(info, busy=info.busy | gpus) for name, info in infos.items() if (gpus := _parted(info))}
    return replace(snapshot, node_infos={**infos, **parted})


def _parted(node_info: NodeInfo) -> int:
    """Mask of the whole GPUs for which allocated devices leave too little of the counters."""
    found, inventory = 0, node_info.inventory
    for bit in members(whole_gpus(node_info)) if any(pool.counter_sets for pool in inventory.pools) else ():
        left = node_info.allocated_state.left(inventory.pools[inventory.devices[bit].pool])
        uses = inventory.devices[bit].device.consumes
        if any(left.get((use.counter_set, name), amount) < amount for use in uses for name, amount in use.counters):
            found |= 1 << bit
    return found


def fleet_state(
    reading: ClusterReading,
    snapshot: Snapshot,
    users: Mapping[str, Sequence[PodSet]],
    spread: frozenset[str],
    levels: Sequence[str],
    unread: Unread,
) -> FleetState:
    """The state of the fleet. `spread` are the UIDs of the pods of gangs that have several nodes."""
    closed = {name: closed_devices(node_info) for name, node_info in snapshot.node_infos.items()}
    found = FleetState(_products(reading, snapshot, unread))
    sets, facts = dict[str, BrokenSets](), dict[tuple[str, Links, bool], NodeFacts]()
    for name, node_info in snapshot.node_infos.items():
        if node_info.fabric is None:
            continue
        links, equal = links_of(node_info), is_equal_for_all(node_info.fabric)
        driver, _ = node_info.inventory.whole_gpus
        new = NodeFacts(product(node_info), links, equal, driver_of(driver).agent)
        fact = facts.setdefault((new.product, links, equal), new)
        fact.nodes += 1
        fact.with_nics += says_locality(node_info)
        if links in (Links.AGENT, Links.BOARD) and "ResourceClaim" not in reading.unread and name not in unread.nodes:
            _add_sets(node_info, closed[name], users.get(name, ()), sets, found.breakers)
    found.sets = sorted(sets.values(), key=lambda one: one.product)
    found.breakers = sorted(found.breakers, key=lambda one: (one.gpus, -one.of, one.node))[:_MAX_BREAKERS]
    found.facts = sorted(facts.values(), key=lambda one: (one.product, one.links))
    if not reading.unread & {"Pod", "ResourceClaim"}:  # pods say which of them are gangs
        found.domains = list(_domains(snapshot, closed, users, spread, levels, unread))
    return found


# -- products --------------------------------------------------------------------------------------------------------


def _products(reading: ClusterReading, snapshot: Snapshot, unread: Unread) -> list[ProductState]:
    found: dict[str, ProductState] = {}
    for name, node_info in snapshot.node_infos.items():
        if not shown_bits(node_info):
            continue
        _count(found, node_info, is_known=name not in unread.nodes)
        if node_info.fabric is None or name in unread.nodes:
            continue
        one = found[product(node_info)]
        one.stranded += stranded_gpus(node_info, snapshot.baseline)
        if links_of(node_info) is Links.UNKNOWN:
            one.largest_set = None
        elif one.largest_set is not None:
            one.largest_set = max(one.largest_set, largest_free_set(node_info))
    return [*sorted(found.values(), key=lambda one: one.product), *_counted(reading, snapshot)]


def _count(found: dict[str, ProductState], node_info: NodeInfo, *, is_known: bool) -> None:
    name, devices, cards = product(node_info), node_info.inventory.devices, dict[str, set[str]]()
    for bit, code in zip(shown_bits(node_info), letters(node_info), strict=True):
        parts = is_partition(devices[bit].device, devices[bit].id.driver)
        label = f"{name} (parts)" if parts else name
        one = found.setdefault(label, ProductState(label, parts=parts, cards=0 if parts else None))
        one.nodes += label not in cards
        cards.setdefault(label, set()).add(parent_of(devices[bit].device, devices[bit].id.driver))
        state = "shared" if code.isdigit() else STATES[code]
        if state in ("free", "closed") and not is_known:
            state = "unknown"
        one.gpus += 1
        setattr(one, state, getattr(one, state) + 1)
    for label, names in cards.items():
        one = found[label]
        one.cards = None if one.cards is None or "" in names else one.cards + len(names)


def _counted(reading: ClusterReading, snapshot: Snapshot) -> list[ProductState]:
    """The GPUs of device plugins: as many as the nodes offer, less what the pods of the node request."""
    asked = Counter[tuple[str, str]]()
    for pod in reading.pods:
        if pod.node_name:
            for name, amount in plugin_requests(pod).items():
                asked[pod.node_name, name] += amount
    found: dict[str, ProductState] = {}
    for node, offered in reading.offered.items():
        node_info = snapshot.node_infos.get(node)
        for name, amount in offered.items():
            label = plugin_row(name, node, snapshot)
            one = found.setdefault(label, ProductState(label, counted=True))
            used = min(asked[node, name], amount)
            one.nodes += 1
            one.gpus += amount
            one.allocated += used
            if node in reading.unread_on or "Pod" in reading.unread:
                one.unknown += amount - used
            elif node_info is not None and takes_no_pods(node_info.node):
                one.closed += amount - used
            else:
                one.free += amount - used
    return [found[name] for name in sorted(found)]


def plugin_row(resource: str, node: str, snapshot: Snapshot) -> str:
    """What a row calls the GPUs that a node offers as a resource of a device plugin."""
    node_info = snapshot.node_infos.get(node)
    labels = node_info.node.labels if node_info is not None else {}
    return f"{plugin_product(resource, labels) or resource} (device plugin)"


def plugin_requests(pod: Pod) -> Counter[str]:
    """The GPUs that a pod requests of a device plugin; none if DRA provides them."""
    asked = extended_requests(pod) if not pod.extended_claim else {}
    return Counter({name: asked[name] for name in PLUGIN_RESOURCES if asked.get(name)})


def extended_requests(pod: Pod) -> Counter[str]:
    """The extended resources that a pod requests.

    An init container has ended before the others begin, but for a sidecar: the larger one counts.
    """
    together, alone = Counter[str](), Counter[str]()  # at the end, and at most while an init container runs
    for container in pod.containers:
        for name, amount in container.requests:
            if container.init and not container.sidecar:
                alone[name] = max(alone[name], together[name] + amount)
            else:
                together[name] += amount
    return +(together | alone)


# -- sets and domains ------------------------------------------------------------------------------------------------


def _add_sets(
    node_info: NodeInfo,
    closed: int,
    users: Sequence[PodSet],
    sets: dict[str, BrokenSets],
    breakers: list[Breaker],
) -> None:
    """Count the joined sets of a node, and name the pods that break them."""
    assert node_info.fabric is not None
    used, shut = node_info.positions(node_info.busy | node_info.partly_used), node_info.positions(closed)
    for gpus in joined_sets(node_info.fabric.graph.interconnect, node_info.positions(-1)):
        if gpus.bit_count() < 2:  # noqa: PLR2004 - one GPU is no set
            continue
        one = sets.setdefault(product(node_info), BrokenSets(product(node_info)))
        taken = (gpus & used).bit_count()
        if taken > gpus.bit_count() - taken:
            one.used += 1
        elif gpus & shut & ~used:
            one.closed += 1
        elif not taken:
            one.whole += 1
        else:
            one.broken += 1
            one.free += gpus.bit_count() - taken
            inside = [(user.pod, (user.gpus & gpus).bit_count()) for user in users if user.gpus & gpus]
            if 0 < len(inside) <= _MAX_MOVED and taken == sum(count for _, count in inside):
                name, beside = node_info.node.name, inside[1][0] if inside[1:] else ""
                breakers.append(Breaker(inside[0][0], name, taken, gpus.bit_count(), beside))


def _domains(
    snapshot: Snapshot,
    closed: Mapping[str, int],
    users: Mapping[str, Sequence[PodSet]],
    spread: frozenset[str],
    levels: Sequence[str],
    unread: Unread,
) -> Iterable[BrokenDomains]:
    """The domains of each level that nodes with GPUs have, without those of which not all is known."""
    with_gpus = {name: info for name, info in snapshot.node_infos.items() if info.fabric is not None}
    for level in levels:
        labels = ((name, info.node.labels) for name, info in with_gpus.items())
        domains = label_domains(labels, path_labels(level, levels)).nodes
        found = BrokenDomains(level)
        for nodes in domains.values():
            if not unread.nodes.isdisjoint(nodes):
                continue
            infos = [(with_gpus[name], closed[name]) for name in nodes]
            gpus = sum(info.positions(-1).bit_count() for info, _ in infos)
            taken = sum(info.positions(info.busy).bit_count() for info, _ in infos)
            free = sum(info.positions(~info.busy & ~shut).bit_count() for info, shut in infos)
            small = any(user.uid not in spread for name in nodes for user in users.get(name, ()))
            found.whole += free == gpus
            found.closed += not taken and free < gpus
            found.full += bool(taken) and not free
            if taken and free:
                found.broken += small
                found.used += not small
                found.free += free if small else 0
        if domains:
            yield found
