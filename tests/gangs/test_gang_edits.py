"""A gang that its owner changes again and again gets at most one plan in a second. Time is a number."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.fleet import Fleet
from extender.api.pod_groups import GroupKey
from extender.api.reasons import Code
from extender.gangs.gang_problem import MAX_TOGETHER
from extender.serve.gangs.gang_admission import SlotLimits
from tests.worlds.gang_fleet import Requeues, gang_member, watched_gangs

SIZE = 6


class Edited:
    """A gang of pods without devices, and the monitor that sees each change."""

    def __init__(self) -> None:
        self.fleet, self.requeues = Fleet("mixed"), Requeues()
        self.fleet.fill(1, 0.0)
        self.gangs, self.monitor = watched_gangs(self.fleet, SlotLimits(), sink=self.requeues)
        self.first = gang_member(self.fleet, "default", "job", "p0", SIZE)
        self.give_minimum(SIZE)

    @property
    def key(self) -> GroupKey:
        assert self.first.membership is not None
        return self.first.membership.key

    def give_minimum(self, minimum: int) -> None:
        members = [gang_member(self.fleet, "default", "job", f"p{i}", minimum) for i in range(SIZE)]
        self.first = members[0]
        self.seen()

    def without_one(self) -> None:
        """A member is deleted and created again."""
        self.fleet.cache.apply_pod("default-p3", None)
        self.seen()
        gang_member(self.fleet, "default", "job", "p3", SIZE)
        self.seen()

    def seen(self) -> None:
        self.monitor.pods_changed(*self.fleet.cache.store.take_changed_groups())

    def ask(self) -> None:
        self.gangs.filter(self.first, list(self.fleet.devices))


def other_minimum(gang: Edited) -> None:
    plan = gang.gangs.forming.get(gang.key)
    gang.give_minimum(SIZE - 1 if plan is not None and plan.minimum == SIZE else SIZE)


def incomplete_for_a_moment(gang: Edited) -> None:
    gang.give_minimum(SIZE + 1)
    gang.ask()
    gang.give_minimum(SIZE)


def too_large_for_a_moment(gang: Edited) -> None:
    gang.give_minimum(MAX_TOGETHER + 1)
    gang.ask()
    gang.give_minimum(SIZE)


@pytest.mark.parametrize("edit", [other_minimum, Edited.without_one, incomplete_for_a_moment, too_large_for_a_moment])
def test_an_edit_loop_gets_one_plan_in_a_second(edit: Callable[[Edited], None]) -> None:
    """Attack: keep the event loop busy by editing the members or the minimum of a large gang."""
    gang = Edited()
    for tenth in range(50):
        gang.fleet.now = tenth / 10
        gang.ask()
        edit(gang)
        gang.ask()
    assert 4 <= gang.gangs.counts.plans <= 6


def test_a_gang_that_changed_is_requeued_after_a_second() -> None:
    gang = Edited()
    gang.ask()
    assert gang.gangs.forming
    gang.give_minimum(SIZE - 1)
    gang.ask()
    waiting = gang.gangs.admission.get(gang.key)
    assert waiting is not None
    assert (waiting.reason.code, waiting.retry_at) == (Code.GANG_CHANGED, gang.fleet.now + 1)
    gang.requeues.times.clear()
    gang.fleet.now = gang.gangs.timers.next
    gang.monitor.expire()
    assert gang.requeues.times == ["fits"]
    gang.ask()
    assert gang.gangs.forming


def test_a_gang_whose_members_come_during_its_pause_is_requeued_at_its_end() -> None:
    gang = Edited()
    gang.ask()
    gang.give_minimum(SIZE + 1)
    gang.ask()
    gang.requeues.times.clear()
    gang_member(gang.fleet, "default", "job", "late", SIZE + 1)
    gang.seen()
    waiting = gang.gangs.admission.get(gang.key)
    assert waiting is not None
    assert not gang.requeues.times
    gang.fleet.now = waiting.retry_at
    gang.monitor.expire()
    assert gang.requeues.times == ["fits"]
