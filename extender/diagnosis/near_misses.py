"""Nearest misses: what would make a refused pod fit, the cheapest first."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from extender.allocation.view import Interned, NodeView, Snapshot
from extender.diagnosis.scenario import freed
from extender.diagnosis.selector_stats import TermFinding
from extender.fabric.sets import largest_joined
from extender.model.claim import Claim, DeviceRequest, Result
from extender.model.device import PoolKey
from extender.model.errors import InvalidClaim
from extender.model.quantity import readable
from extender.model.reasons import Code
from extender.verdict.demand import Demand
from extender.verdict.evaluate import Refusal, Rules, evaluate, problem_for
from extender.verdict.grants import Grant

_NODES = 24  # distinct nodes on which giving back is tried
_TRIES = 160  # evaluations in all
_FOUND = 3  # sentences of one kind
_NAMED = 4  # devices or claims named in a sentence
CAN_BE_FREED = frozenset(
    {
        Code.IN_USE,
        Code.HELD,
        Code.COUNTERS,
        Code.CAPACITY,
        Code.CONSTRAINT,
        Code.COMBINATION,
        Code.TOPOLOGY,
        Code.BANDWIDTH,
    }
)


@dataclass(frozen=True, slots=True)
class Miss:
    """One change that would help. `cost` orders them: devices that others would have to give up."""

    cost: int
    sentence: str


class Alike(NamedTuple):
    """Nodes in one state that are refused for one reason, in order of their names."""

    refusal: Refusal
    nodes: int
    first: list[str]  # a few of them
    view: NodeView  # of the first


Holders = Mapping[PoolKey, list[Claim]]


def claims_on(views: Iterable[NodeView], snapshot: Snapshot) -> Holders:
    """The claims on the devices of some nodes, by pool."""
    keys = {pool.key for view in views for pool in view.inventory.pools}
    return {key: list(snapshot.claims_on(key)) for key in keys}


def holders_on(view: NodeView, holders: Holders) -> list[Claim]:
    """The claims on a node's devices, the smallest first."""
    found = {claim.key: claim for pool in view.inventory.pools for claim in holders.get(pool.key, ())}
    return sorted(found.values(), key=lambda c: (len(c.allocation.results) if c.allocation else 0, c.key))


def by_giving_back(
    views: Iterable[NodeView], demand: Demand, rules: Rules, holders: Holders, *, blind: bool
) -> list[Miss]:
    """Claims whose devices would make a node fit. A node that does not fit without all of them needs no further look,
    nor does one that looks the same to a `blind` demand."""
    found: list[Miss] = []
    hopeless: set[tuple[object, ...]] = set()
    tries = 0
    for view in views:
        claims, given = holders_on(view, holders), list[Claim]()
        empty = freed(view, _results(claims))
        key = (demand.on(view.node).key, empty.state.appearance, empty.busy)
        if key in hopeless:
            continue
        tries += 1
        if isinstance(evaluate(empty, demand.on(view.node), rules), Refusal):
            hopeless |= {key} if blind and empty.state.appearance is not None else set()
            continue
        for claim in claims:
            given.append(claim)
            tries += 1
            miss = _try(view, claim, given, demand, rules)
            if miss is not None:
                found.append(miss)
                break
            if tries >= _TRIES:
                break
        if tries >= _TRIES:
            break
    return sorted(found, key=lambda miss: (miss.cost, miss.sentence))[:_FOUND]


def _try(view: NodeView, claim: Claim, given: list[Claim], demand: Demand, rules: Rules) -> Miss | None:
    """Would one claim less do, or all those so far?"""
    for claims in ([claim], given) if len(given) > 1 else ([claim],):
        results = _results(claims)
        if isinstance(evaluate(freed(view, results), demand.on(view.node), rules), Grant):
            devices = sorted({r.device.device for r in results})
            held = "; ".join(held_by(c) for c in claims[:_NAMED]) + (" and more" if len(claims) > _NAMED else "")
            return Miss(len(devices), f"fits on {view.node.name} if {held}, were free")
    return None


def _results(claims: Iterable[Claim]) -> list[Result]:
    return [result for claim in claims if claim.allocation is not None for result in claim.allocation.results]


def held_by(claim: Claim) -> str:
    """'gpu-0, gpu-1, held by training/llm-0'."""
    devices = [r.device.device for r in claim.allocation.results] if claim.allocation is not None else []
    shown = ", ".join(devices[:_NAMED]) + (f" and {len(devices) - _NAMED} more" if len(devices) > _NAMED else "")
    return f"{shown}, held by {claim.key}"


