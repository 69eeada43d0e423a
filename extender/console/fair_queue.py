"""The queue of a background task, in which namespaces take turns: costly pods of one delay those of others little."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from extender.base.fair_lru import FairLRU

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class FairQueue(Generic[Key, Value]):
    """At most `limit` values by key. Beyond it, the namespace with the most loses its oldest one."""

    def __init__(self, limit: int) -> None:
        self._waiting: FairLRU[Key, Value] = FairLRU(limit)
        self._queued = asyncio.Event()
        self.left_out = 0  # values that were dropped for others

    def put(self, namespace: str, key: Key, value: Value) -> None:
        """Add or replace a value."""
        self.left_out += len(self._waiting.put(namespace, key, value))
        self._queued.set()

    def put_later(self, seconds: float, namespace: str, key: Key, value: Value) -> None:
        """Add a value after this time; it takes no place of others until then."""
        asyncio.get_running_loop().call_later(seconds, self.put, namespace, key, value)

    def __contains__(self, key: Key) -> bool:
        return key in self._waiting

    def pop(self, key: Key) -> None:
        """Remove a value, if it waits."""
        self._waiting.pop(key)

    def items(self) -> Iterator[tuple[Key, Value]]:
        """All that wait."""
        return self._waiting.items()

    async def take(self) -> tuple[Key, Value]:
        """Wait for a value, and remove it: the oldest one of the next namespace."""
        while (following := self._waiting.pop_next()) is None:
            self._queued.clear()
            await self._queued.wait()
        return following
