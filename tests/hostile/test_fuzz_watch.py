"""Every field of every kind that Berth watches, made wrong, through the real watch. A decoder raises nothing but
WireError, other objects are applied, and filter answers. Once the object is good again, everything is as before. `make
fuzz` runs it for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Self, cast

import orjson
import pytest
from hypothesis import given

from extender.api.fields import lenient_loads
from extender.api.pods import decode_pod
from extender.cache import ClusterCache
from extender.cluster import ApiClient
from extender.console import Console, ConsoleCluster, check_consistency
from extender.explain.fleet_rows import node_row
from extender.policy import Policy
from extender.runtime.informers import watched_resources
from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import gpu_slice, node_object
from extender.serve import Service
from extender.topology.agent_slices import DRIVER as FABRIC_DRIVER
from extender.web import serve_metrics
from extender.web.console import console_metrics
from extender.web.metrics import Scrapes
from tests.worlds.fuzzing import (
    BAD_FIELDS,
    CRASHES,
    IS_LONG,
    OBJECTS,
    InLoop,
    Json,
    damaged,
    every_field_wrong,
    no_faults_logged,
    profile,
    replaced,
    unfolded,
)

OTHER = carried_machines()["t4-4"]
NAMES = [f"{kind}/{name}" for kind, objects in OBJECTS.items() for name in objects]
KINDS = {path: kind for kind in watched_resources(ClusterCache()) for path in kind.paths}
SHARE = 1 if IS_LONG else 8  # every so many texts in place of each field, others for the next field
LOOKS = 1 if IS_LONG else 16  # every so many objects, what pages make of them
ROW = 1 if IS_LONG else 8  # bad objects before the good one


class Script:
    """An API server for reflectors: lists what there is, then sends `lines` on the watch of one kind."""

    def __init__(self, kind: str, lines: AsyncIterator[bytes] | None = None) -> None:
        self.lists = {name: list(objects.values()) for name, objects in OBJECTS.items()}
        self.lists["nodes"] = [*self.lists["nodes"], *(node_object(name, OTHER, {}) for name in ("n2", "n3"))]
        self.lists["resourceslices"] = [
            *self.lists["resourceslices"],
            gpu_slice("n2", OTHER),
            fabric_slice("n2", OTHER),
        ]
        self._kind, self._lines = kind, lines
        self.answers: dict[tuple[str, str], int] = {}

    async def get(self, path: str, params: Any = None, _most: int = 0) -> Json:
        if path == "/apis":
            return {"kind": "APIGroupList", "groups": []}
        kind = KINDS[path]
        return {"kind": kind.list_kind, "metadata": {"resourceVersion": "5"}, "items": self.lists[kind.name]}

    async def lines(self, path: str, params: Any, silence_seconds: float) -> AsyncIterator[bytes]:
        yield b""
        if self._lines is not None and KINDS[path].name == self._kind:
            async for line in self._lines:
                yield line
        await asyncio.Event().wait()


class World:
    """A service, and a console on the same cache. The watches are real, and the API server is a script."""

    def __init__(self, name: str) -> None:
        self.kind, _, self.name = name.partition("/")
        self.good = OBJECTS[self.kind][self.name]
        script = Script(self.kind, self._lines())
        self.service = Service(cast("ApiClient", script), Policy(), clock=lambda: 0.0)
        cache, evaluator, informers = self.service.cache, self.service.evaluator, self.service.informers
        cluster = ConsoleCluster(cache, evaluator, informers, self.service.refresh, shared=True)
        self.console = Console(cast("ApiClient", script), Policy(), clock=lambda: 0.0, cluster=cluster)
        self.reflector = informers.reflectors[self.kind]
        self.pod = decode_pod(OBJECTS["pods"]["pod"])
        self._bodies: list[bytes] = []
        self._looks = 0
        self._done = asyncio.Event()
        self._more = asyncio.Event()
        self._fault: BaseException | None = None
        self.tasks: list[asyncio.Task] = []

    async def __aenter__(self) -> Self:
        self.tasks = [asyncio.create_task(one.run()) for one in self.service.informers.reflectors.values()]
        while self.service.informers.not_ready:  # noqa: ASYNC110 - informers offer no event
            await asyncio.sleep(0)
        self.before = self.state()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def feed(self, bodies: list[bytes]) -> None:
        """Send the bodies on the watch, the good object after every few of them."""
        self._bodies = bodies
        self._done.clear()
        self._more.set()
        await self._done.wait()
        if self._fault is not None:
            raise self._fault

    async def _lines(self) -> AsyncIterator[bytes]:
        """The lines of the watch; the reflector requests the next line after it has applied the last one."""
        row: Sequence[bytes] = ()
        try:
            while True:
                await self._more.wait()
                self._more.clear()
                for start in range(0, len(self._bodies), ROW):
                    row = self._bodies[start : start + ROW]
                    for line in self._events(row):
                        yield line
                self._done.set()
        except BaseException as error:  # the test raises it; the reflector would only try again
            error.add_note(f"after one of {row!r}")
            self._fault = error
            self._done.set()
            raise

    def _events(self, row: Sequence[bytes]) -> Iterator[bytes]:
        for body in row:
            other = self.other()
            yield _event(b"MODIFIED", body)
            if self.name == "agent's" and _says_its_own(body):
                assert self.other() is other
            self.state()
            self._looks += 1
            if self._looks % LOOKS == 0:
                self.look()
            if not self._keeps_name(body):
                yield _event(b"DELETED", body)
        yield _event(b"MODIFIED", orjson.dumps(self.good))
        self.good_again()

    def _keeps_name(self, body: bytes) -> bool:
        found = lenient_loads(body).get("metadata")
        mine = self.good["metadata"]
        return isinstance(found, dict) and all(found.get(key) == mine.get(key) for key in ("name", "namespace"))

    def look(self) -> None:
        """Run the auditor's check, both scrapes and the pages on the cache."""
        cache = self.service.cache
        check_consistency(cache)
        Scrapes(serve_metrics.METRICS, self.service).answer()
        Scrapes(console_metrics.METRICS, self.console).answer()
        orjson.dumps(
            [
                self.console.overview.claims(),
                [node_row(node_info) for node_info in cache.snapshot().node_infos.values()],
            ]
        )

    def good_again(self) -> None:
        assert not self.reflector.unreadable
        assert self.state() == self.before

    def other(self) -> object:
        """The NodeInfo of the node that the object is not about."""
        return self.service.cache.snapshot().node_infos["n2"]

    def state(self) -> dict[str, object]:
        """The reply and the holds of filter, and the warnings of readiness."""
        answer = self.service.filter(self.pod, ["n1", "n2"])
        cache = self.service.cache
        assert not cache.failed_nodes
        return {
            "passed": answer.passed,
            "failed": orjson.loads(orjson.dumps(answer.failed)),
            "error": answer.error,
            "held": cache.reservations.held_for(self.pod.uid),
            "holds": cache.reservations.holds,
            "warnings": [] if self.reflector.unreadable else self.service.informers.warnings,
        }


