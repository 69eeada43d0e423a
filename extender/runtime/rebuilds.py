"""Builds the NodeInfos of many changed nodes in stretches, so that the event loop stays free."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from extender.cache import ClusterCache

_STRETCH_SECONDS = 0.005
_STEP = 4  # nodes or slices between two looks at the clock
_FEW = 8  # changed nodes that a snapshot builds at once


class Rebuilds:
    """A caller of `done` builds the remaining nodes, and yields to the event loop after each stretch.

    Without a caller nothing is built: the next snapshot builds everything at once. `stretch` is in seconds.
    """

    def __init__(
        self,
        cache: ClusterCache,
        clock: Callable[[], float] = time.perf_counter,
        stretch: float = _STRETCH_SECONDS,
    ) -> None:
        self._cache = cache
        self._clock = clock
        self._stretch = stretch
        self._building = asyncio.Lock()
        self._computed = 0  # nodes and slices since the start

    async def done(self) -> None:
        """Wait until the next snapshot has to build only a few nodes. Call it before work that takes a snapshot.

        While changes come faster than their nodes are built, the wait ends after as many nodes as had to be built when
        it began. The snapshot then builds the rest at once.
        """
        backlog = self._cache.backlog
        if backlog <= _FEW:
            return
        enough = self._computed + backlog
        async with self._building:  # one caller builds, so that a stretch is all that other tasks wait for
            while self._cache.backlog > _FEW and self._computed < enough:
                until = self._clock() + self._stretch
                while self._cache.backlog > _FEW and self._clock() < until:
                    self._cache.rebuild(_STEP)
                    self._computed += _STEP
                await asyncio.sleep(0)
