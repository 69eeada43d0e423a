"""The preferred solution of a problem. The search finds it, or a fast path without a search.

A preference never turns a solvable problem into an unsolvable one. The first search uses the reference's order: it
proves that the claims fit, and it fixes the `firstAvailable` alternatives, because the user's order has priority. The
next searches use these alternatives, and one preferred set of devices each. The first success is the result.

Most claims are on the fast path: requests for whole devices that are interchangeable, where two requests match the same
devices or none in common. The choice of one device does not affect another, so each large enough set of matching free
devices is a solution, and the first devices are the first solution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations
from typing import NamedTuple

from extender.allocation.problem import EVERY_DEVICE, Allowed, CauseRecorder, Pick, Problem, Solution
from extender.allocation.search import MAX_STEPS, Search
from extender.api.claim_specs import ClaimSpec, DeviceRequest
from extender.api.resource_claims import MAX_RESULTS
from extender.base.berth_errors import InvalidClaim, OutOfSteps
from extender.base.deadline import NO_DEADLINE, Deadline

Preference = Callable[[Problem, Solution, int], Iterable[Allowed]]
"""Returns the devices that a search may use, the most preferred first.

Gets the first solution, and a mask of the devices that some request of this solution can have.
"""

_SET_STEPS = 500  # steps for one preferred set, which has few more devices than the claims need


class Asked(NamedTuple):
    """A request on the fast path, with the position of its claim."""

    claim: int
    request: DeviceRequest
    free: int  # mask of the free devices that match the request
    least_memory: int  # bytes of memory that the selectors demand of each device; 0 for nothing


class FastPath(NamedTuple):
    """A problem that needs no search."""

    asked: tuple[Asked, ...]

    @classmethod
    def of(cls, problem: Problem) -> FastPath | None:
        """The fast path for a problem, or None if it needs a search. Raises InvalidClaim as the search."""
        for spec in problem.specs:
            if spec.constraints or (len(spec.requests) > 1 and _has_config(problem, spec)):
                return None
        partitions = problem.fabric_partitions
        plain = problem.inventory.simple & ~(partitions.gpus if partitions is not None else 0)
        found: list[Asked] = []
        for claim, spec in enumerate(problem.specs):
            devices = 0
            for asked in spec.requests:
                request = asked.alternatives[0]
                if asked.prioritized or not _is_plain(request):
                    return None
                match, error, *_, least_memory = problem.select(problem.names[claim], request)
                if error or match & ~plain:
                    return None
                found.append(Asked(claim, request, match & ~problem.taken, least_memory))
                devices += request.count
            if not 0 < devices <= MAX_RESULTS:
                return None
        if len(found) > 1 and any(a & b for a, b in combinations({one.free for one in found}, 2)):
            return None
        return cls(tuple(found)) if found else None

    def choose(self, problem: Problem, preference: Preference) -> Solution | None:
        """The result of the function `choose`, found without a search."""
        first = self.among(problem, EVERY_DEVICE)
        if first is None:
            return None
        eligible = 0
        for one in self.asked:
            eligible |= one.free
        found = (self.among(problem, allowed) for allowed in preference(problem, first, eligible))
        return next((solution for solution in found if solution is not None), first)

    def among(self, problem: Problem, allowed: Allowed) -> Solution | None:
        """The first free devices that are allowed; None if there are too few."""
        taken, picks = 0, list[list[Pick]]()
        for claim, request, free, _ in self.asked:
            left = free & allowed.devices & ~taken
            if allowed.of_request:
                left &= allowed.of_request.get((claim, request.name), -1)
            if claim == len(picks):
                picks.append([])
            for _ in range(request.count):
                if not left:
                    return None
                low = left & -left
                picks[claim].append(Pick(low.bit_length() - 1, request, None))
                left, taken = left ^ low, taken | low
        alternatives = tuple([(0,) * len(spec.requests) for spec in problem.specs])
        return Solution(tuple(map(tuple, picks)), alternatives)


def _is_plain(request: DeviceRequest) -> bool:
    return request.mode == "ExactCount" and not request.admin_access and request.capacity is None and request.count > 0


def _has_config(problem: Problem, spec: ClaimSpec) -> bool:
    """Whether the config of an allocation may exceed what the API server stores, so that the search must count it."""
    if spec.config:
        return True
    classes = (problem.classes(request.alternatives[0].class_name) for request in spec.requests)
    return any(class_ is not None and class_.config for class_ in classes)


def choose(
    problem: Problem,
    preference: Preference | None,
    *,
    max_steps: int = MAX_STEPS,
    recorder: CauseRecorder | None = None,
    deadline: Deadline = NO_DEADLINE,
) -> Solution | None:
    """The preferred solution, or None if there is none. Raises as Search.run."""
    search = Search(problem, max_steps=max_steps, recorder=recorder, deadline=deadline)
    first = search.run()
    if first is None or preference is None:
        return first
    # Each search makes its constraints again.
    setup = sum(len(spec.requests) + len(spec.constraints) for spec in problem.specs)
    left = max_steps - search.steps
    for allowed in preference(problem, first, _eligible(problem, first)):
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


def _eligible(problem: Problem, first: Solution) -> int:
    """Mask of the devices that some request of the solution can have."""
    found = 0
    for name, spec, alternatives in zip(problem.names, problem.specs, first.alternatives, strict=True):
        for request, chosen in zip(spec.requests, alternatives, strict=True):
            found |= problem.usable(name, request.alternatives[chosen])
    return found
