"""The turn of the gang that waits longest for the end of other gangs' plans.

Two gangs never form on one node. So a large gang, which needs many nodes, would wait without end while ever new small
gangs form on some of them. Gangs that are complete since a later time do not form on the nodes of the one that has
the turn. A gang that kube-scheduler does not try any more loses its turn, and the gangs of its namespace come after
those of others for a while: a tenant may have many gangs of this kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from cachetools import LRUCache

from extender.model import GroupKey

_ABSENT_SECONDS = 15.0  # from the requeue on; kube-scheduler retries a pod after 10 s at most
_LAST_SECONDS = 60.0  # for which the gangs of a namespace that lost a turn come last


@dataclass(slots=True)
class WaitingTurn:
    """The gang that has the turn, and the nodes of its last plan."""

    key: GroupKey
    nodes: frozenset[str]
    complete_since: float
    requeued_at: float = inf  # when kube-scheduler was told to retry the gang; infinite if it has asked since


class GangTurn:
    """At most one gang has the turn.

    `waits` tells whether a gang still waits for another one. `clock` returns seconds. At most so many `namespaces` that
    lost a turn are remembered.
    """

    def __init__(self, clock: Callable[[], float], waits: Callable[[GroupKey], bool], namespaces: int = 1024) -> None:
        self._clock = clock
        self._waits = waits
        self._first: WaitingTurn | None = None
        self._lost = False  # whether a gang has lost its turn since the last call of `lost`
        self._lost_at: LRUCache[str, float] = LRUCache(namespaces)  # by namespace

    def wait(self, key: GroupKey, nodes: frozenset[str], complete_since: float) -> None:
        """Give the turn to a gang that waits for another one, although it fits on these nodes, if it comes first."""
        first, new = self._valid(), WaitingTurn(key, nodes, complete_since)
        if first is None or first.key == key or self._order(new) < self._order(first):
            self._first = new

    def asked(self, key: GroupKey) -> None:
        """kube-scheduler tries this gang, and it still waits: it keeps its turn."""
        if self._first is not None and self._first.key == key:
            self._first.requeued_at = inf

    def unfinished(self, key: GroupKey) -> None:
        """The plan of this gang took longer than a call. If the gang has the turn, its time to lose the turn runs."""
        if self.key == key:
            self.requeued()

    def leave(self, key: GroupKey) -> bool:
        """Take the turn from a gang that waits for no other one any more. Returns whether it had the turn."""
        had = self.key == key
        if had:
            self._first = None
        return had

    @property
    def key(self) -> GroupKey | None:
        """The gang that has the turn; None if there is none."""
        return first.key if (first := self._first) is not None else None

    def before(self, key: GroupKey, complete_since: float) -> WaitingTurn | None:
        """The gang on whose nodes this one must not form, if there is one."""
        first, new = self._valid(), WaitingTurn(key, frozenset(), complete_since)
        return first if first is not None and first.key != key and self._order(first) < self._order(new) else None

    def requeued(self) -> None:
        """kube-scheduler retries the gangs that wait."""
        if self._first is not None:
            self._first.requeued_at = min(self._first.requeued_at, self._clock())

    def lost(self) -> bool:
        """Whether a gang has lost its turn since the last call of this function."""
        self._valid()
        lost, self._lost = self._lost, False
        return lost

    @property
    def next_deadline(self) -> float:
        """When the turn is lost; infinite if it will not be."""
        return self._first.requeued_at + _ABSENT_SECONDS if self._first is not None else inf

    def _order(self, gang: WaitingTurn) -> tuple[bool, float]:
        is_last = self._lost_at.get(gang.key.namespace, -inf) + _LAST_SECONDS > self._clock()
        return is_last, gang.complete_since

    def _valid(self) -> WaitingTurn | None:
        first = self._first
        if first is None:
            return None
        now = self._clock()
        is_absent = self.next_deadline <= now
        if is_absent:
            self._lost_at[first.key.namespace] = now
        if is_absent or not self._waits(first.key):
            self._first, self._lost = None, True
        return self._first
