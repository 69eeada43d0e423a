"""The scheduling decision: a pod's requirements, the nodes that satisfy them, their order, and the planned allocation.

Every decision depends only on a snapshot, a pod and a policy. This package has no I/O, clock or asyncio. evaluate.py
tells the whole story. The package `requirements` has a face of its own: what a pod needs. So have the modules
`subgroup_tree` (the sub-groups of a gang), `running_domain` (where a gang runs), `shortlist` (the nodes for filter and
prioritize) and `decision` (the annotation of a bound pod).
"""

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
from extender.scheduling.node_ranking import NodeRanking, NodesOfStatus, RankingCache
from extender.scheduling.node_selection import NO_PREFERENCE, NodePreference, SelectedNodes, UsableNodes, may_run
from extender.scheduling.requirements.pod_requirements import PodRequirements, requirements_of
from extender.scheduling.unschedulable_reason import attributes_like, similar_names

__all__ = [
    "NO_PREFERENCE",
    "DomainUses",
    "EvaluationContext",
    "Evaluator",
    "FilterStatus",
    "NodePreference",
    "NodeRanking",
    "NodesOfStatus",
    "Placement",
    "PodRequirements",
    "RankingCache",
    "SelectedNodes",
    "Unschedulable",
    "UsableNodes",
    "Use",
    "attributes_like",
    "beside_own",
    "evaluate",
    "ignores_identity",
    "may_reject_sets",
    "may_run",
    "path_labels",
    "requirements_of",
    "similar_names",
]
