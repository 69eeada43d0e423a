"""The planner's memory between calls: evaluations of nodes, by the equivalence class of the node.

A call whose time ends leaves its evaluations here. The next call repeats the plan from the start, finds them, and so
gets further. The memory changes how long a plan takes, never its devices; only scores may compare with an older fleet.
If one namespace could replace the evaluations of another between two calls, the plan of the other would never end.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import count
from operator import itemgetter
from typing import Any
from weakref import WeakKeyDictionary

from extender.model import FairLRU
from extender.scheduling.node_ranking import NodeRanking

# Estimated bytes, as in node_ranking.py.
_LIMIT_BYTES = 16 << 20  # about 10,000 evaluations
_ENTRY_BYTES, _PLACEMENT_BYTES, _PICK_BYTES = 400, 480, 112


class GangMemory:
    """A FairLRU limited by estimated bytes. Entries of a ranking that no longer exists are never found again."""

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._entries: FairLRU[tuple[str, Hashable], tuple[Any, int]] = FairLRU(limit_bytes, itemgetter(1))
        self._numbers: WeakKeyDictionary[NodeRanking, int] = WeakKeyDictionary()
        self._next = count()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def estimated_bytes(self) -> int:
        """The estimated memory of all entries, in bytes."""
        return self._entries.size

    def number(self, ranking: NodeRanking) -> int:
        """The number of a ranking, for keys. No number is used again."""
        found = self._numbers.get(ranking)
        if found is None:
            found = self._numbers[ranking] = next(self._next)
        return found

    def get(self, namespace: str, key: Hashable) -> Any:
        found = self._entries.get((namespace, key))
        return found[0] if found is not None else None

    def put(self, namespace: str, key: Hashable, value: object, placements: int = 0, picks: int = 0) -> None:
        """Keep a value that has this number of placements and picked devices."""
        size = _ENTRY_BYTES + placements * _PLACEMENT_BYTES + picks * _PICK_BYTES
        if size <= self._limit_bytes:
            self._entries.put(namespace, (namespace, key), (value, size))
