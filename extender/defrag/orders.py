"""The places that restarted pods get, in the order in which they are created again.

Each pod goes where filter prefers, as if no other came after it. So it may break the room that a larger pod or the
pods of a Job need, and which order leaves the fewest GPUs waiting depends on all restarts. First they go to nodes that
are not barred. What finds no place there is tried again on all nodes: then the taint is gone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from extender.allocation import NodeInfo
from extender.defrag.clusters import NO_NODES, Cluster, Nodes
from extender.defrag.restarts import Asked, Restart, gpus_of, sizes_of


@dataclass(frozen=True, slots=True)
class Refill:
    """A cluster in which restarted pods have places again. `waiting` has those that have none, by restart."""

    cluster: Cluster
    order: tuple[Restart, ...] = ()
    places: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by restart: nodes by UID of its new pods
    waiting: Mapping[str, Asked] = field(default_factory=dict)

    @property
    def waiting_gpus(self) -> int:
        """The GPUs that wait, as the cost counts them."""
        return sum(one.waiting_gpus(self.waiting[one.name].pods) for one in self.order if one.name in self.waiting)

    @property
    def held_gpus(self) -> int:
        """The GPUs of `waiting_gpus` that pods with places have: those of groups, and of claims that both need."""
        return sum(self._held_gpus(one) for one in self.order if one.name in self.waiting)

    def _held_gpus(self, restart: Restart) -> int:
        places = self.places[restart.name]
        held = {key for pod in self.cluster.memory.again(restart).pods if pod.uid in places for key in pod.claim_keys}
        if not restart.is_whole:
            held &= {key for pod in self.waiting[restart.name].pods for key in pod.claim_keys}
        return sum(gpus_of(claim) for claim in restart.claims if claim.key in held)

    def then(self, restart: Restart, barred: Nodes) -> Refill:
        """With the pods of one more restart. Raises DeadlineExceeded."""
        found = Refill(self.cluster, (*self.order, restart), {**self.places, restart.name: {}}, self.waiting)
        return found._with(restart.name, self.cluster.memory.again(restart), barred)

    def on_all_nodes(self) -> Refill:
        """With places for those that wait, also on the nodes that were barred. Raises DeadlineExceeded."""
        found = self
        for name, asked in self.waiting.items():
            found = found._with(name, asked, NO_NODES)
        return found

    def _with(self, name: str, asked: Asked, barred: Nodes) -> Refill:
        placed = self.cluster.place(asked, barred)
        if placed is None:
            return Refill(self.cluster, self.order, self.places, {**self.waiting, name: asked})
        places, left = {**self.places, name: {**self.places[name], **placed.nodes}}, asked.after(placed.nodes)
        waiting = {other: one for other, one in self.waiting.items() if other != name or left is not None}
        return Refill(placed.cluster, self.order, places, {**waiting, name: left} if left is not None else waiting)


def refill(cluster: Cluster, order: Iterable[Restart], barred: Nodes) -> Refill:
    """All restarted pods, in this order. Raises DeadlineExceeded."""
    found = Refill(cluster)
    for one in order:
        found = found.then(one, barred)
    return found.on_all_nodes()


class Steps:
    """How often a search may still place a restart or the wanted pods, for all sets of restarts together."""

    def __init__(self, left: int) -> None:
        self.left = left


class Orders:
    """All orders of some restarts. `barred` are the nodes that are reserved for the wanted pods."""

    def __init__(self, restarts: Sequence[Restart], barred: Nodes, steps: Steps) -> None:
        self._restarts = restarts
        self._barred = barred
        self._steps = steps
        self._gpus = {claim.key: gpus_of(claim) for one in restarts for claim in one.claims}
        self._sizes = {one.name: sizes_of(one) for one in restarts}
        self._seen: set[Hashable] = set()
        self.below = inf

    def better(self, cluster: Cluster) -> Iterator[Refill]:
        """Refills after which fewer GPUs than `below` wait, which the caller may set after each.

        In `cluster` the wanted pods have their places. It ends early if no step is left. Raises DeadlineExceeded.
        """
        yield from self._after(Refill(cluster), self._restarts)

    def _after(self, found: Refill, left: Sequence[Restart]) -> Iterator[Refill]:
        key = _state(found, left)
        if key in self._seen or self._least(found, left) >= self.below:
            return
        self._seen.add(key)
        if not left:
            full = found.on_all_nodes()
            if full.waiting_gpus < self.below:
                yield full
        for one in left:
            if self._steps.left <= 0:
                return
            self._steps.left -= 1
            yield from self._after(found.then(one, self._barred), [other for other in left if other is not one])

    def _least(self, found: Refill, left: Sequence[Restart]) -> float:
        """The GPUs that wait at least, after any order of those that are left."""
        lacking = {key for asked in found.waiting.values() for pod in asked.pods for key in pod.claim_keys}
        sizes = [*(self._sizes[one.name] for one in left), *(((self._gpus[key],), False) for key in lacking)]
        return found.cluster.least_waiting(sizes, {})


def _state(found: Refill, left: Sequence[Restart]) -> Hashable:
    """Equal for orders after which the same pods are to be placed on equal nodes."""
    cluster = found.cluster
    infos = cluster.snapshot.node_infos
    nodes = frozenset((name, _use(infos[name]), cluster.left.get(name)) for name in cluster.changed)
    waiting = tuple(pod.uid for asked in found.waiting.values() for pod in asked.pods)
    return frozenset(one.name for one in left), waiting, nodes


def _use(node_info: NodeInfo) -> Hashable:
    """What is in use of a node; the node itself if it has devices in parts or shares."""
    is_whole = node_info.inventory.simple.bit_count() == len(node_info.inventory.devices)
    return node_info.busy if is_whole else node_info
