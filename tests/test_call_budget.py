"""Every call ends with its budget of seconds and steps, and its results are correct.

A fake clock advances with each evaluation.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.allocation import Features
from extender.cel.dra import Masks
from extender.extension.evaluation_throttle import EvaluationLimits
from extender.model import UNLIMITED, CallBudget, CallBudgetSpent
from extender.policy import Policy
from extender.sandbox.machines import gpu_slice
from extender.scheduling import EvaluationContext, NodeRanking, PodRequirements, requirements_of
from extender.wire import SliceDecoder
from tests.budget_worlds import GPU, MACHINES, TICK, Fleet

SHAPES = [
    {},
    {"selectors": (f'{GPU}.uuid != "x"', f'{GPU}.productName != "T4"')},
    {"selectors": ('device.attributes["gpu.nvidia.com"].none == "x"',)},
    {"selectors": ('device.attributes["gpu.nvidia.com"].uuid.startsWith(',)},
    {"constraint": "gpu.nvidia.com/productName", "count": 3},
    {"constraint": "gpu.nvidia.com/uuid", "count": 2},
    {"constraint": "gpu.nvidia.com/brand", "count": 9},
]


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(SHAPES), st.lists(st.integers(0, 40), max_size=12), st.lists(st.integers(0, 11), max_size=4))
def test_evaluation_in_many_small_budgets_equals_one_evaluation(
    shape: dict, steps: list[int], changes: list[int]
) -> None:
    """The statuses equal those of a ranking without a budget, for all ends of budgets and all changes in between."""
    fleet, masks = Fleet(), Masks()
    asked = fleet.pod("a", *shape.get("selectors", ()), **{k: v for k, v in shape.items() if k != "selectors"})

    def newest(masks: Masks, budget: CallBudget | None = None) -> tuple:
        snapshot = fleet.cache.snapshot()
        context = EvaluationContext(masks, Features(), snapshot.baseline)
        return snapshot, context if budget is None else replace(context, budget=budget)

    requirements = requirements_of(asked, fleet.cache.snapshot(), Policy())
    assert isinstance(requirements, PodRequirements)
    ranking = NodeRanking(requirements)
    for position, some in enumerate(steps):
        ranking.update(*newest(masks, CallBudget(1.0, some, lambda: 0.0)))
        if position < len(changes):
            name, machine = f"n{changes[position]}", MACHINES[(changes[position] + position) % 3]
            fleet.cache.apply_slice(name, SliceDecoder().decode(gpu_slice(name, machine)))
    done, calls = False, 0
    while not done:
        done, calls = ranking.update(*newest(masks, CallBudget(1.0, 0, lambda: 0.0))), calls + 1
        assert calls < 1000, "each call makes progress, however small its budget"
    fresh = NodeRanking(requirements)
    fresh.update(*newest(Masks()))
    assert ranking.main_reason() == fresh.main_reason()
    node_infos = fleet.cache.snapshot().node_infos
    assert {name: type(ranking.status(node_info)) for name, node_info in node_infos.items()} == {
        name: type(fresh.status(node_info)) for name, node_info in node_infos.items()
    }
    for _ in range(100):
        ranking.refresh(*newest(masks))
    assert ranking.best(None, 99) == fresh.best(None, 99)


def test_a_mask_goes_on_where_its_budget_ended() -> None:
    """Each device is evaluated once, and no part of the incomplete mask is kept."""
    fleet, masks = Fleet(), Masks()
    slice_ = fleet.cache.snapshot().node_infos["n1"].inventory.offsets[0][0]
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


def nearly_spent() -> CallBudget:
    """A budget whose call has a result already, and 10 ms left."""
    budget = CallBudget(0.01, 100, lambda: 0.0)
    budget.mark_progress()
    return budget


@pytest.mark.parametrize(
    "text", ["1<2||" * 2045 + "true", f"[{','.join('1' * 230)}].all(a,[{','.join('1' * 230)}].all(b,a<=b))"]
)
def test_a_piece_longer_than_the_rest_of_a_call_waits_for_the_next_one(text: str) -> None:
    """A compilation took 200 ms, and a match 130 ms, also in a call with no time left."""
    fleet, masks = Fleet(), Masks()
    slice_ = fleet.cache.snapshot().node_infos["n1"].inventory.offsets[0][0]
    if len(text) < 5000:
        masks.selector(text)
    budget = nearly_spent()
    with pytest.raises(CallBudgetSpent):
        masks.of(text, slice_, budget)
    assert budget.exhausted
    all_devices = (1 << len(slice_.devices)) - 1
    assert masks.of(text, slice_, CallBudget(0.1, 100, lambda: 0.0)) == (all_devices, 0)


def test_half_made_masks_are_bounded_with_the_others() -> None:
    fleet, masks = Fleet(), Masks(mask_bytes=2000)
    slice_ = fleet.cache.snapshot().node_infos["n1"].inventory.offsets[0][0]
    for number in range(50):
        for _ in range(3):
            with suppress(CallBudgetSpent):
                masks.of(f'{GPU}.productName != "{number}"', slice_, CallBudget(1.0, 0, lambda: 0.0))
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
    waiting = fleet.searching("hostile", 6)
    calls, longest, answer = 0, 0.0, None
    while answer is None or answer.error:
        fleet.clock.now += 60
        began, calls = fleet.clock.now, calls + 1
        answer = fleet.filter_service.filter(waiting, fleet.names)
        longest = max(longest, fleet.clock.now - began)
    assert not answer.passed
    assert set(answer.failed) == set(fleet.names)
    assert calls > 1
    assert longest < 2 * fleet.policy.evaluation_seconds


def test_a_call_is_bounded_by_steps_too() -> None:
    fleet = Fleet(nodes=60, limits=EvaluationLimits(steps=50))
    began = fleet.clock.now
    assert fleet.error(fleet.hostile())
    assert fleet.clock.now - began < 70 * TICK


def test_bind_prioritize_and_requeue_are_bounded_too() -> None:
    """An evaluation whose budget ends gives up. Its results are kept, so repeated calls complete it."""
    fleet = Fleet(nodes=60)
    asked = fleet.hostile()
    snapshot = fleet.cache.snapshot()
    assert set(fleet.filter_service.prioritize(asked, fleet.names)) == {(name, 0) for name in fleet.names}
    slow = Fleet(nodes=3, limits=EvaluationLimits(steps=5))
    asked = slow.hostile()
    requirements, spent = requirements_of(asked, slow.cache.snapshot(), Policy()), 0
    assert isinstance(requirements, PodRequirements)
    assert snapshot is not None
    status = None
    while status is None:
        try:
            with slow.filter_service.evaluation("hostile", for_bind=requirements) as context:
                status = slow.filter_service.evaluate_node(requirements, "n1", slow.cache.snapshot(), context.budget)
        except CallBudgetSpent:
            spent += 1
    assert spent > 3
    fresh = Fleet(nodes=3)
    again = requirements_of(fresh.hostile(), fresh.cache.snapshot(), Policy())
    assert isinstance(again, PodRequirements)
    assert fresh.filter_service.evaluate_node(again, "n1", fresh.cache.snapshot(), UNLIMITED) == status
