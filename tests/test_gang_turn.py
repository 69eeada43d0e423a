"""A gang that needs many nodes gets its turn, although ever new small gangs form on some of these nodes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from extender.extension.gang_turn import GangTurn
from extender.extension.gangs.gang_plans import GangPlans
from extender.extension.gangs.gang_state import FormingGang
from extender.model import Code, Pod, Reason
from tests.eventually import eventually
from tests.gang_fleet import Gangs, unfinished
from tests.running_berth import berthing, claim, pod
from tests.test_gang_pauses import key
from tests.test_gangs import NODES, bind_all, delete, member, planned, reasons

pytestmark = pytest.mark.loopback

LARGE, SMALL, OTHER = key("large"), key("small"), key("other")


def waits_for(group: str) -> set[str]:
    return {f"waits until group default/{group} is bound: both need the same node"}


@pytest.mark.parametrize("is_asked", [True, False])
async def test_new_gangs_do_not_form_on_the_nodes_of_a_gang_that_waits(is_asked: bool) -> None:
    """Attack: keep a gang that needs many nodes waiting with ever new small gangs on some of them."""
    now = [0.0]
    async with berthing(NODES, clock=lambda: now[0]) as b:
        gangs, requeuer = b.app.service.gangs, b.app.service.requeuer
        for group, size, gpus in (("large", 3, 6), ("first", 2, 1), ("second", 2, 1)):
            for i in range(size):
                member(b, f"{group}-{i}", group, size, gpus)
        await b.settled()
        first = await planned(b, "first-0", "first-1")
        assert await reasons(b, "large-0") == waits_for("first")
        now[0] += 1.0
        assert not (await b.filter("second-0"))["NodeNames"], "a new gang comes after one that waits"
        touches = requeuer.touches
        assert await bind_all(b, first) == ["", ""]
        await eventually(lambda: requeuer.touches > touches, "the gangs are requeued")
        await b.settled()
        assert await reasons(b, "second-0") == waits_for("large")
        if not is_asked:
            touches, now[0] = requeuer.touches, now[0] + 15.0
            gangs.rescheduled.set()
            await eventually(lambda: requeuer.touches > touches, "the large gang has lost its turn")
            assert await bind_all(b, await planned(b, "second-0", "second-1")) == ["", ""]
            return
        large = await planned(b, "large-0", "large-1", "large-2")
        assert await reasons(b, "second-1") == waits_for("large")
        assert await bind_all(b, large) == ["", "", ""]
        assert await bind_all(b, await planned(b, "second-0", "second-1")) == ["", ""]


async def test_a_gang_that_is_deleted_has_no_turn() -> None:
    async with berthing(NODES) as b:
        for group, size, gpus in (("large", 3, 6), ("first", 2, 1), ("second", 2, 1)):
            for i in range(size):
                member(b, f"{group}-{i}", group, size, gpus)
        await b.settled()
        await planned(b, "first-0", "first-1")
        assert await reasons(b, "large-0") == waits_for("first")
        for i in range(3):
            delete(b, "pods", f"large-{i}")
        await b.settled()
        assert len(set((await planned(b, "second-0", "second-1")).values())) == 1


def test_the_gang_that_waits_for_longest_has_the_turn_until_kube_scheduler_does_not_ask_for_15_seconds() -> None:
    now, waiting = [0.0], {LARGE, SMALL, OTHER}
    turn = GangTurn(lambda: now[0], waiting.__contains__)
    turn.wait(SMALL, frozenset({"n0"}), complete_since=5.0)
    turn.wait(LARGE, frozenset({"n1"}), complete_since=3.0)
    turn.wait(OTHER, frozenset({"n2"}), complete_since=4.0)
    first = turn.before(OTHER, 4.0)
    assert first is not None
    assert (first.key, first.nodes) == (LARGE, frozenset({"n1"}))
    assert turn.before(LARGE, 3.0) is None
    assert turn.before(key("older"), 2.0) is None
    turn.requeued()
    now[0] = 10.0
    turn.requeued()
    assert turn.next_deadline == 15.0
    turn.asked(LARGE)
    now[0] = 20.0
    assert not turn.lost()
    turn.requeued()
    now[0] = 35.0
    assert turn.before(OTHER, 4.0) is None
    assert turn.lost()
    assert not turn.lost(), "once"
    turn.wait(OTHER, frozenset({"n2"}), complete_since=4.0)
    waiting.remove(OTHER)
    assert turn.before(SMALL, 5.0) is None
    turn.wait(SMALL, frozenset({"n0"}), complete_since=5.0)
    assert turn.leave(SMALL)
    assert not turn.leave(SMALL)


async def test_a_gang_that_waits_for_one_of_the_same_name_does_not_wait_for_itself() -> None:
    """Two gangs of one namespace have the same name if their pods name them in different ways."""
    async with berthing(NODES) as b:
        for i in range(3):
            member(b, f"large-{i}", "large", 3, 6)
        for i in range(2):
            b.cluster.apply(claim(f"kueue-{i}-gpus", 1))
            made = pod(f"kueue-{i}", f"kueue-{i}-gpus", annotations={"kueue.x-k8s.io/pod-group-total-count": "2"})
            made["metadata"]["labels"] = {"kueue.x-k8s.io/pod-group-name": "large"}
            b.cluster.apply(made)
        await b.settled()
        kueue = await planned(b, "kueue-0", "kueue-1")
        assert await reasons(b, "large-0") == waits_for("large")
        assert await bind_all(b, kueue) == ["", ""]
        await b.settled()
        assert len(set((await planned(b, "large-0", "large-1", "large-2")).values())) == 3


async def test_gangs_are_requeued_when_a_member_of_the_gang_with_the_turn_gets_another_scheduler() -> None:
    now = [0.0]
    async with berthing(NODES, clock=lambda: now[0]) as b:
        plans, requeuer = b.app.service.gangs.plans, b.app.service.requeuer
        for group, size, gpus in (("first", 2, 1), ("large", 3, 6), ("second", 2, 1)):
            for i in range(size):
                member(b, f"{group}-{i}", group, size, gpus)
        await b.settled()
        first = await planned(b, "first-0", "first-1")
        assert await reasons(b, "large-0") == waits_for("first")
        assert await bind_all(b, first) == ["", ""]
        delete(b, "pods", "large-2")
        other = pod("large-2", annotations={"berth.dev/group": "large", "berth.dev/group-min": "3"})
        other["spec"]["schedulerName"] = "default-scheduler"
        b.cluster.apply(other)
        await b.settled()
        now[0] += 1.0
        assert await reasons(b, "second-0") == waits_for("large")
        touches = requeuer.touches
        assert await reasons(b, "large-0") == {"waits until at least 3 pods of group large and their claims exist"}
        assert plans.turn.key is None
        await eventually(lambda: requeuer.touches > touches, "the second gang is requeued")


# -- without an API server -----------------------------------------------------------------------------------------


def three_gangs() -> tuple[Gangs, list[Pod], list[Pod], list[Pod]]:
    """The first one is planned, the large one needs the node of the first and all others, the second one is newer."""
    fleet = Gangs(nodes=3, kinds=1)
    first = fleet.joined("first", [fleet.pod("a") for _ in range(2)])
    large = fleet.joined("large", [fleet.pod("b", count=2) for _ in range(5)])
    second = fleet.joined("second", [fleet.pod("c") for _ in range(2)])
    assert fleet.gangs.filter(first[0], fleet.names).passed
    assert set(fleet.reasons(large[:1])) == {waits("a/first")}
    return fleet, first, large, second


def waits(group: str) -> str:
    return str(Reason(Code.GANG_WAITS, (group,)))


def without_time(fleet: Gangs, namespace: str) -> None:
    """The namespace has queued work, and gets no turn."""
    fleet.filter_service.evaluations.queue(namespace, "costly", lambda _: False)


def end_first(fleet: Gangs, first: list[Pod]) -> None:
    (forming,) = fleet.gangs.forming.values()
    for one in first:
        fleet.gangs.plans.bound(forming, one.uid)


def test_a_gang_whose_plan_takes_longer_than_a_call_keeps_its_turn_for_15_seconds() -> None:
    fleet, first, large, second = three_gangs()
    without_time(fleet, "b")
    end_first(fleet, first)
    for _ in range(3):
        assert set(fleet.reasons(large[:1])) == {unfinished("large")}
        assert set(fleet.reasons(second)) == {waits("b/large")}
        fleet.clock.now += 5.0
    assert set(fleet.reasons(large[:1])) == {unfinished("large")}
    fleet.gangs.plans.requeue_due()
    assert fleet.gangs.filter(second[0], fleet.names).passed, "else a gang whose plan never ends keeps its nodes"


def failed(plans: GangPlans, forming: FormingGang) -> None:
    plans.fail(forming, "a bind did not come in time")


def changed(plans: GangPlans, forming: FormingGang) -> None:
    plans.changed(forming, "a member was deleted")


@pytest.mark.parametrize("end", [failed, changed])
def test_a_gang_whose_plan_ends_is_as_old_as_before(end: Callable[[GangPlans, FormingGang], None]) -> None:
    fleet = Gangs(nodes=3, kinds=1)
    job, plans = fleet.joined("job", [fleet.pod("a") for _ in range(2)]), fleet.gangs.plans
    for _ in range(3):
        assert fleet.gangs.filter(job[0], fleet.names).passed
        (forming,) = plans.forming.values()
        assert forming.complete_since < 1.0
        fleet.clock.now += 10.0
        end(plans, forming)
        fleet.clock.now += 10.0
    assert fleet.gangs.filter(job[0], fleet.names).passed
    (forming,) = plans.forming.values()
    for one in job:
        plans.bound(forming, one.uid)
    assert fleet.gangs.counts.seconds > 60.0, "the time of the failed plans counts"


def test_a_gang_that_is_created_again_is_new() -> None:
    fleet = Gangs(nodes=3, kinds=1)
    for created in (0.0, 100.0):
        fleet.clock.now = created
        job, plans = fleet.joined("job", [fleet.pod("a") for _ in range(2)]), fleet.gangs.plans
        fleet.monitor.pods_changed(*fleet.cache.store.take_changed_groups())
        assert fleet.gangs.filter(job[0], fleet.names).passed
        (forming,) = plans.forming.values()
        assert forming.complete_since >= created
        for one in job:
            fleet.gone(one)
        fleet.monitor.pods_changed(*fleet.cache.store.take_changed_groups())
        assert not plans.forming


def test_gangs_of_a_namespace_that_lost_a_turn_come_after_those_of_others_for_a_minute() -> None:
    """A tenant may have many older gangs that kube-scheduler asks about once, and then does not try any more."""
    now, nodes = [0.0], frozenset({"n0"})
    turn = GangTurn(lambda: now[0], lambda _: True)
    absent = [key(f"absent-{i}", "a") for i in range(2)]
    other = key("job", "b")
    turn.wait(absent[0], nodes, 1.0)
    turn.requeued()
    now[0] = 15.0
    assert turn.lost()
    turn.wait(absent[1], nodes, 2.0)
    assert turn.before(key("later", "a"), 3.0) is not None
    assert turn.before(other, 3.0) is None
    turn.wait(other, nodes, 3.0)
    first = turn.before(absent[1], 2.0)
    assert first is not None
    assert first.key == other
    now[0] += 60.0
    assert turn.before(absent[1], 2.0) is None


def test_the_namespaces_that_lost_a_turn_are_bounded() -> None:
    now, nodes = [0.0], frozenset({"n0"})
    turn = GangTurn(lambda: now[0], lambda _: True, namespaces=1)
    for namespace in ("a", "b"):
        turn.wait(key("absent", namespace), nodes, 1.0)
        turn.requeued()
        now[0] += 15.0
        assert turn.lost()
    turn.wait(key("job", "b"), nodes, 2.0)
    assert turn.before(key("later", "a"), 3.0) is None, "a gang of the namespace that lost its turn last comes last"
    assert turn.before(key("later", "b"), 3.0) is not None
