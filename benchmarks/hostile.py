"""Bindings of normal pods per second beside the pods of one hostile namespace, as a share of the rate without them.

Every kind of hostile pods has its own `berth serve`. Phases of equal length with and without hostile pods take turns,
so that a busy machine slows both down. A phase begins with new pods on an empty fleet. As in kube-scheduler, pods are
filtered one after the other. A hostile pod that got an error or no node is filtered again after a back-off of 1 s,
doubled up to 10 s; one that got a node is not bound, as if kube-scheduler then lacked CPU for it.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import os
import signal
import statistics
import tempfile
import time
import urllib.request
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from benchmarks.processes import Bench, Berth, Http, body_for, cpu_seconds
from benchmarks.servers import TOKEN
from extender.cli.console_command import AUDIENCE, SENDER
from extender.sandbox import Cluster, carried_machines, listening
from extender.sandbox.apiserver.tokens import TokenUser
from tests.process_worlds import free_port
from tests.running_berth import claim, pod

Json = dict[str, Any]
NAMESPACE = "hostile"
NORMAL = 1500  # pods in a phase; a phase ends early when all are bound
FIRST_BACKOFF, LONGEST_BACKOFF = 1.0, 10.0  # seconds, kube-scheduler's defaults


@dataclass(frozen=True)
class Attack:
    """Pods that are waiting at the same time in one namespace."""

    gangs: int
    members: int  # of a gang; 1 for pods without a gang
    selectors: int = 32  # of a claim; 0 for pods without claims
    length: int = 240  # of the list in a selector, whose cost grows with its square
    attribute: str = "uuid"  # that a selector reads: nodes share no status if it reads the UUID


ATTACKS = {
    "100 pods": Attack(100, 1),
    "a gang of 400 pods": Attack(1, 400),
    "100 gangs of 10 pods": Attack(100, 10),
    "100 gangs of 10 pods without devices": Attack(100, 10, selectors=0),
    "100 pods below the budget": Attack(100, 1, selectors=4, length=60, attribute="productName"),
}
MOST_KINDS = 64  # different claims in one gang: Berth rejects a gang with more at once


def selector(attack: Attack, kind: str, number: int) -> str:
    """With the default attack, about 1,020 characters that take some 50 ms on one device."""
    long = f"[{','.join('1' * attack.length)}]"
    read = f'device.attributes["gpu.nvidia.com"].{attack.attribute}'
    return f'{long}.all(a,{long}.all(b,a<=b))&&{read}!="{kind}-{number}"'


def hostile(attack: Attack, phase: int) -> Iterator[Json]:
    """The claims and pods of one phase. No claim is like one of an earlier phase."""
    for gang in range(attack.gangs):
        for member in range(attack.members):
            name = f"p{phase}-{gang}-{member}"
            notes = {"berth.dev/group": f"p{phase}-{gang}", "berth.dev/group-min": str(attack.members)}
            waiting = pod(name, *[name] * bool(attack.selectors), annotations=notes if attack.members > 1 else None)
            kind = f"{phase}-{gang}-{member % MOST_KINDS}"
            texts = [selector(attack, kind, i) for i in range(attack.selectors)]
            asked = claim(name, selectors=[{"cel": {"expression": text}} for text in texts])
            for one in (asked, waiting)[not attack.selectors :]:
                one["metadata"]["namespace"] = NAMESPACE
                yield one


class Fleet:
    """The sandbox's API server. POST /phase/N replaces all claims and pods, and answers the new pods."""

    def __init__(self, nodes: int, attack: Attack) -> None:
        self.cluster = Cluster(tokens={TOKEN: TokenUser(SENDER, (AUDIENCE,))})
        self.attack = attack
        for i in range(nodes):
            self.cluster.add_node(f"node-{i:05}", carried_machines()["hgx-h100-8"])

    async def __call__(self, scope: Json, receive: Any, send: Any) -> None:
        if not scope["path"].startswith("/phase/"):
            await self.cluster.api(scope, receive, send)
            return
        pods = await self.replace(int(scope["path"].rpartition("/")[2]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": orjson.dumps(pods)})

    async def replace(self, phase: int) -> list[Json]:
        """Odd phases have hostile pods. The pods of normal tenants come last."""
        store = self.cluster.store
        for resource in ("pods", "resourceclaims"):
            for obj in store.all(resource):
                store.remove(resource, (obj["metadata"]["namespace"], obj["metadata"]["name"]))
                await asyncio.sleep(0)  # the watches go on
        for obj in hostile(self.attack, phase) if phase % 2 else ():
            self.cluster.apply(obj)
            await asyncio.sleep(0)
        for i in range(NORMAL):
            self.cluster.apply(claim(f"normal-{phase}-{i}"))
            self.cluster.apply(pod(f"normal-{phase}-{i}", f"normal-{phase}-{i}"))
            await asyncio.sleep(0)
        return store.all("pods")


async def serve(port: int, nodes: int, attack: Attack) -> None:
    fleet, stop = Fleet(nodes, attack), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with listening(fleet, "127.0.0.1", port):
        print("ready", flush=True)
        await stop.wait()
        fleet.cluster.store.cut_watches()


class Phase(NamedTuple):
    """Normal pods bound in a phase, and the measurements taken meanwhile."""

    bound: int
    seconds: float
    longest_ms: float  # of the filter requests of normal pods
    hostile_filters: int
    hostile_seconds: float  # of all these filter requests
    longest_hostile_ms: float
    longest_livez_ms: float
    serve_cpu: float  # seconds of CPU for each second of the phase
    console_cpu: float
    api_cpu: float

    @property
    def rate(self) -> float:
        return self.bound / self.seconds


class Scheduler:
    """Filters and binds pods as kube-scheduler does, over one connection."""

    def __init__(self, berth: Berth, api_pid: int, nodes: int) -> None:
        self.berth, self.api_pid = berth, api_pid
        self.http = Http(berth.port)
        self.names = [f"node-{i:05}" for i in range(nodes)]

    def filter(self, pod: Json) -> list[str]:
        return json.loads(self.http.post("filter", body_for(pod, self.names)))["NodeNames"] or []

    def bind(self, pod: Json, node: str) -> bool:
        meta = pod["metadata"]
        call = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        return not json.loads(self.http.post("bind", json.dumps(call).encode()))["Error"]

    def run(self, pods: Sequence[Json], seconds: float) -> Phase:
        """Filter one pod after the other until the phase is over, or until every normal pod is bound."""
        bad = [one for one in pods if one["metadata"]["namespace"] == NAMESPACE]
        good = [one for one in pods if one["metadata"]["namespace"] != NAMESPACE]
        while not self.filter(good[-1]):  # until Berth has seen the last claim
            time.sleep(0.05)
        active = deque((one, FIRST_BACKOFF) for one in _mixed(good, bad))
        waiting = list[tuple[float, int, Json, float]]()
        began, cpu = time.monotonic(), self._cpu()
        bound, longest, taken, filters, livez = 0, [0.0, 0.0], 0.0, 0, 0.0
        while (now := time.monotonic()) < began + seconds and bound < len(good):
            while waiting and waiting[0][0] <= now:
                active.appendleft(heapq.heappop(waiting)[2:])
            if not active:
                time.sleep(min(waiting[0][0], began + seconds) - now)
                continue
            one, backoff = active.popleft()
            is_hostile = one["metadata"]["namespace"] == NAMESPACE
            nodes = self.filter(one)
            took = time.monotonic() - now
            longest[is_hostile] = max(longest[is_hostile], took)
            if not is_hostile and nodes and self.bind(one, nodes[0]):
                bound += 1
                continue
            at = time.monotonic() + backoff
            heapq.heappush(waiting, (at, id(one), one, min(LONGEST_BACKOFF, 2 * backoff)))
            if is_hostile:
                filters, taken = filters + 1, taken + took
                livez = max(livez, self._livez()) if filters % 10 == 0 else livez
        lasted = time.monotonic() - began
        used = [(after - before) / lasted for before, after in zip(cpu, self._cpu(), strict=True)]
        return Phase(bound, lasted, 1e3 * longest[0], filters, taken, 1e3 * longest[1], 1e3 * livez, *used)

    def _livez(self) -> float:
        start = time.monotonic()
        with urllib.request.urlopen(f"http://127.0.0.1:{self.berth.port}/livez") as reply:
            reply.read()
        return time.monotonic() - start

    def _cpu(self) -> list[float]:
        return [cpu_seconds(pid) for pid in (self.berth.process.pid, self.berth.console.pid, self.api_pid)]


def _mixed(good: Sequence[Json], bad: Sequence[Json]) -> Iterator[Json]:
    """All pods in the order of the queue: the hostile ones evenly among the first half of the normal ones."""
    for i, one in enumerate(good):
        yield from bad[2 * i * len(bad) // len(good) : 2 * (i + 1) * len(bad) // len(good)]
        yield one


def measure(name: str, nodes: int, seconds: float, pairs: int) -> list[Phase]:
    """The phases of one kind of hostile pods; the odd ones have these pods."""
    bench = Bench()
    try:
        with tempfile.TemporaryDirectory() as folder:
            api = free_port()
            options = ["--serve", str(api), "--nodes", str(nodes), "--attack", name]
            fleet = bench.start("benchmarks.hostile", *options, wait_line=True)
            scheduler = Scheduler(bench.berth(api, Path(folder)), fleet.pid, nodes)
            bench.connections.append(scheduler.http)
            phases = []
            for number in range(2 * pairs):
                with urllib.request.urlopen(f"http://127.0.0.1:{api}/phase/{number}", data=b"") as reply:
                    pods = json.loads(reply.read())
                phases.append(scheduler.run(pods, seconds))
                _print(phases[-1])
            return phases
    finally:
        bench.stop()


def _print(phase: Phase) -> None:
    print(
        f"  {phase.rate:6.1f} normal pods a second, longest filter {phase.longest_ms:.0f} ms; "
        f"{phase.hostile_filters} hostile filters took {phase.hostile_seconds:.2f} s, longest "
        f"{phase.longest_hostile_ms:.0f} ms; longest /livez {phase.longest_livez_ms:.0f} ms; "
        f"CPU serve {phase.serve_cpu:.2f}, console {phase.console_cpu:.2f}, API server {phase.api_cpu:.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=8.0, help="of a phase")
    parser.add_argument("--pairs", type=int, default=5, help="phases without and with hostile pods, in turns")
    parser.add_argument("--attack", choices=ATTACKS, help="measure this kind only")
    parser.add_argument("--serve", type=int, help="be the API server on this port")
    args = parser.parse_args()
    if args.serve:
        asyncio.run(serve(args.serve, args.nodes, ATTACKS[args.attack]))
        return
    for name in [args.attack] if args.attack else ATTACKS:
        print(f"{name}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
        phases = measure(name, args.nodes, args.seconds, args.pairs)
        pairs = list(zip(phases[::2], phases[1::2], strict=True))
        # The CPU of hostile pods does not depend on the load of the machine, as rates do.
        more = [beside.serve_cpu - beside.rate * alone.serve_cpu / alone.rate for alone, beside in pairs]
        each = 1e3 * sum(p.hostile_seconds for p in phases) / max(1, sum(p.hostile_filters for p in phases))
        print(
            f"{name}: normal pods keep {_spread([beside.rate / alone.rate for alone, beside in pairs])} of their rate; "
            f"hostile pods take {_spread(more)} of a core from serve; "
            f"a hostile filter request takes {each:.1f} ms on average",
            flush=True,
        )


def _spread(ratios: Sequence[float]) -> str:
    """The median, the smallest and the largest ratio."""
    return f"{statistics.median(ratios):.0%} ({min(ratios):.0%} to {max(ratios):.0%})"


if __name__ == "__main__":
    main()
