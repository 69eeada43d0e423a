"""The waits of a gang's binds end with what became true, on loops whose timers end before the service's clock."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from extender.policy import Policy
from tests.worlds.gang_pods import NODES, bind_all, bind_until_bound, create_gang, planned
from tests.worlds.running_berth import berthing

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
