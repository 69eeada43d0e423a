"""Machines with GPUs and NICs of tests/cases/machines_with_nics.yaml, in a cache, and pods that ask for both; and how
near the devices of a machine can be, by a brute force over all pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import yaml

from extender.allocation import Features, NodeInfo
from extender.api.object_meta import ObjectKey
from extender.api.pods import Pod
from extender.api.resource_claims import PodClaim
from extender.cache import ClusterCache
from extender.policy import Policy
from extender.scheduling import Evaluator, FilterStatus, Placement, PodRequirements, evaluate
from extender.topology.agent_slices import DRIVER, Reading, attributes_of
from tests.worlds.filled_caches import claim_for, class_of_driver, device_slice, put, required
from tests.worlds.running_berth import status_in_use

Json = dict[str, Any]
GPU, NIC = "gpu.nvidia.com", "dra.net"
MACHINES: dict[str, Json] = yaml.safe_load(
    (Path(__file__).parent.parent / "cases" / "machines_with_nics.yaml").read_text()
)


def _value(value: object) -> Json:
    many = isinstance(value, list)
    first = value[0] if isinstance(value, list) else value
    kind = "bool" if isinstance(first, bool) else "int" if isinstance(first, int) else "string"
    return {kind + "s" if many else kind: value}


def _attributes(entry: Sequence[Any], numa_name: str) -> Json:
    root, numa = entry
    found: Json = {}
    if root is not None:
        roots = [f"pci0000:{one}" for one in root] if isinstance(root, list) else f"pci0000:{root}"
        found["resource.kubernetes.io/pcieRoot"] = _value(roots)
    if numa is not None:
        found[numa_name] = _value(numa)
    return found


def slices(node: str, machine: Json) -> list[Json]:
    """The slices of a node: of the GPUs' driver, of the NICs' driver, and of Berth's agent."""
    products = machine.get("products") or [machine["product"]] * len(machine["gpus"])
    gpus = [
        {
            "name": f"gpu-{i}",
            "attributes": {
                "type": {"string": "mig" if machine.get("parts") else "gpu"},
                "uuid": {"string": f"{node}-{i}"},
                "productName": {"string": products[i]},
                **_attributes(entry, "resource.kubernetes.io/numaNode"),
            },
            "capacity": {"memory": {"value": machine.get("memory", {}).get(products[i], "80Gi")}},
        }
        for i, entry in enumerate(machine["gpus"])
    ]
    gpus += [
        {
            "name": f"mig-{i}",
            "attributes": {
                "type": {"string": "mig"},
                "uuid": {"string": f"{node}-mig-{i}"},
                "parentUUID": {"string": f"{node}-{parent}"},
                "productName": {"string": machine["product"]},
            },
            "capacity": {"memory": {"value": "10Gi"}},
        }
        for i, parent in enumerate(machine.get("migs", ()))
    ]
    model = {"pciDevice": {"string": machine["nic"]}} if "nic" in machine else {}
    models = [{"model": {"string": name}} for name in machine.get("models", ())] or [{}] * len(machine["nics"])
    nics = [
        {
            "name": f"nic-{i}",
            "attributes": {
                "rdma": {"bool": True},
                "number": {"int": i},
                **model,
                **models[i],
                **_attributes(entry, "dra.net/numaNode"),
            },
        }
        for i, entry in enumerate(machine["nics"])
    ]
    found = [device_slice(node, GPU, gpus), device_slice(node, NIC, nics)]
    if "agent" in machine or "links" in machine:
        found.append(device_slice(node, DRIVER, _agent_devices(node, machine)))
    return found


def _agent_devices(node: str, machine: Json) -> list[Json]:
    count = len(machine["gpus"])
    peers: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for a, b in machine.get("links", ()):
        peers[a].append((b, 4))
        peers[b].append((a, 4))
    devices = []
    for i in range(count):
        said = attributes_of(
            Reading(
                f"{node}-{i}",
                machine.get("product", ""),
                links=tuple(peers[i]),
                switch_links=0 if "links" in machine else 18,
                link_mbps=25_000,
                nvlink_version=3,
                numa=machine.get("agent", [0] * count)[i],
            )
        )
        if "agent" not in machine:
            said.pop("numaNode", None)
        devices.append({"name": f"gpu-{i}", "attributes": {f"{DRIVER}/{k}": _value(v) for k, v in said.items()}})
    return devices


