"""Limits the devices of one node. Each change of a node costs time that grows with its devices."""

from __future__ import annotations

from collections.abc import Collection

from extender.model import PoolKey, Slice

MAX_NODE_DEVICES = 8192  # see _size; a node with SR-IOV may have 2,048 devices, and twice as many during an update
_COUNTERS = 8  # that a device consumes and that count as one more device; MIG devices consume some 20
TOO_MANY = f"the node has more than {MAX_NODE_DEVICES} devices: Berth leaves out its largest pools"


def pools_left_out(own: Collection[Slice]) -> set[PoolKey]:
    """The largest pools of a node, if its slices have too many devices.

    The other pools stay: one driver must not take the devices of others from their pods.
    """
    sizes: dict[PoolKey, int] = {}
    for slice_ in own:
        sizes[slice_.pool] = sizes.get(slice_.pool, 0) + _size(slice_)
    total = sum(sizes.values())
    found = set[PoolKey]()
    for pool in sorted(sizes, key=lambda key: (sizes[key], key), reverse=True):
        if total <= MAX_NODE_DEVICES:
            break
        found.add(pool)
        total -= sizes[pool]
    return found


def _size(slice_: Slice) -> int:
    """The number of devices, plus what takes about as much time: the slice itself, and counters."""
    consumed = sum(len(use.counters) for device in slice_.devices for use in device.consumes)
    counters = sum(len(one.counters) for one in slice_.counter_sets)
    return 1 + len(slice_.devices) + counters + consumed // _COUNTERS
