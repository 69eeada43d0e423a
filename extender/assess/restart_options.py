"""What a user can do so that wanted pods find room: options of berth defrag, a smaller wish, a rollout.

Each is named only if there is room then, should all pods end that may be restarted. If budgets forbid that, as many as
they allow end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from extender.allocation import Features, Snapshot, tolerates
from extender.allocation.what_if import hypothetical_snapshot
from extender.api.nodes import Node
from extender.api.pod_annotations import MIN_BANDWIDTH_ANNOTATION, TOPOLOGY_ANNOTATION, intent_of
from extender.api.pods import SCHEDULER, Pod
from extender.assess.movable_pods import ClusterFacts, Movable, Terms, movable_pods
from extender.assess.wanted_pods import CLASS, Shape, Wanted, wanted_shape
from extender.base.deadline import Deadline
from extender.defrag import RESERVED, Asked, Cluster, Restart
from extender.policy import Policy
from extender.scheduling import EvaluationContext, Evaluator
from extender.topology.link_knowledge import needs_links

_ALL_SCHEDULERS = "--all-schedulers"


@dataclass(frozen=True)
class HelpfulOptions:
    """Names what makes room possible: options, or a rollout. `movable`: what may be restarted under `terms`.

    `keeps_budgets`: PodDisruptionBudgets forbid room without options.
    """

    facts: ClusterFacts
    wanted: Wanted
    terms: Terms
    movable: Movable
    policy: Policy
    deadline: Deadline
    keeps_budgets: bool

    def in_words(self) -> str:
        """The end of a sentence; '' if none help. Raises DeadlineExceeded."""
        found = [*self.of_more_restarts(), *self.of_smaller_shapes()]
        text = f"; berth defrag {' or '.join(found)} may find room" if found else ""
        return text + self.without_links()

    @cached_property
    def _snapshot(self) -> Snapshot:
        return without_kept(self.facts.cache.snapshot(), self.wanted.asked)[0]

    @cached_property
    def _context(self) -> EvaluationContext:
        return Evaluator(Features()).evaluation_context(self._snapshot, self.deadline)

    def rollout(self) -> str:
        """Says that there is room after old pods of the wanted pods' own Deployment end; '' if there is none.

        To delete them does not help: their ReplicaSet creates them again until the rollout has ended. Raises
        DeadlineExceeded.
        """
        first = self.facts.pods.get(self.wanted.asked.pods[0].uid)
        if first is None or not first.deployment:
            return ""
        of, pods = (first.pod.key.namespace, first.deployment), self.facts.pods.items()
        siblings = {uid: one for uid, one in pods if (one.pod.key.namespace, one.deployment) == of}
        old = {uid for uid, one in siblings.items() if one.owner != first.owner}
        every = Terms(self.terms.now, None, all_schedulers=True)  # a rollout asks neither priorities nor budgets
        movable = movable_pods(replace(self.facts, budgets=[]), self._snapshot, every)
        own = [one for one in movable.restarts if old.issuperset(pod.uid for pod in one.pods)]
        if not own or self._as_it_is(movable).without([*movable.ending, *own]).place(self.wanted.asked) is None:
            return ""
        return (
            f"; the rollout of Deployment {'/'.join(of)} makes room if its maxUnavailable lets it end old pods before "
            "new ones run"
        )

    def _as_it_is(self, movable: Movable) -> Cluster:
        return Cluster.of(self._snapshot, movable.left, self.policy, self._context)

    def _after_all(self, movable: Movable) -> Cluster:
        """The cluster after all pods ended that may be restarted."""
        restarts = _allowed(movable) if self.keeps_budgets else movable.restarts
        return self._as_it_is(movable).without([*movable.ending, *restarts])

    @cached_property
    def _most_freed(self) -> Cluster:
        """The cluster after all restarts without further options. It takes seconds in a large fleet."""
        return self._after_all(self.movable)

    def _has_room(self, terms: Terms) -> bool:
        movable = movable_pods(self.facts, self._snapshot, terms)
        return self._after_all(movable).place(self.wanted.asked) is not None

    def of_more_restarts(self) -> list[str]:
        """Those that each let so many more pods be restarted."""
        terms, running = self.terms, [one for one in self.facts.pods.values() if one.pod.node_name]
        hides_others = not terms.all_schedulers and any(one.pod.scheduler != SCHEDULER for one in running)
        most = terms.priority
        above = sorted({one.priority for one in running if most is not None and one.priority > most})

        def least_priority(base: Terms) -> list[str]:
            least = bisect_left(above, x=True, key=lambda priority: self._has_room(replace(base, priority=priority)))
            return [f"--priority {above[least]}"] if least < len(above) else []

        others = replace(terms, all_schedulers=True)
        found = [_ALL_SCHEDULERS] if hides_others and self._has_room(others) else []
        found += least_priority(terms)
        if hides_others and not found:
            found = [f"{_ALL_SCHEDULERS} {one}" for one in least_priority(others)]
        return found

    def of_smaller_shapes(self) -> Iterator[str]:
        """Of fewer pods, and of fewer GPUs, the largest shape with room."""
        shape = self.wanted.shape
        if shape is None:
            return
        cluster = self._most_freed
        for shapes in _smaller(shape):
            number = bisect_left(shapes, x=True, key=lambda one: cluster.place(self._asked(one[1])) is not None)
            if number < len(shapes):
                yield shapes[number][0]

    def _asked(self, shape: Shape) -> Asked:
        return wanted_shape(shape, self._snapshot).asked

    def without_links(self) -> str:
        """Says that there is room for pods that prefer links and do not require them; '' if there is none."""
        asked, default = self.wanted.asked, self.policy.defaults.topology
        if not needs_links(intent_of(pod.annotations, default) for pod in asked.pods):
            return ""
        pods, cluster = tuple(map(_preferring, asked.pods)), self._most_freed
        if (group := self.wanted.group) is not None:  # a gang that exists takes its pods from the snapshot
            members = {**cluster.snapshot.members, group: {pod.uid: pod for pod in pods}}
            cluster = replace(cluster, snapshot=replace(cluster.snapshot, members=members))
        if cluster.place(replace(asked, pods=pods)) is None:
            return ""
        has_least = any(MIN_BANDWIDTH_ANNOTATION in pod.annotations for pod in asked.pods)
        least = f" and without {MIN_BANDWIDTH_ANNOTATION}" * has_least
        return f"; with the annotation {TOPOLOGY_ANNOTATION}: preferred{least} there may be room"


def _allowed(movable: Movable) -> Iterator[Restart]:
    """The restarts that the budgets allow together, the cheapest first."""
    left = dict(movable.budgets)
    for one in sorted(movable.restarts, key=lambda one: one.order):
        if all(left[name] >= pods for name, pods in one.budgets.items()):
            yield one
            left |= {name: left[name] - pods for name, pods in one.budgets.items()}


def _smaller(shape: Shape) -> Iterator[list[tuple[str, Shape]]]:
    """Smaller shapes, the largest first, each with the options that ask for it."""
    class_name = f" --class {shape.class_name}" if shape.class_name != CLASS else ""
    of_product = f"{class_name} (of this product)" if shape.product else ""
    pods = range(shape.pods - 1, 1 if shape.level else 0, -1)
    yield [(f"--pods {number}", replace(shape, pods=number)) for number in pods]
    yield [(f"--gpus {number}{of_product}", replace(shape, gpus=number)) for number in range(shape.gpus - 1, 0, -1)]


def _preferring(pod: Pod) -> Pod:
    left = {name: text for name, text in pod.annotations.items() if name != MIN_BANDWIDTH_ANNOTATION}
    return replace(pod, annotations={**left, TOPOLOGY_ANNOTATION: "preferred"})


# -- nodes that an earlier advice reserved ---------------------------------------------------------------------------


def without_kept(snapshot: Snapshot, asked: Asked) -> tuple[Snapshot, list[str]]:
    """The snapshot without the nodes that an earlier advice reserved, which still have its taint, and these nodes.

    Pods that tolerate the taint already may be those for which the nodes are reserved.
    """
    infos = snapshot.node_infos
    kept = sorted(name for name, info in infos.items() if is_kept(info.node))
    if not kept or any(map(tolerates_taint, asked.pods)):
        return snapshot, []
    left = {name: info for name, info in infos.items() if name not in kept}
    return hypothetical_snapshot(snapshot, left, snapshot.version), kept


def tolerates_taint(pod: Pod) -> bool:
    """Whether a pod may use nodes that are reserved."""
    return any(tolerates(one, RESERVED) for one in pod.tolerations)


def is_kept(node: Node) -> bool:
    """Whether an earlier advice may have reserved a node."""
    return any(taint.key == RESERVED.key for taint in node.taints)
