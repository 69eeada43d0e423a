"""Bindings of normal pods per second beside hostile pods, as a share of the rate without them.

Every kind of hostile pods has its own `berth serve`. Phases of equal length take turns, so that a busy machine slows
all down: without hostile pods, beside them, and beside them while the normal pods come one by one. A phase begins with
new pods on an empty fleet.

The requests are those of kube-scheduler: one pod after the other is filtered, and scored if several nodes passed. A
pod that got an error or no node is tried again after a back-off of 1 s, doubled up to 10 s. Then it comes after the
pods that waited before its last try: kube-scheduler's queue is sorted by that time. Where normal pods come one by one,
each of them is younger, so hostile pods whose back-off has ended come first. A hostile pod that got a node is not
bound, as if its tenant had made the bind fail.
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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from benchmarks.hostile_pods import ATTACKS, NAMESPACE, Attack, costly_claim, hostile, is_hostile
from benchmarks.processes import Bench, Berth, Http, body_for, cpu_seconds, resident_mib
from extender.sandbox import Cluster, carried_machines, listening
from tests.worlds.process_worlds import free_port
from tests.worlds.running_berth import claim, pod

Json = dict[str, Any]
NORMAL = 1500  # pods in a phase; a phase ends early when all are bound
VICTIMS = 8  # on each node
VICTIM_NODES = 100  # where kube-scheduler's search for victims ends on fleets of up to 1,000 nodes
TURNS = 3  # phases that belong together: without hostile pods, beside them, beside them with late normal pods
FIRST_BACKOFF, LONGEST_BACKOFF = 1.0, 10.0  # seconds, kube-scheduler's defaults
CONSOLE_NICE = 4  # the weight that its request of 100m CPU gives it beside serve's 250m (manifests)


class Fleet:
    """The sandbox's API server. POST /phase/N replaces all claims and pods, and answers the new pods.

    POST /swap/NAME replaces a hostile claim: a cheap one by a costly one that is new, and a costly one by a cheap one.
    """

    def __init__(self, nodes: int, attack: Attack) -> None:
        self.cluster = Cluster()
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
        """The first of three phases has no hostile pods. The pods of normal tenants come last."""
        store = self.cluster.store
        for resource in ("pods", "resourceclaims"):
            for obj in store.all(resource):
                store.remove(resource, (obj["metadata"]["namespace"], obj["metadata"]["name"]))
                await asyncio.sleep(0)  # the watches go on
        for obj in hostile(self.attack, phase) if phase % TURNS else ():
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


class Try(NamedTuple):
    """A pod in the queue. Tries are sorted as kube-scheduler sorts pods of one priority."""

    since: float  # when it was created or tried last; infinite if it is always younger than the others
    number: int  # of the pod
    backoff: float  # seconds, if this try fails, too


class Scheduler:
    """Filters and binds pods as kube-scheduler does, over one connection."""

    def __init__(self, berth: Berth, api_pid: int, api_port: int, nodes: int, verb: str) -> None:
        self.berth, self.api_pid, self.api_port = berth, api_pid, api_port
        self.verb = verb
        self.http, self.other = Http(berth.port), Http(berth.port)
        self.beside = ThreadPoolExecutor(1)  # what does not stop kube-scheduler's loop, over the other connection
        self.late_bind: tuple[Json, str] | None = None  # of the hostile pod before
        self.names = [f"node-{i:05}" for i in range(nodes)]

    def cycle(self, pod: Json) -> tuple[list[str], str]:
        """One try to schedule a pod until its node is known: the nodes that passed, or an error."""
        found = json.loads(self.http.post("filter", body_for(pod, self.names)))
        nodes = found["NodeNames"] or []
        if len(nodes) > 1:
            self.http.post("prioritize", body_for(pod, nodes))
        return nodes, found["Error"]

    def bind(self, http: Http, pod: Json, node: str) -> bool:
        meta = pod["metadata"]
        call = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        return not json.loads(http.post("bind", json.dumps(call).encode()))["Error"]

    def _cause(self, pod: Json, nodes: list[str], error: str) -> None:
        """What else follows the cycle of a hostile pod.

        kube-scheduler looks for victims if no node passed, but not after an error. Berth's configuration of
        kube-scheduler has no preemptVerb; others may.
        """
        if self.verb == "preempt" and not nodes and not error:
            victims = {"Pods": [{"UID": f"victim-{i}"} for i in range(VICTIMS)], "NumPDBViolations": 0}
            asked = {"Pod": pod, "NodeNameToMetaVictims": dict.fromkeys(self.names[:VICTIM_NODES], victims)}
            self.http.post("preempt", orjson.dumps(asked))
        elif self.verb == "bind":
            self.beside.submit(self._replace_and_bind, pod, nodes)

    def _replace_and_bind(self, pod: Json, nodes: list[str]) -> None:
        if self.late_bind is not None:
            self.bind(self.other, *self.late_bind)
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

    def run(self, pods: Sequence[Json], seconds: float, *, late: bool) -> Phase:
        """Try one pod after the other until the phase is over, or until every normal pod is bound.

        `late`: the normal pods come one by one, so each is younger than the hostile pods.
        """
        bad = [one for one in pods if is_hostile(one)]
        good = [one for one in pods if not is_hostile(one)]
        while not self.cycle(good[-1])[0]:
            time.sleep(0.05)  # until Berth has seen the last claim
        with self._users(bad):
            phase = self._run(list(_mixed(good, bad)), len(good), seconds, late=late)
        self.beside.submit(lambda: None).result()  # nothing of this phase is left for the next one
        return phase

    def _run(self, pods: Sequence[Json], good: int, seconds: float, *, late: bool) -> Phase:
        is_bad = [is_hostile(one) for one in pods]
        began, cpu = time.monotonic(), self._cpu()
        active = [Try(inf if late and not is_bad[i] else began, i, FIRST_BACKOFF) for i in range(len(pods))]
        waiting = list[tuple[float, Try]]()  # with the end of the back-off
        bound, longest, hostile_took, livez = 0, [0.0, 0.0], list[float](), [0.0]
        while (now := time.monotonic()) < began + seconds and bound < good:
            while waiting and waiting[0][0] <= now:
                heapq.heappush(active, heapq.heappop(waiting)[1])
            if not active:
                time.sleep(min(waiting[0][0], began + seconds) - now)
                continue
            _, number, backoff = heapq.heappop(active)
            nodes, error = self.cycle(one := pods[number])
            if is_bad[number]:
                self._cause(one, nodes, error)
            ended = time.monotonic()
            longest[is_bad[number]] = max(longest[is_bad[number]], ended - now)
            if not is_bad[number] and nodes and self.bind(self.http, one, nodes[0]):
                bound += 1
                continue
            heapq.heappush(waiting, (ended + backoff, Try(ended, number, min(LONGEST_BACKOFF, 2 * backoff))))
            if is_bad[number]:
                hostile_took.append(ended - now)
                if len(hostile_took) % 10 == 0:
                    self.beside.submit(lambda: livez.append(self._livez()))
        lasted = time.monotonic() - began
        used = [(after - before) / lasted for before, after in zip(cpu, self._cpu(), strict=True)]
        took = 1e3 * longest[0], len(hostile_took), sum(hostile_took), 1e3 * longest[1], 1e3 * max(livez)
        return Phase(bound, lasted, *took, *used)

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


def measure(name: str, nodes: int, seconds: float, turns: int) -> list[Phase]:
    """The phases of one kind of hostile pods, in turns of TURNS."""
    bench = Bench()
    try:
        with tempfile.TemporaryDirectory() as folder:
            api = free_port()
            options = ["--serve", str(api), "--nodes", str(nodes), "--attack", name]
            fleet = bench.start("benchmarks.hostile", *options, wait_line=True)
            berth = bench.berth(api, Path(folder))
            os.setpriority(os.PRIO_PROCESS, berth.console.pid, CONSOLE_NICE)
            scheduler = Scheduler(berth, fleet.pid, api, nodes, ATTACKS[name].verb)
            bench.connections += [scheduler.http, scheduler.other]
            phases = []
            for number in range(TURNS * turns):
                pods = json.loads(post(f"http://127.0.0.1:{api}/phase/{number}"))
                scheduler.late_bind = None
                phases.append(scheduler.run(pods, seconds, late=number % TURNS == TURNS - 1))
                _print(phases[-1])
            print(f"  serve took at most {resident_mib(berth.process, 'VmHWM'):.0f} MiB", flush=True)
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
    parser.add_argument("--turns", type=int, default=3, help="of three phases: without hostile pods and with them")
    parser.add_argument("--attack", choices=ATTACKS, help="measure this kind only")
    parser.add_argument("--serve", type=int, help="be the API server on this port")
    args = parser.parse_args()
    if args.serve:
        asyncio.run(serve(args.serve, args.nodes, ATTACKS[args.attack]))
        return
    for name in [args.attack] if args.attack else ATTACKS:
        print(f"{name}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
        phases = measure(name, args.nodes, args.seconds, args.turns)
        for late, words in enumerate(("all created before", "created one by one"), 1):
            pairs = list(zip(phases[::TURNS], phases[late::TURNS], strict=True))
            # The CPU of hostile pods does not depend on the load of the machine, as rates do.
            more = [beside.serve_cpu - beside.rate * alone.serve_cpu / alone.rate for alone, beside in pairs]
            print(
                f"{name}: normal pods, {words}, keep {_spread([beside.rate / alone.rate for alone, beside in pairs])} "
                f"of their rate; hostile pods take {_spread(more)} of a core from serve",
                flush=True,
            )


def _spread(ratios: Sequence[float]) -> str:
    """The median, the smallest and the largest ratio."""
    return f"{statistics.median(ratios):.0%} ({min(ratios):.0%} to {max(ratios):.0%})"


if __name__ == "__main__":
    main()
