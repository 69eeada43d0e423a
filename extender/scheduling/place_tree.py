"""Places in an order, as a tree of domains: a change moves only the branches in which it happened.

A place is the nodes that are in the same domain of every level. Its key is a number list: the use of its nearest
domain, then of the next one, and so on, then the sizes of these domains, and its name last. A pod changes the use of a
spine, and so the keys of all places in it, but not their order. So each branch orders its children by what lies within,
and a branch gets the use of its own domain only among its siblings.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

Key = tuple[Any, ...]
"""Two numbers for each level, the nearest first, and then (sizes, name) of a place: names differ, so keys do."""

_Path = tuple[Hashable, ...]


class Place(Hashable, Protocol):
    """What the tree reads of a place."""

    @property
    def name(self) -> Hashable: ...

    @property
    def parents(self) -> _Path:
        """The domains around the nearest one, the farthest first."""
        ...

    @property
    def use(self) -> Key:
        """Two numbers for each level, the nearest first."""
        ...

    @property
    def sizes(self) -> Key:
        """One number for each level, the nearest first: it counts after the use of all levels."""
        ...


P = TypeVar("P", bound=Place)


class _Branch:
    """Children with their keys."""

    def __init__(self) -> None:
        self.order: list[tuple[Key, Any]] = []
        self._keys: dict[Hashable, Key] = {}

    def put(self, child: Hashable, key: Key | None) -> None:
        """Set the key of a child; None removes it."""
        old = self._keys.get(child)
        if old == key:
            return
        if old is not None:
            del self.order[bisect_left(self.order, (old,))]
            del self._keys[child]
        if key is not None:
            insort(self.order, (key, child))
            self._keys[child] = key


class PlaceTree(Generic[P]):
    """Places in their order."""

    def __init__(self) -> None:
        self.branches: dict[_Path, _Branch] = {}  # by the domains from the farthest one; () for all

    def update(self, place: P, *, present: bool) -> None:
        """Add or remove a place, and note the use of the domains around it."""
        use, sizes, path = place.use, place.sizes, place.parents
        child: Hashable = place
        key: Key | None = (*use[:2], (sizes[:1], place.name)) if present else None
        for depth in range(len(path), -1, -1):
            branch = self.branches.get(path[:depth])
            if branch is None and key is not None:
                branch = self.branches[path[:depth]] = _Branch()
            if branch is not None:
                branch.put(child, key)
                if not branch.order:
                    del self.branches[path[:depth]]
            child, level = path[:depth], len(path) - depth + 1
            first = branch.order[0][0] if branch is not None and branch.order else None
            key = None
            if first is not None:
                inner, name = first[-1]
                last = (inner + sizes[level : level + 1], name)
                key = (*first[:-1], *use[2 * level : 2 * level + 2], last)


def in_order(trees: Iterable[PlaceTree[P]]) -> Iterator[P]:
    """The places of several trees, the first ones first. A place in two trees comes twice."""
    heap: list[tuple[Key, int, PlaceTree[P], _Branch, int, Key, Key]] = []
    number = count()

    def push(tree: PlaceTree[P], branch: _Branch, position: int, use: Key, sizes: Key) -> None:
        """`use` and `sizes` are those of the domains around the branch."""
        if position < len(branch.order):
            key = branch.order[position][0]
            inner, name = key[-1]
            heappush(heap, ((*key[:-1], *use, inner + sizes, name), next(number), tree, branch, position, use, sizes))

    for tree in trees:
        if () in tree.branches:
            push(tree, tree.branches[()], 0, (), ())
    while heap:
        _, _, tree, branch, position, use, sizes = heappop(heap)
        key, child = branch.order[position]
        push(tree, branch, position + 1, use, sizes)
        if isinstance(child, tuple):
            push(tree, tree.branches[child], 0, (*key[-3:-1], *use), key[-1][0][-1:] + sizes)
        else:
            yield child
