"""Chaos with gangs: Berth is killed at every write of a gang's binds; the gang then runs whole, or holds nothing."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

from extender.sandbox import Cluster, Scheduler
from extender.sandbox.apiserver.registry import RESOURCES
from tests.chaos_world import Berths, Faults, chaotic, settled
from tests.eventually import eventually
from tests.process_worlds import free_port
from tests.running_berth import claim, pod

Json = dict[str, Any]
SIZE = 3
NODES = {f"n{i}": "t4-4" for i in range(5)}  # room for one gang of three whole nodes, not for two
WRITES = 3 * SIZE  # finalizer and status of each claim, and each Binding


def apply_gang(cluster: Cluster, group: str, gpus: int = 4) -> None:
    notes = {"berth.dev/group": group, "berth.dev/group-min": str(SIZE)}
    for i in range(SIZE):
        cluster.apply(claim(f"{group}-{i}", gpus))
        cluster.apply(pod(f"{group}-{i}", f"{group}-{i}", annotations=notes))


def remove_gang(cluster: Cluster, group: str) -> None:
    """The pods end, and their claims go with them."""
    for i in range(SIZE):
        cluster.api.registry.delete(RESOURCES["", "pods"], ("default", f"{group}-{i}"))
        if cluster.store.get("resourceclaims", ("default", f"{group}-{i}")) is not None:
            cluster.store.remove("resourceclaims", ("default", f"{group}-{i}"))


def bound(cluster: Cluster) -> Counter[str]:
    """Number of bound pods by group."""
    pods = [p for p in cluster.store.all("pods") if p["spec"].get("nodeName")]
    return Counter(p["metadata"]["annotations"]["berth.dev/group"] for p in pods)


def allocated(cluster: Cluster) -> Counter[str]:
    """Number of allocated claims by group."""
    claims = [c for c in cluster.store.all("resourceclaims") if (c.get("status") or {}).get("allocation")]
    return Counter(c["metadata"]["name"].rpartition("-")[0] for c in claims)


POINTS = tuple((when, write) for when in ("before", "after") for write in range(WRITES))


async def gang_killed_at_writes(
    seed: int, times: int = 1, points: Iterable[tuple[str, int]] = POINTS
) -> dict[str, int]:
    """Berth is killed before or after writes of a gang; after its restart the whole gang is bound."""
    done: Counter[str] = Counter()
    async with chaotic(seed, NODES) as (cluster, faults, berths):
        port = free_port()
        await berths.start(port)
        task = asyncio.create_task(Scheduler(cluster.store, f"http://127.0.0.1:{port}", seed=seed).run())
        try:
            for turn in range(times):
                for when, write in points:
                    await _one_kill(cluster, faults, berths, port, f"g{turn}{when}{write}", when, write)
                    done[f"{when} write {write}"] += 1
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    return dict(done)


async def _one_kill(
    cluster: Cluster, faults: Faults, berths: Berths, port: int, name: str, when: str, write: int
) -> None:
    seen = 0

    def kill(at: str, _: str, path: str) -> bool:
        nonlocal seen
        if "/resourceclaims/" not in path and not path.endswith("/binding"):
            return False
        seen += at == when
        if at == when and seen == write + 1:
            berths.kill(port)
            return True
        return False

    faults.on_write = kill
    before = berths.kills
    apply_gang(cluster, name)
    await eventually(lambda: berths.kills > before, f"{name}: the write point is reached")
    faults.on_write = lambda *_: False
    await berths.start(port)
    wrong = await settled(cluster)
    assert not wrong, f"{name}: {wrong}"
    assert bound(cluster)[name] == SIZE
    remove_gang(cluster, name)


async def two_gangs_and_kills(seed: int, rounds: int) -> dict[str, int]:
    """Two gangs compete for a fleet with room for one, and Berth is killed at a random write: never two halves."""
    rng, kills = random.Random(seed), 0
    async with chaotic(seed, NODES) as (cluster, faults, berths):
        port = free_port()
        await berths.start(port)
        task = asyncio.create_task(Scheduler(cluster.store, f"http://127.0.0.1:{port}", seed=seed).run())
        try:
            for turn in range(rounds):
                left, groups = rng.randrange(1, WRITES), (f"a{turn}", f"b{turn}")

                def kill(at: str, _: str, path: str) -> bool:
                    nonlocal left
                    if at == "before" and ("/resourceclaims/" in path or path.endswith("/binding")):
                        left -= 1
                        if not left:
                            berths.kill(port)
                            return True
                    return False

                faults.on_write = kill
                before = berths.kills
                for group in groups:
                    apply_gang(cluster, group)
                await eventually(lambda before=before: berths.kills > before, "the write point is reached")
                faults.on_write = lambda *_: False
                kills += 1
                await berths.start(port)
                await eventually(lambda: SIZE in bound(cluster).values(), "one gang runs whole")
                (first,) = (group for group in groups if bound(cluster)[group] == SIZE)
                second = next(group for group in groups if group != first)
                assert not bound(cluster)[second]
                await eventually(lambda second=second: not allocated(cluster)[second], "the waiting gang holds nothing")
                remove_gang(cluster, first)
                await eventually(lambda second=second: bound(cluster)[second] == SIZE, "then the other one runs")
                wrong = await settled(cluster)
                assert not wrong, wrong
                remove_gang(cluster, second)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    return {"rounds": rounds, "kills": kills}
