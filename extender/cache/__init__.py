"""The in-memory cache of the cluster: watch events change it, and snapshots read it.

It contains the object index, allocated devices, reservations and the NodeInfo builder. It opens no socket and reads no
clock: callers pass the time as `now`.
"""

from extender.cache.allocated_devices import CLAIM
from extender.cache.cluster_cache import CacheListener, ClusterCache
from extender.cache.object_index import ALL_NODES
from extender.cache.slice_indexes import tainted

__all__ = [
    "ALL_NODES",
    "CLAIM",
    "CacheListener",
    "ClusterCache",
    "tainted",
]
