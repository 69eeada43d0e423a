"""Gangs over real HTTP against the sandbox: placed, held and bound whole, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families

from extender.sandbox import ApiError, carried_machines
from tests.worlds.eventually import eventually
from tests.worlds.gang_pods import (
    INCOMPLETE,
    NO_ROOM,
    NODES,
    bind_all,
    create_gang,
    delete,
    member,
    planned,
    reasons,
    requeues,
    say_unschedulable,
    two_binds_of_three,
)
from tests.worlds.running_berth import Berthing, berthing, claim, pod

pytestmark = pytest.mark.loopback


async def test_no_member_is_placed_before_all_exist_and_then_all_are() -> None:
    async with berthing(NODES) as b:
        await create_gang(b, 2, minimum=3)
        assert await reasons(b, "p0") == {INCOMPLETE}
        assert await reasons(b, "p1") == {INCOMPLETE}
        assert not b.app.service.cache.reservations.by_claim
        async with requeues(b, "the rejected members are requeued"):
            member(b, "p2")
        nodes = await planned(b, "p2")
        assert b.app.service.cache.reservations.holds == 3, "the devices of all members are held by the first answer"
        nodes |= await planned(b, "p0", "p1")
        assert set(nodes.values()) == set(NODES)
        assert await bind_all(b, nodes) == ["", "", ""]
        assert len(set(b.held())) == 24
        assert not b.app.service.gangs.forming


async def test_bind_waits_for_the_minimum() -> None:
    async with berthing(NODES) as b:
        nodes, first = await two_binds_of_three(b)
        assert not b.held(), "no claim is written before the last bind arrived"
        assert await b.bind("p2", nodes["p2"]) == ""
        assert [await task for task in first] == ["", ""]


async def test_a_gang_without_room_holds_nothing_and_leaves_the_room_to_others() -> None:
    async with berthing(NODES) as b:
        await create_gang(b, 4)
        assert await reasons(b, "p0") == {NO_ROOM}
        assert not b.app.service.cache.reservations.holds
        await b.create(claim("single", 8), pod("alone", "single"))
        assert (await b.filter("alone"))["NodeNames"]


async def test_a_waiting_gang_costs_no_plan_per_call_and_is_requeued_when_it_fits() -> None:
    async with berthing(dict(list(NODES.items())[:2])) as b:
        await create_gang(b, 3)
        assert await reasons(b, "p0") == {NO_ROOM}
        async with requeues(b, "the gang is requeued"):
            b.cluster.add_node("n2", carried_machines()["a100-pcie-8-bridged"])
        assert len(set((await planned(b, "p0", "p1", "p2")).values())) == 3


async def test_two_gangs_that_do_not_fit_together_are_placed_one_after_the_other() -> None:
    async with berthing(NODES) as b:
        for i in range(2):
            member(b, f"a{i}", "a", 2)
            member(b, f"b{i}", "b", 2)
        await b.settled()
        first = await planned(b, "a0")
        assert (await b.filter("b0"))["NodeNames"] == []
        first |= await planned(b, "a1")
        assert (await b.filter("b1"))["NodeNames"] == []
        assert await bind_all(b, first) == ["", ""]
        assert (await b.filter("b0"))["NodeNames"] == []
        assert {r.pod_uid for r in b.app.service.cache.reservations.by_claim.values()} == set()
        async with requeues(b, "the other gang is requeued"):
            for name in first:
                delete(b, "pods", name)
                delete(b, "resourceclaims", f"{name}-gpus")
        assert await bind_all(b, await planned(b, "b0", "b1")) == ["", ""]


async def test_a_failed_claim_of_one_member_releases_all() -> None:
    async with berthing(NODES) as b:
        await create_gang(b, 3)
        nodes = await planned(b, "p0", "p1", "p2")
        delete(b, "resourceclaims", "p1-gpus")
        answers = await bind_all(b, nodes)
        assert all("p1" in answer for answer in answers), answers
        assert not b.held()
        assert all(not b.node_of(name) for name in nodes)
        assert not b.app.service.cache.reservations.by_claim


async def test_the_deadline_ends_a_plan_that_no_bind_reaches() -> None:
    async with berthing(NODES) as b:
        await create_gang(b, 3, timeout="1s")
        await planned(b, "p0")
        await eventually(lambda: not b.app.service.gangs.forming, "the plan ended")
        assert not b.app.service.cache.reservations.holds


async def test_a_refused_node_leads_to_a_new_plan_and_in_the_end_to_a_pause() -> None:
    async with berthing(NODES | {"n3": "a100-pcie-8-bridged"}) as b:
        await create_gang(b, 2)
        node = (await planned(b, "p0"))["p0"]
        rest = [name for name in (*NODES, "n3") if name != node]
        other = (await b.filter("p0", rest))["NodeNames"]
        assert len(other) == 1
        assert other[0] != node
        left = [name for name in rest if name != other[0]]
        await b.filter("p0", left)
        found = await b.filter("p0", left[:1])
        while found["NodeNames"]:
            left = [name for name in left if name not in found["NodeNames"]]
            found = await b.filter("p0", left or ["n9"])
        (text,) = set(found["FailedAndUnresolvableNodes"].values())
        assert "group job" in text
        assert not b.app.service.cache.reservations.holds


async def test_members_without_devices_belong_to_the_gang() -> None:
    async with berthing(NODES) as b:
        member(b, "launcher", gpus=0)
        member(b, "p0")
        await b.settled()
        assert await reasons(b, "launcher") == {INCOMPLETE}
        member(b, "p1")
        await b.settled()
        nodes = await planned(b, "p0", "p1")
        assert (await b.filter("launcher"))["NodeNames"] == sorted(NODES)
        assert await bind_all(b, nodes | {"launcher": "n0"}) == ["", "", ""]


async def test_no_binding_is_sent_if_the_claim_of_one_member_cannot_be_written() -> None:
    async with berthing(NODES) as b:
        await create_gang(b, 3)
        nodes = await planned(b, "p0", "p1", "p2")
        bindings = 0

        async def refuse(method: str, path: str) -> ApiError | None:
            nonlocal bindings
            bindings += path.endswith("/binding")
            refused = method == "PATCH" and path.endswith("resourceclaims/p2-gpus/status")
            return ApiError(403, "Forbidden", "no") if refused else None

        b.cluster.api.intercept = refuse
        answers = await bind_all(b, nodes)
        assert all("no pod of group job is bound: the bind of pod default/p2 failed" in answers[i] for i in range(2)), (
            answers
        )
        assert "no" in answers[2]
        assert not bindings
        assert not b.held()


async def test_a_refused_node_moves_no_member_that_kube_scheduler_has_placed() -> None:
    async with berthing(NODES | {"n3": "a100-pcie-8-bridged"}) as b:
        await create_gang(b, 3)
        nodes = await planned(b, "p0")
        waiting = asyncio.create_task(b.bind("p0", nodes["p0"]))
        await eventually(lambda: next(iter(b.app.service.gangs.forming.values())).arrived, "the first bind arrived")
        nodes |= await planned(b, "p1")  # kube-scheduler has placed this one, too, but its bind has not arrived
        refused = next(iter(b.app.service.gangs.forming.values())).planned.plan.placements[
            b.pod("p2")["metadata"]["uid"]
        ][0]
        answer = await b.filter("p2", [name for name in (*NODES, "n3") if name != refused])
        assert len(answer["NodeNames"]) == 1, answer
        nodes["p2"] = answer["NodeNames"][0]
        assert len(set(nodes.values())) == 3
        assert await bind_all(b, {name: nodes[name] for name in ("p1", "p2")}) == ["", ""]
        assert await waiting == ""


async def test_kube_scheduler_has_room_for_one_member_on_each_node() -> None:
    """As with a scarce CPU: the devices of all members fit on one node, but kube-scheduler refuses the second one."""
    machines = {f"n{i}": "a100-pcie-8-bridged" for i in range(8)}
    async with berthing(machines) as b:
        await create_gang(b, 8, gpus=1)
        nodes: dict[str, str] = {}
        for i in range(8):
            answer = await b.filter(f"p{i}", [name for name in machines if name not in nodes.values()])
            assert len(answer["NodeNames"] or ()) == 1, (i, answer)
            nodes[f"p{i}"] = answer["NodeNames"][0]
        assert set(nodes.values()) == set(machines)
        assert await bind_all(b, nodes) == [""] * 8


async def test_nodes_on_which_kube_scheduler_has_room_for_different_numbers_of_members() -> None:
    machines = {f"n{i}": "a100-pcie-8-bridged" for i in range(3)}
    async with berthing(machines) as b:
        await create_gang(b, 4, gpus=1)
        nodes: dict[str, str] = {}
        first = (await b.filter("p0"))["NodeNames"][0]
        nodes["p0"] = first  # its room is used up; the others have room for two
        for i in range(1, 4):
            left = [n for n in machines if n != first and list(nodes.values()).count(n) < 2]
            answer = await b.filter(f"p{i}", left)
            assert len(answer["NodeNames"] or ()) == 1, (i, answer)
            nodes[f"p{i}"] = answer["NodeNames"][0]
        assert await bind_all(b, nodes) == [""] * 4


async def test_the_metric_of_an_attempt_names_the_gang_as_the_reply_does() -> None:
    async with berthing({name: NODES[name] for name in ("n0", "n1")}) as b:
        for name in ("g-0", "g-1"):
            member(b, name, minimum=2)
        await planned(b, "g-0", "g-1")
        b.cluster.apply(claim("c", 1))
        b.cluster.apply(pod("single", "c"))
        text = "matching devices are held for group default/job"
        assert await reasons(b, "single") == {text}
        assert b.app.service.filter_service.unschedulable_reasons == {"HELD_FOR_GANG": 1}


async def gangs(b: Berthing) -> dict[str, float]:
    """Serve's metrics of gangs that are not 0: the name without `berth_gang`, and the code if there is one."""
    text = (await b.client.get("/metrics")).text
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {
        " ".join([sample.name.removeprefix("berth_gang"), *sample.labels.values()]): sample.value
        for sample in samples
        if sample.name.startswith("berth_gang") and sample.value
    }


