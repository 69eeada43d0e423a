"""Limits the devices of one node. Each change of a node costs time that grows with its devices."""

from __future__ import annotations

from bisect import bisect_left, insort

from extender.model import PoolKey, Slice

MAX_NODE_DEVICES = 8192  # see _size; a node with SR-IOV may have 2,048 devices, and twice as many during an update
_COUNTERS = 8  # that a device consumes and that count as one more device; MIG devices consume some 20
_POOL = 8  # devices that take as much time as a pool; a driver may publish each slice in a pool of its own
_NAMED = 32  # of the pools that are left out
TOO_MANY = f"the node has more than {MAX_NODE_DEVICES} devices: Berth leaves out its largest pools"


class NodeSlices:
    """The slices that name one node. If they have too many devices, the largest pools are left out.

    The other pools stay: one driver must not take the devices of others from their pods. The time of each method is
    limited, however many slices and pools a driver publishes.
    """

    def __init__(self) -> None:
        self._pools: dict[PoolKey, dict[str, Slice]] = {}  # slices by name
        self._sizes: dict[PoolKey, int] = {}
        self._sorted: list[tuple[int, PoolKey]] = []  # size and pool, the smallest first

    def __bool__(self) -> bool:
        return bool(self._pools)

    def put(self, new: Slice) -> None:
        """Add a slice. Its name must be unknown."""
        self._pools.setdefault(new.pool, {})[new.name] = new
        self._resize(new.pool, _size(new))

    def remove(self, old: Slice) -> None:
        """Remove a slice."""
        del self._pools[old.pool][old.name]
        if not self._pools[old.pool]:
            del self._pools[old.pool]
        self._resize(old.pool, -_size(old))

    def _resize(self, pool: PoolKey, by: int) -> None:
        before = self._sizes.pop(pool, 0)
        if before:
            del self._sorted[bisect_left(self._sorted, (before, pool))]
        if pool in self._pools:
            self._sizes[pool] = (before or _POOL) + by
            insort(self._sorted, (self._sizes[pool], pool))

    def kept(self) -> dict[PoolKey, dict[str, Slice]]:
        """The slices of the pools that are not left out, by pool and name."""
        found, left = dict[PoolKey, dict[str, Slice]](), MAX_NODE_DEVICES + _POOL  # one pool is free
        for size, pool in self._sorted:
            left -= size
            if left < 0:
                break
            found[pool] = self._pools[pool]
        return found

    def left_out(self, kept: int) -> list[PoolKey]:
        """The largest pools that are left out, sorted by key; `kept` is the number of those that are not."""
        return sorted(pool for _, pool in self._sorted[max(kept, len(self._sorted) - _NAMED) :])

    def __contains__(self, pool: object) -> bool:
        """Whether a slice of the pool names the node."""
        return pool in self._pools


def _size(slice_: Slice) -> int:
    """The number of devices, plus what takes about as much time: the slice itself, and counters."""
    consumed = sum(len(use.counters) for device in slice_.devices for use in device.consumes)
    counters = sum(len(one.counters) for one in slice_.counter_sets)
    return 1 + len(slice_.devices) + counters + consumed // _COUNTERS
