"""After a change of all nodes, no task and no answer of the console builds them in one stretch of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import count
from typing import Any, cast

import httpx
import pytest

from extender.allocation import Features
from extender.cluster import ApiClient, Credentials
from extender.console import Console, ConsoleCluster, Explainer, UnknownGroup
from extender.console.decision_history import DecidedPod, DecisionReader
from extender.model import (
    SCHEDULER,
    Allocation,
    Claim,
    Consumer,
    DeviceId,
    GroupKey,
    ObjectKey,
    Pod,
    PodClaim,
    Result,
)
from extender.policy import Policy
from extender.runtime import HoldExpirer, Informers, Rebuilds, Supervisor
from extender.scheduling import Decision, Evaluator, ScoredNode
from extender.web.console.console_app import routes
from extender.wire import decode_pod
from tests.running_berth import pod
from tests.shared_pool_worlds import CountingBuilder
from tests.test_rebuilds import MOST, NODES, STRETCH, filled, shared_slice

KEY = ObjectKey("default", "p")
CHOSEN = ScoredNode("n1", 1.0, ("gpu.nvidia.com/n1/gpu-0",), 0.0, 0.0, "", ())
DECIDED = DecidedPod(KEY, "u-p", Decision("now", CHOSEN))


def world(builder: CountingBuilder) -> Console:
    """A console that is not started. Its time is the number of looks at the clock."""
    ticks, supervisor = count(), Supervisor()
    cache = filled(builder)
    client = ApiClient(Credentials("http://127.0.0.1:9", None, lambda: None))
    rebuilds = Rebuilds(cache, clock=lambda: float(next(ticks)), stretch=float(STRETCH))
    informers = Informers(client, cache, lambda: 0.0, supervisor, lambda _: None, frozenset())
    cluster = ConsoleCluster(cache, Evaluator(Features()), informers, HoldExpirer(lambda: 0.0), rebuilds)
    cache.apply_pod("u-p", decode_pod({**pod("p"), "metadata": {"name": "p", "namespace": "default", "uid": "u-p"}}))
    cache.snapshot()
    return Console(client, Policy(), lambda: 0.0, supervisor, cluster)


async def listed() -> None:
    """Return at once, as if all kinds were listed."""


def sampler(console: Console) -> Coroutine[Any, Any, object]:
    return console.fleet_sampler.run(listed, console.rebuilt)


def set_comparer(console: Console) -> Coroutine[Any, Any, object]:
    console.set_comparer.bound(DECIDED)
    return console.set_comparer.run(listed, console.rebuilt)


def decisions(console: Console) -> Coroutine[Any, Any, object]:
    """The pod leaves the watch, and the console reads it."""
    pod = console.cache.store.pods["u-p"]

    async def read_pod(_: ObjectKey) -> Pod:
        return replace(pod, node_name="n1")

    reader = DecisionReader(console.cache, console.history, read_pod, console.set_comparer.bound)
    reader.pod_changed(replace(pod, scheduler=SCHEDULER, claims=(PodClaim("gpu", "c"),)), None)
    return reader.run(listed, console.rebuilt)


def question(console: Console) -> Coroutine[Any, Any, object]:
    return console.explainer.pod(KEY)


def reading(console: Console) -> Explainer:
    """An explainer for which the nodes change again during each read from the API server."""
    cache = console.cache

    async def read_pod(_: ObjectKey) -> Pod:
        shared_slice(cache)
        await asyncio.sleep(0)
        return replace(cache.store.pods["u-p"], node_name="n1")

    async def read_bound(_: str) -> dict[GroupKey, dict[str, str]]:
        shared_slice(cache)
        await asyncio.sleep(0)
        return {}

    parts = cache, console.cluster.evaluator, console.history, console.policy, console.rebuilt
    return Explainer(*parts, read_pod, read_bound=read_bound)


def question_about_a_bound_pod(console: Console) -> Coroutine[Any, Any, object]:
    return reading(console).pod(ObjectKey("default", "bound"))


def question_about_a_member(console: Console) -> Coroutine[Any, Any, object]:
    member = pod("m", annotations={"berth.dev/group": "g", "berth.dev/group-min": "2"})
    metadata = {**member["metadata"], "namespace": "default", "uid": "u-m"}
    console.cache.apply_pod("u-m", decode_pod({**member, "metadata": metadata}))
    return reading(console).pod(ObjectKey("default", "m"))


def question_about_a_bound_group(console: Console) -> Coroutine[Any, Any, object]:
    allocation, user = Allocation((Result("r", DeviceId("gpu.nvidia.com", "n1", "gpu-0")),)), Consumer("u-b", "b")
    key = ObjectKey("default", "c")
    console.cache.apply_claim(key, Claim(key, "u-c", "1", group="h", allocation=allocation, reserved_for=(user,)))
    return reading(console).group(ObjectKey("default", "h"))


def question_about_a_group(console: Console) -> Coroutine[Any, Any, object]:
    return console.explainer.group(KEY)


def question_with_a_scenario(console: Console) -> Coroutine[Any, Any, object]:
    return get(console, "/v1/explain/default/p?without=n2")


def event(console: Console) -> Coroutine[Any, Any, object]:
    return console.explainer.brief_in_turn("u-p", 1.0)


def page(console: Console) -> Coroutine[Any, Any, object]:
    return cast("Coroutine[Any, Any, object]", anext(console.overview.updates()))


def fleet(console: Console) -> Coroutine[Any, Any, object]:
    return get(console, "/v1/fleet")


def node(console: Console) -> Coroutine[Any, Any, object]:
    return get(console, "/v1/nodes/n1")


def claims(console: Console) -> Coroutine[Any, Any, object]:
    return get(console, "/v1/claims")


async def get(console: Console, path: str) -> None:
    transport = httpx.ASGITransport(app=routes(console))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get(path)).status_code == 200


async def most_in_a_turn(builder: CountingBuilder, ended: Callable[[], bool]) -> int:
    """The most nodes that are built between two turns of this function."""
    most, before = 0, builder.built.total()
    while not ended():
        await asyncio.sleep(0)
        most, before = max(most, builder.built.total() - before), builder.built.total()
    return most


ENDLESS = [sampler, set_comparer, decisions]
QUESTIONS = [question, question_about_a_group, question_with_a_scenario, event]
WITH_READS = [question_about_a_bound_pod, question_about_a_member, question_about_a_bound_group]
OTHERS = [page, fleet, node, claims]


@pytest.mark.parametrize("work", [*ENDLESS, *QUESTIONS, *WITH_READS, *OTHERS])
async def test_the_event_loop_is_free_between_stretches(work: Callable[[Console], Coroutine[Any, Any, object]]) -> None:
    """Attack: block the console with changes that many nodes see."""
    builder = CountingBuilder()
    console = world(builder)
    running = work(console)
    shared_slice(console.cache)
    assert console.cache.backlog >= NODES
    task = asyncio.create_task(running)
    most = await most_in_a_turn(builder, lambda: task.done() or (work in ENDLESS and not console.cache.backlog))
    task.cancel()
    (found,) = await asyncio.gather(task, return_exceptions=True)
    assert not isinstance(found, Exception) or isinstance(found, UnknownGroup)
    assert console.cache.backlog == 0, "it takes a snapshot"
    assert 0 < most <= MOST
