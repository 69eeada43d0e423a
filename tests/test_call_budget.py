"""What one pod may cost: budgets, shares of a namespace, and work that ends with the pod. Time is counted work."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.allocation import Features
from extender.cache import ClusterCache
from extender.cel.dra import Masks
from extender.extension.decisions import FilterSink, NoSink
from extender.extension.evaluation_throttle import EvaluationLimits, EvaluationThrottle
from extender.extension.filter_service import FilterService
from extender.extension.unfinished_evaluations import UnfinishedEvaluations
from extender.model import CallBudget, CallBudgetSpent, ObjectKey, Pod, PodClaim
from extender.policy import Policy
from extender.sandbox import carried_machines
from extender.sandbox.machines import gpu_slice, node_object
from extender.scheduling import EvaluationContext, Evaluator, NodeRanking, PodRequirements, requirements_of
from extender.wire import SliceDecoder, decode_claim, decode_class, decode_node
from tests.eventually import eventually
from tests.running_berth import Berthing, berthing, claim, pod

_MACHINES = [carried_machines()[name] for name in ("t4-4", "dgx1-v100", "a100-pcie-8-bridged")]
_TICK = 0.0001  # seconds that each look at the clock takes: a piece of work looks at it once


@dataclass
class Clock:
    """Time as counted work."""

    now: float = 0.0

    def __call__(self) -> float:
        self.now += _TICK
        return self.now


class Told(NoSink):
    """Notes which of the filter service's tasks have work."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def unfinished(self) -> None:
        self.told.append("unfinished")

    def fits(self) -> None:
        self.told.append("fits")


@dataclass
class Fleet:
    """A judge on a cache filled by hand."""

    nodes: int = 12
    policy: Policy = field(default_factory=Policy)
    limits: EvaluationLimits = field(default_factory=EvaluationLimits)
    kinds: int = 3
    sink: FilterSink = field(default_factory=NoSink)
    made: int = 0

    def __post_init__(self) -> None:
        self.clock, self.mirror, decoder = Clock(), ClusterCache(), SliceDecoder()
        self.mirror.apply_class("gpu.nvidia.com", decode_class({"metadata": {"name": "gpu.nvidia.com"}, "spec": {}}))
        for i in range(self.nodes):
            self.mirror.apply_node(f"n{i}", decode_node(node_object(f"n{i}", _MACHINES[i % self.kinds], {})))
            self.mirror.apply_slice(f"n{i}", decoder.decode(gpu_slice(f"n{i}", _MACHINES[i % self.kinds])))
        self.judge = FilterService(
            self.mirror, self.policy, Evaluator(Features()), self.clock, self.sink, limits=self.limits
        )

    @property
    def names(self) -> list[str]:
        return [f"n{i}" for i in range(self.nodes)]

    def pod(self, namespace: str, *selectors: str, constraint: str = "", count: int = 1) -> Pod:
        """A pod with a claim, both known to the cache."""
        self.made += 1
        name = f"p{self.made}"
        asked = claim(name, count)
        asked["metadata"] |= {"namespace": namespace, "uid": f"claim-{name}"}
        devices = asked["spec"]["devices"]
        devices["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": text}} for text in selectors]
        if constraint:
            devices["constraints"] = [{"matchAttribute": constraint}]
        decoded = decode_claim(asked)
        self.mirror.apply_claim(decoded.key, decoded)
        found = Pod(ObjectKey(namespace, name), f"uid-{name}", (PodClaim("g", name),))
        self.mirror.apply_pod(found.uid, found)
        return found

    def hostile(self, selectors: int = 8) -> Pod:
        """Every selector reads the UUID, so no two nodes look alike, and none is like that of another pod."""
        number = self.made
        texts = [f'device.attributes["gpu.nvidia.com"].uuid != "{number}-{i}"' for i in range(selectors)]
        return self.pod("hostile", *texts)

    def error(self, pod: Pod) -> str:
        return self.judge.filter(pod, self.names).error

    def gone(self, pod: Pod) -> None:
        self.mirror.apply_pod(pod.uid, None)
        self.judge.forget_deleted()


