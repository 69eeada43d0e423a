"""The planner's memory between calls: evaluations of nodes, by the equivalence class of the node.

A call whose time ends leaves its evaluations here. The next call repeats the plan from the start, finds them, and so
gets further. The memory changes how long a plan takes, never its devices; only scores may compare with an older fleet.
If one namespace could replace the evaluations of another between two calls, the plan of the other would never end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from extender.scheduling.node_ranking import NodeRanking

# Estimated bytes, as in node_ranking.py.
_LIMIT_BYTES = 16 << 20  # about 10,000 evaluations
_ENTRY_BYTES, _PLACEMENT_BYTES, _PICK_BYTES = 400, 480, 112


class GangMemory:
    """A cache limited by estimated bytes: beyond the limit, the namespace with the most bytes loses its oldest entries.

    Entries of a ranking that no longer exists are never found again.
    """

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._entries: dict[str, dict[Hashable, tuple[Any, int]]] = {}  # by namespace and key: the value, its bytes
        self._bytes: Counter[str] = Counter()  # by namespace
        self.estimated_bytes = 0
        self._numbers: WeakKeyDictionary[NodeRanking, int] = WeakKeyDictionary()
        self._next = count()

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def number(self, ranking: NodeRanking) -> int:
        """The number of a ranking, for keys. No number is used again."""
        found = self._numbers.get(ranking)
        if found is None:
            found = self._numbers[ranking] = next(self._next)
        return found

    def get(self, namespace: str, key: Hashable) -> Any:
        own = self._entries.get(namespace)
        found = own.get(key) if own is not None else None
        return found[0] if found is not None else None

    def put(self, namespace: str, key: Hashable, value: object, placements: int = 0, picks: int = 0) -> None:
        """Keep a value that has this number of placements and picked devices."""
        size = _ENTRY_BYTES + placements * _PLACEMENT_BYTES + picks * _PICK_BYTES
        if size > self._limit_bytes:
            return
        own = self._entries.setdefault(namespace, {})
        if key in own:
            self._count(namespace, -own.pop(key)[1])
        own[key] = value, size
        self._count(namespace, size)
        while self.estimated_bytes > self._limit_bytes:
            self._drop_oldest(max(self._bytes, key=self._bytes.__getitem__))

    def _drop_oldest(self, namespace: str) -> None:
        own = self._entries[namespace]
        self._count(namespace, -own.pop(next(iter(own)))[1])
        if not own:
            del self._entries[namespace], self._bytes[namespace]

    def _count(self, namespace: str, size: int) -> None:
        self._bytes[namespace] += size
        self.estimated_bytes += size
