"""Chaos: real Berth processes against the sandbox, killed and disturbed by seed; then the objects alone are judged.

`make chaos` runs everything, every write point of a bind at least 20 times before and after the write. `judge` knows
only API objects and shares no code with Berth.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from extender.sandbox.apiserver.resources import RESOURCES
from extender.sandbox.cluster import Cluster, listening
from extender.sandbox.machines import carried_machines
from extender.sandbox.scheduler import Scheduler
from tests.berthing import claim, pod

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[1]
NODES = {"n1": "dgx1-v100", "n2": "a100-pcie-8-bridged", "n3": "t4-4"}
GRACE_SECONDS = 20.0


class Faults:
    """The API server behind this can lose replies, kill a process at a write, delay events and refuse writes."""

    def __init__(self, api: Any, seed: int) -> None:
        self._api = api
        self._random = random.Random(seed)
        self.on_write: Callable[[str, str, str], bool] = lambda when, method, path: False  # True: the reply is lost
        self.conflicts = 0.0  # share of writes that meet a newer version
        self.refusals = 0.0  # share of writes answered 429
        self.delay = 0.0  # seconds that watch events may be late
        self.cluster: Cluster | None = None

    async def __call__(self, scope: Json, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        method, path = scope["method"], scope["path"]
        if method == "GET":
            await self._api(scope, receive, self._late(send) if b"watch=" in scope["query_string"] else send)
            return
        if self._random.random() < self.refusals:
            await _refuse(send)
            return
        if self._random.random() < self.conflicts:
            self._disturb(path)
        if self.on_write("before", method, path):
            await _refuse(send)  # to nobody: who asked is dead
            return
        replies: list[Json] = []

        async def keep(message: Json) -> None:
            replies.append(message)

        await self._api(scope, receive, keep)
        if self.on_write("after", method, path):
            await _refuse(send)
            return
        for message in replies:
            await send(message)

    def _late(self, send: Any) -> Any:
        async def late(message: Json) -> None:
            if self.delay:
                await asyncio.sleep(self._random.uniform(0, self.delay))
            await send(message)

        return late

    def _disturb(self, path: str) -> None:
        """Somebody else touches the claim: its version is not the one that Berth knows."""
        assert self.cluster is not None
        parts = path.split("/")
        if "resourceclaims" in parts and len(parts) > parts.index("resourceclaims") + 1:
            key = (parts[parts.index("namespaces") + 1], parts[parts.index("resourceclaims") + 1])
            if self.cluster.store.get("resourceclaims", key) is not None:
                patch = {"metadata": {"annotations": {"disturbed": str(self._random.random())}}}
                self.cluster.api.registry.patch(RESOURCES["resource.k8s.io", "resourceclaims"], key, patch, "", strategic=False)


async def _refuse(send: Any) -> None:
    body = b'{"kind":"Status","status":"Failure","reason":"TooManyRequests","code":429,"message":"slow down"}'
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"1"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 429, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Berths:
    """Berth processes of one cluster, each on a port of its own that stays the same over its lives."""

    def __init__(self, api_url: str, folder: Path) -> None:
        self._kubeconfig = folder / "kubeconfig"
        config = {"clusters": [{"name": "c", "cluster": {"server": api_url}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                  "current-context": "c", "users": [{"name": "u", "user": {}}]}
        self._kubeconfig.write_text(yaml.safe_dump(config))
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.kills = 0

    async def start(self, port: int) -> None:
        command = [sys.executable, "-m", "extender", "serve", "--kubeconfig", str(self._kubeconfig), "--listen", f"127.0.0.1:{port}"]
        self._processes[port] = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        async with aiohttp.ClientSession() as session:
            for _ in range(400):
                try:
                    async with session.get(f"http://127.0.0.1:{port}/readyz") as reply:
                        if reply.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.05)
        raise TimeoutError("berth did not become ready")

    def kill(self, port: int) -> None:
        """SIGKILL: nothing is finished, nothing is said."""
        process = self._processes.pop(port, None)
        if process is not None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            self.kills += 1

    async def stop(self) -> None:
        """As a pod ends: the API server, which lives in this loop, still answers while writes in flight are finished."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            for _ in range(600):
                if process.poll() is not None:
                    break
                await asyncio.sleep(0.05)
            assert process.poll() == 0, f"berth ended with {process.poll()}"
        self._processes.clear()