_GPU = 'device.attributes["gpu.nvidia.com"]'
_SHAPES = [
    {},
    {"selectors": (f'{_GPU}.uuid != "x"', f'{_GPU}.productName != "T4"')},
    {"selectors": ('device.attributes["gpu.nvidia.com"].none == "x"',)},
    {"selectors": ('device.attributes["gpu.nvidia.com"].uuid.startsWith(',)},
    {"constraint": "gpu.nvidia.com/productName", "count": 3},
    {"constraint": "gpu.nvidia.com/uuid", "count": 2},
    {"constraint": "gpu.nvidia.com/brand", "count": 9},
]


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(_SHAPES), st.lists(st.integers(0, 40), max_size=12), st.lists(st.integers(0, 11), max_size=4))
def test_what_is_judged_in_many_small_budgets_is_judged_as_at_once(
    shape: dict, steps: list[int], changes: list[int]
) -> None:
    """Wherever budgets end, and whatever changes in between, the statuses are those of a ranking without a budget."""
    fleet, masks = Fleet(), Masks()
    asked = fleet.pod("a", *shape.get("selectors", ()), **{k: v for k, v in shape.items() if k != "selectors"})

    def newest(masks: Masks, budget: CallBudget | None = None) -> tuple:
        snapshot = fleet.mirror.snapshot()
        context = EvaluationContext(masks, Features(), snapshot.baseline)
        return snapshot, context if budget is None else replace(context, budget=budget)

    requirements = requirements_of(asked, fleet.mirror.snapshot(), Policy())
    assert isinstance(requirements, PodRequirements)
    ranking = NodeRanking(requirements)
    for position, some in enumerate(steps):
        ranking.update(*newest(masks, CallBudget(1.0, some, lambda: 0.0)))
        if position < len(changes):
            name, machine = f"n{changes[position]}", _MACHINES[(changes[position] + position) % 3]
            fleet.mirror.apply_slice(name, SliceDecoder().decode(gpu_slice(name, machine)))
    done, calls = False, 0
    while not done:
        done, calls = ranking.update(*newest(masks, CallBudget(1.0, 0, lambda: 0.0))), calls + 1
        assert calls < 1000, "each call makes progress, however small its budget"
    fresh = NodeRanking(requirements)
    fresh.update(*newest(Masks()))
    assert ranking.unschedulable_counts() == fresh.unschedulable_counts()
    node_infos = fleet.mirror.snapshot().node_infos
    assert {name: type(ranking.status(node_info)) for name, node_info in node_infos.items()} == {
        name: type(fresh.status(node_info)) for name, node_info in node_infos.items()
    }
    for _ in range(100):
        ranking.refresh(*newest(masks))
    assert ranking.best(None, 99) == fresh.best(None, 99)


def test_a_mask_goes_on_where_its_budget_ended() -> None:
    """No device is asked twice, and nothing of the half-made mask is left."""
    fleet, masks = Fleet(), Masks()
    slice_ = fleet.mirror.snapshot().node_infos["n1"].inventory.offsets[0][0]
    text, ended, found = 'device.attributes["gpu.nvidia.com"].productName.endsWith("4")', 0, None
    while found is None:
        try:
            found = masks.of(text, slice_, CallBudget(1.0, 0, lambda: 0.0))
        except CallBudgetSpent:
            ended += 1
    assert ended == len(slice_.devices), "one call compiles, each of the others asks about one device"
    assert found == Masks().of(text, slice_)
    masks.forget(slice_.name)
    assert masks.remembered()["mask_bytes"] == 0


def test_half_made_masks_are_bounded_with_the_others() -> None:
    fleet, masks = Fleet(), Masks(mask_bytes=2000)
    slice_ = fleet.mirror.snapshot().node_infos["n1"].inventory.offsets[0][0]
    for number in range(50):
        for _ in range(3):
            with suppress(CallBudgetSpent):
                masks.of(f'{_GPU}.productName != "{number}"', slice_, CallBudget(1.0, 0, lambda: 0.0))
        assert masks.remembered()["mask_bytes"] <= 2000


