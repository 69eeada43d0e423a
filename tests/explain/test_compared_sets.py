"""The set of GPUs of each bound pod beside the one that first fit would have taken on the same node."""

from __future__ import annotations

import pytest

from extender.api.object_meta import ObjectKey
from extender.cluster import Writer
from extender.console import ComparedSets, DecisionHistory
from extender.console.decision_history import DecisionReader, SetComparer
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
    """The watch of claims may be ahead of the reads: later pods once counted as there before."""
    async with berthing({"n": "a100-pcie-8-bridged"}) as b:
        console, history = b.console, DecisionHistory()
        comparer = SetComparer(console.cache, console.cluster.evaluator, history, console.refreshed, lambda: 0.0)
        reader = DecisionReader(
            console.cache, history, console.jobs, comparer, Writer(console.client).read_pod, console.refreshed
        )
        pods = {}
        for name in ("first", "later"):
            await b.create(claim(name, 2), pod(name, name))
            pods[name] = await eventually(
                lambda name=name: console.explainer.waiting_pod(ObjectKey("default", name)), name
            )
            assert await b.bind(name, (await b.filter(name))["NodeNames"][0]) == ""
            await decided(b, name)
        for one in pods.values():
            reader.pod_changed(one, None)
        for run in (reader.run, comparer.run):
            b.app.service.supervisor.start(run.__qualname__, run)

        def sets() -> list[ComparedSets]:
            return [entry.sets for one in pods.values() if (entry := history.entry(one.uid)) and entry.sets]

        await eventually(lambda: len(sets()) == 2, "both are compared")
        first, later = sets()
        assert first.busy == ()
        assert later.busy == first.chosen.gpus
