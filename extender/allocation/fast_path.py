"""Solves a problem without a search: one claim with one request for whole devices that are interchangeable.

Most claims are of this form. The choice of one device does not affect another, so each large enough set of matching
free devices is a solution, and the first devices are the first solution.
"""

from __future__ import annotations

from dataclasses import dataclass

from extender.allocation.problem import Pick, Problem, Solution
from extender.model import MAX_RESULTS, DeviceRequest, members


@dataclass(frozen=True, slots=True)
class FastPath:
    """A problem that needs no search."""

    request: DeviceRequest
    free: int  # mask of the free devices that match the request

    def among(self, allowed: int) -> Solution | None:
        """The first free devices of the mask `allowed`; None if there are too few."""
        bits = members(self.free & allowed)[: self.request.count]
        if len(bits) < self.request.count:
            return None
        return Solution((tuple(Pick(bit, self.request, None) for bit in bits),), ((0,),))


def fast_path(problem: Problem) -> FastPath | None:
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
    return FastPath(request, selection.match & ~problem.taken)
