"""The devices that an unfinished plan has taken (GangTrial), and how many more equal units fit on a node (NodeRooms).

GangTrial has the devices that the plan takes besides those that the snapshot shows in use. NodeRooms places units one
after the other. First it computes a bound from the devices that match each request, without an evaluation: the bound is
exact for one request for whole devices without a topology constraint. The planner evaluates only the nodes of domains
that these bounds do not rule out.

GangMemory keeps the evaluations by the equivalence class of the node. A call whose time ends leaves them there: the
next call repeats the plan from the start, finds them, and so gets further. The memory changes how long a plan takes,
never its devices; only scores may compare with an older fleet. If one namespace could replace the evaluations of
another between two calls, the plan of the other would never end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import chain, count
from operator import itemgetter
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from extender.allocation import NodeInfo, Problem, Snapshot
from extender.allocation.what_if import with_devices_allocated
from extender.api.claim_specs import DeviceRequest
from extender.api.label_domains import natural
from extender.api.reasons import Code
from extender.api.resource_claims import Result
from extender.api.resource_slices import Device, DeviceId, PoolKey
from extender.base.berth_errors import InvalidClaim
from extender.base.bits import members, union
from extender.base.deadline import DeadlineExceeded
from extender.base.fair_lru import FairLRU
from extender.gangs.gang_problem import Admissible, EqualUnits, UnitPlacement
from extender.gangs.member_limits import NodeLimit
from extender.scheduling import (
    EvaluationContext,
    FilterStatus,
    NodeRanking,
    Placement,
    PodRequirements,
    RankingCache,
    Unschedulable,
    evaluate,
    may_reject_sets,
)

MAX_PREFERENCES = 16  # different ones of a gang's equal units that count: each is compared with all nodes
UNLIMITED_ROOM = 1 << 30  # units that take no device


# -- what a plan has taken ---------------------------------------------------------------------------------------

Taken = tuple[Hashable, ...]
"""The devices of a node that a plan has taken, sorted. Two nodes of one equivalence class with the same devices taken
have equal values."""

_Amounts = tuple[tuple[str, int], ...]


class _Change(NamedTuple):
    """The pools that one placement changed, with the results before it."""

    node: str
    limited: list[tuple[Hashable, str]]  # counter and domain of each limit
    before: dict[PoolKey, tuple[Result, ...]]
    taken: list[Hashable]  # by the placement, see GangTrial.key


class GangTrial:
    """Placements of an unfinished plan. The last one can be undone.

    A pool that spans nodes is tracked once for all of them.
    """

    def __init__(self, *, in_turn: bool = True) -> None:
        """`in_turn`: the limits must hold after each placement, and not only at the end."""
        self._in_turn = in_turn
        self._results: dict[PoolKey, tuple[Result, ...]] = {}
        self._placements: Counter[str] = Counter()  # by node
        self._limited: Counter[tuple[Hashable, str]] = Counter()  # placements by counter and domain of the limits
        self._known: dict[str, tuple[list[tuple[Result, ...]], NodeInfo]] = {}
        self._changes: list[_Change] = []
        self._devices: dict[DeviceId, Device] = {}  # of all placements so far
        self._times: Counter[Hashable] = Counter()  # device or limit to the number of placements that use it
        # By device or limit and number of placements that use it, a bit of `key`.
        self._numbers: dict[tuple[Hashable, int], int] = {}
        self._key = 0

    @property
    def nodes(self) -> set[str]:
        """The nodes with a placement of this plan."""
        return {name for name, number in self._placements.items() if number}

    def add(self, node_info: NodeInfo, placement: Placement, limits: tuple[NodeLimit, ...] = ()) -> None:
        """Take the devices of a placement on a node. `limits` are the limits of the member."""
        name, devices = node_info.node.name, node_info.inventory.devices
        domains = [(limit.counted, limit.domain(name)) for limit in limits]
        limited = [(counter, domain) for counter, domain in domains if domain is not None]
        change = _Change(name, limited, {}, list(limited))
        picks = chain.from_iterable(placement.solution.picks)
        for pick, result in zip(picks, chain.from_iterable(placement.results(node_info)), strict=True):
            if not result.admin_access:
                key = PoolKey(result.device.driver, result.device.pool)
                before = self._results.get(key, ())
                change.before.setdefault(key, before)
                self._results[key] = (*before, result)
                self._devices[result.device] = devices[pick.bit].device
                change.taken.append((result.device, _amounts(result)))
        self._placements[name] += 1
        for entry in limited:
            self._limited[entry] += 1
        for thing in change.taken:
            self._times[thing] += 1
            self._key |= 1 << self._number(thing)
        self._changes.append(change)

    def undo(self) -> None:
        """Give back the devices of the last placement."""
        change = self._changes.pop()
        self._results.update(change.before)
        self._placements[change.node] -= 1
        for entry in change.limited:
            self._limited[entry] -= 1
        for thing in change.taken:
            self._key &= ~(1 << self._number(thing))
            self._times[thing] -= 1

    def __len__(self) -> int:
        return len(self._changes)

    def undo_to(self, length: int) -> None:
        """Give back the devices of all placements but the first few."""
        while len(self._changes) > length:
            self.undo()

    def left(self, name: str, limit: NodeLimit) -> int:
        """How many more members with a limit may be placed on a node."""
        return limit.left(name, self._limited, in_turn=self._in_turn)

    def holds(self, limit: NodeLimit) -> bool:
        """Whether a limit holds if this is the whole plan."""
        return limit.holds(self._limited)

    def is_fresh(self, node_info: NodeInfo) -> bool:
        """Whether the plan takes no device from the pools that the node can use."""
        return not any(self._of(node_info))

    def after(self, node_info: NodeInfo) -> NodeInfo:
        """The node with the devices of the plan in use."""
        own = self._of(node_info)
        if not any(own):
            return node_info
        known = self._known.get(node_info.node.name)
        if known is None or known[0] != own:
            results = [result for pool in own for result in pool]
            known = own, with_devices_allocated(node_info, results, self._devices)
            self._known[node_info.node.name] = known
        return known[1]

    def taken(self, node_info: NodeInfo) -> Taken:
        """The devices that the plan has taken from the node's pools."""
        # A device that this node cannot see has a key of its own: such nodes share no evaluation.
        entries = [
            (-1, result.device, _amounts(result)) if bit is None else (bit, (), _amounts(result))
            for result, bit in self._bits(node_info)
        ]
        return tuple(sorted(entries))

    def taken_bits(self, node_info: NodeInfo) -> int:
        """The devices of the node that the plan has taken, as a bit mask."""
        return sum(1 << bit for bit in {bit for _, bit in self._bits(node_info)} if bit is not None)

    @property
    def key(self) -> int:
        """A bit mask of all that the plan has taken. Plans with equal devices and limits have equal keys, in any order.

        A search reads the key after each step. So `add` and `undo` update it.
        """
        return self._key

    def _number(self, thing: Hashable) -> int:
        """The bit in `key` of the newest placement that uses a device or a limit. Placements can share a device."""
        return self._numbers.setdefault((thing, self._times[thing]), len(self._numbers))

    def _of(self, node_info: NodeInfo) -> list[tuple[Result, ...]]:
        return [self._results.get(pool.key, ()) for pool in node_info.inventory.pools]

    def _bits(self, node_info: NodeInfo) -> list[tuple[Result, int | None]]:
        """What the plan has taken from the node's pools, each with its bit; None if the node cannot see the device."""
        index = node_info.inventory.index
        return [(result, index.get(result.device)) for pool in self._of(node_info) for result in pool]


