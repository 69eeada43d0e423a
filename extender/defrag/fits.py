"""Whether pods fit in a domain after restarts there: one pod on a node by the filter, a gang by the planner.

A domain is a node, or for a gang one of the widest domains that may hold it. `Bounds` says what it costs at least to
give pods devices there, from the numbers of devices alone: a pod that wants some whole devices needs as many of one
node. The cheapest way to free them may take a part of a restart, for a part of its cost. The cost of a restart on
several nodes is divided among all its devices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from math import inf

from extender.allocation import NodeInfo, Snapshot
from extender.allocation.nodes import Interned
from extender.api.claim_specs import DeviceRequest
from extender.api.label_domains import natural
from extender.api.reasons import Code
from extender.defrag.clusters import Cluster, Domain
from extender.defrag.restarts import Asked, Restart, cost_of
from extender.explain import GangQuestion, PlannerCaches, devices_for, free_devices, widest_domains
from extender.gangs.gang import Gang
from extender.gangs.gang_problem import GangMembers, GangShortage, gang_members
from extender.scheduling import (
    EvaluationContext,
    Placement,
    PodRequirements,
    Unschedulable,
    ignores_identity,
    requirements_of,
)
from extender.vendors import GPU, driver_of, driver_of_class

_MAX_AROUND = 64  # nodes of a domain without restarts that a plan may use, besides those with; or twice as many as pods
_NOWHERE = GangShortage(0, 0, "", "")
ByNode = Mapping[str, Sequence[Restart]]


class Fit(ABC):
    """Asks about some pods. `pods` has them by the GPUs that they have wherever they are, as far as that is known.

    `gave_up`: an answer that they do not fit proves nothing, because a search for devices ended at its limit.
    """

    def __init__(self, cluster: Cluster, asked: Asked, by_node: ByNode, pods: Sequence[PodRequirements]) -> None:
        self._cluster = cluster
        self._asked = asked
        self._by_node = by_node
        self._bounds = Bounds(pods, cluster.memory.context)
        self.pods = Counter[int]()
        self.gave_up = False

    @abstractmethod
    def domains(self) -> Iterator[Domain]:
        """The domains that may have enough devices after restarts, those with the least bound first."""

    def has_amounts(self, _: Domain) -> bool:
        """Whether the domain may have enough CPU and memory, and room for more pods, after all its restarts.

        True where the planner knows.
        """
        return True

    @abstractmethod
    def may_fit(self, domain: Domain, chosen: Sequence[Restart]) -> bool:
        """Whether there would be enough devices, without regard to which ones."""

    @abstractmethod
    def fits(self, domain: Domain, chosen: Sequence[Restart]) -> bool:
        """Whether the pods fit after these restarts. Raises DeadlineExceeded."""

    def slots(self, _: Domain) -> list[Sequence[Restart]]:
        """For each number of pods that a node of the domain may have, the restarts that free devices; cheapest first.

        Empty if the number of devices says nothing, or no slot is cheaper than another, as on one node.
        """
        return []

    def nodes(self, domain: Domain, _: Sequence[Restart], /) -> Sequence[str]:
        """The nodes on which `fits` looks for room."""
        return domain.nodes


def fit_of(cluster: Cluster, asked: Asked, by_node: ByNode) -> Fit | None:
    """For one pod or a gang, which `cluster` knows; None if they have no requirements."""
    snapshot, policy = cluster.snapshot, cluster.memory.policy
    gang = cluster.gang(asked)
    if gang is not None:
        members = gang_members(gang, snapshot, policy)
        return _GangFit(cluster, asked, gang, members, by_node) if isinstance(members, GangMembers) else None
    requirements = requirements_of(asked.pods[0], snapshot, policy)
    return _PodFit(cluster, asked, requirements, by_node) if isinstance(requirements, PodRequirements) else None


class _PodFit(Fit):
    def __init__(self, cluster: Cluster, asked: Asked, requirements: PodRequirements, by_node: ByNode) -> None:
        super().__init__(cluster, asked, by_node, [requirements])
        self._requirements = requirements
        self.pods[least_gpus(requirements)] = 1

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


class _GangFit(Fit):
    def __init__(self, cluster: Cluster, asked: Asked, gang: Gang, members: GangMembers, by_node: ByNode) -> None:
        self._gang = gang
        self._members = members.first(gang.missing)
        super().__init__(cluster, asked, by_node, list(self._members.requirements.values()))
        self._free_room: _FreeRoom | None = None
        self.pods = _by_gpus(self._members)

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


@dataclass(frozen=True, slots=True)
class _Share:
    """What a restart frees on one node, and the part of its cost for each of these devices."""

    devices: int
    each: float


class Bounds:
    """The bounds for pods, each with its requirements. A slot is the place of one pod on a node."""

    def __init__(self, pods: Sequence[PodRequirements], context: EvaluationContext) -> None:
        self._kinds = list({one.key: one for one in pods}.values())
        self._pods = len(pods)
        self._context = context
        self._devices = min(map(_least_devices, self._kinds), default=0)
        self._known: dict[tuple[object, Interned], int] = {}
        self._shares_masks = all(ignores_identity(one, context) for one in self._kinds)

    def slots(self, node_info: NodeInfo, restarts: Iterable[Restart]) -> list[float]:
        """What each further pod on a node costs at least, for as many as may have room. It never falls."""
        mask = self._mask(node_info)
        if not self._devices or mask & ~node_info.inventory.simple:
            return [0.0] * self._pods  # shares and partitions: the number of devices says nothing
        shares = [share for one in restarts if (share := _share(one, node_info, mask)) is not None]
        shares.sort(key=lambda one: one.each)
        free, found, before = (mask & ~node_info.busy).bit_count(), list[float](), 0.0
        for pods in range(1, self._pods + 1):
            cost = _cheapest(shares, pods * self._devices - free)
            if cost == inf:
                break
            found.append(cost - before)
            before = cost
        return found

    @property
    def devices(self) -> int:
        """The devices that all pods have together, at least."""
        return self._devices * self._pods

    def free(self, node_info: NodeInfo) -> int:
        """The devices of a node that these pods could have now."""
        return (self._mask(node_info) & ~node_info.busy).bit_count()

    def cheapest(self, node_info: NodeInfo, restarts: Iterable[Restart]) -> list[Sequence[Restart]]:
        """For one pod, two pods and so on, the cheapest restarts that free enough devices of a node.

        Empty if the number of devices says nothing.
        """
        mask = self._mask(node_info)
        if not self._devices or mask & ~node_info.inventory.simple:
            return []
        shares = [(share.devices, one) for one in restarts if (share := _share(one, node_info, mask)) is not None]
        best: list[tuple[float, tuple[Restart, ...]] | None] = [(0.0, ())]  # by devices: the cheapest that free as many
        for devices, one in shares:
            before = list(best)
            best += [None] * devices
            for freed, known in enumerate(before):
                if known is not None:
                    cost, chosen = known[0] + one.cost, (*known[1], one)
                    old = best[freed + devices]
                    if old is None or cost < old[0]:
                        best[freed + devices] = cost, chosen
        free, found = self.free(node_info), list[Sequence[Restart]]()
        for pods in range(1, self._pods + 1):
            enough = [one for one in best[max(pods * self._devices - free, 0) :] if one is not None]
            if not enough:
                break
            found.append(min(enough, key=lambda one: one[0])[1])
        return found

    def of(self, node_infos: Iterable[NodeInfo], by_node: Mapping[str, Sequence[Restart]]) -> float:
        """What it costs at least that all pods have room on these nodes; infinite if they cannot have it."""
        slots = [slot for info in node_infos for slot in self.slots(info, by_node.get(info.node.name, ()))]
        return sum(sorted(slots)[: self._pods]) if len(slots) >= self._pods else inf

    def _mask(self, node_info: NodeInfo) -> int:
        signature = node_info.state.attribute_signature
        if signature is None or not self._shares_masks:
            return devices_for(node_info, self._kinds, self._context)
        key = frozenset(one.for_node(node_info.node).key for one in self._kinds), signature
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = devices_for(node_info, self._kinds, self._context)
        return found


def _least_devices(requirements: PodRequirements) -> int:
    """The fewest whole devices that a pod may have; 0 if that is not known."""
    requests = [request for spec in requirements.specs for request in spec.requests]
    return sum(min(map(_whole_devices, request.alternatives), default=0) for request in requests)


def least_gpus(requirements: PodRequirements) -> int:
    """The whole GPUs that a pod has wherever it is; 0 if that is not known."""
    found = 0
    for spec in requirements.specs:
        for request in spec.requests:
            driver = driver_of_class(request.alternatives[0].class_name)
            if len(request.alternatives) == 1 and driver and driver_of(driver).kind == GPU:
                found += _whole_devices(request.alternatives[0])
    return found


def _whole_devices(option: DeviceRequest) -> int:
    """The devices of a request for a fixed number of whole ones; 0 for any other."""
    return option.count if option.mode == "ExactCount" and not (option.admin_access or option.capacity) else 0


def _share(restart: Restart, node_info: NodeInfo, mask: int) -> _Share | None:
    index, results = node_info.inventory.index, restart.results
    bits = {index.get(one.device) for one in results}
    own = sum(1 for bit in bits if bit is not None and mask >> bit & 1)
    counted = own if len(restart.nodes) == 1 else len({one.device for one in results})
    return _Share(own, restart.cost / counted) if own else None


def _cheapest(shares: Sequence[_Share], lacking: int) -> float:
    """The least cost of so many devices, of which parts of a restart count; infinite if there are not as many."""
    cost = 0.0
    for one in shares:
        if lacking <= 0:
            break
        taken = min(one.devices, lacking)
        cost += taken * one.each
        lacking -= taken
    return cost if lacking <= 0 else inf
