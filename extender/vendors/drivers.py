"""What the devices of a DRA driver are, as the vendor files say.

Whole devices are the GPUs of a node's fabric. The lint asks which requests ask for GPUs; the fleet's counts, commands
and page, which devices are GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final, TypeVar

from extender.api.claim_specs import ClaimSpec
from extender.api.quantity import whole_units
from extender.api.resource_slices import Device, DeviceId
from extender.vendors.vendor_files import GPU, VENDORS, DriverEntry, Vendor

Value = TypeVar("Value", str, int)
T = TypeVar("T")
_STANDARD_NUMA = "resource.kubernetes.io/numaNode"  # KEP-6072
_STANDARD_ADDRESS = "resource.kubernetes.io/pciBusID"
_MAX_DRIVERS = 256  # in the cache; a cluster has a dozen
_GIB = 1 << 30
CLIQUE_LABELS: Final = frozenset(vendor.clique_label for vendor in VENDORS if vendor.clique_label)
# Of the vendor with ComputeDomains; all '' if no file has any.
CLIQUE_LABEL, COMPUTE_DOMAIN_DRIVER, COMPUTE_DOMAIN_LABEL = next(
    (
        (vendor.clique_label, vendor.compute_domains.driver, vendor.compute_domains.node_label)
        for vendor in VENDORS
        if vendor.compute_domains is not None
    ),
    ("", "", ""),
)


def _qualified(name: str, driver: str) -> str:
    return name if "/" in name else f"{driver}/{name}"


DRIVERS: Final[Mapping[str, DriverEntry]] = MappingProxyType(
    {name: entry for vendor in VENDORS for name, entry in vendor.drivers.items()}
)
_VENDOR_OF: Final = {name: vendor for vendor in VENDORS for name in vendor.drivers}
_BY_WORD = {"gpu": DriverEntry(kind="gpu"), "net": DriverEntry(kind="nic")}
_BY_WORD |= {"nic": _BY_WORD["net"], "cpu": DriverEntry(kind="cpu")}
_UNKNOWN = DriverEntry(kind="other")
# Names of capacities that are memory; requests may have the driver's domain in front.
_MEMORY: Final = frozenset(
    name for driver, entry in DRIVERS.items() for name in (entry.memory, _qualified(entry.memory, driver))
)


@dataclass(frozen=True, slots=True)
class Driver:
    """The entry of a driver, with the domain in front of all attribute names. `vendor` is None for an unknown one."""

    kind: str
    agent: bool
    whole: tuple[tuple[str, tuple[str, ...]], ...]
    identity: tuple[str, ...]
    parent: tuple[str, ...]
    product: tuple[str, ...]
    numa: tuple[str, ...]
    partitions: tuple[tuple[int, str], ...]
    vendor: Vendor | None


@lru_cache(maxsize=_MAX_DRIVERS)
def driver_of(name: str) -> Driver:
    """What the devices of a driver are. One that is in no file may say it, as gpu.example.com does."""
    known = _listed(name)
    words = name.partition(".")[0].split("-")
    entry = DRIVERS[known] if known else next((one for word, one in _BY_WORD.items() if word in words), _UNKNOWN)
    return Driver(
        entry.kind,
        entry.agent,
        tuple((_qualified(attribute, name), values) for attribute, values in entry.whole.items()),
        _all_qualified(entry.identity, name),
        _all_qualified(entry.parent, name),
        _all_qualified(entry.product, name),
        tuple(dict.fromkeys((_STANDARD_NUMA, *_all_qualified(entry.numa, name)))),
        tuple((size, _qualified(attribute, name)) for size, attribute in entry.partitions.items()),
        _VENDOR_OF.get(known),
    )


def _all_qualified(names: tuple[str, ...], driver: str) -> tuple[str, ...]:
    return tuple(_qualified(name, driver) for name in names)


def driver_of_class(name: str) -> str:
    """The driver that installs a DeviceClass of this name; '' if none of the files does."""
    return _listed(name) or next((driver for driver, about in DRIVERS.items() if name in about.classes), "")


def _listed(name: str) -> str:
    """The driver of the files that has this name, or the end of it: gce.dra.net belongs to dra.net."""
    return max((driver for driver in DRIVERS if f".{name}".endswith(f".{driver}")), key=len, default="")


def compute_domain(spec: ClaimSpec) -> str:
    """The UID of the ComputeDomain whose channel a claim requests; '' for none."""
    return next((domain for driver, domain in spec.domains if driver == COMPUTE_DOMAIN_DRIVER), "")


def numa_attributes(driver: str) -> tuple[str, ...]:
    """The attributes with the NUMA node of a driver's devices: the standard one first, then its own."""
    return driver_of(driver).numa


def first_attribute(device: Device, names: tuple[str, ...], kind: type[Value]) -> Value | None:
    """The value of the first of these attributes that has exactly this type; None without one.

    The first value of a list is that of the device itself (KEP-6072).
    """
    for name in names:
        value = device.attributes.get(name)
        first = value[0] if isinstance(value, tuple) and value else value
        if type(first) is kind:
            return first
    return None


def is_partition(device: Device, driver: str) -> bool:
    """Whether a device is a part of a GPU that may be published as a whole, too, or another form of one."""
    return _is_partition(device, driver_of(driver))


def _is_partition(device: Device, about: Driver) -> bool:
    for name, values in about.whole:
        value = device.attributes.get(name)
        if isinstance(value, str) and value not in values:
            return True
    return False


def whole_identity(device: Device, driver: str) -> str:
    """What tells a whole GPU from the others of its node, and what Berth's agent calls it: for most, its UUID.

    '' for any other device, and for GPUs of a driver that is in no vendor file.
    """
    about = driver_of(driver)
    if about.kind != GPU or about.vendor is None or _is_partition(device, about):
        return ""
    return first_attribute(device, about.identity, str) or ""


def product_of(device: Device, driver: str) -> str:
    """The product of a device; '' if it publishes none."""
    return first_attribute(device, driver_of(driver).product, str) or ""


def parent_of(device: Device, driver: str) -> str:
    """The identity of the whole GPU of which a device is a part, such as a MIG device; '' if it names none."""
    return first_attribute(device, driver_of(driver).parent, str) or ""


def gpu_identities(device: Device, id_: DeviceId) -> frozenset[tuple[str, ...]]:
    """What tells the GPU that a device is, or is a part of: UUID, bus address, and the counter sets it draws on."""
    about = driver_of(id_.driver)
    values = (device.attributes.get(name) for name in (*about.identity, *about.parent, _STANDARD_ADDRESS))
    found = {("value", value) for value in values if isinstance(value, str)}
    return frozenset(found | {("counters", id_.driver, id_.pool, use.counter_set) for use in device.consumes})


def amount_of_memory(amounts: Mapping[str, T]) -> T | None:
    """The amount of memory, of capacities or amounts by name; None without one."""
    if "memory" in amounts:
        return amounts["memory"]
    return next((amounts[name] for name in amounts if name in _MEMORY), None)


def memory_bytes(device: Device, driver: str) -> int:
    """The total memory of a device: what it publishes, else that of its product if it is whole; 0 for unknown."""
    capacity = amount_of_memory(device.capacity)
    if capacity is not None and capacity.value.nanos > 0:
        return whole_units(capacity.value.nanos)
    about = driver_of(driver)
    if about.kind != GPU or about.vendor is None or _is_partition(device, about):
        return 0
    product = about.vendor.product(product_of(device, driver))
    return int(product.memory_gib * _GIB) if product is not None and product.memory_gib is not None else 0
