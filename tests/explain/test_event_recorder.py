"""Events on pods that wait: one per change of the reason, bounded, and none while the cache is incomplete."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from extender.api.object_meta import ObjectKey
from extender.api.pods import decode_pod
from extender.cluster import ApiClient, Credentials, Writer
from extender.console import Brief, Console, ForkedCallFailed, Questions
from extender.console.event_recorder import EventRecorder
from extender.policy import Policy
from extender.runtime.informers import Informers
from extender.runtime.supervisor import Supervisor
from extender.sandbox import ApiError, Cluster
from extender.sandbox.apiserver.registry import RESOURCES
from tests.worlds.eventually import eventually
from tests.worlds.running_berth import Berthing, berthing, claim, pod

pytestmark = pytest.mark.loopback


class World:
    """An event recorder beside that of the console, which hears of no pod: the test tells it."""

    def __init__(self, b: Berthing, client: ApiClient, questions: Questions | None = None) -> None:
        self.now = 1000.0
        self.b = b
        self.event_recorder = EventRecorder(questions or b.console.questions, Writer(client, "test"), lambda: self.now)

    async def waits(self, name: str, count: int = 9, namespace: str = "default") -> None:
        """A pod that wants so many GPUs of a node that has four."""
        for one in (claim(name, count), pod(name, name)):
            one["metadata"]["namespace"] = namespace
            self.b.cluster.apply(one)
        await self.b.settled()

    def refused(self, name: str, reason: str = "in use", namespace: str = "default") -> None:
        """The watch shows that kube-scheduler could not place the pod."""
        found = self.b.cluster.store.get("pods", (namespace, name)) or pod(name, name)
        uid = found["metadata"].get("uid") or f"uid-{name}"
        known = decode_pod({**found, "metadata": {"namespace": namespace, "name": name, "uid": uid}})
        self.event_recorder.pod_changed(None, replace(known, unschedulable=reason))

    def pods_with_events(self) -> list[str]:
        """In the order in which the Events were written."""
        events = sorted(self.b.cluster.store.all("events"), key=lambda e: int(e["metadata"]["resourceVersion"]))
        return [event["regarding"]["name"] for event in events]


@asynccontextmanager
async def recording(questions: Questions | None = None) -> AsyncIterator[World]:
    async with berthing({"n1": "t4-4"}) as b, ApiClient(Credentials(b.api, None, lambda: None)) as client:
        world = World(b, client, questions)
        running = asyncio.create_task(world.event_recorder.run())
        try:
            yield world
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_one_event_for_each_reason_and_at_most_one_a_minute() -> None:
    async with recording() as w:
        for name in ("p", "q"):
            await w.waits(name)
        w.refused("p")
        await eventually(lambda: w.pods_with_events() == ["p"])
        w.refused("p", "tainted")
        w.refused("q")
        await eventually(lambda: w.event_recorder.events == 2)
        assert w.pods_with_events() == ["p", "q"], "that of p is put off, not lost"
        w.now += 60
        await eventually(lambda: w.event_recorder.events == 3)


async def test_other_numbers_of_nodes_are_no_other_reason() -> None:
    """kube-scheduler sorts the reasons by their texts, which begin with the numbers."""
    async with recording() as w:
        for name in ("p", "q"):
            await w.waits(name)
        w.refused("p", "0/3 nodes are available: 1 in use, 2 tainted. preemption: 0/3 nodes are available: 3 no help.")
        await eventually(lambda: w.pods_with_events() == ["p"])
        w.now += 60
        w.refused("p", "0/4 nodes are available: 1 tainted, 3 in use. preemption: 0/4 nodes are available: 4 no help.")
        w.refused("q")
        await eventually(lambda: w.event_recorder.events == 2)
        w.refused("p", "0/4 nodes are available: 4 in use. preemption: 0/4 nodes are available: 4 no help.")
        await eventually(lambda: w.event_recorder.events == 3)


class Unlisted(Informers):
    """Informers that have listed nothing until the test says so."""

    def __init__(self) -> None:
        self.all_listed = asyncio.Event()

    async def listed(self) -> None:
        await self.all_listed.wait()


async def test_no_event_before_everything_is_listed() -> None:
    """No pod fits before the nodes of the cluster are listed, so this reason must cause no Event."""
    async with berthing({"n1": "t4-4"}) as b:
        informers = Unlisted()
        cluster = replace(b.console.cluster, informers=informers, shared=True)
        async with Console(
            b.console.client, Policy(), supervisor=(supervisor := Supervisor()), cluster=cluster
        ) as other:
            w = World(b, b.console.client)
            w.event_recorder = other.event_recorder
            await w.waits("p")
            w.refused("p")
            await b.settled()
            assert w.pods_with_events() == []
            assert w.event_recorder.events == 0
            informers.all_listed.set()
            await eventually(lambda: w.pods_with_events() == ["p"])
            await supervisor.stop()


async def test_a_pod_that_the_watch_shows_later_has_its_event_in_the_end() -> None:
    async with recording() as w:
        w.refused("early")  # deleted meanwhile
        await w.waits("other")
        w.refused("other")
        await eventually(lambda: w.pods_with_events() == ["other"])
        await w.waits("p")
        w.refused("p")
        await eventually(lambda: w.pods_with_events() == ["other", "p"])


async def test_a_pod_that_fits_gets_an_event_when_it_no_longer_fits() -> None:
    async with recording() as w:
        await w.waits("p", 1)
        w.refused("p")
        await w.waits("other")
        w.refused("other")
        await eventually(lambda: w.pods_with_events() == ["other"])
        held = claim("held", 4)
        results = [{"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n1", "device": f"gpu-{i}"} for i in range(4)]
        held["metadata"]["uid"] = "held"
        held["status"] = {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": "x", "uid": "x"}],
        }
        w.b.cluster.store.put("resourceclaims", ("default", "held"), held)
        await w.b.settled()
        w.now += 60
        w.refused("p")  # for the same reasons
        await eventually(lambda: w.pods_with_events() == ["other", "p"])


@pytest.fixture
def _two_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    """The most that a recorder remembers, and that wait for it."""
    monkeypatch.setattr("extender.console.event_recorder._MAX_PODS", 2)


@pytest.mark.usefixtures("_two_pods")
async def test_pods_are_remembered_up_to_a_limit() -> None:
    async with recording() as w:
        for name in ("a", "b", "c"):
            await w.waits(name)
        for name in ("a", "b", "c"):
            w.refused(name)
        await eventually(lambda: w.pods_with_events() == ["b", "c"])


async def test_the_reasons_of_past_events_take_no_memory() -> None:
    """A condition may have long reasons, and the recorder remembers thousands of pods."""
    async with recording() as w:
        w.event_recorder = EventRecorder(w.b.console.questions, Writer(w.b.console.client), lambda: w.now)
        tracemalloc.start()
        for number in range(100):
            w.refused(f"p{number}", f"{number}" * 20_000)
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert taken < 1_000_000


async def test_namespaces_take_turns() -> None:
    """An Event of an honest pod once came after those of all hostile pods that waited before it."""
    async with recording() as w:
        for name in ("h1", "h2", "h3"):
            await w.waits(name, namespace="hostile")
        await w.waits("honest")
        for name in ("h1", "h2", "h3"):
            w.refused(name, namespace="hostile")
        w.refused("honest")
        await eventually(lambda: w.pods_with_events() == ["h1", "honest", "h2", "h3"])


@pytest.mark.usefixtures("_two_pods")
async def test_a_full_queue_drops_pods_of_the_namespace_with_the_most() -> None:
    async with recording() as w:
        await w.waits("honest")
        for name in ("h1", "h2", "h3"):
            await w.waits(name, namespace="hostile")
        w.refused("honest")
        for name in ("h1", "h2", "h3"):
            w.refused(name, namespace="hostile")
        await eventually(lambda: set(w.pods_with_events()) == {"honest", "h3"})


class GivesUp(Questions):
    """Questions in a container at its limit of processes."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def brief(self, uid: str, seconds: float) -> Brief | None:
        self.asked.append(uid)
        raise ForkedCallFailed("cannot start a process: try again")


