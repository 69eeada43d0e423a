"""What a plan under way keeps: the devices that it has taken (GangTrial), and its evaluations (GangMemory).

GangTrial has the devices on top of those that the snapshot shows in use. GangMemory has the evaluations of nodes by the
equivalence class of the node. A call whose time ends leaves them there: the next call repeats the plan from the start,
finds them, and so gets further. The memory changes how long a plan takes, never its devices; only scores may compare
with an older fleet. If one namespace could replace the evaluations of another between two calls, the plan of the other
would never end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from itertools import chain, count
from operator import itemgetter
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from extender.allocation import NodeInfo
from extender.allocation.what_if import with_devices_allocated
from extender.api.resource_claims import Result
from extender.api.resource_slices import Device, DeviceId, PoolKey
from extender.base.fair_lru import FairLRU
from extender.gangs.member_limits import NodeLimit
from extender.scheduling import NodeRanking, Placement

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
