"""Bindings of normal pods per second beside the pods of one hostile namespace, as a share of the rate without them.

Each kind of hostile pods has its own `berth serve`. Phases with and without hostile pods alternate, so that a busy
machine slows both down. Each phase begins with new pods on an empty fleet. Pods are filtered one after the other, as in
kube-scheduler. Hostile pods are never bound: one without a node is filtered again after a back-off.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import itertools
import json
import os
import signal
import statistics
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
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
VICTIMS = 8  # on each node
FIRST_BACKOFF, LONGEST_BACKOFF = 1.0, 10.0  # seconds, kube-scheduler's defaults


@dataclass(frozen=True)
class Attack:
    """Pods that are waiting at the same time in one namespace."""

    gangs: int
    members: int  # of a gang; 1 for pods without a gang
    selectors: int = 32  # of a claim; 0 for pods without claims
    length: int = 240  # of the list in a selector, whose cost grows with its square
    attribute: str = "uuid"  # that a selector reads: nodes share no status if it reads the UUID
    requests: int = 1  # of a claim; the last two of several want the same GPU, so that every search is in vain
    verb: str = "filter"  # what else the pods cause, see Scheduler._cause


ATTACKS = {
    "100 pods": Attack(100, 1),
    "a gang of 400 pods": Attack(1, 400),
    "100 gangs of 10 pods": Attack(100, 10),
    "100 gangs of 10 pods without devices": Attack(100, 10, selectors=0),
    "100 pods below the budget": Attack(100, 1, selectors=4, length=60, attribute="productName"),
    "100 pods scored, with victims": Attack(100, 1, verb="prioritize"),
    "100 pods whose claims become costly before their bind": Attack(100, 1, verb="bind"),
    "100 pods without room while nodes change": Attack(100, 1, selectors=1, length=1, requests=3),
    "100 pods that users ask about": Attack(100, 1, verb="console"),
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
            asked = costly_claim(attack, name, kind) if attack.verb != "bind" else claim(name)
            for one in (asked, waiting)[not attack.selectors :]:
                one["metadata"]["namespace"] = NAMESPACE
                yield one


def costly_claim(attack: Attack, name: str, kind: str) -> Json:
    texts = [selector(attack, kind, i) for i in range(attack.selectors)]
    asked = claim(name, selectors=[{"cel": {"expression": text}} for text in texts])
    asked["metadata"]["namespace"] = NAMESPACE
    devices = asked["spec"]["devices"]
    names = [f"gpu-{i}" for i in range(attack.requests)]
    devices["requests"] = [{**devices["requests"][0], "name": one} for one in names]
    if attack.requests > 1:
        devices["constraints"] = [{"matchAttribute": "gpu.nvidia.com/uuid", "requests": names[-2:]}]
    return asked


class Fleet:
    """The sandbox's API server. POST /phase/N replaces all claims and pods, and answers the new pods.

    POST /swap/NAME replaces a hostile claim: a cheap one by a costly one that is new, and a costly one by a cheap one.
    """

    def __init__(self, nodes: int, attack: Attack) -> None:
        self.cluster = Cluster(tokens={TOKEN: TokenUser(SENDER, (AUDIENCE,))})
        self.attack = attack
        self.swapped = 0
        for i in range(nodes):
            self.cluster.add_node(f"node-{i:05}", carried_machines()["hgx-h100-8"])

    async def __call__(self, scope: Json, receive: Any, send: Any) -> None:
        _, what, value = scope["path"].split("/", 2)
        if what not in ("phase", "swap"):
            await self.cluster.api(scope, receive, send)
            return
        pods = list[Json]()
        if what == "phase":
            pods = await self.replace(int(value))
        else:
            self.swap(value)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": orjson.dumps(pods)})

    def swap(self, name: str) -> None:
        before = self.cluster.store.remove("resourceclaims", (NAMESPACE, name))
        was_costly = before["spec"]["devices"]["requests"][0]["exactly"].get("selectors")
        self.swapped += 1
        cheap = claim(name)
        cheap["metadata"]["namespace"] = NAMESPACE
        self.cluster.apply(cheap if was_costly else costly_claim(self.attack, name, f"swap-{self.swapped}"))

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
    request_seconds: float  # of as many requests that Berth answers from memory, by the median of one
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

    def __init__(self, berth: Berth, api_pid: int, api_port: int, nodes: int, verb: str) -> None:
        self.berth, self.api_pid, self.api_port = berth, api_pid, api_port
        self.verb = verb
        self.http = Http(berth.port)
        self.late_bind: tuple[Json, str] | None = None  # of the hostile pod before
        self.names = [f"node-{i:05}" for i in range(nodes)]

    def filter(self, pod: Json) -> list[str]:
        return json.loads(self.http.post("filter", body_for(pod, self.names)))["NodeNames"] or []

    def bind(self, pod: Json, node: str) -> bool:
        meta = pod["metadata"]
        call = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        return not json.loads(self.http.post("bind", json.dumps(call).encode()))["Error"]

    def _cause(self, pod: Json, nodes: list[str]) -> None:
        """Send what kube-scheduler or a tenant may send after the filter request of a hostile pod."""
        if self.verb == "prioritize":
            self.http.post("prioritize", body_for(pod, self.names))
            victims = {"Pods": [{"UID": f"victim-{i}"} for i in range(VICTIMS)], "NumPDBViolations": 0}
            asked = {"Pod": pod, "NodeNameToMetaVictims": dict.fromkeys(self.names, victims)}
            self.http.post("preempt", json.dumps(asked).encode())
        elif self.verb == "bind":
            if self.late_bind is not None:
                self.bind(*self.late_bind)
            self.late_bind = (pod, nodes[0]) if nodes else None
            post(f"http://127.0.0.1:{self.api_port}/swap/{pod['metadata']['name']}")

    @contextmanager
    def _users(self, pods: Sequence[Json]) -> Iterator[None]:
        """A user asks the console about these pods all the time, also what would be without a node."""
        ended = threading.Event()

        def ask() -> None:
            url = f"http://127.0.0.1:{self.berth.console_port}/v1/explain/{NAMESPACE}/"
            for number, one in enumerate(itertools.cycle(pods)):
                if ended.is_set():
                    return
                what_if = f"?without={self.names[number % len(self.names)]}" if number % 2 else ""
                request = f"{url}{one['metadata']['name']}{what_if}"
                with suppress(urllib.error.HTTPError), urllib.request.urlopen(request) as reply:
                    reply.read()

        asking = threading.Thread(target=ask)
        if pods and self.verb == "console":
            asking.start()
        try:
            yield
        finally:
            ended.set()
            if asking.ident is not None:
                asking.join()

    def run(self, pods: Sequence[Json], seconds: float) -> Phase:
        """Filter one pod after the other until the phase is over, or until every normal pod is bound."""
        with self._users([one for one in pods if one["metadata"]["namespace"] == NAMESPACE]):
            return self._run(pods, seconds)

    def _run(self, pods: Sequence[Json], seconds: float) -> Phase:
        bad = [one for one in pods if one["metadata"]["namespace"] == NAMESPACE]
        good = [one for one in pods if one["metadata"]["namespace"] != NAMESPACE]
        while not self.filter(good[-1]):  # until Berth has seen the last claim
            time.sleep(0.05)
        active = deque((one, FIRST_BACKOFF) for one in _mixed(good, bad))
        waiting = list[tuple[float, int, Json, float]]()
        began, cpu = time.monotonic(), self._cpu()
        bound, longest, hostile_took, livez = 0, [0.0, 0.0], list[float](), 0.0
        while (now := time.monotonic()) < began + seconds and bound < len(good):
            while waiting and waiting[0][0] <= now:
                active.appendleft(heapq.heappop(waiting)[2:])
            if not active:
                time.sleep(min(waiting[0][0], began + seconds) - now)
                continue
            one, backoff = active.popleft()
            is_hostile = one["metadata"]["namespace"] == NAMESPACE
            nodes = self.filter(one)
            if is_hostile:
                self._cause(one, nodes)
            took = time.monotonic() - now
            longest[is_hostile] = max(longest[is_hostile], took)
            if not is_hostile and nodes and self.bind(one, nodes[0]):
                bound += 1
                continue
            at = time.monotonic() + backoff
            heapq.heappush(waiting, (at, id(one), one, min(LONGEST_BACKOFF, 2 * backoff)))
            if is_hostile:
                hostile_took.append(took)
                livez = max(livez, self._livez()) if len(hostile_took) % 10 == 0 else livez
        lasted = time.monotonic() - began
        used = [(after - before) / lasted for before, after in zip(cpu, self._cpu(), strict=True)]
        count, taken = len(hostile_took), sum(hostile_took)
        alike = count * statistics.median(hostile_took or [0.0])
        return Phase(bound, lasted, 1e3 * longest[0], count, taken, alike, 1e3 * longest[1], 1e3 * livez, *used)

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


def post(url: str) -> bytes:
    with urllib.request.urlopen(url, data=b"") as reply:
        return reply.read()


def measure(name: str, nodes: int, seconds: float, pairs: int) -> list[Phase]:
    """The phases of one kind of hostile pods; the odd ones have these pods."""
    bench = Bench()
    try:
        with tempfile.TemporaryDirectory() as folder:
            api = free_port()
            options = ["--serve", str(api), "--nodes", str(nodes), "--attack", name]
            fleet = bench.start("benchmarks.hostile", *options, wait_line=True)
            scheduler = Scheduler(bench.berth(api, Path(folder)), fleet.pid, api, nodes, ATTACKS[name].verb)
            bench.connections.append(scheduler.http)
            phases = []
            for number in range(2 * pairs):
                pods = json.loads(post(f"http://127.0.0.1:{api}/phase/{number}"))
                scheduler.late_bind = None
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
        number = [beside.request_seconds / beside.seconds for _, beside in pairs]
        claims = [(beside.hostile_seconds - beside.request_seconds) / beside.seconds for _, beside in pairs]
        print(
            f"{name}: normal pods keep {_spread([beside.rate / alone.rate for alone, beside in pairs])} of their rate; "
            f"hostile pods take {_spread(more)} of a core from serve; "
            f"the number of their requests takes {_spread(number)} of the time, their claims {_spread(claims)}",
            flush=True,
        )


def _spread(ratios: Sequence[float]) -> str:
    """The median, the smallest and the largest ratio."""
    return f"{statistics.median(ratios):.0%} ({min(ratios):.0%} to {max(ratios):.0%})"


if __name__ == "__main__":
    main()
