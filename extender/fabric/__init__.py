"""The NVLink graph of a node: ring bandwidth of a set of GPUs, ranking of sets, and sources of the topology.

The package contains graphs, ring bandwidth, ranking of sets and sources of topology, but no scores of nodes.
"""

from extender.fabric.agent_slices import Reading, attributes_of, fabric_of, hardware_facts
from extender.fabric.bounds import DRIVER, MAX_NODE_GPUS
from extender.fabric.products import pcie_generation
from extender.fabric.sets import Graphs, bandwidth, best_gbps, is_joined, largest_joined, links_inside, quality, ranked
from extender.fabric.sources import agent_slice, choose_fabric, gpu_uuid, live_fabric

__all__ = [
    "DRIVER",
    "MAX_NODE_GPUS",
    "Graphs",
    "Reading",
    "agent_slice",
    "attributes_of",
    "bandwidth",
    "best_gbps",
    "choose_fabric",
    "fabric_of",
    "gpu_uuid",
    "hardware_facts",
    "is_joined",
    "largest_joined",
    "links_inside",
    "live_fabric",
    "pcie_generation",
    "quality",
    "ranked",
]
