"""The order in which `allocation.choose` tries the devices of a node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations, groupby, islice
from math import comb

from extender.allocation import Allowed, NodeInfo, Problem, Selection, Solution, attribute_values, blocking_taint
from extender.allocation.nodes import UNUSED, CounterKey
from extender.api.claim_specs import DeviceRequest
from extender.api.resource_slices import Device
from extender.base.bits import lowest, members, union
from extender.policy import Policy
from extender.topology.affinity import Slot, Together, anchor_of
from extender.topology.score_parts import troubled_devices
from extender.topology.sets import bandwidth, links_inside, quality, ranked
from extender.vendors import amount_of_memory

_MAX_SETS = 256  # most preferred sets on one node; enough for all sets of 4 out of 10 GPUs


class ByTopology:
    """Prefers the best ring for whole GPUs, the fullest devices for shares, and partitions that block few others."""

    def __init__(self, node_info: NodeInfo, policy: Policy) -> None:
        self._node_info = node_info
        self._policy = policy
        self._weights: dict[tuple[int, str, str], int] | None = None
        self._possible: int | None = None
        self._troubled = troubled_devices(node_info, policy)

    def __call__(self, problem: Problem, first: Solution) -> Iterator[Allowed]:
        chosen = first.mask
        eligible = self._eligible(problem, first)
        yield from self._near_each_other(problem, first)
        if self._node_info.positions(chosen) and self._node_info.fabric is not None:
            everything = self._node_info.devices(self._node_info.positions(-1))
            for gpus in islice(self._gpu_sets(problem, first, eligible), _MAX_SETS):
                yield Allowed(~everything | gpus)
        elif chosen:
            yield from map(Allowed, self._single_devices(chosen, eligible))

    def _eligible(self, problem: Problem, first: Solution) -> int:
        """Mask of the devices that some request of the solution could have."""
        found = 0
        for name, spec, alternatives in zip(problem.names, problem.specs, first.alternatives, strict=True):
            for request, chosen in zip(spec.requests, alternatives, strict=True):
                option = request.alternatives[chosen]
                found |= self._usable(problem.select(name, option), option)
        return found

    def _usable(self, selection: Selection, option: DeviceRequest) -> int:
        usable = selection.match & ~selection.error
        return usable if option.admin_access else usable & ~self._node_info.busy

    def _gpu_sets(self, problem: Problem, first: Solution, eligible: int) -> Iterator[int]:
        """Sets of whole GPUs as device masks, the best ring first."""
        free = members(self._node_info.positions(eligible))
        for group in self._healthy_first(self._agreeing(problem, free)):
            yield from map(self._node_info.devices, self._ranked(sum(1 << p for p in group), first))

    def _ranked(self, free: int, first: Solution) -> Iterable[int]:
        """The sets of so many of these GPUs as the solution has, as masks of positions, the best first.

        Where only partitions are joined, the sets of one claim are partitions, and those of several claims are made up
        of partitions of their sizes.
        """
        node_info = self._node_info
        assert node_info.fabric is not None
        graph, count = node_info.fabric.graph, node_info.positions(first.mask).bit_count()
        if node_info.partitions is None:
            return ranked(graph, free, count)
        claims = (node_info.positions(union([1 << pick.bit for pick in claim])) for claim in first.picks)
        sizes = [mask.bit_count() for mask in claims if mask]
        known = (node_info.positions(one) for one in node_info.partitions.sets)
        partitions = [one for one in known if not one & ~free and one.bit_count() in sizes]
        if len(sizes) == 1:
            return sorted(partitions, key=lambda one: quality(graph, one, free))
        return (one for one in ranked(graph, free, count) if union([p for p in partitions if not p & ~one]) == one)

    # -- devices of several drivers --------------------------------------------------------------------------

    def _near_each_other(self, problem: Problem, first: Solution) -> Iterator[Allowed]:
        """The devices of several drivers, so that they are near each other.

        The part of the score with the larger weight comes first: links of the GPUs, or nearness.
        """
        places, weights = self._node_info.places, self._policy.weights
        if places is None or not weights.affinity:
            return
        kinds: dict[str, list[Slot]] = {}
        for slot in self._slots(problem, first):
            kinds.setdefault(places.kind(lowest(slot.eligible)), []).append(slot)
        kinds.pop("", None)
        if len(kinds) < 2:  # noqa: PLR2004 - affinity is between two kinds of devices
            return
        anchors = kinds.pop(anchor_of(kinds))
        together = Together(places, anchors, list(kinds.values()), self._troubled)
        sets = self._sets_of_anchors(problem, first, anchors)
        groups = [list(sets)] if weights.affinity > weights.link else [list(g) for _, g in groupby(sets, self._rings)]
        for group in groups:
            yield from (Allowed(of_request=masks) for masks in islice(together.choices(group), _MAX_SETS))

    def _slots(self, problem: Problem, first: Solution) -> Iterator[Slot]:
        """The devices that the solution needs, in the order of the pod; without those of admin access."""
        for position, (name, spec) in enumerate(zip(problem.names, problem.specs, strict=True)):
            for request, chosen in zip(spec.requests, first.alternatives[position], strict=True):
                option = request.alternatives[chosen]
                if option.admin_access:
                    continue
                bits = [pick.bit for pick in first.picks[position] if pick.request.name == option.name]
                usable = self._untainted(self._usable(problem.select(name, option), option), option)
                usable = usable if option.mode == "ExactCount" else sum(1 << bit for bit in bits)
                yield from (Slot(position, name, option.name, usable | 1 << bit) for bit in bits)

    def _untainted(self, usable: int, option: DeviceRequest) -> int:
        """The devices without those that the search would reject for a taint or for counters."""
        usable &= self._possible_mask()
        devices = self._node_info.inventory.devices
        for bit in members(usable & ~self._node_info.inventory.simple):
            if blocking_taint(devices[bit].device, option.tolerations) is not None:
                usable &= ~(1 << bit)
        return usable

    def _sets_of_anchors(self, problem: Problem, first: Solution, anchors: list[Slot]) -> Iterator[int]:
        """Sets of the anchors as device masks, the preferred ones first, without regard to other devices."""
        eligible, count = union([slot.eligible for slot in anchors]), len(anchors)
        if self._node_info.fabric is not None and self._node_info.positions(eligible):
            return self._gpu_sets(problem, first, eligible)
        order = sorted(members(eligible), key=self._device_key)
        while comb(len(order), count) > _MAX_SETS:
            order.pop()
        return (sum(1 << bit for bit in chosen) for chosen in combinations(order, count))

    def _rings(self, devices: int) -> tuple[float, int]:
        """What the links of a set of GPUs give: bandwidth, and the number of links inside."""
        fabric, positions = self._node_info.fabric, self._node_info.positions(devices)
        if fabric is None or not positions:
            return 0.0, 0
        return bandwidth(fabric.graph, positions), links_inside(fabric.graph, positions)

    # -- sets of GPUs ----------------------------------------------------------------------------------------

    def _agreeing(self, problem: Problem, free: list[int]) -> list[list[int]]:
        """The free GPUs in one group, or in groups by the value of a matchAttribute that covers all requests."""
        for spec in problem.specs:
            for constraint in spec.constraints:
                covers_all = all(constraint.covers(r.name) for r in spec.requests)
                derived = {name for r in spec.requests for option in r.alternatives for name, _ in option.derived}
                if constraint.kind == "match" and covers_all and constraint.attribute not in derived:
                    return self._grouped(constraint.attribute, free)
        return [free]

    def _grouped(self, attribute: str, free: list[int]) -> list[list[int]]:
        """The GPUs with each value. A GPU with a list is in several groups."""
        groups: dict[object, list[int]] = {}
        for position in free:
            pool_device = self._node_info.inventory.devices[self._node_info.gpu_bits[position]]
            known = attribute_values(pool_device.device, attribute, pool_device.id.driver, lists=True)
            kind, values = known or ("", ())
            for value in values:
                groups.setdefault((kind, value), []).append(position)
        return sorted(map(list, set(map(tuple, groups.values()))), key=lambda group: (len(group), group))

    def _healthy_first(self, groups: list[list[int]]) -> Iterator[list[int]]:
        for group in groups:
            healthy = [p for p in group if not self._troubled >> self._node_info.gpu_bits[p] & 1]
            if healthy != group:
                yield healthy
        yield from groups

    def _single_devices(self, chosen: int, eligible: int) -> Iterator[int]:
        """Masks that start with the most preferred devices and grow by one device until the search succeeds."""
        order = sorted(members(eligible & self._possible_mask()), key=self._device_key)
        count = chosen.bit_count()
        allowed = sum(1 << bit for bit in order[:count])
        for bit in order[count : count + _MAX_SETS]:
            yield allowed
            allowed |= 1 << bit
        yield allowed

    def _device_key(self, bit: int) -> tuple[object, ...]:
        """Sort key: healthy, then shared (least free memory first), then fewest blocked partitions, then position."""
        pool_device = self._node_info.inventory.devices[bit]
        use = self._node_info.allocated_state.pools.get(self._node_info.inventory.pools[pool_device.pool].key, UNUSED)
        shares = use.shares.get(pool_device.id.device)
        capacity = amount_of_memory(pool_device.device.capacity)
        memory = capacity.value.nanos if capacity is not None else 0
        used = (amount_of_memory(shares) or 0) if shares else 0
        return (
            self._troubled >> bit & 1,
            shares is None,
            memory - used,
            self._blocked(bit),
            bit,
        )

    def _blocked(self, bit: int) -> int:
        """The size of the possible partitions that share a counter with the device, and that it would block."""
        pool_device = self._node_info.inventory.devices[bit]
        if not pool_device.device.consumes:
            return 0
        weights = self._counter_weights()
        return sum(weights.get((pool_device.pool, *key), 0) for key in _exclusive_counters(pool_device.device))

    def _counter_weights(self) -> dict[tuple[int, str, str], int]:
        """(pool, counter set, counter) to the total number of counters of the possible partitions that use it."""
        if self._weights is None:
            weights: dict[tuple[int, str, str], int] = {}
            devices = self._node_info.inventory.devices
            for bit in members(self._possible_mask() & ~self._node_info.busy):
                pool, keys = devices[bit].pool, _exclusive_counters(devices[bit].device)
                for set_name, name in keys:
                    key = (pool, set_name, name)
                    weights[key] = weights.get(key, 0) + len(keys)
            self._weights = weights
        return self._weights

    def _possible_mask(self) -> int:
        """Mask of the devices for which enough of each counter is left."""
        if self._possible is None:
            node_info = self._node_info
            inventory, everything = node_info.inventory, (1 << len(node_info.inventory.devices)) - 1
            consuming = [
                bit for bit in members(everything & ~inventory.simple) if inventory.devices[bit].device.consumes
            ]
            left = [node_info.allocated_state.left(pool) for pool in inventory.pools] if consuming else []
            blocked = sum(
                1 << bit
                for bit in consuming
                if not _fits(inventory.devices[bit].device, left[inventory.devices[bit].pool])
            )
            self._possible = everything & ~blocked
        return self._possible


def _fits(device: Device, left: dict[CounterKey, int]) -> bool:
    for use in device.consumes:
        for name, amount in use.counters:
            if left[use.counter_set, name] < amount:
                return False
    return True


def _exclusive_counters(device: Device) -> list[tuple[str, str]]:
    """The counters that only one partition can use: the memory slices of a GPU."""
    return [
        (use.counter_set, name)
        for use in device.consumes
        for name, amount in use.counters
        if amount and "slice" in name
    ]