def worth_trying(refused: Iterable[Alike]) -> list[NodeView]:
    """One node of each state that is refused for what others hold; those with most free devices first."""
    by_busy: dict[int, dict[Interned, NodeView]] = {}
    for alike in refused:
        if alike.refusal.reason.code in CAN_BE_FREED:
            by_busy.setdefault(alike.view.busy.bit_count(), {}).setdefault(alike.view.state.signature, alike.view)
    found: list[NodeView] = []
    for busy in sorted(by_busy):
        if len(found) < _NODES:
            found += sorted(by_busy[busy].values(), key=lambda view: view.node.name)
    return found[:_NODES]


def by_count(demand: Demand, refused: Iterable[Alike], rules: Rules, *, blind: bool) -> list[Miss]:
    """How many free devices the best nodes have, where a request counts more. A `blind` demand matches the same devices
    on nodes that look alike."""
    wanted: dict[str, DeviceRequest] = {}  # those of extended resources differ by node, so each node adds its own
    free: defaultdict[str, Counter[int]] = defaultdict(Counter)
    linked: defaultdict[str, Counter[int]] = defaultdict(Counter)
    known: dict[tuple[object, Interned | None], list[tuple[DeviceRequest, int]]] = {}
    for alike in refused:
        local = demand.on(alike.view.node)
        key = (local.key, alike.view.state.appearance)
        masks = known.get(key) if blind else None
        if masks is None:
            masks = known[key] = _matching(alike.view, local, rules)
        for option, mask in masks:
            wanted.setdefault(option.name, option)
            left = mask & ~alike.view.busy
            free[option.name][left.bit_count()] += alike.nodes
            if demand.topology == "required":
                linked[option.name][_largest_joined(alike.view, left, option.count)] += alike.nodes
    short = (_short(option, free[option.name], linked[option.name], demand) for option in wanted.values())
    return [miss for miss in short if miss is not None]


def _matching(view: NodeView, demand: Demand, rules: Rules) -> list[tuple[DeviceRequest, int]]:
    problem, found = problem_for(view, demand, rules), list[tuple[DeviceRequest, int]]()
    for name, spec in zip(problem.names, problem.specs, strict=True):
        for request in spec.requests:
            for option in request.alternatives:
                if option.mode != "ExactCount":
                    continue
                try:
                    found.append((option, problem.select(name, option).match))
                except InvalidClaim:
                    return found
    return found


def _largest_joined(view: NodeView, free: int, wanted: int) -> int:
    if view.fabric is None:
        return 0
    return largest_joined(view.fabric.graph, view.positions(free), wanted)


def _short(option: DeviceRequest, free: Counter[int], linked: Counter[int], demand: Demand) -> Miss | None:
    most = max(free, default=0)
    if most and most < option.count:
        wanted = f"{option.count} free devices for request {option.name}"
        return Miss(option.count - most, f"no node has {wanted}; {_nodes(free[most])} {most}")
    if demand.topology == "required" and option.count > 1:
        joined = max(linked, default=0)
        if joined < option.count:
            wanted = f"{option.count} GPUs on one NVLink set free"
            return Miss(option.count - joined, f"no node has {wanted}; {_nodes(linked[joined])} {joined}")
    return None


def _nodes(count: int) -> str:
    return f"{count} node has" if count == 1 else f"{count} nodes have"


def by_capacity(demand: Demand, views: Iterable[NodeView]) -> list[Miss]:
    """Requests for more of a capacity than any device has; `views` are nodes whose devices look different."""
    if not any(option.capacity for spec in demand.specs for r in spec.requests for option in r.alternatives):
        return []
    most: Counter[str] = Counter()
    for kind in {id(place.device.capacity): place for view in views for place in view.inventory.places}.values():
        for name, capacity in kind.device.capacity.items():
            short = name.rpartition("/")[2]
            most[short] = max(most[short], capacity.value.nanos)
    found = []
    for spec in demand.specs:
        for option in (o for r in spec.requests for o in r.alternatives):
            for name, amount in (option.capacity or {}).items():
                have = most[name.rpartition("/")[2]]
                if have and amount.nanos > have:
                    asked = f"request {option.name} asks for {readable(amount.nanos)} of {name}"
                    found.append(Miss(0, f"{asked}; the largest device has {readable(have)}"))
    return found


def by_terms(findings: Iterable[TermFinding]) -> list[Miss]:
    """Selector terms that no device passes."""
    return [Miss(0, finding.sentence()) for finding in findings if finding.asked and not finding.passed]
