"""Example workloads, and how well Berth places them.

An example is a file of Kubernetes objects; annotations of its pods state which placement is expected. `Report` compares
the GPUs that each pod got with those of first fit on the same node, and `GangReport` the domains of each gang.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from extender.allocation import Features, Snapshot
from extender.allocation.what_if import with_own_pools_released
from extender.api.documents import MAX_YAML, documents_of, text_of
from extender.api.fields import Json
from extender.api.gpu_topology import Fabric, Graph
from extender.api.nodes import decode_node
from extender.api.pod_groups import GroupKey, Membership
from extender.api.pods import decode_pod
from extender.api.resource_claims import Claim, Result, decode_claim
from extender.api.resource_slices import DeviceId
from extender.base.berth_errors import WireError
from extender.base.bits import members
from extender.base.text_limits import shown
from extender.console import first_fit_devices
from extender.files import must_exist, name_of, read_file
from extender.manifests import objects_of_document
from extender.sandbox.apiserver.object_rules import decode
from extender.sandbox.apiserver.versioned_store import ObjectStore
from extender.sandbox.machines import GPU_DRIVER
from extender.scheduling import Evaluator
from extender.topology.affinity import near_pairs
from extender.topology.sets import bandwidth, is_joined

EXPECT = "berth.dev/expect-"
_HOSTNAME = "kubernetes.io/hostname"


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expected placement of a pod."""

    pod: str
    machines: tuple[str, ...]  # the pod may be on one of these; empty: on any
    min_gbps: float  # least ring bandwidth
    pending: str  # part of the reason for which the pod must stay pending, or ""
    domain: str  # label with one value on the nodes of all pods of this pod's group, or ""

    def is_pending_for(self, reasons: Iterable[str]) -> bool:
        """Whether the pod must stay pending, for one of these reasons."""
        return bool(self.pending) and any(self.pending in reason for reason in reasons)


def carried_examples() -> Path:
    """The folder of the examples that the package has."""
    return Path(__file__).with_name("examples")


def load_examples(folder: Path) -> list[tuple[str, list[Json]]]:
    """Return (file name, objects) of every example, in name order. Raises WireError that names file and field."""
    must_exist(folder)
    found = []
    for path in sorted(folder.glob("*.yaml")):
        where = name_of(path)
        documents = documents_of(text_of(read_file(path, MAX_YAML), where), where)
        found.append((path.name, [_decodable(obj, one.where) for one in documents for obj in objects_of_document(one)]))
    if not found:
        raise WireError(name_of(folder), "holds no .yaml files")
    return found


def _decodable(obj: Json, where: str) -> Json:
    """Return the object after decoding it. Raises WireError if Berth cannot decode it."""
    try:
        decode(obj)
        if obj.get("kind") == "Pod":
            expectation(obj)
    except WireError as error:
        raise WireError(f"{where}: {error.path}", error.problem) from error
    return obj


def expectation(pod: Json) -> Expectation:
    """Return the expectation in the annotations of a pod. Raises WireError."""
    metadata = pod["metadata"]
    notes = metadata.get("annotations") or {}
    machines = tuple(filter(None, (notes.get(EXPECT + "machine") or "").split(",")))
    try:
        least = float(notes.get(EXPECT + "gbps") or 0)
    except ValueError as error:
        problem = f"must be a number, is {shown(notes[EXPECT + 'gbps'])}"
        raise WireError(f".metadata.annotations[{EXPECT}gbps]", problem) from error
    pending, domain = notes.get(EXPECT + "pending") or "", notes.get(EXPECT + "domain") or ""
    if domain and decode_pod(pod).membership is None:
        raise WireError(f".metadata.annotations[{EXPECT}domain]", "the pod names no group")
    return Expectation(metadata["name"], machines, least, pending, domain)


# -- pods ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlacedGpus:
    """The GPUs of a pod on its node, as positions in the machine. `busy` GPUs belonged to others at that time.

    `gbps` is the predicted ring bandwidth in GB/s; 0 for fewer than two GPUs.
    """

    node: str
    gpus: tuple[int, ...]
    busy: frozenset[int]
    graph: Graph | None  # None on a node without published links
    is_joined: bool  # by their links
    gbps: float
    near: int = 0  # pairs of devices, such as a GPU and a NIC, that are as near as this machine allows
    pairs: int = 0  # all pairs of devices of several drivers


@dataclass(frozen=True, slots=True)
class Row:
    """One pod. `berth` and `first_fit` are None while the pod waits; both are on one node, as on the console's page.

    `first_fit_node` is the first node by name on which the pod fits if all pods take these; '' without one. `is_good`
    says whether the expectation is met; `note` says why the pod waits, or what was expected.
    """

    pod: str
    berth: PlacedGpus | None
    first_fit: PlacedGpus | None
    first_fit_node: str
    is_good: bool
    note: str

    @property
    def node(self) -> str:
        return self.berth.node if self.berth is not None else ""


