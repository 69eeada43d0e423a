"""`berth fabric`: shows the links of a machine or node, and the best set of a given number of GPUs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from extender.api.fields import Json
from extender.api.gpu_topology import DISTANCES, UNKNOWN_DISTANCE, Fabric, Graph
from extender.api.resource_slices import SliceDecoder
from extender.base.berth_errors import WireError
from extender.base.bits import members
from extender.base.text_limits import counted, one_line, shown
from extender.cli.cluster_objects import dump_of, list_items
from extender.cli.options import Context, Kubeconfig, Output, parse_node
from extender.cli.output import Screen, say_json
from extender.cluster import ApiClient, NotFound, kubeconfigs, load_credentials
from extender.files import is_missing
from extender.sandbox import carried_machines, fabric_slice, load_machine
from extender.topology.agent_slices import DRIVER, fabric_of
from extender.topology.products import link_name
from extender.topology.sets import bandwidth, is_joined, links_inside, quality, ranked
from extender.vendors import driver_of

_SLICES = "/apis/resource.k8s.io/v1/resourceslices"


def fabric_command(
    target: Annotated[
        str, typer.Argument(help="A machine file, the name of a built-in machine, or a node of the cluster.")
    ],
    count: Annotated[int, typer.Option(help="How many GPUs to choose.", min=1, max=16)] = 2,
    free: Annotated[str | None, typer.Option(help="Positions of the free GPUs, e.g. 0,1,4. Default: all.")] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    output: Output = "table",
) -> None:
    """Show how the GPUs are joined and which set of them is best.

    Example: berth fabric dgx1-v100 --count 4 --free 0,1,2,3,5
    """
    found = _machine(target) if kubeconfig is None and not context else None
    name, fabric, source = found or asyncio.run(_node(target, kubeconfig, context))
    mask = _mask(free, fabric.graph.size)
    sets = ranked(fabric.graph, mask, count)
    if not sets:
        raise WireError("--count", f"asks for {count} GPUs where {mask.bit_count()} are free")
    best = sets[0]
    if output == "json":
        answer = {
            "machine": name,
            "count": count,
            "set": members(best),
            "ring_gbps": bandwidth(fabric.graph, best),
            "source": source,
        }
        say_json(answer)
        return
    console, link = Screen(soft_wrap=True), link_name(fabric.product, "")
    console.print(_matrix(name, fabric, source, link))
    console.print(f"best {count}: {_describe(fabric.graph, link, best)}")
    if len(sets) > 1:
        console.print(f"next: {_describe(fabric.graph, link, sets[1])}; {_why(fabric.graph, best, sets[1], mask)}")


def _machine(target: str) -> tuple[str, Fabric, str] | None:
    """The machine; None if the target may be a node. Raises WireError."""
    if not target:
        raise WireError("TARGET", "must not be empty")
    machine = carried_machines().get(target) if is_missing(Path(target)) else load_machine(Path(target))
    if machine is None:
        if kubeconfigs(None):
            return None
        raise WireError(one_line(target), "is neither a file nor a built-in machine, and no kubeconfig names a cluster")
    fabric = fabric_of(SliceDecoder().decode(fabric_slice("machine", machine)).devices)
    if fabric is None:
        raise WireError(target, "describes no consistent fabric")
    return machine.name, fabric, "machine file"


async def _node(node: str, kubeconfig: Path | None, context: str) -> tuple[str, Fabric, str]:
    parse_node(node, "TARGET")
    async with ApiClient(load_credentials(kubeconfig, context)) as client:
        try:
            obj = await client.get(f"{_SLICES}/{DRIVER}-{node}")
        except NotFound:
            of_node = {"fieldSelector": f"spec.nodeName={node}"}
            return _without_agent(node, await list_items(client, _SLICES, "ResourceSliceList", of_node))
    fabric = fabric_of(SliceDecoder().decode(obj).devices)
    if fabric is None:
        raise WireError(node, "has a fabric slice that is stale or contradicts itself")
    return node, fabric, fabric.source.value


def _without_agent(node: str, slices: list[Json]) -> tuple[str, Fabric, str]:
    """What the drivers' slices and the vendor files say. Raises WireError for GPUs that the agent should read."""
    if not slices:
        raise WireError(node, "no ResourceSlice of the cluster names a node of this name")
    if any(driver_of(str(slice_["spec"].get("driver"))).agent for slice_ in slices):
        raise WireError(node, "has no fabric slice; check that the agent runs there")
    nameless = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}
    fabric = dump_of([nameless, *slices], node).snapshot().node_infos[node].fabric
    if fabric is None:
        raise WireError(node, "has no whole GPU in the slices of a driver that a vendor file describes")
    return node, fabric, fabric.source.value


def _mask(free: str | None, size: int) -> int:
    if free is None:
        return (1 << size) - 1
    positions = free.split(",")
    known = {str(position): position for position in range(size)}
    bad = next((p for p in positions if p.strip() not in known), None)
    if bad is not None:
        raise WireError("--free", f"{shown(bad)} is not a position below {size}")
    return sum(1 << p for p in {known[p.strip()] for p in positions})


def _matrix(name: str, fabric: Fabric, source: str, link: str) -> Table:
    graph = fabric.graph
    heads = [Column(head, justify="right") for head in ("", *map(str, range(graph.size)), "NUMA")]
    table = Table(*heads, title=f"{name}: {fabric.product} ({source})", title_justify="left")
    for i, gpu in enumerate(fabric.gpus):
        numa = "?" if gpu.numa is None else str(gpu.numa)
        table.add_row(str(i), *(_cell(graph, link, i, j) for j in range(graph.size)), numa)
    return table


def _cell(graph: Graph, link: str, i: int, j: int) -> str:
    """Links as `nvidia-smi topo -m` writes them, such as NV4; else the PCIe distance."""
    if i == j:
        return "X"
    links = graph.links[i][j] or min(graph.switch_links[i], graph.switch_links[j])
    if links:
        return f"{link.split(maxsplit=1)[0].removesuffix('Link')}{links}"
    distance = graph.distance[i][j]
    return DISTANCES[distance] if distance < UNKNOWN_DISTANCE else "?"


def _describe(graph: Graph, link: str, mask: int) -> str:
    joined = f"{counted(links_inside(graph, mask), link)}" if is_joined(graph, mask) else "PCIe"
    return f"GPUs {', '.join(map(str, members(mask)))} by {joined}, predicted ring {bandwidth(graph, mask):.0f} GB/s"


def _why(graph: Graph, best: int, second: int, free: int) -> str:
    a, b = quality(graph, best, free), quality(graph, second, free)
    words = (
        "a slower ring",
        "fewer links inside",
        "a longer PCIe path",
        "more NUMA nodes",
        "fewer links left for others",
    )
    return next((word for word, x, y in zip(words, a, b, strict=False) if x != y), "equal; the lower numbers win")
