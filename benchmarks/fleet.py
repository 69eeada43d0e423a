"""A cluster in memory for benchmarks: it takes objects as a watch would send them and filters pods, and its caller sets
the clock.
"""

from __future__ import annotations

import random

from benchmarks.allocation import mig_slices
from extender.allocation import Features
from extender.api.pods import Pod, decode_pod
from extender.cache import ClusterCache
from extender.policy import Policy
from extender.runtime.informers import watched_resources
from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import gpu_slice, node_object
from extender.sandbox.sandbox_cluster import GPU_CLASS
from extender.scheduling import Evaluator, PodRequirements, RankingCache, requirements_of
from extender.serve.evaluations import Evaluations
from extender.serve.filter import FilterResult, FilterService
from extender.serve.wake import QueueingHints
from tests.worlds.running_berth import status_in_use

MACHINES = [
    carried_machines()[name] for name in ("hgx-h100-8", "hgx-h100-8", "a100-pcie-8-bridged", "dgx1-v100", "l40s-8-pix")
]
MIG_DRIVER, GPU_DRIVER = "mig.example.com", "gpu.nvidia.com"
MIG_CLASS = {
    "metadata": {"name": MIG_DRIVER},
    "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{MIG_DRIVER}'"}}]},
}


class Fleet:
    """Nodes of one kind ("mig" or "mixed") with their devices by name."""

    def __init__(self, kind: str, seed: int = 1, ranking_bytes: int | None = None) -> None:
        self.kind = kind
        self.rng = random.Random(seed)
        self.now = 0.0
        features = Features()
        self.cache = ClusterCache(features)
        evaluations = Evaluations(lambda: self.now)
        self.filter_service = FilterService(self.cache, Policy(), Evaluator(features), evaluations, lambda: self.now)
        if ranking_bytes is not None:
            self.filter_service.rankings = RankingCache(ranking_bytes)
        self.queueing_hints = QueueingHints(self.cache, self.filter_service)
        self._apply = {one.name: one.apply for one in watched_resources(self.cache)}
        self.devices: dict[str, list[str]] = {}  # by node
        self._number = 0
        self._apply["deviceclasses"](MIG_DRIVER, MIG_CLASS)
        self._apply["deviceclasses"](GPU_DRIVER, GPU_CLASS)

    @property
    def driver(self) -> str:
        return MIG_DRIVER if self.kind == "mig" else GPU_DRIVER

    def apply(self, kind: str, key: str, obj: dict | None) -> None:
        """Apply an event of a watch."""
        self._apply[kind](key, obj)
        self.filter_service.forget_deleted()

    def slices(self, name: str, number: int) -> list[dict]:
        """The slices that the drivers and the agent of a node publish."""
        if self.kind == "mig":
            return mig_slices(name)
        machine = MACHINES[number % len(MACHINES)]
        return [gpu_slice(name, machine), fabric_slice(name, machine)]

    def add_node(self) -> str:
        """Add a node under a new name, and return the name."""
        self._number += 1
        name = f"node-{self._number:06}"
        self.apply("nodes", name, node_object(name, MACHINES[0], {}))
        found = self.slices(name, self._number)
        for one in found:
            self.apply("resourceslices", one["metadata"]["name"], one)
        own = [
            d["name"] for one in found if one["spec"]["driver"] == self.driver for d in one["spec"].get("devices", ())
        ]
        self.devices[name] = [d for d in own if self.kind != "mig" or "-1g-" in d]
        return name

    def heartbeat(self, name: str) -> None:
        """The agent publishes the same slice again."""
        one = self.slices(name, int(name.rpartition("-")[2]))[-1]
        self.apply("resourceslices", one["metadata"]["name"], one)

    def remove_node(self, name: str) -> None:
        number = int(name.rpartition("-")[2])
        for one in self.slices(name, number):
            self.apply("resourceslices", one["metadata"]["name"], None)
        self.apply("nodes", name, None)
        del self.devices[name]

    def touch_node(self, name: str, labels: dict[str, str]) -> None:
        self.apply("nodes", name, node_object(name, MACHINES[0], labels))

    def hold(self, number: int, node: str, devices: list[str]) -> str:
        """Add a claim of another pod on some devices; returns its key."""
        results = [{"request": "g", "driver": self.driver, "pool": node, "device": device} for device in devices]
        status = status_in_use(results, {"x": f"x{number}"})
        metadata = {"namespace": "held", "name": f"h{number}", "uid": f"h{number}", "resourceVersion": str(number + 1)}
        key, spec = f"held/h{number}", {"devices": {"requests": list[dict]()}}
        self.apply("resourceclaims", key, {"metadata": metadata, "spec": spec, "status": status})
        return key

    def fill(self, nodes: int, share: float) -> None:
        """Nodes on which so much of the devices is held."""
        for number in range(nodes):
            name = self.add_node()
            taken = [device for device in self.devices[name] if self.rng.random() < share]
            if taken:
                self.hold(number, name, taken)

    def pod(self, uid: str, shape: int, count: int) -> Pod:
        """A pod of a shape: shapes differ in their selectors."""
        selector = f"'{shape}' != '' && device.driver == '{self.driver}'"
        exactly = {"deviceClassName": self.driver, "count": count, "selectors": [{"cel": {"expression": selector}}]}
        metadata = {"namespace": "x", "name": uid, "uid": uid, "resourceVersion": "1"}
        spec = {"devices": {"requests": [{"name": "g", "exactly": exactly}]}}
        self.apply("resourceclaims", f"x/{uid}", {"metadata": metadata, "spec": spec})
        found = {"metadata": metadata, "spec": {"resourceClaims": [{"name": "g", "resourceClaimName": uid}]}}
        self.apply("pods", f"x/{uid}", found)
        return decode_pod(found)

    def requirements(self, pod: Pod) -> PodRequirements:
        found = requirements_of(pod, self.cache.snapshot(), self.filter_service.policy)
        assert isinstance(found, PodRequirements), found
        return found

    def filter(self, pod: Pod, names: list[str] | None = None) -> FilterResult:
        """Filter one millisecond later than the last call; without `names`, all nodes."""
        self.now += 0.001
        self.cache.expire(self.now)
        return self.filter_service.filter(pod, list(self.devices) if names is None else names)

    def end(self, uid: str) -> None:
        """Delete a pod and its claim."""
        self.apply("pods", f"x/{uid}", None)
        self.apply("resourceclaims", f"x/{uid}", None)
