"""Node labels by which clouds and tools say how near two nodes are, for policies that name none of them.

A family is what one of them sets, the nearest level first. Sources: the documents of GKE (a sub-block is a rack), EKS
(nodes with one value of layer 4, or of layer 3 where there is no fourth, are the nearest), OKE, CoreWeave, Nebius and
Topograph, and their Topology objects for Kueue. Labels of one host are left out: a node is a domain anyway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from extender.vendors.drivers import CLIQUE_LABELS

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
