"""Equivalence classes of nodes under a custom key, for requirements that a NodeState does not describe fully."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from extender.allocation import NodeInfo, Snapshot
from extender.model import DeadlineExceeded


@dataclass(slots=True, eq=False)
class EquivalenceClass:
    """Nodes that share a status, sorted by name."""

    key: Hashable
    number: int
    names: list[str] = field(default_factory=list)


class EquivalenceClasses:
    """Assigns every node to one equivalence class. One without nodes stays in memory until the caller forgets it."""

    def __init__(self, key: Callable[[NodeInfo], Hashable]) -> None:
        self.occupied: dict[int, EquivalenceClass] = {}  # those with nodes, by number
        self._key = key
        self._by_key: dict[Hashable, EquivalenceClass] = {}
        self._vacant: dict[int, EquivalenceClass] = {}
        self._class_of: dict[str, EquivalenceClass] = {}
        # Changed nodes that are not assigned yet. The last one is next: its key may be half made.
        self._unassigned: dict[str, None] = {}
        self._version = -1
        self._last_number = 0

    def __len__(self) -> int:
        """The number of assigned nodes."""
        return len(self._class_of)

    def number_of(self, name: str) -> int | None:
        """The number of the node's equivalence class; None for a node that is not assigned."""
        found = self._class_of.get(name)
        return found.number if found is not None else None

    def number_of_node(self, node_info: NodeInfo) -> int:
        """The number for this NodeInfo; the node need not be assigned yet. Raises DeadlineExceeded."""
        return self._class_of_node(node_info).number

    def update(self, snapshot: Snapshot) -> Iterator[tuple[int, NodeInfo]]:
        """Assign the changed nodes; yield each with the number of its equivalence class after the assignment.

        Raises DeadlineExceeded; the next call continues with the rest.
        """
        changed = snapshot.changed_since(self._version) if self._version >= 0 else None
        every = changed if changed is not None else chain(snapshot.node_infos, self._class_of)
        self._unassigned = dict.fromkeys(every) | self._unassigned
        self._version = snapshot.version
        while self._unassigned:
            name, _ = self._unassigned.popitem()
            node_info = snapshot.node_infos.get(name)
            try:
                found = self._class_of_node(node_info) if node_info is not None else None
            except DeadlineExceeded:
                self._unassigned[name] = None
                raise
            self._leave(name)
            if node_info is not None and found is not None:
                yield self._enter(name, found), node_info

    def forget(self, number: int) -> None:
        """Drop an equivalence class, unless a node is in it."""
        gone = self._vacant.pop(number, None)
        if gone is not None:
            del self._by_key[gone.key]

    def _class_of_node(self, node_info: NodeInfo) -> EquivalenceClass:
        key = self._key(node_info)
        found = self._by_key.get(key)
        if found is None:
            self._last_number += 1
            found = self._by_key[key] = self._vacant[self._last_number] = EquivalenceClass(key, self._last_number)
        return found

    def _leave(self, name: str) -> None:
        old = self._class_of.pop(name, None)
        if old is not None:
            del old.names[bisect_left(old.names, name)]
            if not old.names:
                self._vacant[old.number] = self.occupied.pop(old.number)

    def _enter(self, name: str, new: EquivalenceClass) -> int:
        self._class_of[name] = new
        insort(new.names, name)
        if len(new.names) == 1:
            self.occupied[new.number] = new
            self._vacant.pop(new.number, None)
        return new.number
