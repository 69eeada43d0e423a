"""berth assess on a large cluster: writes a snapshot of so many nodes and pods, with the first GPUs that are free.

    python -m benchmarks.assess [NODES [PODS]]

prints the seconds and the memory of the command on it. Pods have 1 or 2 GPUs; each 80th is the first of a gang
of 8 pods with 4 GPUs, and each 200th waits for 16 GPUs of one node.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson

from extender.api.fields import Json
from extender.sandbox import carried_machines
from extender.sandbox.machines import gpu_slice, nic_slice, node_object
from tests.worlds.running_berth import status_in_use

_MACHINES = ("hgx-h100-8", "hgx-h100-8", "a100-pcie-8-bridged", "dgx1-v100", "gb200-nvl72-tray")
_CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu.nvidia.com"},
    "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]},
}
_GANG, _WAITS = 80, 200
_MAX_GPUS = 16  # GPUs that no node has


def cluster(nodes: int, pods: int, seed: int = 1) -> Iterator[Json]:
    """The objects of a cluster whose pods have the first GPUs that were free, in the order of the nodes."""
    yield _CLASS
    left: dict[str, int] = {}  # node to its first free GPU
    sizes: dict[str, int] = {}
    for number in range(nodes):
        machine, name = carried_machines()[_MACHINES[number % len(_MACHINES)]], f"n{number:05}"
        labels = {"topology.kubernetes.io/rack": f"r{number // 16}"}
        yield node_object(name, machine, labels)
        yield gpu_slice(name, machine)
        if machine.nics:
            yield nic_slice(name, machine)
        left[name], sizes[name] = 0, len(machine.readings)
    yield from _pods(pods, left, sizes, random.Random(seed))


def _pods(pods: int, left: dict[str, int], sizes: dict[str, int], rng: random.Random) -> Iterator[Json]:
    names, first, number = list(left), 0, 0
    while number < pods:
        size, count = (4, 8) if number % _GANG == 0 else (rng.choice((1, 1, 1, 2)), 1)
        group = f"gang-{number}" if count > 1 else ""
        if number % _WAITS == 1:
            yield from pod(f"p{number}", _MAX_GPUS)
            number += 1
            continue
        for _ in range(count):
            fits = (name for name in names[first:] if sizes[name] - left[name] >= size)
            node = next(fits, "")
            yield from pod(f"p{number}", size, node, range(left.get(node, 0), left.get(node, 0) + size), group)
            if node:
                left[node] += size
            while first < len(names) - 1 and left[names[first]] >= sizes[names[first]]:
                first += 1
            number += 1


def pod(name: str, gpus: int, node: str = "", indexes: Iterable[int] = (), group: str = "") -> Iterator[Json]:
    """A pod with a claim; on a node, with these of its GPUs."""
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": gpus}}
    metadata = {"namespace": "default", "name": name, "uid": f"uid-{name}"}
    claim: Json = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {**metadata, "uid": f"claim-{name}"},
        "spec": {"devices": {"requests": [request]}},
    }
    if node:
        of = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": node}
        claim["status"] = status_in_use([{**of, "device": f"gpu-{index}"} for index in indexes], {name: f"uid-{name}"})
    labels = {"scheduling.x-k8s.io/pod-group": group} if group else {}
    spec: Json = {
        "schedulerName": "default-scheduler",
        "resourceClaims": [{"name": "gpus", "resourceClaimName": name}],
        "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}],
        **({"nodeName": node} if node else {}),
    }
    status = {"phase": "Running" if node else "Pending"}
    yield {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "labels": labels},
        "spec": spec,
        "status": status,
    }
    yield claim


def main() -> None:
    """Measure the command on a new snapshot."""
    nodes, pods = (int(word) for word in (*sys.argv[1:3], "5000", "20000")[:2]) if sys.argv[1:] else (5000, 20000)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.json"
        path.write_bytes(orjson.dumps({"apiVersion": "v1", "kind": "List", "items": list(cluster(nodes, pods))}))
        print(f"{nodes} nodes, {pods} pods: {path.stat().st_size >> 20} MiB of JSON")
        start = time.monotonic()
        subprocess.run([sys.executable, "-m", "extender", "assess", str(path)], check=True)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = used.ru_utime + used.ru_stime
        print(f"{time.monotonic() - start:.1f} s, {cpu:.1f} s of CPU, at most {used.ru_maxrss >> 10} MiB in a process")


if __name__ == "__main__":
    main()
