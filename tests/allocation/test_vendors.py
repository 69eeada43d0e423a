"""Devices of AMD, Intel and a vendor that Berth has never seen, from the vendor files alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from extender.api.gpu_topology import UNKNOWN_DISTANCE, Source
from extender.api.resource_slices import SliceDecoder
from extender.base.berth_errors import WireError
from extender.cli.cluster_objects import dump_of
from extender.explain.fleet_rows import fleet_stats, node_detail, node_row
from extender.sandbox import Cluster, write_kubeconfig
from extender.topology.link_knowledge import Links, links_of
from extender.topology.products import joinable_gbps, limits_of, usual_graph
from extender.topology.sets import bandwidth, is_joined, mesh_problem, ranked
from extender.vendors import VENDORS, memory_bytes, numa_attributes, vendors_of, whole_identity
from tests.worlds.commands import berth, berth_beside
from tests.worlds.filled_caches import class_of_driver, device_slice
from tests.worlds.vendor_worlds import (
    ADDRESS,
    AMD,
    GAUDI,
    GIB,
    INTEL,
    NUMA,
    cpx,
    device,
    flex,
    gaudi,
    mi300x,
    node_and_slice,
    node_info,
    numaless,
    nvidia,
)

ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]

# Devices; product; memory of one GPU in GiB; source of the fabric; GB/s of the best 2, 4 and 8 GPUs. Attributes as the
# drivers of July 2026 publish them.
NODES: dict[str, tuple[dict[str, list[Json]], str, float, Source, tuple[float, ...]]] = {
    "MI300X": (
        {"gpu_amd_com": [mi300x(i) for i in range(8)]},
        "AMD_Instinct_MI300X_OAM", 192, Source.TABLE, (48, 144, 336),
    ),
    "MI300X whose memory cannot be read": (
        {"gpu_amd_com": [mi300x(i, "0") for i in range(8)]},
        "AMD_Instinct_MI300X_OAM", 192, Source.TABLE, (48, 144, 336),
    ),
    "Gaudi 3": (
        {"gaudi_intel_com": [gaudi(i) for i in range(8)]},
        "Gaudi3", 128, Source.TABLE, (75, 225, 525),
    ),
    "Gaudi 2": (
        {"gaudi_intel_com": [gaudi(i, "Gaudi2") for i in range(8)]},
        "Gaudi2", 96, Source.TABLE, (37.5, 112.5, 262.5),
    ),
    "Flex": ({"gpu_intel_com": [flex(i) for i in range(4)]}, "Flex 170", 14248 / 1024, Source.FLAT, (20, 20)),
    "GPUs beside one in the CPU": (
        {"gpu_intel_com": [flex(9)], "gpu_amd_com": [mi300x(i) for i in range(8)]},
        "AMD_Instinct_MI300X_OAM", 192, Source.TABLE, (48, 144, 336),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NODES)
def test_whole_devices_have_their_memory_and_their_fabric(name: str) -> None:
    devices, product, memory, source, wanted = NODES[name]
    found = node_info(**devices)
    fabric = found.fabric
    assert fabric is not None
    assert (fabric.product, fabric.source) == (product, source)
    assert -1 not in found.gpu_bits
    assert {found.inventory.devices[bit].memory_bytes / GIB for bit in found.gpu_bits} == {memory}
    everything = (1 << fabric.graph.size) - 1
    best = [bandwidth(fabric.graph, ranked(fabric.graph, everything, count)[0]) for count in (2, 4, 8)[: len(wanted)]]
    assert best == pytest.approx(list(wanted))
    row = node_row(found)
    assert row["product"] == product
    assert len(row["gpus"]) == sum(map(len, devices.values()))
    assert row.get("largest", 0) == (8 if source is Source.TABLE else 0)


def test_the_driver_says_the_numa_nodes_of_amd() -> None:
    fabric = node_info(gpu_amd_com=[mi300x(i) for i in range(8)]).fabric
    assert fabric is not None
    assert fabric.graph.numa == (0, 0, 0, 0, 1, 1, 1, 1)


def test_a_numa_node_of_minus_one_is_unknown() -> None:
    """Such GPUs were on one NUMA node, and so near each other."""
    fabric = node_info(gpu_intel_com=[numaless(i) for i in range(2)]).fabric
    assert fabric is not None
    assert (fabric.source, fabric.graph.numa, fabric.graph.distance[0][1]) == (Source.FLAT, (0, 0), UNKNOWN_DISTANCE)


H100, V100 = "NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-32GB"


# Devices of a machine that has fewer whole GPUs than its board; GB/s of all of them, and whether links join them.
LACKING: dict[str, tuple[dict[str, list[Json]], float, bool]] = {
    "seven MI300X": ({"gpu_amd_com": [mi300x(i) for i in range(7)]}, 6 * 48, True),
    "seven MI300X and partitions of the other": (
        {"gpu_amd_com": [*(mi300x(i) for i in range(1, 8)), *(cpx(i) for i in range(8))]}, 6 * 48, True,
    ),
    "three Gaudi 3": ({"gaudi_intel_com": [gaudi(i) for i in range(3)]}, 150, True),
    "seven H100": ({"gpu_nvidia_com": [nvidia(i, H100) for i in range(7)]}, 370.8, True),
    "four of eight H100 in a virtual machine": ({"gpu_nvidia_com": [nvidia(i, H100) for i in range(4)]}, 370.8, True),
    "two GB200 of a tray": ({"gpu_nvidia_com": [nvidia(i, "NVIDIA GB200") for i in range(2)]}, 721.8, True),
    "nine H100, more than a board": ({"gpu_nvidia_com": [nvidia(i, H100) for i in range(9)]}, 30, False),
    "seven V100 of a mesh": ({"gpu_nvidia_com": [nvidia(i, V100) for i in range(7)]}, 10, False),
    "two H100 without a board": ({"gpu_nvidia_com": [nvidia(i, "NVIDIA H100 PCIe") for i in range(2)]}, 30, False),
    "two GH200": ({"gpu_nvidia_com": [nvidia(i, "NVIDIA GH200 480GB") for i in range(2)]}, 30, False),
    "two products": ({"gpu_nvidia_com": [nvidia(0, H100), nvidia(1, "Tesla T4")]}, 10, False),
}  # fmt: skip


@pytest.mark.parametrize("name", LACKING)
def test_a_switch_and_links_to_each_peer_join_the_gpus_that_are_left(name: str) -> None:
    devices, gbps, joined = LACKING[name]
    found = node_info(**devices)
    assert found.fabric is not None
    everything = found.positions(-1)
    assert (is_joined(found.fabric.graph, everything), found.fabric.source is Source.TABLE) == (joined, joined)
    assert bandwidth(found.fabric.graph, everything) == pytest.approx(gbps)


CARDS = {
    "Tesla V100-PCIE-32GB": Links.NONE, "Tesla V100S-PCIE-32GB": Links.NONE, "Tesla V100-FHHL-16GB": Links.NONE,
    "Tesla P100-PCIE-16GB": Links.NONE, "NVIDIA RTX A4000": Links.NONE, "NVIDIA RTX A2000 12GB": Links.NONE,
    "Quadro RTX 4000": Links.NONE, "NVIDIA L40S": Links.NONE, "NVIDIA A10G": Links.NONE,
    # A bridge may join these, or a board that is not in the file.
    "Quadro GV100": Links.UNKNOWN, "Tesla V100-SXM2-16GB": Links.UNKNOWN, "Tesla V100-DGXS-32GB": Links.UNKNOWN,
    "NVIDIA A100 80GB PCIe": Links.UNKNOWN, "NVIDIA H100 PCIe": Links.UNKNOWN, "NVIDIA H100 NVL": Links.UNKNOWN,
    "NVIDIA RTX A6000": Links.UNKNOWN, "Quadro RTX 8000": Links.UNKNOWN, "NVIDIA A30": Links.UNKNOWN,
}  # fmt: skip


@pytest.mark.parametrize("product", CARDS)
def test_a_card_has_no_links_if_no_bridge_exists_for_it(product: str) -> None:
    found = node_info(gpu_nvidia_com=[nvidia(i, product) for i in range(4)])
    assert links_of(found) is CARDS[product]


@pytest.mark.parametrize("product", ["AMD_Instinct_MI250X", "AMD_Instinct_MI210", "AMD_Instinct_MI300A"])
def test_products_with_links_whose_boards_differ_are_not_said_to_have_none(product: str) -> None:
    devices = json.loads(json.dumps([mi300x(i) for i in range(4)]).replace("AMD_Instinct_MI300X_OAM", product))
    assert links_of(node_info(gpu_amd_com=devices)) is Links.UNKNOWN


@pytest.mark.parametrize(
    ("product", "links", "gbps"),
    [
        ("Max 1550", Links.UNKNOWN, 424),
        ("Max 1450", Links.UNKNOWN, 424),
        ("Max 1100", Links.UNKNOWN, 0),
        ("Flex 170", Links.NONE, 0),
    ],
)
def test_bridges_and_boards_may_join_gpus_of_intel(product: str, links: Links, gbps: float) -> None:
    """A board has links of its own, a card only with a bridge."""
    assert links_of(node_info(gpu_intel_com=[flex(i, model=product) for i in range(4)])) is links
    assert joinable_gbps(product, "gpu.intel.com") == gbps


PARTS = {
    "partitions of AMD": {"gpu_amd_com": [cpx(i) for i in range(8)]},
    "a virtual function of Intel": {"gpu_intel_com": [flex(0, type="vf")]},
    "a GPU of Intel in passthrough": {"gpu_intel_com": [flex(0, driver="vfio-pci")]},
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_and_other_forms_are_not_whole(name: str) -> None:
    found = node_info(**PARTS[name])
    (devices,) = PARTS[name].values()
    assert found.fabric is None
    assert node_row(found)["gpus"] == "f" * len(devices), "they count as GPUs as long as the whole one is not there"


def test_partitions_hide_behind_their_whole_gpu() -> None:
    found = node_info(gpu_amd_com=[mi300x(0), *(cpx(i) for i in range(8))])
    assert node_row(found)["gpus"] == "f"


def test_the_fleet_counts_memory_that_no_driver_publishes() -> None:
    snapshot = dump_of(node_and_slice("n", gaudi_intel_com=[gaudi(i) for i in range(8)])).snapshot()
    assert fleet_stats(snapshot)["Gaudi3"].unclaimed_bytes == 8 * 128 * GIB
    assert snapshot.baseline.least_memory_bytes == 128 * GIB


def test_gpus_that_a_driver_calls_the_same_count_once_in_the_fabric_and_all_as_gpus() -> None:
    devices = [mi300x(i) for i in range(8)]
    devices[1]["attributes"][ADDRESS] = devices[0]["attributes"][ADDRESS]
    found = node_info(gpu_amd_com=devices)
    assert found.gpu_bits == (0, 2, 3, 4, 5, 6, 7)
    assert node_row(found)["gpus"] == "f" * 8


@pytest.mark.parametrize("driver", ["gpu.nvidia.com", AMD, INTEL, GAUDI])
def test_a_device_counts_by_its_own_driver(driver: str) -> None:
    """A NIC's driver that publishes the attributes of a GPU makes no GPU."""
    about = {"type": "gpu", "uuid": "GPU-x", "serial": "x", "productName": "MI300X", "model": "Gaudi3"}
    lies = device("d", "1Gi", address="0000:01:00.0", **{f"{driver}/{name}": value for name, value in about.items()})
    (found,) = SliceDecoder().decode(device_slice("n", "dra.net", [lies])).devices
    assert whole_identity(found, "dra.net") == ""
    assert memory_bytes(found, "dra.net") == GIB


