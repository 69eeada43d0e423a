"""The picture of the cluster: events in, snapshots out. Pure: no sockets, no clock but the `now` it is given.

What belongs here: the object index, allocated devices, reservations, the NodeInfo builder.
"""

from extender.cache.allocated_devices import CLAIM
from extender.cache.cluster_cache import ClusterCache, NoListener
from extender.cache.object_index import ALL_NODES

__all__ = [
    "ALL_NODES",
    "CLAIM",
    "ClusterCache",
    "NoListener",
]
