"""Nodes whose NodeInfo could not be built, and when they are tried again."""

from __future__ import annotations

from math import inf

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_SHOWN = 200  # characters of an error text


class FailedNodes:
    """`problems` maps a node to the error of its last build; the node keeps its previous NodeInfo.

    All failed nodes are tried again at once, and then after a pause that doubles until none of them fails. Times are in
    seconds of the service's clock.
    """

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}
        self._pause = _FIRST_PAUSE
        self._retry_at = -inf

    def failed(self, node: str, error: Exception) -> None:
        """The build of a node failed."""
        self.problems[node] = f"{type(error).__name__}: {error}"[:_SHOWN]

    def built(self, node: str) -> None:
        """A node is built, or deleted."""
        self.problems.pop(node, None)
        if not self.problems:
            self._pause, self._retry_at = _FIRST_PAUSE, -inf

    def expire(self, now: float) -> list[str]:
        """The nodes to build again now."""
        if self.next_deadline > now:
            return []
        self._retry_at, self._pause = now + self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        return list(self.problems)

    @property
    def next_deadline(self) -> float:
        """When `expire` has nodes to build again; infinite if no node failed."""
        return self._retry_at if self.problems else inf
