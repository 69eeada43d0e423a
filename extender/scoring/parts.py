"""The parts of a node's score, each 0 (worst) to 1 (best) with the sentence that explains it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from extender.allocation.problem import UNUSED, Problem, Solution
from extender.allocation.view import Fleet, NodeView
from extender.fabric.sets import bandwidth, best_gbps, links_inside
from extender.model.bits import members
from extender.model.demand import WHOLE, Mix
from extender.model.quantity import whole
from extender.policy import Policy
from extender.scoring.gradient import Host, fragment, quantised

_GIB = 1 << 30
_TIE = 1_000  # how much less the best fit counts than the gradient
_MEMORY = ("memory", "gpu.nvidia.com/memory")


class Part(NamedTuple):
    """One part of the score."""

    name: str
    value: float
    sentence: str


@dataclass(frozen=True, slots=True)
class Choice:
    """A solution on a node, with what scoring needs of it."""

    view: NodeView
    problem: Problem
    solution: Solution
    devices: int = field(init=False)  # chosen, as a mask
    gpus: int = field(init=False)  # the whole GPUs among them, by position in the fabric

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", self.solution.mask)
        object.__setattr__(self, "gpus", self.view.positions(self.devices))


def _in_part_use(view: NodeView) -> int:
    """GPUs of which somebody has a share, as a mask of devices."""
    found = 0
    if not any(use.shares for use in view.usage.pools.values()):
        return found
    for bit in view.gpu_bits:
        if bit >= 0:
            place = view.inventory.places[bit]
            use = view.usage.pools.get(view.inventory.pools[place.pool].key, UNUSED)
            if place.id.device in use.shares:
                found |= 1 << bit
    return found


def parts(choice: Choice, fleet: Fleet, policy: Policy, expected_bytes: int = 0) -> tuple[Part, ...]:
    """All parts that say something about this choice."""
    found = (
        _link(choice, fleet),
        _headroom(choice, fleet, policy, expected_bytes),
        _fragmentation(choice, fleet),
        _packing(choice, policy),
        _health(choice, policy),
        _preference(choice),
    )
    return tuple(part for part in found if part is not None)


def total(found: tuple[Part, ...], policy: Policy) -> float:
    """The weighted mean of the parts, 0..1."""
    weights = policy.weights
    weighed = [(getattr(weights, part.name), part.value) for part in found]
    whole = sum(weight for weight, _ in weighed)
    return round(sum(w * v for w, v in weighed) / whole, 9) if whole else 0.0


def achieved_gbps(choice: Choice) -> float:
    """Predicted ring bandwidth of the chosen GPUs; 0 where fewer than two were chosen."""
    fabric = choice.view.fabric
    return bandwidth(fabric.graph, choice.gpus) if fabric is not None else 0.0


def _link(choice: Choice, fleet: Fleet) -> Part | None:
    count = choice.gpus.bit_count()
    if count < 2 or choice.view.fabric is None:  # noqa: PLR2004 - one GPU talks to nobody
        return None
    mine = achieved_gbps(choice)
    best = max(fleet.best_ring_gbps.get(count, 0.0), mine)
    share = mine / best if best else 0.0
    source = choice.view.fabric.source.value
    return Part("link", share, f"{count} GPUs move {mine:.0f} GB/s in a ring, the fleet's best {best:.0f} ({source})")


def _headroom(choice: Choice, fleet: Fleet, policy: Policy, expected_bytes: int) -> Part | None:
    """Memory asked for over memory there; without a request, the smallest GPU that exists stands for it. What others
    use beyond their claims lowers the value, and never decides whether the node fits."""
    asked = have = overused = 0
    for claim in choice.solution.picks:
        for pick in claim:
            memory = unclaimed_bytes(choice.view, pick.bit)
            if memory:
                wanted = _wanted_bytes(pick.consumed or pick.request.capacity or {}) or expected_bytes
                asked += min(wanted or fleet.least_memory_bytes or memory, memory)
                have += memory
                overused += min(choice.view.overuse.get(pick.bit, 0), memory)
    if not have:
        return None
    fit = asked / have
    value = (fit if policy.headroom == "tight" else 1 - fit) * (1 - overused / have)
    more = f", {overused / _GIB:.0f} GiB of it used beyond claims" if overused else ""
    return Part("headroom", value, f"{asked / _GIB:.0f} GiB needed of {have / _GIB:.0f} GiB unclaimed ({policy.headroom}){more}")


def memory_bytes(view: NodeView, bit: int) -> int:
    """The memory of a device, used or not; 0 where it publishes none."""
    capacity = view.inventory.places[bit].device.capacity
    return next((whole(capacity[name].value.nanos) for name in _MEMORY if name in capacity), 0)


def unclaimed_bytes(view: NodeView, bit: int) -> int:
    """Unclaimed memory of a device: its capacity less what shares consume."""
    place = view.inventory.places[bit]
    use = view.usage.pools.get(view.inventory.pools[place.pool].key, UNUSED)
    shares = use.shares.get(place.id.device, {})
    for name in _MEMORY:
        capacity = place.device.capacity.get(name)
        if capacity is not None:
            return whole(max(capacity.value.nanos - shares.get(name, 0), 0))
    return 0


def _wanted_bytes(amounts: object) -> int:
    assert hasattr(amounts, "get")
    for name in _MEMORY:
        amount = amounts.get(name)
        if amount is not None:
            return whole(amount.nanos)
    return 0


def _fragmentation(choice: Choice, fleet: Fleet) -> Part | None:
    """What the expected demand can no longer use here: free GPUs by the gradient method, and NVLink sets and links."""
    fabric = choice.view.fabric
    if fabric is None or not choice.devices:
        return None
    before = left_over(choice.view)
    after = _after(choice, before)
    taken = sum(before) - sum(after)
    if not taken:
        return None
    gradient = quantised(stranded(after, fleet) - stranded(before, fleet))
    whole = WHOLE * max(fleet.most_gpus, len(before))
    # What is left counts in the last place: equal gradients go where less is left over (best fit).
    capacity = 1 - (gradient + taken + sum(after) / _TIE) / whole
    links, sentence = _links_left(choice, fleet)
    value = max(0.0, min(capacity, 1.0) if links is None else (capacity + links) / 2)
    lost = f"the typical job loses {gradient / WHOLE:+.2f} GPUs, {sum(after) / WHOLE:g} of {sum(before) / WHOLE:g} stay free"
    return Part("fragmentation", value, lost + sentence)


def _left(view: NodeView, bit: int) -> int:
    """Thousandths that are free of a GPU that is shared."""
    place = view.inventory.places[bit]
    shares = view.usage.pools[view.inventory.pools[place.pool].key].shares[place.id.device]
    total = memory_bytes(view, bit)
    used = whole(max((shares.get(name, 0) for name in _MEMORY), default=0))
    return WHOLE * max(total - used, 0) // total if total else 0


def _after(choice: Choice, before: list[int]) -> list[int]:
    """The same once the choice is made."""
    after = list(before)
    positions = {bit: position for position, bit in enumerate(choice.view.gpu_bits)}
    for claim in choice.solution.picks:
        for pick in claim:
            position = positions.get(pick.bit)
            if position is None or pick.request.admin_access:
                continue
            total = memory_bytes(choice.view, pick.bit)
            part = WHOLE if pick.consumed is None or not total else WHOLE * _wanted_bytes(pick.consumed) // total
            after[position] = max(after[position] - part, 0)
    return after


def left_over(view: NodeView) -> list[int]:
    """Thousandths of each GPU that are free, in the order of the fabric."""
    used, shared = view.busy, _in_part_use(view)
    return [0 if bit < 0 or used >> bit & 1 else _left(view, bit) if shared >> bit & 1 else WHOLE for bit in view.gpu_bits]


def stranded(left: list[int], fleet: Fleet) -> float:
    """Thousandths of what is left of a node's GPUs that the typical job of the expected demand cannot use."""
    return _stranded(tuple(sorted(left)), fleet.demand)


