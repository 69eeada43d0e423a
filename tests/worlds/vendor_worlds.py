"""Devices of AMD, Intel and NVIDIA, as their drivers publish them, on nodes."""

from __future__ import annotations

from typing import Any

from extender.allocation import NodeInfo
from extender.api.resource_slices import Device, SliceDecoder
from extender.cli.cluster_objects import dump_of
from extender.vendors import whole_identity
from tests.worlds.filled_caches import device_slice

Json = dict[str, Any]
GIB = 1 << 30
AMD, INTEL, GAUDI = "gpu.amd.com", "gpu.intel.com", "gaudi.intel.com"
ADDRESS, ROOT_PORT, NUMA = (f"resource.kubernetes.io/{name}" for name in ("pciBusID", "pcieRoot", "numaNode"))


def device(name: str, memory: str = "", capacity: str = "memory", **attributes: str | int | bool) -> Json:
    """A device; `address` and `root` are its standard attributes."""
    for short, full in (("address", ADDRESS), ("root", ROOT_PORT)):
        if short in attributes:
            attributes[full] = attributes.pop(short)
    kinds = {bool: "bool", int: "int", str: "string"}
    values = {key: {kinds[type(value)]: value} for key, value in attributes.items()}
    return {"name": name, "attributes": values, "capacity": {capacity: {"value": memory}} if memory else {}}


def mi300x(number: int, memory: str = "192Gi") -> Json:
    about = {"deviceID": "0x74a1", "productName": "AMD_Instinct_MI300X_OAM", "partitionProfile": "spx_nps1"}
    places: Json = {"numaNode": number // 4, "address": f"0000:{number}5:00.0", "root": f"pci0000:{number}0"}
    return device(f"gpu-{number}-{128 + number}", memory, type="amdgpu", **about, **places)


def cpx(number: int) -> Json:
    about = {"productName": "AMD_Instinct_MI300X_OAM", "partitionProfile": "cpx_nps1", "address": "0000:05:00.0"}
    return device(f"gpu-0-{number}", "24Gi", type="amdgpu-partition", numaNode=0, **about)


def flex(number: int, driver: str = "xe", **more: Any) -> Json:
    about = {"model": "Flex 170", "family": "Flex", "driver": driver, "pciId": "0x56c0", "health": "OK"}
    return device(f"0000-{number}3-00-0", "14248Mi", sriov=True, address=f"0000:{number}3:00.0", **about | more)


def numaless(number: int) -> Json:
    found = flex(number)
    found["attributes"][NUMA] = {"int": -1}
    return found


def gaudi(number: int, model: str = "Gaudi3") -> Json:
    return device(f"accel{number}", model=model, serial=f"AM{number}", healthy=True, root=f"pci0000:{number}0")


def whole_gpus(published: Json, driver: str) -> dict[str, Device]:
    """The whole GPUs of a slice, by identity."""
    devices = SliceDecoder().decode(published).devices
    return {found: one for one in devices if (found := whole_identity(one, driver))}


def node_and_slice(name: str, **devices: list[Json]) -> list[Json]:
    """A node with the devices of drivers, whose dots are underscores here."""
    found: list[Json] = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}, "status": {}}]
    drivers = {written.replace("_", "."): published for written, published in devices.items()}
    return [*found, *(device_slice(name, driver, published) for driver, published in drivers.items())]


def node_info(**devices: list[Json]) -> NodeInfo:
    return dump_of(node_and_slice("n", **devices)).snapshot().node_infos["n"]


def nvidia(number: int, product: str) -> Json:
    return device(f"gpu-{number}", "80Gi", type="gpu", uuid=f"GPU-{number}", productName=product)
