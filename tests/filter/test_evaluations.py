"""Costly pods slow others, and never stop them: calls, the queue of evaluations, and their namespaces.

Time is counted work: the clock of the fleets advances with each reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import pytest

from extender.api.pods import Pod
from extender.base.deadline import Deadline, DeadlineExceeded
from extender.policy import Policy
from extender.sandbox.machines import gpu_slice
from extender.scheduling import NodeRanking, PodRequirements, RankingCache
from extender.serve.evaluations import Evaluations, in_steps
from tests.worlds.evaluation_worlds import GPU, MACHINES, TICK, Clock, Fleet, RecordingSink
from tests.worlds.eventually import eventually
from tests.worlds.filled_caches import put, required
from tests.worlds.running_berth import Berthing, berthing, claim, pod
from tests.worlds.skipping_loop import SkippingLoop


def never(deadline: Deadline) -> bool:
    """Work without an end."""
    while True:
        deadline.check_time()


# -- the answers to pods -------------------------------------------------------------------------------------------


def test_a_pod_that_takes_long_is_answered_when_the_queue_has_ended_its_evaluation() -> None:
    fleet = Fleet(nodes=60)
    asked = fleet.hostile()
    first = fleet.error(asked)
    began = fleet.clock.now
    assert fleet.error(asked) == first
    assert fleet.clock.now - began < 15 * TICK, "nothing was evaluated"
    longest, left = 0.0, True
    while left:
        start = fleet.clock.now
        left = fleet.filter_service.evaluations.work()
        longest = max(longest, fleet.clock.now - start)
    assert longest < 0.05
    assert fleet.filter_service.filter(asked, fleet.names).passed


def test_known_shapes_of_a_namespace_pass_beside_its_costly_pods_and_new_ones_have_their_turn() -> None:
    fleet = Fleet(nodes=60)
    known, other = fleet.pod("team"), fleet.pod("other", count=2)
    assert fleet.filter_service.filter(known, fleet.names).passed
    fleet.filter_service.evaluations.queue("team", "costly", never)
    fleet.add_node("n1", MACHINES[2])  # one state of a node is new
    assert fleet.filter_service.filter(known, fleet.names).passed
    assert fleet.filter_service.filter(other, fleet.names).passed, "another namespace has its own time"
    new = fleet.pod("team", *(f'{GPU}.uuid != "{number}"' for number in range(4)))
    assert fleet.error(new)
    for _ in range(300):
        fleet.filter_service.evaluations.work()
    assert fleet.filter_service.filter(new, fleet.names).passed


def new_shape(fleet: Fleet, namespace: str, number: int) -> Pod:
    """A pod with selectors that no pod had before. They take a part of a call."""
    return fleet.pod(namespace, *(f'{GPU}.uuid != "{number}-{one}"' for one in range(4)))


def test_different_jobs_that_one_namespace_creates_at_once_are_answered_at_once_if_no_other_calls() -> None:
    """On an idle machine most of ten jobs waited for kube-scheduler's retry, and for the costliest one."""
    fleet = Fleet(nodes=20)
    known = fleet.pod("other")
    assert fleet.filter_service.filter(known, fleet.names).passed
    fleet.clock.now += 1.0
    fleet.filter_service.evaluations.queue("team", "costly", never)
    assert not any(fleet.error(new_shape(fleet, "team", number)) for number in range(6))
    fleet.clock.now += 1.0
    assert fleet.filter_service.filter(known, fleet.names).passed
    assert fleet.error(new_shape(fleet, "team", 10)), "the other namespace comes first"


def test_an_equal_pod_of_another_namespace_is_not_held_back() -> None:
    fleet = Fleet(nodes=20)
    texts = [f'{GPU}.uuid != "{number}"' for number in range(4)]
    assert fleet.filter_service.filter(fleet.pod("honest"), fleet.names).passed
    fleet.filter_service.evaluations.queue("hostile", "costly", never)
    assert fleet.error(fleet.pod("hostile", *texts))
    assert fleet.filter_service.filter(fleet.pod("honest", *texts), fleet.names).passed


