"""The in-memory cache of the cluster: watch events change it, and snapshots read it.

The whole story, from an event to a snapshot:

1. A reflector calls `ClusterCache.apply_…` with a decoded object, or with None for a deletion.
2. The object goes into one of two indexes: `SliceIndex` for slices and the rules that taint them, `ObjectIndex` for
   everything else. They keep what snapshots look up: devices by pool and node, claims by group, pods by gang.
   `AllocatedDevices` has the devices of allocated claims, with what binds and filter reserve.
3. The index marks the nodes that the event changes: dirty, or only the use of their devices. Nothing is computed yet. A
   driver that changes a node too often waits for a timer, and its newest objects are used then.
4. `snapshot` builds the NodeInfo of each marked node (`NodeInfoBuilder`); `rebuild` does a part of it before. Equal
   nodes share one state (`NodeInfos`), so that an evaluation is done once for all of them. A node whose build fails
   keeps its last NodeInfo until its data change. If nothing changed, the snapshot is the same object.

`Reservations` holds devices between filter and bind; its table is in `allocated_devices.py`. What happens later without
an event is one list of timers (`TimerKind`): the ends of holds, changes that waited, silent agents.

The cache opens no socket and reads no clock: callers pass the time as `now`.
"""

from extender.cache.allocated_devices import CLAIM
from extender.cache.cluster_cache import CacheListener, ClusterCache
from extender.cache.slice_index import ALL_NODES

__all__ = [
    "ALL_NODES",
    "CLAIM",
    "CacheListener",
    "ClusterCache",
]
