"""Caches whose builds of NodeInfos are counted, or fail, and whose freed devices are counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from itertools import count

from extender.allocation import Features, NodeInfo
from extender.api.nodes import Node
from extender.cache import CacheListener, ClusterCache
from extender.cache.node_infos import NodeInfoBuilder
from extender.sandbox import carried_machines
from extender.sandbox.machines import gpu_slice, node_object
from tests.worlds.filled_caches import device_slice, put

NODES = 40
MAX_BUILT = 12  # nodes or slices that CacheRefresh builds in one time slice with the clock of `slow_clock`


def slow_clock() -> Callable[[], float]:
    """A clock by which each look takes 2 ms: a time slice of 5 ms has three, and four nodes are built between two."""
    looks = count()
    return lambda: 0.002 * next(looks)


class CountingBuilder(NodeInfoBuilder):
    """Counts the NodeInfos that a cache builds from now on. Builds of `failing` nodes, and the next one, may fail."""

    def __init__(self, cache: ClusterCache) -> None:
        super().__init__(Features(), cache.slices, cache.allocated_devices)
        cache.builder = self
        self.built: Counter[str] = Counter()  # also tries that failed
        self.failing: frozenset[str] = frozenset()
        self.next_fails = False

    def build(self, node: Node, previous: NodeInfo | None, *, only_use: bool) -> NodeInfo:
        self.built[node.name] += 1
        if node.name in self.failing or self.next_fails:
            self.next_fails = False
            raise ValueError(f"no view of {node.name}")
        return super().build(node, previous, only_use=only_use)


def many_nodes() -> ClusterCache:
    """NODES equal nodes."""
    cache, machine = ClusterCache(), carried_machines()["t4-4"]
    for number in range(NODES):
        put(cache, node_object(f"n{number}", machine, {}), gpu_slice(f"n{number}", machine))
    return cache


def shared_slice(cache: ClusterCache) -> None:
    """A slice that all nodes see changes."""
    put(cache, device_slice("net", "net.example.com", [{"name": "d0"}], nodeName=None, allNodes=True))


class Freed(CacheListener):
    """Counts how often devices may have become free."""

    count = 0

    def freed(self) -> None:
        self.count += 1


async def most_in_a_turn(builder: CountingBuilder, ended: Callable[[], bool]) -> int:
    """The most nodes that are built between two turns of this function."""
    most, before = 0, builder.built.total()
    while not ended():
        await asyncio.sleep(0)
        most, before = max(most, builder.built.total() - before), builder.built.total()
    return most
