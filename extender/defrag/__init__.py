"""Which pods to restart, so that other pods fit: the cheapest set of them, from a snapshot and what a restart costs.

`advise` searches; clusters.py places pods on hypothetical snapshots with the code of filter and of the gang planner.
"""

from extender.defrag.cheapest_restarts import Advice, AdviceKind, advise, over_budget
from extender.defrag.clusters import Cluster
from extender.defrag.restarts import RESERVED, TOLERATION, WAIT_COST, Asked, Restart, again, gpus_of

__all__ = [
    "RESERVED",
    "TOLERATION",
    "WAIT_COST",
    "Advice",
    "AdviceKind",
    "Asked",
    "Cluster",
    "Restart",
    "advise",
    "again",
    "gpus_of",
    "over_budget",
]
