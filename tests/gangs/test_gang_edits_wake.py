"""An edit that lets a rejected gang run wakes its members, also if the gang was rejected long ago."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from extender.api.pod_groups import GroupKey, GroupSource
from extender.sandbox.apiserver.registry import RESOURCES
from tests.worlds.eventually import eventually
from tests.worlds.gang_pods import (
    INCOMPLETE,
    NODES,
    annotate,
    delete,
    gets_a_node,
    labelled,
    member,
    pod_group,
    reasons,
)
from tests.worlds.running_berth import Berthing, berthing, pod

pytestmark = pytest.mark.loopback

Edit = Callable[[Berthing], None]


def lower_minimum(b: Berthing) -> None:
    resource, change = RESOURCES["scheduling.x-k8s.io", "podgroups"], {"spec": {"minMember": 3}}
    b.cluster.api.registry.patch(resource, ("default", "job"), change, "", strategic=False)


def delete_p0(b: Berthing) -> None:
    delete(b, "pods", "p0")
    delete(b, "resourceclaims", "p0-gpus")


def annotate_p0(b: Berthing, **notes: str | None) -> None:
    annotate(b, "p0", {f"berth.dev/group-{name}": value for name, value in notes.items()})


async def wakes(b: Berthing, edit: Edit) -> None:
    """After the edit kube-scheduler is asked to retry rejected pods, and the gang gets nodes."""
    touches = b.app.service.requeuer.touches
    edit(b)
    await b.settled()
    await eventually(lambda: b.app.service.requeuer.touches > touches, "the rejected members are requeued")

    async def has_node() -> bool:
        return bool((await b.filter("p1"))["NodeNames"])

    await eventually(has_node, "the gang is planned")


async def pause_ends(b: Berthing) -> None:
    (key,) = b.app.service.cache.store.members
    waiting = b.app.service.gangs.admission.get(key)
    assert waiting is not None
    await eventually(lambda: waiting.retry_at <= b.app.service.clock() and not waiting.asked_early, "the pause ends")


async def test_a_lower_minimum_wakes_a_gang_without_room_after_its_pause() -> None:
    async with berthing(NODES) as b:
        pod_group(b, 4)
        for i in range(4):
            labelled(b, f"p{i}")
        await b.settled()
        await reasons(b, "p1")
        await pause_ends(b)
        await wakes(b, lower_minimum)


async def test_the_deletion_of_a_surplus_member_wakes_a_gang_without_room_after_its_pause() -> None:
    async with berthing(NODES) as b:
        for i in range(4):
            member(b, f"p{i}", gpus=8 if i else 9)
        await b.settled()
        await reasons(b, "p1")
        await pause_ends(b)
        await wakes(b, delete_p0)


async def test_a_lower_minimum_wakes_a_gang_that_was_too_large() -> None:
    async with berthing(NODES) as b:
        pod_group(b, 500)
        for i in range(3):
            labelled(b, f"p{i}")
        await b.settled()
        await reasons(b, "p1")
        await wakes(b, lower_minimum)


@pytest.mark.parametrize("asked", ["p0", "p1"])
@pytest.mark.parametrize(
    ("notes", "edit"),
    [
        ({"min": "3"}, partial(annotate_p0, min="2")),
        ({"min": "3"}, delete_p0),
        ({"topology": "none"}, partial(annotate_p0, topology=None)),
        ({"timeout": "7s"}, partial(annotate_p0, timeout=None)),
        ({"timeout": "soon"}, partial(annotate_p0, timeout=None)),
    ],
)
async def test_an_edit_of_the_only_wrong_pod_wakes_the_gang(notes: dict[str, str], edit: Edit, asked: str) -> None:
    async with berthing(NODES) as b:
        for i in range(3):
            member(b, f"p{i}", minimum=2)
        annotate_p0(b, **notes)
        await b.settled()
        await reasons(b, asked)
        await wakes(b, edit)


async def test_pods_that_name_no_group_are_not_remembered_as_one_gang() -> None:
    async with berthing(NODES) as b:
        member(b, "p0")
        annotate(b, "p0", {"berth.dev/group": None})
        await b.settled()
        await reasons(b, "p0")
        assert b.app.service.gangs.admission.get(GroupKey("default", GroupSource.BERTH, "")) is None


async def test_a_pod_of_another_scheduler_is_no_member_and_does_not_wake_the_others_again_and_again() -> None:
    async with berthing(NODES) as b:
        for i in range(2):
            member(b, f"p{i}")
        notes = {"berth.dev/group": "job", "berth.dev/group-min": "3"}
        await b.create(pod("p2", annotations=notes, schedulerName="default-scheduler"))
        assert await reasons(b, "p1") == {INCOMPLETE}
        (waiting,) = (b.app.service.gangs.admission.get(key) for key in b.app.service.cache.store.members)
        assert waiting is not None
        assert not waiting.wakes, "the end of the pause wakes no pod"
        touches = b.app.service.requeuer.touches
        member(b, "p3")
        await eventually(lambda: b.app.service.requeuer.touches > touches, "the last member wakes the others")
        await eventually(lambda: gets_a_node(b, "p1"), "the gang is planned")
