"""Bind slots: the bind of each gang member keeps an HTTP connection while it waits for the others.

Connections are limited (`web/http_limits.py`), and so are slots. A gang gets the slots of its whole minimum, or none:
two gangs with half of their slots each would wait forever.

Small new gangs do not overtake a large old one. Slots are kept for the oldest waiting gang of each namespace, and for
the namespace that has waited longest for a plan. A gang that kube-scheduler does not retry loses its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType

from cachetools import LRUCache

from extender.extension.gangs.gang_state import FormingGang
from extender.gangs.gang_problem import MOST_TOGETHER
from extender.model import GroupKey

_ABSENT_SECONDS = 15.0  # until a requeued gang loses its place; kube-scheduler retries a pod after 10 s at most
_NONE: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SlotLimits:
    """Limits of the slots of all plans."""

    total: int = MOST_TOGETHER + 48  # 64 below the connections to the verbs: the others serve pods outside of gangs
    # Of the plans of one namespace; also of all plans together, without those of small namespaces.
    namespace: int = MOST_TOGETHER
    small: int = 16  # a namespace with at most this many slots is small: it may use those from `namespace` to `total`


class BindSlots:
    """Decides whether a gang gets its slots. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float], limits: SlotLimits) -> None:
        self._clock = clock
        self._limits = limits
        self._checked = -inf  # when `began_to_give_way` was last called

    def plans_in_the_way(
        self, namespace: str, count: int, plans: Collection[FormingGang], kept: Mapping[str, int] = _NONE
    ) -> list[FormingGang] | None:
        """The plans that must end so that a gang of the namespace gets `count` slots; None if it must wait.

        `kept` are slots for gangs without a plan, by namespace. A plan whose minimum is bound gives way to all. After
        a time, a plan that waits for members gives way to other namespaces.
        """
        now, used, found = self._clock(), Counter({namespace: count}) + Counter(kept), list[FormingGang]()
        for plan in plans:
            used[plan.key.namespace] += plan.slots
        for plan in sorted(plans, key=lambda plan: (plan.gives_way_at, plan.since)):
            is_own, fit_together = plan.key.namespace == namespace, self._fit_together(namespace, used)
            if fit_together and used[namespace] <= self._limits.namespace:
                break
            if plan.gives_way_at <= now and (plan.runs or not is_own) and (is_own or not fit_together):
                found.append(plan)
                used[plan.key.namespace] -= plan.slots
        fits = self._fit_together(namespace, used) and used[namespace] <= self._limits.namespace
        return found if fits else None

    def _fit_together(self, namespace: str, used: Counter[str]) -> bool:
        """Whether these slots, by namespace, are within the limits. For a larger namespace, small ones do not count."""
        limits, total = self._limits, used.total()
        if used[namespace] <= limits.small:
            return total <= limits.total
        small = sum(slots for slots in used.values() if slots <= limits.small)
        return total - min(small, limits.total - limits.namespace) <= limits.namespace

    def began_to_give_way(self, plans: Collection[FormingGang]) -> bool:
        """Whether some plan has begun to give way since the last call of this function."""
        since, self._checked = self._checked, self._clock()
        return any(since < plan.gives_way_at <= self._checked for plan in plans)

    def next_deadline(self, plans: Collection[FormingGang]) -> float:
        """The earliest time at which `began_to_give_way` can be True; infinite if there is none."""
        return min((plan.gives_way_at for plan in plans if plan.gives_way_at > self._checked), default=inf)


@dataclass(slots=True)
class _First:
    """Of the gangs of a namespace that kube-scheduler has asked about, the one that waits longest for slots."""

    key: GroupKey
    slots: int
    complete_since: float
    since: float  # when the namespace began to wait, or when the last of its plans ended
    requeued_at: float = inf  # when slots became free; infinite if kube-scheduler has asked since


class SlotQueue:
    """The first of the gangs of each namespace that wait for slots (GANG_QUEUED). `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float], namespaces: int = 1024) -> None:
        """The queue remembers at most `namespaces` namespaces, and forgets the least recently used one first."""
        self._clock = clock
        self._first: LRUCache[str, _First] = LRUCache(namespaces)
        self._checked = -inf  # when `lost_place` was last called

    def __len__(self) -> int:
        """The number of namespaces with a first gang."""
        return len(self._first)

    def kept_from(
        self, key: GroupKey, complete_since: float, with_plan: Collection[str], waits: Callable[[GroupKey], bool]
    ) -> dict[str, int]:
        """The slots that are kept from a gang, by namespace. `with_plan` are the namespaces that have a plan.

        `waits` says whether a gang still waits for slots.
        """
        for namespace, first in list(self._first.items()):
            if not waits(first.key) or self._lost_place_at(first) <= self._clock():
                del self._first[namespace]
        own, found = self._first.get(key.namespace), dict[str, int]()
        if own is not None and own.key != key and own.complete_since < complete_since:
            found[key.namespace] = own.slots
        own_since = own.since if own is not None and key.namespace not in with_plan else inf
        others = [first for namespace, first in self._first.items() if namespace not in {key.namespace, *with_plan}]
        other = min(others, key=lambda first: first.since, default=None)
        if other is not None and other.since < own_since:
            found[other.key.namespace] = other.slots
        return found

    def wait(self, key: GroupKey, slots: int, complete_since: float) -> None:
        """Queue a gang that did not get its slots: it is the first of its namespace if it waits for longest."""
        first = self._first.get(key.namespace)
        if first is None or complete_since < first.complete_since or first.key == key:
            since = first.since if first is not None else self._clock()
            self._first[key.namespace] = _First(key, slots, complete_since, since)

    def leave(self, key: GroupKey) -> bool:
        """Remove a gang: it has a plan, or no longer waits. Returns whether it was the first of its namespace."""
        first = self._first.get(key.namespace)
        if first is None or first.key != key:
            return False
        del self._first[key.namespace]
        return True

    def move_to_end(self, namespace: str) -> None:
        """A plan of the namespace has ended: the namespace goes to the end of the queue."""
        first = self._first.get(namespace)
        if first is not None:
            first.since = self._clock()

    def requeued(self) -> None:
        """kube-scheduler retries the gangs that wait."""
        for first in self._first.values():
            first.requeued_at = min(first.requeued_at, self._clock())

    def lost_place(self) -> bool:
        """Whether a gang has lost its place since the last call of this function."""
        since, self._checked = self._checked, self._clock()
        return any(since < self._lost_place_at(first) <= self._checked for first in self._first.values())

    @property
    def next_deadline(self) -> float:
        """The earliest time at which `lost_place` can be True; infinite if there is none."""
        times = (self._lost_place_at(first) for first in self._first.values())
        return min((at for at in times if at > self._checked), default=inf)

    @staticmethod
    def _lost_place_at(first: _First) -> float:
        return first.requeued_at + _ABSENT_SECONDS
