"""`berth` as a process before a sandbox cluster."""

from __future__ import annotations

import asyncio
import secrets
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx

from extender.sandbox import Cluster, write_kubeconfig
from tests.worlds.eventually import answers, eventually
from tests.worlds.process_starter import ROOT, Started, start
from tests.worlds.running_berth import TWO_NODES, cluster_of


def free_port() -> int:
    """A port below the range from which the system takes those of clients: none of them takes it before a server."""
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _after(shell: str, words: Iterable[str]) -> subprocess.Popen[bytes]:
    command = ["bash", "-c", f'{shell} && exec "$@"', "berth", sys.executable, "-m", "extender", *words]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)


@asynccontextmanager
async def process(folder: Path, *words: str, shell: str = "") -> AsyncIterator[Started | subprocess.Popen[bytes]]:
    """A process of berth, which exits with 0 on SIGTERM. `shell` is a command that bash runs before."""
    words = (*words, "--kubeconfig", str(folder / "kubeconfig"))
    running = _after(shell, words) if shell else start(*words)
    try:
        yield running
    finally:
        running.terminate()
        assert await asyncio.to_thread(running.wait) == 0


@asynccontextmanager
async def sandbox(folder: Path) -> AsyncIterator[Cluster]:
    """Two nodes, and a kubeconfig in the folder."""
    cluster = cluster_of(TWO_NODES, 5.0)
    async with cluster.serving() as api:
        write_kubeconfig(folder, api)
        yield cluster


@asynccontextmanager
async def served(folder: Path, *options: str, probes: bool = True, shell: str = "") -> AsyncIterator[tuple[int, int]]:
    """(port of the verbs, port of the probes, perhaps the same) of a berth serve that is ready. For `shell` see
    `process`."""
    verbs, other = free_port(), free_port()
    more = ("--probes", f"127.0.0.1:{other}") if probes else ()
    async with (
        sandbox(folder),
        process(folder, "serve", "--listen", f"127.0.0.1:{verbs}", *more, *options, shell=shell),
    ):
        await answers(f"http://127.0.0.1:{other if probes else verbs}/readyz", 200)
        yield verbs, other if probes else verbs


@asynccontextmanager
async def served_with_console(folder: Path, *options: str, host: str = "127.0.0.1") -> AsyncIterator[tuple[int, int]]:
    """(port of the verbs, port of the console) of a berth serve with the console in its process."""
    pages = free_port()
    async with served(folder, "--console", f"{host}:{pages}", *options, probes=False) as (verbs, _):
        await answers(f"http://127.0.0.1:{pages}/readyz", 200)
        yield verbs, pages


async def filtered(client: httpx.AsyncClient, port: int, body: dict) -> dict:
    """The first answer without an error: the watch may not show the claim yet."""

    async def filter_reply() -> dict | None:
        found = (await client.post(f"http://127.0.0.1:{port}/filter", json=body)).json()
        return None if found["Error"] else found

    return await eventually(filter_reply, "a filter without an error")
