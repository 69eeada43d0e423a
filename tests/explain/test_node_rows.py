"""The fleet's counts: GPUs of all vendors and their parts, and apart from them the devices of other drivers."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from extender.allocation import NodeInfo
from extender.cli.cluster_objects import dump_of
from extender.cli.fleet_commands import _node_table, _summary, _top
from extender.cli.output import table_screen
from extender.explain.fleet_rows import fleet_stats, node_detail, node_row, totals
from tests.worlds.assessed_clusters import assessed, objects_of, snapshot_file

Json = dict[str, Any]
A100, MI300 = "NVIDIA A100-SXM4-40GB", "AMD_Instinct_MI300X_OAM"
NVIDIA, AMD, CHANNELS = "gpu.nvidia.com", "gpu.amd.com", "compute-domain.nvidia.com"


def device(name: str, counters: str = "", **attributes: str | int) -> Json:
    """`counters` is the counter set that the device draws on. An attribute `pci` is its bus address."""
    if "pci" in attributes:
        attributes["resource.kubernetes.io/pciBusID"] = attributes.pop("pci")
    values = {key: {"int" if isinstance(value, int) else "string": value} for key, value in attributes.items()}
    consumes = [{"counterSet": counters, "counters": {"memory": {"value": "1Gi"}}}] if counters else []
    return {"name": name, "attributes": values, "consumesCounters": consumes}


def whole(number: int, **more: Any) -> Json:
    """A GPU of NVIDIA."""
    about = {"uuid": f"GPU-{number}", "productName": A100, "pci": f"0000:1{number}:00.0"}
    return device(f"gpu-{number}", **{**about, "type": "gpu", **more})


def part(number: int, slot: int, **more: Any) -> Json:
    """A MIG device of the GPU with this number."""
    about = {"uuid": f"MIG-{number}-{slot}", "parentUUID": f"GPU-{number}", "productName": A100, "type": "mig"}
    return device(f"gpu-{number}-mig-{slot}", **{**about, **more})


CHANNEL = {CHANNELS: [device("channel-0", type="channel", id=0), device("daemon-0", type="daemon", id=0)]}
MIG = [part(1, slot) for slot in range(7)]
NODES: dict[str, tuple[dict[str, list[Json]], tuple[str, int], dict[str, list[int]]]] = {
    # devices by driver; product and number of GPUs; other devices
    "cpus": ({"dra.cpu": [device(f"cpu{i}", cpuID=i) for i in range(16)]}, ("other devices", 0), {"dra.cpu": [16, 16]}),
    "channels": (CHANNEL, ("other devices", 0), {CHANNELS: [2, 2]}),
    "NICs": ({"dra.net": [device("mlx5", ifName="eth1")]}, ("other devices", 0), {"dra.net": [1, 1]}),
    "GPUs and channels": ({NVIDIA: [whole(0), whole(1)], **CHANNEL}, (A100, 2), {CHANNELS: [2, 2]}),
    "MIG devices": ({NVIDIA: MIG, **CHANNEL}, (A100, 7), {CHANNELS: [2, 2]}),
    "MIG devices and a GPU": ({NVIDIA: [whole(0), *MIG]}, (A100, 8), {}),
    "GPUs, or their parts": ({NVIDIA: [whole(0), whole(1), *MIG, part(0, 0)]}, (A100, 2), {}),
    "two products": ({NVIDIA: [whole(0), whole(1), whole(2, productName="Tesla T4")]}, (A100, 3), {}),
    "a GPU, or its placements": (
        {NVIDIA: [whole(0, counters="gpu-0"), device("p-0", "gpu-0", type="mig"), device("p-1", "gpu-0", type="mig")]},
        (A100, 1),
        {},
    ),
    "a GPU, or its passthrough": ({NVIDIA: [whole(0), whole(0, type="vfio") | {"name": "gpu-vfio-0"}]}, (A100, 1), {}),
    "passthrough": ({NVIDIA: [whole(0, type="vfio"), whole(1, type="vfio")]}, (A100, 2), {}),
    "AMD": (
        {AMD: [device(f"gpu-{i}-128", type="amdgpu", productName=MI300, pciAddr=f"0000:0{i}:00.0") for i in range(8)]},
        (MI300, 8),
        {},
    ),
    "AMD's partitions": (
        {AMD: [device(f"gpu-0-{i}", type="amdgpu-partition", productName=MI300, pciAddr="0:1") for i in range(8)]},
        (MI300, 8),
        {},
    ),
    "Intel": ({"gpu.intel.com": [device("g", model="Flex 170"), device("h", model="Flex 170")]}, ("Flex 170", 2), {}),
    "Gaudi": ({"gaudi.intel.com": [device("g", model="Gaudi2")]}, ("Gaudi2", 1), {}),
    "an unknown vendor": ({"gpu.example.com": [device("g", model="M1")]}, ("M1", 1), {}),
    "no product": ({"gpu.example.com": [device("g")]}, ("gpu.example.com", 1), {}),
    "an unknown driver": ({"fpga.example.com": [device("f")]}, ("other devices", 0), {"fpga.example.com": [1, 1]}),
    "nothing": ({}, ("no devices", 0), {}),
}


def objects(name: str, slices: dict[str, list[Json]]) -> list[Json]:
    """The node and its slices; counter sets in slices of their own."""
    found: list[Json] = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}, "status": {}}]
    number = count()
    for driver, devices in slices.items():
        sets = sorted({use["counterSet"] for one in devices for use in one["consumesCounters"]})
        counters = [{"name": one, "counters": {"memory": {"value": "4Gi"}}} for one in sets]
        parts = [{"devices": devices}, *([{"sharedCounters": counters}] if counters else [])]
        for content in parts:
            pool = {"name": name, "generation": 1, "resourceSliceCount": len(parts)}
            spec = {"driver": driver, "nodeName": name, "pool": pool, **content}
            metadata = {"name": f"{name}-{next(number)}".lower().replace(" ", "-")}
            found.append(
                {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
            )
    return found


def node_info(name: str) -> NodeInfo:
    return dump_of(objects(name, NODES[name][0])).snapshot().node_infos[name]


def detail(slices: dict[str, list[Json]]) -> Json:
    snapshot = dump_of(objects("n", slices)).snapshot()
    return node_detail(snapshot.node_infos["n"], snapshot)


@pytest.mark.parametrize("name", NODES)
def test_the_row_of_a_node_counts_gpus_apart_from_other_devices(name: str) -> None:
    _, (product, gpus), others = NODES[name]
    found = node_row(node_info(name))
    assert (found["product"], found["gpus"]) == (product, "f" * gpus)
    assert {one["driver"]: [one["free"], one["devices"]] for one in found.get("others", ())} == others
    devices = detail(NODES[name][0])["devices"]
    assert [one["driver"] in others for one in devices] == [False] * gpus + [True] * (len(devices) - gpus)
    assert len(devices) == gpus + sum(every for _, every in others.values())


def test_the_figures_of_the_fleet_count_gpus_only() -> None:
    snapshot = dump_of(one for name, (slices, _, _) in NODES.items() for one in objects(name, slices)).snapshot()
    wanted: dict[str, int] = {}
    for _, (product, gpus), _ in NODES.values():
        wanted[product] = wanted.get(product, 0) + gpus
    assert {p: (s.gpus, s.free) for p, s in fleet_stats(snapshot).items()} == {
        p: (n, n) for p, n in wanted.items() if n
    }
    rows = [node_row(found) for found in snapshot.node_infos.values()]
    assert totals(rows)["free"] == sum(wanted.values())
    screen = table_screen()
    with screen.capture() as shown:
        screen.print(_node_table(rows, wide=True), _summary(rows))
        screen.print(_top({"nodes": rows, "waiting": 0, "pending": [], "decisions": []}))
    assert f"{len(NODES)} nodes: {sum(wanted.values())} free" in shown.get()
    assert "dra.cpu" in shown.get()
    table = shown.get().partition("largest free on one node")[2]
    assert "other devices" not in table


def test_a_node_with_many_channels_lists_a_few() -> None:
    slices = {CHANNELS: [device(f"channel-{i}", type="channel", id=i) for i in range(128)], NVIDIA: [whole(0)]}
    found = detail(slices)
    assert (len(found["devices"]), found["others"][0]["devices"]) == (65, 128)


def test_links_are_those_of_the_shown_gpus() -> None:
    """A node with eight A100 and MIG devices of another one has no link between them."""
    name, devices = "a", {NVIDIA: [*(whole(n) for n in range(8)), part(8, 0), part(8, 1)]}
    found = node_row(dump_of(objects(name, devices)).snapshot().node_infos[name])
    assert (found["gpus"], found["switch"]) == ("f" * 10, "c" * 8 + "00")


def test_closed_gpus_are_free_nowhere(tmp_path: Path) -> None:
    """GPUs of a cordoned node, and those with a taint: on the page, in the commands, the metrics and the assessment."""
    h100 = {"machine": "hgx-h100-8"}
    nodes = {"cordoned": {**h100, "cordoned": True}, "tainted": {**h100, "tainted": [0, 1]}, "open": h100}
    given = objects_of({"nodes": nodes, "pods": [{"name": "p", "node": "cordoned", "gpus": [0]}]})
    snapshot = dump_of(given).snapshot()
    rows = [node_row(found) for found in snapshot.node_infos.values()]
    assert {one["name"]: (one["gpus"], one.get("largest")) for one in rows} == {
        "cordoned": ("uccccccc", None), "tainted": ("ccffffff", 6), "open": ("ffffffff", 8),
    }  # fmt: skip
    free_nics = {one["name"]: sum(other["free"] for other in one["others"]) for one in rows}
    assert free_nics["cordoned"] == 0 < free_nics["open"]
    (stats,) = fleet_stats(snapshot).values()
    assert (stats.free, stats.closed, stats.largest_set, stats.largest_nodes) == (14, 9, 8, 1)
    (product,) = assessed(snapshot_file(tmp_path, given))["fleet"]["products"]
    assert (product["free"], product["closed"], product["largest_set"]) == (14, 9, 8)
    screen = table_screen()
    with screen.capture() as shown:
        screen.print(_top({"nodes": rows, "waiting": 0, "pending": [], "decisions": []}))
    summary, _, heads, figures, *_ = shown.get().splitlines()
    assert summary == "3 nodes: 14 free, 9 closed, 1 allocated"
    assert heads.split() == ["product", "nodes", "GPUs", "free", "closed", "largest", "free", "on", "one", "node"]
    assert figures.split()[-5:] == ["3", "24", "14", "9", "8"]
