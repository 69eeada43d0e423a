"""The task of requeue: a touch or a search that failed is made up for, and long searches leave the time to others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest

from extender.cluster import Delays, Unavailable, Writer
from extender.entry.serve_process import application
from extender.extension.gang_hints import GangHints
from extender.extension.queueing_hints import QueueingHints
from extender.extension.requeue import Requeuer
from extender.sandbox import Cluster, carried_machines
from tests import running_berth
from tests.eventually import eventually
from tests.skipping_loop import SkippingLoop
from tests.supervised_worlds import Breakable, composed

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


class _Looks:
    """Searches with these results, None for one that raises; `asked` counts the searches."""

    def __init__(self, *answers: bool | None) -> None:
        self._answers, self.asked = list(answers), 0

    def __call__(self) -> Iterator[bool]:
        self.asked += 1
        answer = self._answers.pop(0) if self._answers else False
        if answer is None:
            raise RuntimeError("a fault in a look")
        yield answer


async def _nothing_to_build() -> None:
    pass


async def test_a_touch_that_failed_is_made_up_for() -> None:
    """The search that found a fit is over, and without another event no further search would start."""
    writer, looks = _Writer(failures=2), _Looks(True)
    requeuer = Requeuer(cast("Writer", writer), lambda: "now", pause=0)
    task = asyncio.create_task(requeuer.run(looks, _nothing_to_build))
    requeuer.supply_changed()
    await eventually(lambda: writer.touched)
    task.cancel()
    assert requeuer.touches == 1
    assert looks.asked == 1


async def test_a_look_that_failed_is_made_up_for_when_the_task_runs_again() -> None:
    writer, looks = _Writer(), _Looks(None, True)
    requeuer = Requeuer(cast("Writer", writer), lambda: "now", pause=0)
    requeuer.supply_changed()
    with pytest.raises(RuntimeError):
        await requeuer.run(looks, _nothing_to_build)
    task = asyncio.create_task(requeuer.run(looks, _nothing_to_build))
    await eventually(lambda: writer.touched)
    task.cancel()


class Buggy(QueueingHints):
    """Finds what it is told to, and raises with another pod, in every search."""

    def __init__(self, *, fits: bool) -> None:
        self._fits = fits

    def find_schedulable(self) -> Iterator[bool]:
        yield self._fits
        raise KeyError("a bug")


class Fitting(GangHints):
    """A gang fits."""

    def __init__(self) -> None:
        pass

    def find_schedulable(self) -> Iterator[bool]:
        yield True


async def test_a_bug_after_a_fit_is_counted() -> None:
    async with composed(Breakable()) as (_, app, _):
        service = app.service
        service.filter_service.queueing_hints = Buggy(fits=True)
        service.requeuer.supply_changed()
        await eventually(lambda: service.supervisor.failures["requeue"] and service.requeuer.touches)


async def test_a_pod_whose_search_always_raises_a_bug_delays_no_wake_of_others() -> None:
    """The bug ended the task, which starts again after 30 s at most; here it would be hours. The search is repeated,
    because the bug may have ended it early."""
    async with composed(Breakable(Delays(first=10_000.0, most=10_000.0))) as (_, app, _):
        service = app.service
        service.filter_service.queueing_hints, service.gang_hints = Buggy(fits=False), Fitting()
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
    async with cluster.serving() as api, application(api) as app:
        await eventually(lambda: not app.service.informers.not_ready)
        if waits:
            await eventually(lambda: app.service.requeuer.touches)
        cluster.add_node("late", carried_machines()["t4-4"])
        await eventually(lambda: "late" in app.service.cache.store.nodes)
        assert app.service.requeuer.touches == waits


async def test_others_have_their_turn_during_a_long_look() -> None:
    turns: list[Any] = []

    def look() -> Iterator[bool]:
        while len(turns) < 3:
            yield False
        yield True

    async def other() -> None:
        while len(turns) < 3:
            turns.append(1)
            await asyncio.sleep(0)

    writer = _Writer()
    requeuer = Requeuer(cast("Writer", writer), lambda: "now", pause=0, stretch=0)
    requeuer.supply_changed()
    tasks = [asyncio.create_task(requeuer.run(look, _nothing_to_build)), asyncio.create_task(other())]
    await eventually(lambda: writer.touched)
    for task in tasks:
        task.cancel()


def test_a_long_look_leaves_the_time_to_calls() -> None:
    """The searches for 100 hostile pods once took all the time that the event loop had left."""
    worked = 0.0

    def look() -> Iterator[bool]:
        nonlocal worked
        for _ in range(1000):
            worked += 0.0005
            yield False
        yield True

    async def search() -> float:
        writer = _Writer()
        requeuer = Requeuer(cast("Writer", writer), lambda: "now", clock=lambda: worked)
        requeuer.supply_changed()
        task = asyncio.create_task(requeuer.run(look, _nothing_to_build))
        await writer.done.wait()
        task.cancel()
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        rested = runner.run(search())
    assert worked < 0.25 * (worked + rested)