@pytest.mark.parametrize(
    ("driver", "own"),
    [
        ("gpu.nvidia.com", ["gpu.nvidia.com/numa"]),
        (AMD, ["gpu.amd.com/numaNode"]),
        ("dra.net", ["dra.net/numaNode"]),
        ("sriovnetwork.k8snetworkplumbingwg.io", ["dra.net/numaNode"]),
        ("dra.cpu", ["dra.cpu/numaNodeID", "dra.net/numaNode"]),
        ("nic.example.com", ["nic.example.com/numaNode"]),
    ],
)
def test_the_standard_numa_attribute_goes_before_the_drivers_own(driver: str, own: list[str]) -> None:
    assert numa_attributes(driver) == (NUMA, *own)


def test_every_board_of_the_files_has_rings_and_a_product() -> None:
    """A mesh whose rings take too long to find would be slow on every node that has it."""
    boards = [(vendor, board) for vendor in VENDORS for board in vendor.boards]
    assert len(boards) > 10
    for vendor, board in boards:
        for name in board.names:
            graph = usual_graph(name, board.devices, next(iter(vendor.drivers)))
            assert graph is not None
            assert mesh_problem(graph.links) == ""
            full = (1 << board.devices) - 1
            best = bandwidth(graph, full)
            assert 0 < best <= limits_of(name, next(iter(vendor.drivers))).link_gbps + 1e-9, name


