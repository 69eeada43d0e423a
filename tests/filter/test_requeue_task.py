"""The task of requeue: a touch or a search that failed is made up for, and long searches leave the time to others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import pytest

from extender.api.pod_groups import GroupKey, GroupSource
from extender.api.reasons import Code, Reason
from extender.cluster import Delays, Unavailable, Writer
from extender.sandbox import Cluster, carried_machines
from extender.serve import Service
from extender.serve.evaluations import Evaluations
from extender.serve.gangs.gang_monitor import GangHints
from extender.serve.wake import QueueingHints, Requeuer
from tests.worlds import running_berth
from tests.worlds.applications import serve_application
from tests.worlds.eventually import eventually
from tests.worlds.supervised_worlds import Breakable, composed

pytestmark = pytest.mark.loopback


class _Writer:
    """A Writer whose first `failures` touches fail."""

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.touched = failures, 0
        self.done = asyncio.Event()

    async def touch_class(self, name: str, annotation: str, value: str) -> None:
        if self.failures:
            self.failures -= 1
            raise Unavailable("not now")
        self.touched += 1
        self.done.set()


async def test_a_touch_that_failed_is_made_up_for() -> None:
    """The search that found a fit is over, and without another event no further search would start."""
    writer, searches = _Writer(failures=2), list[str]()

    def search(namespace: str) -> Iterator[bool]:
        searches.append(namespace)
        yield True

    async with requeuing(writer, ["a"], search) as requeuer:
        requeuer.supply_changed()
        await eventually(lambda: writer.touched)
        assert requeuer.touches == 1
        assert searches == ["a"]


async def test_a_change_during_a_search_has_another_search() -> None:
    writer, searches = _Writer(), 0

    def search(_: str) -> Iterator[bool]:
        nonlocal searches
        searches += 1
        requeuer.supply_changed()
        turns = list[None]()
        asyncio.get_running_loop().call_soon(turns.append, None)  # after the turn of the requeuer
        while not turns:
            yield False
        yield searches == 3

    async with requeuing(writer, ["a"], search) as requeuer:
        requeuer.supply_changed()
        await eventually(lambda: writer.touched)


async def test_the_searches_of_a_namespace_do_not_delay_those_of_others() -> None:
    """100 hostile pods whose searches take long once delayed the wake of all others by their searches."""
    writer = _Writer()

    def search(namespace: str) -> Iterator[bool]:
        while namespace == "hostile":
            yield False
        yield True

    async with requeuing(writer, ["hostile", "honest"], search) as requeuer:
        requeuer.supply_changed()
        await eventually(lambda: writer.touched)


@asynccontextmanager
async def requeuing(
    writer: _Writer, namespaces: Sequence[str], search: Callable[[str], Iterator[bool]]
) -> AsyncIterator[Requeuer]:
    """A requeuer with the queue of its searches."""

    def fail(_: str, bug: Exception) -> None:
        raise bug

    evaluations = Evaluations(time.monotonic)
    requeuer = Requeuer(cast("Writer", writer), evaluations, pause=0)
    tasks = [
        asyncio.create_task(requeuer.run(lambda: namespaces, search)),
        asyncio.create_task(evaluations.run(_nothing_to_build, fail)),
    ]
    try:
        yield requeuer
    finally:
        for task in tasks:
            task.cancel()


async def _nothing_to_build() -> None:
    pass


class Buggy(QueueingHints):
    """Finds what it is told to, and raises with another pod, in every search."""

    def __init__(self, *, fits: bool) -> None:
        self._fits = fits

    def find_schedulable(self, _: str) -> Iterator[bool]:
        yield self._fits
        raise KeyError("a bug")


class Fitting(GangHints):
    """A gang fits."""

    def __init__(self) -> None:
        pass

    def find_schedulable(self, _: str) -> Iterator[bool]:
        yield True


def reject(service: Service) -> None:
    """A gang waits, so that its namespace is searched."""
    service.gangs.admission.pause(GroupKey("a", GroupSource.BERTH, "g"), Reason(Code.GANG_NO_ROOM, ("g",)))


async def test_a_bug_after_a_fit_is_counted() -> None:
    async with composed(Breakable()) as (_, app, _):
        service = app.service
        service.queueing_hints = Buggy(fits=True)
        reject(service)
        service.requeuer.supply_changed()
        await eventually(lambda: service.supervisor.failures["requeue"] and service.requeuer.touches)


async def test_a_pod_whose_search_always_raises_a_bug_delays_no_wake_of_others() -> None:
    """The bug ended the task, which starts again after 30 s at most; here it would be hours. The search is repeated,
    because the bug may have ended it early."""
    async with composed(Breakable(Delays(first=10_000.0, most=10_000.0))) as (_, app, _):
        service = app.service
        service.queueing_hints, service.gang_hints = Buggy(fits=False), Fitting()
        reject(service)
        service.requeuer.supply_changed()
        await eventually(lambda: service.requeuer.touches >= 2)
        assert service.supervisor.failures["requeue"] >= 2


@pytest.mark.parametrize("waits", [True, False])
async def test_pods_that_wait_at_the_start_are_requeued_once(waits: bool) -> None:
    """The process that rejected them is gone, and kube-scheduler waits for an event that no change causes."""
    cluster = Cluster()
    if waits:
        cluster.apply(running_berth.claim("c"))
        cluster.apply(running_berth.pod("p", "c"))
    async with cluster.serving() as api, serve_application(api) as app:
        await eventually(lambda: not app.service.informers.not_ready)
        if waits:
            await eventually(lambda: app.service.requeuer.touches)
        cluster.add_node("late", carried_machines()["t4-4"])
        await eventually(lambda: "late" in app.service.cache.store.nodes)
        assert app.service.requeuer.touches == waits