def _amounts(result: Result) -> _Amounts:
    return tuple(sorted(result.amounts.items())) if result.consumed else ()


# -- evaluations between calls -----------------------------------------------------------------------------------

# Estimated bytes, as in node_ranking.py.
MAX_BYTES = 16 << 20  # about 10,000 evaluations
_ENTRY_BYTES, _PLACEMENT_BYTES, _PICK_BYTES = 400, 480, 112


class GangMemory:
    """A FairLRU limited by estimated bytes. Entries of a ranking that no longer exists are never found again."""

    def __init__(self, limit_bytes: int = MAX_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._entries: FairLRU[tuple[str, Hashable], tuple[Any, int]] = FairLRU(
            limit_bytes, itemgetter(1)
        )  # by namespace and key
        self._numbers: WeakKeyDictionary[NodeRanking, int] = WeakKeyDictionary()
        self._next = count()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def estimated_bytes(self) -> int:
        """The estimated memory of all entries, in bytes."""
        return self._entries.size

    def number(self, ranking: NodeRanking) -> int:
        """The number of a ranking, for keys. No number is used again."""
        found = self._numbers.get(ranking)
        if found is None:
            found = self._numbers[ranking] = next(self._next)
        return found

    def get(self, namespace: str, key: Hashable) -> Any:
        found = self._entries.get((namespace, key))
        return found[0] if found is not None else None

    def put(self, namespace: str, key: Hashable, value: object, placements: int = 0, picks: int = 0) -> None:
        """Keep a value that has this number of placements and picked devices."""
        size = _ENTRY_BYTES + placements * _PLACEMENT_BYTES + picks * _PICK_BYTES
        if size <= self._limit_bytes:
            self._entries.put(namespace, (namespace, key), (value, size))


# -- bounds ------------------------------------------------------------------------------------------------------


def most_units(node_info: NodeInfo, requirements: PodRequirements, context: EvaluationContext) -> int:
    """An upper bound of the pods with these requirements that fit on a node, from the devices that match each request.

    `requirements` are those on this node. Raises DeadlineExceeded.
    """
    problem = context.problem(node_info, requirements)
    found, everything, least = UNLIMITED_ROOM, 0, 0
    try:
        for name, spec in zip(problem.names, problem.specs, strict=True):
            for request in spec.requests:
                options = [_exclusive(problem, name, option) for option in request.alternatives]
                if any(option is None for option in options):
                    continue  # a shared device, or admin access, which takes nothing
                known = [option for option in options if option is not None]
                # Units may take different alternatives, so all devices of the request count for the smallest of them.
                free, count = union([free for free, _ in known]), min(count for _, count in known)
                found = min(found, free.bit_count() // max(count, 1))
                everything, least = everything | free, least + count
    except InvalidClaim:
        return 0
    return min(found, everything.bit_count() // least) if least else found


def _exclusive(problem: Problem, claim: str, request: DeviceRequest) -> tuple[int, int] | None:
    """(mask of the free devices for a request, how many it takes); None if devices can be shared."""
    match = problem.select(claim, request).match
    devices, others = problem.inventory.devices, match & ~problem.inventory.simple  # simple ones cannot be shared
    if request.admin_access or any(devices[bit].device.allow_multiple for bit in members(others)):
        return None
    count = request.count if request.mode == "ExactCount" else match.bit_count()
    return match & ~problem.taken, count


# -- the room of all nodes -----------------------------------------------------------------------------------------


Ban = tuple[str, str, int]
"""Claim name, request name, and a device bit that the request must not get; -1 for every device."""

_NO_BANS = frozenset[Ban]()


class _Bound(NamedTuple):
    """The most units that a node has room for while the plan takes nothing there."""

    most: int
    each: int = 0  # devices of one unit, if `most` is exact
    free: int = 0  # mask of the devices that can serve it, if `most` is exact
    simple: int = -1  # number of the attribute signature, if only that and the free devices decide the status


class _Run(NamedTuple):
    """Units that fit on a node one after the other. `ended`: no more fit after them."""

    placements: tuple[UnitPlacement, ...] = ()
    ended: bool = False


class NodeRooms:
    """The room for equal units on the nodes of a snapshot."""

    def __init__(
        self,
        units: EqualUnits,
        snapshot: Snapshot,
        context: EvaluationContext,
        rankings: RankingCache,
        memory: GangMemory,
    ) -> None:
        """Raises DeadlineExceeded."""
        context.deadline.check_time()
        self.units = units.units
        self.members_per_unit = len(units.steps)
        self.size = units.size
        self.pinned = units.admissible is None
        self.unsure = False  # whether the search on some node ended at its step limit
        self._steps = units.steps
        self._node_infos = snapshot.node_infos
        self._pins = {
            name: units.allowed_on(self._node_infos[name].node) for name in units.pinned if name in self._node_infos
        }
        self._limits = list(units.limits)
        if self.pinned:
            self._limits[0] += (_pin_limit(self._pins),)
        self._limited = Counter(limit for limits in self._limits for limit in limits)
        # Whether a unit on one node can change the room of other nodes: a limit is for a domain of several nodes.
        self.spans_domains = any(map(_spans_domains, self._limited))
        self._snapshot = snapshot
        self._context = context
        self._memory = memory
        needed = [member.requirements for member in units.units[0].members]
        self._namespace = needed[0].namespace
        self._rankings = [rankings.get_or_create(requirements) for requirements in needed]
        for ranking in self._rankings:
            if not ranking.update(snapshot, context):
                raise DeadlineExceeded
        # Units of equal members can share different claims: the key of a step names those that it lacks.
        self._number = tuple(
            (memory.number(ranking), step.key[len(requirements.key) :])
            for ranking, step, requirements in zip(self._rankings, units.steps, needed, strict=True)
        )
        self._by_state = self._rankings[0].by_state
        if self._by_state and len(self._rankings) == 1:  # several members' requests can have one name
            self._context = context.sharing_selections()
        self.most: dict[str, int] = {}  # the most units by node; nodes without room are left out
        self.score: dict[str, float] = {}  # of the first member of a unit, by node
        self._bounds: dict[str, _Bound] = {}  # of the same nodes, without regard to limits
        self.each = 0  # devices of one unit; 0 if `most` is not exact on every node
        self._note_bounds(units.admissible)

    @cached_property
    def has_preferences(self) -> bool:
        """Whether a member may prefer some nodes; nearly always it prefers none."""
        return bool(self._snapshot.soft_tainted) or any(
            one.prefers.terms for unit in self.units for one in unit.members
        )

    @cached_property
    def preference(self) -> dict[str, int]:
        """By node with room, the points for which the members of all units prefer it; empty if they prefer none.

        Raises DeadlineExceeded.
        """
        if not self.has_preferences:
            return {}
        node_infos, found = self._node_infos, dict.fromkeys(self.most, 0)
        members = Counter(member.prefers for unit in self.units for member in unit.members)
        nodes = [node_infos[name].node for name in self.most]
        for one, number in members.most_common(MAX_PREFERENCES):
            for node in nodes:
                self._context.deadline.check_time()
                found[node.name] += number * one.points(node)
        return found if len(set(found.values())) > 1 else {}

    @property
    def free(self) -> dict[str, int]:
        """By node with room, the mask of the devices that can serve a unit, if `each` is not 0."""
        return {name: bound.free for name, bound in self._bounds.items()}

    @property
    def variants(self) -> int:
        """1, or the length of the longest list of alternatives. Variant i leaves out the first i of each list."""
        requests = (request for step in self._steps for spec in step.specs for request in spec.requests)
        return max((len(request.alternatives) for request in requests if request.prioritized), default=1)

    def _equivalence_class(self, node_info: NodeInfo) -> Hashable:
        """Nodes of one equivalence class have equal room while the plan takes nothing there, except for the limits."""
        if len(self._rankings) == 1:
            return self._rankings[0].equivalence_class(node_info)
        return tuple(ranking.equivalence_class(node_info) for ranking in self._rankings)

    def equivalence_key(self, name: str) -> Hashable:
        """Nodes with equal keys have equal room while the plan places nothing there. Raises DeadlineExceeded."""
        self._context.deadline.check_time()
        return self._equivalence_class(self._node_infos[name]), tuple(limit.key(name) for limit in self._limited)

    # -- bounds ----------------------------------------------------------------------------------------------

    def _schedulable(self, admissible: Admissible | None) -> Iterator[tuple[Sequence[str], Placement]]:
        """The nodes that the units may use, with a placement of the first member of a unit. The nodes of one entry
        are in one equivalence class."""
        ranking = self._rankings[0]
        if admissible is None:
            for name in self._pins:
                status = ranking.status(self._node_infos[name])
                if isinstance(status, Placement):
                    yield [name], status
            return
        for names, placement in ranking.schedulable():
            own = admissible.among(names, self._node_infos)
            # Nodes of one equivalence class of the first ranking can be in different ones of another.
            for group in [own] if len(self._rankings) == 1 else [[name] for name in own]:
                if group:
                    yield group, placement

    def _note_bounds(self, admissible: Admissible | None) -> None:
        each = set[int]()
        for names, placement in self._schedulable(admissible):
            bound = self._bound(self._node_infos[names[0]], placement)
            if bound.most:
                self.most.update(dict.fromkeys(names, bound.most))
                self.score.update(dict.fromkeys(names, placement.score))
                self._bounds.update(dict.fromkeys(names, bound))
                each.add(bound.each)
        self.each = each.pop() if len(each) == 1 else 0
        if self._limited:
            self.most = {name: least for name, most in self.most.items() if (least := min(most, self._at_most(name)))}

    def _bound(self, node_info: NodeInfo, placement: Placement) -> _Bound:
        """The bound on a node, where the first member of a unit has this placement while the plan takes nothing."""
        if placement.each and len(self._steps) == 1 and not may_reject_sets(node_info, self._steps[0]):
            most = placement.matching.bit_count() // placement.each
            return _Bound(most, placement.each, placement.matching, self._simple(node_info))
        key = (self._number, "bound", self._equivalence_class(node_info))
        found: _Bound | None = self._memory.get(self._namespace, key)
        if found is None:
            steps = (step.for_node(node_info.node) for step in self._steps)
            most = min(most_units(node_info, step, self._context) for step in steps)
            found = _Bound(most, simple=self._simple(node_info))
            self._memory.put(self._namespace, key, found)
            self._context.deadline.progressed = True
        return found

    def _simple(self, node_info: NodeInfo) -> int:
        attribute_signature, inventory = node_info.state.attribute_signature, node_info.inventory
        if attribute_signature is None or not self._by_state or len(self._steps) > 1:
            return -1
        return attribute_signature.number if inventory.simple == (1 << len(inventory.devices)) - 1 else -1

    # -- room ------------------------------------------------------------------------------------------------

    def rooms(self, trial: GangTrial, names: Iterable[str], wanted: int, variant: int = 0) -> dict[str, int]:
        """The units that each node has room for besides those of the trial, at most `wanted`; nodes without room are
        left out. Raises DeadlineExceeded.
        """
        most = self.most
        if self.each and not len(trial):
            return {name: min(most[name], wanted) for name in names if name in most}
        if self.each and not self._limited:  # most nodes are as before
            infos = self._node_infos
            known = {name: most[name] if trial.is_fresh(infos[name]) else -1 for name in names if name in most}
        else:
            known = {name: -1 for name in names if name in most}
        return {
            name: room
            for name, room_if_fresh in known.items()
            if (room := min(room_if_fresh, wanted) if room_if_fresh >= 0 else self._room(trial, name, wanted, variant))
        }

    def _room(self, trial: GangTrial, name: str, wanted: int, variant: int) -> int:
        self._context.deadline.check_time()
        most = min(self.most[name], self.left(trial, name), wanted)
        node_info, bound = self._node_infos[name], self._bounds[name]
        if bound.each:
            return min((bound.free & ~trial.taken_bits(node_info)).bit_count() // bound.each, most)
        if trial.is_fresh(node_info):
            _, run = self._known_run(node_info, variant)
            if run.ended or len(run.placements) >= most:
                return min(len(run.placements), most)
        before = len(trial)
        found = len(self.place(trial, name, most, variant))
        trial.undo_to(before)
        return found

    def left(self, trial: GangTrial, name: str) -> int:
        """The units for which the limits leave room on a node besides those of the trial."""
        if not self._limited:
            return UNLIMITED_ROOM
        return min(trial.left(name, limit) // members for limit, members in self._limited.items())

    def _at_most(self, name: str) -> int:
        """The units that the limits allow on a node in any plan."""
        return min(limit.left(name, in_turn=False) // members for limit, members in self._limited.items())

    def limited(self, limit: NodeLimit) -> NodeRooms:
        """The same rooms with one more limit for every member."""
        found = copy(self)
        found.add_limit(limit)
        return found

    def add_limit(self, limit: NodeLimit) -> None:
        """One more limit for every member, before any is placed."""
        self._limits = [(*limits, limit) for limits in self._limits]
        self._limited = self._limited + Counter({limit: self.members_per_unit})
        self.spans_domains |= _spans_domains(limit)
        self.most = {name: least for name, most in self.most.items() if (least := min(most, self._at_most(name)))}

    def most_in(self, names: Iterable[str]) -> int:
        """The units that these nodes have room for at most, with the limits of the domains that they are in."""
        found = UNLIMITED_ROOM
        nodes = [name for name in names if name in self.most]
        for limit, in_unit in self._limited.items():
            room: dict[str, int] = {}
            for name in nodes:
                domain = limit.domain(name) or name
                allowed = limit.left(name, in_turn=False) // in_unit
                room[domain] = min(room.get(domain, 0) + self.most[name], allowed)
            found = min(found, sum(room.values()))
        return found

    @property
    def grows(self) -> bool:
        """Whether each unit on one node can make room for another one on other nodes."""
        return any(limit.over for limit in self._limited)

    def limits_hold(self, trial: GangTrial) -> bool:
        """Whether the limits hold if this is the whole plan."""
        return all(trial.holds(limit) for limit in self._limited)

    def apart(self, trial: GangTrial, known: Mapping[str, int]) -> Mapping[str, int]:
        """The rooms by node, with one node of each domain that has room for one unit only."""
        points = self.preference
        for limit in self._limited:
            if limit.most != 1 or limit.domain_of is None or limit.over:
                continue
            best: dict[str, str] = {}
            for name in sorted(known, key=lambda name: (-points.get(name, 0), -known[name], natural(name))):
                best.setdefault(limit.domain(name) or name, name)
            known = {name: min(known[name], trial.left(name, limit)) for name in best.values()}
        return known

    def add(self, trial: GangTrial, node_info: NodeInfo, step: int, placement: Placement) -> None:
        """Add the placement of member number `step` of a unit to the trial."""
        trial.add(node_info, placement, self._limits[step])

    def place(self, trial: GangTrial, name: str, wanted: int, variant: int = 0) -> tuple[UnitPlacement, ...]:
        """Place up to `wanted` units on a node and add them to the trial. Raises DeadlineExceeded."""
        node_info, wanted = self._node_infos[name], min(wanted, self.left(trial, name))
        if not trial.is_fresh(node_info):
            return self._place_next(trial, node_info, wanted, variant)
        key, run = self._known_run(node_info, variant)
        found = run.placements[:wanted]
        for unit in found:
            for step, placement in enumerate(unit):
                self.add(trial, node_info, step, placement)
        if run.ended or len(found) == wanted:
            return found
        found += self._place_next(trial, node_info, wanted - len(found), variant)
        self._memory.put(self._namespace, key, _Run(found, len(found) < wanted), *_weight(found))
        self._context.deadline.progressed = True
        return found

    def _known_run(self, node_info: NodeInfo, variant: int) -> tuple[Hashable, _Run]:
        """The units that were placed on a node of this equivalence class before, while the plan had nothing there.

        Returns their key in the memory, too.
        """
        key = (self._number, "run", variant, self._equivalence_class(node_info))
        return key, self._memory.get(self._namespace, key) or _Run()

    def _place_next(
        self, trial: GangTrial, node_info: NodeInfo, wanted: int, variant: int
    ) -> tuple[UnitPlacement, ...]:
        self._context.deadline.check_time()
        found: list[UnitPlacement] = []
        while len(found) < wanted:
            unit = self._place_unit(trial, node_info, variant)
            if unit is None:
                break
            found.append(unit)
        return tuple(found)

    def _place_unit(self, trial: GangTrial, node_info: NodeInfo, variant: int) -> UnitPlacement | None:
        found = list[Placement]()
        for step in range(len(self._steps)):
            placement = self._placement(trial, node_info, step, self._bans(node_info, step, variant))
            if placement is None:
                trial.undo_to(len(trial) - step)
                return None
            self.add(trial, node_info, step, placement)
            found.append(placement)
        return tuple(found)

    def _bans(self, node_info: NodeInfo, step: int, variant: int) -> frozenset[Ban]:
        if not variant:
            return _NO_BANS
        requirements = self.requirements(node_info, step)
        return frozenset(
            (claim, option.name, -1)
            for claim, spec in zip(requirements.claim_names, requirements.specs, strict=True)
            for request in spec.requests
            if request.prioritized
            for option in request.alternatives[: min(variant, len(request.alternatives) - 1)]
        )

    # -- evaluation ------------------------------------------------------------------------------------------

    def requirements(self, node_info: NodeInfo, step: int) -> PodRequirements:
        """The needs of member number `step` of a unit on a node."""
        return self._steps[step].for_node(node_info.node)

    def evaluate(self, trial: GangTrial, node_info: NodeInfo, step: int, bans: frozenset[Ban]) -> Placement | None:
        """The placement of member number `step` of a unit besides the trial, or None. Raises DeadlineExceeded."""
        self._context.deadline.check_time()
        return self._placement(trial, node_info, step, bans)

    def _placement(self, trial: GangTrial, node_info: NodeInfo, step: int, bans: frozenset[Ban]) -> Placement | None:
        status = self._known_status(trial, node_info, step, bans)
        if isinstance(status, Unschedulable):
            self.unsure |= status.reason.code is Code.OUT_OF_BUDGET
            return None
        return status

    def _known_status(self, trial: GangTrial, node_info: NodeInfo, step: int, bans: frozenset[Ban]) -> FilterStatus:
        if not step and not bans and trial.is_fresh(node_info):
            known = self._rankings[0].status(node_info)
            if known is not None:
                return known
        simple = self._bounds[node_info.node.name].simple
        if simple >= 0:
            # Nodes of different states become equal once the plan has taken devices there.
            busy = node_info.busy | trial.taken_bits(node_info)
            key: tuple[object, ...] = (self._number, "simple", simple, busy, node_info.drift & ~busy, bans)
        else:
            key = (self._number, "status", step, self._equivalence_class(node_info), trial.taken(node_info), bans)
        status: FilterStatus | None = self._memory.get(self._namespace, key)
        if status is None:
            requirements = self.requirements(node_info, step)
            after, forbidden = trial.after(node_info), _masks(bans) if bans else {}
            status = evaluate(after, requirements, self._context, forbidden=forbidden, scored=False)
            self._memory.put(self._namespace, key, status, 1, len(requirements.specs))
            self._context.deadline.progressed = True
        return status


def _masks(bans: frozenset[Ban]) -> Mapping[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for claim, request, bit in bans:
        found[claim, request] = found.get((claim, request), 0) | (1 << bit if bit >= 0 else -1)
    return found


def _spans_domains(limit: NodeLimit) -> bool:
    return limit.domain_of is not None or bool(limit.over)


def _pin_limit(pins: Mapping[str, int]) -> NodeLimit:
    """Leaves room on each node for the units that are pinned there."""
    most = max(pins.values(), default=0)
    return NodeLimit(most, {name: most - number for name, number in pins.items()})


def _weight(placements: tuple[UnitPlacement, ...]) -> tuple[int, int]:
    """The number of placements and of their devices."""
    flat = [placement for unit in placements for placement in unit]
    return len(flat), sum(len(claim) for placement in flat for claim in placement.solution.picks)
