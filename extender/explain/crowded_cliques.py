"""What explanations say about the NVLink cliques in which other ComputeDomains have channels.

By the policy `compute_domains`, their nodes come after all others (`prefer`), or the pod may not use them (`require`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice

from extender.allocation import Snapshot
from extender.base.text_limits import counted, one_line
from extender.scheduling import (
    MAX_CLIQUE,
    Best,
    FilterStatus,
    NodeRanking,
    PodRequirements,
    ScoredNode,
    best_nodes,
    crowded_text,
    in_cliques,
)
from extender.vendors import CLIQUE_LABEL, compute_domain

_MAX_CLIQUES = 3  # named in one explanation
_MAX_SEARCHED = 64  # cliques whose claims are read
_MAX_CLAIMS = 4  # named for one clique


def why_last(
    best: Sequence[ScoredNode],
    ranking: NodeRanking,
    requirements: PodRequirements,
    snapshot: Snapshot,
    allowed: AbstractSet[str],
    newer: Mapping[str, FilterStatus],
) -> str:
    """The words about a node with a better score than the best one, which comes last; '' without one."""
    crowded = in_cliques(requirements.crowded_cliques(snapshot), snapshot)
    if not best or not crowded or best[0].node in crowded:
        return ""
    last: Best = best_nodes(ranking, requirements, snapshot, allowed & crowded, 1, newer)
    if not last or last[0][1].score <= best[0].score:
        return ""
    clique = one_line(snapshot.node_infos[last[0][0]].node.labels[CLIQUE_LABEL])
    return f"; {last[0][0]} has a better score, but {crowded_text(clique)}: its nodes come last"


def clique_misses(nodes: Iterable[str], requirements: PodRequirements, snapshot: Snapshot) -> tuple[str, ...]:
    """What must end in each clique, so that the pod may use the nodes; they would fit. The fewest claims come first.

    The claims of other namespaces are not named.
    """
    by_clique = defaultdict[str, list[str]](list)
    for name in sorted(nodes):
        by_clique[snapshot.node_infos[name].node.labels[CLIQUE_LABEL]].append(name)
    found = []
    for clique, names in islice(sorted(by_clique.items()), _MAX_SEARCHED):
        own, others = _claims_of_others(clique, requirements, snapshot)
        listed = [*own[:_MAX_CLAIMS], *([f"{len(own) - _MAX_CLAIMS} more"] if len(own) > _MAX_CLAIMS else [])]
        whose = [f"{'claim' if len(own) == 1 else 'claims'} {', '.join(listed)}"] if own else []
        whose += [f"{counted(others, 'claim')} of other namespaces"] if others else []
        held = f", which has channels for {' and '.join(whose)}," if whose else ""
        more = f" and {counted(len(names) - 1, 'more node')}" if len(names) > 1 else ""
        where = f"{names[0]}{more} of NVLink clique {one_line(clique)}"
        text = f"fits on {where} once the other ComputeDomain{held} ends"
        found.append((bool(others), len(own) + others, text))
    return tuple(text for _, _, text in sorted(found)[:_MAX_CLIQUES])


def _claims_of_others(clique: str, requirements: PodRequirements, snapshot: Snapshot) -> tuple[list[str], int]:
    """The claims of other ComputeDomains in a clique: names of those in the pod's namespace, the number of others."""
    claims = {
        claim.key: claim
        for name in islice(sorted(in_cliques([clique], snapshot)), MAX_CLIQUE)
        if name in snapshot.node_infos
        for pool in snapshot.node_infos[name].inventory.pools
        for claim in snapshot.claims_on(pool.key)
        if compute_domain(claim.spec) not in ("", requirements.compute_domain)
    }
    own = sorted(str(key) for key in claims if key.namespace == requirements.namespace)
    return own, len(claims) - len(own)
