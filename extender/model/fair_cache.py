"""A bounded cache in which no namespace takes the place of others."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from itertools import zip_longest
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class FairCache(Generic[Key, Value]):
    """At most `limit` values. Beyond that, the namespace with the most values loses the least recently used ones.

    A value of size n counts as n values.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._namespaces: dict[str, OrderedDict[Key, Value]] = {}
        self._namespace_of: dict[Key, str] = {}
        self._size_of: dict[Key, int] = {}
        self._sizes: Counter[str] = Counter()  # the sum of each namespace
        self._size = 0  # the sum of all

    def __len__(self) -> int:
        return len(self._namespace_of)

    def __contains__(self, key: Key) -> bool:
        return key in self._namespace_of

    def get(self, key: Key) -> Value | None:
        """The value, or None. This is a use."""
        namespace = self._namespace_of.get(key)
        if namespace is None:
            return None
        values = self._namespaces[namespace]
        values.move_to_end(key)
        return values[key]

    def put(self, namespace: str, key: Key, value: Value, size: int = 1) -> list[tuple[Key, Value]]:
        """Add or replace a value. Returns the keys and the values that were dropped for it."""
        self.pop(key)
        self._namespaces.setdefault(namespace, OrderedDict())[key] = value
        self._namespace_of[key] = namespace
        self._size_of[key] = size = min(size, self._limit)
        self._sizes[namespace] += size
        self._size += size
        dropped = []
        while self._size > self._limit:
            largest = max(self._namespaces, key=self._sizes.__getitem__)
            oldest = next(iter(self._namespaces[largest].items()))
            self.pop(oldest[0])
            dropped.append(oldest)
        return dropped

    def pop(self, key: Key) -> Value | None:
        """Remove and return the value; None if there is none."""
        namespace = self._namespace_of.pop(key, None)
        if namespace is None:
            return None
        values, size = self._namespaces[namespace], self._size_of.pop(key)
        found = values.pop(key)
        self._sizes[namespace] -= size
        self._size -= size
        if not values:
            del self._namespaces[namespace], self._sizes[namespace]
        return found

    def take_turn(self) -> tuple[Key, Value] | None:
        """Remove and return the least recently used value of the next namespace; None if the cache is empty."""
        namespace = next(iter(self._namespaces), None)
        if namespace is None:
            return None
        key, value = next(iter(self._namespaces[namespace].items()))
        self.pop(key)
        if namespace in self._namespaces:
            self._namespaces[namespace] = self._namespaces.pop(namespace)
        return key, value

    def clear(self) -> None:
        """Remove all values."""
        self._namespaces.clear()
        self._namespace_of.clear()
        self._size_of.clear()
        self._sizes.clear()
        self._size = 0

    @property
    def namespaces(self) -> list[str]:
        """The namespaces with values."""
        return list(self._namespaces)

    def of(self, namespace: str) -> Mapping[Key, Value]:
        """The values of a namespace by key, the least recently used first."""
        return self._namespaces.get(namespace, {})

    def items(self) -> Iterator[tuple[Key, Value]]:
        """The first value of each namespace, then the second of each, and so on, the least recently used first."""
        turns = zip_longest(*(list(values.items()) for values in self._namespaces.values()))
        return (item for turn in turns for item in turn if item is not None)

    def values(self) -> Iterator[Value]:
        """The values, in any order."""
        return (value for values in self._namespaces.values() for value in values.values())
