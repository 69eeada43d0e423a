"""Partitions of a GPU fabric: the only sets of whole GPUs that a driver joins for one claim.

A driver publishes them with the feature gate FabricManagerPartitioning. It prepares a claim only if the claim's
GPUs are exactly the members of one partition (activateFabricPartition in cmd/gpu-kubelet-plugin/device_state.go). That
holds for each claim on its own, also for one GPU, for several requests and for admin access. A GPU without such
attributes, on a node where others have them, is in no partition.
"""

from __future__ import annotations

from typing import NamedTuple

from extender.allocation.nodes.inventory import Inventory
from extender.vendors import driver_of


class Partitions(NamedTuple):
    """Masks of devices: all whole GPUs of the node, and those of each partition."""

    gpus: int
    sets: tuple[int, ...]

    def within(self, devices: int, least: int, most: int) -> tuple[int, ...]:
        """The partitions of `least` to `most` GPUs that have no other GPUs than those of `devices`."""
        return tuple(one for one in self.sets if not one & ~devices and least <= one.bit_count() <= most)


def partitions_of(found: Inventory) -> Partitions | None:
    """The partitions of a node; None if no GPU names one, so that each set of GPUs can be joined."""
    sets: dict[tuple[int, object], int] = {}
    gpus = 0
    for bit in (first + position for first, part in found.parts for position, _ in part.gpus):
        gpus |= 1 << bit
        attributes = found.devices[bit].device.attributes
        for size, name in driver_of(found.devices[bit].id.driver).partitions:
            number = attributes.typed(name)  # the usual answer, None, takes a tenth of the time that `get` takes
            if number is not None:
                sets[size, number] = sets.get((size, number), 0) | 1 << bit
    # A partition with a GPU that the node lacks cannot be had.
    whole = (mask for (size, _), mask in sets.items() if mask.bit_count() == size)
    return Partitions(gpus, tuple(sorted(whole))) if sets else None
