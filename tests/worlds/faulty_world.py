"""Two Berth replicas on one API server with faults, in one process and in virtual time."""

from __future__ import annotations

import asyncio
import datetime
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from extender.cluster import ApiClient
from extender.runtime.supervisor import Supervisor
from extender.sandbox import Cluster, carried_machines
from extender.sandbox.apiserver.registry import RESOURCES
from extender.serve import Service
from tests.worlds.faulty_api import Faults, FaultyApi
from tests.worlds.running_berth import patient
from tests.worlds.skipping_loop import PROCESS, StoppingLoop
from tests.worlds.write_checker import Checker, now

Json = dict[str, Any]
T = TypeVar("T")
PODS = RESOURCES["", "pods"]
NODES = {"n1": "t4-4", "n2": "t4-4"}
_DAWN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def _wall_clock() -> datetime.datetime:
    return _DAWN + datetime.timedelta(seconds=now())


def _loop() -> StoppingLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, StoppingLoop)
    return loop


class _Tasks(Supervisor):
    """Without the tasks that look at the process and not at the cluster."""

    def start(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        if name != "garbage-collection":
            super().start(name, run)


class Replica:
    """A `berth serve` that can be killed and started again."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        self._lives = 0
        self.service: Service | None = None
        self.context = copy_context()
        self.context.run(PROCESS.set, name)
        self.jump = 0.0  # seconds of its wall clock

    async def start(self) -> None:
        self._lives += 1
        world = self._world
        self.api = FaultyApi(world.cluster, world.faults, f"{world.seed}/{self.name}/{self._lives}")
        self.tasks = _Tasks(clock=now)
        client = cast("ApiClient", self.api)
        clock = lambda: _wall_clock() + datetime.timedelta(seconds=self.jump)  # noqa: E731
        service = Service(client, patient(), now, supervisor=self.tasks, wall_clock=clock)
        await self.do(service.__aenter__())
        self.service = service

    def do(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task of this process: it stops with it."""
        return asyncio.get_running_loop().create_task(work, context=self.context)

    @property
    def is_stopped(self) -> bool:
        return _loop().is_stopped(self.name)

    async def pause(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later."""
        self._world.pauses += 1
        _loop().stop_process(self.name)
        try:
            await asyncio.sleep(seconds)
        finally:
            _loop().go_on(self.name)

    async def kill(self) -> None:
        """End without a further write."""
        self.api.die()
        self.service = None
        self._world.kills += 1
        await self.do(self.tasks.stop())

    async def stop(self) -> None:
        """End as after SIGTERM."""
        assert self.service is not None
        await self.do(self.service.__aexit__())
        self.service = None


@dataclass
class World:
    """The cluster and all programs of one run."""

    seed: int
    cluster: Cluster = field(default_factory=Cluster)
    faults: Faults = field(default_factory=Faults)
    binds: int = 0
    last_bound: str = ""  # the pod of the last bind call
    kills: int = 0
    pauses: int = 0
    ends: int = 0

    def __post_init__(self) -> None:
        for name, machine in NODES.items():
            self.cluster.add_node(name, carried_machines()[machine])
        self.checker = Checker(self.cluster)
        self.replicas = [Replica(self, name) for name in ("a", "b")]

    def rng(self, name: str) -> random.Random:
        """A stream of its own for each program: none changes what another one draws."""
        return random.Random(f"{self.seed}/{name}")

    def pods(self) -> list[Json]:
        return self.cluster.store.all("pods")

    def delete(self, one: Json) -> None:
        """A pod ends, and its claims with it, unless another pod uses them."""
        self.cluster.api.registry.delete(PODS, ("default", one["metadata"]["name"]))
