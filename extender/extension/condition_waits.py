"""Binds that wait for binding conditions: each keeps an HTTP connection, and a driver has no deadline.

Members of a gang have slots of their own (`gang_admission.py`). A bind that waits for the bind of another pod, or for
the write that reserves a shared claim, needs no slot: it waits for answers of the API server, as all binds do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WaitLimits:
    """How many binds may wait at the same time. The others fail at once, and kube-scheduler calls again."""

    total: int = 48  # with the slots of gangs, 16 below the connections to the verbs
    namespace: int = 32


class ConditionWaits:
    """The binds that wait now, by namespace."""

    def __init__(self, limits: WaitLimits | None = None) -> None:
        self._limits = limits or WaitLimits()
        self._waiting: Counter[str] = Counter()

    @contextmanager
    def slot(self, namespace: str) -> Iterator[bool]:
        """A slot for one bind; False if there is none for its namespace."""
        waiting, limits = self._waiting, self._limits
        if waiting[namespace] >= limits.namespace or waiting.total() >= limits.total:
            yield False
            return
        waiting[namespace] += 1
        try:
            yield True
        finally:
            waiting[namespace] -= 1
            if not waiting[namespace]:
                del waiting[namespace]
