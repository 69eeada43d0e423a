"""The binds of a gang wait for each other, come late, and come again after a refusal. No part of it is bound alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from extender.policy import Policy
from extender.sandbox import ApiError
from extender.sandbox.apiserver.registry import RESOURCES
from extender.serve.gangs.gang_state import GangEvent, GangState, InvalidGangTransition, next_state
from tests.worlds.dra_worlds import CLAIMS, extended
from tests.worlds.eventually import eventually
from tests.worlds.gang_fleet import commit, plan
from tests.worlds.gang_pods import (
    NODES,
    SIX_NODES,
    UNREAD,
    annotate,
    bind_all,
    bind_until_bound,
    change,
    create_again,
    create_gang,
    delete,
    ended,
    gets_a_node,
    key,
    labelled,
    member,
    planned,
    pod_group,
    reasons,
    running,
)
from tests.worlds.running_berth import Berthing, berthing, claim, pod
from tests.worlds.tenant_worlds import leftover, stored

pytestmark = pytest.mark.early_timers


async def test_no_member_is_bound_if_the_claim_of_another_is_written_after_the_deadline() -> None:
    async with berthing(NODES) as b:
        await create_gang(b, 3, timeout="1s")
        nodes, answered, sent = await planned(b, "p0", "p1", "p2"), asyncio.Event(), Counter[str]()

        async def slow(method: str, path: str) -> None:
            sent[path.rsplit("/", 1)[1]] += method == "POST"
            if method == "PATCH" and path.endswith("resourceclaims/p2-gpus/status"):
                await answered.wait()

        b.cluster.api.intercept = slow
        binds = [asyncio.create_task(b.bind(name, node)) for name, node in nodes.items()]
        answers = await asyncio.gather(*binds[:2])
        answered.set()
        answers.append(await binds[2])
        assert all("no pod of group job is bound" in answer for answer in answers), answers
        assert not sent["binding"]
        assert not b.held()
        assert not b.app.service.cache.reservations.by_claim


async def test_no_claim_is_written_if_the_last_bind_does_not_arrive_before_the_deadline() -> None:
    async with berthing(NODES, Policy(binding_wait_seconds=600)) as b:
        await create_gang(b, 3, timeout="1s")
        nodes, writes = await planned(b, "p0", "p1", "p2"), list[str]()

        async def note(method: str, path: str) -> None:
            if method == "PATCH" and "/resourceclaims/" in path:
                writes.append(path)

        b.cluster.api.intercept = note
        for answer in await bind_all(b, {name: nodes[name] for name in ("p0", "p1")}):
            assert "1 of 3 pods of group job did not reach bind in time" in answer
        assert not writes


async def test_a_bind_that_gave_up_is_not_counted_as_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others would write their claims and wait for this one until the deadline."""
    async with berthing(NODES, Policy(binding_wait_seconds=1)) as b:
        await create_gang(b, 3)
        nodes = await planned(b, "p0", "p1", "p2")
        with monkeypatch.context() as patched:
            patched.setattr("extender.serve.bind.CLAIM_SECONDS", -0.5)
            assert "gave up after" in await b.bind("p0", nodes["p0"])
        assert not next(iter(b.app.service.gangs.forming.values())).arrived
        await bind_until_bound(b, nodes)


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


async def test_a_bind_after_a_restart_is_refused_until_the_old_pods_are_read() -> None:
    """The process that planned the new gang has ended. Claims of the old gang, which terminates, are all it left."""
    async with berthing(SIX_NODES) as b:
        await create_again(b)
        assert await b.bind("new0", "n4") == f"group job has no plan for pod default/new0: {UNREAD}"
        assert not b.node_of("new0")
        cache = b.app.service.cache
        await eventually(lambda: cache.snapshot().bound_members, "the refused bind has the old pods read")
        assert "group job has no plan for pod default/new0 any more" in await b.bind("new0", "n4")
        assert not b.node_of("new0")


@pytest.mark.parametrize(
    ("text", "planned_on"),
    [
        ("0/6 nodes are available: 6 Insufficient cpu.", False),
        ("0/6 nodes are available: 6 waits until at least 2 pods of group job and their claims exist.", True),
    ],
)
async def test_binds_beyond_the_minimum_go_on_whatever_kube_scheduler_reports(text: str, planned_on: bool) -> None:
    """It reports an attempt from before the plan only when the minimum is being bound."""
    async with berthing(SIX_NODES) as b:
        await create_gang(b, 5, minimum=2)
        nodes = await planned(b, *(f"p{i}" for i in range(5)))
        said = {"type": "PodScheduled", "status": "False", "message": text}

        async def report(_: str, path: str) -> None:
            if path.endswith("/p0/binding"):
                for i in range(2, 5):
                    change(b, f"p{i}", "status", conditions=[said])
                await b.settled()

        b.cluster.api.intercept = report
        assert await bind_all(b, {name: nodes[name] for name in ("p0", "p1")}) == ["", ""]
        assert bool(b.app.service.gangs.forming) == planned_on, "whether the others keep their planned devices"
        rest = {name: nodes[name] for name in ("p2", "p3", "p4")}
        assert await bind_all(b, rest) == ["", "", ""]
        assert len(set(b.held())) == 40


