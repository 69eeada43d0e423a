"""Bindings of normal pods per second, with and without hostile pods, and the ratio within one run.

Every hostile pod of one namespace asks with 32 selectors as costly as the API server admits, no two pods with the same.
As in kube-scheduler, pods are filtered one after the other; a pod that got an error is filtered again after a backoff
of 1 s, doubled up to 10 s.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import signal
import tempfile
import time
import urllib.request
from collections import deque
from pathlib import Path
from typing import NamedTuple

from benchmarks.processes import Bench, Berth, Http, body_for, pods_of
from benchmarks.servers import TOKEN
from extender.cli.console_command import AUDIENCE, SENDER
from extender.sandbox import Cluster, carried_machines, listening
from extender.sandbox.apiserver.tokens import TokenUser
from tests.process_worlds import free_port
from tests.running_berth import claim, pod

NAMESPACE = "hostile"
SELECTORS, LENGTH = 32, 240
FIRST_BACKOFF, LONGEST_BACKOFF = 1.0, 10.0  # seconds, kube-scheduler's defaults


def selector(pod_number: int, number: int) -> str:
    """About 1,020 characters that take some 50 ms on one device. It reads the UUID, so no nodes share a status."""
    long = f"[{','.join('1' * LENGTH)}]"
    return f'{long}.all(a,{long}.all(b,a<=b))&&device.attributes["gpu.nvidia.com"].uuid!="{pod_number}-{number}"'


def hostile(number: int) -> list[dict]:
    """A claim and its pod."""
    name = f"hostile-{number}"
    texts = [selector(number, i) for i in range(SELECTORS)]
    asked, waiting = claim(name, selectors=[{"cel": {"expression": text}} for text in texts]), pod(name, name)
    for one in (asked, waiting):
        one["metadata"]["namespace"] = NAMESPACE
    return [asked, waiting]


async def fleet(port: int, nodes: int, honest: int, hostiles: int) -> None:
    cluster = Cluster(tokens={TOKEN: TokenUser(SENDER, (AUDIENCE,))})
    for i in range(nodes):
        cluster.add_node(f"node-{i:05}", carried_machines()["hgx-h100-8"])
    for i in range(honest):
        cluster.apply(claim(f"honest-{i}"))
        cluster.apply(pod(f"honest-{i}", f"honest-{i}"))
    for i in range(hostiles):
        for one in hostile(i):
            cluster.apply(one)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with listening(cluster.api, "127.0.0.1", port):
        print("ready", flush=True)
        await stop.wait()
        cluster.store.cut_watches()


class Run(NamedTuple):
    """Number of normal pods bound, and the measurements taken meanwhile."""

    bound: int
    seconds: float
    longest_filter_ms: float  # of an honest pod
    longest_hostile_ms: float
    hostile_filters: int
    hostile_seconds: float  # of all their filters
    longest_livez_ms: float

    @property
    def rate(self) -> float:
        return self.bound / self.seconds


def schedule(berth: Berth, pods: list[dict], names: list[str]) -> Run:
    """Filter one pod after the other until every normal pod is bound."""
    http, began, longest, filters, livez = Http(berth.port), time.monotonic(), [0.0, 0.0], 0, 0.0
    taken, waiting = 0.0, list[tuple[float, int, float]]()
    active = deque((number, FIRST_BACKOFF) for number in range(len(pods)))
    left = bound = sum(one["metadata"]["namespace"] != NAMESPACE for one in pods)
    while left:
        if not active:
            time.sleep(max(0.0, waiting[0][0] - time.monotonic()))
        while waiting and waiting[0][0] <= time.monotonic():
            active.appendleft(heapq.heappop(waiting)[1:])
        number, backoff = active.popleft()
        meta = pods[number]["metadata"]
        is_hostile = meta["namespace"] == NAMESPACE
        start = time.monotonic()
        answer = json.loads(http.post("filter", body_for(pods[number], names)))
        took = time.monotonic() - start
        longest[is_hostile] = max(longest[is_hostile], took)
        taken += took if is_hostile else 0.0
        filters += is_hostile
        if answer["NodeNames"]:
            call = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"]}
            call["Node"] = answer["NodeNames"][0]
            error = json.loads(http.post("bind", json.dumps(call).encode()))["Error"]
            left -= not error and not is_hostile
            if not error:
                continue
        heapq.heappush(waiting, (time.monotonic() + backoff, number, min(LONGEST_BACKOFF, 2 * backoff)))
        if filters % 10 == 0:
            start = time.monotonic()
            with urllib.request.urlopen(f"http://127.0.0.1:{berth.port}/livez") as reply:
                reply.read()
            livez = max(livez, time.monotonic() - start)
    return Run(bound, time.monotonic() - began, 1000 * longest[0], 1000 * longest[1], filters, taken, 1000 * livez)


def measure(nodes: int, honest: int, hostiles: int) -> Run:
    bench = Bench()
    try:
        with tempfile.TemporaryDirectory() as folder:
            api = free_port()
            bench.start(
                "benchmarks.hostile",
                "--serve",
                str(api),
                "--nodes",
                str(nodes),
                "--honest",
                str(honest),
                "--hostile",
                str(hostiles),
                wait_line=True,
            )
            berth = bench.berth(api, Path(folder))
            pods = pods_of(api)
            bad = [one for name, one in pods.items() if name.startswith("hostile-")]
            good = [one for name, one in pods.items() if name.startswith("honest-")]
            every = max(1, len(good) // (len(bad) or 1) // 2)  # so that all have come once after half of the others
            mixed = [one for i, g in enumerate(good) for one in ([bad.pop()] if bad and i % every == 0 else []) + [g]]
            return schedule(berth, mixed + bad, [f"node-{i:05}" for i in range(nodes)])
    finally:
        bench.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--honest", type=int, default=1000)
    parser.add_argument("--hostile", type=int, default=100)
    parser.add_argument("--serve", type=int, help="be the API server on this port")
    args = parser.parse_args()
    if args.serve:
        asyncio.run(fleet(args.serve, args.nodes, args.honest, args.hostile))
        return
    runs = {count: measure(args.nodes, args.honest, count) for count in (0, args.hostile)}
    for count, run in runs.items():
        print(
            f"{count:4} hostile pods: {run.bound} honest ones bound at {run.rate:.1f}/s, "
            f"longest filter {run.longest_filter_ms:.0f} ms; "
            f"{run.hostile_filters} hostile filters took {run.hostile_seconds:.1f} s, "
            f"longest {run.longest_hostile_ms:.0f} ms; longest /livez {run.longest_livez_ms:.0f} ms"
        )
    print(f"honest pods keep {100 * runs[args.hostile].rate / runs[0].rate:.0f} % of their rate")


if __name__ == "__main__":
    main()
