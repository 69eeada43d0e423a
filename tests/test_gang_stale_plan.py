"""A committed plan that has ended goes on for its binds: it must not touch a new plan of the same gang."""

from __future__ import annotations

import pytest

from tests.bind_slots_world import commit
from tests.gang_pods import NODES, key, member, planned
from tests.running_berth import berthing


@pytest.mark.parametrize("how", ["bound", "leave"])
async def test_an_ended_plan_does_not_end_the_holds_of_a_new_one(how: str) -> None:
    async with berthing(NODES) as b:
        plans, reservations = b.app.service.gangs.plans, b.app.service.cache.reservations
        for i in range(3):
            member(b, f"p{i}")
        await b.settled()
        await planned(b, "p0")
        old = plans.forming[key()]
        commit(old)
        plans.end(old, "")
        await planned(b, "p0")
        assert plans.forming[key()] is not old
        for uid in old.planned.members:
            if how == "bound":
                plans.bound(old, uid)
            else:
                plans.leave(old, uid)
        assert reservations.holds == 3