async def test_a_bind_beyond_the_minimum_goes_on_after_the_deadline_of_the_plan() -> None:
    now = [0.0]
    async with berthing(SIX_NODES, clock=lambda: now[0]) as b:
        await create_gang(b, 3, minimum=2)
        nodes = await planned(b, "p0", "p1", "p2")
        plan = next(iter(b.app.service.gangs.forming.values()))
        assert await bind_all(b, {name: nodes[name] for name in ("p0", "p1")}) == ["", ""]
        now[0] = plan.deadline
        assert await b.bind("p2", nodes["p2"]) == ""


async def test_a_bind_goes_on_although_a_new_pod_made_berth_forget_what_it_has_read_of_the_group() -> None:
    async with berthing(SIX_NODES) as b:
        await running(b, *(f"p{i}" for i in range(4)))
        member(b, "p4", minimum=4)
        await b.settled()
        await eventually(lambda: gets_a_node(b, "p4"), "the bound pods are read")
        node = (await b.filter("p4"))["NodeNames"][0]
        member(b, "p5", minimum=4)
        await b.settled()
        assert not b.app.service.cache.snapshot().bound_members
        assert await b.bind("p4", node) == ""


async def test_a_pod_that_was_refused_after_it_had_passed_is_not_bound_alone() -> None:
    async with berthing(SIX_NODES) as b:
        await running(b, *(f"p{i}" for i in range(4)))
        member(b, "p4", minimum=4)
        await b.settled()
        await eventually(lambda: gets_a_node(b, "p4"), "the bound pods are read")
        member(b, "p5", minimum=4)
        await b.settled()
        assert await reasons(b, "p4") == {UNREAD}
        assert UNREAD in await b.bind("p4", "n4")


async def test_a_bind_of_a_further_member_is_refused_until_the_minimum_is_bound() -> None:
    """The Bindings of the minimum may be sent, and the API server has stored none."""
    async with berthing(SIX_NODES) as b:
        await create_gang(b, 3)
        nodes, answer, sent = await planned(b, "p0", "p1", "p2"), asyncio.Event(), set[str]()

        async def refuse_later(_: str, path: str) -> ApiError | None:
            if not path.endswith("/binding"):
                return None
            sent.add(path)
            await answer.wait()
            return ApiError(403, "Forbidden", "no")

        member(b, "p3")
        await b.settled()
        b.cluster.api.intercept = refuse_later
        binds = asyncio.create_task(bind_all(b, nodes))
        await eventually(lambda: len(sent) == 3, "the Bindings of the minimum are sent")
        late = (set(SIX_NODES) - set(nodes.values())).pop()
        try:
            assert await reasons(b, "p3") == {"waits until the minimum of group job is bound"}
            assert "waits until the minimum of group job is bound" in await b.bind("p3", late)
        finally:
            answer.set()
            assert all(await binds)
        assert not b.held()


async def test_a_bind_after_the_pod_group_was_deleted_and_berth_was_restarted() -> None:
    async with berthing(NODES) as b:
        pod_group(b, 3)
        for i in range(3):
            labelled(b, f"p{i}")
        await b.settled()
        b.cluster.api.registry.delete(RESOURCES["scheduling.x-k8s.io", "podgroups"], ("default", "job"))
        await eventually(lambda: not b.app.service.cache.store.group_policies, "the PodGroup is gone")
        for i in range(3):
            assert "waits for PodGroup job, which does not exist" in await b.bind(f"p{i}", f"n{i}")
        assert not b.held()


@pytest.mark.parametrize(
    ("minimum", "text"),
    [
        ("1", "disagree about their minimum (berth.dev/group-min): default/p0 has 3, default/p2 has 1"),
        ("many", "'many' is not a number"),
    ],
)
async def test_a_late_bind_of_a_member_whose_minimum_was_edited(minimum: str, text: str) -> None:
    async with berthing(NODES) as b:
        await create_gang(b, 3)
        nodes = await planned(b, "p0", "p1", "p2")
        annotate(b, "p2", {"berth.dev/group-min": minimum})
        delete(b, "pods", "p1")
        await ended(b)
        await b.settled()
        for name in ("p0", "p2"):
            error = await b.bind(name, nodes[name])
            assert error
            assert not b.node_of(name)
        assert text in await b.bind("p2", nodes["p2"])
        assert not b.held()


FORBIDDEN = ApiError(403, "Forbidden", "not now")


@asynccontextmanager
async def refused() -> AsyncIterator[tuple[Berthing, str, set[tuple[str, str]]]]:
    """p0 and p1 of a gang are bound, and the API server has refused the Binding of p2: its node and its devices."""
    async with berthing(NODES) as b:
        for i in range(3):
            member(b, f"p{i}", gpus=7)
        await b.create(claim("single", 2), pod("alone", "single"))
        nodes = await planned(b, "p0", "p1", "p2")
        service = b.app.service
        held = service.cache.reservations.held_for(b.pod("p2")["metadata"]["uid"])
        devices = {(result.device.pool, result.device.device) for result in held}

        async def refuse(_: str, path: str) -> ApiError | None:
            return FORBIDDEN if path.endswith("pods/p2/binding") else None

        b.cluster.api.intercept = refuse
        answers = await bind_all(b, nodes)
        b.cluster.api.intercept = None
        assert answers[:2] == ["", ""]
        assert "not now" in answers[2]
        assert len(b.held()) == 14, "the claim of p2 is released"
        await b.settled()
        yield b, nodes["p2"], devices


