"""Rows of the groups of pods in the fleet overview: how many members wait, and which GPUs the others have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from extender.allocation import Snapshot
from extender.explain.node_rows import shown_bits
from extender.model import GroupKey, ObjectKey, Reservation, Result, name_on_claims
from extender.scheduling import gang_minimum
from extender.wire import Json

_NODES = 64  # of one group


@dataclass(slots=True)
class _Members:
    """The members of a group. `devices` are the devices of those that are not waiting, by node."""

    waiting: int = 0
    held: int = 0  # waiting members with devices held
    minimum: int = 0
    bound: set[str] = field(default_factory=set)  # UIDs
    devices: dict[str, list[Result]] = field(default_factory=dict)


def group_rows(snapshot: Snapshot, most: int, gone: Container[str]) -> list[Json]:
    """At most `most` groups of at least two pods, as JSON: those with waiting pods first, then the largest.

    `gone` are the UIDs of members that are known to terminate.
    """
    by_pod = _by_pod(snapshot.reservations.values())
    waiting = {(key.namespace, key.on_claims): key for key in snapshot.members if key.name}
    size = Counter({name: len(snapshot.members[key]) for name, key in waiting.items()})
    size.update({name: len(claims) for name, claims in snapshot.group_claims.items()})
    names = [name for name, members in size.items() if members > 1]
    found = list[Json]()
    for name in sorted(names, key=lambda name: (name not in waiting, -size[name], name)):
        if len(found) == most:
            break
        group = _members(name, waiting.get(name), snapshot, by_pod)
        group.bound = {uid for uid in group.bound if uid not in gone}
        if group.waiting + len(group.bound) > 1:
            found.append(_row(name, group, snapshot))
    return found


def _by_pod(reservations: Iterable[Reservation]) -> dict[str, list[Reservation]]:
    found: dict[str, list[Reservation]] = {}
    for reservation in reservations:
        found.setdefault(reservation.pod_uid, []).append(reservation)
    return found


def _members(
    name: tuple[str, str], key: GroupKey | None, snapshot: Snapshot, by_pod: dict[str, list[Reservation]]
) -> _Members:
    found = _Members()
    pods = snapshot.members.get(key, {}) if key is not None else {}
    for uid, pod in pods.items():
        found.waiting += 1
        found.held += uid in by_pod
        found.minimum = found.minimum or (gang_minimum(pod.membership, snapshot) if pod.membership else 0)
        for reservation in by_pod.get(uid, ()):
            found.devices.setdefault(reservation.node, []).extend(reservation.results)
    for claim_key, node in snapshot.group_claims.get(name, {}).items():
        _add_claim(found, claim_key, node, snapshot, pods.keys())
    return found


def _add_claim(found: _Members, key: ObjectKey, node: str, snapshot: Snapshot, waiting: Container[str]) -> None:
    claim = snapshot.claims.get(key)
    if claim is None or claim.allocation is None:
        return
    found.bound.update(consumer.uid for consumer in claim.reserved_for if consumer.uid not in waiting)
    found.devices.setdefault(node, []).extend(claim.allocation.results)


def _row(name: tuple[str, str], group: _Members, snapshot: Snapshot) -> Json:
    namespace, on_claims = name
    nodes = sorted(group.devices)
    return {
        "group": f"{namespace}/{name_on_claims(on_claims)}",
        "minimum": group.minimum,
        "waiting": group.waiting,
        "held": group.held,
        "bound": len(group.bound),
        "nodes": {node: _shown_gpus(node, group.devices[node], snapshot) for node in nodes[:_NODES]},
        "more_nodes": len(nodes[_NODES:]),
    }


def _shown_gpus(node: str, results: Iterable[Result], snapshot: Snapshot) -> list[int]:
    """The devices as indexes of the letters in the row of the node."""
    node_info = snapshot.node_infos.get(node)
    if node_info is None:
        return []
    index = {bit: position for position, bit in enumerate(shown_bits(node_info))}
    bits = {node_info.inventory.index.get(result.device) for result in results}
    return sorted(index[bit] for bit in bits if bit in index)