async def test_the_metrics_follow_a_gang_and_count_plans_by_outcome() -> None:
    now = [0.0]
    async with berthing(NODES, clock=lambda: now[0]) as b:

        async def shows(expected: Mapping[str, float]) -> None:
            async def shown() -> bool:
                return await gangs(b) == expected

            await eventually(shown, f"the metrics are {expected}")

        await create_gang(b, 2, minimum=3)
        await reasons(b, "p0")
        await shows({"s_waiting GANG_INCOMPLETE": 1})
        member(b, "p2")
        await create_gang(b, 4, "large", prefix="q")
        await reasons(b, "q0")
        waits = {"s_not_planned_total GANG_NO_ROOM": 1, "s_waiting GANG_NO_ROOM": 1}
        await planned(b, "p0", "p1")
        await shows(waits | {"s_forming": 1, "_plans_total": 1})
        say_unschedulable(b, "p2", "0/3 nodes are available: 3 Insufficient cpu.")
        await shows(waits | {"s_waiting GANG_REFUSED": 1, "_plans_total": 1, "s_failed_total": 1})
        now[0] += 10.0
        nodes = await planned(b, "p0", "p1", "p2")
        now[0] += 2.0
        assert await bind_all(b, nodes) == ["", "", ""]
        done = {"_plans_total": 2, "s_failed_total": 1, "_bind_seconds_count": 1, "_bind_seconds_sum": 12.0}
        await shows(waits | done)
