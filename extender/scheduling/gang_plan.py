"""The plan of a gang: a node and devices for every member, in the tightest domain that has room for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from extender.scheduling.evaluate import Placement
from extender.scheduling.requirements.pod_requirements import PodRequirements


@dataclass(frozen=True, slots=True, eq=False)
class NodeLimit:
    """The number of equal members that kube-scheduler accepts on one node, by CPU and everything else but devices.

    Members with the same NodeLimit object count together.
    """

    most: int  # on any node
    placed: Mapping[str, int]  # node to number of such members that the plan does not move

    def left(self, node: str) -> int:
        """How many more of these members fit on a node."""
        return max(self.most - self.placed.get(node, 0), 0)


@dataclass(frozen=True, slots=True)
class GangMember:
    """A member to place."""

    uid: str
    requirements: PodRequirements
    rank: int  # members are placed in this order on neighbouring nodes
    nodes: frozenset[str] | None = None  # nodes on which kube-scheduler may run the pod; None: all
    excluded: frozenset[str] = frozenset()  # nodes that kube-scheduler rejected for the pod
    limit: NodeLimit | None = None


@dataclass(frozen=True, slots=True)
class GangProblem:
    """The constraints of a plan."""

    members: tuple[GangMember, ...]
    levels: tuple[str, ...]  # node labels, the nearest level first; a single node is nearer than all of them
    topology: str  # required: one domain of the nearest level; preferred: as near as possible; none: any nodes
    topology_label: str = ""  # all members on one value of this label, in every topology; '' for no constraint
    placed: Mapping[str, int] = field(default_factory=dict)  # node to number of members that are bound there


@dataclass(frozen=True, slots=True)
class GangPlan:
    """The node and the devices of every member."""

    placements: Mapping[str, tuple[str, Placement]]  # UID to node and placement
    level: str  # 'node', the label of the level, or '' if no level has a domain with room for all
    domain: str  # the name of the node or the value of the label; '' if level is ''

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset(node for node, _ in self.placements.values())


@dataclass(frozen=True, slots=True)
class GangShortage:
    """No plan exists, or none was found."""

    members: int  # members to place
    room: int  # members that one admissible domain has room for; more may fit, see most_room
    level: str
    domain: str
    gave_up: bool = False  # the search ended at its step limit: a plan may exist
    most: bool = False  # whether no domain has room for more members than `room`
