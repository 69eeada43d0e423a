"""The exit of `berth serve`: running binds come to their end, and none waits for pods that may never come."""

from __future__ import annotations

import asyncio

from extender.cluster import ApiClient, Credentials
from extender.extension import Service
from extender.model import ObjectKey
from extender.policy import Policy
from extender.sandbox import Cluster, carried_machines
from tests.eventually import HANG_SECONDS, eventually
from tests.running_berth import berthing, claim, patient, pod
from tests.test_gangs import NODES, two_binds_of_three


async def test_the_exit_of_the_service_waits_for_a_running_bind() -> None:
    cluster = Cluster()
    cluster.add_node("n1", carried_machines()["t4-4"])
    cluster.apply(claim("c"))
    uid = cluster.apply(pod("p", "c"))["metadata"]["uid"]
    writes, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_: str, path: str) -> None:
        if path.endswith("/binding"):
            writes.set()
            await go_on.wait()

    cluster.api.intercept = slow
    async with cluster.serving() as api, ApiClient(Credentials(api, None, lambda: None)) as client:
        service = Service(client, patient())
        async with service:
            await eventually(lambda: not service.informers.not_ready)
            bind = asyncio.create_task(service.bind(ObjectKey("default", "p"), uid, "n1"))
            await writes.wait()
            asyncio.get_running_loop().call_soon(go_on.set)
        await bind
    assert cluster.store["pods", ("default", "p")]["spec"]["nodeName"] == "n1"


async def test_at_the_exit_no_bind_waits_for_other_pods_of_its_group() -> None:
    async with berthing(NODES, Policy(binding_wait_seconds=600)) as b:
        _, binds = await two_binds_of_three(b)
        await b.app.service.binder.drain(HANG_SECONDS)
        for answer in await asyncio.gather(*binds):
            assert answer == "no pod of group job is bound: Berth shuts down"
