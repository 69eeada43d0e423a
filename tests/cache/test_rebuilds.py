"""A change of many nodes is computed in time slices: no call answers before all of it is computed, and tasks go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from extender.api.nodes import Taint
from extender.api.object_meta import ObjectKey
from extender.api.resource_claims import Allocation, Claim, Result
from extender.api.resource_slices import DeviceId, TaintRule
from extender.cache import ClusterCache
from extender.policy import Policy
from extender.runtime.informers import CacheRefresh
from extender.sandbox import carried_machines
from tests.worlds.cache_worlds import (
    MAX_BUILT,
    NODES,
    CountingBuilder,
    many_nodes,
    most_in_a_turn,
    shared_slice,
    slow_clock,
)
from tests.worlds.eventually import eventually
from tests.worlds.running_berth import Berthing, berthing, claim, pod


def whole_driver(cache: ClusterCache) -> None:
    cache.apply_rule("r", TaintRule("r", Taint("k", "v", "NoSchedule"), driver="gpu.nvidia.com"))


def one_device_everywhere(cache: ClusterCache) -> None:
    cache.apply_rule("r", TaintRule("r", Taint("k", "v", "NoSchedule"), device="gpu-1"))


def one_shared_device(cache: ClusterCache) -> None:
    """The rule matches one slice, but all nodes see it."""
    shared_slice(cache)
    cache.snapshot()
    cache.apply_rule("r", TaintRule("r", Taint("k", "v", "NoSchedule"), driver="net.example.com"))


def a_claim_on_each_node(cache: ClusterCache) -> None:
    """Many pods can end between two calls of kube-scheduler."""
    for number in range(NODES):
        device = DeviceId("gpu.nvidia.com", f"n{number}", "gpu-1")
        claim = Claim(ObjectKey("a", f"c{number}"), f"u{number}", "1", allocation=Allocation((Result("r", device),)))
        cache.apply_claim(claim.key, claim)


CHANGES = [shared_slice, whole_driver, one_device_everywhere, one_shared_device, a_claim_on_each_node]


@pytest.mark.parametrize("change", CHANGES)
async def test_other_tasks_run_between_time_slices(change: Callable[[ClusterCache], None]) -> None:
    """Attack: stall serve with claims of thousands of nodes that end between two calls of kube-scheduler."""
    cache = many_nodes()
    builder = CountingBuilder(cache)
    cache.snapshot()
    refresh = CacheRefresh(cache, slow_clock())
    change(cache)
    assert cache.backlog >= NODES
    began = builder.built.total()
    waiting = asyncio.gather(*(refresh.wait() for _ in range(5)))
    longest = await most_in_a_turn(builder, waiting.done)
    before = builder.built.total()
    cache.snapshot()
    assert max(longest, builder.built.total() - before) <= MAX_BUILT, "several callers do the work of one"
    assert builder.built.total() == began + NODES, "no node is built twice"


@pytest.mark.parametrize("change", CHANGES)
def test_a_snapshot_completes_what_was_begun(change: Callable[[ClusterCache], None]) -> None:
    """No snapshot has old and new nodes: whether it comes early or late, all of the change is in it."""
    for begun in range(0, 3 * NODES, 17):
        cache = many_nodes()
        version = cache.snapshot().version
        change(cache)
        if begun:
            cache.rebuild(begun)
        snapshot = cache.snapshot()
        assert len({id(info.state) for info in snapshot.node_infos.values()}) == 1
        assert sorted(snapshot.changed_since(version) or ()) == sorted(snapshot.node_infos)
        assert cache.backlog == 0


async def test_a_filter_call_right_after_a_rule_sees_it_on_all_nodes() -> None:
    async with berthing({f"n{number}": "t4-4" for number in range(30)}) as b:
        await b.create(claim("c", 1), pod("p", "c"))
        assert (await b.filter("p"))["NodeNames"]
        b.app.service.cache.apply_rule("r", TaintRule("r", Taint("k", "v", "NoSchedule"), driver="gpu.nvidia.com"))
        assert b.app.service.cache.backlog >= 30
        assert not (await b.filter("p"))["NodeNames"]


async def test_a_caller_ends_though_each_time_slice_is_followed_by_another_change() -> None:
    """A caller waits for the changes that came before it: drivers may change slices faster than nodes are built."""
    cache = many_nodes()
    builder = CountingBuilder(cache)
    cache.snapshot()
    refresh = CacheRefresh(cache, slow_clock())
    shared_slice(cache)
    calls = [asyncio.create_task(refresh.wait()) for _ in range(5)]
    began = builder.built.total()
    while not all(call.done() for call in calls) and builder.built.total() < began + 10 * NODES:
        await asyncio.sleep(0)
        shared_slice(cache)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert not any(call.cancelled() for call in calls)
    assert builder.built.total() <= began + NODES + MAX_BUILT, "callers that came together wait for the same nodes"


def test_events_alone_decide_the_order_in_which_nodes_are_built() -> None:
    """Hashes of texts differ in each process. The states of nodes have numbers in this order, and a replay's figures
    must not depend on the process."""
    cache = many_nodes()
    version = cache.snapshot().version
    results = tuple(Result("r", DeviceId("gpu.nvidia.com", f"n{number}", "gpu-1")) for number in range(NODES))
    cache.apply_claim(ObjectKey("a", "c"), Claim(ObjectKey("a", "c"), "u", "1", allocation=Allocation(results)))
    names = sorted(result.device.pool for result in results)
    assert cache.snapshot().changed_since(version) == names[::-1]


HUNDRED = {f"n{number}": "t4-4" for number in range(100)}


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
    async with berthing(HUNDRED) as b:
        await b.create(claim("big", 8), pod("big", "big"))
        assert not (await b.filter("big"))["NodeNames"]
        requeuer = b.app.service.requeuer
        async with ever_new_slices(b):
            touches = requeuer.touches
            b.cluster.add_node("large", carried_machines()["a100-pcie-8-bridged"])
            await eventually(lambda: requeuer.touches > touches, "the pod is requeued")


async def test_an_unfinished_evaluation_goes_on() -> None:
    async with berthing(HUNDRED, Policy(evaluation_seconds=0.005)) as b:
        forty = f"[{','.join('1' * 40)}]"
        texts = [f'device.driver != "{number}" && {forty}.all(a, {forty}.all(b, a <= b))' for number in range(4)]
        b.cluster.apply(claim("costly", selectors=[{"cel": {"expression": text}} for text in texts]))
        b.cluster.apply(pod("costly", "costly"))
        await b.settled()
        filter_service = b.app.service.filter_service
        assert "within one call" in (await b.filter_once("costly", list(HUNDRED)))["Error"]
        assert filter_service.evaluations.waiting == 1
        async with ever_new_slices(b):
            await eventually(lambda: not filter_service.evaluations.waiting, "its evaluation is finished")
