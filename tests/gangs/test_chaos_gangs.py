"""A little of what `make chaos` does with gangs."""

from __future__ import annotations

import pytest

from tests.worlds.chaos_gangs import KINDS, SIZE, gang_ended_at_writes, gang_ended_while_released, two_gangs_and_kills

CLAIMS = KINDS["claims"].writes
FEW_POINTS = (("after", 2), ("before", CLAIMS - 3), ("after", CLAIMS - 3), ("before", CLAIMS - 1))


async def test_a_gang_killed_between_its_claims_and_between_its_bindings() -> None:
    assert len(await gang_ended_at_writes(seed=7, points=FEW_POINTS)) == len(FEW_POINTS)


@pytest.mark.parametrize("process", ["scheduler", "both"])
async def test_a_gang_whose_scheduler_ends(process: str) -> None:
    assert len(await gang_ended_at_writes(seed=8, process=process, points=FEW_POINTS[1:3])) == 2


async def test_a_gang_that_shares_the_claim_of_its_pod_group() -> None:
    points = (("after", 1), ("after", KINDS["claim of a PodGroup"].writes - SIZE))
    assert len(await gang_ended_at_writes(seed=9, kind="claim of a PodGroup", points=points)) == len(points)


async def test_a_gang_whose_claims_berth_makes() -> None:
    points = (("after", SIZE), ("before", KINDS["extended resources"].writes - SIZE))
    assert len(await gang_ended_at_writes(seed=9, kind="extended resources", points=points)) == len(points)


async def test_a_gang_killed_while_it_is_released() -> None:
    points = (("before", 0), ("after", 1))
    assert len(await gang_ended_while_released(seed=5, points=points)) == len(points)


async def test_two_gangs_that_do_not_fit_together_under_a_kill() -> None:
    assert (await two_gangs_and_kills(seed=3, rounds=1))["kills"] == 1
