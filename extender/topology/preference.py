"""The order in which `allocation.choose` tries the devices of a node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial
from heapq import merge
from itertools import chain, combinations, islice, product
from math import comb, inf

from extender.allocation import (
    Allowed,
    NodeInfo,
    Problem,
    Solution,
    attribute_values,
    blocking_taint,
)
from extender.allocation.nodes import UNUSED, CounterKey
from extender.api.claim_specs import DeviceRequest
from extender.api.gpu_topology import Fabric
from extender.api.pod_annotations import PodIntent
from extender.api.resource_slices import Device
from extender.base.bits import lowest, members, union
from extender.policy import Policy
from extender.topology.affinity import Choice, Slot, Together, anchor_of, own_slot
from extender.topology.score_parts import troubled_devices, values_of_products
from extender.topology.sets import bandwidth, by_bandwidth, in_groups, is_joined, links_inside, ranked
from extender.vendors import amount_of_memory, parent_of, whole_identity

_MAX_COMBINED = 2_000  # most sets of devices that are no whole GPUs; 2 of 56 MIG devices are fewer
_MAX_GROWN = 16  # sets of anchors for which the search may choose among all near devices
_MAX_VARIANTS = 16  # sets that a constraint leaves of the NICs, and that are compared; a node has a few models
_MAX_SETS = 256  # most preferred sets on one node; enough for all sets of 4 out of 10 GPUs


class ByTopology:
    """Prefers the best ring for whole GPUs, the fullest devices for shares, and partitions that block few others."""

    def __init__(self, node_info: NodeInfo, policy: Policy, intent: PodIntent, own: int = 0) -> None:
        """`own` is a mask of devices that the pod has on the node already: the others are chosen near them."""
        self._intent = intent
        self._node_info = node_info
        self._own = own
        self._policy = policy
        self._troubled = troubled_devices(node_info, policy)

    def __call__(self, problem: Problem, first: Solution, eligible: int) -> Iterator[Allowed]:
        yield from self._near_each_other(problem, first)
        masks, chosen = first.masks, first.mask
        free = self._node_info.positions(eligible)
        counts = [(claim, self._node_info.positions(mask).bit_count()) for claim, mask in enumerate(masks)]
        sizes = {claim: count for claim, count in counts if count}
        if sizes and self._node_info.fabric is not None:
            gpus, everything = self._node_info.inventory.gpus, self._node_info.whole_gpus
            if parts := self._cheaper_parts(eligible, everything, (chosen & gpus).bit_count()):
                few = next(self._single_devices(chosen & gpus, parts))
                yield from (Allowed(~gpus | mask) for mask in (few, parts))
            for gpus in islice(chain.from_iterable(self._gpu_sets(problem, sizes, free)), _MAX_SETS):
                yield Allowed(~everything | gpus)
        elif chosen:
            yield from map(Allowed, self._single_devices(chosen, eligible))

    def _gpu_sets(self, problem: Problem, sizes: Mapping[int, int], free: int) -> Iterator[list[int]]:
        """Sets of the GPUs `free` (positions) as device masks, in groups of equal bandwidth, the best ring first.

        `sizes` has the number of each claim with GPUs.
        """
        for agreeing in self._healthy_first(self._agreeing(problem, list(sizes), free)):
            for group in self._groups(agreeing, [*sizes.values()]):
                yield [self._node_info.devices(one) for one in group]

    def _groups(self, agreeing: list[int], sizes: list[int]) -> Iterable[Iterable[int]]:
        """Sets of GPUs as masks of positions, in groups of equal ones, the best first.

        Where a node has several products, a set of the least valuable one that serves comes first.
        """
        fabric, policy = self._node_info.fabric, self._policy
        assert fabric is not None
        if not fabric.products or policy.headroom == "roomy":
            return self._by_bandwidth(agreeing, sizes)
        every = union(agreeing)
        merged: dict[tuple[bool, float, float], list[int]] = {}
        kinds = [(gpus, 0.0) for *_, gpus in values_of_products(self._node_info, fabric, every, policy.products)]
        for some, first in kinds if len(kinds) == 1 else (*kinds, (every, inf)):  # GPUs of several products come last
            limited = [gpus & some for gpus in agreeing]
            for rank, group in enumerate(self._by_bandwidth(limited, sizes)):
                for one in group:
                    merged.setdefault((*self._need(fabric, one), first + rank), []).append(one)
        return [merged[need] for need in sorted(merged)]

    def _need(self, fabric: Fabric, gpus: int) -> tuple[bool, float]:
        """How far a set lacks the links that the pod asked for; in ascending order, better sets come first."""
        asked, topology = self._intent.asked_gbps, self._intent.topology
        lacks_ring = topology == "required" and not is_joined(fabric.graph, gpus)
        gbps = bandwidth(fabric.graph, gpus) if asked or topology == "preferred" else 0.0
        return lacks_ring, -min(gbps, asked or gbps)

    def _by_bandwidth(self, agreeing: list[int], sizes: list[int]) -> Iterable[Iterable[int]]:
        """Sets of GPUs as masks of positions, in groups of equal bandwidth, the best ring first."""
        found = (group for gpus in agreeing for group in self._ranked(gpus, sizes))
        return found if len(agreeing) == 1 else self._merged(found)

    def _cheaper_parts(self, eligible: int, everything: int, count: int) -> int:
        """Mask of the parts of GPUs that serve a pod as well as whole GPUs and are less valuable; 0 if too few.

        `everything` are all whole GPUs of the node.
        """
        intent, node_info = self._intent, self._node_info
        asks_links = count > 1 and (intent.asked_gbps or intent.topology in ("required", "preferred"))
        whole = eligible & everything
        parts = eligible & node_info.inventory.gpus & ~whole
        if not parts or asks_links or self._policy.headroom == "roomy":
            return 0
        devices = node_info.inventory.devices
        least = min((devices[bit].memory_bytes for bit in members(whole)), default=0)
        parts = union([1 << bit for bit in members(parts) if 0 < devices[bit].memory_bytes < least])
        parts &= self._possible
        return parts if parts.bit_count() >= count else 0

    def _merged(self, groups: Iterable[Iterable[int]]) -> list[list[int]]:
        """One group for each bandwidth, as masks of positions, the best first; in each, those with most links first."""
        fabric, merged = self._node_info.fabric, dict[float, list[int]]()
        assert fabric is not None
        for one in chain.from_iterable(groups):
            merged.setdefault(bandwidth(fabric.graph, one), []).append(one)
        by_number = partial(links_inside, fabric.graph)
        return [sorted(merged[gbps], key=by_number, reverse=True) for gbps in sorted(merged, reverse=True)]

    def _ranked(self, free: int, sizes: list[int]) -> Iterable[Iterable[int]]:
        """The sets of so many of these GPUs, as masks of positions, in groups of equal bandwidth, the best first.

        Where only partitions are joined, the sets of one claim are partitions, and those of several claims are made up
        of partitions of their sizes.
        """
        node_info, count = self._node_info, sum(sizes)
        assert node_info.fabric is not None
        graph = node_info.fabric.graph
        if node_info.fabric_partitions is None:
            return by_bandwidth(graph, free, count)
        known = (node_info.positions(one) for one in node_info.fabric_partitions.sets)
        partitions = [one for one in known if not one & ~free and one.bit_count() in sizes]
        if len(sizes) == 1:
            return in_groups(graph, free, [one for one in partitions if one.bit_count() == count])
        found = ranked(graph, free, count)
        return in_groups(graph, free, [one for one in found if union([p for p in partitions if not p & ~one]) == one])

    # -- devices of several drivers --------------------------------------------------------------------------

    def _near_each_other(self, problem: Problem, first: Solution) -> Iterator[Allowed]:
        """The devices of several drivers, so that they are near each other.

        The part of the score with the larger weight comes first: links of the GPUs, or nearness. If the search refuses
        these devices, for a constraint, it gets more of the near ones to choose from.
        """
        locality, weights = self._node_info.locality, self._policy.weights
        if locality is None or not weights.affinity:
            return
        kinds: dict[str, list[Slot]] = {}
        for slot in self._slots(problem, first):
            kinds.setdefault(locality.kind(lowest(slot.eligible)), []).append(slot)
        kinds.pop("", None)
        for driver, mask in locality.kinds if kinds else ():
            accepted = union([slot.eligible for slot in kinds.get(driver, ())])  # a further share of an own device
            for bit in members(self._own & mask & ~accepted):
                kinds.setdefault(driver, []).append(own_slot(bit))
        if len(kinds) < 2:  # noqa: PLR2004 - affinity is between two kinds of devices
            return
        anchor = anchor_of(kinds)
        anchors = kinds.pop(anchor)
        variants = self._agreeing_slots(problem, list(kinds.values()))
        together = [Together(locality, anchors, others, self._troubled, len(variants)) for others in variants]
        groups = self._sets_of_anchors(problem, anchors, together[0])
        if weights.affinity > weights.link:
            groups = iter([list(chain.from_iterable(groups))])
        kind = next(mask for driver, mask in locality.kinds if driver == anchor)
        for group in groups:
            found = together[0].choices(group)
            if len(together) > 1:
                found = merge(*(one.choices(group) for one in together), key=lambda choice: -choice.value)
            yield from (Allowed(of_request=_by_request(choice)) for choice in islice(found, _MAX_SETS))
            for devices in group[:_MAX_GROWN]:
                yield from (Allowed(others | devices) for others in together[0].growing(devices, ~kind))

    def _agreeing_slots(self, problem: Problem, others: list[list[Slot]]) -> list[list[list[Slot]]]:
        """The slots of each driver; several times, if a constraint limits those of one to some devices.

        A matchAttribute leaves the devices of one value, and a distinctAttribute one device of each value.
        """
        found = [others]
        if not any(spec.constraints for spec in problem.specs):
            return found
        for position, slots in enumerate(others):
            asked, own = [slot for slot in slots if not slot.is_own], [slot for slot in slots if slot.is_own]
            claims = {slot.claim for slot in asked}
            for constraint in problem.specs[asked[0].claim].constraints if len(claims) == 1 else ():
                if all(constraint.covers(slot.request) for slot in asked):
                    groups = self._values(constraint.attribute, members(union([slot.eligible for slot in asked])))
                    if constraint.kind != "match":
                        one_of_each = islice(product(*map(members, groups)), _MAX_VARIANTS)
                        groups = [union([1 << bit for bit in bits]) for bits in one_of_each]
                    limited = [
                        [slot._replace(eligible=slot.eligible & mask) for slot in asked] + own for mask in groups
                    ]
                    found = [
                        [*one[:position], few, *one[position + 1 :]]
                        for one in found
                        for few in limited
                        if all(slot.eligible for slot in few)
                    ][:_MAX_VARIANTS]
        return found or [others]

    def _values(self, attribute: str, bits: list[int]) -> list[int]:
        """The masks of the devices with each value of an attribute. A device with a list is in several."""
        groups: dict[object, int] = {}
        for bit in bits:
            one = self._node_info.inventory.devices[bit]
            kind, values = attribute_values(one.device, attribute, one.driver, lists=True) or ("", ())
            for value in values:
                groups[kind, value] = groups.get((kind, value), 0) | 1 << bit
        return list(dict.fromkeys(groups.values()))

    def _slots(self, problem: Problem, first: Solution) -> Iterator[Slot]:
        """The devices that the solution needs, in the order of the pod; without those of admin access."""
        for position, (name, spec) in enumerate(zip(problem.names, problem.specs, strict=True)):
            picked: dict[str, list[int]] = {}
            for pick in first.picks[position]:
                picked.setdefault(pick.request.name, []).append(pick.bit)
            for request, chosen in zip(spec.requests, first.alternatives[position], strict=True):
                option = request.alternatives[chosen]
                bits = picked.get(option.name, ())
                if option.admin_access or not bits:
                    continue
                usable = self._with_room(problem, problem.usable(name, option), option)
                usable = usable if option.mode == "ExactCount" else sum(1 << bit for bit in bits)
                for bit in bits:
                    yield Slot(position, name, option.name, usable | 1 << bit)

    def _with_room(self, problem: Problem, usable: int, option: DeviceRequest) -> int:
        """The devices without those that the search would reject for a taint, for counters or for capacity."""
        simple = self._node_info.inventory.simple
        if not usable & ~simple:
            return usable
        usable &= self._possible
        for bit in members(usable & ~simple):
            device = self._node_info.inventory.devices[bit].device
            if blocking_taint(device, option.tolerations) is not None or not problem.has_room(bit, option):
                usable &= ~(1 << bit)
        return usable

    def _sets_of_anchors(self, problem: Problem, anchors: list[Slot], together: Together) -> Iterator[list[int]]:
        """Sets of the anchors as device masks in groups of equal bandwidth, the best first, without regard to others.

        One empty set if the pod has all its anchors already. Parts of GPUs have no links, and no GPU among the others.
        """
        asked, fabric = [slot for slot in anchors if not slot.is_own], self._node_info.fabric
        whole = [slot for slot in asked if fabric is not None and self._node_info.positions(slot.eligible)]
        others = [slot for slot in asked if slot not in whole]
        if not whole:
            yield self._combined(others, together, _MAX_COMBINED)
            return
        gpus = union([slot.eligible for slot in whole])
        eligible, everything = union([slot.eligible for slot in asked]), self._node_info.whole_gpus
        if parts := self._cheaper_parts(eligible, everything, len(asked)):
            fewer = [slot._replace(eligible=slot.eligible & parts) for slot in asked]
            if all(slot.eligible for slot in fewer):
                yield self._combined(fewer, together, _MAX_COMBINED)
        sizes = Counter(slot.claim for slot in whole)
        for group in self._gpu_sets(problem, sizes, self._node_info.positions(gpus)):
            if not others:
                yield group
                continue
            combined = self._combined(others, together, _MAX_COMBINED // len(group))
            yield [one | more for one in group for more in combined if not more & self._parts_of(one)]

    def _combined(self, slots: list[Slot], together: Together, most: int) -> list[int]:
        """The sets of devices for these slots, as masks, the preferred ones first; at most so many."""
        order = sorted(members(union([slot.eligible for slot in slots])), key=self._device_key)
        if comb(len(order), len(slots)) > most:
            order = self._few_of_each_root(order, len(slots), together, most)
        return [sum(1 << bit for bit in chosen) for chosen in combinations(order, len(slots))]

    def _parts_of(self, gpus: int) -> int:
        """Mask of the devices that are parts of these whole GPUs."""
        devices = self._node_info.inventory.devices
        whole = {whole_identity(devices[bit].device, devices[bit].driver) for bit in members(gpus)}
        rest = members(self._node_info.inventory.gpus & ~gpus)
        return union([1 << bit for bit in rest if parent_of(devices[bit].device, devices[bit].driver) in whole])

    def _few_of_each_root(self, order: list[int], count: int, together: Together, most: int) -> list[int]:
        """As many anchors as can be combined: those with near devices first, and of each root in turn."""
        locality, number = self._node_info.locality, Counter[object]()
        assert locality is not None
        ranks: dict[int, tuple[int, int]] = {}
        for bit in order:
            beside = locality.roots[bit], locality.numa[bit]
            ranks[bit] = -together.bound[bit], number[beside]
            number[beside] += 1
        few = sorted(order, key=ranks.__getitem__)
        while len(few) > count and comb(len(few), count) > most:
            few.pop()
        return few

    # -- sets of GPUs ----------------------------------------------------------------------------------------

    def _agreeing(self, problem: Problem, claims: list[int], free: int) -> list[int]:
        """The free GPUs in one group, or in groups by the value of a matchAttribute that covers all requests for GPUs.

        GPUs are masks of positions. `claims` are those with GPUs. A constraint holds in one claim, so the GPUs of
        several need not agree.
        """
        name, spec = problem.names[claims[0]], problem.specs[claims[0]]
        if len(claims) != 1 or not spec.constraints:
            return [free]
        gpus = self._node_info.whole_gpus
        asking = [r for r in spec.requests if any(problem.select(name, o).match & gpus for o in r.alternatives)]
        derived = {attribute for r in asking for option in r.alternatives for attribute, _ in option.derived}
        for one in spec.constraints:
            if one.kind == "match" and one.attribute not in derived and all(one.covers(r.name) for r in asking):
                return self._grouped(one.attribute, free)
        return [free]

    def _grouped(self, attribute: str, free: int) -> list[int]:
        """The GPUs with each value. A GPU with a list is in several groups."""
        masks = self._values(attribute, [self._node_info.gpu_bits[position] for position in members(free)])
        groups = {self._node_info.positions(mask) for mask in masks}
        return sorted(groups, key=lambda group: (group.bit_count(), members(group)))

    def _healthy_first(self, groups: list[int]) -> Iterator[list[int]]:
        troubled = self._node_info.positions(self._troubled) if self._troubled else 0
        healthy = [group & ~troubled for group in groups]
        if healthy != groups:
            yield healthy
        yield groups

    def _single_devices(self, chosen: int, eligible: int) -> Iterator[int]:
        """Masks that start with the most preferred devices and grow by one device until the search succeeds."""
        order = sorted(members(eligible & self._possible), key=self._device_key)
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
        shares = use.shares.get(pool_device.device.name)
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
        weights = self._counter_weights
        return sum(weights[pool_device.pool, *key] for key in _exclusive_counters(pool_device.device))

    @cached_property
    def _counter_weights(self) -> Counter[tuple[int, str, str]]:
        """(pool, counter set, counter) to the total number of counters of the possible partitions that use it."""
        weights, devices = Counter[tuple[int, str, str]](), self._node_info.inventory.devices
        for bit in members(self._possible & ~self._node_info.busy):
            keys = _exclusive_counters(devices[bit].device)
            for key in keys:
                weights[devices[bit].pool, *key] += len(keys)
        return weights

    @cached_property
    def _possible(self) -> int:
        """Mask of the devices for which enough of each counter is left."""
        found, inventory = (1 << len(self._node_info.inventory.devices)) - 1, self._node_info.inventory
        left: dict[int, dict[CounterKey, int]] = {}
        for bit in members(found & ~inventory.simple):
            uses, pool = inventory.devices[bit].device.consumes, inventory.devices[bit].pool
            if uses and pool not in left:
                left[pool] = self._node_info.allocated_state.left(inventory.pools[pool])
            if any(left[pool][use.counter_set, name] < amount for use in uses for name, amount in use.counters):
                found &= ~(1 << bit)
        return found


def _by_request(choice: Choice) -> Mapping[tuple[int, str], int]:
    """The devices of each request, by position of the claim and name of the request."""
    found: dict[tuple[int, str], int] = {}
    for slot, bit in choice.placed:
        found[slot.claim, slot.request] = found.get((slot.claim, slot.request), 0) | 1 << bit
    return found


def _exclusive_counters(device: Device) -> list[tuple[str, str]]:
    """The counters that only one partition can use: the memory slices of a GPU."""
    return [
        (use.counter_set, name)
        for use in device.consumes
        for name, amount in use.counters
        if amount and "slice" in name
    ]
