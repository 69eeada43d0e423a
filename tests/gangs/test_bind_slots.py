"""Bind slots: gangs of one namespace do not take the connections that others need."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import aiohttp
import pytest

from benchmarks.fleet import Fleet
from extender.api.object_meta import ObjectKey
from extender.api.pod_groups import GroupKey, GroupSource
from extender.api.pods import Pod
from extender.gangs.gang_problem import MAX_TOGETHER
from extender.serve.filter import FilterResult
from extender.serve.gangs.gang_admission import SlotLimits
from extender.serve.gangs.gang_state import FormingGang
from extender.web.asgi import VERBS
from tests.worlds.dra_worlds import place
from tests.worlds.eventually import eventually
from tests.worlds.gang_fleet import AdmissionAlone, Requeues, gang_member, plan, watched_gangs
from tests.worlds.gang_pods import NODES, bind_all, create_gang, planned
from tests.worlds.running_berth import Berthing, Json, berthing, claim, pod

LIMITS = SlotLimits(total=12, namespace=10, small=2)
QUEUED = "waits its turn: too many pods of other groups are waiting for each other at bind"


def forming(namespace: str, size: int, *, bound: bool = False) -> FormingGang:
    return plan(GroupKey(namespace, GroupSource.BERTH, str(size)), size, bound=bound)


def in_the_way(namespace: str, count: int, *plans: FormingGang) -> list[int] | None:
    """The positions of the plans that must end; None if the gang must wait."""
    queue = AdmissionAlone(lambda: 0.0, LIMITS)
    queue.forming.update({one.key: one for one in plans})
    found = queue.plans_to_preempt(namespace, count)
    return None if found is None else sorted(plans.index(one) for one in found)


# -- the rule ------------------------------------------------------------------------------------------------------


FULL, PART, DONE = forming("a", 10), forming("a", 6), forming("a", 6, bound=True)


@pytest.mark.parametrize(
    ("namespace", "count", "plans", "found"),
    [
        ("a", 10, (), []),  # a gang gets places for all of its minimum, or none
        ("a", 4, (PART,), []),
        ("a", 5, (PART,), None),
        ("b", 5, (PART,), None),
        ("b", 4, (PART,), []),
        ("b", 2, (FULL,), []),  # the last places are for small namespaces
        ("b", 3, (FULL,), None),
        ("a", 2, (FULL,), None),
        ("b", 2, (FULL, forming("b", 2)), None),
        ("c", 2, (FULL, forming("b", 2)), None),
        ("b", 10, (forming("a", 2),), []),  # small namespaces do not keep a gang of the largest size from its places
        ("b", 10, (forming("a", 2), forming("c", 1)), None),  # they have used up their own slots
        ("b", 9, (forming("a", 2), forming("c", 1)), []),
        ("a", 9, (DONE,), []),  # a plan whose minimum is bound has one place, and gives way to all
        ("a", 10, (DONE,), [0]),
        ("b", 10, (DONE,), []),
        ("b", 10, (DONE, forming("c", 2)), [0]),
    ],
)
def test_which_gangs_get_places(
    namespace: str, count: int, plans: tuple[FormingGang, ...], found: list[int] | None
) -> None:
    assert in_the_way(namespace, count, *plans) == found


# -- the turn ------------------------------------------------------------------------------------------------------


class Queue:
    """Gangs that ask for slots. Those that got them stay until `end`."""

    def __init__(self) -> None:
        self.fleet, self.requeues = Fleet("mixed"), Requeues()
        self.fleet.fill(1, 0.0)
        self.gangs, self.monitor = watched_gangs(self.fleet, LIMITS, sink=self.requeues)
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


# A gang by its namespace, name and size: + if it has a plan now, - if it waits. !name: its members are all bound.
SCENES = {
    "newer gangs of its namespace do not overtake a large one": (
        "own/n0:5+ own/n1:5+ own/old:8- !n0 own/n2:5- !n1 own/old:8+"
    ),
    "nor do those of others": "x/n0:5+ y/n1:5+ own/old:8- !n0 z/n2:5- !n1 own/old:8+",
    "gangs that fit beside the slots kept for an older one do not wait": (
        "a/n0:7+ a/old:6- small/n1:2+ other/n2:3+ a/n3:2-"  # the namespace of the old gang has a plan already
    ),
    "the namespaces take turns, however many gangs wait": (
        "evil/n0:10+ evil/n1:10- evil/n2:10- good/job:10- !n0 evil/n2:10- good/job:10+ !job evil/n1:10+"
    ),
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_which_gang_gets_slots_next(scene: str) -> None:
    queue = Queue()
    for step in scene.split():
        name, _, size = step[:-1].partition(":")
        if step.startswith("!"):
            queue.end(step[1:])
        else:
            namespace, _, group = name.partition("/")
            assert queue.ask(namespace, group, int(size)) == (step[-1] == "+"), step


def test_a_gang_that_is_not_tried_any_more_loses_its_turn() -> None:
    """Attack: keep a large gang of others waiting with ever new small gangs."""
    queue = Queue()
    assert queue.ask("a", "n0", 10)
    assert not queue.ask("b", "absent", 10)
    assert not queue.ask("c", "job", 10)
    queue.end("n0")
    assert not queue.ask("c", "job", 10)
    queue.requeues.times.clear()
    queue.fleet.now = queue.gangs.timers.next
    queue.monitor.expire()
    assert queue.requeues.times == ["fits"]
    assert queue.ask("c", "job", 10)


@pytest.mark.parametrize("seed", range(10))
def test_in_any_order_the_limits_hold_and_every_gang_gets_its_places(seed: int) -> None:
    """kube-scheduler asks about gangs at random, and bound gangs end at random."""
    rng, queue = Random(seed), Queue()
    waiting = {f"g{i}": (f"n{i % 3}", rng.randint(2, 10)) for i in range(12)}
    running: dict[str, tuple[str, int]] = {}
    for _ in range(1000):
        if not waiting:
            break
        group = rng.choice(list(waiting))
        if queue.ask(waiting[group][0], group, waiting[group][1]):
            running[group] = waiting.pop(group)
        used = Counter[str]()
        for key, forming in queue.gangs.forming.items():
            used[key.namespace] += forming.quorum
        assert max(used.values(), default=0) <= LIMITS.namespace
        assert used.total() <= LIMITS.total
        gave_way = running.keys() - {key.name for key in queue.gangs.forming}
        waiting |= {name: running.pop(name) for name in gave_way}
        if running and rng.random() < 0.1:
            ended = rng.choice(list(running))
            queue.end(ended)
            del running[ended]
    assert not waiting


def test_the_namespaces_with_gangs_that_wait_for_places_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{SlotLimits.__module__}.MAX_REMEMBERED", 4)
    queue = AdmissionAlone(lambda: 0.0, LIMITS)
    for i in range(20):
        assert queue.ask(GroupKey(f"n{i}", GroupSource.BERTH, "job"), "u", 11, None, is_queued=False)
    assert len(list(queue.positions())) == 4


def test_a_gang_that_waits_is_requeued_and_takes_the_places_of_a_plan_that_waits_too_long() -> None:
    fleet, requeues = Fleet("mixed"), Requeues()
    fleet.fill(1, 0.0)
    gangs, monitor = watched_gangs(fleet, LIMITS, sink=requeues)
    evil, good = ([gang_member(fleet, name, "job", f"p{i}", 8) for i in range(8)] for name in ("evil", "good"))
    names = list(fleet.devices)
    assert gangs.filter(evil[0], names) == FilterResult(), "all nodes"
    (text,) = set(gangs.filter(good[0], names).failed.values())
    assert text.endswith(QUEUED)
    monitor.expire()
    assert not requeues.times
    fleet.now = gangs.timers.next
    (plan,) = gangs.forming.values()
    assert fleet.now < plan.ends_at, "no other gang would end it yet"
    monitor.expire()
    assert requeues.times == ["fits"]
    assert gangs.filter(good[0], names) == FilterResult()
    assert [key.namespace for key in gangs.forming] == ["good"]
    (text,) = set(gangs.filter(evil[1], names).failed.values())
    assert "planned again after a pause" in text


def test_a_namespace_whose_gangs_end_early_does_not_keep_the_places_with_new_gangs() -> None:
    """Each ends before it would give way, and the next one takes its slots."""
    fleet = Fleet("mixed")
    fleet.fill(1, 0.0)
    (gangs, _), names = watched_gangs(fleet, LIMITS), list(fleet.devices)
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
    queue.fleet.now = queue.gangs.timers.next
    assert queue.ask("good", "job", 8)
    plans = queue.gangs.forming
    assert sorted(key.namespace for key in plans) == ["evil", "good"]
    assert {plan.since for plan in plans.values()} == {queue.fleet.now}


def test_the_places_leave_connections_to_pods_outside_of_gangs() -> None:
    limits = SlotLimits()
    assert limits.namespace >= MAX_TOGETHER, "one gang of the largest size can be bound"
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
        gangs = MAX_TOGETHER // size + 5
        for i in range(gangs):
            for j in range(size):
                in_namespace(b, f"p{i}-{j}", "evil", f"g{i}", size)
        await create_gang(b, 3, prefix="q")
        answers = [await ask(b, f"p{i}-0", "evil") for i in range(gangs)]
        plans = b.app.service.gangs.forming
        assert sum(plan.quorum for plan in plans.values()) <= MAX_TOGETHER
        passed = [answer for answer in answers if answer["NodeNames"]]
        assert len(passed) == len(plans) == MAX_TOGETHER // size
        told = {text for answer in answers for text in answer["FailedAndUnresolvableNodes"].values()}
        assert all(text.endswith(QUEUED) for text in told), told
        assert told
        assert await bind_all(b, await planned(b, "q0", "q1", "q2")) == ["", "", ""]


async def test_a_gang_that_waits_its_turn_is_retried_when_another_is_bound() -> None:
    async with berthing(NODES) as b:
        half = MAX_TOGETHER // 2 + 1
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
        names = [f"p{i}" for i in range(MAX_TOGETHER)]
        for name in names:
            in_namespace(b, name, "default", "job", MAX_TOGETHER)
        await b.create(claim("single"), pod("alone", "single"))
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
