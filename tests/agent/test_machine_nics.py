"""The sandbox's machines: GPUs and NICs as their drivers publish them; NICs are no GPUs for any count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.base.berth_errors import WireError
from extender.sandbox import carried_machines, load_machine
from extender.sandbox.machines import gpu_slice, nic_slice
from tests.worlds.running_berth import berthing, claim, pod
from tests.worlds.shared_folder import SHARED, needs

MACHINES = carried_machines()
ROOT = "resource.kubernetes.io/pcieRoot"
BUS = "resource.kubernetes.io/pciBusID"
NIC = {"rdma": "mlx5_0", "vendor": "v", "product": "p", "pci_bus_id": "0000:18:00.0"}


def values(device: dict[str, Any]) -> dict[str, Any]:
    return {name: next(iter(value.values())) for name, value in device["attributes"].items()}


def places(machine: str) -> tuple[list[Any], list[Any]]:
    """(PCIe roots of the GPUs, (PCIe root, NUMA node) of the NICs) as their drivers publish them."""
    gpus = [values(device) for device in gpu_slice("n", MACHINES[machine])["spec"]["devices"]]
    nics = [values(device) for device in nic_slice("n", MACHINES[machine])["spec"]["devices"]]
    return [gpu[ROOT] for gpu in gpus], [(nic.get(ROOT), nic["dra.net/numaNode"]) for nic in nics]


@pytest.mark.parametrize("machine", MACHINES)
def test_a_gpu_has_what_the_driver_of_its_vendor_publishes(machine: str) -> None:
    """The attributes of gpu.nvidia.com for a whole GPU; older GPUs have no addressing mode."""
    devices = gpu_slice("n", MACHINES[machine])["spec"]["devices"]
    own = {"type", "uuid", "productName", "brand", "architecture", "cudaComputeCapability", "driverVersion"}
    places = {f"resource.kubernetes.io/{name}" for name in ("pciBusID", "pcieRoot", "numaNode")}
    for device in devices:
        assert device["attributes"].keys() - {"addressingMode"} == own | places | {"cudaDriverVersion"}
        assert device["capacity"].keys() == {"memory"}
        domain = values(device)[BUS].split(":")[0]
        assert values(device)[ROOT].startswith(f"pci{domain}:")
    everything = (*devices, *nic_slice("n", MACHINES[machine])["spec"]["devices"])
    buses = [found for one in map(values, everything) if (found := one.get(BUS) or one.get("dra.net/pciAddress"))]
    assert len(set(buses)) == len(everything), "each device has an address of its own"


def test_each_h100_has_a_nic_on_its_root() -> None:
    gpus, nics = places("hgx-h100-8")
    assert nics == list(zip(gpus, [0] * 4 + [1] * 4, strict=True))


def test_no_gb200_shares_a_root_with_a_nic() -> None:
    gpus, nics = places("gb200-nvl72-tray")
    roots = ["pci0000:00", "pci0002:00", "pci0010:00", "pci0012:00"]
    assert nics == list(zip(roots, [0, 0, 1, 1], strict=True))
    assert not {root for root, _ in nics} & set(gpus)


def test_a_nic_without_place_publishes_none(tmp_path: Path) -> None:
    machine = {"name": "m", "gpu_product": "Tesla T4", "gpus": 1, "vram_bytes": 1 << 34, "nics": [NIC]}
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(machine))
    (device,) = nic_slice("n", load_machine(tmp_path / "m.yaml"))["spec"]["devices"]
    assert device["name"] == "pci-0000-18-00-0"
    assert not {ROOT, "dra.net/numaNode", "resource.kubernetes.io/numaNode"} & set(device["attributes"])


@pytest.mark.parametrize(
    ("nics", "problem"),
    [
        ([{**NIC, "numa": -1}], "numa"),
        ([{**NIC, "pcie_root": "0000:17"}], "pcie_root"),
        ([{**NIC, "pci_bus_id": "18:00.0"}], "pci_bus_id"),
        ([NIC, NIC], "2 entries of nics have pci_bus_id '0000:18:00.0'"),
        ([{"rdma": "mlx5_0"}], "pci_bus_id"),
        ([{**NIC, "pci_bus_id": f"0000:{bus:02x}:00.0"} for bus in range(129)], "nics"),
    ],
)
def test_a_wrong_nic_is_named(tmp_path: Path, nics: list[Any], problem: str) -> None:
    machine = {"name": "m", "gpu_product": "Tesla T4", "gpus": 1, "vram_bytes": 1 << 34, "nics": nics}
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(machine))
    with pytest.raises(WireError, match=problem):
        load_machine(tmp_path / "m.yaml")


@needs("slices")
def test_the_attributes_are_those_of_real_slices() -> None:
    real: dict[str, set[str]] = {}
    for path in sorted((SHARED / "slices").glob("*dranet.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            for obj in document.get("items", [document]):
                for device in obj["spec"]["devices"]:
                    for name, value in device["attributes"].items():
                        real.setdefault(name, set()).update(value)
    ours = [device for name in ("hgx-h100-8", "gb200-nvl72-tray")
            for device in nic_slice("n", MACHINES[name])["spec"]["devices"]]  # fmt: skip
    assert all(set(value) <= real[name] for device in ours for name, value in device["attributes"].items())


async def test_a_nic_in_use_is_no_gpu_in_use() -> None:
    async with berthing({"n1": "hgx-h100-8"}) as b:
        for number, device_class in enumerate(("dranet.net", "gpu.nvidia.com")):
            made = claim(f"c{number}")
            made["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = device_class
            await b.create(made, pod(f"p{number}", f"c{number}"))
            assert (await b.filter(f"p{number}"))["NodeNames"] == ["n1"]
            found = (await b.client.get(f"/v1/explain/default/p{number}")).json()
            parts = {part["name"]: part["sentence"] for part in found["best"][0]["parts"]}
            assert parts["packing"] == "0 of 8 GPUs in use before (pack)"
            assert await b.bind(f"p{number}", "n1") == ""
            await b.settled()
        (row,) = (await b.client.get("/v1/fleet")).json()["nodes"]
        assert row["gpus"].count("u") == 1
        assert len(row["gpus"]) == 8
        assert row["others"] == [{"driver": "dra.net", "free": 7, "devices": 8}]
