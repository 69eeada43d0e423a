"""The use of pools whose devices belong to no node: all nodes that see the same pools refer to one object."""

from __future__ import annotations

from collections.abc import Mapping

from extender.allocation.interned import Interned
from extender.allocation.pools import PoolDevices
from extender.allocation.problem import PoolUse
from extender.model import PoolKey


class PoolGroup(Interned):
    """The shared pools that a node sees (`Inventory.shared_parts`). Nodes that see equal pools have one group."""

    __slots__ = ("keys", "parts")

    def __init__(self, parts: tuple[PoolDevices, ...]) -> None:
        super().__init__()
        self.parts = parts
        self.keys = frozenset(part.key for part in parts)


class SharedUse(Interned):
    """The allocated devices of a group; masks by pool, in the order of the group, from the pool's first device.

    Equal uses of one group are one object.
    """

    __slots__ = ("busy", "group", "held", "pools")

    def __init__(
        self, group: PoolGroup, pools: Mapping[PoolKey, PoolUse], busy: tuple[int, ...], held: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.group = group
        self.pools = pools
        self.busy = busy  # devices that cannot be allocated exclusively
        self.held = held  # those of them that only holds keep in use

    def gained(self, before: SharedUse) -> bool:
        """Whether the pools may have room that they did not have before."""
        return any(
            not use.taken <= self.pools[key].taken or use.shares != self.pools[key].shares
            for key, use in before.pools.items()
        )
