"""Many shapes of waiting pods: how long the requeuer blocks the event loop, and the time of a filter.

Few shapes are measured for comparison, in the same process and without HTTP. All times are CPU time, so the load of the
machine changes them little.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import time

from benchmarks.fleet import Fleet
from extender.api.pods import Pod
from extender.runtime.informers import CacheRefresh
from extender.serve.evaluations import Evaluations
from extender.serve.wake import Requeuer

FEW_SHAPES = 4


class _Writer:
    async def touch_class(self, name: str, annotation: str, value: str) -> None:
        pass


def _raise(_: str, bug: Exception) -> None:
    raise bug


def waiting(fleet: Fleet, shapes: int, pods: int) -> None:
    """Pods that fit on no node: each shape asks for all GPUs of a node whose every GPU may be held."""
    for number in range(pods):
        shape = number % shapes
        answer = fleet.filter(fleet.pod(f"waits-{number}", shape, 9 + shape % 4))
        assert not answer.passed, answer


async def longest_stretch(fleet: Fleet, events: int, gap: float) -> float:
    """The longest CPU milliseconds between two turns of the loop, with one node event each `gap` seconds."""
    service, evaluations = fleet.filter_service, Evaluations(time.monotonic)
    requeuer = Requeuer(_Writer(), evaluations, pause=gap)  # type: ignore[arg-type]  # a fake
    search, refreshed = fleet.queueing_hints.find_schedulable, CacheRefresh(fleet.cache).wait
    tasks = [
        asyncio.create_task(requeuer.run(lambda: service.unschedulable.namespaces, search)),
        asyncio.create_task(evaluations.run(refreshed, _raise)),
    ]
    nodes, longest, ends = list(fleet.devices), 0.0, 0.0
    for event in range(events):
        # A filter request would also pay for the event and for the new snapshot, so the stretch begins after them.
        node = nodes[event % len(nodes)]
        fleet.touch_node(node, {"event": str(event)})
        fleet.hold(-1 - event, node, fleet.devices[node][event % 2 :: 2])
        fleet.cache.snapshot()
        requeuer.supply_changed()
        ends = time.monotonic() + gap
        before = time.thread_time()
        while time.monotonic() < ends:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, before = max(longest, now - before), now
    for task in tasks:
        task.cancel()
    return 1000 * longest


def filter_us(fleet: Fleet, pods: list[Pod], rounds: int) -> float:
    """Median CPU microseconds of a filter, the pods in turn."""
    names, took = list(fleet.devices), []
    for number in range(rounds + 1):
        for pod in pods:
            begin = time.thread_time_ns()
            fleet.filter(pod, names)
            if number:
                took.append(time.thread_time_ns() - begin)
            fleet.cache.release(pod.uid)
    return statistics.median(took) / 1000


def measure(nodes: int, shapes: int, pods: int, events: int, gap: float) -> dict[str, float]:
    """All measurements, by name."""
    fleet = Fleet("mixed")
    fleet.fill(nodes, 0.5)
    asked = [fleet.pod(f"asks-{shape}", shape, 1 + shape % 4) for shape in range(shapes)]
    few = filter_us(fleet, asked[:FEW_SHAPES], 200)
    many = filter_us(fleet, asked, 2)
    fresh = Fleet("mixed")
    fresh.fill(nodes, 0.5)
    waiting(fresh, shapes, pods)
    gc.collect()
    gc.freeze()  # as serve does once everything is listed
    longest = asyncio.run(longest_stretch(fresh, events, gap))
    sizes = {
        f"{name}_mib": one.filter_service.remembered()["ranking_bytes"] / 2**20
        for name, one in (("asked", fleet), ("waiting", fresh))
    }
    return {"few_us": few, "many_us": many, "stretch_ms": longest, **sizes}


def show(found: dict[str, float], nodes: int, shapes: int, pods: int) -> None:
    print(
        f"\n{nodes} half-full nodes, {shapes} live shapes: a filter takes {found['many_us']:.0f} us, "
        f"{found['many_us'] / found['few_us']:.2f} times that of {FEW_SHAPES} shapes; "
        f"rankings take {found['asked_mib']:.0f} MiB"
    )
    print(
        f"{pods} waiting pods of {shapes} shapes, one node event at a time: the longest stretch of the loop is "
        f"{found['stretch_ms']:.1f} ms; rankings take {found['waiting_mib']:.0f} MiB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--shapes", type=int, default=500)
    parser.add_argument("--pods", type=int, default=4096)
    parser.add_argument("--events", type=int, default=10)
    args = parser.parse_args()
    show(measure(args.nodes, args.shapes, args.pods, args.events, 1.0), args.nodes, args.shapes, args.pods)


if __name__ == "__main__":
    main()