def test_each_product_that_a_cloud_names_is_known() -> None:
    for vendor in VENDORS:
        for products in vendor.cloud_products.values():
            assert [name for name in products.values() if vendor.product(name) is None] == []


def test_words_of_one_vendor_do_not_match_products_of_another() -> None:
    assert limits_of("A100", AMD) == limits_of("unknown", AMD)
    assert usual_graph("H200", 8, AMD) is None


CASES = yaml.safe_load((ROOT / "tests" / "cases" / "vendor_files.yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_wrong_vendor_file_is_refused_with_its_field_and_value(case: Json) -> None:
    with pytest.raises(WireError) as error:
        vendors_of({"acme.yaml": case["text"].encode()})
    assert str(error.value) == f"acme.yaml: {case['error']}"


def test_two_files_may_not_describe_one_driver() -> None:
    one = b"drivers: {gpu.acme.com: {kind: gpu}}"
    with pytest.raises(WireError, match=r"b.yaml: drivers: 'gpu.acme.com' is in a.yaml, too"):
        vendors_of({"b.yaml": one, "a.yaml": one})


def test_one_file_at_most_has_compute_domains() -> None:
    text = """
        drivers: {{{0}.com: {{kind: channel}}}}
        clique_label: {0}.com/clique
        compute_domains: {{driver: {0}.com, node_label: {0}.com/domain}}
    """
    assert len(vendors_of({"a.yaml": text.format("a").encode()})) == 1
    with pytest.raises(WireError, match=r"b.yaml: compute_domains: is in a.yaml, too"):
        vendors_of({f"{name}.yaml": text.format(name).encode() for name in "ab"})


# -- what a user sees, and what a stranger does -------------------------------------------------------------------

ACME = """
drivers:
  acme.com: {kind: other}
  accel.acme.com:
    kind: gpu
    whole: {form: [card]}
    identity: [board]
    product: [title]
    memory: hbm
    numa: [socket]
links: {Lane 2: 30}
products:
  - {names: [Anvil], pcie: 5, links: 6, link: Lane 2}
boards:
  - {names: [Anvil], devices: 4, peer_links: 2, link: Lane 2}
"""


def asking(driver: str, count: int) -> list[Json]:
    """A DeviceClass, a claim and a pod that asks for GPUs of a driver."""
    dra = {"apiVersion": "resource.k8s.io/v1"}
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "accelerators", "count": count}}]
    container = {"name": "main", "image": "i", "resources": {"claims": [{"name": "g"}]}}
    pod = {"containers": [container], "resourceClaims": [{"name": "g", "resourceClaimName": "c"}]}
    return [
        class_of_driver(driver, "accelerators"),
        {**dra, "kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": pod},
    ]


