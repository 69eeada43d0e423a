"""The CPU, memory and pods that the nodes of a replay have left, as NodeResourcesFit of kube-scheduler counts them.

It filters, and scores by its strategy: LeastAllocated by default, MostAllocated in scheduler-config/. One point of an
extender weighs 200 there, and this score is at most 100: so it decides between nodes with equal points of Berth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from extender.api.pod_amounts import Amounts


class NodeRoom:
    """What each node has left of `total`. `names` are all nodes, sorted."""

    def __init__(self, total: Mapping[str, Amounts], left: Mapping[str, Amounts]) -> None:
        self.names = sorted(left)
        self._total = total
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

    def best(self, names: Iterable[str], asked: Amounts, *, most_allocated: bool) -> list[str]:
        """The nodes with the highest score; all of them if neither CPU nor memory is asked for."""
        if not asked.cpu and not asked.ram:
            return list(names)
        scores = {name: self._free(name, asked) for name in names}
        best = (min if most_allocated else max)(scores.values())
        return [name for name, score in scores.items() if score == best]

    def _free(self, name: str, asked: Amounts) -> int:
        """The percentage of CPU and memory that would stay free, in whole numbers as kube-scheduler computes it."""
        left, total = self._left[name], self._total[name]
        cpu = (left.cpu - asked.cpu) * 100 // max(total.cpu, 1)
        return (cpu + (left.ram - asked.ram) * 100 // max(total.ram, 1)) // 2

    def _put(self, node: str, left: Amounts) -> None:
        self._left[node] = left
        (self._full.add if left.pods < 1 else self._full.discard)(node)
