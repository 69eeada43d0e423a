"""Devices that every node sees: what a claim on one of them, a new slice and a DeviceTaintRule cost.

All times are CPU time, so the load of the machine changes them little. A stretch is the time between two turns of the
event loop while one call waits.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import time
from collections.abc import Callable
from functools import partial

from benchmarks.fleet import GPU_DRIVER, Fleet
from extender.api.pods import Pod, decode_pod
from extender.runtime.informers import CacheRefresh
from tests.worlds.running_berth import status_in_use

NET = "net.example.com"
CLAIMS = 7


def net_slice(number: int, devices: int) -> dict:
    """A slice for all nodes."""
    pool = {"name": f"net-{number}", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": NET, "allNodes": True, "pool": pool, "devices": [{"name": f"d{i}"} for i in range(devices)]}
    return {"metadata": {"name": f"net-{number}"}, "spec": spec}


def pod(fleet: Fleet, uid: str, classes: list[str]) -> Pod:
    """A pod that asks for one device of each class."""
    requests = [{"name": f"r{i}", "exactly": {"deviceClassName": name}} for i, name in enumerate(classes)]
    metadata = {"namespace": "x", "name": uid, "uid": uid, "resourceVersion": "1"}
    fleet.apply("resourceclaims", f"x/{uid}", {"metadata": metadata, "spec": {"devices": {"requests": requests}}})
    found = {"metadata": metadata, "spec": {"resourceClaims": [{"name": "c", "resourceClaimName": uid}]}}
    fleet.apply("pods", f"x/{uid}", found)
    return decode_pod(found)


def hold(fleet: Fleet, number: int) -> None:
    """A claim on a device of the first slice."""
    result = {"request": "r", "driver": NET, "pool": "net-0", "device": f"d{number}"}
    status = status_in_use([result], {"y": "y"})
    metadata = {"namespace": "held", "name": f"net{number}", "uid": f"net{number}", "resourceVersion": "1"}
    spec: dict = {"devices": {"requests": []}}
    fleet.apply("resourceclaims", f"held/net{number}", {"metadata": metadata, "spec": spec, "status": status})


def cpu_ms(work: Callable[[], object]) -> float:
    begin = time.thread_time()
    work()
    return 1000 * (time.thread_time() - begin)


async def stretches(fleet: Fleet, change: Callable[[], None]) -> tuple[float, float]:
    """(the longest stretch, all CPU time) in milliseconds, from a change until a snapshot has it."""
    took = [cpu_ms(change)]
    task = asyncio.create_task(CacheRefresh(fleet.cache, time.thread_time).wait())
    while not task.done():
        before = time.thread_time()
        await asyncio.sleep(0)
        took.append(1000 * (time.thread_time() - before))
    took.append(cpu_ms(fleet.cache.snapshot))
    return max(took), sum(took)


def filter_until_done(fleet: Fleet, asked: Pod) -> None:
    """Filter a pod again, as kube-scheduler does, until Berth has evaluated all nodes."""
    while fleet.filter(asked).error:
        fleet.now += 10
        while fleet.filter_service.evaluations.work():
            fleet.now += 1
    fleet.cache.release(asked.uid)


def measure(nodes: int, devices: int) -> None:
    fleet = Fleet("mixed")
    fleet.apply("deviceclasses", NET, {"metadata": {"name": NET}, "spec": {"selectors": [_of(NET)]}})
    fleet.fill(nodes, 0.5)
    fleet.cache.snapshot()
    gc.collect()
    gc.freeze()
    gc.disable()  # serve collects only the young generation, between two calls
    print(f"\n{nodes} half-full nodes, {devices} shared devices in a slice; CPU milliseconds", flush=True)
    rule = {"key": "k", "value": "v", "effect": "NoSchedule"}
    changes: dict[str, Callable[[], None]] = {
        f"slice {i}": partial(fleet.apply, "resourceslices", f"net-{i}", net_slice(i, devices)) for i in range(2)
    }
    for driver in (NET, GPU_DRIVER):
        obj = {"metadata": {"name": "r"}, "spec": {"deviceSelector": {"driver": driver}, "taint": rule}}
        changes[f"taint rule for {driver}"] = partial(fleet.apply, "devicetaintrules", "r", obj)
        changes[f"its end, {driver}"] = partial(fleet.apply, "devicetaintrules", "r", None)
    for name, change in changes.items():
        longest, everything = asyncio.run(stretches(fleet, change))
        print(f"{name}: longest stretch {longest:.1f}, in all {everything:.0f}", flush=True)
    pods = {
        "a GPU": pod(fleet, "gpu", [GPU_DRIVER]),
        "a shared device": pod(fleet, "net", [NET]),
        "both": pod(fleet, "both", [GPU_DRIVER, NET]),
    }
    took: dict[str, list[float]] = {name: [] for name in ("snapshot", *pods)}
    for number in range(CLAIMS):
        hold(fleet, number)
        took["snapshot"].append(cpu_ms(fleet.cache.snapshot))
        for name, asked in pods.items():
            took[name].append(cpu_ms(partial(filter_until_done, fleet, asked)))
            fleet.cache.snapshot()
    medians = ", ".join(f"{name} {statistics.median(values[1:]):.1f}" for name, values in took.items())
    print(f"after a claim on a shared device: {medians}", flush=True)


def _of(driver: str) -> dict:
    return {"cel": {"expression": f"device.driver == '{driver}'"}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--devices", type=int, default=128)
    args = parser.parse_args()
    measure(args.nodes, args.devices)


if __name__ == "__main__":
    main()
