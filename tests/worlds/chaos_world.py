"""The sandbox for chaos tests: an API server with faults, Berth processes, and a check of the objects.

`check_objects` knows only API objects and shares no code with Berth.
"""

from __future__ import annotations

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
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from extender.sandbox import Cluster, Scheduler, listening, write_kubeconfig
from extender.web.asgi import Answer
from tests.worlds.eventually import HANG_SECONDS, eventually
from tests.worlds.faulty_api import disturb
from tests.worlds.process_starter import Started, start
from tests.worlds.running_berth import cluster_of

Json = dict[str, Any]
NODES = {"n1": "dgx1-v100", "n2": "a100-pcie-8-bridged", "n3": "t4-4"}


class Faults:
    """The API server behind this can lose replies, kill a process at a write, delay events and reject writes."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self.on_write: Callable[[str, str, str], bool] = lambda when, method, path: False  # True: the reply is lost
        self.conflicts = 0.0  # share of writes that meet a newer version
        self.rejections = 0.0  # share of writes answered 429
        self.delay = 0.0  # seconds that watch events may be late
        self.down = False  # the server answers nothing but 503, as while it restarts
        self.writes = 0  # that came
        self.turned_away = 0  # requests while the server was down

    async def __call__(self, scope: Json, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        method, path = scope["method"], scope["path"]
        if self.down:
            self.turned_away += 1
            await _refuse(send, 503)
            return
        if method == "GET":
            await self._cluster.api(scope, receive, self._late(send) if b"watch=" in scope["query_string"] else send)
            return
        self.writes += 1
        if self._random.random() < self.rejections:
            await _refuse(send)
            return
        if self._random.random() < self.conflicts:
            disturb(self._cluster, path)
        if self.on_write("before", method, path):
            await _refuse(send)  # the sender is dead
            return
        replies: list[Json] = []

        async def keep(message: Json) -> None:
            replies.append(message)

        await self._cluster.api(scope, receive, keep)
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


async def _refuse(send: Any, status: int = 429) -> None:
    body = b'{"kind":"Status","status":"Failure","code":%d,"message":"not now"}' % status
    await Answer(status, body, more=((b"retry-after", b"1"),)).to(send)


class Berths:
    """Berth processes of one cluster, each on a port of its own that stays the same over its lives."""

    def __init__(self, api_url: str, folder: Path) -> None:
        self._kubeconfig = write_kubeconfig(folder, api_url)
        self._processes: dict[int, subprocess.Popen[bytes] | Started] = {}
        self.kills = 0
        self.pauses = 0

    async def start(self, port: int, checkout: Path | None = None, *, jumps: bool = False) -> None:
        """A `berth serve` until it is ready, perhaps of another checkout; its wall clock may jump."""
        words = ("serve", "--listen", f"127.0.0.1:{port}")
        if jumps:
            await self._start(port, checkout, "tests.worlds.chaos_clock", str(port), *words)
        else:
            await self._start(port, checkout, "extender", *words)

    async def start_console(self, port: int) -> None:
        """A console until it is ready."""
        await self._start(port, None, "extender", "console", "--listen", f"127.0.0.1:{port}")

    async def _start(self, port: int, checkout: Path | None, module: str, *words: str) -> None:
        words = (*words, "--kubeconfig", str(self._kubeconfig))
        self._processes[port] = process = (
            start(*words, module=module) if checkout is None else _start_in(checkout, module, *words)
        )
        async with aiohttp.ClientSession() as session:

            async def ready() -> bool:
                assert process.poll() is None, f"berth ended with {process.poll()}"
                try:
                    async with session.get(f"http://127.0.0.1:{port}/readyz") as reply:
                        return reply.status == 200
                except aiohttp.ClientError:
                    return False

            await eventually(ready, "berth is ready")

    def kill(self, port: int) -> None:
        """Send SIGKILL: the process cannot finish any work."""
        process = self._processes.pop(port, None)
        if process is not None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            self.kills += 1

    async def pause(self, port: int, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later: the process does not know that time has passed, and goes on where it was."""
        process = self._processes[port]
        os.kill(process.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            os.kill(process.pid, signal.SIGCONT)
        self.pauses += 1

    async def stop(self) -> None:
        await asyncio.gather(*(self.end(port) for port in list(self._processes)))

    async def end(self, port: int) -> None:
        """Send SIGTERM, as kubelet does.

        The API server runs in this loop and still answers, so writes in flight are completed.
        """
        process = self._processes.pop(port)
        process.terminate()
        await eventually(lambda: process.poll() is not None, "berth ends")
        assert process.poll() == 0, f"berth ended with {process.poll()}"

    def memory_mib(self, port: int) -> float:
        """Resident memory of a process in MiB."""
        status = Path(f"/proc/{self._processes[port].pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


def _start_in(checkout: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", *words]
    return subprocess.Popen(command, cwd=checkout, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@asynccontextmanager
async def chaotic(seed: int, nodes: dict[str, str] | None = None) -> AsyncIterator[tuple[Cluster, Faults, Berths]]:
    cluster = cluster_of(nodes or NODES)
    faults = Faults(cluster, seed)
    with tempfile.TemporaryDirectory() as folder:
        async with listening(faults, "127.0.0.1", 0) as url:
            berths = Berths(url, Path(folder))
            try:
                yield cluster, faults, berths
            finally:
                await berths.stop()
                cluster.store.cut_watches()


def scheduler_of(cluster: Cluster, port: int, seed: int) -> Scheduler:
    """A scheduler that asks the Berth on this port. It backs off a tenth of kube-scheduler's time: it meets more."""
    return Scheduler(cluster.store, f"http://127.0.0.1:{port}", seed=seed, backoff_seconds=(0.1, 1.0))


# -- the check: objects only -----------------------------------------------------------------------------


def check_objects(cluster: Cluster, *, satisfiable: bool = True) -> list[str]:
    """The faults of the objects, as sentences."""
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
        special = ((one.get("status") or {}).get("extendedResourceClaimStatus") or {}).get("resourceClaimName")
        made = {e["name"]: e["resourceClaimName"] for e in (one.get("status") or {}).get("resourceClaimStatuses") or ()}
        entries = one["spec"].get("resourceClaims") or ()
        named = [entry.get("resourceClaimName") or made[entry["name"]] for entry in entries]
        if not named and special is None and "nvidia.com/gpu" in str(one["spec"]):
            wrong.append(f"pod {name} is bound without a claim for its extended resources")
        for claim_name in (*named, *([special] if special else [])):
            status = claims.get((one["metadata"]["namespace"], claim_name), {}).get("status") or {}
            if not status.get("allocation"):
                wrong.append(f"pod {name} is bound and its claim has no devices")
            elif {r["pool"] for r in status["allocation"]["devices"]["results"]} != {node}:
                wrong.append(f"pod {name} is bound to {node}, its devices are elsewhere")
            group = (one["spec"].get("schedulingGroup") or {}).get("podGroupName", "")
            users = {(one["metadata"]["uid"], ""), ("", group)} - {("", "")}
            if not any(_user(c) in users for c in status.get("reservedFor") or ()):
                wrong.append(f"pod {name} is bound and its claim is not reserved for it")
    return wrong


def _user(entry: Json) -> tuple[str, str]:
    """An entry of status.reservedFor as the UID of a pod, or as the name of a PodGroup."""
    return ("", entry["name"]) if entry.get("resource") == "podgroups" else (entry["uid"], "")


async def settled(cluster: Cluster, *, satisfiable: bool = True) -> list[str]:
    """Wait until the objects have no fault; returns the faults that are left after the time limit."""
    end = time.monotonic() + HANG_SECONDS
    check = partial(check_objects, cluster, satisfiable=satisfiable)
    while (wrong := check()) and time.monotonic() < end:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.05)
    return wrong
