"""The search for a domain in which a gang may collect devices leaves the time to others."""

from __future__ import annotations

from extender.policy import Policy
from tests.gang_fleet import Gangs


def with_waiting_gangs(number: int) -> Gangs:
    fleet = Gangs(nodes=12, policy=Policy(gang_collect_seconds=60))
    for name in range(number):
        fleet.clock.now += 60
        assert "no domain has room" in " ".join(fleet.reasons(fleet.too_large("hostile", f"g{name}")[:1]))
    return fleet


def test_one_gang_after_the_other_is_searched_for_in_the_queue() -> None:
    """Attack: stall scheduling with many gangs that wait for a domain to collect in (off by default)."""
    fleet = with_waiting_gangs(5)
    evaluations = fleet.filter_service.evaluations
    searches = 0
    while fleet.gangs.admission.next_to_collect(fleet.clock.now) is not None:
        fleet.gangs.collecting.step()
        searches += "collecting" in evaluations
        while "collecting" in evaluations:
            evaluations.work()
            assert fleet.filter_service.evaluations.has_time("hostile"), "calls do not wait for it"
    assert searches == 5
