"""Reads the GPUs of this machine, has the agent publish them, and has Berth place a pod on one: `make gpu-check`.

It needs an NVIDIA driver, and neither a network nor a cluster: the API server is the embedded one. Without make:
`PYTHONPATH=. python3 .ci/gpu_check.py`. It prints what it saw and ends within two minutes; exit code 1 if something is
missing.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
import signal
import statistics
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from extender.agent.reader_process import ReaderProcess, ReadFailed
from extender.cli.logs import set_up_logging
from extender.entry.all_in_one import both
from extender.sandbox import Cluster, Scheduler, listening, write_kubeconfig
from extender.sandbox.machines import Machine, gpu_slice, node_object
from extender.topology.agent_slices import DRIVER, Reading

NODE, PORT = "gpu-node", 18886
LIMIT_SECONDS = 110.0
READS = 100
# Every GPU has these; a value that is 0, '' or None was not read.
NEEDED = ("uuid", "product", "pci_bus_id", "pcie_generation", "memory_total_bytes", "memory_free_bytes")
missing: list[str] = []


def check(name: str, value: object, note: str = "") -> None:
    """Print a line, and remember the name if there is no value."""
    print(f"{'ok' if value else 'MISSING':8}{name}: {value}{f' ({note})' if note else ''}", flush=True)
    if not value:
        missing.append(name)


async def wait(what: str, condition: Callable[[], Awaitable[Any]], seconds: float = 40.0) -> Any:
    """The condition's value once it is true, and how long that took; None after the limit."""
    start, found = time.monotonic(), await condition()
    while not found and time.monotonic() < start + seconds:
        await asyncio.sleep(0.1)
        found = await condition()
    check(what, bool(found), f"after {time.monotonic() - start:.1f} s")
    return found


async def read() -> tuple[Reading, ...]:
    """The readings; how long they take; and that the reader comes back after a crash."""
    process, times, start = ReaderProcess(), list[float](), time.monotonic()
    try:
        found = await process.read()
    except ReadFailed as error:
        what = "no NVML on this machine" if process.failures["nvml"] else "NVML of this machine could not be read"
        sys.exit(f"{what}: {str(error).removeprefix('NVML: ')}")
    check("GPUs of the first reading", len(found), f"{time.monotonic() - start:.2f} s with the start of its process")
    for _ in range(READS):
        start = time.monotonic()
        found = await process.read()
        times.append(1000 * (time.monotonic() - start))
    print(
        f"        a reading takes {statistics.median(times):.2f} ms (median), {max(times):.2f} ms (longest of {READS})"
    )
    for position, gpu in enumerate(found):
        values = asdict(gpu)
        for name, value in values.items():
            if name in NEEDED:
                check(f"gpu-{position} {name}", value)
            else:
                print(f"        gpu-{position} {name}: {value!r}")
    pid = process.pid or 0
    print(f"        memory of the reader process: {memory([pid])}")
    os.kill(pid, signal.SIGSEGV)
    start, problem = time.monotonic(), ""
    while process.pid in {pid, None} and time.monotonic() < start + 30:
        try:
            found = await process.read()
        except ReadFailed as error:
            problem = str(error)
            await asyncio.sleep(0.2)
    check("the crash of the reader was named", problem)
    check(
        "GPUs of the next reading after the crash",
        process.pid and len(found),
        f"after {time.monotonic() - start:.1f} s",
    )
    await process.stop()
    return found


def driver() -> str:
    """The version of NVIDIA's driver, as this process sees it."""
    import pynvml

    pynvml.nvmlInit()
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()


def memory(pids: list[int]) -> str:
    """RSS and PSS in MiB, summed."""
    texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    sums = {
        kind: sum(int(found[1]) for text in texts if (found := re.search(rf"^{kind}: +(\d+)", text, re.MULTILINE)))
        for kind in ("Rss", "Pss")
    }
    return ", ".join(f"{kind} {kib / 1024:.1f} MiB" for kind, kib in sums.items())


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def cluster_of(readings: tuple[Reading, ...]) -> Cluster:
    """A cluster with this machine as its node, and with the slice that NVIDIA's DRA driver would publish."""
    first = readings[0]
    machine = Machine("this-machine", first.product, first.memory_total_bytes, readings)
    cluster, driver_slice = Cluster(), gpu_slice(NODE, machine)
    for device, gpu in zip(driver_slice["spec"]["devices"], readings, strict=True):
        device["attributes"]["uuid"] = {"string": gpu.uuid}
    cluster.apply(node_object(NODE, machine, {}))
    cluster.apply(driver_slice)
    return cluster