def test_the_work_ends_with_the_pod_that_asked_for_it() -> None:
    fleet = Fleet(nodes=60)
    asked = fleet.hostile()
    assert fleet.error(asked)
    fleet.gone(asked)
    evaluations = fleet.filter_service.rankings.evaluations
    assert not fleet.filter_service.evaluations.work()
    assert fleet.error(asked), "kube-scheduler still asks about a pod that is gone"
    assert not fleet.filter_service.evaluations.work(), "and nothing goes on for it"
    assert fleet.filter_service.rankings.evaluations - evaluations < 60


def test_a_new_policy_ends_the_work_of_the_old_one() -> None:
    fleet = Fleet(nodes=60)
    assert fleet.error(fleet.hostile())
    fleet.filter_service.use_policy(Policy(hold_seconds=20))
    assert not fleet.filter_service.evaluations.work()
    assert not len(fleet.filter_service.rankings)


def test_a_rejected_pod_is_woken_though_the_evaluation_of_a_changed_node_takes_long() -> None:
    sink = RecordingSink()
    fleet = Fleet(kinds=1, sink=sink)
    asked = fleet.pod("a", *(f'{GPU}.uuid != "{number}"' for number in range(30)), count=5)
    while fleet.error(asked):
        fleet.work()
    assert fleet.filter_service.unschedulable.uids() == [asked.uid]
    put(fleet.cache, gpu_slice("n1", MACHINES[1]))
    assert not fleet.finds()
    fleet.work()
    assert sink.requeued


def test_an_evaluation_that_raises_a_bug_leaves_the_queue_until_its_pod_is_filtered_again() -> None:
    broken = set[Hashable]()

    class Buggy(RankingCache):
        def get_or_create(self, requirements: PodRequirements) -> NodeRanking:
            if requirements.key in broken:
                raise KeyError("a bug")
            return super().get_or_create(requirements)

    fleet = Fleet(nodes=60, rankings=Buggy())
    asked, other = fleet.hostile(), fleet.hostile()
    assert fleet.error(asked)
    assert fleet.error(other)
    broken.add(required(asked, fleet.cache, fleet.policy).key)
    with pytest.raises(KeyError, match="a bug"):
        fleet.filter_service.evaluations.work()
    fleet.work()
    assert fleet.filter_service.filter(other, fleet.names).passed
    broken.clear()
    fleet.clock.now += 5
    assert fleet.error(asked)
    assert fleet.filter_service.evaluations.waiting == 1


async def test_a_costly_pod_is_answered_in_the_end_and_others_meanwhile() -> None:
    """Over HTTP: the error of a costly pod, the queue, and a deleted pod."""
    hundred = f"[{','.join('1' * 100)}]"
    heavy = f"{hundred}.all(a, {hundred}.all(b, a <= b))"
    async with berthing({f"n{i}": "t4-4" for i in range(2)}, Policy(evaluation_seconds=0.005)) as b:
        for name in ("costly", "gone"):
            texts = [f'device.attributes["gpu.nvidia.com"].uuid != "{name}{i}" && {heavy}' for i in range(2)]
            asked = claim(name, selectors=[{"cel": {"expression": text}} for text in texts])
            b.cluster.apply(asked)
            b.cluster.apply(pod(name, name))
        for one in (claim("light"), pod("light", "light")):
            b.cluster.apply({**one, "metadata": {**one["metadata"], "namespace": "honest"}})
        await b.settled()
        names, evaluations = ["n0", "n1"], b.app.service.evaluations
        for name in ("costly", "gone"):
            assert "nodes within one call" in (await filtered(b, name, names))["Error"]

        async def placed(name: str, namespace: str) -> bool:  # a slow machine needs several calls
            return bool((await filtered(b, name, names, namespace))["NodeNames"])

        await eventually(lambda: placed("light", "honest"), "the honest pod is placed")
        b.cluster.store.remove("pods", ("default", "gone"))
        await eventually(lambda: evaluations.waiting == 0)
        await eventually(lambda: placed("costly", "default"), "the costly pod is placed")


async def filtered(b: Berthing, name: str, names: list[str], namespace: str = "default") -> dict:
    found = b.cluster.store.get("pods", (namespace, name))
    assert found is not None
    asked = {key: value for key, value in found.items() if key not in ("kind", "apiVersion")}
    return (await b.client.post("/filter", json={"Pod": asked, "Nodes": None, "NodeNames": names})).json()


# -- the time of others --------------------------------------------------------------------------------------------


