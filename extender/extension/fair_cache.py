"""A bounded cache by group in which no namespace takes the room of others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import zip_longest
from typing import Generic, TypeVar

from extender.model import GroupKey

Value = TypeVar("Value")


class FairCache(Generic[Value]):
    """At most `limit` values. Beyond that, the namespace with the most values loses the least recently used one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._namespaces: dict[str, OrderedDict[GroupKey, Value]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, key: GroupKey) -> Value | None:
        """The value, or None. This is a use."""
        values = self._namespaces.get(key.namespace)
        if values is None or key not in values:
            return None
        values.move_to_end(key)
        return values[key]

    def put(self, key: GroupKey, value: Value) -> None:
        """Add or replace a value."""
        self.pop(key)
        self._namespaces.setdefault(key.namespace, OrderedDict())[key] = value
        self._count += 1
        if self._count > self._limit:
            largest = max(self._namespaces.values(), key=len)
            self.pop(next(iter(largest)))

    def pop(self, key: GroupKey) -> Value | None:
        """Remove and return the value; None if there is none."""
        values = self._namespaces.get(key.namespace)
        if values is None or key not in values:
            return None
        self._count -= 1
        found = values.pop(key)
        if not values:
            del self._namespaces[key.namespace]
        return found

    def items(self) -> Iterator[tuple[GroupKey, Value]]:
        """The first value of each namespace, then the second of each, and so on, the least recently used first."""
        turns = zip_longest(*(list(values.items()) for values in self._namespaces.values()))
        return (item for turn in turns for item in turn if item is not None)

    def values(self) -> Iterator[Value]:
        """The values, in any order."""
        return (value for values in self._namespaces.values() for value in values.values())
