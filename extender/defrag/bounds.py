"""A lower bound of what it costs to give pods devices in a domain, from the numbers of devices alone.

A pod that wants some whole devices needs as many of one node. The cheapest way to free them may take a part of a
restart, for a part of its cost. The cost of a restart on several nodes is divided among all its devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from math import inf

from extender.allocation import NodeInfo
from extender.allocation.nodes import Interned
from extender.api.claim_specs import DeviceRequest
from extender.defrag.restarts import Restart, Sizes
from extender.explain import devices_for
from extender.scheduling import EvaluationContext, PodRequirements, ignores_identity
from extender.vendors import GPU, driver_of, driver_of_class

_MAX_PACKED = 8  # nodes with free GPUs for which all ways are compared to fill them
_MAX_PACKINGS = 1 << 16  # of one search, that are remembered


@dataclass(frozen=True, slots=True)
class _Share:
    """What a restart frees on one node, and the part of its cost for each of these devices."""

    devices: int
    each: float


class Bounds:
    """The bounds for pods with these requirements. A slot is the place of one pod on a node."""

    def __init__(self, kinds: Sequence[PodRequirements], pods: int, context: EvaluationContext) -> None:
        self._kinds = kinds
        self._pods = pods
        self._context = context
        self._devices = min(map(_least_devices, kinds), default=0)
        self._known: dict[tuple[object, Interned], int] = {}
        self._shares_masks = all(ignores_identity(one, context) for one in kinds)

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
    found = 0
    for spec in requirements.specs:
        for request in spec.requests:
            found += min(map(_whole_devices, request.alternatives), default=0)
    return found


def least_gpus(requirements: PodRequirements) -> int:
    """The whole GPUs that a pod has wherever it is; 0 if that is not known."""
    found = 0
    for spec in requirements.specs:
        for request in spec.requests:
            driver = driver_of_class(request.alternatives[0].class_name)
            if len(request.alternatives) == 1 and driver and driver_of(driver).kind == GPU:
                found += _whole_devices(request.alternatives[0])
    return found


class Packing:
    """How few GPUs of restarted pods find no place, wherever the pods go. It remembers what it found.

    `free` counts nodes by their free GPUs, `wanted` the pods by theirs that get places in any case. For few nodes with
    free GPUs, all ways are compared, up to a number of them. For more, all pods together may lack GPUs, and pods of one
    size and larger ones may lack nodes that have as many free.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[int, ...], tuple[Sizes, ...]], int] = {}

    def least_waiting(self, free: Mapping[int, int], wanted: Mapping[int, int], restarts: Iterable[Sizes]) -> float:
        """Infinite if the wanted pods have no room."""
        sizes = sorted(restarts, reverse=True)
        nodes = sum(number for gpus, number in free.items() if gpus)
        if nodes > _MAX_PACKED:
            return _least_by_numbers(free, Counter(chain.from_iterable(own for own, _ in sizes)) + Counter(wanted))
        each = tuple(sorted(chain.from_iterable([gpus] * number for gpus, number in free.items() if gpus)))
        first = [gpus for gpus, number in wanted.items() for _ in range(number)]
        return min((self._least(left, tuple(sizes)) for left in _packed(each, first)), default=inf)

    def _least(self, free: tuple[int, ...], restarts: tuple[Sizes, ...]) -> int:
        lacking = max(sum(sum(own) for own, _ in restarts) - sum(free), 0)
        if not restarts or len(self._known) >= _MAX_PACKINGS:
            return lacking
        known = self._known.get((free, restarts))
        if known is None:
            known = self._known[free, restarts] = self._least_of(free, restarts, lacking)
        return known

    def _least_of(self, free: tuple[int, ...], restarts: tuple[Sizes, ...], lacking: int) -> int:
        (own, is_whole), others = restarts[0], restarts[1:]
        found = sum(own) + self._least(free, others)
        for number in range(len(own), len(own) - 1 if is_whole else 0, -1):
            for placed in set(combinations(own, number)):
                for left in _packed(free, placed):
                    if found <= lacking:
                        return found
                    found = min(found, sum(own) - sum(placed) + self._least(left, others))
        return found


def _packed(free: tuple[int, ...], sizes: Iterable[int]) -> set[tuple[int, ...]]:
    """What nodes have free, sorted, after these were placed, in each way."""
    found = {free}
    for size in filter(None, sizes):
        found = {
            tuple(sorted((*one[:node], one[node] - size, *one[node + 1 :])))
            for one in found
            for node in range(len(one))
            if one[node] >= size
        }
    return found


def _least_by_numbers(free: Mapping[int, int], pods: Mapping[int, int]) -> int:
    found = max(gpus_in(pods) - gpus_in(free), 0)
    for gpus in filter(None, pods):
        places = sum(of_node // gpus * nodes for of_node, nodes in free.items())
        larger = sum(number for other, number in pods.items() if other >= gpus)
        found = max(found, (larger - places) * gpus)
    return found


def gpus_in(counted: Mapping[int, int]) -> int:
    """The GPUs of nodes or pods, which are counted by their GPUs."""
    return sum(gpus * number for gpus, number in counted.items())


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