@lru_cache(maxsize=4096)  # thousands of nodes have a few dozen different amounts left
def _stranded(left: tuple[int, ...], demand: Mix) -> float:
    return fragment(Host("", 0, 0, left), demand)


def _links_left(choice: Choice, fleet: Fleet) -> tuple[float | None, str]:
    """What sets of more GPUs lose in bandwidth, weighed by demand, and the share of links that now end at a used GPU."""
    view, fabric, taken = choice.view, choice.view.fabric, choice.gpus
    assert fabric is not None
    graph, before = fabric.graph, view.positions(~(view.busy | _in_part_use(view)))
    had = links_inside(graph, before)
    if not taken or not had:
        return None, ""
    after = before & ~taken
    larger = [(s.gpus, share * s.gpus) for s, share in fleet.demand if s.milli == WHOLE and s.gpus > max(taken.bit_count(), 1)]
    lost = sum(w * max(best_gbps(graph, before, size) - best_gbps(graph, after, size), 0.0) for size, w in larger)
    whole = sum(w * fleet.best_ring_gbps.get(size, 0.0) for size, w in larger)
    cut = had - links_inside(graph, after) - links_inside(graph, taken)
    return max(0.0, 1 - (lost / whole if whole else 0.0) - cut / had), f", {cut} of {had} links cut"


def _packing(choice: Choice, policy: Policy) -> Part | None:
    places = choice.view.inventory.places
    if not places:
        return None
    used = choice.view.busy.bit_count()
    share = used / len(places)
    value = share if policy.packing == "pack" else 1 - share
    return Part("packing", value, f"{used} of {len(places)} devices were in use ({policy.packing})")


def _health(choice: Choice, policy: Policy) -> Part | None:
    """Informational taints and what the agent reports."""
    if not choice.devices:
        return None
    troubled = members(choice.devices & troubled_devices(choice.view, policy))
    if not troubled:
        return Part("health", 1.0, "no device reports trouble")
    value = 1 - len(troubled) / choice.devices.bit_count()
    name = choice.view.inventory.places[troubled[0]].id.device
    return Part("health", value, f"{len(troubled)} devices report trouble: {name}: {_trouble(choice.view, troubled[0])}")


def troubled_devices(view: NodeView, policy: Policy) -> int:
    """Devices that something speaks against without forbidding them, as a mask."""
    return view.troubled | (view.drift if policy.drift != "ignore" else 0)


def _trouble(view: NodeView, bit: int) -> str:
    """What speaks against such a device."""
    taint = next((t for t in view.inventory.places[bit].device.taints if t.effect == "None"), None)
    if taint is not None:
        return f"taint {taint.key}"
    state = view.fabric.gpus[view.gpu_bits.index(bit)] if view.fabric is not None and bit in view.gpu_bits else None
    if state is not None and not state.healthy:
        return state.note or "unhealthy"
    return "memory in use that no claim holds"


def _preference(choice: Choice) -> Part | None:
    """Rank of the alternatives taken: the first of a list is worth 1, the last nothing."""
    ranks = [
        (chosen, max(len(request.alternatives) - 1, 1))
        for spec, claim in zip(choice.problem.specs, choice.solution.alternatives, strict=True)
        for request, chosen in zip(spec.requests, claim, strict=True)
        if request.prioritized
    ]
    if not ranks:
        return None
    value = sum(1 - rank / last for rank, last in ranks) / len(ranks)
    return Part("preference", value, f"alternatives taken: {', '.join(str(rank + 1) for rank, _ in ranks)}")
