"""Limits how often slices that name one node can have all other nodes of their pool built again.

The driver of a node may publish a slice in the name of a pool that all nodes see. To build 4,000 nodes takes 0.3 s.
"""

from __future__ import annotations

from math import inf

from extender.model import PoolKey

SECONDS = 5.0  # between two such changes of any pools that are used at once


class SharedPoolChanges:
    """The pools whose last changes wait: other nodes than the slice's keep their view of these pools.

    Times are in seconds of the service's clock.
    """

    def __init__(self) -> None:
        self.waiting: set[PoolKey] = set()
        self._rests_until = -inf

    def allows(self, pool: PoolKey, now: float) -> bool:
        """Whether a change of the pool is used now. If not, the pool waits for `expire`."""
        if now >= self._rests_until and not self.waiting:  # else `expire` is due: the pools that wait come first
            self._rests_until = now + SECONDS
            return True
        self.waiting.add(pool)
        return False

    def expire(self, now: float) -> set[PoolKey]:
        """The pools whose newest slices are used from now on."""
        if self.next_deadline > now:
            return set()
        ended, self.waiting = self.waiting, set()
        self._rests_until = now + SECONDS
        return ended

    @property
    def next_deadline(self) -> float:
        """The time at which the waiting pools have waited long enough; or infinity."""
        return self._rests_until if self.waiting else inf
