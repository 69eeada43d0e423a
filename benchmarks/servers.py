"""The processes that a measurement needs: a sandbox fleet, Berth, and a handler that does nothing."""

from __future__ import annotations

import argparse
import asyncio
import signal
import statistics
import sys
import time
import urllib.request

import uvicorn

from extender.sandbox.cluster import Cluster
from extender.sandbox.machines import Machine, carried_machines, gpu_slice, node_object

ASKS = 1000
MIXES = {
    "uniform": ["hgx-h100-8"],
    "mixed": ["hgx-h100-8", "hgx-h100-8", "a100-pcie-8-bridged", "dgx1-v100", "l40s-8-pix"],
}


def fill(cluster: Cluster, count: int, mix: str) -> None:
    machines = carried_machines()
    kinds = MIXES[mix]
    for i in range(count):
        machine: Machine = machines[kinds[i % len(kinds)]]
        name = f"node-{i:05}.cluster.example.com"
        cluster.apply(node_object(name, machine, {}))
        cluster.apply(gpu_slice(name, machine))


async def fleet(port: int, count: int, mix: str) -> None:
    from tests.berthing import claim, pod

    cluster = Cluster()
    fill(cluster, count, mix)
    for name, gpus, selector in (("one", 1, ""), ("four", 4, 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0'), ("never", 9, "")):
        cluster.apply(claim(name, gpus, selector))
        cluster.apply(pod(name, name))
    cluster.apply(pod("plain"))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with cluster.serving(port=port):
        print("ready", flush=True)
        await stop.wait()


async def noop(scope, receive, send) -> None:
    """Reads the body, answers one name: the floor of any extender on this server."""
    while (await receive()).get("more_body"):
        pass
    body = b'{"NodeNames":["node-00000.cluster.example.com"],"Nodes":null,"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":""}'
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]})
    await send({"type": "http.response.body", "body": body})


def ask(port: int) -> None:
    """Explains a pod that fits nowhere again and again until it is ended; then prints the median milliseconds."""
    took: list[float] = []
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    print("ready", flush=True)
    while not ended and len(took) < ASKS:
        start = time.perf_counter()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/explain/default/never") as reply:
            reply.read()
        took.append(1000 * (time.perf_counter() - start))
        time.sleep(0.02)
    print(statistics.median(took), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["fleet", "noop", "asker"])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--mix", default="uniform")
    args = parser.parse_args()
    if args.what == "asker":
        ask(args.port)
    elif args.what == "noop":
        uvicorn.run(noop, host="127.0.0.1", port=args.port, log_level="error", access_log=False, lifespan="off", http="httptools", loop="uvloop")
    else:
        asyncio.run(fleet(args.port, args.nodes, args.mix))


if __name__ == "__main__":
    sys.exit(main())
