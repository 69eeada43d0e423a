"""Every error Berth raises on purpose.

BerthError
 ├─ WireError           bytes or an object do not have the agreed shape: names the path
 ├─ InvalidClaim        the user's object is wrong: names object, field and value
 ├─ OutOfBudget         the search gave up; raised inside the search only
 ├─ BudgetSpent         a call has worked long enough; a later one goes on (see extender.model.call_budget)
 └─ ClusterError        the API server said no (see extender.cluster.api_errors)

Anything else that escapes is a bug.
"""


class BerthError(Exception):
    """Root of all deliberate errors."""


class WireError(BerthError):
    """An object does not have the shape its API promises."""

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"{path}: {problem}" if path else problem)


class InvalidClaim(BerthError):
    """A claim, class or slice makes the allocation undecidable; the text names object, field and value."""


class OutOfBudget(BerthError):
    """The search used up its steps: nothing is known about whether a solution exists."""
