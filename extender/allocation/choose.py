"""The preferred solution: the same search, limited to one preferred set of devices after the other.

A preference never turns a solvable problem into an unsolvable one. The first search uses the reference's order: it
proves that the claims fit, and it fixes the `firstAvailable` alternatives, because the user's order has priority. The
next searches use these alternatives and one preferred set each. The first success is the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from extender.allocation.fast_path import FastPath
from extender.allocation.problem import Problem, Solution
from extender.allocation.search import EVERYTHING, MOST_STEPS, Search
from extender.allocation.search_observer import NULL_OBSERVER, Observer
from extender.model import NO_DEADLINE, Deadline, InvalidClaim, OutOfSteps

Preference = Callable[[Problem, Solution], Iterable[int]]
"""Returns masks of the devices that a search may use, the most preferred first."""

_SET_STEPS = 500  # steps for one preferred set, which has few more devices than the claims need


def choose(
    problem: Problem,
    preference: Preference | None,
    *,
    most_steps: int = MOST_STEPS,
    observer: Observer = NULL_OBSERVER,
    deadline: Deadline = NO_DEADLINE,
) -> Solution | None:
    """The preferred solution, or None if there is none. Raises as Search.run."""
    search = Search(problem, most_steps=most_steps, observer=observer, deadline=deadline)
    first = search.run()
    if first is None or preference is None:
        return first
    # Each search makes its constraints again.
    setup = sum(len(spec.requests) + len(spec.constraints) for spec in problem.specs)
    left = most_steps - search.steps
    for allowed in preference(problem, first):
        if left <= 0:
            break
        deadline.check()
        attempt = search.among(allowed, first.alternatives, min(left, _SET_STEPS))
        try:
            found = attempt.run()
        except (InvalidClaim, OutOfSteps):
            found = None
        left -= setup + attempt.steps
        if found is not None:
            return found
    return first


def choose_plain(fast_path_: FastPath, problem: Problem, preference: Preference) -> Solution | None:
    """The result of `choose` for a problem on the fast path, found without a search."""
    first = fast_path_.among(EVERYTHING)
    if first is None:
        return None
    found = (fast_path_.among(allowed) for allowed in preference(problem, first))
    return next((solution for solution in found if solution is not None), first)