@dataclass
class Hostile:
    """Pods that kube-scheduler tries again and again, beside the queue and an honest pod."""

    fleet: Fleet
    pods: list[Pod]
    used: float = 0.0
    longest: float = 0.0
    placed: int = 0
    tried: int = 0
    rest: float = 0.0  # until the queue goes on
    since: dict[int, float] = field(default_factory=dict)

    def run(self, seconds: float, backoff: float = 2.0) -> float:
        """The share of the time that calls for these pods and the queue take."""
        fleet, honest = self.fleet, self.fleet.pod("honest")
        assert fleet.filter_service.filter(honest, fleet.names).passed
        began = fleet.clock.now
        while fleet.clock.now < began + seconds:
            start = fleet.clock.now
            due = (number for number in range(len(self.pods)) if self.since.get(number, -backoff) + backoff <= start)
            number = next(due, None)
            if number is not None:
                fleet.filter_service.filter(self.pods[number], fleet.names)
                self.since[number] = fleet.clock.now
                self.tried += 1
            self._count(start)
            if self.rest <= (start := fleet.clock.now):
                fleet.filter_service.evaluations.work()
                self.rest = fleet.clock.now + 9 * (fleet.clock.now - start)
            self._count(start)
            self.placed += bool(fleet.filter_service.filter(honest, fleet.names).passed)
            fleet.clock.now += 0.005
        return self.used / (fleet.clock.now - began)

    def _count(self, start: float) -> None:
        took = self.fleet.clock.now - start
        self.used, self.longest = self.used + took, max(self.longest, took)


def in_namespaces(fleet: Fleet, number: int, make: Callable[[str, int], Pod], namespaces: int) -> list[Pod]:
    return [make(f"hostile-{one % namespaces}", one) for one in range(number)]


@pytest.mark.parametrize("namespaces", [1, 20])
def test_pods_that_take_longer_than_a_call_leave_the_time_to_others(namespaces: int) -> None:
    """100 costly pods once stopped all others for half a minute."""
    fleet = Fleet(nodes=60)

    def costly(namespace: str, number: int) -> Pod:
        return fleet.pod(namespace, *(f'{GPU}.uuid != "{number}-{one}"' for one in range(8)))

    hostile = Hostile(fleet, in_namespaces(fleet, 100, costly, namespaces))
    assert hostile.run(10.0) < 0.35
    assert hostile.longest < 0.15
    assert hostile.placed > 500


@pytest.mark.parametrize("namespaces", [1, 20])
def test_new_shapes_that_end_just_in_time_leave_the_time_to_others(namespaces: int) -> None:
    """Every pod has selectors that no pod had before, and its evaluation ends within a call."""
    fleet = Fleet(nodes=20)
    start = fleet.clock.now
    assert not fleet.error(new_shape(fleet, "first", -1))
    assert 0.02 < fleet.clock.now - start < fleet.policy.evaluation_seconds, "it ends within a call"
    hostile = Hostile(fleet, in_namespaces(fleet, 1000, partial(new_shape, fleet), namespaces))
    assert hostile.run(5.0) < 0.45
    assert hostile.placed > 250


def test_binds_of_claims_that_became_costly_leave_the_time_to_others() -> None:
    """A tenant replaces the cheap claim that filter has seen by a costly one before the bind, for each pod."""
    fleet = Fleet(nodes=12)
    used, began, honest = 0.0, fleet.clock.now, fleet.pod("honest")
    for _ in range(200):
        assert fleet.filter_service.filter(honest, fleet.names).passed
        asked = required(fleet.hostile(500), fleet.cache, fleet.policy)
        start = fleet.clock.now
        with suppress(DeadlineExceeded), fleet.filter_service.deadline_of_bind(asked, "uid") as deadline:
            fleet.filter_service.status_for_bind(asked, "n1", fleet.cache.snapshot(), deadline)
        used += fleet.clock.now - start
        fleet.clock.now += 0.05
    assert used < 0.1 * (fleet.clock.now - began)


def test_a_bind_of_a_known_shape_has_the_time_of_a_whole_call_beside_costly_pods() -> None:
    fleet = Fleet()
    known = fleet.pod("team")
    assert fleet.filter_service.filter(known, fleet.names).passed
    fleet.filter_service.evaluations.queue("team", "costly", never)
    with fleet.filter_service.deadline_of_bind(required(known, fleet.cache, fleet.policy), known.uid) as deadline:
        assert deadline.check() > 0.5 * fleet.policy.evaluation_seconds


