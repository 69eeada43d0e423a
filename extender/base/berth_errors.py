"""The errors that Berth raises on purpose. Any other exception that escapes is a bug.

BerthError
 ├─ WireError           the input has the wrong shape; the text names the path
 ├─ InvalidClaim        a user's object is not valid; the text names object, field and value
 ├─ OutOfSteps          a search used up its steps; only the search raises it
 ├─ DeadlineExceeded    the time of a call is over; the evaluation continues later (extender.base.deadline)
 └─ ClusterError        the API server rejected a request (extender.cluster.api_errors)
"""

from __future__ import annotations


class BerthError(Exception):
    """The base class of all errors that Berth raises on purpose."""


class WireError(BerthError):
    """The input does not have the shape that its format requires. `path` names the field, or is empty."""

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"{path}: {problem}" if path else problem)


class InvalidClaim(BerthError):
    """A claim, class or slice is not valid, so Berth cannot allocate. The text names object, field and value."""


class OutOfSteps(BerthError):
    """The search used up its steps. Berth does not know whether a solution exists."""
