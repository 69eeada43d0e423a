"""The parts of a node's score. Each has a value from 0 (worst) to 1 (best) and a sentence that explains it.

Nodes with equal capacities, taints, links and use share one score. So no part may read in what else they differ: the
name and the labels of the node, and the names and the attributes of its devices.

Fragmentation for an expected mix of jobs is the free GPU capacity that jobs can no longer use (FGD, USENIX ATC'23). GPU
capacity is in thousandths per GPU. A request mix has shapes of jobs with their shares. A node's capacity is stranded as
far as an average job of the mix cannot use it there. The gradient of a placement is what it strands; less is better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import takewhile
from math import log2
from typing import NamedTuple

from extender.allocation import FleetBaseline, NodeInfo, Problem, Solution
from extender.allocation.nodes import UNUSED
from extender.allocation.nodes.locality import Nearness
from extender.api.gpu_topology import WHOLE, Fabric, Interconnect, RequestMix, Source
from extender.api.pod_annotations import PodIntent
from extender.api.quantity import NANO, Quantity, whole_units
from extender.base.bits import members, union
from extender.base.text_limits import counted
from extender.policy import Headroom, Policy, Weights
from extender.topology.affinity import anchor_of, pairs_of
from extender.topology.products import (
    PCIE_RING_GBPS,
    joinable_gbps,
    links_reach_other_nodes,
    pcie_gbps,
    pcie_generation,
)
from extender.topology.sets import bandwidth, best_gbps, joined_sets, links_inside
from extender.vendors import NIC, amount_of_memory, driver_of

GRADIENT_STEP = 0.08  # GPUs; gradients are rounded to this, so that nearly equal ones count as equal (docs/quality.md)
_GIB = 1 << 30
_UNASKED_SHARE = 0.15  # how much of `link` the links decide if the pod asked for none
_TOO_SLOW = 0.25  # `link` just below what the pod asked for: a cheap GPU and a full node weigh less than the rest
_BEFORE_HEADROOM = frozenset(takewhile(lambda name: name != "headroom", Weights.model_fields))  # names of parts
_FIT_DIVISOR = 1_000  # the weight of the best fit is this much smaller than that of the gradient


class ScorePart(NamedTuple):
    """One part of the score. `name` is a field of Weights; `value` is 0..1."""

    name: str
    value: float
    sentence: str


class DeviceChoice:
    """A solution on a node, the input of the score. `own` is a mask of devices that the pod has there already."""

    __slots__ = ("after", "before", "devices", "gpus", "node_info", "own", "part_use", "problem", "solution")

    def __init__(self, node_info: NodeInfo, problem: Problem, solution: Solution, own: int = 0) -> None:
        self.node_info = node_info
        self.problem = problem
        self.solution = solution
        self.own = own
        self.devices = solution.taken  # mask of the chosen devices
        self.gpus = node_info.positions(self.devices)  # mask of the whole GPUs among them, by position in the fabric
        self.part_use = node_info.partly_used
        self.before = left_over(node_info, self.part_use)  # the free thousandths of each GPU, by position
        self.after = _after(self, self.before)  # those that the choice leaves

    @property
    def free_gpus(self) -> tuple[int, int]:
        """The free GPU capacity of the node before and after the choice, in thousandths of a GPU."""
        return sum(self.before), sum(self.after)

    @property
    def drivers(self) -> set[str]:
        """The drivers of the chosen devices, and of those that the pod has already."""
        pools, mask = self.node_info.inventory.pool_devices, self.devices | self.own
        return {pool.key.driver for first, pool in pools if mask >> first & (1 << len(pool.devices)) - 1}

    @property
    def has_nics(self) -> bool:
        """Whether the pod has a NIC."""
        return any(driver_of(driver).kind == NIC for driver in self.drivers)


def parts(choice: DeviceChoice, baseline: FleetBaseline, policy: Policy, intent: PodIntent) -> tuple[ScorePart, ...]:
    """The parts of the score that apply to this choice, in the order of Weights."""
    value = _value(choice, baseline, policy)
    assumed = _assumed_bytes(value is not None, baseline, policy)
    found = (
        _link(choice, baseline, intent),
        _affinity(choice, baseline),
        value,
        _headroom(choice, assumed, policy, intent.expected_bytes),
        _fragmentation(choice, baseline),
        _packing(choice, policy),
        _health(choice, policy),
        _preference(choice),
    )
    return tuple(part for part in found if part is not None)


def with_least_memory(
    found: tuple[ScorePart, ...],
    least: int,
    node_info: NodeInfo,
    bits: Iterable[int],
    baseline: FleetBaseline,
    policy: Policy,
) -> tuple[ScorePart, ...]:
    """The parts of the same choice for selectors that demand `least` bytes of each device. Only `headroom` differs.

    `bits` are the chosen devices, of one request without an amount, in a pod without an annotation of its memory.
    """
    first, has_value, last = 0, False, len(found)
    while first < last and (name := found[first].name) in _BEFORE_HEADROOM:
        has_value = has_value or name == "value"
        first += 1
    others = found[first + (first < last and found[first].name == "headroom") :]
    assumed = _assumed_bytes(has_value, baseline, policy)
    headroom = _headroom_of([(bit, least) for bit in bits], node_info, assumed, policy)
    return (*found[:first], headroom, *others) if headroom is not None else (*found[:first], *others)


def _assumed_bytes(has_value: bool, baseline: FleetBaseline, policy: Policy) -> int:  # noqa: FBT001 - the question
    """What a pod is assumed to need of a device: if `value` does not count, the smallest GPU of the fleet; else 0."""
    return 0 if has_value and policy.weights.value else baseline.least_memory_bytes


def total(found: tuple[ScorePart, ...], policy: Policy) -> float:
    """The weighted mean of the parts, 0..1; 0 if all weights are 0."""
    weights, weighed, weight_sum = policy.weights, 0.0, 0.0
    for name, value, _ in found:
        weight = getattr(weights, name)
        weighed += weight * value
        weight_sum += weight
    return round(weighed / weight_sum, 9) if weight_sum else 0.0


def achieved_gbps(choice: DeviceChoice) -> float:
    """Predicted ring bandwidth of the chosen GPUs, in GB/s; 0 for fewer than two GPUs."""
    fabric = choice.node_info.fabric
    return bandwidth(fabric.graph, choice.gpus) if fabric is not None and choice.gpus.bit_count() > 1 else 0.0


def product_gbps(node_info: NodeInfo, gpus: int) -> float:
    """Predicted ring bandwidth of the best set of as many GPUs of these products, if all on the node are free, in GB/s.

    `gpus` is a mask of positions. 0 for fewer than two GPUs.
    """
    fabric = node_info.fabric
    if fabric is None:
        return 0.0
    alike = fabric.of_products(_products(fabric, gpus)) if fabric.products else -1
    return best_gbps(fabric.graph, node_info.positions(-1) & alike, gpus.bit_count())


def _products(fabric: Fabric, gpus: int) -> list[str]:
    """The products of these GPUs, sorted."""
    return sorted({fabric.product_at(position) for position in members(gpus)}) if fabric.products else [fabric.product]


def _link(choice: DeviceChoice, baseline: FleetBaseline, intent: PodIntent) -> ScorePart | None:
    """The predicted bandwidth against what the pod asked for. More than that is no better.

    Any set serves a pod that asked for nothing, and any joined set one that requires it (`_rejection` of evaluate.py
    leaves out the others). For both, links decide only a part of the value, and nothing is missing where the product
    has no links. A pod with NICs beside several GPUs communicates: for it the links of its product count in full.
    """
    count, fabric = choice.gpus.bit_count(), choice.node_info.fabric
    if count < 2 or fabric is None or intent.topology == "none":  # noqa: PLR2004 - one GPU has no peer
        return None
    mine = achieved_gbps(choice)
    fleet = max(baseline.best_ring_gbps.get(count, 0.0), mine) or 1.0
    if intent.asked_gbps:
        possible = min(intent.asked_gbps, fleet)
        value, of = 1.0 if mine >= possible else _TOO_SLOW * mine / possible, f"{intent.asked_gbps:g} asked for"
    elif intent.topology == "preferred":
        value, of = mine / fleet, f"the fleet's best {fleet:.0f}"
    else:
        best = max(product_gbps(choice.node_info, choice.gpus), mine) or 1.0
        value = 1 - (1 if choice.has_nics else _UNASKED_SHARE) * (1 - mine / best)
        names = " or ".join(_products(fabric, choice.gpus))
        of = f"{count} x {names or 'this GPU'} can offer {best:.0f}"
    return ScorePart("link", value, f"predicted ring of {count} GPUs: {mine:.0f} GB/s, {of} ({fabric.source.value})")


_NEARNESS = {Nearness.ROOT: 1.0, Nearness.NUMA: 0.75, Nearness.NUMA_LIST: 0.5, Nearness.FAR: 0.0}
_WORDS = {
    Nearness.ROOT: "on one PCIe root",
    Nearness.NUMA: "on one NUMA node",
    Nearness.NUMA_LIST: "on near NUMA nodes",
    Nearness.FAR: "apart",
    Nearness.UNKNOWN: "not known how near",
}
_NEUTRAL_RATIO = 0.5  # of the fleet's best: a pair of unknown locality


def _affinity(choice: DeviceChoice, baseline: FleetBaseline) -> ScorePart | None:
    """How near the pod's devices of several drivers are, relative to the fleet's best for these drivers.

    A pair of unknown locality is neither near nor far. None if no node knows the locality of such devices.
    """
    drivers = choice.drivers
    if len(drivers) < 2:  # noqa: PLR2004 - affinity is between devices of two drivers
        return None
    anchor, locality = anchor_of(drivers), choice.node_info.locality
    pairs = pairs_of(locality, choice.devices | choice.own)
    found = (
        [(_both(anchor, locality.kind(pair.other)), pair.nearness) for pair in pairs] if locality is not None else []
    )
    found = found or [(_both(anchor, other), Nearness.UNKNOWN) for other in sorted(drivers - {anchor})]
    known = [(kinds, nearness) for kinds, nearness in found if nearness >= 0 or kinds in baseline.nearest]
    if not known:
        return None
    mine = best = 0.0
    for kinds, nearness in known:
        most = max(_NEARNESS[max(baseline.nearest.get(kinds, nearness), nearness)], _NEARNESS[Nearness.NUMA])
        mine += _NEARNESS[nearness] if nearness >= 0 else _NEUTRAL_RATIO * most
        best += most
    counts = Counter(_WORDS[nearness] for _, nearness in known)
    words = ", ".join(f"{number} {words}" for words, number in sorted(counts.items()))
    return ScorePart("affinity", mine / best, f"{counted(len(known), 'pair')} of devices: {words}")


def _both(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one < other else (other, one)


def _value(choice: DeviceChoice, baseline: FleetBaseline, policy: Policy) -> ScorePart | None:
    """How little the chosen GPUs are worth, with the whole sets that the choice breaks.

    Parts of GPUs, and those that are passed through, are worth their memory. None for a policy that prefers the largest
    GPU.
    """
    node_info = choice.node_info
    if policy.headroom == "roomy":
        return None
    if node_info.fabric is not None and choice.gpus:
        return ScorePart("value", *thrift(node_info, node_info.fabric, choice.gpus, policy.products, baseline.named))
    gpus = [node_info.inventory.devices[bit] for bit in members(choice.devices & node_info.inventory.gpus)]
    return ScorePart("value", *thrift_of_memory(sum(one.memory_bytes for one in gpus) / len(gpus))) if gpus else None


# -- what the GPUs of a choice are worth, so that a pod without a wish does not take what others need ------------------
# The unit is a GiB of memory or a GB/s of links of the newest generation: both grow with the price of a GPU, and no
# price list is needed. A policy may give a product another value in this unit. Values do not depend on the rest of the
# fleet, so a new node changes the score of no other.
#
# The agent says which links a GPU has to the others of its node. Without it, and for a GPU that is alone, the links are
# those of the product in its vendor's file: a part of a board, or a GH200, is worth no less. Cards that only a bridge
# joins (`unjoined` in the vendor's file) then count without links: only the agent knows whether a bridge is there.
#
# A whole set is GPUs of a node that NVLink joins and that are all free, such as the eight of a board or a bridged pair.
# A large job needs one, so a choice that breaks it costs more than the GPUs that it takes.

_UNIT = "(GiB and GB/s)"
_HALF_VALUE = 256.0  # the value of which `thrift` is 1/2; values of GPUs are between 5 (T4) and 3,100 (GB200)
_SET_SHARE = 0.75  # of the value, for each doubling of a broken set
_UNKNOWN_VALUE = 1_000.0  # about that of a B200
# So much more, as a multiple of the value, counts a product of which jobs name all GPUs. Less counts by the square: if
# they name few, enough are left for them anyway.
_NAMED_FACTOR = 16
_MAX_KINDS = 1024  # of machines, whose values are remembered; each keeps its links, at most 3 KiB
_REACH_WEIGHT = 4  # their links count so often, so that a tray of a rack is worth more than a whole board of B200s


@lru_cache(_MAX_KINDS)  # a fleet has dozens of kinds of machines
def _usual_value(
    graph: Interconnect, alike: int, source: Source, product: str, driver: str, memory_bytes: float
) -> float:
    """The value of one of the GPUs `alike` of a graph, from memory and links.

    Links that reach other nodes count more: they join more GPUs than the node has. An older product counts less, by the
    rate of its PCIe generation: an A100 with a bridge has as much memory and bandwidth as an H100 with one.
    """
    links = max((sum(graph.links[i]) + graph.switch_links[i] for i in members(alike)), default=0)
    gbps = links * graph.link_gbps
    if source is not Source.LIVE or len(graph.links) == 1:
        gbps = max(gbps, joinable_gbps(product, driver))
    reach = _REACH_WEIGHT if links_reach_other_nodes(product, driver) else 1
    age = pcie_gbps(pcie_generation(product, driver)) / max(PCIE_RING_GBPS.values())
    return (memory_bytes / _GIB + reach * gbps) * age


def thrift(
    node_info: NodeInfo, fabric: Fabric, chosen: int, own: Mapping[str, float], named: Mapping[str, float]
) -> tuple[float, str]:
    """(how little these GPUs of a node cost, 1 (nothing) to 0, in words): by their value and the sets that they break.

    Each doubling from the chosen GPUs to those of the broken sets adds _SET_SHARE of the value: two of eight joined
    H100s cost more than two B200s of a board that others use, and less than two of eight joined B200s. `named` is that
    of the FleetBaseline: a product that other jobs need counts more, so that a pod without a wish leaves it to them.
    """
    taken = chosen.bit_count()
    found = values_of_products(node_info, fabric, chosen, own)
    value = counts = 0.0
    for product, each, gpus in found:
        value += each * gpus.bit_count()
        counts += each * (1 + _NAMED_FACTOR * named.get(product, 0.0) ** 2) * gpus.bit_count()
    value, counts = value / taken, counts / taken
    in_use = node_info.positions(node_info.busy | node_info.partly_used)
    joined = joined_sets(fabric.graph.interconnect, node_info.positions(-1))
    broken = union([chosen, *(gpus for gpus in joined if gpus & chosen and not gpus & in_use)]).bit_count()
    names = " and ".join(product or "GPU" for product, _, _ in found)
    words = f"{names} of value {value:.0f} {_UNIT}{' on average' if len(found) > 1 else ''}"
    if broken > taken:
        words += f", {taken} of {broken} joined GPUs that are all free"
    if counts > value:
        words += f", counts as {counts:.0f}: other jobs need this product"
    return _HALF_VALUE / (_HALF_VALUE + counts * (1 + _SET_SHARE * log2(broken / taken))), words


def values_of_products(
    node_info: NodeInfo, fabric: Fabric, chosen: int, own: Mapping[str, float]
) -> list[tuple[str, float, int]]:
    """The products of these GPUs, the least valuable one first: its name, the value of one GPU, and which ones.

    The value of the first name in `own` that the product contains, else from memory and links.
    """
    found = []
    for product in {*map(fabric.product_at, members(chosen))} if fabric.products else (fabric.product,):
        alike = fabric.of_products({product})
        gpus = chosen & alike
        value = next((value for name, value in own.items() if name in product), None)
        if value is None:
            devices = [node_info.inventory.devices[bit] for bit in members(node_info.devices(gpus))]
            memory, driver = sum(one.memory_bytes for one in devices) / len(devices), devices[0].driver
            value = _usual_value(fabric.graph.interconnect, alike, fabric.source, product, driver, memory)
        found.append((product, value, gpus))
    return sorted(found, key=lambda one: (one[1], one[0]))


def thrift_of_memory(memory_bytes: float) -> tuple[float, str]:
    """The same for a device without links, such as a part of a GPU, by its memory alone.

    One whose memory is not known, such as a GPU that is passed through, may be the most valuable of the fleet.
    """
    value = memory_bytes / _GIB or _UNKNOWN_VALUE
    words = f"a device of value {value:.0f} {_UNIT}" if memory_bytes else "a device whose memory is not known"
    return _HALF_VALUE / (_HALF_VALUE + value), words


# -- memory, free capacity, use, health, and rank of an alternative ----------------------------------------------------


def _headroom(choice: DeviceChoice, assumed_bytes: int, policy: Policy, expected_bytes: int) -> ScorePart | None:
    """Requested memory divided by unclaimed memory. Use beyond claims lowers the value.

    The amount of the request comes first, then the pod's annotation: both are the user's own figure. Then comes what
    the selectors demand, which only bounds it. Without any of these, `assumed_bytes` is assumed; if it is 0, the device
    does not count.
    """
    problem, wanted = choice.problem, list[tuple[int, int]]()
    for name, claim in zip(problem.names, choice.solution.picks, strict=True):
        for pick in claim:
            asked = _wanted_bytes(pick.consumed or pick.request.capacity) or expected_bytes
            wanted.append((pick.bit, asked or problem.select(name, pick.request).least_memory))
    return _headroom_of(wanted, choice.node_info, assumed_bytes, policy)


def _headroom_of(
    wanted: Iterable[tuple[int, int]], node_info: NodeInfo, assumed_bytes: int, policy: Policy
) -> ScorePart | None:
    """See _headroom. `wanted`: the bit of each chosen device, and the bytes that it has to have; 0: not known."""
    beyond = node_info.overuse
    devices = [(least, unclaimed_bytes(node_info, bit), beyond.get(bit, 0) if beyond else 0) for bit, least in wanted]
    return _headroom_part(tuple(devices), assumed_bytes, policy.headroom)


@lru_cache(maxsize=1024)  # thousands of nodes have a few dozen different amounts
def _headroom_part(devices: tuple[tuple[int, int, int], ...], assumed_bytes: int, mode: Headroom) -> ScorePart | None:
    """See _headroom. Of each device the bytes that it has to have, that are unclaimed, and that are in use beyond."""
    asked = have = fit = overused = assumed = 0
    for least, memory, beyond in devices:
        if memory and (least or assumed_bytes):  # a NIC has none
            asked += least or min(assumed_bytes, memory)
            fit += min(least or assumed_bytes, memory)
            assumed += not least
            have += memory
            overused += min(beyond, memory)
    if not have:
        return None
    value = (fit if mode == "tight" else have - fit) / have * (1 - overused / have)
    more = f", {overused / _GIB:.0f} GiB of it used beyond claims" if overused else ""
    amount = f"{asked / _GIB:.0f} GiB"
    need = f"no memory requested for {counted(assumed, 'GPU')}: {amount} assumed" if assumed else f"{amount} needed"
    return ScorePart("headroom", value, f"{need} of {have / _GIB:.0f} GiB unclaimed ({mode}){more}")


def unclaimed_bytes(node_info: NodeInfo, bit: int) -> int:
    """Unclaimed memory of a device in bytes: its capacity minus the amounts of its shares."""
    pool_device = node_info.inventory.devices[bit]
    memory = pool_device.memory_bytes
    if not memory:
        return 0
    use = node_info.allocated_state.pools.get(node_info.inventory.pools[pool_device.pool].key, UNUSED)
    shares = use.shares.get(pool_device.device.name)
    return whole_units(max(memory * NANO - (amount_of_memory(shares) or 0), 0)) if shares else memory


def _wanted_bytes(amounts: Mapping[str, Quantity] | None) -> int:
    amount = amount_of_memory(amounts) if amounts else None
    return whole_units(amount.nanos) if amount is not None else 0


def _fragmentation(choice: DeviceChoice, baseline: FleetBaseline) -> ScorePart | None:
    """The capacity that expected jobs can no longer use: GPU capacity (gradient), NVLink sets and links."""
    fabric = choice.node_info.fabric
    if fabric is None or not choice.devices:
        return None
    before, after = choice.before, choice.after
    taken = sum(before) - sum(after)
    if not taken:
        return None
    gradient = stranded(after, baseline) - stranded(before, baseline)
    gradient = round(gradient / WHOLE / GRADIENT_STEP) * GRADIENT_STEP * WHOLE
    node_capacity = WHOLE * max(baseline.most_gpus, len(before))
    # Between equal gradients, the node with less free capacity wins (best fit).
    capacity = 1 - (gradient + taken + sum(after) / _FIT_DIVISOR) / node_capacity
    links, sentence = _links_left(choice, baseline)
    value = max(0.0, min(capacity, 1.0) if links is None else (capacity + links) / 2)
    free = f"{sum(after) / WHOLE:g} of {sum(before) / WHOLE:g} stay free"
    lost = f"{abs(gradient / WHOLE):.2f}"
    job = f"the typical job {'loses' if gradient > 0 else 'gains'} {lost} GPUs"
    job = "no change for the typical job" if lost == "0.00" else job
    return ScorePart("fragmentation", value, f"{job}, {free}{sentence}")


def _left(node_info: NodeInfo, bit: int) -> int:
    """The free thousandths of a shared GPU."""
    pool_device = node_info.inventory.devices[bit]
    shares = node_info.allocated_state.pools[node_info.inventory.pools[pool_device.pool].key].shares[
        pool_device.device.name
    ]
    total = node_info.inventory.devices[bit].memory_bytes
    used = whole_units(amount_of_memory(shares) or 0)
    return WHOLE * max(total - used, 0) // total if total else 0


def _after(choice: DeviceChoice, before: list[int]) -> list[int]:
    """`left_over` after the choice; `before` is its value before the choice."""
    after, bits = list(before), choice.node_info.gpu_bits
    for claim in choice.solution.picks:
        for pick in claim:
            if pick.bit not in bits or pick.request.admin_access:
                continue
            position = bits.index(pick.bit)
            total = choice.node_info.inventory.devices[pick.bit].memory_bytes
            part = WHOLE if pick.consumed is None or not total else WHOLE * _wanted_bytes(pick.consumed) // total
            after[position] = max(after[position] - part, 0)
    return after


def left_over(node_info: NodeInfo, shared: int) -> list[int]:
    """The free thousandths of each GPU, in the order of the fabric. `shared` is `node_info.partly_used`."""
    used, found = node_info.busy, list[int]()
    for bit in node_info.gpu_bits:
        if bit < 0 or used >> bit & 1:
            found.append(0)
        elif shared >> bit & 1:
            found.append(_left(node_info, bit))
        else:
            found.append(WHOLE)
    return found


def stranded(left: list[int], baseline: FleetBaseline) -> float:
    """The part of `left` that an average job of the request mix cannot use, in thousandths of a GPU."""
    return _stranded(tuple(sorted(left)), baseline.request_mix)


@lru_cache(maxsize=4096)  # thousands of nodes have a few dozen different amounts left
def _stranded(left: tuple[int, ...], mix: RequestMix) -> float:
    free, expected = sum(left), 0.0
    for shape, share in mix:
        usable = [one for one in left if one >= shape.milli]
        expected += share * (free - sum(usable) if 0 < shape.gpus <= len(usable) else free)
    return expected


def _links_left(choice: DeviceChoice, baseline: FleetBaseline) -> tuple[float | None, str]:
    """(value, sentence): the bandwidth that larger sets of GPUs lose, and the share of links to GPUs now in use.

    The loss is weighted by the request mix. (None, '') if the choice affects no link.
    """
    node_info, fabric, taken = choice.node_info, choice.node_info.fabric, choice.gpus
    assert fabric is not None
    graph, before = fabric.graph, node_info.positions(~(node_info.busy | choice.part_use))
    had = links_inside(graph, before)
    if not taken or not had:
        return None, ""
    after = before & ~taken
    lost = whole = 0.0
    for shape, share in baseline.request_mix:
        size, weight = shape.gpus, share * shape.gpus
        if shape.milli == WHOLE and size > max(taken.bit_count(), 1):
            lost += weight * max(best_gbps(graph, before, size) - best_gbps(graph, after, size), 0.0)
            whole += weight * baseline.best_ring_gbps.get(size, 0.0)
    cut = had - links_inside(graph, after) - links_inside(graph, taken)
    return max(0.0, 1 - (lost / whole if whole else 0.0) - cut / had), f", {cut} of {had} links cut"


def _packing(choice: DeviceChoice, policy: Policy) -> ScorePart | None:
    """The share of the node's own GPUs in use; of all its own devices on a node without GPUs.

    Devices that other nodes reach, too, do not count.
    """
    inventory, used = choice.node_info.inventory, choice.node_info.own_in_use
    own = inventory.packed.bit_count()
    if not own:
        return None
    counted_as = "GPU" if inventory.packed & inventory.gpus else "device"
    share = used / own
    value = share if policy.packing == "pack" else 1 - share
    return ScorePart("packing", value, f"{used} of {counted(own, counted_as)} in use before ({policy.packing})")


def _health(choice: DeviceChoice, policy: Policy) -> ScorePart | None:
    """The share of chosen devices without an informational taint or a reported fault."""
    if not choice.devices:
        return None
    mask = choice.devices & troubled_devices(choice.node_info, policy)
    if not mask:
        return ScorePart("health", 1.0, "no device reports trouble")
    troubled = members(mask)
    value = 1 - len(troubled) / choice.devices.bit_count()
    reporting = counted(len(troubled), "device reports", "devices report")
    return ScorePart("health", value, f"{reporting} trouble: {_trouble(choice.node_info, troubled[0])}")


def troubled_devices(node_info: NodeInfo, policy: Policy) -> int:
    """Mask of the devices with a taint of effect None, a reported fault, or drift unless the policy ignores it."""
    return node_info.troubled | (node_info.drift if policy.drift != "ignore" else 0)


def _trouble(node_info: NodeInfo, bit: int) -> str:
    """The fault of a troubled device, as text."""
    taint = next((t for t in node_info.inventory.devices[bit].device.taints if t.effect == "None"), None)
    if taint is not None:
        return f"taint {taint.key}"
    state = (
        node_info.fabric.gpus[node_info.gpu_bits.index(bit)]
        if node_info.fabric is not None and bit in node_info.gpu_bits
        else None
    )
    if state is not None and not state.healthy:
        return state.note or "unhealthy"
    return "memory in use that no claim holds"


def _preference(choice: DeviceChoice) -> ScorePart | None:
    """The mean rank of the chosen firstAvailable alternatives: 1 for the first of a list, 0 for the last."""
    ranks = [
        (chosen, max(len(request.alternatives) - 1, 1))
        for spec, claim in zip(choice.problem.specs, choice.solution.alternatives, strict=True)
        for request, chosen in zip(spec.requests, claim, strict=True)
        if request.prioritized
    ]
    if not ranks:
        return None
    value = sum(1 - rank / last for rank, last in ranks) / len(ranks)
    return ScorePart("preference", value, f"alternatives taken: {', '.join(str(rank + 1) for rank, _ in ranks)}")
