"""Nearest misses: what would make a refused pod fit, the cheapest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from extender.allocation.view import NodeView, Snapshot
from extender.fabric.sets import largest_joined
from extender.model.claim import Claim, DeviceRequest
from extender.model.device import PoolKey
from extender.model.errors import InvalidClaim
from extender.model.quantity import readable
from extender.model.reasons import Code
from extender.verdict.demand import Demand
from extender.verdict.evaluate import Grant, Refusal, Rules, evaluate, problem_for
from extender.verdict.terms import TermFinding
from extender.verdict.whatif import freed

_NODES = 24  # distinct nodes on which giving back is tried
_TRIES = 160  # evaluations in all
_ALIKE = 50  # nodes sorted by state between two breaths
_CLAIMS = 100  # claims looked at between two breaths
_FOUND = 3  # sentences of one kind
_NAMED = 4  # devices or claims named in a sentence
CAN_BE_FREED = frozenset(
    {Code.IN_USE, Code.HELD, Code.COUNTERS, Code.CAPACITY, Code.CONSTRAINT, Code.COMBINATION, Code.TOPOLOGY, Code.BANDWIDTH}
)


@dataclass(frozen=True, slots=True)
class Miss:
    """One change that would help. `cost` orders them: devices that others would have to give up."""

    cost: int
    sentence: str


Refusals = Mapping[str, Refusal]


Holders = Mapping[PoolKey, list[Claim]]


def claims_by_pool(snapshot: Snapshot) -> Iterator[Holders | None]:
    """Steps that end with the claims on each pool's devices, the smallest first."""
    found: dict[PoolKey, list[Claim]] = {}
    for position, claim in enumerate(snapshot.claims.values()):
        if position % _CLAIMS == 0:
            yield None
        results = claim.allocation.results if claim.allocation is not None else ()
        for pool in {PoolKey(result.device.driver, result.device.pool) for result in results}:
            found.setdefault(pool, []).append(claim)
    yield found


def holders_on(view: NodeView, holders: Holders) -> list[Claim]:
    """The claims on a node's devices, the smallest first."""
    found = {claim.key: claim for pool in view.inventory.pools for claim in holders.get(pool.key, ())}
    return sorted(found.values(), key=lambda c: (len(c.allocation.results) if c.allocation else 0, c.key))


def by_giving_back(
    demand: Demand, refusals: Refusals, snapshot: Snapshot, rules: Rules, holders: Holders
) -> Iterator[list[Miss] | None]:
    """Steps that end with claims whose devices would make a node fit; None stands for a breath."""
    views: list[NodeView] = []
    for step in _worth_trying(refusals, snapshot):
        views = step or views
        yield None
    found: list[Miss] = []
    tries = 0
    for view in views:
        given: list[Claim] = []
        for claim in holders_on(view, holders):
            given.append(claim)
            tries += 1
            yield None
            miss = _try(view, claim, given, demand, rules)
            if miss is not None:
                found.append(miss)
                break
            if tries >= _TRIES:
                break
        if tries >= _TRIES:
            break
    yield sorted(found, key=lambda miss: (miss.cost, miss.sentence))[:_FOUND]


def _try(view: NodeView, claim: Claim, given: list[Claim], demand: Demand, rules: Rules) -> Miss | None:
    """Would one claim less do, or all those so far?"""
    for claims in ([claim], given) if len(given) > 1 else ([claim],):
        results = [r for c in claims if c.allocation is not None for r in c.allocation.results]
        if isinstance(evaluate(freed(view, results), demand.on(view.node), rules), Grant):
            devices = sorted({r.device.device for r in results})
            held = "; ".join(held_by(c) for c in claims[:_NAMED])
            return Miss(len(devices), f"fits on {view.node.name} if {held}{' and more' if len(claims) > _NAMED else ''}, were free")
    return None


def held_by(claim: Claim) -> str:
    """'gpu-0, gpu-1, held by training/llm-0'."""
    devices = [r.device.device for r in claim.allocation.results] if claim.allocation is not None else []
    shown = ", ".join(devices[:_NAMED]) + (f" and {len(devices) - _NAMED} more" if len(devices) > _NAMED else "")
    return f"{shown}, held by {claim.key}"


