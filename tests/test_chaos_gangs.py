"""A little of what `make chaos` does with gangs."""

from __future__ import annotations

from tests.chaos_gangs import WRITES, gang_killed_at_every_write, two_gangs_and_kills


async def test_a_gang_killed_before_and_after_every_write() -> None:
    done = await gang_killed_at_every_write(seed=7, times=1)
    assert len(done) == 2 * WRITES


async def test_two_gangs_that_do_not_fit_together_under_kills() -> None:
    assert (await two_gangs_and_kills(seed=3, rounds=3))["kills"] == 3
