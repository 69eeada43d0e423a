"""The choice of a node's fabric: from the agent, else from the product table, else from slice attributes, else flat."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from extender.api.gpu_topology import UNKNOWN_DISTANCE, Fabric, GpuState, Graph, Source
from extender.api.resource_slices import Device, Slice, newest_slices
from extender.base.text_limits import one_line
from extender.topology.agent_slices import DRIVER, MAX_NODE_GPUS, MAX_PROBLEMS, read_fabric
from extender.topology.products import flat_graph, limits_of, pcie_gbps, pcie_generation, usual_graph
from extender.vendors import first_attribute, numa_attributes, product_of

# PXB, NODE and SYS of DISTANCES: the levels that pcieRoot and numaNode can distinguish.
_SAME_ROOT, _SAME_NUMA, _ACROSS = 2, 4, 5


def agent_slice(slices: Collection[Slice], node: str) -> tuple[Slice | None, tuple[str, ...]]:
    """(slice of the node's agent or None, reasons why other agent slices for the node are ignored).

    The agent names the pool after its node. If there are several such slices, the newest generation counts.
    """
    own = newest_slices(slice_ for slice_ in slices if slice_.pool.name == node)
    problems = tuple(
        f"slice {slice_.name}: pool {slice_.pool.name!r} is not named after the node"
        for slice_ in slices
        if slice_.pool.name != node
    )
    return max(own, key=lambda slice_: slice_.name, default=None), problems[:MAX_PROBLEMS]


def live_fabric(
    live: Slice,
    driver: str,
    gpus: Mapping[str, Device],
    published_by: Callable[[str], str],
    parents: Collection[str] = (),
) -> tuple[Fabric | None, tuple[str, ...]]:
    """(fabric that the agent of a node publishes, or None if it is not credible; problems as sentences).

    `gpus` are the whole GPUs of the node that `driver` publishes, by identity, and `parents` the UUIDs of those that it
    publishes in parts. `published_by` returns the name of the other node whose driver publishes a UUID, or ''. It is
    not asked about `gpus`: else a driver could void the data of the agents of other nodes.
    """
    if live.problem:
        return None, (live.problem,)
    found, problems = read_fabric(live.devices)
    if found is None:
        return None, problems
    for uuid in found.uuids:
        if uuid not in gpus and (node := published_by(uuid)):
            return None, (f"uuid {uuid!r} is published by the driver of node {node}",)
    known = gpus.keys() | set(parents)
    if known.isdisjoint(found.uuids):
        return None, problems
    graph = _with_numa(found.graph, found.uuids, _silent_about_numa(live), driver, gpus)
    graph, excess = _within_limits(graph, found.uuids, driver, gpus)
    return replace(found, graph=graph), (*excess, *problems)[:MAX_PROBLEMS]


def choose_fabric(live: Fabric | None, driver: str, gpus: Mapping[str, Device]) -> Fabric | None:
    """The fabric of a node with these whole GPUs of a driver, by identity, or None if it has none.

    `live` comes from the agent.
    """
    names = [product_of(gpu, driver) for gpu in gpus.values()]
    is_one = len({*names}) <= 1
    if live is not None:
        known = dict(zip(gpus, map(one_line, names), strict=True))
        products = () if is_one else tuple(known.get(uuid, live.product) for uuid in live.uuids)
        return replace(live, products=products)
    if not gpus:
        return None
    # A ring is as slow as its slowest GPU.
    product = min(names, key=lambda name: (pcie_generation(name, driver), name))
    graph, source = usual_graph(product, len(gpus), driver) if is_one else None, Source.TABLE
    if graph is None:
        graph, source = _from_attributes([*gpus.values()], product, driver), Source.SLICE
    if graph is None:
        graph, source = flat_graph(product, len(gpus), driver), Source.FLAT
    graph = _with_numa(graph, tuple(gpus), gpus.keys(), driver, gpus)
    products = () if is_one else tuple(map(one_line, names))
    return Fabric(graph, tuple(gpus), _unknown(len(gpus)), source, product=one_line(product), products=products)


@lru_cache(maxsize=MAX_NODE_GPUS)
def _unknown(count: int) -> tuple[GpuState, ...]:
    """The states of so many GPUs without an agent: one object for all nodes."""
    return (GpuState(),) * count


def _within_limits(
    graph: Graph, uuids: Sequence[str], driver: str, gpus: Mapping[str, Device]
) -> tuple[Graph, tuple[str, ...]]:
    """(graph with the rates that the driver's products allow, problems)."""
    products = {uuid: product_of(gpu, driver) for uuid, gpu in gpus.items()}
    rate, pcie, problems = graph.link_gbps, graph.pcie_gbps, []
    for position, uuid in enumerate(uuids):
        if uuid not in products:
            continue
        product, limits = products[uuid], limits_of(products[uuid], driver)
        links = sum(graph.links[position]) + graph.switch_links[position]
        if links * rate > limits.link_gbps:
            most = f"{product!r} has at most {limits.link_gbps:.0f} GB/s"
            problems.append(f"GPU {position} has {links} NVLinks of {rate:.1f} GB/s: {most}")
            rate = limits.link_gbps / links
        if pcie > pcie_gbps(limits.pcie):
            pcie = pcie_gbps(limits.pcie)
            problems.append(f"GPU {position} has a faster PCIe: {product!r} has at most {pcie:.0f} GB/s")
    return (replace(graph, link_gbps=rate, pcie_gbps=pcie) if problems else graph), tuple(problems)


def _silent_about_numa(live: Slice) -> frozenset[str]:
    """UUIDs of the GPUs for which the agent publishes no NUMA node."""
    silent = (gpu for gpu in live.devices if f"{DRIVER}/numaNode" not in gpu.attributes)
    return frozenset((first_attribute(gpu, (f"{DRIVER}/uuid",), str) or "") for gpu in silent)


def _with_numa(
    graph: Graph, uuids: Sequence[str], silent: Container[str], driver: str, gpus: Mapping[str, Device]
) -> Graph:
    """The graph, with the NUMA nodes of the GPUs in `silent` from the driver's slices."""
    found = ((uuid, _numa_node(gpu, driver)) for uuid, gpu in gpus.items())
    by_uuid = {uuid: node for uuid, node in found if node is not None}
    known = zip(uuids, graph.numa, strict=True)
    numa = tuple(by_uuid.get(uuid, node) if uuid in silent else node for uuid, node in known)
    return graph if numa == graph.numa else replace(graph, numa=numa)


def _numa_node(gpu: Device, driver: str) -> int | None:
    """The NUMA node that the driver publishes. Linux says -1 for unknown, and some drivers publish it."""
    node = first_attribute(gpu, numa_attributes(driver), int)
    return node if node is not None and node >= 0 else None


def _from_attributes(gpus: Sequence[Device], product: str, driver: str) -> Graph | None:
    """A graph with PCIe distances from pcieRoot and numaNode; None without them. No driver publishes NVLink."""
    roots = [(first_attribute(gpu, ("resource.kubernetes.io/pcieRoot",), str) or "") for gpu in gpus]
    numa = [_numa_node(gpu, driver) for gpu in gpus]
    if not any(roots) and all(node is None for node in numa):
        return None
    size = range(len(gpus))
    distance = tuple(tuple(_distance(roots, numa, i, j) for j in size) for i in size)
    flat = flat_graph(product, len(gpus), driver)
    return replace(flat, distance=distance, numa=tuple(node or 0 for node in numa))


def _distance(roots: list[str], numa: list[int | None], i: int, j: int) -> int:
    if i == j:
        return 0
    if roots[i] and roots[i] == roots[j]:
        return _SAME_ROOT
    if numa[i] is None or numa[j] is None:
        return UNKNOWN_DISTANCE
    return _SAME_NUMA if numa[i] == numa[j] else _ACROSS
