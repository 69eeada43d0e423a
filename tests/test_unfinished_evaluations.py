"""Evaluation that a call's budget ended goes on in the background, while a pod asks for it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import pytest

from extender.allocation import Features
from extender.cluster import Delays
from extender.extension.evaluation_throttle import EvaluationLimits
from extender.extension.filter_service import FilterService
from extender.extension.unfinished_evaluations import UnfinishedEvaluations
from extender.policy import Policy
from extender.sandbox.machines import gpu_slice
from extender.scheduling import Evaluator, NodeRanking, PodRequirements, RankingCache, requirements_of
from extender.wire import SliceDecoder
from tests.budget_worlds import MACHINES, TICK, Fleet, RecordingSink
from tests.eventually import eventually
from tests.running_berth import Berthing, berthing, claim, pod
from tests.supervised_worlds import Breakable, composed


def test_requirements_that_spent_its_budget_is_answered_from_memory_until_it_may_be_tried_again() -> None:
    fleet = Fleet(nodes=60)
    asked, filter_service = fleet.hostile(), fleet.filter_service
    first = fleet.error(asked)
    began = fleet.clock.now
    assert fleet.error(asked) == first
    assert fleet.error(replace(asked, uid="another")) == first
    assert fleet.clock.now - began < 30 * TICK, "nothing was evaluated"
    fleet.clock.now += EvaluationLimits().retry_seconds
    assert fleet.error(asked) != first, "a later call goes on from there"
    for _ in range(20):
        fleet.clock.now += EvaluationLimits().retry_seconds
        answer = filter_service.filter(asked, fleet.names)
    assert answer.passed
    assert not answer.error


def test_work_goes_on_in_slices_until_all_nodes_are_evaluated() -> None:
    sink = RecordingSink()
    fleet = Fleet(nodes=60, sink=sink)
    asked = fleet.hostile()
    assert fleet.error(asked)
    assert sink.calls == ["unfinished"]
    while True:
        began = fleet.clock.now
        left = fleet.filter_service.continue_evaluation()
        assert fleet.clock.now - began < 2 * EvaluationLimits().stretch_seconds
        if not left:
            break
        fleet.clock.now += 0.1
    assert fleet.filter_service.filter(asked, fleet.names).passed
    assert not fleet.filter_service.unfinished_evaluations


def test_a_stretch_looks_once_for_the_time_of_a_namespace_however_many_evaluations_it_has() -> None:
    """With 3,000 unfinished evaluations of a namespace without time, each stretch of 2 ms took 15 ms."""
    fleet = Fleet(nodes=60)
    for _ in range(100):
        assert fleet.error(fleet.hostile())
    assert not fleet.filter_service.has_time("hostile")
    began = fleet.clock.now
    assert fleet.filter_service.continue_evaluation()
    assert fleet.clock.now - began < 10 * TICK


async def test_a_bug_with_one_pod_does_not_end_the_work_for_others() -> None:
    """It ended the task, which starts again after 30 s at most; here it would be hours."""

    class Buggy(FilterService):
        stretches = 0

        def __init__(self) -> None:
            pass

        def continue_evaluation(self) -> bool:
            self.stretches += 1
            raise KeyError("a bug")

    async with composed(Breakable(Delays(first=10_000.0, most=10_000.0))) as (_, app, _):
        service = app.service
        buggy = service.filter_service = Buggy()
        service.background_evaluator.wake()
        await eventually(lambda: buggy.stretches > 2)
        assert service.supervisor.failures["background-evaluation"] > 1


def test_a_pod_whose_evaluation_raises_a_bug_has_no_further_turn_until_it_is_filtered_again() -> None:
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
    requirements = requirements_of(asked, fleet.cache.snapshot(), fleet.policy)
    assert isinstance(requirements, PodRequirements)
    broken.add(requirements.key)
    fleet.clock.now += 60
    with pytest.raises(KeyError, match="a bug"):
        fleet.filter_service.continue_evaluation()
    while fleet.filter_service.continue_evaluation():
        fleet.clock.now += 1
    assert fleet.filter_service.filter(other, fleet.names).passed
    broken.clear()
    assert fleet.error(asked)
    assert fleet.filter_service.unfinished_evaluations == 1


def test_work_ends_with_the_last_pod_that_asked_for_it() -> None:
    fleet = Fleet(nodes=60)
    asked = fleet.hostile()
    assert fleet.error(asked)
    assert fleet.filter_service.unfinished_evaluations == 1
    fleet.gone(asked)
    began = fleet.clock.now
    assert not fleet.filter_service.unfinished_evaluations
    assert not fleet.filter_service.continue_evaluation()
    assert fleet.clock.now == began
    assert fleet.error(asked), "kube-scheduler still asks about a pod that is gone"
    assert not fleet.filter_service.continue_evaluation(), "and nothing goes on for it"


def test_evaluations_that_go_on_are_bounded_by_pods() -> None:
    fleet = Fleet(nodes=60)
    filter_service = FilterService(fleet.cache, Policy(), Evaluator(Features()), fleet.clock, remembered_pods=3)
    for _ in range(8):
        fleet.clock.now += 60
        filter_service.filter(fleet.hostile(), fleet.names)
    assert filter_service.unfinished_evaluations == 3


def test_a_pod_that_waits_is_woken_though_the_look_spent_its_budget() -> None:
    sink = RecordingSink()
    fleet = Fleet(kinds=1, limits=EvaluationLimits(steps=40, share=1.0), sink=sink)
    texts = [f'device.attributes["gpu.nvidia.com"].uuid != "{i}"' for i in range(8)]
    asked, filter_service = fleet.pod("a", *texts, count=5), fleet.filter_service
    while fleet.error(asked):
        fleet.clock.now += 60
    assert filter_service.unschedulable.uids() == [asked.uid]
    fleet.cache.apply_slice("n1", SliceDecoder().decode(gpu_slice("n1", MACHINES[1])))
    looks = list(filter_service.queueing_hints.find_schedulable())
    assert filter_service.unfinished_evaluations == 1
    assert True not in looks
    while filter_service.continue_evaluation():
        fleet.clock.now += 1
    assert "fits" in sink.calls


async def test_a_costly_pod_is_answered_in_the_end_and_others_meanwhile() -> None:
    """Over HTTP: the error of a costly pod, its background evaluation, and a deleted pod."""
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

        async def placed(name: str, namespace: str) -> bool:  # a slow machine needs several calls
            return bool((await _filtered(b, name, names, namespace))["NodeNames"])

        await eventually(lambda: placed("light", "honest"), "the honest pod is placed")
        b.cluster.store.remove("pods", ("default", "gone"))
        await eventually(lambda: filter_service.unfinished_evaluations == 0)
        await eventually(lambda: placed("costly", "default"), "the costly pod is placed")


async def _filtered(b: Berthing, name: str, names: list[str], namespace: str = "default") -> dict:
    found = b.cluster.store.get("pods", (namespace, name))
    assert found is not None
    asked = {key: value for key, value in found.items() if key not in ("kind", "apiVersion")}
    return (await b.client.post("/filter", json={"Pod": asked, "Nodes": None, "NodeNames": names})).json()


def test_an_equal_pod_of_another_namespace_is_not_held_back() -> None:
    """The evaluation time used by one namespace must not delay the pods of another."""
    fleet = Fleet(nodes=1)
    requirements = requirements_of(fleet.hostile(), fleet.cache.snapshot(), Policy())
    assert isinstance(requirements, PodRequirements)
    elsewhere = replace(requirements, namespace="another")
    unfinished = UnfinishedEvaluations(8)
    unfinished.add(requirements, "uid-1")
    assert elsewhere.key == requirements.key
    assert unfinished.get(requirements) is not None
    assert unfinished.get(elsewhere) is None