def _event(kind: bytes, body: bytes) -> bytes:
    return b'{"type": "%b", "object": %b}' % (kind, body)


def _says_its_own(body: bytes) -> bool:
    """Whether a slice is still one that the API server lets the agent of n1 write."""
    spec = lenient_loads(body).get("spec")
    return isinstance(spec, dict) and spec.get("driver") == FABRIC_DRIVER and spec.get("nodeName") == "n1"


def test_every_kind_has_an_object() -> None:
    assert set(OBJECTS) == {kind.name for kind in KINDS.values()}


@pytest.mark.parametrize("name", NAMES)
async def test_every_field_made_wrong(name: str) -> None:
    with no_faults_logged():
        async with World(name) as world:
            await world.feed(every_field_wrong(world.good, BAD_FIELDS, SHARE, 1))


@pytest.mark.parametrize("name", NAMES)
def test_some_fields_and_bytes_made_wrong(name: str) -> None:
    world = InLoop(World(name))

    @profile()
    @given(damaged(world.made.good, BAD_FIELDS).filter(_is_object))
    def one(body: bytes) -> None:
        world.run(world.made.feed([body]))

    with no_faults_logged():
        one()
    world.close()


@pytest.mark.parametrize("case", CRASHES["watch"], ids=lambda case: f"{case['object']} {case['spot'][-1]}")
async def test_former_crashes_stay_fixed(case: Json) -> None:
    with no_faults_logged():
        async with World(case["object"]) as world:
            await world.feed([replaced(world.good, tuple(case["spot"]), unfolded(case["text"]))])


def _is_object(body: bytes) -> bool:
    try:
        found = lenient_loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(found, dict)
