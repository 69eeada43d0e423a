"""Changes of a gang's members and of its minimum wake it, and at most one plan is made in a second."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from benchmarks.fleet import Fleet
from extender.api.pod_groups import GroupKey, GroupSource
from extender.api.reasons import Code
from extender.gangs.gang_problem import MAX_TOGETHER
from extender.sandbox.apiserver.registry import RESOURCES
from extender.serve.gangs.gang_admission import SlotLimits
from tests.worlds.eventually import eventually
from tests.worlds.gang_fleet import Requeues, gang_member, watched_gangs
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
    requeues,
)
from tests.worlds.running_berth import Berthing, berthing, pod

pytestmark = pytest.mark.loopback

SIZE = 6


class Edited:
    """A gang of pods without devices, and the monitor that sees each change."""

    def __init__(self) -> None:
        self.fleet, self.requeues = Fleet("mixed"), Requeues()
        self.fleet.fill(1, 0.0)
        self.gangs, self.monitor = watched_gangs(self.fleet, SlotLimits(), sink=self.requeues)
        self.first = gang_member(self.fleet, "default", "job", "p0", SIZE)
        self.give_minimum(SIZE)

    @property
    def key(self) -> GroupKey:
        assert self.first.membership is not None
        return self.first.membership.key

    def give_minimum(self, minimum: int) -> None:
        members = [gang_member(self.fleet, "default", "job", f"p{i}", minimum) for i in range(SIZE)]
        self.first = members[0]
        self.seen()

    def without_one(self) -> None:
        """A member is deleted and created again."""
        self.fleet.cache.apply_pod("default-p3", None)
        self.seen()
        gang_member(self.fleet, "default", "job", "p3", SIZE)
        self.seen()

    def seen(self) -> None:
        self.monitor.pods_changed(*self.fleet.cache.store.take_changed_groups())

    def ask(self) -> None:
        self.gangs.filter(self.first, list(self.fleet.devices))


def other_minimum(gang: Edited) -> None:
    plan = gang.gangs.forming.get(gang.key)
    gang.give_minimum(SIZE - 1 if plan is not None and plan.minimum == SIZE else SIZE)


def incomplete_for_a_moment(gang: Edited) -> None:
    gang.give_minimum(SIZE + 1)
    gang.ask()
    gang.give_minimum(SIZE)


def too_large_for_a_moment(gang: Edited) -> None:
    gang.give_minimum(MAX_TOGETHER + 1)
    gang.ask()
    gang.give_minimum(SIZE)


@pytest.mark.parametrize("edit", [other_minimum, Edited.without_one, incomplete_for_a_moment, too_large_for_a_moment])
def test_an_edit_loop_gets_one_plan_in_a_second(edit: Callable[[Edited], None]) -> None:
    """Attack: keep the event loop busy by editing the members or the minimum of a large gang."""
    gang = Edited()
    for tenth in range(50):
        gang.fleet.now = tenth / 10
        gang.ask()
        edit(gang)
        gang.ask()
    assert 4 <= gang.gangs.counts.plans <= 6


def test_a_gang_that_changed_is_requeued_after_a_second() -> None:
    gang = Edited()
    gang.ask()
    assert gang.gangs.forming
    gang.give_minimum(SIZE - 1)
    gang.ask()
    waiting = gang.gangs.admission.get(gang.key)
    assert waiting is not None
    assert (waiting.reason.code, waiting.retry_at) == (Code.GANG_CHANGED, gang.fleet.now + 1)
    gang.requeues.times.clear()
    gang.fleet.now = gang.gangs.timers.next
    gang.monitor.expire()
    assert gang.requeues.times == ["fits"]
    gang.ask()
    assert gang.gangs.forming


def test_a_gang_whose_members_come_during_its_pause_is_requeued_at_its_end() -> None:
    gang = Edited()
    gang.ask()
    gang.give_minimum(SIZE + 1)
    gang.ask()
    gang.requeues.times.clear()
    gang_member(gang.fleet, "default", "job", "late", SIZE + 1)
    gang.seen()
    waiting = gang.gangs.admission.get(gang.key)
    assert waiting is not None
    assert not gang.requeues.times
    gang.fleet.now = waiting.retry_at
    gang.monitor.expire()
    assert gang.requeues.times == ["fits"]


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
    async with requeues(b, "the rejected members are requeued"):
        edit(b)
        await b.settled()

    await eventually(lambda: gets_a_node(b, "p1"), "the gang is planned")


async def pause_ends(b: Berthing) -> None:
    (key,) = b.app.service.cache.store.members
    waiting = b.app.service.gangs.admission.get(key)
    assert waiting is not None
    await eventually(lambda: waiting.retry_at <= b.app.service.clock() and not waiting.asked_early, "the pause ends")


@pytest.mark.parametrize(("minimum", "pods"), [(4, 4), (500, 3)], ids=["without room, after its pause", "too large"])
async def test_a_lower_minimum_wakes_a_gang(minimum: int, pods: int) -> None:
    async with berthing(NODES) as b:
        pod_group(b, minimum)
        for i in range(pods):
            labelled(b, f"p{i}")
        await b.settled()
        await reasons(b, "p1")
        if minimum == 4:
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
        async with requeues(b, "the last member wakes the others"):
            member(b, "p3")
        await eventually(lambda: gets_a_node(b, "p1"), "the gang is planned")
