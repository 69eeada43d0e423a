"""Operations on claims that no pod can use: a few at a time, and the namespaces take turns.

Each sends several requests, and may wait for seconds. A tenant may have thousands of claims that need one, and binds
use the same connections to the API server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from extender.model import FairLRU, ObjectKey
from extender.runtime import Supervisor

_AT_ONCE = 32  # half of the connections to the API server
_WAITING = 4096  # operations; beyond that, the next filter request or sweep asks for it again

Operation = Callable[[], Coroutine[Any, Any, None]]


class TakeBacks:
    """Runs at most one operation on a claim at a time, and at most `at_once` in all."""

    def __init__(self, supervisor: Supervisor, at_once: int = _AT_ONCE) -> None:
        self._supervisor = supervisor
        self._at_once = at_once
        self._running: set[ObjectKey] = set()
        self._waiting: FairLRU[ObjectKey, None] = FairLRU(_WAITING)
        self._operations: dict[ObjectKey, Operation] = {}  # of the claims that wait

    def __len__(self) -> int:
        """How many claims have an operation that runs or waits."""
        return len(self._running) + len(self._waiting)

    def start(self, key: ObjectKey, operation: Operation) -> None:
        """Run an operation on a claim soon, unless one runs.

        It replaces an operation that waits, whose claim may have changed since: that operation would do nothing, and
        nothing might ask for another one for minutes.
        """
        if key in self._running:
            return
        self._operations[key] = operation
        if key not in self._waiting:
            for dropped, _ in self._waiting.put(key.namespace, key, None):
                del self._operations[dropped]
            self._begin()

    def _begin(self) -> None:
        while len(self._running) < self._at_once and (turn := self._waiting.take_turn()) is not None:
            key, _ = turn
            self._running.add(key)
            task = self._supervisor.spawn("take-back", self._operations.pop(key)())
            task.add_done_callback(partial(self._ended, key))

    def _ended(self, key: ObjectKey, _: asyncio.Task[None]) -> None:
        self._running.discard(key)
        self._begin()
