"""From the first solution to the best one: the same search, asked about preferred devices first.

The first solution proves that the claims fit and fixes which alternatives are taken (they are the user's preference
and come before ours). Then each preferred set of devices is tried with those alternatives; the first that works wins.
So an order of preference never finds fewer allocations than the reference's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from extender.allocation.fast_path import FastPath
from extender.allocation.problem import Problem, Solution
from extender.allocation.search import DEFAULT_BUDGET, EVERYTHING, Search
from extender.allocation.search_observer import NULL_OBSERVER, Observer
from extender.model import UNLIMITED, CallBudget, InvalidClaim, OutOfBudget

Preference = Callable[[Problem, Solution], Iterable[int]]
"""Masks of devices that may be used, the most preferred first."""

_SET_BUDGET = 500  # steps for one preferred set: it holds few more devices than are needed


def choose(
    problem: Problem,
    preference: Preference | None,
    *,
    budget: int = DEFAULT_BUDGET,
    observer: Observer = NULL_OBSERVER,
    call_budget: CallBudget = UNLIMITED,
) -> Solution | None:
    """The preferred solution, or None where there is none. Raises what Search does."""
    search = Search(problem, budget=budget, observer=observer, call_budget=call_budget)
    first = search.run()
    if first is None or preference is None:
        return first
    left = budget - search.steps
    for allowed in preference(problem, first):
        if left <= 0:
            break
        attempt = search.among(allowed, first.alternatives, min(left, _SET_BUDGET))
        try:
            found = attempt.run()
        except (InvalidClaim, OutOfBudget):
            found = None
        left -= attempt.steps
        if found is not None:
            return found
    return first


def choose_plain(fast_path_: FastPath, problem: Problem, preference: Preference) -> Solution | None:
    """What `choose` answers for a plain problem, found without a search."""
    first = fast_path_.among(EVERYTHING)
    if first is None:
        return None
    found = (fast_path_.among(allowed) for allowed in preference(problem, first))
    return next((solution for solution in found if solution is not None), first)
