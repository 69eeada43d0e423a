"""Bind slots: gangs of one namespace do not take the connections that others need."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from benchmarks.fleet import Fleet
from extender.extension.bind_slots import BindSlots, SlotLimits, SlotQueue
from extender.extension.filter import FilterResult, FilterSink
from extender.extension.gang_state import FormingGang, PlannedGang
from extender.model import GroupKey, GroupSource, ObjectKey, Pod
from extender.scheduling import MOST_TOGETHER, GangPlan
from extender.web.http_limits import VERBS
from tests.bind_slots_world import gang_member, gang_scheduler
from tests.dra_worlds import place
from tests.eventually import eventually
from tests.running_berth import Berthing, Json, berthing, claim, pod
from tests.test_gangs import NODES, bind_all, member, planned

LIMITS = SlotLimits(total=12, namespace=10, small=2)
QUEUED = "waits its turn: too many pods of other groups are waiting for each other at bind"


def forming(namespace: str, size: int, since: float = 0.0, arrived: int = 0, bound: int = 0) -> FormingGang:
    """A gang with a plan. The first few of its members arrived at bind or are bound."""
    uids = [f"u{i}" for i in range(size)]
    key = GroupKey(namespace, GroupSource.BERTH, f"{size}-{since}")
    gang = PlannedGang(GangPlan({}, "", ""), {}, {}, frozenset(uids), {}, {})
    found = FormingGang(key, gang, size, since, since, 1000.0, since)
    found.arrived.update(dict.fromkeys(uids[:arrived], "n0"))
    found.bound.update(uids[:bound])
    return found


def in_the_way(namespace: str, count: int, *plans: FormingGang, now: float = 0.0) -> list[int] | None:
    """The positions of the plans that must end; None if the gang must wait."""
    found = BindSlots(lambda: now, LIMITS).plans_in_the_way(namespace, count, plans)
    return None if found is None else sorted(plans.index(plan) for plan in found)


# -- the rule ------------------------------------------------------------------------------------------------------


def test_gangs_get_places_for_all_of_their_minimum_or_none() -> None:
    assert in_the_way("a", 10) == []
    assert in_the_way("a", 4, forming("a", 6)) == []
    assert in_the_way("a", 5, forming("a", 6)) is None
    assert in_the_way("b", 5, forming("a", 6)) is None
    assert in_the_way("b", 4, forming("a", 6)) == []


def test_the_last_places_are_for_small_namespaces() -> None:
    full = forming("a", 10)
    assert in_the_way("b", 2, full) == []
    assert in_the_way("b", 3, full) is None
    assert in_the_way("a", 2, full) is None
    assert in_the_way("b", 2, full, forming("b", 2)) is None
    assert in_the_way("c", 2, full, forming("b", 2)) is None


def test_small_namespaces_do_not_keep_a_gang_of_the_largest_size_from_its_places() -> None:
    assert in_the_way("b", 10, forming("a", 2)) == []
    assert in_the_way("b", 10, forming("a", 2), forming("c", 1)) is None, "they have used up their own slots"
    assert in_the_way("b", 9, forming("a", 2), forming("c", 1)) == []


def test_a_plan_that_waits_too_long_gives_way_to_other_namespaces_only() -> None:
    """Attack: take the connections of the verbs with gangs whose pods wait for each other at bind."""
    old, new = forming("a", 6), forming("a", 4, since=90.0)
    assert in_the_way("b", 6, old, new, now=100.0) == [0]
    assert in_the_way("b", 10, old, new, now=100.0) is None, "no plan ends in vain"
    assert in_the_way("a", 6, old, new, now=100.0) is None


def test_a_plan_whose_members_have_all_arrived_does_not_give_way() -> None:
    assert in_the_way("b", 6, forming("a", 6, arrived=6), now=100.0) is None
    assert in_the_way("b", 6, forming("a", 6, arrived=5), now=100.0) == [0]


def test_a_plan_whose_minimum_is_bound_has_one_place_and_gives_way_to_all() -> None:
    done = forming("a", 6, arrived=6, bound=6)
    assert in_the_way("a", 9, done) == []
    assert in_the_way("a", 10, done) == [0]
    assert in_the_way("b", 10, done) == [], "the slots of a small namespace are no burden"
    assert in_the_way("b", 10, done, forming("c", 2)) == [0]


def test_gangs_that_wait_are_retried_once_a_plan_gives_way() -> None:
    now = [0.0]
    slots, plans = BindSlots(lambda: now[0], LIMITS), [forming("a", 6), forming("a", 4, since=3.0)]
    for _ in plans:
        assert not slots.began_to_give_way(plans)
        now[0] = slots.next_deadline(plans)
        assert slots.began_to_give_way(plans)
        assert not slots.began_to_give_way(plans)
    assert slots.next_deadline(plans) == float("inf")


# -- the turn ------------------------------------------------------------------------------------------------------


class Queue:
    """Gangs that ask for slots. Those that got them stay until `end`."""

    def __init__(self) -> None:
        self.fleet, self.requeues = Fleet("mixed"), Requeues()
        self.fleet.fill(1, 0.0)
        self.gangs = gang_scheduler(self.fleet, LIMITS, remembered_gangs=100, sink=self.requeues)
        self.pods: dict[str, Pod] = {}

    def ask(self, namespace: str, group: str, minimum: int) -> bool:
        """Whether the gang, made at its first filter request, has a plan now."""
        name, names = f"{namespace}/{group}", list(self.fleet.devices)
        if name not in self.pods:
            members = [gang_member(self.fleet, namespace, group, f"{group}-{i}", minimum) for i in range(minimum)]
            self.pods[name] = members[0]
        self.fleet.now += 0.1
        return self.gangs.filter(self.pods[name], names) == FilterResult()

    def end(self, group: str) -> None:
        """The members of the gang are all bound."""
        (plan,) = [plan for key, plan in self.gangs.forming.items() if key.name == group]
        self.gangs.plans.end(plan, "done")


@pytest.mark.parametrize("namespace", ["own", "of-others"])
def test_newer_gangs_do_not_overtake_one_that_needs_many_places(namespace: str) -> None:
    """Two newer gangs at a time take half of the slots each, and the next one comes before the first has ended."""
    queue = Queue()
    assert queue.ask(namespace, "n0", 5)
    assert queue.ask(f"{namespace}-2" if namespace == "of-others" else namespace, "n1", 5)
    assert not queue.ask("own", "old", 8)
    queue.end("n0")
    assert not queue.ask(f"{namespace}-3" if namespace == "of-others" else namespace, "n2", 5)
    queue.end("n1")
    assert queue.ask("own", "old", 8)


def test_gangs_that_fit_beside_the_places_kept_for_an_older_one_do_not_wait() -> None:
    queue = Queue()
    assert queue.ask("a", "n0", 7)
    assert not queue.ask("a", "old", 6)
    assert queue.ask("small", "n1", 2)
    assert queue.ask("other", "n2", 3), "the namespace of the old gang has a plan already"
    assert not queue.ask("a", "n3", 2)


def test_a_namespace_with_many_gangs_that_wait_has_one_turn_after_the_other() -> None:
    """Its gangs are older than that of the other namespace, and each needs all slots."""
    queue = Queue()
    for i in range(5):
        assert queue.ask("evil", f"n{i}", 10) == (i == 0)
    assert not queue.ask("good", "job", 10)
    queue.end("n0")
    assert not queue.ask("evil", "n2", 10)
    assert queue.ask("good", "job", 10)
    queue.end("job")
    assert queue.ask("evil", "n1", 10)


def test_a_gang_that_is_not_tried_any_more_loses_its_turn() -> None:
    """Attack: keep a large gang of others waiting with ever new small gangs."""
    queue = Queue()
    assert queue.ask("a", "n0", 10)
    assert not queue.ask("b", "absent", 10)
    assert not queue.ask("c", "job", 10)
    queue.end("n0")
    assert not queue.ask("c", "job", 10)
    queue.requeues.times.clear()
    queue.fleet.now = queue.gangs.plans.next_deadline
    queue.gangs.plans.requeue_due()
    assert queue.requeues.times == ["fits"]
    assert queue.ask("c", "job", 10)


def test_the_namespaces_with_gangs_that_wait_for_places_are_bounded() -> None:
    queue = SlotQueue(lambda: 0.0, namespaces=4)
    for i in range(20):
        queue.wait(GroupKey(f"n{i}", GroupSource.BERTH, "job"), 2, 0.0)
    assert len(queue) == 4


class Requeues(FilterSink):
    """Notes the calls that requeue pods."""

    def __init__(self) -> None:
        self.times: list[str] = []

    def fits(self) -> None:
        self.times.append("fits")


def test_a_gang_that_waits_is_requeued_and_takes_the_places_of_a_plan_that_waits_too_long() -> None:
    fleet, requeues = Fleet("mixed"), Requeues()
    fleet.fill(1, 0.0)
    gangs = gang_scheduler(fleet, LIMITS, sink=requeues)
    evil, good = ([gang_member(fleet, name, "job", f"p{i}", 8) for i in range(8)] for name in ("evil", "good"))
    names = list(fleet.devices)
    assert gangs.filter(evil[0], names) == FilterResult(), "all nodes"
    (text,) = set(gangs.filter(good[0], names).failed.values())
    assert text.endswith(QUEUED)
    gangs.plans.requeue_due()
    assert not requeues.times
    fleet.now = gangs.plans.next_deadline
    (plan,) = gangs.forming.values()
    assert fleet.now < plan.ends_at, "no other gang would end it yet"
    gangs.plans.requeue_due()
    assert requeues.times == ["fits"]
    assert gangs.filter(good[0], names) == FilterResult()
    assert [key.namespace for key in gangs.forming] == ["good"]
    (text,) = set(gangs.filter(evil[1], names).failed.values())
    assert "planned again after a pause" in text


def test_a_namespace_whose_gangs_end_early_does_not_keep_the_places_with_new_gangs() -> None:
    """Each ends before it would give way, and the next one takes its slots."""
    fleet = Fleet("mixed")
    fleet.fill(1, 0.0)
    gangs, names = gang_scheduler(fleet, LIMITS), list(fleet.devices)
    evil = [gang_member(fleet, "evil", f"g{i}", f"p{i}-{j}") for i in range(25) for j in range(2)][::2]
    good = [gang_member(fleet, "good", "job", f"p{i}", 8) for i in range(8)]
    for first in evil[:5]:
        gangs.filter(first, names)
    for following in evil[5:]:
        gangs.filter(good[0], names)
        if "good" in {key.namespace for key in gangs.forming}:
            break
        gangs.plans.end(next(iter(gangs.forming.values())), "a pod was deleted")
        gangs.filter(following, names)
        fleet.now += 2.0
    plans = gangs.forming.values()
    assert sorted(plan.key.namespace for plan in plans) == ["evil", "good"]


def test_after_a_plan_gave_way_the_other_plans_of_its_namespace_have_a_new_turn() -> None:
    queue = Queue()
    for i in range(5):
        assert queue.ask("evil", f"n{i}", 2)
    queue.fleet.now = queue.gangs.plans.next_deadline
    assert queue.ask("good", "job", 8)
    plans = queue.gangs.forming
    assert sorted(key.namespace for key in plans) == ["evil", "good"]
    assert {plan.since for plan in plans.values()} == {queue.fleet.now}


def test_the_places_leave_connections_to_pods_outside_of_gangs() -> None:
    limits = SlotLimits()
    assert limits.namespace >= MOST_TOGETHER, "one gang of the largest size can be bound"
    assert limits.total + 64 <= VERBS.connections


# -- over HTTP -----------------------------------------------------------------------------------------------------


def in_namespace(b: Berthing, name: str, namespace: str, group: str, minimum: int) -> None:
    """Create a gang member without devices."""
    one = pod(name, annotations={"berth.dev/group": group, "berth.dev/group-min": str(minimum)})
    one["metadata"]["namespace"] = namespace
    b.cluster.apply(one)


async def ask(b: Berthing, name: str, namespace: str) -> Json:
    found = b.cluster.store.get("pods", (namespace, name))
    reply = await b.client.post("/filter", json={"Pod": found, "Nodes": None, "NodeNames": list(NODES)})
    return reply.json()


@pytest.mark.parametrize("size", [2, 12])
async def test_a_tenant_s_gangs_without_devices_do_not_keep_others_from_bind(size: int) -> None:
    """One member of each gang stays away for ever, so the binds of the others wait."""
    async with berthing(NODES) as b:
        b.cluster.apply({"kind": "Namespace", "metadata": {"name": "evil"}})
        gangs = MOST_TOGETHER // size + 5
        for i in range(gangs):
            for j in range(size):
                in_namespace(b, f"p{i}-{j}", "evil", f"g{i}", size)
        for i in range(3):
            member(b, f"q{i}")
        await b.settled()
        answers = [await ask(b, f"p{i}-0", "evil") for i in range(gangs)]
        plans = b.app.service.gangs.forming
        assert sum(plan.quorum for plan in plans.values()) <= MOST_TOGETHER
        passed = [answer for answer in answers if answer["NodeNames"]]
        assert len(passed) == len(plans) == MOST_TOGETHER // size
        told = {text for answer in answers for text in answer["FailedAndUnresolvableNodes"].values()}
        assert all(text.endswith(QUEUED) for text in told), told
        assert told
        assert await bind_all(b, await planned(b, "q0", "q1", "q2")) == ["", "", ""]


async def test_a_gang_that_waits_its_turn_is_retried_when_another_is_bound() -> None:
    async with berthing(NODES) as b:
        half = MOST_TOGETHER // 2 + 1
        for group in ("a", "b"):
            for i in range(half):
                in_namespace(b, f"{group}{i}", "default", group, half)
        await b.settled()
        assert (await b.filter("a0"))["NodeNames"]
        assert not (await b.filter("b0"))["NodeNames"]
        touches, bind = b.app.service.requeuer.touches, b.app.service.bind
        uids = {name: b.pod(name)["metadata"]["uid"] for name in (f"a{i}" for i in range(half))}
        await asyncio.gather(*(bind(ObjectKey("default", name), uid, "n0") for name, uid in uids.items()))
        assert all(b.node_of(name) == "n0" for name in uids)
        await eventually(lambda: b.app.service.requeuer.touches > touches, "the other gang is requeued")
        assert (await b.filter("b0"))["NodeNames"]


async def test_a_gang_of_the_largest_size_is_bound_over_as_many_connections_beside_other_pods() -> None:
    async with berthing(NODES) as b:
        names = [f"p{i}" for i in range(MOST_TOGETHER)]
        for name in names:
            in_namespace(b, name, "default", "job", MOST_TOGETHER)
        b.cluster.apply(claim("single"))
        b.cluster.apply(pod("alone", "single"))
        await b.settled()
        assert (await b.filter(names[0]))["NodeNames"]
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def bind(name: str) -> str:
                uid = b.pod(name)["metadata"]["uid"]
                body = {"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": "n0"}
                async with session.post(str(b.client.base_url.join("/bind")), json=body) as reply:
                    return str((await reply.json())["Error"])

            binds = [asyncio.create_task(bind(name)) for name in names[1:]]
            (plan,) = b.app.service.gangs.forming.values()
            await eventually(lambda: len(plan.arrived) == len(binds), "all binds but one wait")
            assert await place(b, "alone") == ""
            assert await bind(names[0]) == ""
            assert set(await asyncio.gather(*binds)) == {""}