async def test_explanations_that_give_up_for_one_reason_have_one_line_of_the_log() -> None:
    """Each pod had a traceback of its own."""
    gives_up = GivesUp()
    with capture_logs() as lines:
        async with recording(questions=gives_up) as w:
            uids = []
            for name in ("a", "b", "c"):
                await w.waits(name)
                w.refused(name)
                uids.append(w.b.pod(name)["metadata"]["uid"])
            await eventually(lambda: gives_up.asked == uids)
    logged = [line for line in lines if line["log_level"] in ("warning", "error") and "pod" in line]
    assert [(line["pod"], line.get("exc_info")) for line in logged] == [("default/a", None)]
    assert logged[0]["problem"] == "cannot start a process: try again"


async def test_a_deleted_pod_gets_no_event_about_a_new_pod_of_its_name() -> None:
    async with recording() as w:
        await w.waits("p")
        old = w.b.pod("p")["metadata"]["uid"]
        w.b.cluster.api.registry.delete(RESOURCES["", "pods"], ("default", "p"))
        w.b.cluster.apply(pod("p", "p"))
        await w.b.settled()
        waits = next(one for one in w.b.console.cache.store.pods.values() if one.key.name == "p")
        w.event_recorder.pod_changed(None, replace(waits, uid=old, unschedulable="in use"))
        await w.waits("q")
        w.refused("q")
        await eventually(lambda: w.pods_with_events() == ["q"])  # Events come in order


async def test_an_event_that_cannot_be_written_harms_nothing() -> None:
    async with recording() as w:

        async def refuse(method: str, path: str) -> ApiError | None:
            return ApiError(403, "Forbidden", "events are forbidden") if path.endswith("/events") and refusing else None

        refusing = True
        w.b.cluster.api.intercept = refuse
        await w.waits("p")
        await w.waits("q")
        w.refused("p")
        await w.event_recorder.policy_rejected(ObjectKey("default", "policy"), "packing: wrong")
        assert w.event_recorder.events == 0
        assert w.pods_with_events() == []
        refusing = False
        w.refused("q")
        await eventually(lambda: "q" in w.pods_with_events())
        await w.event_recorder.policy_rejected(ObjectKey("default", "policy"), "packing: wrong")
        assert "policy" in w.pods_with_events()


async def test_a_console_that_restarted_does_not_write_the_same_event_again() -> None:
    cluster, pod = Cluster(), ObjectKey("default", "p" * 253)
    async with cluster.serving() as api, ApiClient(Credentials(api, None, lambda: None)) as client:
        for note in ("fits nowhere", "fits nowhere", "another reason"):
            await Writer(client).create_event("Pod", pod, "uid", "NotPlaced", note)
    assert sorted(event["note"] for event in cluster.store.all("events")) == ["another reason", "fits nowhere"]
