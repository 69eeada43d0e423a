"""What is known of nodes: their pools and devices, what is allocated there, and the states that nodes share.

The cache builds it for its snapshots (slices -> pools -> inventory -> NodeInfo). NodeInfo and Snapshot are exported by
`extender.allocation`. The module `locality` is a face of its own: where the devices of a node are.
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
from extender.allocation.nodes.pools import KnownPools, Pool, WholePool, gather

__all__ = [
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
    "NodeState",
    "Partitions",
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
    "troubled",
    "uses_of",
]