@asynccontextmanager
async def chaotic(seed: int, nodes: dict[str, str] | None = None) -> AsyncIterator[tuple[Cluster, Faults, Berths]]:
    cluster = Cluster(bookmark_seconds=0.5)
    for name, machine in (nodes or NODES).items():
        cluster.add_node(name, carried_machines()[machine])
    faults = Faults(cluster.api, seed)
    faults.cluster = cluster
    with tempfile.TemporaryDirectory() as folder:
        async with listening(faults, "127.0.0.1", 0) as url:
            berths = Berths(url, Path(folder))
            try:
                yield cluster, faults, berths
            finally:
                await berths.stop()
                cluster.store.cut_watches()


# -- the judge: objects only ---------------------------------------------------------------------------------------


def judge(cluster: Cluster, *, satisfiable: bool = True) -> list[str]:
    """What is wrong with the objects, in words."""
    wrong: list[str] = []
    claims = {(c["metadata"]["namespace"], c["metadata"]["name"]): c for c in cluster.store.all("resourceclaims")}
    holders: dict[tuple[str, str, str], list[str]] = {}
    for (_, name), one in claims.items():
        status = one.get("status") or {}
        allocation = status.get("allocation")
        if allocation is None:
            continue
        if not status.get("reservedFor"):
            wrong.append(f"claim {name} leaked its allocation")
        for result in allocation["devices"]["results"]:
            holders.setdefault((result["driver"], result["pool"], result["device"]), []).append(name)
    wrong += [f"device {device} is held by {names}" for device, names in holders.items() if len(names) > 1]
    for one in cluster.store.all("pods"):
        name, node = one["metadata"]["name"], one["spec"].get("nodeName")
        if node is None:
            wrong += [f"pod {name} is not bound"] if satisfiable else []
            continue
        for entry in one["spec"].get("resourceClaims") or ():
            held = claims[one["metadata"]["namespace"], entry["resourceClaimName"]]
            status = held.get("status") or {}
            if not status.get("allocation"):
                wrong.append(f"pod {name} is bound and its claim has no devices")
            elif {r["pool"] for r in status["allocation"]["devices"]["results"]} != {node}:
                wrong.append(f"pod {name} is bound to {node}, its devices are elsewhere")
            if not any(c["uid"] == one["metadata"]["uid"] for c in status.get("reservedFor") or ()):
                wrong.append(f"pod {name} is bound and its claim is not reserved for it")
    return wrong


async def settled(cluster: Cluster, seconds: float, *, satisfiable: bool = True) -> list[str]:
    """Wait until nothing is wrong, at most so long; the answer is what still is."""
    end = time.monotonic() + seconds
    while (wrong := judge(cluster, satisfiable=satisfiable)) and time.monotonic() < end:
        await asyncio.sleep(0.05)
    return wrong


# -- scenarios -----------------------------------------------------------------------------------------------------


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def killed_at_every_write(seed: int, times: int) -> dict[str, int]:
    """A pod with two claims: finalizer and status of each, then the Binding; killed before and after each of the five."""
    points = [(when, write) for when in ("before", "after") for write in range(5)]
    done: dict[str, int] = {}
    async with chaotic(seed) as (cluster, faults, berths):
        port = free_port()
        await berths.start(port)
        scheduler = Scheduler(cluster.store, f"http://127.0.0.1:{port}", seed=seed)
        task = asyncio.create_task(scheduler.run())
        try:
            for turn in range(times):
                for when, write in points:
                    await _one_kill(cluster, faults, berths, port, f"p-{turn}-{when}-{write}", when, write)
                    done[f"{when} write {write}"] = done.get(f"{when} write {write}", 0) + 1
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    return done


async def _one_kill(cluster: Cluster, faults: Faults, berths: Berths, port: int, name: str, when: str, write: int) -> None:
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
    end = time.monotonic() + 20
    before = berths.kills
    while berths.kills == before:
        assert time.monotonic() < end, f"{name}: the write point was never reached"
        await asyncio.sleep(0.01)
    faults.on_write = lambda *_: False
    await berths.start(port)
    wrong = await settled(cluster, GRACE_SECONDS)
    assert not wrong, f"{name}: {wrong}"
    _remove(cluster, name)


