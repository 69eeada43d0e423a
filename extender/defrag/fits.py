"""Whether pods fit in a domain after restarts there: one pod on a node by the filter, a gang by the planner.

A domain is a node, or for a gang one of the widest domains that may hold it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from math import inf
from typing import Protocol

from extender.allocation import Snapshot
from extender.api.nodes import natural
from extender.api.reasons import Code
from extender.defrag.bounds import Bounds, least_gpus
from extender.defrag.clusters import Cluster, Domain
from extender.defrag.restarts import Asked, Restart, cost_of
from extender.explain import GangQuestion, PlannerCaches, free_devices, widest_domains
from extender.gangs.gang import Gang
from extender.gangs.gang_problem import GangMembers, GangShortage, gang_members
from extender.scheduling import Placement, PodRequirements, Unschedulable, requirements_of

_MAX_AROUND = 64  # nodes of a domain without restarts that a plan may use, besides those with; or twice as many as pods
_NOWHERE = GangShortage(0, 0, "", "")
ByNode = Mapping[str, Sequence[Restart]]


class Fit(Protocol):
    """Asks about some pods. `pods` has them by the GPUs that they have wherever they are, as far as that is known.

    `gave_up`: an answer that they do not fit proves nothing, because a search for devices ended at its limit.
    """

    pods: Counter[int]
    gave_up: bool

    def domains(self) -> Iterator[Domain]:
        """The domains that may have enough devices after restarts, those with the least bound first."""
        ...

    def has_amounts(self, domain: Domain) -> bool:
        """Whether the domain may have enough CPU and memory, and room for more pods, after all its restarts."""
        ...

    def may_fit(self, domain: Domain, chosen: Sequence[Restart]) -> bool:
        """Whether there would be enough devices, without regard to which ones."""
        ...

    def fits(self, domain: Domain, chosen: Sequence[Restart]) -> bool:
        """Whether the pods fit after these restarts. Raises DeadlineExceeded."""
        ...

    def slots(self, domain: Domain) -> list[Sequence[Restart]]:
        """For each number of pods that a node of the domain may have, the restarts that free devices; cheapest first.

        Empty if the number of devices says nothing.
        """
        ...

    def nodes(self, domain: Domain, chosen: Sequence[Restart], /) -> Sequence[str]:
        """The nodes on which `fits` looks for room."""
        ...


def fit_of(cluster: Cluster, asked: Asked, by_node: ByNode) -> Fit | None:
    """For one pod or a gang, which `cluster` knows; None if they have no requirements."""
    snapshot, policy = cluster.snapshot, cluster.memory.policy
    gang = cluster.gang(asked)
    if gang is not None:
        members = gang_members(gang, snapshot, policy)
        return _GangFit(cluster, asked, gang, members, by_node) if isinstance(members, GangMembers) else None
    requirements = requirements_of(asked.pods[0], snapshot, policy)
    return _PodFit(cluster, asked, requirements, by_node) if isinstance(requirements, PodRequirements) else None


class _PodFit:
    def __init__(self, cluster: Cluster, asked: Asked, requirements: PodRequirements, by_node: ByNode) -> None:
        self._cluster = cluster
        self._asked = asked
        self._requirements = requirements
        self._by_node = by_node
        self._bounds = Bounds([requirements], 1, cluster.memory.context)
        self.pods = Counter([least_gpus(requirements)])
        self.gave_up = False

    def domains(self) -> Iterator[Domain]:
        memory, pod, changed = self._cluster.memory, self._asked.pods[0], self._cluster.changed
        usable, key = self._cluster.runnable(pod), (self._requirements.key, pod.node_selectors, pod.tolerations)
        base = memory.domains.get(key)
        if base is None:
            names = usable & memory.by_node.keys()
            base = memory.domains[key] = self._ordered(names, memory.base, memory.by_node)
        own = self._ordered(usable & self._by_node.keys() & changed, self._cluster.snapshot, self._by_node)
        return merge((one for one in base if one.nodes[0] not in changed), own, key=memory.place_of)

    def _ordered(self, names: Iterable[str], snapshot: Snapshot, by_node: ByNode) -> list[Domain]:
        requirements, memory, found = self._requirements, self._cluster.memory, list[Domain]()
        known = memory.bounds.setdefault(requirements.key, {})  # many nodes are as in other clusters
        for name in names:
            info, restarts = snapshot.node_infos[name], by_node[name]
            if requirements.node_selectors and requirements.mismatch(info.node, snapshot) is not None:
                continue
            key = info, tuple([one.name for one in restarts])
            bound = known.get(key)
            if bound is None:
                bound = known[key] = self._bounds.of([info], by_node)
            if bound < inf:
                found.append(Domain((name,), restarts, max(bound, restarts[0].cost)))
        return sorted(found, key=memory.place_of)

    def has_amounts(self, domain: Domain) -> bool:
        asked = self._asked.amounts(self._asked.pods[0])
        return self._cluster.left_without(domain.nodes[0], domain.restarts).has(asked)

    def may_fit(self, domain: Domain, chosen: Sequence[Restart]) -> bool:
        info = self._cluster.snapshot.node_infos[domain.nodes[0]]
        return bool(self._bounds.slots(info, chosen))

    def fits(self, domain: Domain, chosen: Sequence[Restart]) -> bool:
        (name,) = domain.nodes
        amounts = self._asked.amounts(self._asked.pods[0])
        if not self._cluster.left_without(name, chosen).has(amounts):
            return False
        info = self._cluster.snapshot.node_infos[name]
        memory = self._cluster.memory
        found = memory.status(memory.without(info, chosen), self._requirements)
        self.gave_up |= isinstance(found, Unschedulable) and found.reason.code is Code.OUT_OF_BUDGET
        return isinstance(found, Placement)

    def slots(self, _: Domain) -> list[Sequence[Restart]]:
        return []  # of one node: no slot is cheaper than another

    def nodes(self, domain: Domain, _: Sequence[Restart]) -> Sequence[str]:
        return domain.nodes


def _by_gpus(members: GangMembers) -> Counter[int]:
    """The members by the GPUs that each has alone; none if they share claims."""
    keys = [key for pod in members.pods for key in pod.claim_keys]
    return Counter(map(least_gpus, members.requirements.values()) if len(set(keys)) == len(keys) else ())


@dataclass(frozen=True, slots=True)
class _FreeRoom:
    """A domain without restarts: for how many pods each node may have room, and all of them; the freest nodes first."""

    domain: Domain
    free: Mapping[str, int]
    all_free: int
    devices: int  # that are free
    freest: Sequence[str]


class _GangFit:
    def __init__(self, cluster: Cluster, asked: Asked, gang: Gang, members: GangMembers, by_node: ByNode) -> None:
        self._cluster = cluster
        self._asked = asked
        self._gang = gang
        self._members = members.first(gang.missing)
        self._by_node = by_node
        kinds = list({one.key: one for one in self._members.requirements.values()}.values())
        self._bounds = Bounds(kinds, len(self._members.requirements), cluster.memory.context)
        self._free_room: _FreeRoom | None = None
        self.pods = _by_gpus(self._members)
        self.gave_up = False

    def domains(self) -> Iterator[Domain]:
        cluster, infos = self._cluster, self._cluster.snapshot.node_infos
        memory = cluster.memory
        question = GangQuestion(
            self._gang, self._members, memory.policy, cluster.snapshot, memory.context, PlannerCaches()
        )
        found = list[Domain]()
        for domain in widest_domains(question, _NOWHERE):
            restarts = {one.name: one for name in domain.nodes for one in self._by_node.get(name, ())}
            bound = self._bounds.of((infos[name] for name in domain.nodes), self._by_node)
            if restarts and bound < inf:
                ordered = sorted(restarts.values(), key=lambda one: one.order)
                found.append(Domain(domain.nodes, ordered, max(bound, ordered[0].cost)))
        return iter(sorted(found, key=memory.place_of))

    def has_amounts(self, _: Domain) -> bool:
        return True  # the planner knows

    def may_fit(self, domain: Domain, chosen: Sequence[Restart]) -> bool:
        room, by_node = self._free_room_of(domain), dict[str, list[Restart]]()
        for one in chosen:
            for name in one.nodes & room.free.keys():
                by_node.setdefault(name, []).append(one)
        infos = self._cluster.snapshot.node_infos
        if room.devices + sum(len(one.results) for one in chosen) < self._bounds.devices:
            return False
        more = sum(len(self._bounds.slots(infos[name], own)) - room.free[name] for name, own in by_node.items())
        return room.all_free + more >= len(self._members.requirements)

    def fits(self, domain: Domain, chosen: Sequence[Restart]) -> bool:
        nodes = self.nodes(domain, chosen)
        after = self._cluster.without(chosen)
        found = after.plan(self._asked, self._gang, self._members, nodes)
        if isinstance(found, GangShortage):
            self.gave_up |= found.gave_up or len(nodes) < len(domain.nodes)
            return False
        have_all_devices = len(self._members.requirements) == len(self._members.pods)
        return have_all_devices or after.with_plan(self._asked, self._members, found) is not None

    def nodes(self, domain: Domain, chosen: Sequence[Restart]) -> Sequence[str]:
        """All nodes of the domain; of many, those of the restarts and the freest others."""
        most = max(_MAX_AROUND, 2 * len(self._members.pods))
        if len(domain.nodes) <= 2 * most:
            return domain.nodes
        room = self._free_room_of(domain)
        first = {name for one in chosen for name in one.nodes} & room.free.keys()
        others = (name for name in room.freest if name not in first)
        return [*sorted(first), *islice(others, most)]

    def slots(self, domain: Domain) -> list[Sequence[Restart]]:
        found, infos = list[tuple[float, object, Sequence[Restart]]](), self._cluster.snapshot.node_infos
        for name in domain.nodes:
            own = self._bounds.cheapest(infos[name], self._by_node.get(name, ()))
            found += [(cost_of(restarts), natural(name), restarts) for restarts in own]
        return [restarts for *_, restarts in sorted(found, key=lambda one: one[:2])]

    def _free_room_of(self, domain: Domain) -> _FreeRoom:
        """What all sets of restarts in a domain share. One domain is tried after the other."""
        if self._free_room is None or self._free_room.domain is not domain:
            infos = self._cluster.snapshot.node_infos
            free = {name: len(self._bounds.slots(infos[name], ())) for name in domain.nodes}
            freest = sorted(domain.nodes, key=lambda name: (-free_devices(infos[name]), natural(name)))
            devices = sum(self._bounds.free(infos[name]) for name in domain.nodes)
            self._free_room = _FreeRoom(domain, free, sum(free.values()), devices, freest)
        return self._free_room
