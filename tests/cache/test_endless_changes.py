"""Background tasks make progress while nodes change faster than Berth builds them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from extender.policy import Policy
from extender.sandbox import carried_machines
from tests.worlds.cache_worlds import shared_slice
from tests.worlds.eventually import eventually
from tests.worlds.running_berth import Berthing, berthing, claim, pod

NODES = {f"n{number}": "t4-4" for number in range(100)}


@asynccontextmanager
async def ever_new_slices(b: Berthing) -> AsyncIterator[None]:
    """Each turn of the event loop, a driver publishes another slice for all nodes."""
    service = b.app.service

    async def publish() -> None:
        while True:
            shared_slice(service.cache)
            service.requeuer.supply_changed()
            await asyncio.sleep(0)

    task = asyncio.create_task(publish())
    try:
        yield
    finally:
        task.cancel()


async def test_a_pod_is_requeued() -> None:
    async with berthing(NODES) as b:
        await b.create(claim("big", 8), pod("big", "big"))
        assert not (await b.filter("big"))["NodeNames"]
        requeuer = b.app.service.requeuer
        async with ever_new_slices(b):
            touches = requeuer.touches
            b.cluster.add_node("large", carried_machines()["a100-pcie-8-bridged"])
            await eventually(lambda: requeuer.touches > touches, "the pod is requeued")


async def test_an_unfinished_evaluation_goes_on() -> None:
    async with berthing(NODES, Policy(evaluation_seconds=0.005)) as b:
        forty = f"[{','.join('1' * 40)}]"
        texts = [f'device.driver != "{number}" && {forty}.all(a, {forty}.all(b, a <= b))' for number in range(4)]
        b.cluster.apply(claim("costly", selectors=[{"cel": {"expression": text}} for text in texts]))
        b.cluster.apply(pod("costly", "costly"))
        await b.settled()
        filter_service = b.app.service.filter_service
        assert "within one call" in (await b.filter_once("costly", list(NODES)))["Error"]
        assert filter_service.evaluations.waiting == 1
        async with ever_new_slices(b):
            await eventually(lambda: not filter_service.evaluations.waiting, "its evaluation is finished")