def test_a_filter_call_ends_with_its_budget_and_says_so() -> None:
    fleet = Fleet(nodes=60)
    asked = fleet.hostile()
    began = fleet.clock.now
    error = fleet.error(asked)
    assert fleet.clock.now - began < 1.2 * fleet.policy.evaluation_seconds
    sentence = r"evaluated (\d+) of 60 nodes within one call; Berth evaluates the rest while the pod exists: retry"
    found = re.fullmatch(f"pod hostile/p1: {sentence}", error)
    assert found is not None
    assert 0 < int(found[1]) < 60


def test_a_costly_search_ends_with_the_call_and_comes_to_its_end_later() -> None:
    """The search is cut off where the budget of the call ends, but not the first of a call, so each ends some time."""
    fleet = Fleet(nodes=60, policy=Policy(evaluation_seconds=0.05))
    asked = claim("search")
    asked["metadata"] |= {"namespace": "hostile", "uid": "claim-search"}
    one = asked["spec"]["devices"]["requests"][0]["exactly"]
    names = [f"r{i}" for i in range(6)]
    asked["spec"]["devices"] = {
        "requests": [{"name": name, "exactly": one} for name in names],
        "constraints": [{"matchAttribute": "gpu.nvidia.com/uuid", "requests": names[-2:]}],
    }
    decoded = decode_claim(asked)
    fleet.mirror.apply_claim(decoded.key, decoded)
    waiting = Pod(ObjectKey("hostile", "search"), "uid-search", (PodClaim("g", "search"),))
    fleet.mirror.apply_pod(waiting.uid, waiting)
    calls, longest, answer = 0, 0.0, None
    while answer is None or answer.error:
        fleet.clock.now += 60
        began, calls = fleet.clock.now, calls + 1
        answer = fleet.judge.filter(waiting, fleet.names)
        longest = max(longest, fleet.clock.now - began)
    assert not answer.passed
    assert set(answer.failed) == set(fleet.names)
    assert calls > 1
    assert longest < 2 * fleet.policy.evaluation_seconds


def test_a_call_is_bounded_by_steps_too() -> None:
    fleet = Fleet(nodes=60, limits=EvaluationLimits(steps=50))
    began = fleet.clock.now
    assert fleet.error(fleet.hostile())
    assert fleet.clock.now - began < 70 * _TICK


def test_requirements_that_spent_its_budget_is_answered_from_memory_until_it_may_be_tried_again() -> None:
    fleet = Fleet(nodes=60)
    asked, filter_service = fleet.hostile(), fleet.judge
    first = fleet.error(asked)
    began = fleet.clock.now
    assert fleet.error(asked) == first
    assert fleet.error(replace(asked, uid="another")) == first
    assert fleet.clock.now - began < 30 * _TICK, "nothing was evaluated"
    fleet.clock.now += EvaluationLimits().retry_seconds
    assert fleet.error(asked) != first, "a later call goes on from there"
    for _ in range(20):
        fleet.clock.now += EvaluationLimits().retry_seconds
        answer = filter_service.filter(asked, fleet.names)
    assert answer.passed
    assert not answer.error


def test_work_goes_on_in_slices_until_all_nodes_are_evaluated() -> None:
    sink = Told()
    fleet = Fleet(nodes=60, sink=sink)
    asked = fleet.hostile()
    assert fleet.error(asked)
    assert sink.told == ["unfinished"]
    while True:
        began = fleet.clock.now
        left = fleet.judge.continue_evaluation()
        assert fleet.clock.now - began < 2 * EvaluationLimits().slice_seconds
        if not left:
            break
        fleet.clock.now += 0.1
    assert fleet.judge.filter(asked, fleet.names).passed
    assert not fleet.judge.unfinished_demands


def test_work_ends_with_the_last_pod_that_asked_for_it() -> None:
    fleet = Fleet(nodes=60)
    asked = fleet.hostile()
    assert fleet.error(asked)
    assert fleet.judge.unfinished_demands == 1
    fleet.gone(asked)
    began = fleet.clock.now
    assert not fleet.judge.unfinished_demands
    assert not fleet.judge.continue_evaluation()
    assert fleet.clock.now == began
    assert fleet.error(asked), "kube-scheduler still asks about a pod that is gone"
    assert not fleet.judge.continue_evaluation(), "and nothing goes on for it"