@asynccontextmanager
async def agent(api: str) -> AsyncIterator[Process]:
    """`berth agent` as a process of its own, until SIGTERM."""
    with TemporaryDirectory() as folder:
        config = str(write_kubeconfig(Path(folder), api))
        words = ("agent", "--node", NODE, "--kubeconfig", config, "--probes", f"127.0.0.1:{PORT}")
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "extender", *words)
        try:
            yield process
            start = time.monotonic()
            process.terminate()
            check("the agent ends on SIGTERM", await process.wait() == 0, f"after {time.monotonic() - start:.2f} s")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def published(cluster: Cluster, process: Process) -> None:
    """The agent's slice, its memory, and its next reading after the crash of its reader."""

    async def slice_() -> Any:
        return cluster.store.get("resourceslices", ("", f"{DRIVER}-{NODE}"))

    obj = await wait("the agent's slice", slice_)
    if not obj:
        return
    for device in obj["spec"]["devices"]:
        values = {name: next(iter(value.values())) for name, value in device["attributes"].items()}
        print(f"        {device['name']}: {values}")
    before = children(process.pid)
    used = memory([process.pid, *before])
    print(f"        memory of the agent's {1 + len(before)} processes: {used}; a pod needs some 10 less: no kubeconfig")
    check("the agent has one reader process", len(before) == 1)
    os.kill(before[0], signal.SIGSEGV)

    async def again() -> bool:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{PORT}", trust_env=False) as client:
            counted = 'berth_nvml_failures_total{cause="crash"} 1.0' in (await client.get("/metrics")).text
            alive = (await client.get("/livez")).text
        now = children(process.pid)
        return counted and alive == "ok" and bool(now) and now != before

    await wait("the agent reads again after the crash of its reader", again)


async def placed(cluster: Cluster, api: str) -> None:
    """One pod with one GPU, which Berth places by what the agent says."""
    async with both(api) as (app, _), listening(app, "127.0.0.1", 0) as url:

        async def ready() -> bool:
            return not app.service.informers.not_ready

        await wait("berth serve is ready", ready)
        app.service.supervisor.start("scheduler", Scheduler(cluster.store, url).run)
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
        cluster.apply(
            {"kind": "ResourceClaim", "metadata": {"name": "one"}, "spec": {"devices": {"requests": [request]}}}
        )
        containers = [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}]
        claims = [{"name": "gpu", "resourceClaimName": "one"}]
        spec = {"schedulerName": "berth-scheduler", "resourceClaims": claims, "containers": containers}
        cluster.apply({"kind": "Pod", "metadata": {"name": "one"}, "spec": spec})

        async def bound() -> Any:
            pod = cluster.store.get("pods", ("default", "one"))
            return pod["spec"].get("nodeName") if pod else ""

        node = await wait("Berth bound the pod", bound)
        claim = cluster.store.get("resourceclaims", ("default", "one")) or {}
        results = ((claim.get("status", {}).get("allocation") or {}).get("devices") or {}).get("results")
        check("the claim's device", results and f"{results[0]['pool']}/{results[0]['device']}")
        fabric = app.service.cache.snapshot().node_infos[node or NODE].fabric
        check("Berth believed the live agent", fabric is not None and fabric.source.value == "live agent")


async def main() -> int:
    """Run all parts within the limit."""
    set_up_logging("error")
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs")
    start = time.monotonic()
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            readings = await read()
            check("driver", driver())
            cluster = cluster_of(readings)
            async with cluster.serving() as api, agent(api) as process:
                await published(cluster, process)
                await placed(cluster, api)
    except ReadFailed as error:
        check(f"a reading of NVML, because {error}", value=False)
    except TimeoutError:
        check(f"the end within {LIMIT_SECONDS:g} s", value=False)
    print(f"{len(missing)} missing, {time.monotonic() - start:.0f} s")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
