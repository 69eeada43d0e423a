"""Requeues pods that Berth rejected.

kube-scheduler does not try a pod again when slices change, if an extender rejected the pod. So the requeuer updates an
annotation of one marker DeviceClass: at most once a second, and only if a rejected pod would now fit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

import structlog

from extender.cluster import ClusterError, Writer
from extender.model import MARKER_CLASS

ANNOTATION = "berth.dev/wake"
_PAUSE_SECONDS = 1.0
_STRETCH_SECONDS = 0.001  # of search before the requeuer yields to the event loop
_REST = 4.0  # pause after a stretch, as a multiple of its time: a search must not take the time of the calls


class Requeuer:
    """A background task of serve. Call `supply_changed` after every event that may make devices available.

    `stamp` returns the new value of the annotation. `pause` and `stretch` are in seconds, as `clock`.
    """

    def __init__(
        self,
        writer: Writer,
        stamp: Callable[[], str],
        pause: float = _PAUSE_SECONDS,
        stretch: float = _STRETCH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = writer
        self._stamp = stamp
        self._pause = pause
        self._stretch = stretch
        self._clock = clock
        self._changed = asyncio.Event()
        self._log = structlog.get_logger("berth.wake")
        self._requested = False  # the background evaluator found that a rejected pod fits
        self._touch_pending = False  # a rejected pod fits, and the DeviceClass is not updated yet
        self.touches = 0

    def supply_changed(self) -> None:
        """Search soon for a rejected pod that fits now."""
        self._changed.set()

    def requeue_now(self) -> None:
        """Update the DeviceClass soon without a search: the caller found that a rejected pod fits."""
        self._requested = True
        self._changed.set()

    async def run(self, search: Callable[[], Iterator[bool]], rebuilt: Callable[[], Awaitable[None]]) -> None:
        """Run until cancelled.

        `search` begins a search over the nodes that changed since the last one. It yields after each step; the last
        value is True if a rejected pod fits. A search or an update that failed is repeated after the pause, or when the
        supervisor starts this task again. See Rebuilds.done for `rebuilt`.
        """
        while True:
            await self._changed.wait()
            await self._once(search, rebuilt)
            await asyncio.sleep(self._pause)

    async def _once(self, search: Callable[[], Iterator[bool]], rebuilt: Callable[[], Awaitable[None]]) -> None:
        self._changed.clear()
        done = False
        try:
            self._touch_pending, self._requested = self._touch_pending or self._requested, False
            if not self._touch_pending:
                await self._search(search, rebuilt)
            self._touch_pending = self._touch_pending and not await self._touch()
            done = not self._touch_pending
        finally:
            if not done:
                self._changed.set()

    async def _search(self, search: Callable[[], Iterator[bool]], rebuilt: Callable[[], Awaitable[None]]) -> None:
        """Find out whether a rejected pod fits on a changed node. Pauses after every stretch."""
        await rebuilt()
        began = self._clock()
        for fits in search():
            self._touch_pending = fits
            took = self._clock() - began
            if not fits and took > self._stretch:
                await asyncio.sleep(_REST * took)
                await rebuilt()
                began = self._clock()

    async def _touch(self) -> bool:
        try:
            await self._writer.touch_class(MARKER_CLASS, ANNOTATION, self._stamp())
        except ClusterError as error:
            self._log.warning("could not requeue waiting pods", device_class=MARKER_CLASS, problem=str(error))
            return False
        self.touches += 1
        return True
