"""A candidate policy beside the active one: other choices, pods that cannot be compared, and the bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from extender.cluster import ApiClient, Credentials, Writer
from extender.console.shadow_policy import ShadowPolicy
from extender.model import ObjectKey
from extender.policy import Policy, load_policy
from extender.records import Bound
from extender.scheduling import Decision, ScoredNode
from tests.eventually import eventually
from tests.running_berth import Berthing, berthing, claim, pod

PACK = load_policy("packing: pack\nweights: {packing: 50}")
SPREAD = load_policy("packing: spread\nweights: {packing: 50}")


async def listed() -> None:
    """Return at once, as if all kinds were listed."""


async def place(b: Berthing, name: str) -> Bound:
    """Bind a pod and return its record."""
    b.cluster.apply(claim(name))
    b.cluster.apply(pod(name, name))
    await b.settled()
    assert await b.bind(name, (await b.filter(name))["NodeNames"][0]) == ""
    await b.settled()
    key = ObjectKey("default", name)

    def decided() -> Decision | None:
        entry = b.console.history.newest(key)
        return entry.decision if entry is not None else None

    return Bound(key, b.pod(name)["metadata"]["uid"], await eventually(decided, f"the decision on {name}"))


@asynccontextmanager
async def shadowing(b: Berthing, **bounds: Any) -> AsyncIterator[ShadowPolicy]:
    """A shadow beside that of the console, with these bounds, that compares PACK with SPREAD."""
    async with ApiClient(Credentials(b.api, None, lambda: None)) as client:
        observed = b.console.cluster
        shadow = ShadowPolicy(
            observed.cache, observed.evaluator, b.console.policy, Writer(client, "test").read_pod, **bounds
        )
        shadow.use_policy(SPREAD)
        running = asyncio.create_task(shadow.run(listed, b.console.rebuilt))
        try:
            yield shadow
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def compared(shadow: ShadowPolicy, record: Bound) -> None:
    """Give the record of a bound pod to the shadow, and wait for the comparison."""
    before = len(shadow.comparisons()), shadow.left_out
    shadow.bound(record)
    await eventually(lambda: (len(shadow.comparisons()), shadow.left_out) != before, "a comparison")


async def test_a_candidate_that_differs_and_one_that_does_not() -> None:
    async with berthing({"n1": "t4-4", "n2": "t4-4"}, PACK) as b, shadowing(b) as shadow:
        await compared(shadow, await place(b, "first"))
        await compared(shadow, await place(b, "second"))
        second, first = shadow.comparisons()
        assert (first.pod, first.differs) == ("default/first", False), "on an empty fleet both take the first node"
        assert second.pod == "default/second"
        assert second.differs
        assert second.candidate is not None
        assert second.active.node == b.node_of("second") == b.node_of("first") != second.candidate.node
        assert shadow.left_out == 0


async def test_attempts_that_are_not_reproduced_are_left_out() -> None:
    """Serve chose with another view of the cluster than the console's, or the pod is deleted, or another pod has its
    name.
    """
    async with berthing({"n1": "t4-4", "n2": "t4-4"}, PACK) as b, shadowing(b) as shadow:
        record = await place(b, "p")
        chosen = ScoredNode(
            "n2" if b.node_of("p") == "n1" else "n1", 1.0, record.decision.chosen.devices, 0.0, 0.0, "", ()
        )
        await compared(shadow, Bound(record.pod, record.uid, Decision("now", chosen, "", 0.0)))
        await compared(shadow, Bound(record.pod, "another", record.decision))
        await compared(shadow, Bound(ObjectKey("default", "gone"), "gone", record.decision))
        assert shadow.left_out == 3
        assert shadow.comparisons() == []
        await compared(shadow, record)
        assert shadow.left_out == 3
        assert len(shadow.comparisons()) == 1


async def test_bounds() -> None:
    async with berthing({"n1": "t4-4"}, PACK) as b, shadowing(b, waiting=2, remembered=2) as shadow:
        records = [await place(b, name) for name in ("a", "b", "c")]
        for record in (*records, records[0]):
            shadow.bound(record)
        assert shadow.left_out == 2, "two wait, and no more"
        await eventually(lambda: len(shadow.comparisons()) == 2)
        shadow.bound(records[2])
        await eventually(lambda: shadow.comparisons()[0].pod == "default/c")
        assert [one.pod for one in shadow.comparisons()] == ["default/c", "default/b"]


async def test_without_a_candidate_nothing_is_remembered() -> None:
    async with berthing({"n1": "t4-4"}, PACK) as b, shadowing(b) as shadow:
        record = await place(b, "p")
        shadow.use_policy(None)
        shadow.bound(record)
        shadow.use_policy(Policy())
        shadow.reject_policy("packing: wrong")
        assert shadow.comparisons() == []
        assert shadow.left_out == 0
        assert shadow.problem == "packing: wrong"
        await compared(shadow, record)
        assert len(shadow.comparisons()) == 1
        assert not shadow.comparisons()[0].differs
        shadow.use_policy(SPREAD)
        assert shadow.comparisons() == [], "another candidate begins anew"
        assert shadow.problem == "", "another candidate begins anew"
