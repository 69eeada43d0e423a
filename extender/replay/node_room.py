"""The CPU, memory and places that the nodes of a replay have left, as NodeResourcesFit counts them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Amounts(NamedTuple):
    """CPU in thousandths of a core, memory in bytes, and pods."""

    cpu: int = 0
    ram: int = 0
    pods: int = 0


class NodeRoom:
    """What each node has left. `names` are all nodes, sorted."""

    def __init__(self, left: Mapping[str, Amounts]) -> None:
        self.names = sorted(left)
        self._left = {name: left[name] for name in self.names}
        self._full = {name for name in self.names if left[name].pods < 1}

    def take(self, node: str, asked: Amounts) -> None:
        """A pod is placed on a node."""
        cpu, ram, pods = self._left[node]
        self._put(node, Amounts(cpu - asked.cpu, ram - asked.ram, pods - asked.pods))

    def give(self, node: str, asked: Amounts) -> None:
        """A pod has left a node."""
        cpu, ram, pods = self._left[node]
        self._put(node, Amounts(cpu + asked.cpu, ram + asked.ram, pods + asked.pods))

    def with_room(self, asked: Amounts) -> list[str]:
        """The nodes that have these amounts, sorted. The caller must not change the list."""
        need_cpu, need_ram, need_pods = asked
        if not need_cpu and not need_ram:
            return [name for name in self.names if name not in self._full] if self._full else self.names
        return [
            name
            for name, (cpu, ram, pods) in self._left.items()
            if cpu >= need_cpu and ram >= need_ram and pods >= need_pods
        ]

    def _put(self, node: str, left: Amounts) -> None:
        self._left[node] = left
        (self._full.add if left.pods < 1 else self._full.discard)(node)
