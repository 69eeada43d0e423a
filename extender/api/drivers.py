"""What the devices of each known DRA driver are. To add a driver, add a line to DRIVERS; no other code names it.

The lint asks this table which requests ask for GPUs; the fleet's counts, commands and page, which devices are GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from extender.api.resource_slices import Device, DeviceId

GPU, NIC, CPU, CHANNEL, OTHER = "gpu", "nic", "cpu", "channel", "other"


class Driver(NamedTuple):
    """The devices of a driver. Names of attributes lack the domain, which is the driver's name."""

    kind: str  # of all its devices
    product: tuple[str, ...] = ("productName", "model")  # attributes with the name of the product, the best first
    parts: tuple[str, ...] = ()  # values of the attribute `type` of devices that are parts, or another form, of one
    classes: tuple[str, ...] = ()  # DeviceClasses that it installs, besides NAME and *.NAME


DRIVERS: Final[Mapping[str, Driver]] = MappingProxyType(
    {
        "gpu.nvidia.com": Driver(GPU, parts=("mig", "vfio"), classes=("mig.nvidia.com",)),
        "gpu.amd.com": Driver(GPU, parts=("amdgpu-partition", "vfio")),
        "gpu.intel.com": Driver(GPU, parts=("vfio",), classes=("gpu-vfio.intel.com",)),
        "gaudi.intel.com": Driver(GPU),
        "compute-domain.nvidia.com": Driver(
            CHANNEL,
            classes=("compute-domain-default-channel.nvidia.com", "compute-domain-daemon.nvidia.com"),
        ),
        "dra.net": Driver(
            NIC, classes=("dranet", "dranet.net", "netdev.google.com", "mrdma.google.com", "efa.networking.k8s.aws")
        ),
        "sriovnetwork.k8snetworkplumbingwg.io": Driver(NIC),
        "dra.cpu": Driver(CPU),
        "qat.intel.com": Driver(OTHER),
    }
)
_PARENT = "parentUUID"
_BY_WORD = {"gpu": Driver(GPU), "net": Driver(NIC), "nic": Driver(NIC), "cpu": Driver(CPU)}
_UNKNOWN = Driver(OTHER)


def driver_of(name: str) -> Driver:
    """What the devices of a driver are. One that is not in the table may say it, as gpu.example.com does."""
    if known := _listed(name):
        return DRIVERS[known]
    words = name.partition(".")[0].split("-")
    return next((driver for word, driver in _BY_WORD.items() if word in words), _UNKNOWN)


def driver_of_class(name: str) -> str:
    """The driver that installs a DeviceClass of this name; '' if none of the table does."""
    return _listed(name) or next((driver for driver, about in DRIVERS.items() if name in about.classes), "")


def _listed(name: str) -> str:
    """The driver of the table that has this name, or the end of it: gce.dra.net belongs to dra.net."""
    return next((driver for driver in DRIVERS if name == driver or name.endswith(f".{driver}")), "")


def product_of(device: Device, driver: str) -> str:
    """The product of a device; '' if it publishes none."""
    for name in driver_of(driver).product:
        value = device.attributes.get(f"{driver}/{name}")
        if isinstance(value, str):
            return value
    return ""


def is_part(device: Device, driver: str) -> bool:
    """Whether a device is a part of a GPU that may be published as a whole, too, or another form of one."""
    return device.attributes.get(f"{driver}/type") in driver_of(driver).parts


def parent_uuid(device: Device, driver: str) -> str:
    """The UUID of the GPU of which a device is a part, such as a MIG device; '' if it names none."""
    value = device.attributes.get(f"{driver}/{_PARENT}")
    return value if isinstance(value, str) else ""


def gpu_identities(device: Device, id_: DeviceId) -> frozenset[tuple[str, ...]]:
    """What tells the GPU that a device is, or is a part of: UUID, bus address, and the counter sets it draws on."""
    own = (f"{id_.driver}/{name}" for name in ("uuid", _PARENT, "pciAddr"))
    values = (device.attributes.get(name) for name in (*own, "resource.kubernetes.io/pciBusID"))
    found = {("value", value) for value in values if isinstance(value, str)}
    return frozenset(found | {("counters", id_.driver, id_.pool, use.counter_set) for use in device.consumes})


def numa_attributes(driver: str) -> tuple[str, ...]:
    """The names by which a driver publishes the NUMA node of a device, after the standard one."""
    return (f"{driver}/numaNode", f"{driver}/numa", f"{driver}/numaNodeID", "dra.net/numaNode")
