"""Which of equally good nodes comes first: one of a broken NVLink clique, so that whole cliques stay for large gangs.

No score knows it: nodes with equal hardware and use share their score, whichever clique they are in.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, takewhile

from extender.allocation import Snapshot
from extender.scheduling.evaluate import Placement
from extender.scheduling.requirements.pod_requirements import PodRequirements

_MAX_CLIQUE = 72  # nodes of a clique that are looked at: no NVLink clique has more GPUs

Best = list[tuple[str, Placement]]


def keeping_cliques(best: Best, requirements: PodRequirements, snapshot: Snapshot) -> Best:
    """The best nodes, ordered by score: of those that are as good as the first, one of a broken clique comes first.

    A clique is broken if a node of it has GPUs in use. The level of cliques is the first of `group_levels`. The work
    does not grow with the fleet.
    """
    level = next(iter(requirements.policy.group_levels), "")
    equal = list(takewhile(lambda one: one[1].score == best[0][1].score, best))
    by_clique: dict[str, tuple[str, Placement]] = {}  # the first node of each
    for one in equal:
        node_info = snapshot.node_infos.get(one[0])
        by_clique.setdefault(node_info.node.labels.get(level, "") if node_info is not None else "", one)
    if len(by_clique) <= 1 or "" in by_clique:
        return best
    nodes = snapshot.nodes_by_label(level)
    first = next((one for clique, one in by_clique.items() if _is_broken(nodes.get(clique, ()), snapshot)), equal[0])
    return [first, *(one for one in best if one is not first)]


def _is_broken(names: Iterable[str], snapshot: Snapshot) -> bool:
    found = (snapshot.node_infos.get(name) for name in islice(names, _MAX_CLIQUE))
    return any(node_info is not None and node_info.positions(node_info.busy) for node_info in found)
