"""The result of the examples: the GPUs that each pod got, and those of first fit on the same node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from extender.allocation import Features, Search
from extender.allocation.what_if import problem_of, usage_of
from extender.cel.dra import Masks
from extender.model import Claim, DeviceClass, DeviceId, Fabric, Graph, Node, Slice
from extender.sandbox.apiserver.versioned_store import ObjectStore
from extender.sandbox.examples import Expectation
from extender.topology.agent_slices import DRIVER, fabric_of
from extender.topology.sets import bandwidth, is_joined
from extender.wire import Json, SliceDecoder, decode_claim, decode_class, decode_node


@dataclass(frozen=True, slots=True)
class PlacedGpus:
    """The GPUs of a pod on its node, as positions in the machine. `busy` GPUs belonged to others at that time.

    `gbps` is the predicted ring bandwidth in GB/s; 0 for fewer than two GPUs.
    """

    node: str
    gpus: tuple[int, ...]
    busy: frozenset[int]
    graph: Graph | None  # None on a node without published links
    is_joined: bool  # by NVLink
    gbps: float


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
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        decoder = SliceDecoder()
        decoded = [decoder.decode(obj) for obj in store.all("resourceslices")]
        self._slices: list[Slice] = [s for s in decoded if s.pool.driver != DRIVER]
        self._fabrics = {s.selection.node_name: fabric_of(s.devices) for s in decoded if s.pool.driver == DRIVER}
        self._nodes: dict[str, Node] = {node.name: node for node in map(decode_node, store.all("nodes"))}
        self._classes: dict[str, DeviceClass] = {c.name: c for c in map(decode_class, store.all("deviceclasses"))}
        self._machines = {n.name: n.labels.get("berth.dev/machine", "") for n in self._nodes.values()}
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
        machine = self._machines.get(placement.node, "")
        if expected.pending:
            return False, f"should be pending: {expected.pending}"
        if expected.machines and machine not in expected.machines:
            return False, f"expected on {' or '.join(expected.machines)}, is on {machine}"
        if placement.gbps < expected.min_gbps:
            return False, f"expected at least {expected.min_gbps:.0f} GB/s"
        return is_served, "" if is_served else "bound without devices"

    def _claims(self, pod: Json) -> list[Claim]:
        named = {
            e["name"]: e.get("resourceClaimName") for e in (pod.get("status") or {}).get("resourceClaimStatuses") or []
        }
        found = []
        for entry in (pod.get("spec") or {}).get("resourceClaims") or []:
            name = entry.get("resourceClaimName") or named.get(entry["name"])
            obj = self._store.get("resourceclaims", ("default", str(name)))
            if obj is not None:
                found.append(decode_claim(obj))
        return found

    def _placement(self, node: str, devices: Sequence[DeviceId], taken: set[DeviceId]) -> PlacedGpus:
        fabric = self._fabrics.get(node)
        gpus = _positions(devices)
        busy = frozenset(_positions([device for device in taken if device.pool == node and device not in devices]))
        if fabric is None:
            return PlacedGpus(node, gpus, busy, None, False, 0.0)
        graph, mask = fabric.graph, _mask(fabric, gpus)
        gbps = bandwidth(graph, mask) if len(gpus) > 1 else 0.0
        return PlacedGpus(node, gpus, busy, graph, is_joined(graph, mask), gbps)

    def _first_fit_node(self, claims: list[Claim]) -> str:
        """Take the first devices that fit on the first node by name."""
        names = tuple(str(claim.key) for claim in claims)
        if names not in self._first_fit_nodes:
            found = ((node, self._first_devices(node, claims, self._first_fit_taken)) for node in self._nodes)
            node, devices = next(((node, devices) for node, devices in found if devices or not claims), ("", []))
            self._first_fit_nodes[names] = node
            self._first_fit_taken.update(devices)
        return self._first_fit_nodes[names]

    def _first_devices(self, node: str, claims: list[Claim], taken: set[DeviceId]) -> list[DeviceId]:
        """The first devices of a node that fit; none if the claims do not fit."""
        fresh = [(str(claim.key), claim.spec) for claim in claims]
        state = usage_of(self._slices, taken, {})
        problem = problem_of(self._nodes[node], self._slices, self._classes, fresh, state, Features(), Masks())
        solution = Search(problem).run()
        return [problem.inventory.devices[p.bit].id for claim in solution.picks for p in claim] if solution else []


def _devices_of(claim: Claim) -> list[DeviceId]:
    return [result.device for result in claim.allocation.results] if claim.allocation is not None else []


def _positions(devices: Sequence[DeviceId]) -> tuple[int, ...]:
    """The sandbox names a device by its position in the machine."""
    numbers = (device.device.rpartition("-")[2] for device in devices)
    return tuple(sorted(int(number) for number in numbers if number.isdecimal()))


def _mask(fabric: Fabric, gpus: Sequence[int]) -> int:
    return sum(1 << position for position in gpus if position < fabric.graph.size)
