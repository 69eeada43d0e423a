"""The scheduling decision: a pod's requirements, the nodes that satisfy them, their order, and the planned allocation.

Every decision depends only on a snapshot, a pod and a policy. This package has no I/O, clock or asyncio.
"""

from extender.scheduling.binding_conditions import Readiness, readiness
from extender.scheduling.decision import (
    Decision,
    ScoredNode,
    decision_text,
    parse_decision,
    runner_up_text,
    scored_node,
)
from extender.scheduling.equivalence_key import ignores_identity
from extender.scheduling.evaluate import (
    EvaluationContext,
    FilterStatus,
    Unschedulable,
    evaluate,
    may_reject_sets,
    problem_for,
)
from extender.scheduling.evaluator import Evaluator
from extender.scheduling.extended_resources import special_claim
from extender.scheduling.node_constraints import UsableNodes, may_run
from extender.scheduling.node_ranking import NodeRanking
from extender.scheduling.nodes_of_status import NodesOfStatus
from extender.scheduling.placement_results import held_by_claim, held_results, new_allocations
from extender.scheduling.placements import Placement
from extender.scheduling.pod_requirements import (
    ADMIN_LABEL,
    SPECIAL_NAME,
    Pending,
    PodRequirements,
    PreFilterResult,
    Skip,
    UnschedulableAndUnresolvable,
    class_by_resource,
    class_of_resource,
    leftover_claims,
    needs_reservation,
    requirements_of,
    too_many_claims,
    unprovided_resource,
)
from extender.scheduling.ranking_cache import RankingCache
from extender.scheduling.selected_nodes import SelectedNodes
from extender.scheduling.shortlist import CollectedDomain, proximity_of, scores, shortlist
from extender.scheduling.unschedulable_reason import attributes_like

__all__ = [
    "ADMIN_LABEL",
    "SPECIAL_NAME",
    "CollectedDomain",
    "Decision",
    "EvaluationContext",
    "Evaluator",
    "FilterStatus",
    "NodeRanking",
    "NodesOfStatus",
    "Pending",
    "Placement",
    "PodRequirements",
    "PreFilterResult",
    "RankingCache",
    "Readiness",
    "ScoredNode",
    "SelectedNodes",
    "Skip",
    "Unschedulable",
    "UnschedulableAndUnresolvable",
    "UsableNodes",
    "attributes_like",
    "class_by_resource",
    "class_of_resource",
    "decision_text",
    "evaluate",
    "held_by_claim",
    "held_results",
    "ignores_identity",
    "leftover_claims",
    "may_reject_sets",
    "may_run",
    "needs_reservation",
    "new_allocations",
    "parse_decision",
    "problem_for",
    "proximity_of",
    "readiness",
    "requirements_of",
    "runner_up_text",
    "scored_node",
    "scores",
    "shortlist",
    "special_claim",
    "too_many_claims",
    "unprovided_resource",
]
