"""Labels that clouds and tools set on nodes: the GPUs that a device plugin offers there, and how near two nodes are.

gpu-feature-discovery, the labellers of AMD and Intel, and clouds describe the GPUs: their product, whole or not.

For policies that name no labels of levels, a family is what one of the setters writes, the nearest level first.
Sources: the documents of GKE (a sub-block is a rack), EKS (nodes with one value of layer 4, or of layer 3 where there
is no fourth, are the nearest), OKE, CoreWeave, Nebius and Topograph, and their Topology objects for Kueue. Labels of
one host are left out: a node is a domain anyway.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from extender.vendors.drivers import CLIQUE_LABELS
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


# -- how near nodes are ------------------------------------------------------------------------------------------

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "GKE": ("cloud.google.com/gce-topology-subblock", "cloud.google.com/gce-topology-block"),
    "EKS": (
        "topology.k8s.aws/ultraserver-id",
        *(f"topology.k8s.aws/network-node-layer-{layer}" for layer in (4, 3, 2, 1)),
    ),
    "OKE": tuple(f"oci.oraclecloud.com/rdma.{name}_id" for name in ("local_block", "network_block", "hpc_island")),
    "CoreWeave": (
        "ds.coreweave.com/nvlink.domain",
        *(f"backend.coreweave.cloud/{name}" for name in ("leafgroup", "superpod", "fabric")),
    ),
    "CoreWeave, for InfiniBand": tuple(f"ib.coreweave.cloud/{name}" for name in ("leafgroup", "superpod", "fabric")),
    "Nebius": (
        *(f"topology.nebius.com/tier-{tier}" for tier in range(4)),
        "topology.nebius.com/gpu-cluster-id",
    ),
    "Topograph": (
        "accelerator.topograph.run/sub-domain",
        "accelerator.topograph.run/domain",
        *(f"fabric.topograph.run/tier-{tier}" for tier in range(6)),
    ),
    "Topograph before 1.0": tuple(  # the first switch is a leaf or, in older versions, a block
        f"network.topology.nvidia.com/{name}"
        for name in ("accelerator", "leaf", "block", "spine", "core", "datacenter")
    ),
}
FAMILY_LABELS = frozenset(label for family in FAMILIES.values() for label in family)
_MAX_LEVELS = 8  # of a policy


class FoundLevels(NamedTuple):
    """Levels that nodes have and the policy does not name. `setter` says whose labels they are."""

    setter: str
    levels: tuple[str, ...]  # for `group_levels`

    @property
    def line(self) -> str:
        """The line for the policy."""
        return f"group_levels: [{', '.join(self.levels)}]"


def found_levels(nodes: Iterable[Mapping[str, str]], levels: Sequence[str]) -> FoundLevels | None:
    """The levels by the labels of nodes with GPUs; None if the policy's `levels` serve, or no family is there.

    They serve if a node has one, but for the NVLink clique: it does not say which cliques are near each other.
    """
    nodes_with = Counter(label for labels in nodes for label, value in labels.items() if value)
    own = [level for level in levels if nodes_with[level]]
    if not CLIQUE_LABELS.issuperset(own):
        return None
    setter = max(FAMILIES, key=lambda name: max(nodes_with[label] for label in FAMILIES[name]))
    family = [label for label in FAMILIES[setter] if nodes_with[label] and label not in own]
    return FoundLevels(setter, tuple([*own, *family][:_MAX_LEVELS])) if family else None
