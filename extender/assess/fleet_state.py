"""The GPUs of a fleet: by product and state, those that no typical job can use, and joined sets that pods break."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from extender.allocation import NodeInfo, Snapshot
from extender.api.label_domains import label_domains
from extender.api.pods import Pod
from extender.assess.cluster_reading import ClusterReading
from extender.assess.pod_sets import PodSet, is_equal_for_all, says_places
from extender.explain.fleet_rows import STATES, fleet_stats, letters, product
from extender.scheduling import path_labels
from extender.topology.link_knowledge import Links, links_of
from extender.topology.ring import joined_sets
from extender.vendors import PLUGIN_RESOURCES

_MAX_BREAKERS = 20  # pods that are named
_MAX_MOVED = 2  # more pods break a set together: to move them costs too much


@dataclass(slots=True)
class ProductState:
    """The GPUs of one product. A device plugin's GPUs are `counted`: how many are in use is known, not which."""

    product: str
    nodes: int = 0
    gpus: int = 0
    free: int = 0
    allocated: int = 0
    shared: int = 0
    unhealthy: int = 0
    drifting: int = 0
    stranded: float = 0.0
    largest_set: int = 0  # of free GPUs on one node that links join
    counted: bool = False


@dataclass(slots=True)
class BrokenSets:
    """Sets of GPUs of one product that links join: on a board, or by a bridge. Only those of known links."""

    product: str
    whole: int = 0  # all free
    used: int = 0  # more than half in use
    broken: int = 0  # half or less in use
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
    free: int = 0  # GPUs in broken domains


@dataclass(slots=True)
class NodeFacts:
    """What is known of the links of the nodes of one product."""

    product: str
    links: Links
    equal: bool  # whether every set of one size is as good as any other
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


def fleet_state(
    reading: ClusterReading,
    snapshot: Snapshot,
    users: Mapping[str, Sequence[PodSet]],
    spread: frozenset[str],
    levels: Sequence[str],
) -> FleetState:
    """The state of the fleet. `spread` are the UIDs of the pods of gangs that have several nodes."""
    found = FleetState(_products(reading, snapshot))
    sets, facts = dict[str, BrokenSets](), dict[tuple[str, Links, bool], NodeFacts]()
    for name, node_info in snapshot.node_infos.items():
        if node_info.fabric is None:
            continue
        links, equal = links_of(node_info), is_equal_for_all(node_info.fabric)
        fact = facts.setdefault((product(node_info), links, equal), NodeFacts(product(node_info), links, equal))
        fact.nodes += 1
        fact.with_nics += says_places(node_info)
        if links in (Links.AGENT, Links.BOARD) and reading.knows_claims:
            _add_sets(node_info, users.get(name, ()), sets, found.breakers)
    found.sets = sorted(sets.values(), key=lambda one: one.product)
    found.breakers = sorted(found.breakers, key=lambda one: (one.gpus, -one.of, one.node))[:_MAX_BREAKERS]
    found.facts = sorted(facts.values(), key=lambda one: (one.product, one.links))
    if reading.knows_claims:
        found.domains = list(_domains(snapshot, users, spread, levels))
    return found


# -- products -----------------------------------------------------------------------------------------------------


def _products(reading: ClusterReading, snapshot: Snapshot) -> list[ProductState]:
    found: dict[str, ProductState] = {}
    for node_info in snapshot.node_infos.values():
        states = letters(node_info)
        if states:
            one = found.setdefault(product(node_info), ProductState(product(node_info)))
            one.nodes += 1
            _count(one, states)
    for name, stats in fleet_stats(snapshot).items():
        found[name].stranded, found[name].largest_set = stats.stranded, stats.largest_set
    return [*sorted(found.values(), key=lambda one: one.product), *_counted(reading, snapshot)]


def _count(one: ProductState, states: str) -> None:
    counts = Counter("s" if state.isdigit() else state for state in states)
    one.gpus += len(states)
    for code, name in STATES.items():
        if name != "held":  # a snapshot file has no holds
            setattr(one, name, getattr(one, name) + counts[code])


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
        labels = node_info.node.labels if node_info is not None else {}
        for name, amount in offered.items():
            label = f"{labels.get(PLUGIN_RESOURCES[name], name)} (device plugin)"
            one = found.setdefault(label, ProductState(label, counted=True))
            used = min(asked[node, name], amount)
            one.nodes += 1
            one.gpus += amount
            one.allocated += used
            one.free += amount - used
    return [found[name] for name in sorted(found)]


def plugin_requests(pod: Pod) -> Counter[str]:
    """The GPUs that a pod requests of a device plugin; none if DRA provides them."""
    found = Counter[str]()
    for container in pod.containers if not pod.extended_claim else ():
        for name, amount in container.requests:
            if name in PLUGIN_RESOURCES and not container.init:
                found[name] += amount
    return found


# -- sets and domains ---------------------------------------------------------------------------------------------


def _add_sets(
    node_info: NodeInfo, users: Sequence[PodSet], sets: dict[str, BrokenSets], breakers: list[Breaker]
) -> None:
    """Count the joined sets of a node, and name the pods that break them."""
    assert node_info.fabric is not None
    used = node_info.positions(node_info.busy | node_info.in_part_use)
    for gpus in joined_sets(node_info.fabric.graph.interconnect, node_info.positions(-1)):
        if gpus.bit_count() < 2:  # noqa: PLR2004 - one GPU is no set
            continue
        one = sets.setdefault(product(node_info), BrokenSets(product(node_info)))
        free = (gpus & ~used).bit_count()
        taken = gpus.bit_count() - free
        one.whole += not taken
        one.used += taken > free
        if 0 < taken <= free:
            one.broken += 1
            one.free += free
            inside = [(user.pod, (user.gpus & gpus).bit_count()) for user in users if user.gpus & gpus]
            if 0 < len(inside) <= _MAX_MOVED and taken == sum(count for _, count in inside):
                name, beside = node_info.node.name, inside[1][0] if inside[1:] else ""
                breakers.append(Breaker(inside[0][0], name, taken, gpus.bit_count(), beside))


def _domains(
    snapshot: Snapshot, users: Mapping[str, Sequence[PodSet]], spread: frozenset[str], levels: Sequence[str]
) -> Iterable[BrokenDomains]:
    """The domains of each level that nodes with GPUs have."""
    with_gpus = {name: info for name, info in snapshot.node_infos.items() if info.fabric is not None}
    for level in levels:
        labels = ((name, info.node.labels) for name, info in with_gpus.items())
        domains = label_domains(labels, path_labels(level, levels)).nodes
        found = BrokenDomains(level)
        for nodes in domains.values():
            infos = [with_gpus[name] for name in nodes]
            gpus = sum(info.positions(-1).bit_count() for info in infos)
            free = sum(info.positions(~info.busy).bit_count() for info in infos)
            small = any(user.uid not in spread for name in nodes for user in users.get(name, ()))
            found.whole += free == gpus
            found.full += not free
            if 0 < free < gpus:
                found.broken += small
                found.used += not small
                found.free += free if small else 0
        if domains:
            yield found