@pytest.mark.parametrize("namespaces", [2, 50])
def test_namespaces_share_the_time_of_calls(namespaces: int) -> None:
    """20 namespaces with costly pods left new pods of others 18 % of their rate: each had a twentieth of the time."""
    clock = Clock()
    evaluations, used = Evaluations(clock), 0.0
    names = [f"ns{number}" for number in range(namespaces)]
    while clock.now < 20:
        for name in names:
            start = clock.now
            with evaluations.deadline_of_call(name) as deadline, suppress(DeadlineExceeded):
                while evaluations.has_time(name):
                    deadline.check()
            used += clock.now - start
            clock.now += 0.002
    assert used < 0.5 * clock.now
    clock.now += 2.0
    assert evaluations.has_time("another")


# -- the queue -----------------------------------------------------------------------------------------------------


@dataclass
class Turns:
    """Items without an end, and whose turn it was."""

    clock: Clock = field(default_factory=Clock)
    done: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.evaluations = Evaluations(self.clock)

    def queue(self, namespace: str, seconds: float, items: int = 1) -> None:
        def once(_: Deadline) -> bool:
            self.clock.now += seconds
            self.done.append(namespace)
            return False

        for number in range(items):
            self.evaluations.queue(namespace, f"{namespace}-{number}", once)

    def work(self, turns: int) -> None:
        for _ in range(turns):
            self.evaluations.work()


def test_the_namespaces_take_turns_by_their_time() -> None:
    """Neither many items nor long ones take the turns of others."""
    turns = Turns()
    turns.queue("many", 0.01, items=20)
    turns.queue("long", 0.1)
    turns.queue("one", 0.01)
    turns.work(200)
    assert abs(turns.done.count("many") - turns.done.count("one")) <= 2
    assert 5 < turns.done.count("one") / turns.done.count("long") < 15


def test_a_namespace_that_comes_late_gets_no_more_than_its_turn() -> None:
    turns = Turns()
    turns.queue("early", 0.01)
    turns.work(100)
    turns.queue("late", 0.01)
    turns.work(20)
    assert 8 <= turns.done[100:].count("late") <= 12


@pytest.mark.parametrize(("calls", "share"), [(True, 0.2), (False, 0.6)])
def test_the_queue_leaves_most_of_the_time_to_calls(calls: bool, share: float) -> None:
    clock = Clock()
    evaluations = Evaluations(clock)

    async def nothing_to_build() -> None:
        if calls:
            asyncio.get_running_loop().call_soon(call)  # during the pause after the slice

    def call() -> None:
        with evaluations.deadline_of_call("another"):
            pass

    def fail(_: str, bug: Exception) -> None:
        raise bug

    async def run() -> float:
        ended = asyncio.Event()

        def work(_: Deadline) -> bool:
            if clock.now > 2.0:
                ended.set()
            return ended.is_set()

        evaluations.queue("ns", "work", work)
        evaluations.queue("ns", "more", never, is_awaited=False)
        task = asyncio.create_task(evaluations.run(nothing_to_build, fail))
        await ended.wait()
        task.cancel()
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        rested = runner.run(run())
    assert clock.now < share * (clock.now + rested)


async def test_a_bug_with_one_item_does_not_end_the_work_for_others() -> None:
    bugs, done = list[str](), asyncio.Event()

    async def nothing_to_build() -> None:
        pass

    def buggy(_: Deadline) -> bool:
        raise KeyError("a bug")

    def ends(_: Deadline) -> bool:
        done.set()
        return True

    evaluations = Evaluations(Clock())
    evaluations.queue("a", "buggy", buggy)
    evaluations.queue("b", "ends", ends)
    task = asyncio.create_task(evaluations.run(nothing_to_build, lambda name, _: bugs.append(name)))
    await done.wait()
    task.cancel()
    assert bugs == ["evaluations"]
    assert not evaluations.waiting


def test_work_in_steps_stops_between_two_steps() -> None:
    clock = Clock()
    evaluations, made = Evaluations(clock), list[int]()

    def steps() -> Iterator[None]:
        for number in range(1000):
            made.append(number)
            yield

    evaluations.queue("a", "steps", in_steps(steps()), is_awaited=False)
    evaluations.work()
    assert 1 < len(made) < 1000
    while evaluations.work():
        pass
    assert made == list(range(1000))
