"""The explanation of a gang."""

from __future__ import annotations

from dataclasses import dataclass

from extender.explain.device_holders import Holder
from extender.explain.gang_question import GangNearMiss


@dataclass(frozen=True, slots=True)
class ExplainedMember:
    """A pod of the group. `state` is 'bound', 'held', 'binding', 'waiting', 'gated', 'deleted' or 'not-ours'.

    `reason` is what kube-scheduler wrote about its last attempt. `since` is the creation of the pod as RFC 3339.
    """

    pod: str
    state: str
    node: str = ""  # on which it is bound or has devices
    reason: str = ""
    since: str = ""


@dataclass(frozen=True, slots=True)
class PlannedMember:
    """Where a member would be placed now, or has devices held."""

    pod: str
    node: str
    devices: tuple[str, ...]  # driver/pool/device


@dataclass(frozen=True, slots=True)
class GangExplanation:
    """The explanation of a group.

    `outcome` is 'no-gang' (no minimum), 'runs' (the minimum is bound), 'bound' (no pod waits, and the minimum is not
    known), 'planned' (serve holds devices), 'waiting' (for pods or claims), 'blocked' (a member is invalid), 'fits',
    'refused' (no domain has room), 'gave-up' (whether one has room is not known), or 'unfinished' (the deadline of the
    call ended).
    """

    group: str
    source: str  # the field, label or annotation by which its pods name it
    outcome: str
    sentence: str
    minimum: int = 0
    bound: int = 0
    missing: int = 0  # members that must still be bound
    topology: str = ""
    topology_label: str = ""
    members: tuple[ExplainedMember, ...] = ()
    since: str = ""  # RFC 3339; '' if no pod waits
    since_event: str = ""  # 'all pods exist' or 'the first pod exists'
    level: str = ""  # the domain of the plan or of the bound members, or the one with the most room
    domain: str = ""
    room: int = 0  # members that fit there
    room_if_empty: int | None = None  # members for which a domain has room if all other pods end; None if not known
    plan: tuple[PlannedMember, ...] = ()
    misses: tuple[GangNearMiss, ...] = ()  # changes that would make it fit, the cheapest first
    cut_short: str = ""  # why not all changes were tried
    holders: tuple[Holder, ...] = ()  # of devices in the domain `held_in`, the most devices first
    more_holders: int = 0
    held_in: str = ""  # the domain with the most room as text, such as 'on node n1'
