"""After a change of all nodes, no task and no answer of the console builds them in one time slice of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import httpx
import pytest

from extender.allocation import Features
from extender.api.object_meta import ObjectKey
from extender.api.pod_groups import GroupKey
from extender.api.pods import SCHEDULER, Pod, decode_pod
from extender.api.resource_claims import Allocation, Claim, Consumer, PodClaim, Result
from extender.api.resource_slices import DeviceId
from extender.cluster import ApiClient, Credentials, Writer
from extender.console import Console, ConsoleCluster, Questions, UnknownGroup, WhatIf
from extender.console.decision_history import DecisionReader
from extender.explain.scenario import Scenario
from extender.policy import Policy
from extender.runtime.informers import CacheRefresh, Informers
from extender.runtime.supervisor import Supervisor
from extender.scheduling import Evaluator
from extender.web.console.console_routes import routes
from tests.worlds.cache_worlds import (
    MAX_BUILT,
    NODES,
    CountingBuilder,
    many_nodes,
    most_in_a_turn,
    shared_slice,
    slow_clock,
)
from tests.worlds.running_berth import pod

KEY = ObjectKey("default", "p")
ALLOCATION = Allocation((Result("r", DeviceId("gpu.nvidia.com", "n1", "gpu-0")),))
CLAIM = Claim(ObjectKey("default", "c"), "u-c", "1", allocation=ALLOCATION, reserved_for=(Consumer("u-p", "p"),))


def world() -> tuple[Console, CountingBuilder]:
    """A console that is not started. See `slow_clock`."""
    supervisor = Supervisor()
    cache = many_nodes()
    builder = CountingBuilder(cache)
    client = ApiClient(Credentials("http://127.0.0.1:9", None, lambda: None))
    refresh = CacheRefresh(cache, slow_clock())
    informers = Informers(client, cache, lambda: 0.0, supervisor, lambda _: None, frozenset())
    cluster = ConsoleCluster(cache, Evaluator(Features()), informers, refresh)
    cache.apply_pod("u-p", decode_pod({**pod("p"), "metadata": {"name": "p", "namespace": "default", "uid": "u-p"}}))
    cache.snapshot()
    return Console(client, Policy(), lambda: 0.0, supervisor, cluster), builder


def set_comparer(console: Console) -> Coroutine[Any, Any, object]:
    bound = replace(console.cache.store.pods["u-p"], node_name="n1")
    console.set_comparer.bound(bound, [CLAIM], console.cache.snapshot(), lambda _: False)
    return console.set_comparer.run()


def decisions(console: Console) -> Coroutine[Any, Any, object]:
    """The pod leaves the watch, and the console reads it."""
    pod = console.cache.store.pods["u-p"]

    async def read_pod(_: ObjectKey) -> Pod:
        return replace(pod, node_name="n1")

    reader = DecisionReader(
        console.cache, console.history, console.jobs, console.set_comparer, read_pod, console.refreshed
    )
    reader.pod_changed(replace(pod, scheduler=SCHEDULER, claims=(PodClaim("gpu", "c"),)), None)
    return reader.run()


def reading(console: Console) -> Questions:
    """Questions for which the nodes change again during each read from the API server."""
    cache = console.cache

    class Reads(Writer):
        async def read_pod(self, _: ObjectKey) -> Pod:
            shared_slice(cache)
            await asyncio.sleep(0)
            return replace(cache.store.pods["u-p"], node_name="n1")

        async def read_bound_members(self, _: str) -> dict[GroupKey, dict[str, str]]:
            shared_slice(cache)
            await asyncio.sleep(0)
            return {}

    return Questions(console.explainer, console.history, Reads(console.client), console.refreshed)


def question_about_a_member(console: Console) -> Coroutine[Any, Any, object]:
    member = pod("m", annotations={"berth.dev/group": "g", "berth.dev/group-min": "2"})
    metadata = {**member["metadata"], "namespace": "default", "uid": "u-m"}
    console.cache.apply_pod("u-m", decode_pod({**member, "metadata": metadata}))
    return reading(console).pod(ObjectKey("default", "m"), WhatIf())


def question_about_a_bound_group(console: Console) -> Coroutine[Any, Any, object]:
    bound = replace(CLAIM, group="h", reserved_for=(Consumer("u-b", "b"),))
    console.cache.apply_claim(bound.key, bound)
    return reading(console).group(ObjectKey("default", "h"), Scenario())


async def get(console: Console, path: str) -> None:
    transport = httpx.ASGITransport(app=routes(console))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get(path)).status_code == 200


Work = Callable[[Console], Coroutine[Any, Any, object]]
ENDLESS: dict[str, Work] = {
    "sampler": lambda console: console.fleet_sampler.run(),
    "comparer of sets": set_comparer,
    "decisions": decisions,
}
QUESTIONS: dict[str, Work] = {
    "a pod": lambda console: console.questions.pod(KEY, WhatIf()),
    "a group": lambda console: console.questions.group(KEY, Scenario()),
    "a scenario": lambda console: get(console, "/v1/explain/default/p?without=n2"),
    "an event": lambda console: console.questions.brief("u-p", 1.0),
    "a bound pod": lambda console: reading(console).pod(ObjectKey("default", "bound"), WhatIf()),
    "a member": question_about_a_member,
    "a bound group": question_about_a_bound_group,
    "the fleet": lambda console: get(console, "/v1/fleet"),
    "a node": lambda console: get(console, "/v1/nodes/n1"),
    "claims": lambda console: get(console, "/v1/claims"),
}


@pytest.mark.parametrize("name", [*ENDLESS, *QUESTIONS])
async def test_the_event_loop_is_free_between_time_slices(name: str) -> None:
    """Attack: block the console with changes that many nodes see."""
    console, builder = world()
    running = (ENDLESS | QUESTIONS)[name](console)
    shared_slice(console.cache)
    assert console.cache.backlog >= NODES
    task = asyncio.create_task(running)
    most = await most_in_a_turn(builder, lambda: task.done() or (name in ENDLESS and not console.cache.backlog))
    task.cancel()
    (found,) = await asyncio.gather(task, return_exceptions=True)
    assert not isinstance(found, Exception) or isinstance(found, UnknownGroup)
    assert console.cache.backlog == 0, "it takes a snapshot"
    assert 0 < most <= MAX_BUILT
