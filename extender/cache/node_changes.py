"""Limits how often the drivers and the agent of a node can have it built again.

After each change, every waiting template may need a long search on the node: 1,024 GPUs of ever new products, written
20 times a second, left pods with matchAttribute 13 % of their rate.
"""

from __future__ import annotations

from math import inf

from cachetools import LRUCache

BURST = 16  # changes of a node that are used at once: a driver that starts writes all its slices
SECONDS = 5.0  # until a node has one of these changes more; and for which a change beyond them waits
_REMEMBERED = 8192  # nodes with recent changes


class NodeChanges:
    """`waiting` are the nodes that keep their last view until `expire` returns them, with their deadlines.

    Times are in seconds of the service's clock.
    """

    def __init__(self) -> None:
        self._left: LRUCache[str, tuple[float, float]] = LRUCache(_REMEMBERED)  # changes left, and when that was true
        self.waiting: dict[str, float] = {}  # the earliest deadline first

    def allows(self, node: str, now: float) -> bool:
        """Whether a change of the node is used now. If not, the node waits for `expire`."""
        if node in self.waiting:
            return False
        left, at = self._left.get(node, (BURST, now))
        left = min(BURST, left + max(0.0, now - at) / SECONDS)
        if left < 1:
            self.waiting[node] = now + SECONDS
            return False
        self._left[node] = left - 1, now
        return True

    def expire(self, now: float) -> list[str]:
        """The nodes whose newest slices are used from now on."""
        ended = []
        while self.next_deadline <= now:
            ended.append(node := next(iter(self.waiting)))
            del self.waiting[node]
            self._left[node] = 0.0, now
        return ended

    def forget(self, node: str) -> None:
        """Drop a deleted node."""
        self.waiting.pop(node, None)
        self._left.pop(node, None)

    @property
    def remembered(self) -> int:
        """The number of nodes with recent changes."""
        return len(self._left)

    @property
    def next_deadline(self) -> float:
        """The earliest deadline of a waiting node; or infinity."""
        return next(iter(self.waiting.values()), inf)
