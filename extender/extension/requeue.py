"""Waking pods that an extender rejected: kube-scheduler does not try them again when slices change, so Berth touches
an annotation on one marker DeviceClass, at most once a second, and only when a rejected pod would now fit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import structlog

from extender.cluster import ClusterError, Writer

MARKER_CLASS = "berth.dev"
ANNOTATION = "berth.dev/wake"
_PAUSE_SECONDS = 1.0
_STRETCH_SECONDS = 0.001  # of a look between two turns of the loop


class Requeuer:
    """Runs beside the service. `supply_changed` is called for every event that may bring devices."""

    def __init__(
        self,
        writer: Writer,
        stamp: Callable[[], str],
        pause: float = _PAUSE_SECONDS,
        stretch: float = _STRETCH_SECONDS,
    ) -> None:
        self._writer = writer
        self._stamp = stamp
        self._pause = pause
        self._stretch = stretch
        self._changed = asyncio.Event()
        self._log = structlog.get_logger("berth.wake")
        self._requested = False  # a rejected pod fits, found out elsewhere
        self._touch_pending = False  # a look found that waking helps, and the class is not touched yet
        self.touches = 0

    def supply_changed(self) -> None:
        self._changed.set()

    def requeue_now(self) -> None:
        """A rejected pod fits now: no look is needed."""
        self._requested = True
        self._changed.set()

    async def run(self, look: Callable[[], Iterator[bool]]) -> None:
        """Until cancelled. `look` gives the steps of one look at what changed since the look before, the last of which
        says whether it helps a rejected pod. A look or a touch that fails is made up for after the pause, or when this
        runs again."""
        while True:
            await self._changed.wait()
            await self._once(look)
            await asyncio.sleep(self._pause)

    async def _once(self, look: Callable[[], Iterator[bool]]) -> None:
        self._changed.clear()
        done = False
        try:
            self._touch_pending, self._requested = self._touch_pending or self._requested, False
            self._touch_pending = self._touch_pending or await self._helps(look)
            self._touch_pending = self._touch_pending and not await self._touch()
            done = not self._touch_pending
        finally:
            if not done:
                self._changed.set()

    async def _helps(self, look: Callable[[], Iterator[bool]]) -> bool:
        """Whether what changed helps a rejected pod. Others have their turn after every stretch."""
        until = time.monotonic() + self._stretch
        for helps in look():
            if helps:
                return True
            if time.monotonic() > until:
                await asyncio.sleep(0)
                until = time.monotonic() + self._stretch
        return False

    async def _touch(self) -> bool:
        try:
            await self._writer.touch_class(MARKER_CLASS, ANNOTATION, self._stamp())
        except ClusterError as error:
            self._log.warning("could not wake waiting pods", device_class=MARKER_CLASS, problem=str(error))
            return False
        self.touches += 1
        return True
