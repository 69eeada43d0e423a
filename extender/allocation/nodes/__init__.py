"""What is known of nodes: their pools and devices, what is allocated there, and the states that nodes share.

The cache builds it for its snapshots (slices -> pools -> inventory -> NodeInfo). NodeInfo and Snapshot are exported by
`extender.allocation`. The module `locality` is a face of its own: where the devices of a node are.
"""

from extender.allocation.nodes.inventory import FabricPartitions, Inventory, fabric_partitions_of, inventory
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
from extender.allocation.nodes.pools import (
    Interned,
    Interns,
    KnownPools,
    KnownSlices,
    Pool,
    PoolDevice,
    WholePool,
    gather,
)

__all__ = [
    "SHARES",
    "UNUSED",
    "AllocatedState",
    "ChangeLog",
    "CounterKey",
    "FabricPartitions",
    "Interned",
    "Interns",
    "Inventory",
    "KnownPools",
    "KnownSlices",
    "NodeState",
    "Pool",
    "PoolDevice",
    "PoolGroup",
    "PoolUse",
    "SharedUse",
    "WholePool",
    "fabric_partitions_of",
    "gather",
    "inventory",
    "live_use",
    "overdrawn_counters",
    "troubled",
    "uses_of",
]
