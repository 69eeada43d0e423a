"""A snapshot as it would be: nodes gone, claims given back, claims that do not exist yet."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable
from dataclasses import dataclass, replace

from extender.allocation.view import ChangeLog, NodeView, Snapshot
from extender.model.claim import Claim, Result
from extender.model.device import PoolKey
from extender.model.errors import WireError
from extender.model.pieces import breathing
from extender.model.text import shown
from extender.verdict.whatif import freed

_STEP = 16  # nodes between two breaths


@dataclass(frozen=True, slots=True)
class Changes:
    """What to imagine. `given_back` are allocated devices that are free again."""

    without_nodes: frozenset[str] = frozenset()
    given_back: tuple[Result, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.without_nodes or self.given_back)


def imagine(snapshot: Snapshot, claims: Iterable[Claim], changes: Changes) -> Snapshot:
    """The snapshot with the changes; the very same one where there are none."""
    added = {claim.key: claim for claim in claims}
    if not added and not changes:
        return snapshot
    views = snapshot.views
    if changes:
        left = {n: v for n, v in breathing(views.items(), _STEP) if n not in changes.without_nodes}
        views = _give_back(left, changes.given_back)
    known = ChainMap(added, snapshot.claims) if added else snapshot.claims  # type: ignore[arg-type] # the second is never written
    return replace(snapshot, views=views, claims=known, changes=ChangeLog(), is_newest=lambda _: False)


def _give_back(views: dict[str, NodeView], given: Iterable[Result]) -> dict[str, NodeView]:
    """The views, changed in place."""
    results: dict[PoolKey, list[Result]] = {}
    for result in given:
        results.setdefault(PoolKey(result.device.driver, result.device.pool), []).append(result)
    for name, view in breathing(list(views.items()) if results else (), _STEP):
        mine = [r for pool in view.inventory.pools for r in results.get(pool.key, ())]
        if mine:
            views[name] = freed(view, mine)
    return views


def seen_by_holder(snapshot: Snapshot, held: Iterable[Result], nodes: Iterable[str]) -> dict[str, NodeView]:
    """The nodes of devices that filter holds for a pod, as that pod sees them: what is held for itself is no obstacle."""
    return _give_back({name: snapshot.views[name] for name in nodes if name in snapshot.views}, held)


def devices_of(snapshot: Snapshot, pod: str) -> list[Result]:
    """The devices of a pod, named as namespace/name. Raises WireError where it has none."""
    namespace, _, name = pod.partition("/")
    found = [
        result
        for key, claim in snapshot.claims.items()
        if key.namespace == namespace and claim.allocation is not None and any(c.name == name for c in claim.reserved_for)
        for result in claim.allocation.results
    ]
    if not found:
        raise WireError("free", f"no claim with devices is reserved for pod {shown(pod)}")
    return found
