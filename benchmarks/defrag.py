"""berth defrag on a large cluster: the seconds of CPU for each shape, and apart from it those for reading.

    python -m benchmarks.defrag [--nodes N] [--full PART] [--shape WORD] [--save FILE]

On each node, pods of 1, 2 and 4 GPUs have some of the GPUs, never none. Of the pods, some belong to gangs of up to four
nodes, some have no controller, and PodDisruptionBudgets protect some. `--save` writes the snapshot, for the command.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import orjson

from benchmarks.allocation import mig_slices, shared_slices
from extender.api.fields import Json
from extender.api.pods import SCHEDULER
from extender.assess import RestartAdvice, Terms, advise_restarts, facts_of, movable_pods, reading_of, restart_advice
from extender.assess.wanted_pods import Shape, Wanted, wanted_objects
from extender.base.deadline import Deadline
from extender.cli.logs import set_up_logging
from extender.policy import Policy
from extender.replay import Proof, prove
from extender.sandbox import carried_machines
from extender.sandbox.machines import gpu_slice, nic_slice, node_object
from tests.worlds.running_berth import status_in_use

GPU, NIC, MIG, SHARED = "gpu.nvidia.com", "dra.net", "mig.example.com", "shared.example.com"
MACHINES = ("hgx-h100-8",) * 8 + ("a100-pcie-8-bridged",) * 3 + ("dgx1-v100",) * 2 + ("l40s-8-pix",) * 2
OTHERS = ("gb200-nvl72-tray",) * 3 + (MIG, SHARED)
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
CLIQUE = "nvidia.com/gpu.clique"
_SECONDS = 60.0
_SEED = 2  # with 1, one restart makes room for the 8 shares, and there is little to search


class World:
    """The objects of a cluster of which about this part of the devices is in use."""

    def __init__(self, nodes: int, full: float, seed: int) -> None:
        self._rng = random.Random(seed)
        self._full = full
        self._gang: list[int] = [0, 0]  # its number, and its pods that are still to come
        self._pods = 0
        self.objects = [_class(name) for name in (GPU, NIC, MIG, SHARED)]
        kinds, trays = MACHINES + OTHERS, 0
        for number in range(nodes):
            kind, name = kinds[number % len(kinds)], f"n{number:05}"
            if kind in (MIG, SHARED):
                self._partitioned(name, kind)
                continue
            labels = {"topology.kubernetes.io/rack": f"r{number // 16}"}
            if "gb200" in kind:
                labels[CLIQUE] = f"clique-{trays // 18}"
                trays += 1
            self._whole(name, kind, labels)
        for number in range(20):
            self.objects.append(_budget(f"b{number}", number % 4))

    def _whole(self, name: str, kind: str, labels: dict[str, str]) -> None:
        machine, rng = carried_machines()[kind], self._rng
        self.objects += [node_object(name, machine, labels), gpu_slice(name, machine)]
        nics: list[str] = []
        if machine.nics:
            self.objects.append(nic_slice(name, machine))
            nics = [one["name"] for one in self.objects[-1]["spec"]["devices"]]
        free = list(range(machine.count))
        rng.shuffle(free)
        usual = round(machine.count * (1 - self._full))
        left = 0 if kind == "l40s-8-pix" else min(max(usual + rng.choice((-1, 0, 0, 1)), 0), machine.count - 1)
        while len(free) > left:
            size = min(rng.choice((1, 1, 1, 2, 2, 4)), len(free) - left)
            own, free = sorted(free[:size]), free[size:]
            results = [_result(GPU, name, f"gpu-{index}") for index in own]
            if len(nics) >= machine.count and kind == "hgx-h100-8":
                results += [_result(NIC, name, nics[index], "nic") for index in own]
            self._pod(name, results)

    def _partitioned(self, name: str, kind: str) -> None:
        node, rng = node_object(name, carried_machines()["hgx-h100-8"], {}), self._rng
        slices = mig_slices(name) if kind == MIG else shared_slices(name)
        self.objects += [
            node,
            *({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **one} for one in slices),
        ]
        for gpu in range(8):
            for part in range(8) if kind == MIG else range(3):
                if rng.random() < self._full:
                    device = f"gpu-{gpu}-1g-{part}" if kind == MIG else f"gpu-{gpu}"
                    result = _result(kind, name, device)
                    if kind == SHARED:
                        result |= {"consumedCapacity": {"memory": "20Gi"}, "shareID": f"s{self._pods}"}
                    self._pod(name, [result])

    def _pod(self, node: str, results: list[Json]) -> None:
        rng, name = self._rng, f"p{self._pods}"
        self._pods += 1
        owner = (
            "" if rng.random() < 0.02 else rng.choice(("ReplicaSet", "ReplicaSet", "Job", "Job", "Job", "StatefulSet"))
        )
        annotations, labels = {}, {"app": f"a{self._pods % 200}"}
        if not self._gang[1] and rng.random() < 0.05:
            self._gang = [self._gang[0] + 1, rng.choice((2, 4))]
        if self._gang[1]:
            self._gang[1] -= 1
            annotations, owner = {"berth.dev/group": f"g{self._gang[0]}", "berth.dev/group-min": "2"}, "Job"
        started = (NOW - timedelta(minutes=rng.randint(1, 6000))).isoformat().replace("+00:00", "Z")
        metadata: Json = {"namespace": "default", "name": name, "uid": f"uid-{name}", "creationTimestamp": started}
        counts: dict[str, list[Json]] = {}
        for one in results:
            counts.setdefault(one["request"], []).append(one)
        requests = [
            {"name": request, "exactly": {"deviceClassName": own[0]["driver"], "count": len(own)}}
            for request, own in counts.items()
        ]
        reference = {"apiVersion": "v1", "kind": owner, "name": f"{name}-owner", "uid": "o", "controller": True}
        self.objects += [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    **metadata,
                    "labels": labels,
                    "annotations": annotations,
                    **({"ownerReferences": [reference]} if owner else {}),
                },
                "spec": {
                    "schedulerName": SCHEDULER,
                    "nodeName": node,
                    "resourceClaims": [{"name": "gpus", "resourceClaimName": name}],
                    "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}],
                },
                "status": {"phase": "Running", "startTime": started},
            },
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {**metadata, "uid": f"claim-{name}", "annotations": annotations},
                "spec": {"devices": {"requests": requests}},
                "status": status_in_use(results, {name: f"uid-{name}"}),
            },
        ]


def _class(name: str) -> Json:
    selectors = [{"cel": {"expression": f"device.driver == '{name}'"}}]
    metadata = {"name": name}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": metadata,
        "spec": {"selectors": selectors},
    }


def _budget(app: str, allowed: int) -> Json:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"namespace": "default", "name": app},
        "spec": {"selector": {"matchLabels": {"app": f"a{app[1:]}"}}},
        "status": {"disruptionsAllowed": allowed},
    }


def _result(driver: str, node: str, device: str, request: str = "gpu") -> Json:
    return {"request": request, "driver": driver, "pool": node, "device": device}


def _product(word: str) -> str:
    return f"device.attributes['{GPU}'].productName.contains('{word}')"


def _claiming(*requests: Json, constraints: list[Json] | None = None) -> list[Json]:
    """A pod with a claim of these requests."""
    claim, pod = Shape(1).objects()
    devices: Json = {"requests": [{"name": f"r{i}", "exactly": one} for i, one in enumerate(requests)]}
    claim["spec"]["devices"] = devices | ({"constraints": constraints} if constraints else {})
    del pod["spec"]["containers"][0]["resources"]
    return [claim, pod]


def _near(count: int) -> list[Json]:
    """GPUs and NICs at one PCIe root."""
    same = {"requests": ["r0", "r1"], "matchAttribute": "resource.kubernetes.io/pcieRoot"}
    asked = ({"deviceClassName": GPU, "count": count}, {"deviceClassName": NIC, "count": count})
    return _claiming(*asked, constraints=[same] if count == 1 else [])


_MEMORY = f"device.capacity['{GPU}'].memory.compareTo(quantity('70Gi')) >= 0"
SHAPES: dict[str, Callable[[], list[Json]]] = {
    **{f"{n} joined": Shape(n).objects for n in (1, 2, 4, 8)},
    "1 of a full product": Shape(1, selector=_product("L40S")).objects,
    "2 of a full product": Shape(2, selector=_product("L40S")).objects,
    "8 by memory": Shape(8, selector=_MEMORY).objects,
    "4 joined V100": Shape(4, selector=_product("V100")).objects,
    **{f"{n} pods of 8": Shape(8, n).objects for n in (2, 4, 8)},
    "8 pods of 8 by memory": Shape(8, 8, selector=_MEMORY).objects,
    "a clique of 18": Shape(4, 18, CLIQUE, selector=_product("GB200")).objects,
    "half a clique": Shape(4, 9, CLIQUE, selector=_product("GB200")).objects,
    "a rack of 8": Shape(8, 4, "topology.kubernetes.io/rack").objects,
    "a profile": lambda: _claiming(_mig("7g", 1)),
    "8 profiles": lambda: _claiming(_mig("4g", 8)),
    "a share": lambda: _claiming(_share("70Gi", 1)),
    "8 shares": lambda: _claiming(_share("50Gi", 8)),
    "a GPU and its NIC": lambda: _near(1),
    "8 GPUs and 8 NICs": lambda: _near(8),
}


def _mig(profile: str, count: int) -> Json:
    selector = f"device.attributes['{MIG}'].profile == '{profile}'"
    return {"deviceClassName": MIG, "count": count, "selectors": [{"cel": {"expression": selector}}]}


def _share(memory: str, count: int) -> Json:
    return {"deviceClassName": SHARED, "count": count, "capacity": {"requests": {"memory": memory}}}


def main() -> None:
    """Measure each shape."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--full", type=float, default=0.5, help="the part of the devices that is in use")
    parser.add_argument("--shape", default="", help="only shapes with this word")
    parser.add_argument("--save", type=Path)
    args = parser.parse_args()
    objects = World(args.nodes, args.full, _SEED).objects
    content = orjson.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    if args.save:
        args.save.write_bytes(content)
        return
    set_up_logging("error")  # each bind of the proof would write a line
    pods = sum(one["kind"] == "Pod" for one in objects)
    print(f"{args.nodes} nodes, {args.full:.0%} in use, {pods} pods; seconds of CPU")
    clock = time.process_time
    began = clock()
    objects = orjson.loads(content)["items"]
    print(f"parse JSON {clock() - began:.1f}", flush=True)
    began = clock()
    reading = reading_of(objects, {}, "the benchmark")
    facts, snapshot = facts_of(reading), reading.cache.snapshot()
    print(f"read objects {clock() - began:.1f}", flush=True)
    began = clock()
    movable = movable_pods(facts, snapshot, Terms(NOW, 0))
    print(f"which pods may be restarted {clock() - began:.1f}: {len(movable.restarts)} restarts", flush=True)
    for name, make in SHAPES.items():
        if args.shape in name:
            _measure(
                name,
                wanted_objects(make(), snapshot, name),
                lambda one: advise_restarts(facts, one, movable, Policy(), Deadline(_SECONDS, clock)),
            )


def _measure(name: str, wanted: Wanted, ask: Callable[[Wanted], RestartAdvice]) -> None:
    proving, began = 0.0, time.process_time()

    def timed(*args: Any) -> Proof:
        nonlocal proving
        before = time.process_time()
        found = prove(*args)
        proving = time.process_time() - before
        return found

    with patch.object(restart_advice, "prove", timed):
        found = ask(wanted)
    took = time.process_time() - began
    what = f"{found.verdict}, cost {found.cost:g}, {len(found.moves)} restarts"
    rest = "" if found.is_cheapest else ", maybe not the cheapest"
    proof = "proved" if found.is_proved else found.proof or found.reason
    print(f"{took:6.1f} (proof {proving:.1f})  {name}: {what}{rest}: {proof}", flush=True)


if __name__ == "__main__":
    main()