class Report:
    """Reads the sandbox's objects, and finds what first fit would have taken: the first devices that fit.

    It begins with the devices that no pod of the examples holds, and takes the pods in the order of the examples.
    `snapshot` is that of Berth's cache. Its devices and links count, and the devices in use are those of the store.
    """

    def __init__(self, store: ObjectStore, snapshot: Snapshot) -> None:
        self._store = store
        self._node_infos, self._classes = snapshot.node_infos, snapshot.classes
        self._context = Evaluator(Features()).evaluation_context(snapshot)
        self._taken: set[DeviceId] = set()
        self._first_fit_taken: set[DeviceId] = set()
        self._first_fit_nodes: dict[tuple[str, ...], str] = {}  # by claims: pods may share one

    def rows(self, expectations: list[Expectation], pending: dict[str, dict[str, int]]) -> list[Row]:
        """Return one row per expectation, in the same order. `pending` has the reasons of rejected pods."""
        pods = [self._store.get("pods", ("default", expected.pod)) or {} for expected in expectations]
        of_examples = {device for pod in pods for claim in self._claims(pod) for device in _devices_of(claim)}
        held = {device for obj in self._store.all("resourceclaims") for device in _devices_of(decode_claim(obj))}
        self._taken, self._first_fit_taken = held - of_examples, held - of_examples
        return [self._row(*of_pod, pending) for of_pod in zip(expectations, pods, strict=True)]

    def _row(self, expected: Expectation, pod: Json, pending: dict[str, dict[str, int]]) -> Row:
        claims = self._claims(pod)
        first_fit_node = self._first_fit_node(claims)
        node = (pod.get("spec") or {}).get("nodeName") or ""
        if not node:
            reasons = sorted(pending.get(f"default/{expected.pod}", {}))
            note = "; ".join(reasons) or "not scheduled"
            return Row(expected.pod, None, None, first_fit_node, expected.is_pending_for(reasons), note)
        devices = [device for claim in claims for device in _devices_of(claim)]
        taken = self._taken - set(devices)  # pods may share a claim
        placement = self._placement(node, devices, taken)
        first_fit = self._placement(node, self._first_devices(node, claims, taken), taken)
        self._taken.update(devices)
        is_good, note = self._compare(expected, placement, is_served=bool(devices) or not claims)
        return Row(expected.pod, placement, first_fit, first_fit_node, is_good, note)

    def _compare(self, expected: Expectation, placement: PlacedGpus, *, is_served: bool) -> tuple[bool, str]:
        machine = self._node_infos[placement.node].node.labels.get("berth.dev/machine", "")
        if expected.pending:
            return False, f"should be pending: {expected.pending}"
        if expected.machines and machine not in expected.machines:
            return False, f"expected on {' or '.join(expected.machines)}, is on {machine}"
        if placement.gbps < expected.min_gbps:
            return False, f"expected at least {expected.min_gbps:.0f} GB/s"
        return is_served, "" if is_served else "bound without devices"

    def _claims(self, obj: Json) -> list[Claim]:
        pod = decode_pod(obj) if obj else None  # a user may have deleted it
        names = (one.claim_name or pod.claim_statuses.get(one.name) for one in pod.claims) if pod is not None else ()
        found = (self._store.get("resourceclaims", ("default", str(name))) for name in names)
        return [decode_claim(one) for one in found if one is not None]

    def _placement(self, node: str, devices: Sequence[DeviceId], taken: set[DeviceId]) -> PlacedGpus:
        node_info, gpus = self._node_infos[node], _positions(devices)
        busy = frozenset(_positions([device for device in taken if device.pool == node and device not in devices]))
        if node_info.fabric is None:
            return PlacedGpus(node, gpus, busy, None, False, 0.0)
        graph, mask = node_info.fabric.graph, _mask(node_info.fabric, gpus)
        gbps, bits = bandwidth(graph, mask) if len(gpus) > 1 else 0.0, map(node_info.inventory.index.get, set(devices))
        near = near_pairs(node_info.locality, sum(1 << bit for bit in bits if bit is not None))
        return PlacedGpus(node, gpus, busy, graph, is_joined(graph, mask), gbps, *near)

    def _first_fit_node(self, claims: list[Claim]) -> str:
        """Take the first devices that fit on the first node by name."""
        names = tuple(str(claim.key) for claim in claims)
        if names not in self._first_fit_nodes:
            self._first_fit_nodes[names] = "" if claims else min(self._node_infos)
            for node in sorted(self._node_infos) if claims else ():
                if devices := self._first_devices(node, claims, self._first_fit_taken):
                    self._first_fit_nodes[names] = node
                    self._first_fit_taken.update(devices)
                    break
        return self._first_fit_nodes[names]

    def _first_devices(self, node: str, claims: list[Claim], taken: set[DeviceId]) -> list[DeviceId]:
        """The first devices of a node that fit; none if the claims do not fit."""
        free = with_own_pools_released(self._node_infos[node], [Result("", device) for device in taken])
        found = first_fit_devices(free, claims, self._classes, self._context)
        return [free.inventory.devices[bit].id for bit in members(found or 0)]


