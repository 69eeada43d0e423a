"""A little of what `make chaos` does with gangs."""

from __future__ import annotations

from tests.chaos_gangs import WRITES, gang_killed_at_writes, two_gangs_and_kills


async def test_a_gang_killed_between_its_claims_and_between_its_bindings() -> None:
    points = (("after", 2), ("before", WRITES - 3), ("after", WRITES - 3), ("before", WRITES - 1))
    assert len(await gang_killed_at_writes(seed=7, points=points)) == len(points)


async def test_two_gangs_that_do_not_fit_together_under_a_kill() -> None:
    assert (await two_gangs_and_kills(seed=3, rounds=1))["kills"] == 1
