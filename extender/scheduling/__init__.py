"""The scheduling decision: a pod's requirements, the nodes that satisfy them, their order, and the planned allocation.

Every decision depends only on a snapshot, a pod and a policy. This package has no I/O, clock or asyncio. evaluate.py
tells the whole story. The room `requirements` has a face of its own: what a pod needs.
"""

from extender.scheduling.decision import (
    Decision,
    ScoredNode,
    crowded_text,
    parse_decision,
    runner_up_text,
)
from extender.scheduling.deviceless import DevicelessScores
from extender.scheduling.domain_uses import DomainUses, Use, path_labels
from extender.scheduling.equivalence import ignores_identity
from extender.scheduling.evaluate import (
    EvaluationContext,
    Evaluator,
    FilterStatus,
    Placement,
    Unschedulable,
    beside_own,
    evaluate,
    may_reject_sets,
)
from extender.scheduling.gang_parts import (
    BoundMember,
    GangPart,
    absent_members,
    bound_parts,
    lacking_subgroup,
    needed_members,
    parts_disagreement,
    parts_of,
    parts_problem,
    rank_order,
)
from extender.scheduling.node_ranking import NodeRanking, NodesOfStatus, RankingCache
from extender.scheduling.node_selection import NO_PREFERENCE, NodePreference, SelectedNodes, UsableNodes, may_run
from extender.scheduling.requirements.pod_requirements import PodRequirements, requirements_of
from extender.scheduling.shortlist import (
    MAX_CLIQUE,
    Best,
    CollectedDomain,
    best_nodes,
    in_cliques,
    left_part,
    outside_domain,
    part_domains,
    proximity_of,
    running_domain,
    scores,
    shortlist,
    with_cpu,
)
from extender.scheduling.unschedulable_reason import attributes_like, similar_names

__all__ = [
    "MAX_CLIQUE",
    "NO_PREFERENCE",
    "Best",
    "BoundMember",
    "CollectedDomain",
    "Decision",
    "DevicelessScores",
    "DomainUses",
    "EvaluationContext",
    "Evaluator",
    "FilterStatus",
    "GangPart",
    "NodePreference",
    "NodeRanking",
    "NodesOfStatus",
    "Placement",
    "PodRequirements",
    "RankingCache",
    "ScoredNode",
    "SelectedNodes",
    "Unschedulable",
    "UsableNodes",
    "Use",
    "absent_members",
    "attributes_like",
    "beside_own",
    "best_nodes",
    "bound_parts",
    "crowded_text",
    "evaluate",
    "ignores_identity",
    "in_cliques",
    "lacking_subgroup",
    "left_part",
    "may_reject_sets",
    "may_run",
    "needed_members",
    "outside_domain",
    "parse_decision",
    "part_domains",
    "parts_disagreement",
    "parts_of",
    "parts_problem",
    "path_labels",
    "proximity_of",
    "rank_order",
    "requirements_of",
    "runner_up_text",
    "running_domain",
    "scores",
    "shortlist",
    "similar_names",
    "with_cpu",
]
