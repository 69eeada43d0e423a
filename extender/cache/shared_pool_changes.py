"""Limits how often slices that name one node can have all other nodes of their pool built again.

The driver of a node may publish a slice in the name of a pool that all nodes see. To build 4,000 nodes takes 0.3 s. And
20 writes a second in the name of a rack's pool took a quarter of the time.
"""

from __future__ import annotations

from math import inf

from extender.model import PoolKey

SECONDS = 5.0  # between two such changes of any pools that many nodes see, if they are used at once
_FEW = 64  # nodes; a rack has fewer
_MOST = 512  # nodes that changes of pools of a few nodes mark at once in these seconds; to build them takes 0.1 s


class SharedPoolChanges:
    """The pools whose last changes wait: other nodes than the slice's keep their view of these pools.

    Times are in seconds of the service's clock.
    """

    def __init__(self) -> None:
        self.waiting: set[PoolKey] = set()
        self._rests_until = -inf
        self._left = _MOST

    def allows(self, pool: PoolKey, nodes: float, now: float) -> bool:
        """Whether a change of the pool, which so many nodes see, is used now. If not, the pool waits for `expire`."""
        rests = now < self._rests_until or bool(self.waiting)  # the pools that wait come first: `expire` may be due
        if not rests:
            self._rests_until, self._left = now + SECONDS, _MOST
        if nodes < _FEW:
            rests = nodes > self._left
            self._left -= 0 if rests else int(nodes)
        if rests:
            self.waiting.add(pool)
        return not rests

    def expire(self, now: float) -> set[PoolKey]:
        """The pools whose newest slices are used from now on."""
        if self.next_deadline > now:
            return set()
        ended, self.waiting = self.waiting, set()
        self._rests_until, self._left = now + SECONDS, _MOST
        return ended

    @property
    def next_deadline(self) -> float:
        """The time at which the waiting pools have waited long enough; or infinity."""
        return self._rests_until if self.waiting else inf
