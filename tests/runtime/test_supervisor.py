"""The supervisor logs, counts and shows what a background task raises, and starts the task again."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import structlog
from structlog.testing import capture_logs

from extender.api.fields import Json
from extender.base.berth_errors import BerthError
from extender.cluster import ApiClient, Credentials, Delays
from extender.policy import Policy
from extender.runtime.supervisor import Supervisor
from extender.sandbox import Cluster, carried_machines
from extender.serve import Service
from extender.web.serve_app import Probes, ServeApp
from tests.worlds.eventually import eventually
from tests.worlds.running_berth import claim, pod
from tests.worlds.supervised_worlds import QUICK, client_of


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    found = Supervisor(QUICK)
    yield found
    await found.stop()


async def test_an_error_of_a_task_is_logged_with_its_trace_and_the_task_starts_again(supervisor: Supervisor) -> None:
    runs, forever = list[None](), asyncio.Event()

    async def task() -> None:
        runs.append(None)
        if len(runs) < 3:
            raise KeyError("a bug")
        await forever.wait()

    with capture_logs() as lines:
        supervisor.start("it", task)
        await eventually(lambda: len(runs) == 3)
    assert supervisor.failures == {"it": 2}
    assert supervisor.failing == {}
    assert [(line["event"], line["task"], line["problem"], line["log_level"]) for line in lines] == [
        ("task failed", "it", "KeyError: 'a bug'", "error")
    ] * 2
    assert lines[0]["exc_info"].__traceback__ is not None


async def _return() -> None:
    pass


async def _wait() -> None:
    await asyncio.Event().wait()


async def _cancelled_from_inside() -> None:
    other = asyncio.ensure_future(asyncio.Event().wait())
    other.cancel()
    await other


async def _cancels_itself() -> None:
    running = asyncio.current_task()
    assert running is not None
    running.cancel()
    await asyncio.sleep(0)


async def _cancels_itself_and_returns() -> None:
    running = asyncio.current_task()
    assert running is not None
    running.cancel()


async def _exits() -> None:
    raise GeneratorExit


NOT_STOPPED = "EndedEarly: it was cancelled, but the supervisor did not stop it"


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (_return, "EndedEarly: it returned"),
        (_cancelled_from_inside, NOT_STOPPED),
        (_cancels_itself, NOT_STOPPED),
        (_cancels_itself_and_returns, NOT_STOPPED),
        (_exits, "GeneratorExit: "),
    ],
)
async def test_a_task_that_ends_without_a_request_to_stop_has_failed(
    supervisor: Supervisor, task: Callable[[], Awaitable[None]], words: str
) -> None:
    supervisor.start("it", task)
    await eventually(lambda: "it" in supervisor.failing)
    assert supervisor.failing == {"it": words}
    assert supervisor.failures["it"] >= 3


async def test_an_error_without_a_text_does_not_end_its_task() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    async def task() -> None:
        raise Unprintable

    supervisor = Supervisor(QUICK)
    with capture_logs() as lines:
        supervisor.start("it", task)
        await eventually(lambda: "it" in supervisor.failing)
        with pytest.raises(Unprintable):
            await supervisor.spawn("once", task())
        await eventually(lambda: supervisor.failures["once"])
        await supervisor.stop()
    assert supervisor.failing == {"it": "Unprintable"}
    assert {line["problem"] for line in lines} == {"Unprintable"}


async def test_a_log_that_fails_does_not_end_a_task() -> None:
    def fail(*_: object) -> str:
        raise RuntimeError("a bug in the log")

    async def task() -> None:
        raise ValueError("a bug")

    supervisor = Supervisor(QUICK)
    structlog.configure(processors=[fail])
    try:
        supervisor.start("it", task)
        await eventually(lambda: "it" in supervisor.failing)
        await supervisor.stop()
    finally:
        structlog.reset_defaults()


async def test_a_bug_that_a_task_reports_counts_and_does_not_end_it(supervisor: Supervisor) -> None:
    runs = list[None]()

    async def task() -> None:
        runs.append(None)
        for _ in range(3):
            supervisor.report("it", KeyError("a bug"))
        await asyncio.Event().wait()

    with capture_logs() as lines:
        supervisor.start("it", task)
        await eventually(lambda: "it" in supervisor.failing)
        await supervisor.stop()
    assert (len(runs), supervisor.failures) == (1, {"it": 3})
    assert [line["problem"] for line in lines] == ["KeyError: 'a bug'"] * 3


async def test_work_that_was_cancelled_from_outside_has_failed(supervisor: Supervisor) -> None:
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    task = supervisor.spawn("bind", work(), expected=BerthError)
    await begun.wait()
    task.cancel()
    with pytest.raises(BerthError, match="was cancelled"):
        await task
    supervisor.spawn("bind", work()).cancel()  # before it begins
    await eventually(lambda: supervisor.failures["bind"] == 2)


async def test_tasks_that_were_told_to_end_have_not_failed(supervisor: Supervisor) -> None:
    with capture_logs() as lines:
        supervisor.start("it", _wait)
        await supervisor.stop()
    assert (supervisor.failing, supervisor.failures, lines) == ({}, {"it": 0}, [])


async def test_a_task_that_runs_well_for_a_while_no_longer_keeps_failing() -> None:
    now, left, forever = [0.0], [4], asyncio.Event()
    supervisor = Supervisor(Delays(first=0.001, most=0.01, reset=60.0), lambda: now[0])

    async def task() -> None:
        if left[0]:
            left[0] -= 1
            raise ValueError("a bug")
        await forever.wait()

    supervisor.start("it", task)
    await eventually(lambda: not left[0] and supervisor.failures["it"] == 4)
    assert supervisor.failing == {"it": "ValueError: a bug"}
    now[0] = 61.0
    assert supervisor.failing == {}
    await supervisor.stop()


async def test_work_that_ends_is_counted_only_where_it_fails_unexpectedly(supervisor: Supervisor) -> None:
    """A cancellation from inside is never expected, whatever errors the work may raise."""

    async def work(error: BaseException | None) -> str:
        if error is not None:
            raise error
        return "done"

    errors = {BerthError("refused"): BerthError, KeyError("a bug"): KeyError, asyncio.CancelledError(): BerthError}
    with capture_logs() as lines:
        assert await supervisor.spawn("bind", work(None), expected=BerthError) == "done"
        for error, raised in errors.items():
            with pytest.raises(raised):
                await supervisor.spawn("bind", work(error), expected=BerthError)
        await eventually(lambda: len(lines) == 2)
    assert (supervisor.failures, supervisor.names, supervisor.failing) == ({"bind": 2}, [], {})
    assert [(line["task"], line["problem"]) for line in lines] == [("bind", "KeyError: 'a bug'"), ("bind", NOT_STOPPED)]
    assert lines[1]["exc_info"].__cause__.__traceback__ is not None


async def test_work_that_stop_ends_before_it_begins_is_closed(supervisor: Supervisor) -> None:

    async def work() -> None:
        raise AssertionError("it has begun")

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        supervisor.spawn("once", work())
        await supervisor.stop()
        gc.collect()
    assert [str(one.message) for one in found if "never awaited" in str(one.message)] == []
    assert supervisor.failures == {"once": 0}


async def test_stop_ends_all_of_them_and_counts_nothing(supervisor: Supervisor) -> None:
    began, ended = list[str](), list[str]()

    async def task(name: str) -> None:
        began.append(name)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)
            if name == "returns":
                return  # noqa: B012 - swallows the cancellation, which is what this test is about
            await asyncio.sleep(0)

    supervisor.start("a", lambda: task("a"))
    supervisor.start("returns", lambda: task("returns"))
    once = supervisor.spawn("once", task("once"))
    await eventually(lambda: len(began) == 3)
    await supervisor.stop()
    assert sorted(ended) == ["a", "once", "returns"]
    assert once.cancelled()
    assert not any(supervisor.failures.values())


async def test_stop_ends_what_is_spawned_meanwhile(supervisor: Supervisor) -> None:
    ended = []

    async def late() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("late")

    async def task() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            supervisor.spawn("late", late())
            await asyncio.sleep(0)

    supervisor.start("it", task)
    await asyncio.sleep(0)
    await supervisor.stop()
    assert ended == ["late"]
    assert not any(supervisor.failures.values())


async def test_a_stop_during_the_delay_of_a_restart_is_the_end() -> None:
    supervisor, runs = Supervisor(Delays(first=0.001, most=0.001)), list[None]()

    async def task() -> None:
        runs.append(None)

    supervisor.start("it", task)
    await eventually(lambda: supervisor.failures["it"])
    await supervisor.stop()
    before = len(runs)
    await asyncio.sleep(0.01)
    assert len(runs) == before


class Buggy(ApiClient):
    """A client with a bug in every write to an object."""

    async def patch(self, path: str, body: Json | list[Json], content_type: str = "") -> Json:
        raise KeyError("a bug")


async def test_binds_and_rollbacks_are_supervised() -> None:
    """Work of its own for each pod and claim: a bug in it is counted, though the caller may have hung up."""
    supervisor, cluster = Supervisor(), Cluster(bookmark_seconds=0.5)
    cluster.add_node("n1", carried_machines()["t4-4"])
    async with (
        cluster.serving() as api,
        Buggy(Credentials(api, None, lambda: None)) as api_client,
        Service(api_client, Policy(), supervisor=supervisor) as service,
        client_of(ServeApp(service, Probes(service))) as client,
    ):
        await eventually(lambda: not service.informers.not_ready)
        cluster.apply(claim("c"))
        cluster.apply(pod("p", "c"))
        await eventually(lambda: bool(service.cache.store.pods) and bool(service.cache.store.claims))
        known = next(iter(service.cache.store.pods.values()))
        body = {"PodName": "p", "PodNamespace": "default", "PodUID": known.uid, "Node": "n1"}
        assert "berth failed: KeyError" in (await client.post("/bind", json=body)).json()["Error"]
        await eventually(lambda: supervisor.failures["bind"] == 1)
        service.orphans.deallocate_unsuitable(next(iter(service.cache.store.claims.values())))
        await eventually(lambda: supervisor.failures["release"] == 1)