def _worth_trying(refusals: Refusals, snapshot: Snapshot) -> Iterator[list[NodeView] | None]:
    """Steps that end with one node of each kind and state that is refused for what others hold; those with most free first."""
    kinds: dict[int, NodeView] = {}
    for position, (name, refusal) in enumerate(refusals.items()):
        if position % _ALIKE == 0:
            yield None
        view = snapshot.views.get(name)
        if view is not None and refusal.reason.code in CAN_BE_FREED and view.signature not in kinds:
            kinds[view.signature] = view
    yield sorted(kinds.values(), key=lambda view: (view.busy.bit_count(), view.node.name))[:_NODES]


def by_count(demand: Demand, refusals: Refusals, snapshot: Snapshot, rules: Rules) -> Iterator[list[Miss] | None]:
    """Steps that end with how many free devices the best nodes have, where a request counts more. Nodes in one state
    that are refused for one reason are looked at once."""
    wanted = [o for spec in demand.specs for r in spec.requests for o in r.alternatives if o.mode == "ExactCount"]
    free: dict[str, Counter[int]] = {option.name: Counter() for option in wanted}
    linked: dict[str, Counter[int]] = {option.name: Counter() for option in wanted}
    alike: dict[tuple[int, object], list[NodeView]] = {}
    for position, (name, refusal) in enumerate(refusals.items()):
        if position % _ALIKE == 0:
            yield None
        view = snapshot.views[name]
        alike.setdefault((view.signature, refusal.reason), []).append(view)
    for views in alike.values():
        yield None
        for option, mask in _matching(views[0], demand, rules):
            left = mask & ~views[0].busy
            free[option.name][left.bit_count()] += len(views)
            if demand.topology == "required":
                linked[option.name][_largest_joined(views[0], left, option.count)] += len(views)
    yield [miss for option in wanted if (miss := _short(option, free[option.name], linked[option.name], demand)) is not None]


def _matching(view: NodeView, demand: Demand, rules: Rules) -> Iterator[tuple[DeviceRequest, int]]:
    local = demand.on(view.node)
    problem = problem_for(view, local, rules)
    for name, spec in zip(problem.names, problem.specs, strict=True):
        for request in spec.requests:
            for option in request.alternatives:
                if option.mode != "ExactCount":
                    continue
                try:
                    yield option, problem.select(name, option).match
                except InvalidClaim:
                    return


def _largest_joined(view: NodeView, free: int, wanted: int) -> int:
    if view.fabric is None:
        return 0
    positions = sum(1 << p for p, bit in enumerate(view.gpu_bits) if bit >= 0 and free >> bit & 1)
    return largest_joined(view.fabric.graph, positions, wanted)


def _short(option: DeviceRequest, free: Counter[int], linked: Counter[int], demand: Demand) -> Miss | None:
    most = max(free, default=0)
    if most and most < option.count:
        return Miss(option.count - most, f"no node has {option.count} free devices for request {option.name}; {_nodes(free[most])} {most}")
    if demand.topology == "required" and option.count > 1:
        joined = max(linked, default=0)
        if joined < option.count:
            return Miss(option.count - joined, f"no node has {option.count} GPUs on one NVLink set free; {_nodes(linked[joined])} {joined}")
    return None


def _nodes(count: int) -> str:
    return f"{count} node has" if count == 1 else f"{count} nodes have"


def by_capacity(demand: Demand, snapshot: Snapshot) -> list[Miss]:
    """Requests for more of a capacity than any device has."""
    if not any(option.capacity for spec in demand.specs for r in spec.requests for option in r.alternatives):
        return []
    most: Counter[str] = Counter()
    for kind in {id(place.device.capacity): place for view in snapshot.views.values() for place in view.inventory.places}.values():
        for name, capacity in kind.device.capacity.items():
            short = name.rpartition("/")[2]
            most[short] = max(most[short], capacity.value.nanos)
    found = []
    for spec in demand.specs:
        for option in (o for r in spec.requests for o in r.alternatives):
            for name, amount in (option.capacity or {}).items():
                have = most[name.rpartition("/")[2]]
                if have and amount.nanos > have:
                    found.append(Miss(0, f"request {option.name} asks for {readable(amount.nanos)} of {name}; the largest device has {readable(have)}"))
    return found


def by_terms(findings: Iterable[TermFinding]) -> list[Miss]:
    """Selector terms that no device passes."""
    return [Miss(0, finding.sentence()) for finding in findings if finding.asked and not finding.passed]
