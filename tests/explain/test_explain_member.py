"""A pod of a gang is explained with its group first: over HTTP, by the command, on the page's list and in Events."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from extender.cluster import Writer
from extender.console.event_recorder import EventRecorder
from tests.worlds.commands import berth_beside
from tests.worlds.eventually import eventually
from tests.worlds.explain_worlds import Counting, overview_of, questions, refused
from tests.worlds.gang_pods import NODES, bind_all, create_gang, member, planned
from tests.worlds.running_berth import Berthing, berthing, claim, pod

pytestmark = pytest.mark.loopback

Json = dict[str, Any]


async def explained(b: Berthing, name: str) -> Json:
    """The explanation by GET, which is that by POST; an event may arrive between the two."""

    async def equal() -> Json | None:
        reply = await b.client.get(f"/v1/explain/default/{name}")
        assert reply.status_code == 200, reply.text
        posted = await b.client.post("/v1/explain", json={"pod": f"default/{name}"})
        found: Json = reply.json()
        return found if posted.json() == [found] else None

    return await eventually(equal, "GET and POST are equal")


async def test_a_member_that_would_fit_alone_waits_with_its_group() -> None:
    async with berthing(NODES) as b:
        await create_gang(b, 2, minimum=3)
        found = await explained(b, "p0")
        assert found["outcome"] == "waiting"
        assert found["sentence"] == (
            "pod default/p0 waits with its group: group default/job waits for 1 pod: 2 of at least 3 exist"
        )
        assert found["gang"] == "default/job"
        assert found["alone"].startswith("pod default/p0 fits on 3 of 3 nodes")
        code, out, _ = await berth_beside(["explain", "pod", "default/p0", "--server", str(b.client.base_url)])
        assert code == 0
        assert out.index("waits with its group") < out.index("berth explain group default/job") < out.index("fits on")
        assert "best nodes" not in out
        wide = ["explain", "pod", "default/p0", "--output", "wide", "--server", str(b.client.base_url)]
        assert "best nodes" in (await berth_beside(wide))[1]


async def test_a_member_of_a_group_that_fits_is_planned_or_is_too_large() -> None:
    async with berthing(NODES) as b:
        await create_gang(b, 3)
        found = await explained(b, "p1")
        assert found["outcome"] == "fits"
        assert found["sentence"] == (
            "pod default/p1 waits with its group: group default/job fits: 3 pods across the cluster; "
            "Berth places it when kube-scheduler asks for it"
        )
        nodes = await planned(b, "p0")
        assert (await explained(b, "p1"))["outcome"] == "planned"
        member(b, "p3")
        await b.settled()
        assert await bind_all(b, nodes | await planned(b, "p1", "p2")) == ["", "", ""]
        await b.settled()
        rest = await eventually(lambda: is_alone(b, "p3"), "the minimum is bound, so this pod is placed alone")
        assert rest["sentence"].startswith("pod default/p3 fits nowhere")
        bound = await explained(b, "p0")
        assert (bound["outcome"], bound["gang"]) == ("bound", "default/job")
        await create_gang(b, 4, "large", prefix="large-")
        found = await explained(b, "large-0")
        assert found["outcome"] == "refused"
        assert "group default/large does not fit in this fleet" in found["sentence"]
        assert "for 3 of 4 pods" in found["sentence"]


async def is_alone(b: Berthing, name: str) -> Json | None:
    found = await explained(b, name)
    return found if "alone" not in found else None


async def test_an_annotation_that_is_invalid_is_the_reason_of_all_members() -> None:
    async with berthing(NODES) as b:
        member(b, "p0", minimum=2)
        b.cluster.apply(claim("p1-gpus"))
        notes = {"berth.dev/group": "job", "berth.dev/group-min": "many"}
        await b.create(pod("p1", "p1-gpus", annotations=notes), pod("lost", annotations={"berth.dev/group-min": "2"}))
        for name in ("p0", "p1"):
            found = await explained(b, name)
            assert (found["outcome"], found["gang"]) == ("blocked", "default/job")
            assert found["sentence"] == (
                f"pod default/{name} waits with its group: group default/job is rejected: pod default/p1: "
                "pod annotation berth.dev/group-min: 'many' is not a number from 1 to 100000"
            )
        found = await explained(b, "lost")
        assert (found["outcome"], found["gang"]) == ("blocked", "")
        assert "pod annotation berth.dev/group-min: the pod names no group" in found["sentence"]


async def refused_gang(b: Berthing) -> None:
    """A gang of 20 pods that does not fit, and that kube-scheduler tried."""
    await create_gang(b, 20)
    for i in range(20):
        await refused(b, f"p{i}", "no domain has room")


async def test_a_gang_is_one_row_of_the_list_of_waiting_pods_and_is_explained_once() -> None:
    async with berthing(NODES) as b:
        counting = Counting(b)
        await refused_gang(b)
        overview = overview_of(b, counting)
        news = overview.fleet(overview.fleet()["cursor"])
        (row,) = news["pending"]
        assert (row["pods"], news["waiting"]) == (20, 20)
        assert row["nearest"] == "group default/job fits with a minimum of 3 instead of 20 members"
        assert counting.count == 1


async def test_all_queued_members_get_an_event_about_the_gang_which_is_explained_once() -> None:
    async with berthing(NODES) as b:
        counting = Counting(b)
        recorder = EventRecorder(questions(b, counting), Writer(b.console.client), lambda: 0.0)
        await refused_gang(b)
        for found in b.console.cache.store.pods.values():
            recorder.pod_changed(None, found)
        task = asyncio.create_task(recorder.run())
        await eventually(lambda: recorder.events == 20, "an Event for each member")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert counting.count == 1
        events = b.cluster.store.all("events")
        assert {event["regarding"]["name"] for event in events} == {f"p{i}" for i in range(20)}
        (note,) = {event["note"] for event in events}
        assert note.startswith("group default/job does not fit in this fleet: ")
        assert note.endswith("; see berth explain group default/job")
