"""The sandbox's scheduler beside an extender, or beside serve as `berth run` has it."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from extender.entry.all_in_one import both
from extender.sandbox import Cluster, Scheduler, listening
from tests.worlds.eventually import eventually, in_background
from tests.worlds.running_berth import patient
from tests.worlds.skipping_loop import clock


@asynccontextmanager
async def scheduling(cluster: Cluster, extender: Any) -> AsyncIterator[Scheduler]:
    """The scheduler, which asks the extender, an ASGI application, over HTTP."""
    async with listening(extender, "127.0.0.1", 0) as url:
        scheduler = Scheduler(cluster.store, url)
        async with in_background(scheduler.run()):
            yield scheduler


@asynccontextmanager
async def served(cluster: Cluster) -> AsyncIterator[tuple[str, Scheduler]]:
    """The address of the API server, and the scheduler, which asks serve."""
    async with cluster.serving() as api, both(api, patient(), clock=clock()) as (app, _):
        await eventually(lambda: not app.service.informers.not_ready)
        async with scheduling(cluster, app) as scheduler:
            yield api, scheduler


def drop_fields(cluster: Cluster, drop: Callable[[str, dict], None]) -> None:
    """Let `drop(resource, object)` take fields out of each object that is stored, as a gate that is off does."""
    put = cluster.store.put

    def put_the_rest(resource: str, key: tuple[str, str], obj: dict) -> dict:
        rest = copy.deepcopy(obj)
        drop(resource, rest)
        return put(resource, key, rest)

    cluster.store.put = put_the_rest  # type: ignore[method-assign]  # in front of the store, as a gate is
