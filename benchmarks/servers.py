"""The processes that a measurement needs: a sandbox fleet, a handler that does nothing, and an asker of the console."""

from __future__ import annotations

import argparse
import asyncio
import http.client
import itertools
import json
import random
import signal
import time

import uvicorn

from benchmarks.allocation import mig_slices
from extender.sandbox import Cluster, carried_machines, listening
from extender.sandbox.machines import Machine, gpu_slice, node_object
from extender.web.asgi import Receive, Scope, Send
from tests.worlds.running_berth import claim, pod, status_in_use

MIXES = {
    "uniform": ["hgx-h100-8"],
    "mixed": ["hgx-h100-8", "hgx-h100-8", "a100-pcie-8-bridged", "dgx1-v100", "l40s-8-pix"],
    "kinds": sorted(carried_machines()),
    "mig": [],
}
KINDS = 16  # of devices in that mix: machines that come round again have a little less memory
MIG_CLASS = {
    "kind": "DeviceClass",
    "metadata": {"name": "mig.example.com"},
    "spec": {"selectors": [{"cel": {"expression": "device.driver == 'mig.example.com'"}}]},
}
CHURN_PER_SECOND = 500
BIND_SECONDS = 0.001  # what every write takes on the API server at least
BIND_PODS = 200
COLD_PODS = 9
PAUSE_SECONDS = 0.02  # between two questions


def fill(cluster: Cluster, count: int, mix: str, occupancy: int) -> None:
    """Nodes, and on each a claim that holds so many percent of its devices, drawn by the node's number."""
    machines, kinds = carried_machines(), MIXES[mix]
    rng = random.Random(1)
    for i in range(count):
        name = f"node-{i:05}.cluster.example.com"
        if mix == "mig":
            cluster.apply(node_object(name, machines["hgx-h100-8"], {}))
            for one in mig_slices(name):
                cluster.apply({"kind": "ResourceSlice", **one})
            driver, devices = "mig.example.com", [f"gpu-{g}-7g-0" for g in range(8)]
        else:
            machine: Machine = machines[kinds[(i % KINDS if mix == "kinds" else i) % len(kinds)]]
            cluster.apply(node_object(name, machine, {}))
            cluster.apply(with_less_memory(gpu_slice(name, machine), i % KINDS // len(kinds) if mix == "kinds" else 0))
            driver, devices = "gpu.nvidia.com", [f"gpu-{g}" for g in range(len(machine.readings))]
        taken = [d for d in devices if rng.random() * 100 < occupancy]
        if taken:
            cluster.store.put("resourceclaims", ("default", f"held-{i}"), held(i, name, driver, taken))


def with_less_memory(slice_: dict, gibibytes: int) -> dict:
    for device in slice_["spec"]["devices"] if gibibytes else ():
        memory = device["capacity"]["memory"]
        memory["value"] = f"{int(memory['value'].removesuffix('Mi')) - 1024 * gibibytes}Mi"
    return slice_


def held(number: int, node: str, driver: str, devices: list[str]) -> dict:
    """A claim as an earlier pod left it."""
    results = [{"request": "gpu", "driver": driver, "pool": node, "device": device} for device in devices]
    one = claim(f"held-{number}", len(devices))
    one["metadata"] |= {"uid": f"held-{number}"}
    one["status"] = status_in_use(results, {"x": f"x-{number}"})
    return one


async def churn(cluster: Cluster, count: int) -> None:
    """Claims come and go on every node in turn, as other pods start and end."""
    number = 0
    while True:
        for _ in range(CHURN_PER_SECOND // 50):
            node, turn = number // 2 % count, number % 2
            key = ("default", f"churn-{node}")
            if turn == 0:
                cluster.store.put(
                    "resourceclaims",
                    key,
                    {
                        **held(0, f"node-{node:05}.cluster.example.com", "gpu.nvidia.com", ["gpu-7"]),
                        "metadata": {"name": key[1], "namespace": "default", "uid": f"churn-{number}"},
                    },
                )
            elif cluster.store.get("resourceclaims", key) is not None:
                cluster.store.remove("resourceclaims", key)
            number += 1
        await asyncio.sleep(0.02)


async def fleet(port: int, count: int, mix: str, occupancy: int) -> None:
    cluster = Cluster()
    cluster.apply(MIG_CLASS)
    fill(cluster, count, mix, occupancy)
    of_mig = {"deviceClassName": "mig.example.com"} if mix == "mig" else {}
    memory = "" if of_mig else 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0'
    shapes = [("one", 1, ""), ("four", 4, memory), ("never", 9, ""), *((f"bind-{i}", 1, "") for i in range(BIND_PODS))]
    shapes += [
        (f"cold-{i}", 1 + i % 4, "" if of_mig else memory.replace("40Gi", f"{4 + i}Gi")) for i in range(COLD_PODS)
    ]
    for name, gpus, selector in shapes:
        cluster.apply(
            claim(
                name,
                gpus,
                selector or ('device.attributes["mig.example.com"].profile == "1g"' if of_mig else ""),
                **of_mig,
            )
        )
        cluster.apply(pod(name, name))
    cluster.apply(pod("plain"))
    stop, churning = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGUSR1, churning.set)

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] != "GET":
            await asyncio.sleep(BIND_SECONDS)
        await cluster.api(scope, receive, send)

    async def churn_when_told() -> None:
        await churning.wait()
        print("churning", flush=True)
        await churn(cluster, count)

    async with listening(slow, "127.0.0.1", port):
        task = asyncio.create_task(churn_when_told())
        print("ready", flush=True)
        await stop.wait()
        task.cancel()
        cluster.store.cut_watches()


async def noop(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body and answer with one node, on /pass with all: no extender on this server can be faster."""
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message["body"])
        more = message.get("more_body", False)
    names = b'["node-00000.cluster.example.com"]'
    if scope["path"] == "/pass":
        whole = b"".join(parts)
        names = whole[whole.rindex(b'"NodeNames":') + 12 : -1]
    body = b'{"NodeNames":' + names + b',"Nodes":null,"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":""}'
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
        }
    )
    await send({"type": "http.response.body", "body": body})


def ask(port: int, paths: list[str]) -> None:
    """Request the paths in turn until SIGTERM; then print the milliseconds of each request."""
    took: list[float] = []
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    connection = http.client.HTTPConnection("127.0.0.1", port)
    print("ready", flush=True)
    for path in itertools.cycle(paths):
        if ended:
            break
        start = time.perf_counter()
        connection.request("GET", path)
        connection.getresponse().read()
        took.append(1000 * (time.perf_counter() - start))
        time.sleep(PAUSE_SECONDS)
    print(json.dumps(took), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["fleet", "noop", "asker"])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--paths", nargs="*", default=["/livez"], help="what the asker asks for")
    parser.add_argument("--mix", choices=list(MIXES), default="uniform")
    parser.add_argument("--occupancy", type=int, default=0, help="percent of devices that are held")
    args = parser.parse_args()
    if args.what == "asker":
        ask(args.port, args.paths)
    elif args.what == "noop":
        uvicorn.run(
            noop,
            host="127.0.0.1",
            port=args.port,
            log_level="error",
            access_log=False,
            lifespan="off",
            http="httptools",
            loop="uvloop",
        )
    else:
        asyncio.run(fleet(args.port, args.nodes, args.mix, args.occupancy))


if __name__ == "__main__":
    main()
