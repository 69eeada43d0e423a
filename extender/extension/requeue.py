"""Requeues pods that Berth rejected.

kube-scheduler does not try a pod again when slices change, if an extender rejected the pod. So the requeuer updates an
annotation of one marker DeviceClass: at most once a second, and only if a rejected pod would now fit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

import structlog

from extender.cluster import ClusterError, Writer
from extender.extension.evaluations import Evaluations, in_steps
from extender.model import MARKER_CLASS

ANNOTATION = "berth.dev/wake"
_PAUSE_SECONDS = 1.0


class Requeuer:
    """A background task of serve. Call `supply_changed` after every event that may make devices available.

    `namespaces` returns those with rejected pods, and `search` searches one of them in steps, whose last value is True
    if a pod fits; both come with `run`. The searches are items of the queue of evaluations. `stamp` returns the new
    value of the annotation, and `pause` is in seconds.
    """

    def __init__(
        self, writer: Writer, stamp: Callable[[], str], evaluations: Evaluations, pause: float = _PAUSE_SECONDS
    ) -> None:
        self._writer = writer
        self._stamp = stamp
        self._evaluations = evaluations
        self._pause = pause
        self._changed = asyncio.Event()
        self._log = structlog.get_logger("berth.wake")
        self._supply_changed = False
        self._due: set[str] = set()  # namespaces to search, because of changes that no search has begun with
        self._touch_pending = False  # a rejected pod fits, and the DeviceClass is not updated yet
        self.touches = 0

    def supply_changed(self) -> None:
        """Search soon for a rejected pod that fits now."""
        self._supply_changed = True
        self._changed.set()

    def requeue_now(self) -> None:
        """Update the DeviceClass soon without a search: the caller found that a rejected pod fits."""
        self._touch_pending = True
        self._changed.set()

    async def run(self, namespaces: Callable[[], Iterable[str]], search: Callable[[str], Iterator[bool]]) -> None:
        """Run until cancelled. An update that failed is repeated after the pause."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._supply_changed:
                self._supply_changed = False
                self._due.update(namespaces())
                for namespace in self._due:
                    work = in_steps(self._searches(namespace, search))
                    self._evaluations.queue(namespace, ("search", namespace), work, blocks=False)
            pending, self._touch_pending = self._touch_pending, False
            try:
                pending = pending and not await self._touch()
            finally:
                if pending:
                    self.requeue_now()
            await asyncio.sleep(self._pause)

    def _searches(self, namespace: str, search: Callable[[str], Iterator[bool]]) -> Iterator[None]:
        """Search, and again if the supply changed meanwhile."""
        while namespace in self._due:
            self._due.discard(namespace)
            for fits in search(namespace):
                if fits:
                    self.requeue_now()
                yield

    async def _touch(self) -> bool:
        try:
            await self._writer.touch_class(MARKER_CLASS, ANNOTATION, self._stamp())
        except ClusterError as error:
            self._log.warning("could not requeue waiting pods", device_class=MARKER_CLASS, problem=str(error))
            return False
        self.touches += 1
        return True
