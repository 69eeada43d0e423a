"""Limits how often the agent of a node can change the links and GPUs in its slice.

One change may cost a search for rings of 75 ms. The cache uses the newest slice at the end of the window.
"""

from __future__ import annotations

from math import inf

from extender.fabric import hardware_facts
from extender.model import Slice

CHANGES, SECONDS = 4, 60.0  # changes of one node in a window, which begins with the first one
TOO_OFTEN = f"its agent changed links or GPUs more than {CHANGES} times in {SECONDS:.0f} s: the last ones wait"


class LinkChanges:
    """`waiting` are the nodes that keep an earlier slice of their agent until their window ends.

    Times are in seconds of the service's clock.
    """

    def __init__(self) -> None:
        self._windows: dict[str, tuple[float, int]] = {}  # node to begin and number of changes, the oldest first
        self.waiting: set[str] = set()

    def note(self, node: str, old: Slice | None, new: Slice | None, now: float) -> None:
        """Note a change of the slice of a node's agent."""
        if hardware_facts(old) == hardware_facts(new):
            return
        begin, changes = self._windows.get(node, (now, 0))
        if changes >= CHANGES:
            self.waiting.add(node)
        else:
            self._windows[node] = begin, changes + 1

    def expire(self, now: float) -> list[str]:
        """End the windows whose time is over. Returns the nodes whose newest slice is used from now on."""
        ended = []
        while self.next_deadline <= now:
            node = next(iter(self._windows))
            del self._windows[node]
            if node in self.waiting:
                self.waiting.remove(node)
                self._windows[node] = now, 1
                ended.append(node)
        return ended

    @property
    def next_deadline(self) -> float:
        """The time at which the oldest window ends; or infinity."""
        return next(iter(self._windows.values()))[0] + SECONDS if self._windows else inf
