"""The result of the examples: the node of each pod, how its GPUs are joined, and the bandwidth with first fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from extender.allocation import Features, Search, problem_of, usage_of
from extender.cel.dra import Masks
from extender.fabric import DRIVER, bandwidth, fabric_of, is_joined, links_inside
from extender.model import DISTANCES, UNKNOWN_DISTANCE, Claim, DeviceClass, DeviceId, Fabric, Node, Slice
from extender.sandbox.apiserver.versioned_store import ObjectStore
from extender.sandbox.examples import Expectation
from extender.wire import SliceDecoder, decode_claim, decode_class, decode_node

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One pod. Bandwidths are ring bandwidths in GB/s; `good` says whether the expectation is met."""

    pod: str
    node: str  # "" while the pod is pending
    devices: tuple[str, ...]
    joined: str
    gbps: float
    first_fit_node: str  # "" if first fit finds none
    first_fit_gbps: float
    good: bool
    note: str


class Report:
    """Reads the sandbox's objects, and repeats the placement of the same pods with first fit."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        decoder = SliceDecoder()
        decoded = [decoder.decode(obj) for obj in store.all("resourceslices")]
        self._slices: list[Slice] = [s for s in decoded if s.pool.driver != DRIVER]
        self._fabrics = {s.selection.node_name: fabric_of(s.devices) for s in decoded if s.pool.driver == DRIVER}
        self._nodes: list[Node] = [decode_node(obj) for obj in store.all("nodes")]
        self._classes: dict[str, DeviceClass] = {c.name: c for c in map(decode_class, store.all("deviceclasses"))}
        self._machines = {n.name: n.labels.get("berth.dev/machine", "") for n in self._nodes}
        self._first_fit_taken: list[DeviceId] = []

    def rows(self, expectations: list[Expectation], pending: dict[str, dict[str, int]]) -> list[Row]:
        """Return one row per expectation, in the same order. `pending` has the reasons of rejected pods."""
        return [self._row(expected, pending) for expected in expectations]

    def _row(self, expected: Expectation, pending: dict[str, dict[str, int]]) -> Row:
        pod = self._store.get("pods", ("default", expected.pod)) or {}
        claims = self._claims(pod)
        first_fit = self._first_fit(claims)
        node = (pod.get("spec") or {}).get("nodeName") or ""
        if not node:
            reasons = sorted(pending.get(f"default/{expected.pod}", {}))
            good, note = expected.is_pending_for(reasons), "; ".join(reasons) or "not scheduled"
            return Row(expected.pod, "", (), "", 0.0, *first_fit, good, note)
        devices = [r.device for claim in claims if claim.allocation is not None for r in claim.allocation.results]
        gbps, joined = self._join(node, devices)
        good, note = self._compare(expected, node, gbps, served=bool(devices) or not claims)
        return Row(expected.pod, node, tuple(d.device for d in devices), joined, gbps, *first_fit, good, note)

    def _compare(self, expected: Expectation, node: str, gbps: float, *, served: bool) -> tuple[bool, str]:
        machine = self._machines.get(node, "")
        if expected.pending:
            return False, f"should be pending: {expected.pending}"
        if expected.machines and machine not in expected.machines:
            return False, f"expected on {' or '.join(expected.machines)}, is on {machine}"
        if gbps < expected.min_gbps:
            return False, f"expected at least {expected.min_gbps:.0f} GB/s"
        return served, "" if served else "bound without devices"

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

    def _join(self, node: str, devices: list[DeviceId]) -> tuple[float, str]:
        fabric = self._fabrics.get(node)
        if fabric is None or len(devices) < 2:  # noqa: PLR2004 - one GPU is joined to nothing
            return 0.0, "one GPU" if devices else "no devices"
        mask = _mask(fabric, devices)
        return bandwidth(fabric.graph, mask), _words(fabric, mask)

    def _first_fit(self, claims: list[Claim]) -> tuple[str, float]:
        """Take the first devices that fit on the first node by name. Return (node, ring bandwidth)."""
        fresh = [(str(claim.key), claim.spec) for claim in claims]
        for node in self._nodes:
            allocated_state = usage_of(self._slices, self._first_fit_taken, {})
            problem = problem_of(node, self._slices, self._classes, fresh, allocated_state, Features(), Masks())
            solution = Search(problem).run()
            if solution is not None:
                devices = [problem.inventory.places[p.bit].id for claim in solution.picks for p in claim]
                self._first_fit_taken.extend(devices)
                return node.name, self._join(node.name, devices)[0]
        return "", 0.0


def _mask(fabric: Fabric, devices: list[DeviceId]) -> int:
    """Return the bit mask of the devices. The sandbox names a device by its position in the machine."""
    positions = (int(device.device.rpartition("-")[2]) for device in devices)
    return sum(1 << p for p in positions if p < fabric.graph.size)


def _words(fabric: Fabric, mask: int) -> str:
    graph = fabric.graph
    if not is_joined(graph, mask):
        chosen = [i for i in range(graph.size) if mask >> i & 1]
        worst = max(graph.distance[a][b] for a in chosen for b in chosen)
        return f"PCIe ({DISTANCES[worst] if worst < UNKNOWN_DISTANCE else 'unknown'})"
    if any(graph.switch_links):
        return "NVSwitch"
    return f"{links_inside(graph, mask)} NVLinks"
