"""Places at the bind barrier: the bind of each gang member keeps an HTTP connection while it waits for the others.

The connections are limited (`web/http_limits.py`), so the plans of all gangs together have a limited number of places.
A plan gets a place for each member of its minimum, or no plan is made: two gangs that each had half of their places
would both wait in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import inf

from extender.extension.gang_state import FormingGang
from extender.scheduling import MOST_TOGETHER


@dataclass(frozen=True, slots=True)
class PlaceLimits:
    """Limits of the places of all plans."""

    total: int = MOST_TOGETHER + 48  # 64 below the connections to the verbs: the others serve pods outside of gangs
    namespace: int = MOST_TOGETHER  # also of all plans together, but for the plans of small namespaces
    small: int = 16  # a namespace with at most so many places may use those between `namespace` and `total`


class GangPlaces:
    """Decides whether a gang gets its places. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float], limits: PlaceLimits | None = None) -> None:
        self._clock = clock
        self._limits = limits or PlaceLimits()
        self._checked = -inf  # when `began_to_give_way` was last called

    def plans_in_the_way(self, namespace: str, count: int, plans: Collection[FormingGang]) -> list[FormingGang] | None:
        """The plans that must end so that a gang of the namespace gets `count` places; None if it must wait.

        A plan whose minimum is bound gives way to all. After a time, a plan that waits for members gives way to other
        namespaces.
        """
        now, limits = self._clock(), self._limits
        own = sum(plan.places for plan in plans if plan.key.namespace == namespace) + count
        total = sum(plan.places for plan in plans) + count
        most = limits.total if own <= limits.small else limits.namespace
        found = []
        for plan in sorted(plans, key=lambda plan: (plan.gives_way_at, plan.since)):
            is_own = plan.key.namespace == namespace
            if total <= most and own <= limits.namespace:
                break
            if plan.gives_way_at <= now and (plan.runs or not is_own) and (is_own or total > most):
                found.append(plan)
                total -= plan.places
                own -= plan.places if is_own else 0
        return found if total <= most and own <= limits.namespace else None

    def began_to_give_way(self, plans: Collection[FormingGang]) -> bool:
        """Whether a plan gives way that did not at the last call of this function."""
        since, self._checked = self._checked, self._clock()
        return any(since < plan.gives_way_at <= self._checked for plan in plans)

    def next_deadline(self, plans: Collection[FormingGang]) -> float:
        """The earliest time at which `began_to_give_way` can be True; infinite if there is none."""
        return min((plan.gives_way_at for plan in plans if plan.gives_way_at > self._checked), default=inf)