@dataclass
class NicFleet:
    """Nodes by name with their machines. Evaluates pods on them as filter does."""

    machines: dict[str, Json]
    policy: Policy = field(default_factory=Policy)
    made: int = 0

    def __post_init__(self) -> None:
        self.evaluator = Evaluator(Features())
        self.cache = put(ClusterCache(), class_of_driver(GPU), class_of_driver(NIC))
        for name, machine in self.machines.items():
            put(self.cache, {"kind": "Node", "metadata": {"name": name}}, *slices(name, machine))

    def hold(self, node: str, devices: Iterable[tuple[str, str]], *, admin: bool = False) -> ObjectKey:
        """A claim of another pod gets these devices of a node, each given by driver and name, or watches them."""
        about = {"request": "r", "pool": node, "adminAccess": admin}
        results = [{**about, "driver": driver, "device": name} for driver, name in devices]
        return self._claim(status_in_use(results, {}, node), [_request("r", GPU, 1)])

    def asking(self, requests: list[Json], constraints: Sequence[Json] = ()) -> PodRequirements:
        """The requirements of a pod with one claim of these requests."""
        return self.asking_claims([(requests, constraints)])

    def asking_claims(
        self, claims: Sequence[tuple[list[Json], Sequence[Json]]], node: str = "", own: Sequence[tuple[str, str]] = ()
    ) -> PodRequirements:
        """The requirements of a pod with several claims, see `pod_with`."""
        return required(self.pod_with(node, own, claims), self.cache, self.policy)

    def pod(self, requests: list[Json], constraints: Sequence[Json] = ()) -> Pod:
        """A pod with one claim of these requests."""
        key = self._claim({}, requests, constraints)
        return Pod(key, f"uid-{key.name}", (PodClaim("g", key.name),))

    def pod_with(
        self, node: str, devices: Sequence[tuple[str, str]], claims: Sequence[tuple[list[Json], Sequence[Json]]]
    ) -> Pod:
        """A pod with a claim that has these devices on the node, and one for each of the requests and constraints."""
        keys = [self.hold(node, devices)] if devices else []
        keys += [self._claim({}, requests, constraints) for requests, constraints in claims]
        return Pod(keys[-1], f"uid-{keys[-1].name}", tuple(PodClaim(f"g{i}", key.name) for i, key in enumerate(keys)))

    def _claim(self, status: Json, requests: list[Json], constraints: Sequence[Json] = ()) -> ObjectKey:
        self.made += 1
        name = f"c{self.made}"
        made = claim_for(*requests, constraints=list(constraints), name=name, namespace="default")
        put(self.cache, {**made, "status": status})
        return ObjectKey("default", name)

    def node_info(self, name: str) -> NodeInfo:
        return self.cache.snapshot().node_infos[name]

    def evaluate(self, name: str, requirements: PodRequirements) -> FilterStatus:
        snapshot = self.cache.snapshot()
        info, context = snapshot.node_infos[name], self.evaluator.evaluation_context(snapshot)
        return evaluate(info, requirements, context, own=requirements.devices_on(info))

    def placement(self, name: str, requirements: PodRequirements) -> Placement:
        found = self.evaluate(name, requirements)
        assert isinstance(found, Placement), found
        return found

    def names(self, name: str, placement: Placement) -> list[str]:
        """The devices of a placement on a node, without driver and pool."""
        return [one.rpartition("/")[2] for one in placement.devices(self.node_info(name))]


def sentence(placement: Placement, part: str = "affinity") -> str:
    """What a part of the score says; '' if the placement has no such part."""
    return next((one.sentence for one in placement.parts if one.name == part), "")


def counted(gpus: int, nics: int) -> list[Json]:
    """One request for the GPUs, and one for the NICs."""
    return [_request("gpu", GPU, gpus), _request("nic", NIC, nics)]


def paired(count: int) -> list[Json]:
    """Requests gpu-0, nic-0, gpu-1, nic-1, ... of one device each."""
    return [_request(f"{kind}-{i}", class_, 1) for i in range(count) for kind, class_ in (("gpu", GPU), ("nic", NIC))]


