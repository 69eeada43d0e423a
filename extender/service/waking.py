"""Waking pods that an extender rejected: kube-scheduler does not try them again when slices change, so Berth touches
an annotation on one marker DeviceClass, at most once a second, and only when a rejected pod would now fit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from extender.cluster.errors import ClusterError
from extender.cluster.writer import Writer
from extender.service.judge import Judge

MARKER_CLASS = "berth.dev"
ANNOTATION = "berth.dev/wake"
_PAUSE_SECONDS = 1.0


class Waker:
    """Runs beside the service. `supply_changed` is called for every event that may bring devices."""

    def __init__(self, judge: Judge, writer: Writer, stamp: Callable[[], str]) -> None:
        self._judge = judge
        self._writer = writer
        self._stamp = stamp
        self._changed = asyncio.Event()
        self._log = structlog.get_logger("berth.wake")
        self.touches = 0

    def supply_changed(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._judge.rejected() and self._judge.can_help():
                await self._touch()
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _touch(self) -> None:
        try:
            await self._writer.touch_class(MARKER_CLASS, ANNOTATION, self._stamp())
            self.touches += 1
        except ClusterError as error:
            self._log.warning("could not wake waiting pods", device_class=MARKER_CLASS, problem=str(error))
