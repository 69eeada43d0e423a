"""The search's answer where it can be written down: one request for whole devices, of which any will do.

Most claims are so. Nothing that one device does changes what another may, so the first solution is the first devices, and every
set of enough of them is one.
"""

from __future__ import annotations

from dataclasses import dataclass

from extender.allocation.problem import Pick, Problem, Solution
from extender.model import MAX_RESULTS, DeviceRequest, members


@dataclass(frozen=True, slots=True)
class FastPath:
    """A problem that needs no search."""

    request: DeviceRequest
    free: int  # devices that it may take, as a mask

    def among(self, allowed: int) -> Solution | None:
        """The first devices among those allowed; None where there are too few."""
        bits = members(self.free & allowed)[: self.request.count]
        if len(bits) < self.request.count:
            return None
        return Solution((tuple(Pick(bit, self.request, None) for bit in bits),), ((0,),))


def fast_path(problem: Problem) -> FastPath | None:
    """The problem, where it is plain. Raises InvalidClaim as the search does."""
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
