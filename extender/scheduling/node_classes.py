"""Equivalence classes of nodes by a key of a demand's own: for demands that see more of a node than its state tells."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

from extender.allocation import NodeInfo, Snapshot
from extender.model import CallBudgetSpent


@dataclass(slots=True, eq=False)
class NodeClass:
    """Nodes that share a status, in order of their names."""

    key: Hashable
    number: int
    names: list[str] = field(default_factory=list)


class NodeClasses:
    """Every node in its class, classes by number. A class without nodes stays until `forget` names it."""

    def __init__(self, key: Callable[[NodeInfo], Hashable]) -> None:
        self.occupied: dict[int, NodeClass] = {}
        self._key = key
        self._by_key: dict[Hashable, NodeClass] = {}
        self._vacant: dict[int, NodeClass] = {}
        self._class_of: dict[str, NodeClass] = {}
        self._todo: set[str] = set()  # nodes that changed and are not sorted yet
        self._version = -1
        self._made = 0

    def __len__(self) -> int:
        """Nodes that are in a class."""
        return len(self._class_of)

    @property
    def unsorted(self) -> int:
        """Nodes that are not sorted yet."""
        return len(self._todo)

    def number_of(self, name: str) -> int | None:
        """The class that a node is in."""
        found = self._class_of.get(name)
        return found.number if found is not None else None

    def number_of_node(self, node_info: NodeInfo) -> int:
        """The class that a node of this NodeInfo belongs to, whether it is in it or not."""
        return self._class_of_node(node_info).number

    def update(self, snapshot: Snapshot) -> Iterator[tuple[int, NodeInfo]]:
        """Sort the nodes that changed into their classes; each comes with its class as soon as it is sorted. Raises
        BudgetSpent; the next call goes on with the rest."""
        changed = snapshot.changed_since(self._version) if self._version >= 0 else None
        # An emptied set keeps the room that it once had, and pop() searches it: so each time a new one.
        self._todo = self._todo.union(changed) if changed is not None else {*snapshot.node_infos, *self._class_of}
        self._version = snapshot.version
        while self._todo:
            name = self._todo.pop()
            node_info = snapshot.node_infos.get(name)
            try:
                found = self._class_of_node(node_info) if node_info is not None else None
            except CallBudgetSpent:
                self._todo.add(name)
                raise
            self._leave(name)
            if node_info is not None and found is not None:
                yield self._enter(name, found), node_info

    def forget(self, number: int) -> None:
        """Drop a class that no node is in."""
        gone = self._vacant.pop(number, None)
        if gone is not None:
            del self._by_key[gone.key]

    def _class_of_node(self, node_info: NodeInfo) -> NodeClass:
        key = self._key(node_info)
        found = self._by_key.get(key)
        if found is None:
            self._made += 1
            found = self._by_key[key] = self._vacant[self._made] = NodeClass(key, self._made)
        return found

    def _leave(self, name: str) -> None:
        old = self._class_of.pop(name, None)
        if old is not None:
            del old.names[bisect_left(old.names, name)]
            if not old.names:
                self._vacant[old.number] = self.occupied.pop(old.number)

    def _enter(self, name: str, new: NodeClass) -> int:
        self._class_of[name] = new
        insort(new.names, name)
        if len(new.names) == 1:
            self.occupied[new.number] = new
            self._vacant.pop(new.number, None)
        return new.number
