"""The scheduling decision: a pod's requirements, the nodes that satisfy them, their order, and the planned allocation.

Every decision depends only on a snapshot, a pod and a policy. This package has no I/O, clock or asyncio. evaluate.py
tells the whole story. The room `requirements` has a face of its own: what a pod needs.
"""

from extender.scheduling.decision import (
    Decision,
    ScoredNode,
    parse_decision,
    runner_up_text,
)
from extender.scheduling.domains import NODE, Domain, Domains, natural
from extender.scheduling.emptied_domains import EmptiedDomains, EmptyNodes, domains_by_room, own_devices
from extender.scheduling.equivalence import ignores_identity
from extender.scheduling.evaluate import (
    EvaluationContext,
    Evaluator,
    FilterStatus,
    Placement,
    Unschedulable,
    evaluate,
)
from extender.scheduling.gang import (
    Gang,
    difference,
    disagreement,
    gang_minimum,
    gang_of,
    is_incomplete,
    lacks_pod_group,
    may_terminate,
    members_with_claims,
    minimum_of,
    own_claims,
    placed_members,
)
from extender.scheduling.gang_memory import GangMemory
from extender.scheduling.gang_plan import GangMember, GangPlan, GangProblem, GangShortage, NodeLimit
from extender.scheduling.gang_planner import lacking_members, plan_gang
from extender.scheduling.gang_problem import (
    MOST_TOGETHER,
    GangMembers,
    UnreadyMember,
    gang_members,
    gang_problem,
    no_room,
    plan_sizes,
)
from extender.scheduling.gang_search import MAX_STEPS
from extender.scheduling.gang_units import equal_units
from extender.scheduling.node_ranking import NodeRanking, NodesOfStatus, RankingCache
from extender.scheduling.node_room import NodeRooms
from extender.scheduling.node_selection import SelectedNodes, UsableNodes, may_run
from extender.scheduling.requirements.pod_requirements import PodRequirements, requirements_of
from extender.scheduling.room_bounds import most_units
from extender.scheduling.shortlist import CollectedDomain, proximity_of, scores, shortlist
from extender.scheduling.unschedulable_reason import attributes_like

__all__ = [
    "MAX_STEPS",
    "MOST_TOGETHER",
    "NODE",
    "CollectedDomain",
    "Decision",
    "Domain",
    "Domains",
    "EmptiedDomains",
    "EmptyNodes",
    "EvaluationContext",
    "Evaluator",
    "FilterStatus",
    "Gang",
    "GangMember",
    "GangMembers",
    "GangMemory",
    "GangPlan",
    "GangProblem",
    "GangShortage",
    "NodeLimit",
    "NodeRanking",
    "NodeRooms",
    "NodesOfStatus",
    "Placement",
    "PodRequirements",
    "RankingCache",
    "ScoredNode",
    "SelectedNodes",
    "UnreadyMember",
    "Unschedulable",
    "UsableNodes",
    "attributes_like",
    "difference",
    "disagreement",
    "domains_by_room",
    "equal_units",
    "evaluate",
    "gang_members",
    "gang_minimum",
    "gang_of",
    "gang_problem",
    "ignores_identity",
    "is_incomplete",
    "lacking_members",
    "lacks_pod_group",
    "may_run",
    "may_terminate",
    "members_with_claims",
    "minimum_of",
    "most_units",
    "natural",
    "no_room",
    "own_claims",
    "own_devices",
    "parse_decision",
    "placed_members",
    "plan_gang",
    "plan_sizes",
    "proximity_of",
    "requirements_of",
    "runner_up_text",
    "scores",
    "shortlist",
]