async def test_a_refused_member_keeps_its_devices_and_is_bound_at_its_next_attempt() -> None:
    async with refused() as (b, node, devices):
        assert not (await b.filter("alone"))["NodeNames"], "no other pod gets the devices of p2 meanwhile"
        assert await planned(b, "p2") == {"p2": node}
        assert await b.bind("p2", node) == ""
        assert {(pool, device) for pool, device in b.held() if pool == node} == devices
        assert not b.app.service.gangs.forming
        assert not b.app.service.cache.reservations.holds


async def test_events_of_its_claim_do_not_take_the_devices_of_a_refused_member() -> None:
    """A driver writes its status while the claim is still allocated: the bind undoes its writes."""
    async with berthing(NODES) as b:
        await create_gang(b, 3, gpus=7)
        nodes, cache = await planned(b, "p0", "p1", "p2"), b.app.service.cache
        uid, events = b.pod("p2")["metadata"]["uid"], 0
        devices = cache.reservations.held_for(uid)

        async def refuse(method: str, path: str) -> ApiError | None:
            nonlocal events
            if method == "GET" and path.endswith("pods/p2") and not events:
                events += 1
                label = {"metadata": {"labels": {"seen": "yes"}}}
                b.cluster.api.registry.patch(CLAIMS, ("default", "p2-gpus"), label, "", strategic=False)
                await b.settled()
            return FORBIDDEN if path.endswith("pods/p2/binding") else None

        b.cluster.api.intercept = refuse
        assert "not now" in (await bind_all(b, nodes))[2]
        assert events, "the undo reads the pod while its claim is allocated"
        await b.settled()
        assert len(b.held()) == 14, "the claim of p2 is released"
        assert cache.reservations.held_for(uid) == devices


async def test_a_refused_member_that_does_not_come_back_leaves_its_devices_to_others() -> None:
    async with refused() as (b, node, _):
        delete(b, "pods", "p2")
        await eventually(lambda: not b.app.service.gangs.forming, "the plan ended")
        assert (await b.filter("alone"))["NodeNames"] == [node]


async def test_a_refused_member_whose_node_is_not_offered_is_placed_alone() -> None:
    async with refused() as (b, node, _):
        found = await b.filter("p2", [name for name in NODES if name != node])
        assert not found["NodeNames"], "p0 and p1 have the other nodes"
        assert not b.app.service.gangs.forming
        await eventually(lambda: gets_a_node(b, "p2"), "the bound pods are read")
        assert await planned(b, "p2") == {"p2": node}
        assert await b.bind("p2", node) == ""


async def test_a_member_that_is_deleted_during_its_bind_leaves_its_devices_to_others() -> None:
    """All others are bound, so the plan has ended when the bind fails."""
    async with berthing(NODES) as b:
        await create_gang(b, 3, timeout="24h")
        nodes = await planned(b, "p0", "p1", "p2")
        sent, go_on = asyncio.Event(), asyncio.Event()

        async def not_found(_: str, path: str) -> ApiError | None:
            if not path.endswith("/p2/binding"):
                return None
            sent.set()
            await go_on.wait()
            return ApiError(404, "NotFound", "no pod p2")

        b.cluster.api.intercept = not_found
        uid, cache = b.pod("p2")["metadata"]["uid"], b.app.service.cache
        binds = [asyncio.create_task(b.bind(name, node)) for name, node in nodes.items()]
        await sent.wait()
        assert [await bind for bind in binds[:2]] == ["", ""]
        delete(b, "pods", "p2")
        await eventually(lambda: uid not in cache.store.pods, "Berth knows that the pod is gone")
        go_on.set()
        assert await binds[2] == "no pod p2"
        assert not cache.reservations.by_claim
        await eventually(lambda: len(b.held()) == 16, "the allocation is released")


async def test_claims_for_extended_resources_of_an_earlier_attempt_are_removed() -> None:
    """Berth died after it had allocated the claim of p1, and before the pod's status named the claim."""
    async with berthing({"n1": "t4-4", "n2": "t4-4"}) as b:
        notes = {"berth.dev/group": "job", "berth.dev/group-min": "2"}
        for name in ("p1", "p2"):
            b.cluster.apply(extended(name, annotations=notes))
        name = await leftover(b)
        text = "the extended-resource claim of an earlier attempt is being removed"
        assert await reasons(b, "p2") == {text}
        await eventually(lambda: stored(b, name) is None, "the orphan collector removes the claim")
        await b.settled()

        async def is_planned() -> bool:
            return bool((await b.filter("p2"))["NodeNames"])

        await eventually(is_planned, "the pause ends")
        assert set(await bind_all(b, await planned(b, "p1", "p2"))) == {""}
