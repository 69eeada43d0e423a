"""The places of GPUs: what sysfs says arrives in the fabric, and unknown stays apart from NUMA node 0."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest
import yaml

from extender.agent.reader import Reader, Sysfs
from extender.agent.reader_process import as_reading
from extender.agent.slice_publisher import slice_body
from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import Machine
from extender.topology.agent_slices import Reading
from tests.fakes import nvml as library
from tests.worlds.filled_caches import read_agent

CASES = yaml.safe_load((Path(__file__).parents[1] / "cases" / "sysfs.yaml").read_text())


def written(root: Path, case: dict[str, Any]) -> Sysfs:
    """A sysfs with these NUMA nodes and devices."""
    for number, (cpus, distance) in case["nodes"].items():
        node = root / f"devices/system/node/node{number}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(f"{cpus}\n")
        (node / "distance").write_text(f"{distance}\n")
    for address, device in case["gpus"].items():
        link = root / "bus/pci/devices" / address
        if device["at"] is None:
            continue
        link.parent.mkdir(parents=True, exist_ok=True)
        if device["at"] == "circle":
            link.symlink_to(link)
            continue
        place = root / "devices" / device["at"] / address
        place.mkdir(parents=True)
        (place / "numa_node").write_text(f"{device['numa_node']}\n")
        link.symlink_to(os.path.relpath(place, link.parent))
    return Sysfs(root)


def published(addresses: list[str], sysfs: Sysfs) -> Any:
    """The fabric of the slice that the agent publishes for GPUs with these addresses."""
    gpu = Reading("", "NVIDIA GB200", distances=(6,) * len(addresses))
    nvml = library.Library(Machine("m", gpu.product, 1 << 30, (gpu,) * len(addresses)))
    nvml.buses = [f"0000{address}".encode() for address in addresses]
    for number, address in enumerate(addresses):
        if address.startswith("ffff"):
            nvml.buses[number] = b"ffffffff:ff:ff.f"
    library.install(nvml)
    readings = tuple(as_reading(one) for one in Reader(pynvml, sysfs).read())
    found, problems = read_agent(slice_body("n", "u", readings, 1, stale=False))
    assert problems == ()
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_place_in_sysfs_arrives_in_the_fabric(tmp_path: Path, case: dict[str, Any]) -> None:
    found = published(list(case["gpus"]), written(tmp_path, case))
    assert [[gpu.numa, gpu.pcie_root] for gpu in found.gpus] == case["places"]
    assert found.graph.numa == tuple(numa or 0 for numa, _ in case["places"])


def test_a_machine_of_the_sandbox_has_its_places() -> None:
    found, _ = read_agent(fabric_slice("n", carried_machines()["gb200-nvl72-tray"]))
    roots = ["pci0008:00", "pci0009:00", "pci0018:00", "pci0019:00"]
    assert [(gpu.numa, gpu.pcie_root) for gpu in found.gpus] == list(zip([0, 0, 1, 1], roots, strict=True))


def test_the_fabric_command_says_where_no_numa_node_is_known(tmp_path: Path) -> None:
    machine = {"name": "m", "gpu_product": "Tesla T4", "gpus": 2, "vram_bytes": 1 << 34, "numa": [-1, 1]}
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(machine))
    said = subprocess.run(
        [sys.executable, "-m", "extender", "fabric", str(tmp_path / "m.yaml")],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert [line.split("│")[4].strip() for line in said.splitlines() if line.startswith("│")] == ["?", "1"]
