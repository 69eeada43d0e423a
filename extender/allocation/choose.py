"""The preferred solution of a problem: by the search, or on the fast path without one.

A preference never turns a solvable problem into an unsolvable one. The first search uses the reference's order: it
proves that the claims fit, and it fixes the `firstAvailable` alternatives, because the user's order has priority. The
next searches use these alternatives, and one preferred set of devices each. The first success is the result.

Most claims are on the fast path: one request for whole devices that are interchangeable. The choice of one device does
not affect another, so each large enough set of matching free devices is a solution, and the first devices are the first
solution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from extender.allocation.problem import NULL_OBSERVER, Observer, Pick, Problem, Solution
from extender.allocation.search import EVERYTHING, MAX_STEPS, Search
from extender.api.claim_specs import DeviceRequest
from extender.api.resource_claims import MAX_RESULTS
from extender.base.berth_errors import InvalidClaim, OutOfSteps
from extender.base.bits import members
from extender.base.deadline import NO_DEADLINE, Deadline

Preference = Callable[[Problem, Solution], Iterable[int]]
"""Returns masks of the devices that a search may use, the most preferred first."""

_SET_STEPS = 500  # steps for one preferred set, which has few more devices than the claims need


@dataclass(frozen=True, slots=True)
class FastPath:
    """A problem that needs no search."""

    request: DeviceRequest
    free: int  # mask of the free devices that match the request
    least_memory: int  # bytes of memory that the selectors demand of each device; 0 for nothing

    @classmethod
    def of(cls, problem: Problem) -> FastPath | None:
        """The fast path for a problem, or None if it needs a search. Raises InvalidClaim as the search."""
        if len(problem.specs) != 1 or problem.specs[0].constraints or len(problem.specs[0].requests) != 1:
            return None
        asked = problem.specs[0].requests[0]
        request = asked.alternatives[0]
        if asked.prioritized or request.mode != "ExactCount" or request.admin_access or request.capacity is not None:
            return None
        if not 0 < request.count <= MAX_RESULTS:
            return None
        selection = problem.select(problem.names[0], request)
        if selection.error or selection.match & ~problem.inventory.simple:
            return None
        if problem.partitions is not None and selection.match & problem.partitions.gpus:
            return None
        return cls(request, selection.match & ~problem.taken, selection.least_memory)

    def choose(self, problem: Problem, preference: Preference) -> Solution | None:
        """The result of the function `choose`, found without a search."""
        first = self.among(EVERYTHING)
        if first is None:
            return None
        found = (self.among(allowed) for allowed in preference(problem, first))
        return next((solution for solution in found if solution is not None), first)

    def among(self, allowed: int) -> Solution | None:
        """The first free devices of the mask `allowed`; None if there are too few."""
        bits = members(self.free & allowed)[: self.request.count]
        if len(bits) < self.request.count:
            return None
        return Solution((tuple(Pick(bit, self.request, None) for bit in bits),), ((0,),))


def choose(
    problem: Problem,
    preference: Preference | None,
    *,
    max_steps: int = MAX_STEPS,
    observer: Observer = NULL_OBSERVER,
    deadline: Deadline = NO_DEADLINE,
) -> Solution | None:
    """The preferred solution, or None if there is none. Raises as Search.run."""
    search = Search(problem, max_steps=max_steps, observer=observer, deadline=deadline)
    first = search.run()
    if first is None or preference is None:
        return first
    # Each search makes its constraints again.
    setup = sum(len(spec.requests) + len(spec.constraints) for spec in problem.specs)
    left = max_steps - search.steps
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