def _request(name: str, class_: str, count: int) -> Json:
    return {"name": name, "exactly": {"deviceClassName": class_, "allocationMode": "ExactCount", "count": count}}


def claim_of(name: str, count: int) -> Json:
    """A claim for so many GPUs and NICs of the sandbox's machines."""
    requests = [_request("gpu", GPU, count), _request("nic", "dranet.net", count)]
    metadata = {"namespace": "default", "name": name}
    about = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata}
    return {**about, "spec": {"devices": {"requests": requests}}}


# -- the nearest pairs ---------------------------------------------------------------------------------------------

Pairs = Iterable[tuple[int, int]]  # of a GPU and a NIC
Place = tuple[set[str], list[int]]  # PCIe roots; NUMA nodes, of which the first is the usual one


class Oracle:
    """Compares devices by the text of the machine file, and tries all sets and all pairs."""

    def __init__(self, machine: dict[str, Any]) -> None:
        agent = machine.get("agent", [None] * len(machine["gpus"]))
        gpus = [self._place(entry, said) for entry, said in zip(machine["gpus"], agent, strict=True)]
        nics = [self._place(entry, None) for entry in machine["nics"]]
        known: dict[str, set[int]] = {}
        for roots, numa in gpus + nics:
            if len(roots) == 1 and numa:
                known.setdefault(min(roots), set()).add(numa[0])
        self._known: dict[object, tuple[int, int, int]] = {}
        self.gpus, self.nics = ([self._completed(one, known) for one in kind] for kind in (gpus, nics))
        self._near = [[nearness(gpu, nic) for nic in self.nics] for gpu in self.gpus]
        self._names = [[str(place) for place in kind] for kind in (self.gpus, self.nics)]

    @staticmethod
    def _place(entry: list[Any], agent: int | None) -> Place:
        root, numa = ([] if value is None else value if isinstance(value, list) else [value] for value in entry)
        nodes = [node for node in numa if node >= 0]
        return set(map(str, root)), nodes + [node for node in [agent] if node is not None and node not in nodes]

    @staticmethod
    def _completed(place: Place, known: dict[str, set[int]]) -> Place:
        roots, numa = place
        if not numa and len(roots) == 1 and len(known.get(min(roots), ())) == 1:
            return roots, list(known[min(roots)])
        return place

    def value(self, pairs: Pairs) -> tuple[int, int, int]:
        """Numbers of pairs on one root, on one NUMA node, and with a common NUMA node of their lists."""
        found = [self._near[gpu][nic] for gpu, nic in pairs]
        return found.count(0), found.count(1), found.count(2)

    def best(self, gpus: tuple[int, ...], nics: tuple[int, ...]) -> tuple[int, int, int]:
        """Of pairs in which each device is once, or those of the smaller kind about equally often."""
        key = tuple(sorted(self._names[0][i] for i in gpus)), tuple(sorted(self._names[1][i] for i in nics))
        if key not in self._known:
            few, many = (gpus, nics) if len(gpus) <= len(nics) else (nics, gpus)
            found = [zip((few[i] for i in one), many, strict=True) for one in spreads(len(few), len(many))]
            self._known[key] = max(self.value(one if few is gpus else ((b, a) for a, b in one)) for one in found)
        return self._known[key]

    def sets(self, numbers: list[int], count: int) -> list[tuple[int, ...]]:
        """The sets of so many NICs; of those whose NICs have the same places, one."""
        found = {tuple(sorted(self._names[1][i] for i in one)): one for one in combinations(numbers, count)}
        return list(found.values())


def nearness(gpu: Place, nic: Place) -> int:
    """0 on one root, 1 on one NUMA node, 2 with a common NUMA node of their lists, 3 apart or not known."""
    (roots, numa), (others, nodes) = gpu, nic
    return 0 if roots & others else 1 if numa[:1] and numa[:1] == nodes[:1] else 2 if {*numa} & {*nodes} else 3


@cache
def spreads(few: int, many: int) -> list[tuple[int, ...]]:
    """For each of the many the position of one of the few: all ways in which each of these is in as many pairs, or in
    one more."""
    least, most = many // few, -(-many // few)
    return [
        one for one in {*permutations([*range(few)] * most, many)} if all(one.count(i) >= least for i in range(few))
    ]
