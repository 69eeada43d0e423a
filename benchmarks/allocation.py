"""Cost of allocating on one node, by shape and by size of the cluster: ratios within one run."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import orjson

from extender.allocation import Features
from extender.api.device_classes import decode_class
from extender.api.nodes import decode_node
from extender.api.object_meta import ObjectKey
from extender.api.pods import Pod
from extender.api.resource_claims import PodClaim, decode_claim
from extender.api.resource_slices import SliceDecoder
from extender.cache import ClusterCache
from extender.cel.dra import Masks
from extender.policy import Policy
from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import gpu_slice, node_object
from extender.scheduling import EvaluationContext, PodRequirements, evaluate, requirements_of
from tests.worlds.running_berth import claim, status_in_use

MACHINE = carried_machines()["a100-pcie-8-bridged"]
PROFILES = {"1g": 1, "2g": 2, "4g": 4, "7g": 8}


def mig_slices(node: str) -> list[dict]:
    """Eight GPUs of eight memory slices each, every aligned placement of four profiles."""
    devices, counters = [], []
    for gpu in range(8):
        counters.append({"name": f"gpu-{gpu}", "counters": {f"memory-slice-{i}": {"value": "1"} for i in range(8)}})
        for profile, size in PROFILES.items():
            for start in range(0, 8, size):
                used = {f"memory-slice-{i}": {"value": "1"} for i in range(start, start + size)}
                devices.append(
                    {
                        "name": f"gpu-{gpu}-{profile}-{start}",
                        "attributes": {"profile": {"string": profile}},
                        "consumesCounters": [{"counterSet": f"gpu-{gpu}", "counters": used}],
                    }
                )
    pool = {"name": node, "generation": 1, "resourceSliceCount": 3}
    halves = [devices[:64], devices[64:]]
    return [
        *(
            {
                "metadata": {"name": f"mig-{node}-{i}"},
                "spec": {"driver": "mig.example.com", "nodeName": node, "pool": pool, "devices": half},
            }
            for i, half in enumerate(halves)
        ),
        {
            "metadata": {"name": f"mig-{node}-c"},
            "spec": {"driver": "mig.example.com", "nodeName": node, "pool": pool, "sharedCounters": counters},
        },
    ]


def shared_slices(node: str) -> list[dict]:
    """Eight GPUs of 80 GiB that several claims may share."""
    memory = {"value": "80Gi", "requestPolicy": {"default": "10Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}}
    devices = [{"name": f"gpu-{i}", "allowMultipleAllocations": True, "capacity": {"memory": memory}} for i in range(8)]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return [
        {
            "metadata": {"name": f"shared-{node}"},
            "spec": {"driver": "shared.example.com", "nodeName": node, "pool": pool, "devices": devices},
        }
    ]


def whole_slices(node: str) -> list[dict]:
    return [gpu_slice(node, MACHINE), fabric_slice(node, MACHINE)]


def cluster(nodes: int, slices: Callable[[str], list[dict]]) -> ClusterCache:
    cache, decoder = ClusterCache(), SliceDecoder()
    for name, driver in (
        ("gpu.nvidia.com", "gpu.nvidia.com"),
        ("mig", "mig.example.com"),
        ("shared", "shared.example.com"),
    ):
        cache.apply_class(
            name,
            decode_class(
                {
                    "metadata": {"name": name},
                    "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}]},
                }
            ),
        )
    for i in range(nodes):
        name = f"n{i}"
        cache.apply_node(name, decode_node(node_object(name, MACHINE, {})))
        for obj in slices(name):
            slice_ = decoder.decode(obj)
            cache.apply_slice(slice_.name, slice_)
    return cache


def cost(cache: ClusterCache, obj: dict, constraint: str = "") -> float:
    """Microseconds of one evaluation, nothing remembered but the match masks."""
    if constraint:
        obj["spec"]["devices"]["constraints"] = [{"matchAttribute": constraint}]
    obj["metadata"]["uid"] = "u"
    cache.apply_claim(ObjectKey("default", "c"), decode_claim(obj))
    snapshot, policy = cache.snapshot(), Policy()
    requirements = requirements_of(
        Pod(ObjectKey("default", "p"), "pod", claims=(PodClaim("c", "c"),)), snapshot, policy
    )
    assert isinstance(requirements, PodRequirements), requirements
    context = EvaluationContext(Masks(), Features(), snapshot.baseline)
    node_infos = list(snapshot.node_infos.values())
    for node_info in node_infos:
        evaluate(node_info, requirements, context)
    start = time.perf_counter()
    for node_info in node_infos:
        evaluate(node_info, requirements, context)
    return (time.perf_counter() - start) / len(node_infos) * 1e6


def main() -> None:
    small, large = cluster(50, whole_slices), cluster(400, whole_slices)
    memory = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0"
    shapes = [
        ("1 GPU", claim("c"), ""),
        ("4 GPUs", claim("c", 4), ""),
        ("4 GPUs, selector", claim("c", 4, memory), ""),
        ("2 GPUs, matchAttribute", claim("c", 2), "resource.kubernetes.io/pcieRoot"),
        ("4 GPUs that cannot match", claim("c", 4), "gpu.nvidia.com/uuid"),
    ]
    print(f"{'us per node':28} {'50 nodes':>10} {'400 nodes':>10} {'ratio':>6}")
    for name, obj, constraint in shapes:
        row(name, cost(small, obj, constraint), cost(large, obj, constraint))
    small, large = cluster(50, mig_slices), cluster(400, mig_slices)
    for profile in ("1g", "4g"):
        obj = claim("c", selector=f"device.attributes['mig.example.com'].profile == '{profile}'", deviceClassName="mig")
        row(f"shared counters, {profile}", cost(small, obj), cost(large, obj))
    small, large = cluster(50, shared_slices), cluster(400, shared_slices)
    for count in (1, 4):
        obj = claim("c", count, deviceClassName="shared", capacity={"requests": {"memory": "20Gi"}})
        row(f"{count} shares of 20Gi", cost(small, obj), cost(large, obj))
    print(f"claim events per second of CPU, 1,000 nodes: {events_per_second(1000, 20_000):,.0f}")


def events_per_second(nodes: int, count: int) -> float:
    """Claim events as a watch brings them, from the line to the cache, with a snapshot every 50."""
    cache = cluster(nodes, whole_slices)
    lines = []
    for i in range(count):
        one = claim(f"c{i % 5000}", 2)
        one["metadata"] |= {"uid": f"u{i % 5000}", "resourceVersion": str(i + 1)}
        results = [
            {"request": "gpu", "driver": "gpu.nvidia.com", "pool": f"n{i % nodes}", "device": f"gpu-{d}"}
            for d in range(2)
        ]
        one["status"] = status_in_use(results, {"p": f"p{i}"}) if i // 5000 % 2 == 0 else {}
        lines.append(orjson.dumps({"type": "MODIFIED", "object": one}))
    cache.snapshot()
    gc.collect()
    gc.freeze()  # as Berth does once everything is listed
    start = time.process_time()
    for number, line in enumerate(lines):
        found = decode_claim(orjson.loads(line)["object"])
        cache.apply_claim(found.key, found)
        if number % 50 == 0:
            cache.snapshot()
    return count / (time.process_time() - start)


def row(name: str, small: float, large: float) -> None:
    print(f"{name:28} {small:10.0f} {large:10.0f} {large / small:6.2f}")


if __name__ == "__main__":
    main()
