"""The table of a gang's life: whatever the order of events, a decision never changes, and a bug is loud."""

from __future__ import annotations

from random import Random

import pytest

from extender.serve.gangs.gang_state import GangEvent, GangState, InvalidGangTransition, next_state
from tests.worlds.gang_fleet import commit, plan
from tests.worlds.gang_pods import NODES, create_gang, key, planned
from tests.worlds.running_berth import berthing


@pytest.mark.parametrize("seed", range(20))
def test_a_decided_gang_stays_decided_and_only_a_committed_one_sends_bindings(seed: int) -> None:
    """Binds arrive, end, come again and write their claims in any order, and the plan may end at any time."""
    rng, gang = Random(seed), plan(key(), 3)
    uids, decided = sorted(gang.planned.members), ""
    for _ in range(40):
        uid = rng.choice(uids)
        if decided != "committed" and rng.random() < 0.05:
            gang.end("a member was deleted")
        elif uid not in gang.arrived or rng.random() < 0.2:
            gang.bind_ended(uid)
            gang.arrive(uid, "n0", 1.0)
        elif gang.has_arrived:
            gang.write(uid, 1.0)
        if gang.committed and rng.random() < 0.5:
            gang.bind(uid)
        outcome = "committed" if gang.committed else gang.ended
        assert outcome == decided or not decided
        decided = outcome
        assert gang.is_decided == bool(decided)
        assert gang.committed == (len(gang.written) == 3 and not gang.ended)
        assert gang.runs == (len(gang.bound) == 3)


def test_an_event_that_the_table_does_not_have_is_a_bug() -> None:
    with pytest.raises(InvalidGangTransition, match="its devices are held"):
        next_state(key(), GangState.PLANNED, GangEvent.MINIMUM_BOUND)
    with pytest.raises(InvalidGangTransition, match="group default/job"):
        plan(key(), 2).bind("u0") or plan(key(), 1).bind("u0")


def test_a_committed_gang_outlives_its_plan() -> None:
    gang = plan(key(), 2, arrived=2)
    assert (gang.state, gang.preemptible_at) == (GangState.WRITING, float("inf"))
    commit(gang)
    gang.end("its deadline passed")
    assert (gang.state, gang.ended) == (GangState.COMMITTED, "")
    assert [gang.bind(uid) for uid in ("u0", "u1")] == [False, True]
    assert (gang.state, gang.slots) == (GangState.RUNNING, 1)


@pytest.mark.parametrize("how", ["bound", "leave"])
async def test_an_ended_plan_does_not_end_the_holds_of_a_new_one(how: str) -> None:
    async with berthing(NODES) as b:
        gangs, reservations = b.app.service.gangs, b.app.service.cache.reservations
        await create_gang(b, 3)
        await planned(b, "p0")
        old, plans = gangs.forming[key()], gangs.plans
        commit(old)
        plans.end(old, "")
        await planned(b, "p0")
        assert gangs.forming[key()] is not old
        for uid in old.planned.members:
            if how == "bound":
                plans.bound(old, uid)
            else:
                plans.leave(old, uid)
        assert reservations.holds == 3
