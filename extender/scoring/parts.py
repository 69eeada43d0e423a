"""The parts of a node's score, each 0 (worst) to 1 (best) with the sentence that explains it."""

from __future__ import annotations

from typing import NamedTuple

from extender.allocation.problem import UNUSED, Problem, Solution
from extender.allocation.view import Fleet, NodeView
from extender.fabric.ring import links_inside
from extender.fabric.sets import bandwidth, best_gbps
from extender.model.bits import members
from extender.model.quantity import NANO
from extender.policy import Policy

_GIB = 1 << 30
_SIZES = (2, 4, 8)  # the jobs a node should stay able to take
_MEMORY = ("memory", "gpu.nvidia.com/memory")


class Part(NamedTuple):
    """One part of the score."""

    name: str
    value: float
    sentence: str


class Choice(NamedTuple):
    """A solution on a node, with what scoring needs of it."""

    view: NodeView
    problem: Problem
    solution: Solution

    def gpu_mask(self) -> int:
        """The chosen whole GPUs, by position in the fabric."""
        mask = self.solution.mask
        return sum(1 << position for position, bit in enumerate(self.view.gpu_bits) if bit >= 0 and mask >> bit & 1)

    def free_gpus(self) -> int:
        """GPUs that nothing holds before this choice, by position in the fabric."""
        view = self.view
        used = view.busy | _in_part_use(view)
        return sum(1 << p for p, bit in enumerate(view.gpu_bits) if bit >= 0 and not used >> bit & 1)


def _in_part_use(view: NodeView) -> int:
    found = 0
    for bit in view.gpu_bits:
        if bit >= 0:
            place = view.inventory.places[bit]
            use = view.usage.pools.get(view.inventory.pools[place.pool].key, UNUSED)
            if place.id.device in use.shares:
                found |= 1 << bit
    return found


def parts(choice: Choice, fleet: Fleet, policy: Policy) -> tuple[Part, ...]:
    """All parts that say something about this choice."""
    found = (
        _link(choice, fleet),
        _headroom(choice, fleet, policy),
        _fragmentation(choice, fleet),
        _packing(choice, policy),
        _health(choice),
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
    return bandwidth(fabric.graph, choice.gpu_mask()) if fabric is not None else 0.0


def _link(choice: Choice, fleet: Fleet) -> Part | None:
    count = choice.gpu_mask().bit_count()
    if count < 2 or choice.view.fabric is None:  # noqa: PLR2004 - one GPU talks to nobody
        return None
    mine = achieved_gbps(choice)
    best = max(fleet.best_ring_gbps.get(count, 0.0), mine)
    share = mine / best if best else 0.0
    source = choice.view.fabric.source.value
    return Part("link", share, f"{count} GPUs move {mine:.0f} GB/s in a ring, the fleet's best {best:.0f} ({source})")


def _headroom(choice: Choice, fleet: Fleet, policy: Policy) -> Part | None:
    """Memory asked for over memory there; without a request, the smallest GPU that exists stands for it."""
    asked = have = 0
    for claim in choice.solution.picks:
        for pick in claim:
            memory = _memory_bytes(choice, pick.bit)
            if memory:
                wanted = _wanted_bytes(pick.consumed or pick.request.capacity or {})
                asked += min(wanted or fleet.least_memory_bytes or memory, memory)
                have += memory
    if not have:
        return None
    fit = asked / have
    value = fit if policy.headroom == "tight" else 1 - fit
    return Part("headroom", value, f"{asked / _GIB:.0f} GiB needed of {have / _GIB:.0f} GiB unclaimed ({policy.headroom})")


def _memory_bytes(choice: Choice, bit: int) -> int:
    """Unclaimed memory of a device: its capacity less what shares consume."""
    place = choice.view.inventory.places[bit]
    use = choice.view.usage.pools.get(choice.view.inventory.pools[place.pool].key, UNUSED)
    shares = use.shares.get(place.id.device, {})
    for name in _MEMORY:
        capacity = place.device.capacity.get(name)
        if capacity is not None:
            return max(capacity.value.nanos - shares.get(name, 0), 0) // NANO
    return 0


def _wanted_bytes(amounts: object) -> int:
    assert hasattr(amounts, "get")
    for name in _MEMORY:
        amount = amounts.get(name)
        if amount is not None:
            return int(amount.nanos // NANO)
    return 0


def _fragmentation(choice: Choice, fleet: Fleet) -> Part | None:
    """What a larger job can no longer have here: sets of more GPUs than were taken, in GB/s of the fleet's best, and
    the share of links that now end at a GPU in use."""
    fabric = choice.view.fabric
    taken = choice.gpu_mask()
    if fabric is None or not taken:
        return None
    graph, before = fabric.graph, choice.free_gpus()
    after = before & ~taken
    larger = [size for size in _SIZES if size > taken.bit_count()]
    lost = sum(size * max(best_gbps(graph, before, size) - best_gbps(graph, after, size), 0.0) for size in larger)
    whole = sum(size * fleet.best_ring_gbps.get(size, 0.0) for size in larger)
    had = links_inside(graph, before)
    cut = had - links_inside(graph, after) - links_inside(graph, taken)
    value = max(0.0, 1 - (lost / whole if whole else 0.0) - (cut / had if had else 0.0))
    return Part("fragmentation", value, f"leaves {after.bit_count()} of {before.bit_count()} free GPUs, {cut} of {had} links cut")


def _packing(choice: Choice, policy: Policy) -> Part | None:
    places = choice.view.inventory.places
    if not places:
        return None
    used = choice.view.busy.bit_count()
    share = used / len(places)
    value = share if policy.packing == "pack" else 1 - share
    return Part("packing", value, f"{used} of {len(places)} devices were in use ({policy.packing})")


def _health(choice: Choice) -> Part | None:
    """Informational taints and what the agent reports."""
    chosen = members(choice.solution.mask)
    if not chosen:
        return None
    troubled = [bit for bit in chosen if trouble(choice.view, bit)]
    value = 1 - len(troubled) / len(chosen)
    if not troubled:
        return Part("health", value, "no device reports trouble")
    name = choice.view.inventory.places[troubled[0]].id.device
    return Part("health", value, f"{len(troubled)} devices report trouble: {name}: {trouble(choice.view, troubled[0])}")


def trouble(view: NodeView, bit: int) -> str:
    """What speaks against a device without forbidding it; '' where nothing does."""
    taint = next((t for t in view.inventory.places[bit].device.taints if t.effect == "None"), None)
    if taint is not None:
        return f"taint {taint.key}"
    if view.fabric is not None and bit in view.gpu_bits:
        state = view.fabric.gpus[view.gpu_bits.index(bit)]
        return "" if state.healthy else state.note or "unhealthy"
    return ""


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