def _remove(cluster: Cluster, name: str) -> None:
    """The pod ends; its claims are released and go."""
    registry = cluster.api.registry
    registry.delete(RESOURCES["", "pods"], ("default", name))
    for part in ("a", "b"):
        key = ("default", f"{name}-{part}")
        if cluster.store.get("resourceclaims", key) is not None:
            cluster.store.remove("resourceclaims", key)


async def two_replicas(seed: int, pods: int, seconds: float) -> dict[str, int]:
    """Both active at once on the same few devices, with late events, cut watches, conflicts and refusals."""
    rng = random.Random(seed)
    async with chaotic(seed) as (cluster, faults, berths):
        ports = [free_port(), free_port()]
        for port in ports:
            await berths.start(port)
        faults.delay, faults.conflicts, faults.refusals = 0.05, 0.1, 0.05
        for i in range(pods):
            cluster.apply(claim(f"c{i}", rng.choice((1, 1, 2, 4))))
            cluster.apply(pod(f"p{i}", f"c{i}"))
        cutter = asyncio.create_task(_cut(cluster, rng))
        try:
            counts = await _drive(cluster, ports, rng, seconds)
        finally:
            cutter.cancel()
        faults.delay = faults.conflicts = faults.refusals = 0.0
        wrong = await settled(cluster, 90, satisfiable=False)
        assert not wrong, wrong
        assert counts["bound"], "nothing was bound at all"
        free = 20 - sum(len(c["status"]["allocation"]["devices"]["results"]) for c in cluster.store.all("resourceclaims") if c["status"].get("allocation"))
        assert free >= 0
    return counts


async def _cut(cluster: Cluster, rng: random.Random) -> None:
    while True:
        await asyncio.sleep(rng.uniform(1.0, 3.0))
        cluster.store.cut_watches()


async def _drive(cluster: Cluster, ports: list[int], rng: random.Random, seconds: float) -> dict[str, int]:
    """Eight schedulers that know nothing of each other, each asking one replica for filter and perhaps the other to bind."""
    counts, end = {"bound": 0, "refused": 0, "errors": 0}, time.monotonic() + seconds
    names = [n["metadata"]["name"] for n in cluster.store.all("nodes")]
    async with aiohttp.ClientSession() as session:

        async def call(verb: str, body: Json) -> Json:
            async with session.post(f"http://127.0.0.1:{rng.choice(ports)}/{verb}", json=body, timeout=aiohttp.ClientTimeout(total=40)) as reply:
                return await reply.json()  # type: ignore[no-any-return]

        async def worker() -> None:
            while time.monotonic() < end:
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
                answer = await call("bind", {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": rng.choice(found)})
                counts["errors" if answer.get("Error") else "bound"] += 1

        await asyncio.gather(*(worker() for _ in range(8)))
    return counts


async def bind_storm(seed: int, pods: int) -> dict[str, int]:
    """Many pods at once through one scheduler, conflicts among the writes; every one that fits is bound."""
    nodes = {f"n{i}": "hgx-h100-8" for i in range(-(-pods // 8))}
    async with chaotic(seed, nodes) as (cluster, faults, berths):
        port = free_port()
        await berths.start(port)
        faults.conflicts = 0.05
        for i in range(pods):
            cluster.apply(claim(f"c{i}"))
            cluster.apply(pod(f"p{i}", f"c{i}"))
        task = asyncio.create_task(Scheduler(cluster.store, f"http://127.0.0.1:{port}", seed=seed).run())
        try:
            wrong = await settled(cluster, 120)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert not wrong, wrong[:5]
    return {"bound": pods}


async def everything(seed: int, times: int) -> None:
    start = time.monotonic()
    for name, scenario in (
        ("killed at every write point", killed_at_every_write(seed, times)),
        *((f"two replicas, seed {s}", two_replicas(s, 16, 30)) for s in range(seed, seed + 5)),
        ("bind storm", bind_storm(seed, 1000)),
    ):
        print(f"{name}: {await scenario}  ({time.monotonic() - start:.0f} s)", flush=True)
    print("0 devices held twice, 0 pods bound without devices, 0 leaked allocations, every satisfiable pod bound")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--times", type=int, default=20)
    options = parser.parse_args()
    asyncio.run(everything(options.seed, options.times))
