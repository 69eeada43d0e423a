"""The order in which `allocation.choose` tries the devices of a node."""

from __future__ import annotations

from collections.abc import Iterator

from extender.allocation import NodeInfo, Problem, Solution, attribute_values
from extender.allocation.nodes import UNUSED, CounterKey
from extender.api.resource_slices import Device
from extender.base.bits import members
from extender.policy import Policy
from extender.topology.score_parts import troubled_devices
from extender.topology.sets import ranked
from extender.vendors import amount_of_memory

_MAX_SETS = 256  # most preferred sets on one node; enough for all sets of 4 out of 10 GPUs


class ByTopology:
    """Prefers the best ring for whole GPUs, the fullest devices for shares, and partitions that block few others."""

    def __init__(self, node_info: NodeInfo, policy: Policy) -> None:
        self._node_info = node_info
        self._weights: dict[tuple[int, str, str], int] | None = None
        self._possible: int | None = None
        self._troubled = troubled_devices(node_info, policy)

    def __call__(self, problem: Problem, first: Solution) -> Iterator[int]:
        chosen = first.mask
        count = self._node_info.positions(chosen).bit_count()
        eligible = self._eligible(problem, first)
        if count and self._node_info.fabric is not None:
            yield from self._gpu_sets(problem, count, eligible)
        elif chosen:
            yield from self._single_devices(chosen, eligible)

    def _eligible(self, problem: Problem, first: Solution) -> int:
        """Mask of the devices that some request of the solution could have."""
        found = 0
        for name, spec, alternatives in zip(problem.names, problem.specs, first.alternatives, strict=True):
            for request, chosen in zip(spec.requests, alternatives, strict=True):
                option = request.alternatives[chosen]
                selection = problem.select(name, option)
                usable = selection.match & ~selection.error
                found |= usable if option.admin_access else usable & ~self._node_info.busy
        return found

    def _gpu_sets(self, problem: Problem, count: int, eligible: int) -> Iterator[int]:
        fabric = self._node_info.fabric
        assert fabric is not None
        partitions = self._node_info.partitions
        everything = self._node_info.devices(self._node_info.positions(-1))
        free = members(self._node_info.positions(eligible))
        tried = 0
        for group in self._healthy_first(self._agreeing(problem, free)):
            for positions in ranked(fabric.graph, sum(1 << p for p in group), count):
                if partitions is not None and positions not in partitions:
                    continue  # Fabric Manager joins only its partitions
                yield ~everything | self._node_info.devices(positions)
                tried += 1
                if tried >= _MAX_SETS:
                    return

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
