"""The fleet as people look at it: one letter per GPU, and one node in full.

Letters: f free, h held, u allocated, 1..9 shared by so many tenths, d used though no claim holds it, x unhealthy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from extender.allocation.problem import UNUSED
from extender.allocation.view import NodeView, Snapshot
from extender.diagnosis.near_misses import Holders, holders_on
from extender.fabric.sets import largest_joined
from extender.model.claim import Claim
from extender.model.fabric import DISTANCES
from extender.model.quantity import NANO
from extender.scoring.parts import memory_bytes

Json = dict[str, Any]
STATES = {"f": "free", "h": "held", "u": "allocated", "s": "shared", "d": "drifting", "x": "unhealthy"}
GROUPS = {
    "zone": "topology.kubernetes.io/zone",
    "rack": "topology.kubernetes.io/rack",
    "clique": "nvidia.com/gpu.clique",
}
_PRODUCT = ("gpu.nvidia.com/productName", "productName")
_MEMORY = ("memory", "gpu.nvidia.com/memory")


def shown_bits(view: NodeView) -> list[int]:
    """The devices that stand for the node's GPUs; all devices where none is a whole GPU."""
    gpus = [bit for bit in view.gpu_bits if bit >= 0]
    return gpus or list(range(len(view.inventory.places)))


def letter(view: NodeView, bit: int) -> str:
    """The state of a device."""
    if view.held >> bit & 1:
        return "h"
    if _note(view, bit):
        return "x"
    if view.drift >> bit & 1:
        return "d"
    used = shared_tenths(view, bit)
    if used:
        return str(used)
    return "u" if view.busy >> bit & 1 else "f"


def letters(view: NodeView) -> str:
    """One letter per GPU, in the order of the fabric."""
    return "".join(letter(view, bit) for bit in shown_bits(view))


def shared_tenths(view: NodeView, bit: int) -> int:
    """1..9 where shares are allocated on the device, else 0."""
    place = view.inventory.places[bit]
    shares = view.usage.pools.get(view.inventory.pools[place.pool].key, UNUSED).shares.get(place.id.device)
    if shares is None:
        return 0
    total = memory_bytes(view, bit) * NANO
    used = max((shares.get(name, 0) for name in _MEMORY), default=0)
    return min(max(10 * used // total, 1), 9) if total else 1


def product(view: NodeView) -> str:
    """What the node's GPUs are called."""
    if view.fabric is not None and view.fabric.product:
        return view.fabric.product
    for place in view.inventory.places[:1]:
        for name in _PRODUCT:
            value = place.device.attributes.get(name)
            if isinstance(value, str):
                return value
    return "other devices" if view.inventory.places else "no devices"


def largest_free_set(view: NodeView) -> int:
    """How many free GPUs NVLink joins in one ring; 0 where it joins none."""
    if view.fabric is None:
        return 0
    return largest_joined(view.fabric.graph, view.positions(~view.busy), len(view.gpu_bits))


def row(view: NodeView) -> Json:
    """One node in the overview."""
    labels = view.node.labels
    groups = {name: labels[label] for name, label in GROUPS.items() if label in labels}
    return {"name": view.node.name, "product": product(view), "gpus": letters(view), **groups}


def totals(rows: Iterable[Json]) -> dict[str, int]:
    """GPUs by state."""
    counted: Counter[str] = Counter()
    for found in rows:
        counted.update(found["gpus"])
    named = {name: counted[code] for code, name in STATES.items()}
    named["shared"] = sum(count for code, count in counted.items() if code.isdigit())
    return named


def node_detail(view: NodeView, holders: Holders) -> Json:
    """One node in full: every device with its holder, the links, the words on memory."""
    claims = holders_on(view, holders)
    by_device = _claims_by_device(claims)
    fabric = view.fabric
    devices = []
    for bit in shown_bits(view):
        place = view.inventory.places[bit]
        position = view.gpu_bits.index(bit) if bit in view.gpu_bits else -1
        state = fabric.gpus[position] if fabric is not None and position >= 0 else None
        devices.append(
            {
                "name": place.id.device,
                "driver": place.id.driver,
                "pool": place.id.pool,
                "state": letter(view, bit),
                "memory": memory_bytes(view, bit),
                "live_free": state.memory_free_bytes if state and view.believed else None,
                "note": _note(view, bit),
                "claims": by_device.get(str(place.id), []),
            }
        )
    found: Json = {**row(view), "devices": devices, "largest_free_set": largest_free_set(view)}
    if fabric is not None:
        found["fabric"] = {
            "source": fabric.source.value,
            "links": fabric.graph.links,
            "switch_links": fabric.graph.switch_links,
            "link_gbps": fabric.graph.link_gbps,
            "numa": fabric.graph.numa,
            "distance": [[DISTANCES[d] if d < len(DISTANCES) else "?" for d in line] for line in fabric.graph.distance],
        }
    return found


def claim_rows(snapshot: Snapshot) -> list[Json]:
    """Every claim with what it has."""
    return [
        {
            "claim": str(key),
            "devices": [str(r.device) for r in claim.allocation.results] if claim.allocation else [],
            "pods": [consumer.name for consumer in claim.reserved_for],
            "ours": claim.ours,
            "problem": claim.problem,
        }
        for key, claim in sorted(snapshot.claims.items())
    ]


def _note(view: NodeView, bit: int) -> str:
    if view.fabric is None or bit not in view.gpu_bits:
        return ""
    state = view.fabric.gpus[view.gpu_bits.index(bit)]
    return "" if state.healthy else state.note or "unhealthy"


def _claims_by_device(claims: Iterable[Claim]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for claim in claims:
        for result in claim.allocation.results if claim.allocation is not None else ():
            found.setdefault(str(result.device), []).append(str(claim.key))
    return found