def files(folder: Path, driver: str, count: int, **devices: list[Json]) -> list[str]:
    """The words of a command that explains a pod for `count` GPUs of a driver on one node."""
    (of_class, *objects) = asking(driver, count)
    fleet = {"apiVersion": "v1", "kind": "List", "items": [*node_and_slice("n", **devices), of_class]}
    (folder / "fleet.json").write_bytes(orjson.dumps(fleet))
    (folder / "pod.json").write_bytes(orjson.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    return ["explain", "--snapshot", str(folder / "fleet.json"), "-f", str(folder / "pod.json")]


@pytest.mark.parametrize(
    ("driver", "devices", "sentences"),
    [
        (
            AMD,
            [mi300x(i) for i in range(8)],
            ["predicted ring of 4 GPUs: 144 GB/s", "AMD_Instinct_MI300X_OAM of value 528 (GiB and GB/s)"],
        ),
        (
            GAUDI,
            [gaudi(i) for i in range(8)],
            ["predicted ring of 4 GPUs: 225 GB/s", "Gaudi3 of value 653 (GiB and GB/s)"],
        ),
    ],
)
def test_explain_knows_links_and_memory(tmp_path: Path, driver: str, devices: list[Json], sentences: list[str]) -> None:
    code, shown, errors = berth(
        [*files(tmp_path, driver, 4, **{driver.replace(".", "_"): devices}), "--output", "json"]
    )
    assert (code, errors) == (0, "")
    for sentence in sentences:
        assert sentence in shown


@pytest.mark.parametrize(
    ("devices", "link"),
    [([mi300x(i) for i in range(8)], "xGMI link"), ([gaudi(i) for i in range(8)], "RoCE port")],
)
def test_a_node_names_its_links_as_its_vendor_does(devices: list[Json], link: str) -> None:
    driver = "gpu_amd_com" if link.startswith("xGMI") else "gaudi_intel_com"
    snapshot = dump_of(node_and_slice("n", **{driver: devices})).snapshot()
    assert node_detail(snapshot.node_infos["n"], snapshot)["fabric"]["link"] == link


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        (
            {"gpu.amd.com": [mi300x(i) for i in range(8)]},
            ("product table", "xGMI1", "GPUs 0, 1, 2, 3 by 6 xGMI links, predicted ring 144 GB/s"),
        ),
        ({"gaudi.intel.com": [gaudi(i) for i in range(8)]}, ("product table", "RoCE3", "by 18 RoCE ports")),
        ({"gpu.intel.com": [flex(i) for i in range(4)]}, ("nothing published", "by PCIe")),
        ({"gpu.amd.com": [cpx(0)]}, ("n: has no whole GPU",)),
        ({"gpu.nvidia.com": [nvidia(0, H100)]}, ("n: has no fabric slice; check that the agent runs there",)),
    ],
)
async def test_berth_fabric_misses_the_agent_only_where_it_reads_the_gpus(
    tmp_path: Path, devices: dict[str, list[Json]], said: tuple[str, ...]
) -> None:
    cluster = Cluster()
    for obj in node_and_slice("n", **devices):
        cluster.apply(obj)
    async with cluster.serving() as api:
        kubeconfig = ["--kubeconfig", str(write_kubeconfig(tmp_path, api))]
        shown = "".join(map(str, await berth_beside(["fabric", "n", "--count", "4", *kubeconfig])))
    for words in said:
        assert words in shown


