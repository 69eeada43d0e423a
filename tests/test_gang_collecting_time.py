"""The search for a domain in which a gang may collect devices leaves the time to others."""

from __future__ import annotations

import asyncio

from extender.policy import Policy
from tests.budget_worlds import TICK
from tests.eventually import eventually
from tests.skipping_loop import SkippingLoop
from tests.test_gang_budget import Gangs


def with_waiting_gangs(number: int) -> Gangs:
    fleet = Gangs(nodes=12, policy=Policy(gang_collect_seconds=60))
    for name in range(number):
        fleet.clock.now += 60
        assert "no domain has room" in " ".join(fleet.reasons(fleet.too_large("hostile", f"g{name}")[:1]))
    return fleet


def searched(fleet: Gangs) -> tuple[float, float]:
    """The seconds that the search for a domain works for all gangs, and those for which it rests."""

    async def until_all_are_tried() -> float:
        async def rebuilt() -> None:
            pass

        task = asyncio.create_task(fleet.gangs.collecting.run(rebuilt))
        await eventually(lambda: fleet.gangs.waiting.next_to_collect(fleet.clock.now) is None)
        task.cancel()
        return asyncio.get_running_loop().time()

    began = fleet.clock.now
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        rested = runner.run(until_all_are_tried())
    return fleet.clock.now - began, rested


def test_the_gangs_of_a_namespace_without_time_are_not_searched_for() -> None:
    """Each step had a full budget, and ever new gangs of one namespace had the steps."""
    fleet = with_waiting_gangs(30)
    while fleet.filter_service.has_time("hostile"):
        fleet.error(fleet.hostile())
    assert searched(fleet)[0] < 30 * 20 * TICK


def test_the_search_rests_after_each_step() -> None:
    """Attack: stall scheduling with many gangs that wait for a domain to collect in (off by default)."""
    worked, rested = searched(with_waiting_gangs(5))
    assert worked < 0.3 * (worked + rested)
