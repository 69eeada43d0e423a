"""An evaluation may stop anywhere, and its results are correct. A fake clock advances with each evaluation."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.allocation import Features
from extender.base.deadline import Deadline, DeadlineExceeded
from extender.cel.dra import Masks
from extender.policy import Policy
from extender.sandbox.machines import gpu_slice
from extender.scheduling import EvaluationContext, NodeRanking
from tests.worlds.evaluation_worlds import GPU, MACHINES, Fleet, steps
from tests.worlds.filled_caches import put, required

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
def test_evaluation_in_many_small_pieces_equals_one_evaluation(
    shape: dict, ends: list[int], changes: list[int]
) -> None:
    """The statuses equal those of a ranking without a deadline, wherever it stops, and for all changes in between."""
    fleet, masks = Fleet(), Masks()
    asked = fleet.pod("a", *shape.get("selectors", ()), **{k: v for k, v in shape.items() if k != "selectors"})

    def newest(masks: Masks, deadline: Deadline | None = None) -> tuple:
        snapshot = fleet.cache.snapshot()
        context = EvaluationContext(masks, Features(), snapshot.baseline)
        return snapshot, context if deadline is None else replace(context, deadline=deadline)

    requirements = required(asked, fleet.cache)
    ranking = NodeRanking(requirements)
    for position, some in enumerate(ends):
        ranking.update(*newest(masks, steps(some, ends_one=True)))
        if position < len(changes):
            name, machine = f"n{changes[position]}", MACHINES[(changes[position] + position) % 3]
            put(fleet.cache, gpu_slice(name, machine))
    done, calls = False, 0
    while not done:
        done, calls = ranking.update(*newest(masks, steps(0, ends_one=True))), calls + 1
        assert calls < 1000, "each call makes progress, however small its deadline"
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


def test_a_mask_goes_on_where_it_stopped() -> None:
    """Each device is evaluated once, and no part of the incomplete mask is kept."""
    fleet, masks = Fleet(), Masks()
    slice_ = fleet.cache.snapshot().node_infos["n1"].inventory.offsets[0][0]
    text, ended, found = 'device.attributes["gpu.nvidia.com"].productName.endsWith("4")', 0, None
    while found is None:
        try:
            found = masks.of(text, slice_, steps(0, ends_one=True))
        except DeadlineExceeded:
            ended += 1
    assert ended == len(slice_.devices), "one call compiles, each of the others asks about one device"
    assert found == Masks().of(text, slice_)
    masks.forget(slice_.name)
    assert masks.remembered()["mask_bytes"] == 0


@pytest.mark.parametrize(
    "text", ["1<2||" * 2045 + "true", f"[{','.join('1' * 230)}].all(a,[{','.join('1' * 230)}].all(b,a<=b))"]
)
def test_a_piece_longer_than_the_rest_of_a_call_waits_for_the_next_one(text: str) -> None:
    """A compilation took 200 ms, and a match 130 ms, also in a call with no time left."""
    fleet, masks = Fleet(), Masks()
    slice_ = fleet.cache.snapshot().node_infos["n1"].inventory.offsets[0][0]
    if len(text) < 5000:
        masks.selector(text)
    with pytest.raises(DeadlineExceeded):
        masks.of(text, slice_, Deadline(0.01, lambda: 0.0))
    all_devices = (1 << len(slice_.devices)) - 1
    assert masks.of(text, slice_, Deadline(0.1, lambda: 0.0, ends_one=True))[:2] == (all_devices, 0)


def test_half_made_masks_are_bounded_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.cel.dra.masks.ALL_MASK_BYTES", 2000)
    fleet, masks = Fleet(), Masks()
    slice_ = fleet.cache.snapshot().node_infos["n1"].inventory.offsets[0][0]
    for number in range(50):
        for _ in range(3):
            with suppress(DeadlineExceeded):
                masks.of(f'{GPU}.productName != "{number}"', slice_, steps(0, ends_one=True))
        assert masks.remembered()["mask_bytes"] <= 2000


def test_a_filter_call_ends_in_time_and_says_so() -> None:
    fleet = Fleet(nodes=60)
    asked = fleet.hostile()
    began = fleet.clock.now
    error = fleet.error(asked)
    assert fleet.clock.now - began < 1.2 * fleet.policy.evaluation_seconds
    sentence = r"evaluated (\d+) of 60 nodes within one call; Berth evaluates the rest while the pod exists: retry"
    found = re.fullmatch(f"pod hostile/p1: {sentence}", error)
    assert found is not None
    assert 0 < int(found[1]) < 60


def test_prioritize_without_a_filter_request_scores_nothing() -> None:
    fleet = Fleet(nodes=60)
    assert set(fleet.filter_service.prioritize(fleet.hostile(), fleet.names)) == {(name, 0) for name in fleet.names}
    assert fleet.filter_service.evaluations.waiting == 0


def test_a_costly_search_comes_to_its_end_in_the_queue() -> None:
    """It takes longer than a slice, and its result cannot be kept in part."""
    fleet = Fleet(nodes=60, policy=Policy(evaluation_seconds=0.005))
    waiting = fleet.searching("hostile", 6)
    assert fleet.error(waiting)
    longest, left = 0.0, True
    while left:
        began = fleet.clock.now
        left = fleet.filter_service.evaluations.work()
        longest = max(longest, fleet.clock.now - began)
    answer = fleet.filter_service.filter(waiting, fleet.names)
    assert not answer.error
    assert set(answer.failed) == set(fleet.names)
    assert longest < 0.1
