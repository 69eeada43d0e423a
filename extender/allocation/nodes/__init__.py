"""What is known of nodes: their pools and devices, what is allocated there, and the states that nodes share.

The cache builds it for its snapshots (slices -> pools -> inventory -> NodeInfo). NodeInfo and Snapshot are exported by
`extender.allocation`.
"""

from extender.allocation.nodes.devices import (
    Interned,
    Interns,
    KnownSlices,
    PoolDevice,
)
from extender.allocation.nodes.inventory import Inventory, Partitions, inventory, partitions_of
from extender.allocation.nodes.node_info import (
    SHARES,
    UNUSED,
    AllocatedState,
    ChangeLog,
    CounterKey,
    NodeState,
    PoolGroup,
    PoolUse,
    SharedUse,
    live_use,
    overdrawn_counters,
    troubled,
    uses_of,
)
from extender.allocation.nodes.places import NUMA_NODE, PCIE_ROOT, Nearness, Places, places_of, published_place
from extender.allocation.nodes.pools import KnownPools, Pool, WholePool, gather

__all__ = [
    "NUMA_NODE",
    "PCIE_ROOT",
    "SHARES",
    "UNUSED",
    "AllocatedState",
    "ChangeLog",
    "CounterKey",
    "Interned",
    "Interns",
    "Inventory",
    "KnownPools",
    "KnownSlices",
    "Nearness",
    "NodeState",
    "Partitions",
    "Places",
    "Pool",
    "PoolDevice",
    "PoolGroup",
    "PoolUse",
    "SharedUse",
    "WholePool",
    "gather",
    "inventory",
    "live_use",
    "overdrawn_counters",
    "partitions_of",
    "places_of",
    "published_place",
    "troubled",
    "uses_of",
]
