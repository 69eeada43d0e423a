"""The set of GPUs of each bound pod beside the one that first fit would have taken on the same node."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from extender.api.object_meta import ObjectKey
from extender.api.resource_claims import Allocation, Claim, Consumer, Result
from extender.api.resource_slices import DeviceId
from extender.console import DecisionHistory
from extender.console.decision_history import DecidedPod, SetComparer
from extender.explain import ComparedSets
from extender.scheduling.decision import Decision, ScoredNode
from tests.worlds.eventually import eventually
from tests.worlds.explain_worlds import decided
from tests.worlds.running_berth import Berthing, berthing, claim, pod

pytestmark = pytest.mark.loopback


async def bound(b: Berthing, name: str, count: int, **annotations: str) -> ComparedSets:
    await b.create(claim(name, count), pod(name, name, annotations=annotations))
    node = (await b.filter(name))["NodeNames"][0]
    assert await b.bind(name, node) == ""

    entry = await decided(b, name)
    return await eventually(lambda: entry.sets, f"{name} is compared")


def comparing(b: Berthing, history: DecisionHistory) -> SetComparer:
    console = b.console
    return SetComparer(console.cache, console.cluster.evaluator, history, console.refreshed, lambda: 0.0)


def claims_of(b: Berthing, entry: DecidedPod) -> list[Claim]:
    return [claim for claim in b.console.cache.snapshot().claims.values() if claim.is_reserved_for(entry.uid)]


async def test_first_fit_takes_the_first_devices_of_the_node() -> None:
    async with berthing({"n": "a100-pcie-8-bridged"}) as b:
        first = await bound(b, "first", 1)
        assert first.chosen.gpus == first.first_fit.gpus == (first.chosen.gpus[0],)
        sets = await bound(b, "pair", 2)
        assert sets.names == tuple(f"gpu-{i}" for i in range(8))
        assert sets.busy == first.chosen.gpus, "the GPUs of others, but not of the pod"
        free = [i for i in range(8) if i not in sets.busy]
        assert sets.first_fit.gpus == tuple(free[:2])
        assert sets.chosen.is_joined
        assert sets.chosen.gbps >= sets.first_fit.gbps > 0
        assert len(sets.links) == 8 * 7 // 2
        answer = (await b.client.get("/v1/explain/default/pair")).json()
        decision = (await b.client.get("/v1/fleet")).json()["decisions"][0]
        assert answer["sets"] == decision["sets"]
        assert decision["sets"]["chosen"]["gpus"] == list(sets.chosen.gpus)


async def test_sets_tell_whether_the_pod_is_in_a_group() -> None:
    async with berthing({"n": "t4-4"}) as b:
        assert not (await bound(b, "alone", 2)).in_group
        assert (await bound(b, "member", 2, **{"berth.dev/group": "g"})).in_group


async def test_devices_of_pods_that_are_bound_later_count_as_free() -> None:
    async with berthing({"n": "dgx1-v100"}) as b:
        await bound(b, "pair", 2)
        first, history = await decided(b, "pair"), DecisionHistory()
        history.record_decision(first.pod, first.uid, first.decision)
        entry = history.entry(first.uid)
        assert entry is not None
        comparer = comparing(b, history)
        comparer.bound(entry, claims_of(b, entry))
        await bound(b, "later", 4)
        task = asyncio.create_task(comparer.run())
        later: ComparedSets = await eventually(lambda: entry.sets, "pair is compared")
        task.cancel()
        assert later.busy == ()
        assert later == first.sets


async def test_a_decision_that_is_read_after_the_claims_of_a_later_pod() -> None:
    """The watch of claims may be ahead of the reads: later pods once counted as there before."""
    async with berthing({"n": "a100-pcie-8-bridged"}) as b:
        first, history = await bound(b, "first", 2), DecisionHistory()
        await bound(b, "later", 2)
        comparer = comparing(b, history)
        entries = list[DecidedPod]()
        for name in ("first", "later"):
            known = await decided(b, name)
            history.record_decision(known.pod, known.uid, known.decision)
            entry = history.entry(known.uid)
            assert entry is not None
            entries.append(entry)
            comparer.bound(entry, claims_of(b, entry))
        task = asyncio.create_task(comparer.run())
        await eventually(lambda: all(entry.sets for entry in entries), "both are compared")
        task.cancel()
        both: list[Any] = [entry.sets for entry in entries]
        assert both[0] == first
        assert both[0].busy == ()
        assert both[1].busy == first.chosen.gpus


KEY = ObjectKey("x", "p")


def claim_of(uid: str) -> Claim:
    allocation = Allocation((Result("gpu", DeviceId("gpu.nvidia.com", "n", "gpu-0")),))
    return Claim(KEY, uid, "1", allocation=allocation, reserved_for=(Consumer(uid, "p"),))


async def test_decisions_beyond_the_queue_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.console.decision_history._MAX_COMPARED", 2)
    async with berthing({"n": "t4-4"}) as b:
        comparer = comparing(b, DecisionHistory())
        for number in range(5):
            chosen = ScoredNode("n", 1.0, ("gpu.nvidia.com/n/gpu-0",), 0.0, 0.0, "", ())
            comparer.bound(DecidedPod(KEY, f"u{number}", Decision("", chosen)), [claim_of(f"u{number}")])
        assert comparer.left_out == 3
