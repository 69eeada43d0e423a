"""The GPUs that a device plugin offers on a node, as the node's labels describe them: their product, whole or not.

gpu-feature-discovery, the labellers of AMD and Intel, and clouds set such labels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from extender.vendors.vendor_files import VENDORS

# Extended resources of device plugins that count whole GPUs, to the node labels with the product, the best first.
PLUGIN_RESOURCES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        name: tuple(one for one in (label, *vendor.cloud_products) if one)
        for vendor in VENDORS
        for name, label in vendor.plugin_resources.items()
    }
)
WHOLE_PLUGIN = "nvidia.com/gpu"  # its GPUs may be of any product; those of other vendors need a label with theirs
_GKE = "cloud.google.com/gke-"
_STRATEGIES = ("nvidia.com/gpu.sharing-strategy", f"{_GKE}gpu-sharing-strategy")  # the first: gpu-feature-discovery
_REPLICAS = ("nvidia.com/gpu.replicas", f"{_GKE}max-shared-clients-per-gpu")  # pods that each GPU serves
_MIG = f"{_GKE}gpu-partition-size"  # such as 1g.10gb
_PARTITION = "amd.com/compute-memory-partition"  # of AMD's node labeller: spx_nps1 is a whole GPU
_INTEL, _DEVICES, _DIGITS = "gpu.intel.com/", "gpu.intel.com/device.count", 9  # a label of Intel's NFD rules
SHARING_LABELS = (*_REPLICAS, *_STRATEGIES, _MIG, _PARTITION, _DEVICES)
# Of the label of the product: MIG devices, or shared GPUs.
PARTITION_SUFFIX = re.compile(r"-MIG-[0-9]g\.[0-9]{1,4}gb|-SHARED$")
_OF_CLOUDS: Final = {
    told: name for vendor in VENDORS for products in vendor.cloud_products.values() for told, name in products.items()
}


def plugin_product(resource: str, labels: Mapping[str, str]) -> str:
    """The product of the GPUs of a device plugin, as a label has it; '' if none does."""
    return next((labels[label] for label in PLUGIN_RESOURCES[resource] if labels.get(label)), "")


def driver_product(resource: str, labels: Mapping[str, str]) -> str:
    """The same product by its driver's name, which boards and machine files have."""
    told = plugin_product(resource, labels)
    return _OF_CLOUDS.get(told, told)


def has_whole_gpus(resource: str, count: int, labels: Mapping[str, str]) -> bool:
    """Whether the GPUs that a device plugin offers as this resource on a node of these labels are whole ones.

    They are not if the plugin gives each to several pods, or if they are MIG devices or partitions.
    """
    if resource != WHOLE_PLUGIN:
        devices = labels.get(_DEVICES, "")
        is_shared = resource.startswith(_INTEL) and devices.isdecimal() and count > int(devices[:_DIGITS])
        return not is_shared and labels.get(_PARTITION, "spx").startswith("spx")
    if any(labels.get(one, "none") != "none" for one in _STRATEGIES) or labels.get(_MIG):
        return False
    is_shared = any(labels.get(one, "1") not in ("0", "1") for one in _REPLICAS)
    return not is_shared and not PARTITION_SUFFIX.search(plugin_product(resource, labels))