def test_evaluations_that_go_on_are_bounded_by_pods() -> None:
    fleet = Fleet(nodes=60)
    filter_service = FilterService(fleet.mirror, Policy(), Evaluator(Features()), fleet.clock, remembered_pods=3)
    for _ in range(8):
        fleet.clock.now += 60
        filter_service.filter(fleet.hostile(), fleet.names)
    assert filter_service.unfinished_demands == 3


def test_bind_prioritize_and_requeue_are_bounded_too() -> None:
    """Bind says that it gave up and writes nothing; what it did is kept, so it comes to an end."""
    fleet = Fleet(nodes=60)
    asked = fleet.hostile()
    snapshot = fleet.mirror.snapshot()
    assert set(fleet.judge.prioritize(asked, fleet.names)) == {(name, 0) for name in fleet.names}
    slow = Fleet(nodes=3, limits=EvaluationLimits(steps=5))
    asked = slow.hostile()
    requirements, spent = requirements_of(asked, slow.mirror.snapshot(), Policy()), 0
    assert isinstance(requirements, PodRequirements)
    assert snapshot is not None
    status = None
    while status is None:
        try:
            status = slow.judge.evaluate_node(requirements, "n1", slow.mirror.snapshot())
        except CallBudgetSpent:
            spent += 1
    assert spent > 3
    fresh = Fleet(nodes=3)
    again = requirements_of(fresh.hostile(), fresh.mirror.snapshot(), Policy())
    assert isinstance(again, PodRequirements)
    assert fresh.judge.evaluate_node(again, "n1", fresh.mirror.snapshot()) == status


def test_a_pod_that_waits_is_woken_though_the_look_spent_its_budget() -> None:
    sink = Told()
    fleet = Fleet(kinds=1, limits=EvaluationLimits(steps=40, share=1.0), sink=sink)
    texts = [f'device.attributes["gpu.nvidia.com"].uuid != "{i}"' for i in range(8)]
    asked, filter_service = fleet.pod("a", *texts, count=5), fleet.judge
    while fleet.error(asked):
        fleet.clock.now += 60
    assert filter_service.unschedulable_pods() == [asked.uid]
    fleet.mirror.apply_slice("n1", SliceDecoder().decode(gpu_slice("n1", _MACHINES[1])))
    looks = list(filter_service.queueing_hints.find_schedulable())
    assert filter_service.unfinished_demands == 1
    assert True not in looks
    while filter_service.continue_evaluation():
        fleet.clock.now += 1
    assert "fits" in sink.told


def test_a_namespace_has_a_share_of_the_time_and_a_small_burst() -> None:
    clock = Clock()
    throttle, used, began = EvaluationThrottle(EvaluationLimits(), clock), 0.0, clock.now
    while clock.now < 100:
        budget = throttle.budget("hostile", 0.1, 0.1)
        start = clock.now
        with suppress(CallBudgetSpent):
            while True:
                budget.check()
                budget.mark_progress()
        throttle.charge("hostile", budget, 0.1)
        used += clock.now - start
        clock.now += 0.01
    assert 0.1 * 100 < used < 0.1 * 100 + 5 * 0.1 + 1, "its share, the burst, and what the looks themselves take"
    assert throttle.budget("honest", 0.1, 0.1).seconds == 0.1, "others are not touched"
    assert began < 1


def test_calls_that_come_to_their_end_count_for_nothing() -> None:
    clock = Clock()
    throttle = EvaluationThrottle(EvaluationLimits(), clock)
    for _ in range(1000):
        budget = throttle.budget("busy", 0.1, 0.1)
        clock.now += 0.09
        throttle.charge("busy", budget, 0.1)
    assert throttle.budget("busy", 0.1, 0.1).seconds == 0.1
    assert len(throttle) == 0


def test_namespaces_remembered_are_bounded() -> None:
    clock = Clock()
    throttle = EvaluationThrottle(EvaluationLimits(namespaces=4), clock)
    for number in range(20):
        budget = throttle.budget(f"n{number}", 0.1, 0.1)
        budget.mark_progress()
        clock.now += 1
        with pytest.raises(CallBudgetSpent):
            budget.check()
        throttle.charge(f"n{number}", budget, 0.1)
    assert len(throttle) == 4


