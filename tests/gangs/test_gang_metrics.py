"""The metrics of gangs, from an incomplete gang to a bound one, and after a plan that failed."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from tests.worlds.eventually import eventually
from tests.worlds.gang_pods import NODES, bind_all, create_gang, member, planned, reasons, say_unschedulable
from tests.worlds.running_berth import Berthing, berthing


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
