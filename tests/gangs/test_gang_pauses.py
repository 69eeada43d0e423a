"""Gangs whose plans fail wait longer and longer, and hold devices only briefly until a first bind arrives."""

from __future__ import annotations

import pytest

from extender.allocation import Features
from extender.api.reasons import Code, Reason
from extender.cache import ClusterCache
from extender.policy import Policy
from extender.serve.gangs.gang_admission import GangAdmission
from tests.worlds.eventually import eventually
from tests.worlds.gang_fleet import AdmissionAlone
from tests.worlds.gang_pods import (
    NODES,
    bind_all,
    bind_until_bound,
    create_gang,
    key,
    member,
    planned,
    say_unschedulable,
)
from tests.worlds.running_berth import berthing, claim, pod

pytestmark = pytest.mark.loopback

REFUSED = Reason(Code.GANG_REFUSED, ("job", "default/p0"))


def pause_seconds(waiting: GangAdmission, now: list[float]) -> float:
    waiting.pause(key(), REFUSED)
    found = waiting.get(key())
    assert found is not None
    seconds = found.retry_at - now[0]
    now[0] = found.retry_at
    waiting.planned(key())  # the gang gets a plan
    return seconds


def test_the_pause_doubles_with_each_failed_plan_until_a_member_is_bound() -> None:
    now = [0.0]
    waiting = AdmissionAlone(lambda: now[0])
    assert [pause_seconds(waiting, now) for _ in range(6)] == [1, 2, 4, 8, 16, 30]
    assert {pause_seconds(waiting, now) for _ in range(3000)} == {30}
    waiting.succeeded(key())
    assert pause_seconds(waiting, now) == 1


def test_a_change_of_a_gang_shortens_its_pause_to_a_second_and_ever_new_changes_do_not_end_it() -> None:
    """A plan for each edit of a large gang would keep the event loop busy."""
    now = [0.0]
    waiting = AdmissionAlone(lambda: now[0])
    for _ in range(5):
        waiting.pause(key(), REFUSED)
    found = waiting.get(key())
    assert found is not None
    assert found.retry_at == 16
    for tenth in range(10):
        now[0] = tenth / 10
        waiting.retry_soon(key())
        assert found.retry_at == 1


def test_the_memory_of_gangs_and_of_their_failures_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack: fill memory with gangs."""
    monkeypatch.setattr(f"{GangAdmission.__module__}.MAX_REMEMBERED", 4)
    now = [0.0]
    waiting = AdmissionAlone(lambda: now[0])
    for i in range(100):
        waiting.pause(key(f"job-{i}"), REFUSED)
        waiting.collects_not_before(key(f"job-{i}"), 1.0)
    assert len(waiting) == 4
    assert sum(waiting.may_collect_at(key(f"job-{i}")) == 1.0 for i in range(100)) == 4
    assert sum(waiting.failures(key(f"job-{i}")) for i in range(100)) == 4
    now[0] = 1.0
    assert sum(waiting.complete_since(key(f"job-{i}")) == 0.0 for i in reversed(range(100))) == 4


def test_a_namespace_with_thousands_of_gangs_takes_no_memory_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack: make Berth forget the pauses and failures of others' gangs."""
    monkeypatch.setattr(f"{GangAdmission.__module__}.MAX_REMEMBERED", 8)
    waiting = AdmissionAlone(lambda: 0.0)
    others = [key("job", f"other-{i}") for i in range(3)]
    for one in others:
        waiting.pause(one, REFUSED)
        waiting.collects_not_before(one, 1.0)
    for i in range(100):
        waiting.pause(key(f"job-{i}"), REFUSED)
        waiting.collects_not_before(key(f"job-{i}"), 1.0)
    assert len(waiting) == 8
    for one in others:
        assert waiting.get(one) is not None
        assert (waiting.failures(one), waiting.may_collect_at(one)) == (1, 1.0)
    assert [i for i in range(100) if waiting.failures(key(f"job-{i}"))] == [95, 96, 97, 98, 99]


async def test_a_repeated_bind_does_not_prolong_a_plan() -> None:
    """Otherwise one pod could hold the devices of its gang until a time-out of 24 h."""
    now = [0.0]
    async with berthing(NODES, Policy(binding_wait_seconds=1), clock=lambda: now[0]) as b:
        await create_gang(b, 3, timeout="24h")
        nodes = await planned(b, "p0", "p1", "p2")
        plan = next(iter(b.app.service.gangs.forming.values()))
        for name, is_progress in [("p0", True), ("p0", False), ("p1", True), ("p0", False)]:
            before = plan.ends_at
            now[0] += 1
            assert "waiting for the other pods" in await b.bind(name, nodes[name])
            assert (plan.ends_at > before) == is_progress
            assert (await b.filter(name))["NodeNames"] == [nodes[name]], "the plan goes on meanwhile"
        await bind_until_bound(b, nodes)


async def test_after_a_failed_plan_the_first_bind_must_arrive_soon() -> None:
    """Attack: keep devices from others with a gang that is never bound."""
    async with berthing(NODES) as b:
        await create_gang(b, 3, timeout="10m")
        patience = list[float]()
        for attempt in range(2):
            nodes = await planned(b, "p0", "p1", "p2")
            (plan,) = b.app.service.gangs.forming.values()
            patience.append(plan.ends_at - plan.progress_at)
            if not attempt:
                say_unschedulable(b, "p2", "0/3 nodes are available: 3 Insufficient cpu.")
                await eventually(lambda: not b.app.service.gangs.forming, "the plan ended")
                waiting = b.app.service.gangs.admission.get(key())
                assert waiting is not None
                waiting.retry_at = 0.0
        assert patience[1] < patience[0] < 600
        assert await bind_all(b, nodes) == ["", "", ""]
        assert not b.app.service.gangs.admission.failures(key())


async def test_the_reason_of_another_pod_names_the_gang_that_holds_a_device() -> None:
    async with berthing(NODES) as b:
        for i in range(3):
            member(b, f"p{i}")
        await b.create(claim("alone-gpus", 8), pod("alone", "alone-gpus"))
        nodes = await planned(b, "p0", "p1", "p2")
        told = (await b.filter("alone"))["FailedAndUnresolvableNodes"]
        assert set(told) == set(nodes.values())
        assert all("group default/job" in text for text in told.values()), told
        assert await bind_all(b, nodes) == ["", "", ""]


def test_the_end_of_a_pause_wakes_only_if_a_plan_may_succeed() -> None:
    now, version = [0.0], ClusterCache(Features()).snapshot().version
    waiting = AdmissionAlone(lambda: now[0])

    def woken() -> bool:
        now[0] += 100.0
        return waiting.expire()

    waiting.pause(key(), Reason(Code.GANG_NO_ROOM, ("job",)), version, "u", wakes=False)
    assert not woken(), "nothing has changed"
    waiting.pause(key(), Reason(Code.GANG_NO_ROOM, ("job",)), version + 1, "u", wakes=False)
    assert woken(), "a claim may have ended"
    assert not woken(), "once"
    waiting.pause(key(), REFUSED, uid="u")
    assert woken(), "kube-scheduler may offer other nodes"
    waiting.pause(key(), Reason(Code.INVALID, ("x",)), uid="u", wakes=False)
    assert not woken(), "only a change of the pods can help"
