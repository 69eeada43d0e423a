"""Chaos: real Berth processes against the sandbox, killed and disturbed by seed; then only the objects are checked.

`make chaos` runs everything, every write point of a bind at least 20 times before and after the write.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import aiohttp

from extender.sandbox import Cluster
from extender.sandbox.apiserver.registry import RESOURCES
from tests.worlds.chaos_gangs import gang_scenarios, two_gangs_and_kills
from tests.worlds.chaos_world import Berths, Faults, chaotic, scheduler_of, settled
from tests.worlds.eventually import HANG_SECONDS, eventually, in_background
from tests.worlds.process_starter import ROOT
from tests.worlds.process_worlds import free_port
from tests.worlds.running_berth import claim, pod

Json = dict[str, Any]


async def killed_at_every_write(seed: int, times: int) -> dict[str, int]:
    """A pod with two claims: finalizer and status of each, then the Binding; killed before and after each of the
    five."""
    points = [(when, write) for when in ("before", "after") for write in range(5)]
    done: dict[str, int] = {}
    async with chaotic(seed) as (cluster, faults, berths):
        port = free_port()
        await berths.start(port)
        async with in_background(scheduler_of(cluster, port, seed).run()):
            for turn in range(times):
                for when, write in points:
                    await _one_kill(cluster, faults, berths, port, f"p-{turn}-{when}-{write}", when, write)
                    done[f"{when} write {write}"] = done.get(f"{when} write {write}", 0) + 1
    return done


async def _one_kill(
    cluster: Cluster, faults: Faults, berths: Berths, port: int, name: str, when: str, write: int
) -> None:
    seen = 0

    def kill(at: str, method: str, path: str) -> bool:
        nonlocal seen
        if "/resourceclaims/" not in path and not path.endswith("/binding"):
            return False
        seen += at == when
        if at == when and seen == write + 1:
            berths.kill(port)
            return True
        return False

    faults.on_write = kill
    for part in ("a", "b"):
        cluster.apply(claim(f"{name}-{part}"))
    cluster.apply(pod(name, f"{name}-a", f"{name}-b"))
    before = berths.kills
    await eventually(lambda: berths.kills > before, f"{name}: the write point is reached")
    faults.on_write = lambda *_: False
    await berths.start(port)
    wrong = await settled(cluster)
    assert not wrong, f"{name}: {wrong}"
    _remove(cluster, name)


def _remove(cluster: Cluster, name: str) -> None:
    """End the pod; its claims are released and deleted."""
    registry = cluster.api.registry
    registry.delete(RESOURCES["", "pods"], ("default", name))
    for part in ("a", "b"):
        key = ("default", f"{name}-{part}")
        if cluster.store.get("resourceclaims", key) is not None:
            cluster.store.remove("resourceclaims", key)


async def two_replicas(seed: int, pods: int, attempts: int, *, jumps: bool = False) -> dict[str, int]:
    """Both active at once on the same few devices, with late events, cut watches, conflicts and rejected writes;
    perhaps under wall clocks that jump by up to a day."""
    rng = random.Random(seed)
    async with chaotic(seed) as (cluster, faults, berths):
        ports = [free_port(), free_port()]
        for port in ports:
            await berths.start(port, jumps=jumps)
        faults.delay, faults.conflicts, faults.rejections = 0.05, 0.1, 0.05
        for i in range(pods):
            _apply_some_pod(cluster, i, rng.choice((1, 1, 2, 4)))
        counts = await _drive(cluster, ports, rng, attempts=attempts, cuts=0.03)
        faults.delay = faults.conflicts = faults.rejections = 0.0
        wrong = await settled(cluster, satisfiable=False)
        assert not wrong, wrong
        assert counts["bound"], "nothing was bound at all"
    return counts


def _boards(pods: int) -> dict[str, str]:
    """Nodes with a GPU for each of so many pods."""
    return {f"n{i}": "hgx-h100-8" for i in range(-(-pods // 8))}


def _apply_pods(cluster: Cluster, numbers: Iterable[int]) -> None:
    """Pods with a claim for a GPU each."""
    for i in numbers:
        cluster.apply(claim(f"c{i}"))
        cluster.apply(pod(f"p{i}", f"c{i}"))


def _apply_some_pod(cluster: Cluster, number: int, count: int) -> None:
    """A pod with a claim of its own; every fourth asks for extended resources, and the one after it shares a claim."""
    if number % 4 == 3:
        asked = {"nvidia.com/gpu": str(count)}
        resources = {"limits": asked, "requests": asked}
        cluster.apply(pod(f"p{number}", containers=[{"name": "main", "image": "pause", "resources": resources}]))
    elif number % 4 == 0 and number:
        cluster.apply(pod(f"p{number}", f"c{number - 2}"))
    else:
        cluster.apply(claim(f"c{number}", count))
        cluster.apply(pod(f"p{number}", f"c{number}"))


async def _drive(
    cluster: Cluster, ports: list[int], rng: random.Random, *, attempts: int = 100_000, cuts: float = 0.0
) -> dict[str, int]:
    """Eight independent schedulers, each of which filters with one replica and may bind with the other, until no pod
    waits or they have made so many attempts together. `cuts` is the share of attempts at which all watches are cut.
    """
    counts, left = {"bound": 0, "refused": 0, "errors": 0}, iter(range(attempts))
    names = [n["metadata"]["name"] for n in cluster.store.all("nodes")]
    async with aiohttp.ClientSession() as session:

        async def call(verb: str, body: Json) -> Json:
            url, limit = f"http://127.0.0.1:{rng.choice(ports)}/{verb}", aiohttp.ClientTimeout(total=HANG_SECONDS)
            async with session.post(url, json=body, timeout=limit) as reply:
                return await reply.json()

        async def worker() -> None:
            for _ in left:
                if rng.random() < cuts:
                    cluster.store.cut_watches()
                waiting = [p for p in cluster.store.all("pods") if not p["spec"].get("nodeName")]
                if not waiting:
                    return
                one = rng.choice(waiting)
                sent = {k: v for k, v in one.items() if k not in ("kind", "apiVersion")}
                found = (await call("filter", {"Pod": sent, "Nodes": None, "NodeNames": names})).get("NodeNames")
                if not found:
                    counts["refused"] += 1
                    await asyncio.sleep(0.1)
                    continue
                meta = one["metadata"]
                asked = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"]}
                answer = await call("bind", {**asked, "Node": rng.choice(found)})
                counts["errors" if answer.get("Error") else "bound"] += 1

        await asyncio.gather(*(worker() for _ in range(8)))
    return counts


async def stopped_replicas(seed: int, pods: int, attempts: int, seconds: tuple[float, ...]) -> dict[str, int]:
    """Both active at once, and stopped in turn for so many seconds (SIGSTOP): one goes on with what the other has
    bound, or released, meanwhile."""
    rng = random.Random(seed)
    async with chaotic(seed) as (cluster, faults, berths):
        ports = [free_port(), free_port()]
        for port in ports:
            await berths.start(port)
        faults.delay, faults.conflicts, faults.rejections = 0.05, 0.1, 0.05
        for i in range(pods):
            _apply_some_pod(cluster, i, rng.choice((1, 1, 2, 4)))
        driving = asyncio.create_task(_drive(cluster, ports, rng, attempts=attempts))
        for turn, some in enumerate(seconds):
            await asyncio.sleep(rng.uniform(0.0, 0.5))
            await berths.pause(ports[turn % 2], some)
        counts = await driving
        faults.delay = faults.conflicts = faults.rejections = 0.0
        wrong = await settled(cluster, satisfiable=False)
        assert not wrong, wrong
        assert counts["bound"], "nothing was bound at all"
    return {**counts, "stopped": berths.pauses}


async def bind_storm(seed: int, pods: int) -> dict[str, int]:
    """Many pods at once through one scheduler, conflicts among the writes; every one that fits is bound."""
    async with chaotic(seed, _boards(pods)) as (cluster, faults, berths):
        port = free_port()
        await berths.start(port)
        faults.conflicts = 0.05
        _apply_pods(cluster, range(pods))
        async with in_background(scheduler_of(cluster, port, seed).run()):
            wrong = await settled(cluster)
        assert not wrong, wrong[:5]
    return {"bound": pods}


async def rolling_update(seed: int, pods: int, old: Path = ROOT) -> dict[str, int]:
    """Upgrade and roll back under load: the new process works beside the old one, then the old one gets SIGTERM, and
    the other way round. `old` is the checkout of the version before.
    """
    rng = random.Random(seed)
    async with chaotic(seed, _boards(pods)) as (cluster, faults, berths):
        first, second = free_port(), free_port()
        await berths.start(first, old)
        faults.delay = 0.02
        names = iter(range(pods))

        def driven(*ports: int) -> asyncio.Task[dict[str, int]]:
            """Create a sixth of the pods, and ask these processes until all are bound."""
            _apply_pods(cluster, itertools.islice(names, -(-pods // 6)))
            return asyncio.create_task(_drive(cluster, list(ports), rng))

        bound = 0
        for starting, ending, checkout in ((second, first, None), (first, second, old)):
            beside = driven(ending)
            await berths.start(starting, checkout)
            bound += (await beside)["bound"] + (await driven(starting, ending))["bound"]
            leaving = driven(starting)
            await berths.end(ending)
            bound += (await leaving)["bound"]
        wrong = await settled(cluster)
        assert not wrong, wrong[:5]
    return {"bound": bound}


async def console_killed(seed: int, pods: int, times: int) -> dict[str, int]:
    """The console is killed and started again while two replicas bind: every pod is bound all the same, and the last
    console is ready."""
    async with chaotic(seed, _boards(pods)) as (cluster, _, berths):
        ports, console = [free_port(), free_port()], free_port()
        await berths.start_console(console)
        for port in ports:
            await berths.start(port)
        for turn in range(times):
            _apply_pods(cluster, range(turn * pods // times, (turn + 1) * pods // times))
            driving = asyncio.create_task(_drive(cluster, ports, random.Random(seed + turn)))
            berths.kill(console)
            await driving
            await berths.start_console(console)
        wrong = await settled(cluster)
        assert not wrong, wrong[:5]
    return {"bound": pods, "consoles killed": times}  # the filter service has seen all of them


async def outages(seed: int, pods: int, times: int) -> dict[str, int]:
    """The API server goes away again and again while pods are bound."""
    async with chaotic(seed, _boards(pods)) as (cluster, faults, berths):
        port = free_port()
        await berths.start(port)
        async with in_background(scheduler_of(cluster, port, seed).run()):
            for turn in range(times):
                _apply_pods(cluster, range(turn * pods // times, (turn + 1) * pods // times))
                written = faults.writes
                await eventually(lambda written=written: faults.writes > written, "a bind has begun")
                faults.down = True
                cluster.store.cut_watches()
                turned_away = faults.turned_away
                await eventually(lambda before=turned_away: faults.turned_away > before + 2, "Berth has met the outage")
                faults.down = False
            wrong = await settled(cluster)
        assert not wrong, wrong[:5]
    return {"bound": pods, "outages": times}


async def many_pending(pods: int) -> dict[str, int]:
    """Pods that fit nowhere, each rejected and gone, in two waves: the second finds the memory that the first left."""
    async with chaotic(1) as (cluster, _, berths):
        port = free_port()
        await berths.start(port)
        names = [n["metadata"]["name"] for n in cluster.store.all("nodes")]
        grown = [berths.memory_mib(port)]
        async with aiohttp.ClientSession() as session:

            async def all_seen() -> bool:
                async with session.get(f"http://127.0.0.1:{port}/metrics") as reply:
                    lines = (await reply.text()).splitlines()
                known = next(float(line.split()[1]) for line in lines if line.startswith("berth_claims "))
                return known == len(cluster.store.all("resourceclaims"))

            for wave in range(2):
                for i in range(pods):
                    cluster.apply(claim(f"c{wave}-{i}", 9))
                    cluster.apply(pod(f"p{wave}-{i}", f"c{wave}-{i}"))
                    if i % 500 == 0:  # or so many changes at once that the watches are cut
                        await eventually(all_seen, "Berth knows all claims")
                for one in cluster.store.all("pods"):
                    sent = {k: v for k, v in one.items() if k not in ("kind", "apiVersion")}

                    async def filter_reply(sent: Json = sent) -> Json | None:
                        async with session.post(
                            f"http://127.0.0.1:{port}/filter", json={"Pod": sent, "Nodes": None, "NodeNames": names}
                        ) as reply:
                            found = await reply.json()
                        return None if found["Error"] else found

                    answer = await eventually(filter_reply, "a filter without an error")
                    assert not answer["NodeNames"], answer
                    assert len(answer["FailedAndUnresolvableNodes"]) == len(names), answer
                grown.append(berths.memory_mib(port))
                for one in cluster.store.all("pods"):
                    key = (one["metadata"]["namespace"], one["metadata"]["name"])
                    cluster.api.registry.delete(RESOURCES["", "pods"], key)
                    cluster.store.remove("resourceclaims", (key[0], "c" + key[1][1:]))
        start, first, second = (round(value) for value in grown)
        assert second - first < max(20, (first - start) // 4), f"memory grows: {start}, {first}, {second} MiB"
    return {"pods": pods, "MiB at start": start, "MiB after the first wave": first, "MiB after the second": second}


async def everything(seed: int, times: int, old: Path) -> None:
    start = time.monotonic()
    for name, scenario in (
        ("killed at every write point", killed_at_every_write(seed, times)),
        *((f"two replicas, seed {s}", two_replicas(s, 16, 3000)) for s in range(seed, seed + 5)),
        *(
            (f"two replicas, clocks jump, seed {s}", two_replicas(s, 16, 3000, jumps=True))
            for s in range(seed, seed + 3)
        ),
        *(
            (f"two replicas, stopped in turn, seed {s}", stopped_replicas(s, 16, 3000, (2.0, 8.0, 20.0, 5.0)))
            for s in range(seed, seed + 3)
        ),
        *gang_scenarios(seed, max(times // 4, 1)),
        ("two gangs compete under kills", two_gangs_and_kills(seed, times)),
        ("bind storm", bind_storm(seed, 1000)),
        ("rolling update and back", rolling_update(seed, 400, old)),
        ("the console killed", console_killed(seed, 200, 20)),
        ("outages of the API server", outages(seed, 200, 20)),
        ("pods that fit nowhere", many_pending(10_000)),
    ):
        print(f"{name}: {await scenario}  ({time.monotonic() - start:.0f} s)", flush=True)
    print("0 devices held twice, 0 pods bound without devices, 0 leaked allocations, every satisfiable pod bound")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--old", type=Path, default=ROOT, help="checkout of the version before, for the rolling update")
    options = parser.parse_args()
    asyncio.run(everything(options.seed, options.times, options.old.resolve()))
