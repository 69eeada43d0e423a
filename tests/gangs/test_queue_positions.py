"""A gang that needs many nodes gets its turn, although ever new small gangs form on some of these nodes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from extender.api.pod_groups import GroupKey
from extender.api.pods import Pod
from extender.api.reasons import Code, Reason
from extender.serve.gangs.gang_admission import GangAdmission, SlotLimits
from extender.serve.gangs.gang_plans import GangPlans
from extender.serve.gangs.gang_state import FormingGang
from tests.worlds.eventually import eventually
from tests.worlds.gang_fleet import AdmissionAlone, Gangs, commit, plan, unfinished
from tests.worlds.gang_pods import NODES, bind_all, create_gang, delete, key, member, planned, reasons
from tests.worlds.running_berth import berthing, claim, pod

pytestmark = pytest.mark.loopback

FIRST, LARGE, SMALL, OTHER = key("first"), key("large"), key("small"), key("other")


def waits_for(group: str) -> set[str]:
    return {f"waits until group default/{group} is bound: both need the same node"}


@pytest.mark.parametrize("is_asked", [True, False])
async def test_new_gangs_do_not_form_on_the_nodes_of_a_gang_that_waits(is_asked: bool) -> None:
    """Attack: keep a gang that needs many nodes waiting with ever new small gangs on some of them."""
    now = [0.0]
    async with berthing(NODES, clock=lambda: now[0]) as b:
        gangs, requeuer = b.app.service.gangs, b.app.service.requeuer
        for group, size, gpus in (("large", 3, 6), ("first", 2, 1), ("second", 2, 1)):
            await create_gang(b, size, group, gpus=gpus, prefix=f"{group}-")
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
            gangs.timers.on_earlier()
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
            await create_gang(b, size, group, gpus=gpus, prefix=f"{group}-")
        await planned(b, "first-0", "first-1")
        assert await reasons(b, "large-0") == waits_for("first")
        for i in range(3):
            delete(b, "pods", f"large-{i}")
        await b.settled()
        assert len(set((await planned(b, "second-0", "second-1")).values())) == 1


def waits_behind(queue: GangAdmission, group: GroupKey, *nodes: str) -> None:
    """The gang fits on these nodes, of which the gang FIRST uses some."""
    queue.wait_for_nodes(group, "u", Reason(Code.GANG_WAITS, (str(FIRST),)), FIRST, frozenset(nodes))


def kept_from(queue: GangAdmission, group: GroupKey) -> dict[GroupKey, frozenset[str]]:
    return {other: nodes for other, nodes in queue.occupied_for(group).items() if other != FIRST}


def test_a_plan_that_is_queued_costs_only_its_own_gang_the_place() -> None:
    """kube-scheduler was not told to retry, so gangs that wait for slots must not be asked about."""
    now = [0.0]
    queue = AdmissionAlone(lambda: now[0], SlotLimits(total=12, namespace=10, small=2))
    queue.forming[FIRST] = plan(FIRST, 8)
    assert queue.ask(SMALL, "u", 9, None, is_queued=False)
    waits_behind(queue, LARGE, "n1")
    queue.postpone(LARGE, "u", 5.0)
    now[0] = 15.0
    assert queue.expire()
    assert [one.key for one in queue.positions()] == [SMALL]


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
    commit(forming)
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
    fleet.monitor.expire()
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
        (forming,) = fleet.gangs.forming.values()
        assert forming.complete_since < 1.0
        fleet.clock.now += 10.0
        end(plans, forming)
        fleet.clock.now += 10.0
    assert fleet.gangs.filter(job[0], fleet.names).passed
    (forming,) = fleet.gangs.forming.values()
    commit(forming)
    for one in job:
        plans.bound(forming, one.uid)
    assert fleet.gangs.counts.seconds > 60.0, "the time of the failed plans counts"


def test_a_gang_that_is_created_again_is_new() -> None:
    fleet = Gangs(nodes=3, kinds=1)
    for created in (0.0, 100.0):
        fleet.clock.now = created
        job = fleet.joined("job", [fleet.pod("a") for _ in range(2)])
        fleet.monitor.pods_changed(*fleet.cache.store.take_changed_groups())
        assert fleet.gangs.filter(job[0], fleet.names).passed
        (forming,) = fleet.gangs.forming.values()
        assert forming.complete_since >= created
        for one in job:
            fleet.gone(one)
        fleet.monitor.pods_changed(*fleet.cache.store.take_changed_groups())
        assert not fleet.gangs.forming


def test_gangs_of_a_namespace_that_lost_a_turn_come_after_those_of_others_for_a_minute() -> None:
    """A tenant may have many older gangs that kube-scheduler asks about once, and then does not try any more."""
    now = [0.0]
    queue = AdmissionAlone(lambda: now[0])
    absent = [key(f"absent-{i}", "a") for i in range(2)]
    other, later = key("job", "b"), key("later", "a")
    for group in (*absent, other, later):
        now[0] += 1.0
        queue.complete_since(group)
    waits_behind(queue, absent[0], "n0")
    queue.requeue_waiting()
    now[0] += 15.0
    assert queue.expire()
    waits_behind(queue, absent[1], "n0")
    assert kept_from(queue, later).keys() == {absent[1]}
    assert kept_from(queue, other) == {}
    waits_behind(queue, other, "n0")
    assert kept_from(queue, absent[1]).keys() == {other}
    queue.requeue_waiting()
    now[0] += 15.0
    assert queue.expire()
    waits_behind(queue, other, "n0")
    assert kept_from(queue, absent[1]) == {}, "both lost a turn: the older gang comes first"
    now[0] += 60.0
    assert kept_from(queue, absent[1]) == {}


def asked(fleet: Gangs, pod: Pod, *names: str) -> list[str]:
    """The nodes that passed, or the reasons. Besides `names` kube-scheduler offers a node that Berth does not know."""
    found = fleet.gangs.filter(pod, [*names, "unknown"])
    return found.passed or sorted(set(found.failed.values()))


def test_a_gang_waits_for_the_plan_of_one_gang_and_not_for_others_of_its_name() -> None:
    """Otherwise a tenant could keep a gang waiting with gangs on other nodes."""
    fleet = Gangs(nodes=2, kinds=1)
    first = fleet.joined("llm", [fleet.pod("theirs"), fleet.pod("theirs")])
    mine = fleet.joined("mine", [fleet.pod("mine"), fleet.pod("mine")])
    forged = fleet.joined("llm", [fleet.pod("forged"), fleet.pod("forged")])
    assert asked(fleet, forged[0], "n1") == ["n1"]
    assert asked(fleet, first[0], "n0") == ["n0"]
    waits = [str(Reason(Code.GANG_WAITS, ("theirs/llm",)))]
    assert asked(fleet, mine[0], "n0") == waits
    (plan,) = (one for key, one in fleet.gangs.forming.items() if key.namespace == "theirs")
    fleet.gangs.plans.end(plan, "a pod was deleted")
    assert asked(fleet, mine[0], "n0") == ["n0"]
