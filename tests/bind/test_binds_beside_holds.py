"""A bind and the holds of other pods: a plan keeps its devices, and the node of an own hold goes to whom it helps."""

from __future__ import annotations

import pytest

from tests.worlds.eventually import eventually
from tests.worlds.gang_pods import NODES, bind_all, member, planned
from tests.worlds.running_berth import berthing, jobs, one_node

pytestmark = pytest.mark.loopback


async def test_a_bind_on_a_node_of_a_plan_takes_no_devices_of_the_gang() -> None:
    """kube-scheduler chose the node by an older answer of another Berth process."""
    async with berthing(NODES) as b:
        for i in range(3):
            member(b, f"p{i}")
        await b.create(*jobs(alone=8))
        nodes = await planned(b, "p0", "p1", "p2")
        assert await b.bind("alone", nodes["p0"])
        assert not b.held()
        assert await bind_all(b, nodes) == ["", "", ""]


async def test_a_bind_on_another_node_than_that_of_the_hold_wakes_a_pod_that_the_hold_kept_out() -> None:
    async with berthing({"n1": "t4-4", "n2": "t4-4"}) as b:
        await b.create(*jobs(p=4, waits=4))
        held, other = (await b.filter("p"))["NodeNames"]
        assert not (await b.filter("waits", [held]))["NodeNames"]
        touches = b.app.service.requeuer.touches
        assert await b.bind("p", other) == ""
        await eventually(lambda: b.app.service.requeuer.touches > touches, "the rejected pod is requeued")
        assert (await b.filter("waits"))["NodeNames"] == [held]


async def test_a_bind_that_finds_no_room_without_the_holds_of_others_ends_none() -> None:
    """Another replica has bound a pod to the node that kube-scheduler chose."""
    async with one_node(*jobs(bound=2, holds=2, large=3)) as b:
        assert await b.bind("bound", "n1") == ""
        assert (await b.filter("holds"))["NodeNames"] == ["n1"]
        reservations = b.app.service.cache.reservations.by_claim
        (held,) = reservations.values()
        assert "node n1" in await b.bind("large", "n1")
        assert [one is held for one in reservations.values()] == [True], "it neither ended nor began again"
        assert not (await b.filter("large"))["NodeNames"], "the devices are held again"
        assert await b.bind("holds", "n1") == ""


async def test_a_bind_that_has_room_without_the_holds_of_others_ends_them() -> None:
    async with one_node(*jobs(holds=2, large=3)) as b:
        assert (await b.filter("holds"))["NodeNames"] == ["n1"]
        assert await b.bind("large", "n1") == ""
        assert not b.app.service.cache.reservations.holds