def _devices_of(claim: Claim) -> list[DeviceId]:
    return [result.device for result in claim.allocation.results] if claim.allocation is not None else []


def _positions(devices: Sequence[DeviceId]) -> tuple[int, ...]:
    """The GPUs among the devices. The sandbox names a GPU by its position in the machine."""
    numbers = (device.device.rpartition("-")[2] for device in devices if device.driver == GPU_DRIVER)
    return tuple(sorted(int(number) for number in numbers if number.isdecimal()))


def _mask(fabric: Fabric, gpus: Sequence[int]) -> int:
    return sum(1 << position for position in gpus if position < fabric.graph.size)


# -- gangs -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DomainNodes:
    """The nodes of one domain in name order, and whether each has a pod of the gang."""

    name: str
    has_pod: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class GangPlacement:
    """Where the pods of a gang are: the domains with pods, and words such as 'clique nvl72-1' or '2 cliques'."""

    words: str
    domains: tuple[DomainNodes, ...]
    is_in_one: bool  # all pods have a node, in one domain


@dataclass(frozen=True, slots=True)
class GangRow:
    """One gang. `is_good` says whether the expectation is met, `waits` whether a pod has no node."""

    gang: str
    pods: tuple[str, ...]
    berth: GangPlacement
    first_fit: GangPlacement
    is_good: bool
    waits: bool


class GangReport:
    """Finds the gangs among the pods of the examples.

    `is_gang`: whether a pod's group is a gang. `levels` are node labels, the nearest level first, as in a policy.
    """

    def __init__(self, store: ObjectStore, is_gang: Callable[[Membership], bool], levels: Sequence[str]) -> None:
        self._store = store
        self._is_gang = is_gang
        self._levels = (_HOSTNAME, *levels)
        self._labels = {node.name: node.labels for node in map(decode_node, store.all("nodes"))}

    def rows(self, expectations: list[Expectation], rows: list[Row]) -> list[GangRow]:
        """Return the gangs in the order of their first pods. `rows` has one row per expectation, in the same order."""
        found: dict[GroupKey, list[tuple[Expectation, Row]]] = {}
        for expected, row in zip(expectations, rows, strict=True):
            obj = self._store.get("pods", ("default", row.pod))
            membership = decode_pod(obj).membership if obj is not None else None
            if membership is not None and (expected.domain or self._is_gang(membership)):
                found.setdefault(membership.key, []).append((expected, row))
        return [self._row(key.name, members) for key, members in found.items()]

    def _row(self, gang: str, members: list[tuple[Expectation, Row]]) -> GangRow:
        nodes, first_fit_nodes = [row.node for _, row in members], [row.first_fit_node for _, row in members]
        expected = next((expected.domain for expected, _ in members if expected.domain), "")
        level = next((level for level in self._levels if self._is_in_one(nodes, level)), expected or _HOSTNAME)
        is_good = self._is_in_one(nodes, expected) if expected else all(row.is_good for _, row in members)
        note = "" if is_good or not expected else f", expected in one {_short(expected)}"
        berth, first_fit = self._placement(nodes, level, note), self._placement(first_fit_nodes, level, "")
        return GangRow(gang, tuple(row.pod for _, row in members), berth, first_fit, is_good, not all(nodes))

    def _placement(self, nodes: list[str], level: str, note: str) -> GangPlacement:
        domains = []
        for value in sorted(self._values(nodes, level) - {""}):
            names = sorted(name for name, labels in self._labels.items() if labels.get(level) == value)
            domains.append(DomainNodes(value, tuple(name in nodes for name in names)))
        return GangPlacement(self._words(nodes, level) + note, tuple(domains), self._is_in_one(nodes, level))

    def _values(self, nodes: list[str], level: str) -> set[str]:
        """The values of a label on the nodes; '' for a node without it, and for a pod without a node."""
        return {self._labels[node].get(level, "") if node else "" for node in nodes}

    def _is_in_one(self, nodes: list[str], level: str) -> bool:
        values = self._values(nodes, level)
        return len(values) == 1 and "" not in values

    def _words(self, nodes: list[str], level: str) -> str:
        """Where the pods are, in domains of this level."""
        if not all(nodes):
            return f"{sum(map(bool, nodes))} of {len(nodes)} pods"
        values = self._values(nodes, level)
        if "" in values:
            return f"no common {_short(level)}"
        return f"{_short(level)} {values.pop()}" if len(values) == 1 else f"{len(values)} {_short(level)}s"


def _short(level: str) -> str:
    """The last word of a label: 'clique' of nvidia.com/gpu.clique."""
    return "node" if level == _HOSTNAME else re.split(r"[/.]", level)[-1]
