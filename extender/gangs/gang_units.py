"""The units of a gang: the members that must be placed on one node together, and groups of equal units.

Most units have one member. Members that share a pending claim form one unit, because they use one allocation. The first
of them takes the devices of the claim, and the others need only their remaining claims.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from extender.allocation import NodeInfo, Pick, Solution
from extender.api.claim_specs import DeviceRequest
from extender.api.nodes import Node, NodeSelector
from extender.gangs.gang_problem import GangMember
from extender.gangs.member_limits import NodeLimit
from extender.scheduling import Placement, PodRequirements

UnitPlacement = tuple[Placement, ...]
"""The devices of each member of a unit. A claim that an earlier member of the unit has taken has no devices in it."""

Placed = list[tuple[str, UnitPlacement]]
"""The node and the devices of each of some equal units."""

_ALL_DEVICES = 32  # a request of mode All counts as this many devices when units are ordered by size


class Admissible(NamedTuple):
    """The nodes that a unit may use, with or without free devices."""

    nodes: frozenset[frozenset[str]]  # a node must be in all of them
    excluded: frozenset[str]
    selectors: frozenset[NodeSelector]  # a node must match all of them

    @property
    def pin(self) -> str | None:
        """The only node that can be admissible; None if several can be."""
        for names in self.nodes:
            if len(names) == 1:
                return next(iter(names))
        return next((selector.node for selector in self.selectors if selector.node is not None), None)

    def allows(self, node: Node) -> bool:
        return (
            node.name not in self.excluded
            and all(node.name in names for names in self.nodes)
            and all(selector.matches(node.name, node.labels) for selector in self.selectors)
        )

    def among(self, names: Sequence[str], node_infos: Mapping[str, NodeInfo]) -> Sequence[str]:
        """Those of the nodes that it allows."""
        for nodes in self.nodes:
            names = [name for name in names if name in nodes]
        if not self.excluded and not self.selectors:
            return names
        return [name for name in names if self.allows(node_infos[name].node)]


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """Members that must be placed on one node, in rank order."""

    members: tuple[GangMember, ...]
    admissible: Admissible
    pin: str | None  # that of `admissible`


@dataclass(frozen=True, slots=True, eq=False)
class EqualUnits:
    """Units with equal requirements, in rank order: all may use the same nodes, or each is pinned to one node."""

    steps: tuple[PodRequirements, ...]  # of each member of the first unit, without the claims of earlier members
    limits: tuple[tuple[NodeLimit, ...], ...]  # of each member of a unit
    admissible: Admissible | None  # of all units; None if they are pinned
    units: list[Unit] = field(default_factory=list)
    pinned: dict[str, list[Unit]] = field(default_factory=dict)  # by node

    def allowed_on(self, node: Node) -> int:
        """The number of units that may use the node, with or without free devices."""
        if self.admissible is not None:
            return len(self.units) if self.admissible.allows(node) else 0
        return sum(unit.admissible.allows(node) for unit in self.pinned.get(node.name, ()))

    @property
    def size(self) -> int:
        """The number of devices that one unit asks for, by its first alternatives."""
        return sum(_size(step) for step in self.steps)


def equal_units(members: Iterable[GangMember]) -> list[EqualUnits]:
    """The equal units of a gang, by the rank of the first."""
    found: dict[object, EqualUnits] = {}
    for unit in _units(members):
        steps = _steps(unit)
        limits = tuple(member.limits for member in unit.members)
        admissible = unit.admissible if unit.pin is None else None  # or units with different pins would not be equal
        key = (tuple(step.key for step in steps), limits, admissible)
        if key not in found:
            found[key] = EqualUnits(steps, limits, admissible)
        found[key].units.append(unit)
        if unit.pin is not None:
            found[key].pinned.setdefault(unit.pin, []).append(unit)
    return list(found.values())


def _order(member: GangMember) -> tuple[int, str]:
    return member.rank, member.uid


def _units(members: Iterable[GangMember]) -> list[Unit]:
    """The members, joined where they share a pending claim."""
    joined: dict[str, list[GangMember]] = {}  # claim UID to the members of its unit
    groups: dict[int, list[GangMember]] = {}
    for member in sorted(members, key=_order):
        own = [member]
        groups[id(own)] = own
        claims = [claim.uid for claim in member.requirements.pending_claims if claim.uid]
        for other in {id(found): found for uid in claims if (found := joined.get(uid)) is not None}.values():
            own = _merged(other, own, groups, joined)
        joined |= dict.fromkeys(claims, own)
    return sorted(map(_unit, groups.values()), key=lambda unit: _order(unit.members[0]))


def _unit(group: list[GangMember]) -> Unit:
    admissible = Admissible(
        frozenset(member.nodes for member in group if member.nodes is not None),
        frozenset[str]().union(*(member.excluded for member in group)),
        frozenset(selector for member in group for selector in member.requirements.node_selectors),
    )
    return Unit(tuple(sorted(group, key=_order)), admissible, admissible.pin)


def _merged(
    first: list[GangMember],
    second: list[GangMember],
    groups: dict[int, list[GangMember]],
    joined: dict[str, list[GangMember]],
) -> list[GangMember]:
    first.extend(second)
    del groups[id(second)]
    for member in second:
        joined.update((claim.uid, first) for claim in member.requirements.pending_claims if claim.uid)
    return first


def _steps(unit: Unit) -> tuple[PodRequirements, ...]:
    taken: set[str] = set()
    found = []
    for member in unit.members:
        found.append(_without(member.requirements, taken))
        taken.update(claim.uid for claim in member.requirements.pending_claims if claim.uid)
    return tuple(found)


def _without(requirements: PodRequirements, taken: set[str]) -> PodRequirements:
    """The requirements without the claims that another member takes."""
    left = [i for i, claim in enumerate(requirements.pending_claims) if claim.uid not in taken]
    if len(left) == len(requirements.pending_claims):
        return requirements
    return replace(
        requirements,
        pending_claims=tuple(requirements.pending_claims[i] for i in left),
        claim_names=tuple(requirements.claim_names[i] for i in left),
        specs=tuple(requirements.specs[i] for i in left),
        key=(*requirements.key, "claims", tuple(left)),
    )


def _size(requirements: PodRequirements) -> int:
    requests = (request.alternatives[0] for spec in requirements.specs for request in spec.requests)
    return sum(_count(request) for request in requests)


def _count(request: DeviceRequest) -> int:
    if request.admin_access:
        return 0
    return request.count if request.mode == "ExactCount" else _ALL_DEVICES


def member_placements(
    unit: Unit, placements: UnitPlacement, name: str, node_infos: Mapping[str, NodeInfo]
) -> dict[str, Placement]:
    """The placement of each member on a node, by UID, with the devices of all its pending claims in their order.

    The claims that members share have equal devices in each of their placements.
    """
    if len(unit.members) == 1:
        return {unit.members[0].uid: placements[0]}
    node, shared = node_infos[name].node, dict[str, tuple[tuple[Pick, ...], tuple[int, ...]]]()
    found: dict[str, Placement] = {}
    for member, step, placement in zip(unit.members, _steps(unit), placements, strict=True):
        own = step.for_node(node).pending_claims
        for claim, picks, chosen in zip(own, *placement.solution, strict=True):
            shared[claim.uid] = picks, chosen
        found[member.uid] = _completed(placement, member.requirements.for_node(node), shared)
    return found


def _completed(
    placement: Placement,
    requirements: PodRequirements,
    shared: dict[str, tuple[tuple[Pick, ...], tuple[int, ...]]],
) -> Placement:
    parts: Sequence[tuple[tuple[Pick, ...], tuple[int, ...]]] = [
        shared[claim.uid] for claim in requirements.pending_claims
    ]
    solution = Solution(tuple(picks for picks, _ in parts), tuple(chosen for _, chosen in parts))
    return Placement(solution, placement.parts, placement.score, placement.ring_gbps)
