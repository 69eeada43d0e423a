"""A fleet of machine files on which serve's filter places pods one by one, without an API server."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from extender.allocation import Features
from extender.api.pods import Pod, decode_pod
from extender.api.resource_claims import Allocation, Result, decode_claim
from extender.api.resource_slices import DeviceId
from extender.base.deadline import NO_DEADLINE
from extender.cache import ClusterCache
from extender.policy import Policy
from extender.runtime.informers import watched_resources
from extender.sandbox import fabric_slice
from extender.sandbox.machines import Machine, gpu_slice, node_object
from extender.sandbox.sandbox_cluster import GPU_CLASS
from extender.scheduling import Evaluator, Placement, PodRequirements, requirements_of
from extender.serve.evaluations import Evaluations
from extender.serve.filter import FilterService
from extender.vendors import CLIQUE_LABEL
from tests.worlds.running_berth import claim, pod


class Fleet:
    """Nodes with names such as t4-4-00: `count` of each machine. The nodes of a machine in `cliques` are one clique."""

    def __init__(
        self, machines: Mapping[str, Machine], count: Mapping[str, int], cliques: Collection[str] = ()
    ) -> None:
        features = Features()
        self.cache = ClusterCache(features)
        apply = {kind.name: kind.apply for kind in watched_resources(self.cache)}
        apply["deviceclasses"]("gpu.nvidia.com", GPU_CLASS)
        for kind, number in count.items():
            for i in range(number):
                name, machine = f"{kind}-{i:02}", machines[kind]
                apply["nodes"](name, node_object(name, machine, {CLIQUE_LABEL: kind} if kind in cliques else {}))
                for obj in (gpu_slice(name, machine), fabric_slice(name, machine)):
                    apply["resourceslices"](obj["metadata"]["name"], obj)
        self.names = sorted(self.cache.store.nodes)
        self.filter_service = FilterService(
            self.cache, Policy(), Evaluator(features), Evaluations(lambda: 0.0), lambda: 0.0
        )

    @property
    def free_gpus(self) -> dict[str, int]:
        """By node."""
        infos = self.cache.snapshot().node_infos
        return {name: infos[name].positions(~infos[name].busy).bit_count() for name in self.names}

    def create(self, name: str, count: int) -> Pod:
        """A pod and its claim for so many GPUs."""
        given = claim(name, count)
        given["metadata"]["uid"] = f"u-{name}"
        found = decode_claim(given)
        self.cache.apply_claim(found.key, found)
        obj = pod(name, name)
        obj["metadata"]["uid"] = f"p-{name}"
        return decode_pod(obj)

    def place(self, number: int, count: int) -> Placement | None:
        """Place a pod on the best node, as filter and bind would."""
        pod = self.create(f"c{number}", count)
        (key,) = pod.claim_keys
        passed = self.filter_service.filter(pod, self.names).passed
        self.cache.release(pod.uid)
        if not passed:
            self.cache.apply_claim(key, None)
            return None
        snapshot = self.cache.snapshot()
        requirements = requirements_of(pod, snapshot, self.filter_service.policy)
        assert isinstance(requirements, PodRequirements)
        placement = self.filter_service.status_for_bind(requirements, passed[0], snapshot, NO_DEADLINE)
        assert isinstance(placement, Placement)
        (results,) = placement.results(snapshot.node_infos[passed[0]])
        self._allocate(f"c{number}", results)
        return placement

    def occupy(self, node: str, gpus: Collection[int]) -> None:
        """Allocate GPUs of a node to another pod."""
        self.create(f"held-{node}", len(gpus))
        self._allocate(f"held-{node}", tuple(Result("gpu", DeviceId("gpu.nvidia.com", node, f"gpu-{i}")) for i in gpus))

    def _allocate(self, name: str, results: tuple[Result, ...]) -> None:
        found = decode_claim(claim(name))
        stored = self.cache.store.claims[found.key]
        self.cache.apply_claim(found.key, replace(stored, allocation=Allocation(results)))