def test_many_hostile_pods_of_one_namespace_leave_the_time_to_others() -> None:
    """Counted work: however often the hostile pods are tried, calls and background together take less than a fifth."""
    fleet = Fleet(nodes=60)
    pods = [fleet.hostile() for _ in range(30)]
    honest = [fleet.pod("honest") for _ in range(30)]
    for one in honest:
        assert fleet.judge.filter(one, fleet.names).passed
    hostile, longest, placed, next_slice, began = 0.0, 0.0, 0, 0.0, fleet.clock.now
    retry = dict.fromkeys(range(30), 0.0)
    while fleet.clock.now - began < 20:
        start = fleet.clock.now
        due = [number for number, at in retry.items() if at <= start][:1]
        for number in due:
            fleet.judge.filter(pods[number], fleet.names)
            retry[number] = fleet.clock.now + 2  # kube-scheduler's backoff
        if fleet.clock.now >= next_slice:
            slice_began = fleet.clock.now
            fleet.judge.continue_evaluation()
            next_slice = fleet.clock.now + 9 * (fleet.clock.now - slice_began)
        hostile, longest = hostile + fleet.clock.now - start, max(longest, fleet.clock.now - start)
        placed += bool(fleet.judge.filter(honest[placed % 30], fleet.names).passed)
        fleet.clock.now += 0.01
    assert hostile < 0.2 * (fleet.clock.now - began)
    assert longest < 1.2 * (fleet.policy.evaluation_seconds + EvaluationLimits().slice_seconds)
    assert placed > 1000


async def test_a_costly_pod_is_answered_in_the_end_and_others_meanwhile() -> None:
    """Over HTTP: the error of its own, the work in the background, the pod that is deleted, explain."""
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
        names = ["n0", "n1"]
        filter_service = b.app.service.filter_service
        for name in ("costly", "gone"):
            assert "nodes within one call" in (await _filtered(b, name, names))["Error"]
        explained = await eventually(lambda: _remembered(b, "costly"))
        assert "nodes within one call" in explained["attempts"][-1]["reasons"][0][0]

        async def served() -> bool:
            return bool((await _filtered(b, "light", names, "honest"))["NodeNames"])

        await eventually(served, "on a slow machine its own few milliseconds are too short, too")
        b.cluster.store.remove("pods", ("default", "gone"))
        await eventually(lambda: filter_service.unfinished_demands == 1)
        await eventually(lambda: filter_service.unfinished_demands == 0)
        assert (await _filtered(b, "costly", names))["NodeNames"]


async def _remembered(b: Berthing, name: str) -> dict | None:
    """The explanation, once the console knows of a filter request for the pod."""
    found = (await b.client.get(f"/v1/explain/default/{name}")).json()
    return found if found.get("attempts") else None


async def _filtered(b: Berthing, name: str, names: list[str], namespace: str = "default") -> dict:
    found = b.cluster.store.get("pods", (namespace, name))
    assert found is not None
    asked = {key: value for key, value in found.items() if key not in ("kind", "apiVersion")}
    return (await b.client.post("/filter", json={"Pod": asked, "Nodes": None, "NodeNames": names})).json()


def test_an_equal_pod_of_another_namespace_is_not_held_back() -> None:
    """What the pods of one namespace spent is no reason to let those of another wait."""
    fleet = Fleet(nodes=1)
    requirements = requirements_of(fleet.hostile(), fleet.mirror.snapshot(), Policy())
    assert isinstance(requirements, PodRequirements)
    claims = tuple(replace(one, key=ObjectKey("another", one.key.name)) for one in requirements.pending_claims)
    elsewhere = replace(requirements, pending_claims=claims)
    unfinished = UnfinishedEvaluations(8)
    unfinished.add(requirements, "uid-1")
    assert elsewhere.key == requirements.key
    assert unfinished.get(requirements) is not None
    assert unfinished.get(elsewhere) is None
