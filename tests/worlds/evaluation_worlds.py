"""A filter service with a fake clock that advances with each evaluation, and pods that cost much or little."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any

from extender.allocation import Features
from extender.api.fields import Json
from extender.api.object_meta import ObjectKey
from extender.api.pods import Pod
from extender.api.resource_claims import PodClaim, decode_claim
from extender.base.deadline import Deadline
from extender.cache import ClusterCache
from extender.policy import Policy
from extender.sandbox import carried_machines
from extender.sandbox.machines import Machine, gpu_slice, node_object
from extender.scheduling import Evaluator, RankingCache
from extender.serve.evaluations import Evaluations
from extender.serve.filter import FilterService, FilterSink
from extender.serve.wake import QueueingHints
from tests.worlds.filled_caches import GPU_CLASS, put
from tests.worlds.running_berth import claim, status_in_use

MACHINES = [carried_machines()[name] for name in ("t4-4", "dgx1-v100", "a100-pcie-8-bridged")]
TICK = 0.0001  # seconds that each look at the clock takes: a piece of work looks at it once


@dataclass
class Clock:
    """A fake clock that advances with each reading."""

    now: float = 0.0

    def __call__(self) -> float:
        self.now += TICK
        return self.now


class steps(Deadline):  # noqa: N801 - read as a function
    """A deadline after so many checks, whatever time they take."""

    def __init__(self, number: int, *, ends_one: bool = False) -> None:
        super().__init__(1.0, lambda: 0.0, ends_one=ends_one)
        self.left = number

    def check(self) -> float:
        self.left -= 1
        seconds = super().check()
        if self.left < 0 and seconds < inf:
            self.exceed()
        return seconds


class RecordingSink(FilterSink):
    """Counts how often kube-scheduler shall retry the pods that were rejected."""

    def __init__(self) -> None:
        super().__init__(self.note)
        self.requeued = 0

    def note(self) -> None:
        self.requeued += 1


@dataclass
class Fleet:
    """A filter service on a cache that the test fills."""

    nodes: int = 12
    policy: Policy = field(default_factory=Policy)
    kinds: int = 3
    sink: FilterSink = field(default_factory=FilterSink)
    rankings: RankingCache | None = None
    made: int = 0

    def __post_init__(self) -> None:
        self.clock, self.cache = Clock(), put(ClusterCache(), GPU_CLASS)
        for i in range(self.nodes):
            self.add_node(f"n{i}", MACHINES[i % self.kinds])
        self.filter_service = FilterService(
            self.cache, self.policy, Evaluator(Features()), Evaluations(self.clock), self.clock, self.sink
        )
        if self.rankings is not None:
            self.filter_service.rankings = self.rankings
        self.queueing_hints = QueueingHints(self.cache, self.filter_service)

    def add_node(self, name: str, machine: Machine) -> None:
        put(self.cache, node_object(name, machine, {}), gpu_slice(name, machine))

    @property
    def names(self) -> list[str]:
        return [f"n{i}" for i in range(self.nodes)]

    def pod(self, namespace: str, *selectors: str, constraint: str = "", count: int = 1) -> Pod:
        """A pod with a claim, both known to the cache."""
        asked = self._claim(namespace, count)
        devices = asked["spec"]["devices"]
        devices["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": text}} for text in selectors]
        if constraint:
            devices["constraints"] = [{"matchAttribute": constraint}]
        return self._waiting(asked)

    def _claim(self, namespace: str, count: int = 1) -> Json:
        self.made += 1
        name = f"p{self.made}"
        asked = claim(name, count)
        asked["metadata"] |= {"namespace": namespace, "uid": f"claim-{name}"}
        return asked

    def _waiting(self, asked: Json) -> Pod:
        put(self.cache, asked)
        name = asked["metadata"]["name"]
        found = Pod(ObjectKey(asked["metadata"]["namespace"], name), f"uid-{name}", (PodClaim("g", name),))
        self.cache.apply_pod(found.uid, found)
        return found

    def hostile(self, selectors: int = 8) -> Pod:
        """Every selector reads the UUID, so nodes share no evaluation; and each pod has selectors of its own."""
        number = self.made
        texts = [f'device.attributes["gpu.nvidia.com"].uuid != "{number}-{i}"' for i in range(selectors)]
        return self.pod("hostile", *texts)

    def large(self, namespace: str, count: int) -> Pod:
        """A pod whose claim has 100 KB of parameters for a driver."""
        asked = self._claim(namespace, count)
        parameters = {"text": asked["metadata"]["name"] + "x" * 100_000}
        asked["spec"]["devices"]["config"] = [{"opaque": {"driver": "d", "parameters": parameters}}]
        return self._waiting(asked)

    def searching(self, namespace: str, requests: int) -> Pod:
        """A pod whose search tries all sets of so many devices on each node, and finds none."""
        asked = self._claim(namespace)
        one = asked["spec"]["devices"]["requests"][0]["exactly"]
        names = [f"r{i}-{self.made}" for i in range(requests)]
        asked["spec"]["devices"] = {
            "requests": [{"name": name, "exactly": one} for name in names],
            "constraints": [{"matchAttribute": "gpu.nvidia.com/uuid", "requests": names[-2:]}],
        }
        return self._waiting(asked)

    def work(self) -> None:
        """Let the queue work until it is empty."""
        while self.filter_service.evaluations.work():
            self.clock.now += 0.01

    def finds(self) -> bool:
        """Whether a search finds a rejected pod that fits now."""
        return any(
            any(self.queueing_hints.find_schedulable(one)) for one in self.filter_service.unschedulable.namespaces
        )

    def error(self, pod: Pod) -> str:
        return self.filter_service.filter(pod, self.names).error

    def gone(self, pod: Pod) -> None:
        self.cache.apply_pod(pod.uid, None)
        self.filter_service.forget_deleted()


GPU = 'device.attributes["gpu.nvidia.com"]'


def allocated(name: str, node: str, group: str = "", users: int = 1) -> dict[str, Any]:
    """A claim with a device of this node, and so many running pods that use it."""
    found = claim(name)
    notes = {"berth.dev/group": group} if group else {}
    found["metadata"] |= {"uid": f"uid-{name}", "annotations": notes}
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": node, "device": f"other-{name}"}
    found["status"] = status_in_use([result], {f"runs-{number}": f"runs-{number}" for number in range(users)}, node)
    return found


def apply(fleet: Fleet, *claims: dict[str, Any]) -> list[ObjectKey]:
    decoded = [decode_claim(one) for one in claims]
    for one in decoded:
        fleet.cache.apply_claim(one.key, one)
    return [one.key for one in decoded]
