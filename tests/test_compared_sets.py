"""The set of GPUs of each bound pod beside the one that first fit would have taken on the same node."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest
from extender.records import Bound

from extender.console import DecisionHistory
from extender.console.set_comparer import SetComparer
from extender.diagnosis import ComparedSets
from extender.diagnosis.compared_sets import GpuSet
from extender.model import ObjectKey
from extender.scheduling import Decision, ScoredNode
from tests.eventually import eventually
from tests.running_berth import Berthing, berthing, claim, pod

pytestmark = pytest.mark.loopback

PAIR = ComparedSets(("gpu-0",), (), GpuSet((0,), 0.0, False), GpuSet((0,), 0.0, False))


async def bound(b: Berthing, name: str, count: int, **annotations: str) -> ComparedSets:
    b.cluster.apply(claim(name, count))
    b.cluster.apply(pod(name, name, annotations=annotations))
    await b.settled()
    node = (await b.filter(name))["NodeNames"][0]
    assert await b.bind(name, node) == ""

    def compared() -> ComparedSets | None:
        entry = b.console.history.newest(ObjectKey("default", name))
        return entry.sets if entry is not None else None

    return await eventually(compared, f"{name} is compared")


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


async def test_claims_that_never_appear_do_not_delay_others() -> None:
    async with berthing({"n": "t4-4"}) as b:
        comparer = b.console.set_comparer
        comparer.bound(decided("default/unknown", ("gpu.nvidia.com/n/absent",)))
        sets = await bound(b, "several", 2)
        assert sets.chosen == sets.first_fit
        assert not sets.chosen.is_joined
        assert (sets.links, sets.switch) == ("", ""), "no NVLinks"


async def test_devices_of_pods_that_are_bound_later_count_as_free() -> None:
    async with berthing({"n": "dgx1-v100"}) as b:
        await bound(b, "pair", 2)
        entry, history = b.console.history.newest(ObjectKey("default", "pair")), DecisionHistory()
        assert entry is not None
        assert entry.decision is not None
        record = Bound(entry.pod, entry.uid, entry.decision)
        history.record_decision(record)
        comparer = SetComparer(b.console.cache, b.console.cluster.evaluator, history, lambda: 0.0)
        comparer.bound(record)
        await bound(b, "later", 4)
        task = asyncio.create_task(comparer.run(b.console.informers.listed, b.console.rebuilt))

        def compared() -> ComparedSets | None:
            found = history.entry(record.uid)
            return found.sets if found is not None else None

        later: ComparedSets = await eventually(compared, "pair is compared")
        task.cancel()
        assert later.busy == ()
        assert later == entry.sets


async def test_a_record_that_comes_after_the_claims_of_a_later_pod() -> None:
    """Records come in batches, so the watch of claims is often ahead: later pods once counted as there before."""
    async with berthing({"n": "a100-pcie-8-bridged"}) as b:
        first, history = await bound(b, "first", 2), DecisionHistory()
        await bound(b, "later", 2)
        comparer = SetComparer(b.console.cache, b.console.cluster.evaluator, history, lambda: 0.0)
        for name in ("first", "later"):
            entry = b.console.history.newest(ObjectKey("default", name))
            assert entry is not None
            assert entry.decision is not None
            history.record_decision(record := Bound(entry.pod, entry.uid, entry.decision))
            comparer.bound(record)
        task = asyncio.create_task(comparer.run(b.console.informers.listed, b.console.rebuilt))

        def compared() -> list[ComparedSets] | None:
            found = [history.newest(ObjectKey("default", name)) for name in ("first", "later")]
            sets = [entry.sets for entry in found if entry is not None and entry.sets is not None]
            return sets if len(sets) == len(found) else None

        both: list[ComparedSets] = await eventually(compared, "both are compared")
        task.cancel()
        assert both[0] == first
        assert both[0].busy == ()
        assert both[1].busy == first.chosen.gpus


def decided(name: str, devices: tuple[str, ...]) -> Bound:
    chosen = ScoredNode("n", 1.0, devices, 0.0, 0.0, "", ())
    return Bound(ObjectKey(*name.split("/")), name, Decision("", chosen))


async def test_decisions_beyond_the_queue_are_left_out() -> None:
    async with berthing({"n": "t4-4"}) as b:
        console = b.console
        comparer = SetComparer(console.cache, console.cluster.evaluator, console.history, lambda: 0.0, waiting=2)
        for number in range(5):
            comparer.bound(decided(f"x/{number}", ("gpu.nvidia.com/n/gpu-0",)))
        comparer.bound(decided("x/none", ()))
        assert comparer.left_out == 3


async def test_the_devices_of_later_pods_take_little_memory() -> None:
    """500 forged decisions of one node, 1,024 devices each, once took 4 GB: each earlier decision copied them."""
    async with berthing({"n": "t4-4"}) as b:
        console = b.console
        comparer = SetComparer(console.cache, console.cluster.evaluator, console.history, lambda: 0.0, waiting=16)
        devices = [tuple(f"gpu.nvidia.com/n/{number}-{i}" for i in range(100)) for number in range(200)]
        records = [decided(f"x/{number}", names) for number, names in enumerate(devices)]
        tracemalloc.start()
        for record in records:
            comparer.bound(record)
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert taken < 16 * 16 * 100, "not the texts, and no entry for each device"


def test_a_comparison_counts_in_the_size_of_the_history() -> None:
    history = DecisionHistory(limit_bytes=100_000)
    for number in range(200):
        history.record_decision(decided(f"x/{number}", ()))
        history.record_sets(f"x/{number}", PAIR)
        history.record_sets("dropped", PAIR)
    kept = history.recent(999)
    assert sum(entry.size for entry in kept) <= 100_000
    assert all(entry.sets == PAIR for entry in kept)
    assert 10 < len(kept) < 50
