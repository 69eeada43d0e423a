"""When the agents of nodes reported last, and which of them are silent."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container
from math import inf


class AgentReports:
    """An agent that does not report for `seconds` is silent: its memory data is too old.

    Puts the nodes of silent agents into `silent`. Times are in seconds of the service's clock.
    """

    def __init__(self, silent: set[str], seconds: float) -> None:
        self.seconds = seconds
        self._silent = silent
        self._reported: OrderedDict[str, float] = OrderedDict()  # node to time of last slice, oldest first

    def report(self, node: str, now: float) -> None:
        """The agent of a node has reported: it is not silent."""
        self._reported[node] = now
        self._reported.move_to_end(node)
        self._silent.discard(node)

    def forget(self, node: str) -> None:
        """Forget an agent: its slice or its node was deleted."""
        self._reported.pop(node, None)
        self._silent.discard(node)

    def node_appeared(self, node: str) -> None:
        """A new node has an old slice of an agent: the agent counts as silent until it reports."""
        if node not in self._reported:
            self._silent.add(node)

    def expire(self, now: float, nodes: Container[str]) -> list[str]:
        """Find the agents that have become silent. Returns those of the given nodes, and forgets the others."""
        expired = []
        while self.next_deadline <= now:
            node, _ = self._reported.popitem(last=False)
            if node in nodes:
                self._silent.add(node)
                expired.append(node)
        return expired

    @property
    def next_deadline(self) -> float:
        """The time at which the next agent becomes silent; or infinity."""
        return next(iter(self._reported.values()), inf) + self.seconds

    def oldest(self, now: float) -> float:
        """Seconds since the oldest last report among agents that are not silent; 0 without agents."""
        return now - next(iter(self._reported.values()), now)
