"""A bounded cache in which no namespace takes the place of others."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@dataclass(slots=True, eq=False)
class _Entry(Generic[Key, Value]):
    namespace: str
    key: Key
    value: Value
    size: int = 0


class FairLRU(Generic[Key, Value]):
    """At most `limit` values. Beyond that, the namespace with the most values loses the least recently used ones.

    `size_of` gives the size of a value in the unit of `limit`: the number of usual values that it is worth, or bytes. A
    value larger than the limit counts as the limit.
    """

    def __init__(self, limit: int, size_of: Callable[[Value], int] = lambda _: 1) -> None:
        self._limit = limit
        self._size_of = size_of
        self._entries: dict[Key, _Entry[Key, Value]] = {}
        # The least recently used first.
        self._namespaces: dict[str, OrderedDict[_Entry[Key, Value], None]] = {}
        self._sizes: Counter[str] = Counter()  # the sum of each namespace
        self.size = 0  # the sum of all

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def get(self, key: Key) -> Value | None:
        """The value, or None. This is a use."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._namespaces[entry.namespace].move_to_end(entry)
        return entry.value

    def put(self, namespace: str, key: Key, value: Value) -> list[tuple[Key, Value]]:
        """Add or replace a value. Returns the keys and the values that were dropped for it."""
        if key in self._entries:
            self.pop(key)
        entry = self._entries[key] = _Entry(namespace, key, value)
        entries = self._namespaces.get(namespace)
        if entries is None:
            entries = self._namespaces[namespace] = OrderedDict()
        entries[entry] = None
        return self._measure(entry)

    def measure(self, key: Key) -> list[tuple[Key, Value]]:
        """Ask for the size of a value that may have grown, if it is known. Returns what was dropped, as `put`."""
        entry = self._entries.get(key)
        return self._measure(entry) if entry is not None else []

    def _measure(self, entry: _Entry[Key, Value]) -> list[tuple[Key, Value]]:
        self._count(entry, min(self._size_of(entry.value), self._limit))
        dropped = list[tuple[Key, Value]]()
        while self.size > self._limit:
            largest = max(self._namespaces, key=self._sizes.__getitem__)
            oldest = next(iter(self._namespaces[largest]))
            self.pop(oldest.key)
            dropped.append((oldest.key, oldest.value))
        return dropped

    def pop(self, key: Key) -> Value | None:
        """Remove and return the value; None if there is none."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._count(entry, 0)
        entries = self._namespaces[entry.namespace]
        del entries[entry]
        if not entries:
            del self._namespaces[entry.namespace], self._sizes[entry.namespace]
        return entry.value

    def pop_next(self) -> tuple[Key, Value] | None:
        """Remove and return the least recently used value of the next namespace; None if the cache is empty."""
        namespace = next(iter(self._namespaces), None)
        if namespace is None:
            return None
        entry = next(iter(self._namespaces[namespace]))
        self.pop(entry.key)
        if namespace in self._namespaces:
            self._namespaces[namespace] = self._namespaces.pop(namespace)
        return entry.key, entry.value

    def clear(self) -> None:
        """Remove all values."""
        self._entries.clear()
        self._namespaces.clear()
        self._sizes.clear()
        self.size = 0

    @property
    def namespaces(self) -> list[str]:
        """The namespaces with values."""
        return list(self._namespaces)

    def of(self, namespace: str) -> Iterator[tuple[Key, Value]]:
        """The keys and values of a namespace, the least recently used first."""
        return ((entry.key, entry.value) for entry in self._namespaces.get(namespace, ()))

    def items(self) -> Iterator[tuple[Key, Value]]:
        """The first value of each namespace, then the second of each, and so on, the least recently used first."""
        turns = zip_longest(*map(list, self._namespaces.values()))
        return ((entry.key, entry.value) for turn in turns for entry in turn if entry is not None)

    def values(self) -> Iterator[Value]:
        """The values, in any order."""
        return (entry.value for entry in self._entries.values())

    def _count(self, entry: _Entry[Key, Value], size: int) -> None:
        self._sizes[entry.namespace] += size - entry.size
        self.size += size - entry.size
        entry.size = size
