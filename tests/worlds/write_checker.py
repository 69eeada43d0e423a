"""Checks every write that an API server stores: no device is used twice, and no bound pod loses its devices.

It knows API objects only, and shares no code with Berth.
"""

from __future__ import annotations

import asyncio
from typing import Any

from extender.sandbox import Cluster
from extender.sandbox.apiserver.versioned_store import Change

Json = dict[str, Any]
Device = tuple[str, str, str]


def now() -> float:
    """The virtual time in seconds."""
    return asyncio.get_running_loop().time()


def uses(one: Json) -> list[str]:
    """The names of a pod's claims."""
    special = ((one.get("status") or {}).get("extendedResourceClaimStatus") or {}).get("resourceClaimName")
    named = [entry["resourceClaimName"] for entry in one["spec"].get("resourceClaims") or ()]
    return [*named, *([special] if special else [])]


def _asks(one: Json) -> bool:
    """Whether a pod asks for extended resources."""
    return any(c.get("resources") for c in one["spec"]["containers"])


def devices_of(one: Json | None) -> list[Device]:
    allocation = ((one or {}).get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    return [(r["driver"], r["pool"], r["device"]) for r in results]


def reserved_for(one: Json | None) -> set[str]:
    return {entry["uid"] for entry in ((one or {}).get("status") or {}).get("reservedFor") or ()}


class Checker:
    """Sees every stored write. `wrong` has the faults, as sentences with their time; `trace` has the writes."""

    def __init__(self, cluster: Cluster) -> None:
        self._store = cluster.store
        self._used: dict[str, dict[str, list[Device]]] = {}  # by name of a bound pod: its claims with their devices
        self.wrong: list[str] = []
        self.trace: list[str] = []
        self.bound = 0
        self._writers = {"": 0}  # the traces of a seed have the same names of processes
        cluster.store.listen(self._changed)

    def claim(self, name: str) -> Json | None:
        return self._store.get("resourceclaims", ("default", name))

    def _changed(self, change: Change) -> None:
        name = change.obj["metadata"]["name"]
        if change.resource == "pods":
            node = change.obj["spec"].get("nodeName", "")
            self.note(f"{change.kind} pod {name} {node} {uses(change.obj)}")
            if change.kind == "DELETED":
                self._used.pop(name, None)
            elif node and name not in self._used:
                self._is_bound(name, node, change.obj)
        elif change.resource == "resourceclaims":
            mark = (change.obj["metadata"].get("annotations") or {}).get("berth.dev/allocator", "")
            writer, _, release = mark.partition("/")
            number = self._writers.setdefault(writer, len(self._writers))
            reserved = [one["name"] for one in (change.obj.get("status") or {}).get("reservedFor") or ()]
            self.note(f"{change.kind} claim {name} {devices_of(change.obj)} for {reserved} by {number} {release}")
            gone = change.kind == "DELETED"
            for user, claims in self._used.items():
                ended = self._store.get("pods", ("default", user)) is None  # and the controller released the claim
                if not ended and name in claims and claims[name] != ([] if gone else devices_of(change.obj)):
                    self._find(f"pod {user} is bound, and claim {name} has lost its devices")

    def _is_bound(self, name: str, node: str, one: Json) -> None:
        claims = {used: devices_of(self.claim(used)) for used in uses(one)}
        if _asks(one) and len(claims) != 1:
            self._find(f"pod {name} is bound without a claim for its extended resources")
        for used, devices in claims.items():
            if not devices or {pool for _, pool, _ in devices} != {node}:
                self._find(f"pod {name} is bound to {node}, and claim {used} has devices {devices}")
            for other, others in self._used.items():
                taken = {d for of, held in others.items() if of != used for d in held}
                if not taken.isdisjoint(devices):
                    self._find(f"pods {name} and {other} are bound with the same device of claim {used}")
        self._used[name] = claims
        self.bound += 1

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{now():.4f} {text}")

    def _find(self, text: str) -> None:
        self.note(text)
        self.wrong.append(self.trace[-1])

    def check_rest(self) -> None:
        """After a time without faults: each bound pod has its reservations, and nothing else has any."""
        users = {one["metadata"]["uid"]: one for one in self._store.all("pods")}
        for one in users.values():
            for used in uses(one) if one["spec"].get("nodeName") else ():
                if one["metadata"]["uid"] not in reserved_for(self.claim(used)):
                    self._find(f"pod {one['metadata']['name']} is bound, and claim {used} is not reserved for it")
        for one in self._store.all("resourceclaims"):
            name, reserved = one["metadata"]["name"], reserved_for(one)
            if devices_of(one) and not reserved:
                self._find(f"claim {name} has devices for no pod")
            bound = {uid for uid in reserved if uid in users and users[uid]["spec"].get("nodeName")}
            for uid in reserved - bound:  # an undo that the API server refuses ends; the entry costs no device
                if uid not in users or not bound:
                    self._find(f"claim {name} is reserved for a pod that is gone or not bound")

    def check_empty(self) -> None:
        """After the end of all pods."""
        for one in self._store.all("resourceclaims"):
            if devices_of(one) or reserved_for(one) or one["metadata"].get("ownerReferences"):
                self._find(f"claim {one['metadata']['name']} is left: {one.get('status')}")