def anvil(number: int, form: str = "card") -> Json:
    return device(f"a{number}", "64Gi", "hbm", form=form, board=f"B{number}", title="Acme Anvil 2", socket=number // 2)


def test_a_stranger_adds_a_vendor_by_adding_one_file(tmp_path: Path) -> None:
    """A copy of the package, as it would be after the change, and the command line."""
    shutil.copytree(ROOT / "extender", tmp_path / "extender")
    added = tmp_path / "extender" / "vendors" / "acme.yaml"
    devices = [*(anvil(i) for i in range(4)), anvil(4, "slice")]
    words = [sys.executable, "-m", "extender", *files(tmp_path, "accel.acme.com", 3, accel_acme_com=devices)]

    def ran() -> subprocess.CompletedProcess[str]:
        return subprocess.run([*words, "--output", "json"], cwd=tmp_path, capture_output=True, text=True, check=False)

    added.write_text(ACME)
    known = ran()
    assert (known.returncode, known.stderr) == (0, "")
    assert "predicted ring of 3 GPUs: 120 GB/s" in known.stdout
    assert "Acme Anvil 2 of value" in known.stdout
    added.write_text(ACME.replace("devices: 4", "devices: four"))
    refused = ran()
    assert refused.returncode == 2
    assert "acme.yaml: boards.0.devices: must be an integer (is 'four', line 15, column 22)" in refused.stderr
    assert "Traceback" not in refused.stderr
