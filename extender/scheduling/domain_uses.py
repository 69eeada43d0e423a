"""How much of each domain is in use. Placements prefer partly used domains, so that whole racks stay whole.

Among choices that are equal otherwise, a choice in a partly used domain comes first. Among partly used domains, the
domain with the fewest free GPUs comes first. This holds on the nearest level, then on the next one. The size of whole
domains counts after all that: the larger domain may be in a partly used rack, the smaller one in a whole rack that
would be broken. The counts follow the snapshots: the cost of an update grows with the number of changed nodes, and so
does the cost of the order of the leaves with nodes in one state.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from extender.allocation import NodeInfo, Snapshot
from extender.api.group_topology import ONE_NODE
from extender.api.label_domains import DomainPath, path_of
from extender.api.nodes import Node
from extender.vendors import CLIQUE_LABELS

Key = tuple[Any, ...]
"""Two numbers for each level, the nearest first, and then (sizes, name) of a leaf: names differ, so keys do."""

_Path = tuple[Hashable, ...]
_MIN_CHANGES = 1024  # that are noted for trees which follow later
_MAX_SORTED = 128  # leaves by state


def path_labels(level: str, levels: Sequence[str]) -> tuple[str, ...]:
    """The labels whose values identify a domain of `level`. The policy has `levels`, the nearest level first."""
    if level in CLIQUE_LABELS or level not in levels:
        return (level,)
    return tuple(levels[levels.index(level) :])


class Use(NamedTuple):
    """The use of a domain, as an order: domains in use first, and of them those with the least room."""

    whole: bool  # no GPU is in use
    free: int  # GPUs; 0 for a whole domain


# Around a node that lacks the label: no whole domain is broken, and none is filled.
_NO_DOMAIN = Use(whole=False, free=1 << 30)


def _use(used: int, free: int) -> Use:
    return Use(whole=False, free=free) if used else Use(whole=True, free=0)


@dataclass(slots=True, eq=False)
class _Domain:
    used: int = 0  # GPUs
    free: int = 0
    leaves: dict[_LeafDomain, None] = field(default_factory=dict)

    @property
    def use(self) -> Use:
        return _use(self.used, self.free)


_Name = tuple[tuple[str, ...], ...]  # the paths; () for none


@dataclass(slots=True, eq=False)
class _LeafDomain:
    """The nodes that are in the same domain of every level."""

    paths: tuple[DomainPath | None, ...]
    domains: tuple[_Domain | None, ...]  # the nearest level first
    name: _Name  # of equal leaves the first by name comes first: never by the order in which nodes were seen
    parents: tuple[_Domain | None, ...]  # the domains around the nearest one, the farthest first
    states: dict[int, list[str]] = field(default_factory=dict)  # sorted names by number of the node state

    @property
    def use(self) -> Key:
        """The Use of each domain, the nearest first."""
        found: Key = ()
        for domain in self.domains:
            found += domain.use if domain is not None else _NO_DOMAIN
        return found

    @property
    def sizes(self) -> Key:
        """The free GPUs of each domain, the nearest first."""
        return tuple(domain.free if domain is not None else 0 for domain in self.domains)


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


class _LeafTree:
    """Places in their order, as a tree of domains: a change moves only the branches in which it happened.

    The key of a leaf is a number list: the use of its nearest domain, then of the next one, and so on, then the sizes
    of these domains, and its name last. A pod changes the use of a spine, and so the keys of all leaves in it, but not
    their order. So each branch orders its children by what lies within, and a branch gets the use of its own domain
    only among its siblings.
    """

    def __init__(self) -> None:
        self.branches: dict[_Path, _Branch] = {}  # by the domains from the farthest one; () for all

    def update(self, leaf: _LeafDomain, *, present: bool) -> None:
        """Add or remove a leaf, and note the use of the domains around it."""
        use, sizes, path = leaf.use, leaf.sizes, leaf.parents
        child: Hashable = leaf
        key: Key | None = (*use[:2], (sizes[:1], leaf.name)) if present else None
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


def _in_order(trees: Iterable[_LeafTree]) -> Iterator[_LeafDomain]:
    """The leaves of several trees, the first ones first. A leaf in two trees comes twice."""
    heap: list[tuple[Key, int, _LeafTree, _Branch, int, Key, Key]] = []
    number = count()

    def push(tree: _LeafTree, branch: _Branch, position: int, use: Key, sizes: Key) -> None:
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


class _Tree(NamedTuple):
    """The leaves with nodes in one state."""

    leaves: _LeafTree
    changes: int  # how many changes of leaves it has followed


class _Known(NamedTuple):
    """A node as it is counted."""

    node: Node
    leaf: _LeafDomain
    state: int
    used: int
    free: int


class DomainUses:
    """The use of the domains of a policy's `group_levels`. It follows the snapshots of one cache."""

    def __init__(self, levels: Sequence[str]) -> None:
        self.levels = tuple(levels)
        self._labels = [path_labels(level, levels) for level in levels]
        self._forget()

    def _forget(self) -> None:
        self._version: int | None = None
        self._nodes: dict[str, _Known] = {}
        self._domains: dict[tuple[int, DomainPath], _Domain] = {}  # by number of the level and path
        self._leaves: dict[tuple[DomainPath | None, ...], _LeafDomain] = {}
        self._in_state: dict[int, dict[_LeafDomain, None]] = {}
        self._trees: dict[int, _Tree] = {}  # by number of the node state; only of those that `first` was asked for
        self._changed: list[_LeafDomain] = []  # the newest changes
        self._changes = 0  # all changes so far

    def update(self, snapshot: Snapshot) -> None:
        """Bring the counts up to date."""
        if snapshot.version == self._version:
            return
        changed = snapshot.changed_since(self._version) if self._version is not None else None
        if changed is None:
            self._count_all(snapshot)
        else:
            for name in changed:
                self._count(name, snapshot.node_infos.get(name))
        self._version = snapshot.version

    def _count_all(self, snapshot: Snapshot) -> None:
        self._forget()
        for name, node_info in snapshot.node_infos.items():
            self._count(name, node_info)

    @property
    def size(self) -> int:
        """The number of sets of nodes that are in the same domains: memory grows with it."""
        return len(self._leaves)

    def use(self, level: str, name: str) -> Use:
        """The use of the domain of a level around a node, or of the node itself for ONE_NODE."""
        known = self._nodes.get(name)
        if level == ONE_NODE:
            return _use(known.used, known.free) if known is not None else _NO_DOMAIN
        domain = known.leaf.domains[self.levels.index(level)] if known is not None else None
        return domain.use if domain is not None else _NO_DOMAIN

    def free_gpus(self, level: str, name: str) -> int:
        """The free GPUs of the domain of a level around a node, or of the node itself for ONE_NODE."""
        known = self._nodes.get(name)
        if known is None or level == ONE_NODE:
            return known.free if known is not None else 0
        domain = known.leaf.domains[self.levels.index(level)]
        return domain.free if domain is not None else 0

    def around(self, name: str) -> Key:
        """A sort key: the nodes in partly used domains come first, on the nearest level first."""
        leaf = self._nodes[name].leaf
        return leaf.use, leaf.sizes

    def ordered(self, names: Sequence[str]) -> list[str]:
        """These nodes by their own use, and then as `around`; of equal ones, in the given order.

        A plan may ask for all nodes of the cluster, so nothing is called for each of them.
        """
        known = [self._nodes[name] for name in names]
        around = {leaf: (leaf.use, leaf.sizes) for leaf in {one.leaf for one in known}}
        keys = dict[str, Key]()
        for name, one in zip(names, known, strict=True):
            use, sizes = around[one.leaf]
            keys[name] = (not one.used, one.free if one.used else 0, use, one.free, sizes)
        return sorted(names, key=keys.__getitem__)

    def first_of(self, names: Sequence[str]) -> str:
        """The node of these that comes first; of equal ones, the first in the given order."""
        return min(names, key=self.around)

    def first(
        self, states: AbstractSet[int], allowed: AbstractSet[str] | None, without: Collection[str] = ()
    ) -> str | None:
        """The first node in one of these states, among `allowed` (None: all), not of `without`; None if there is none.

        The work does not grow with the number of nodes, but with that of `allowed` and `without`.
        """
        if allowed is not None and len(allowed) < len(self._leaves):
            found = [name for name in allowed if name in self._nodes and self._nodes[name].state in states]
            key = {
                name: (self.around(name), self._nodes[name].leaf.name, name) for name in found if name not in without
            }
            return min(key, key=key.__getitem__, default=None)
        for leaf in self._with(states & self._in_state.keys()):
            names = [
                name
                for state in leaf.states.keys() & states
                for name in leaf.states[state]
                if (allowed is None or name in allowed) and name not in without
            ]
            if names:
                return min(names)
        return None

    def _with(self, states: AbstractSet[int]) -> Iterable[_LeafDomain]:
        """The leaves with nodes in these states, the first ones first. A few are sorted faster than trees follow."""
        if sum(len(self._in_state[state]) for state in states) > _MAX_SORTED:
            return _in_order([self._tree(state) for state in states])
        found = dict.fromkeys(leaf for state in states for leaf in self._in_state[state])
        return sorted(found, key=lambda leaf: (leaf.use, leaf.sizes, leaf.name))

    def _tree(self, state: int) -> _LeafTree:
        """The leaves with nodes in a state, in the order of now."""
        leaves, known = self._in_state[state], self._trees.get(state)
        missed = self._changes - known.changes if known is not None else 0
        if known is None or missed > min(len(self._changed), len(leaves)):
            tree, changed = _LeafTree(), list(leaves)
        else:
            tree, changed = known.leaves, self._changed[len(self._changed) - missed :]
        for leaf in dict.fromkeys(changed):
            tree.update(leaf, present=leaf in leaves)
        self._trees[state] = _Tree(tree, self._changes)
        return tree

    # -- counting --------------------------------------------------------------------------------------------

    def _count(self, name: str, node_info: NodeInfo | None) -> None:
        """Count a node as it is now; None: no longer."""
        old, new = self._nodes.pop(name, None), None
        if node_info is not None:
            node, (used, free) = node_info.node, _gpus(node_info)
            leaf = old.leaf if old is not None and old.node is node else self._leaf_of(node)
            new = self._nodes[name] = _Known(node, leaf, node_info.state.number, used, free)
        if old is not None and new is not None and old.leaf is new.leaf:  # only its use changed, as by each pod
            if old.state != new.state:
                self._leave(old.leaf, name, old.state)
                self._enter(new.leaf, name, new.state)
            self._add(new.leaf, new.used - old.used, new.free - old.free)
            return
        if old is not None:
            self._leave(old.leaf, name, old.state)
            self._add(old.leaf, -old.used, -old.free)
        if new is not None:
            self._enter(new.leaf, name, new.state)
            self._add(new.leaf, new.used, new.free)
        if old is not None and not old.leaf.states:
            self._remove(old.leaf)

    def _enter(self, leaf: _LeafDomain, name: str, state: int) -> None:
        insort(leaf.states.setdefault(state, []), name)
        self._in_state.setdefault(state, {})[leaf] = None

    def _leave(self, leaf: _LeafDomain, name: str, state: int) -> None:
        names = leaf.states[state]
        del names[bisect_left(names, name)]
        if not names:
            del leaf.states[state], self._in_state[state][leaf]
            if not self._in_state[state]:
                del self._in_state[state]
                self._trees.pop(state, None)

    def _add(self, leaf: _LeafDomain, used: int, free: int) -> None:
        """Count GPUs in the domains of a leaf, and note the leaves that may move in the order."""
        self._note(leaf)
        for level, domain in zip(self.levels, leaf.domains, strict=True):
            if domain is not None:
                domain.used += used
                domain.free += free
                if level in CLIQUE_LABELS:  # it alone can span several domains of a farther level
                    for other in domain.leaves:
                        self._note(other)

    def _note(self, leaf: _LeafDomain) -> None:
        self._changed.append(leaf)
        self._changes += 1
        if len(self._changed) > 2 * max(len(self._leaves), _MIN_CHANGES):
            del self._changed[: len(self._changed) // 2]

    def _leaf_of(self, node: Node) -> _LeafDomain:
        paths = tuple(path_of(node.labels, labels) for labels in self._labels)
        found = self._leaves.get(paths)
        if found is None:
            domains = tuple(
                self._domains.setdefault((level, path), _Domain()) if path is not None else None
                for level, path in enumerate(paths)
            )
            name = tuple(path or () for path in paths)
            found = self._leaves[paths] = _LeafDomain(paths, domains, name, domains[:0:-1])
            for domain in domains:
                if domain is not None:
                    domain.leaves[found] = None
        return found

    def _remove(self, leaf: _LeafDomain) -> None:
        """Forget a leaf without nodes, and the domains that had no other."""
        self._leaves.pop(leaf.paths, None)
        for level, (path, domain) in enumerate(zip(leaf.paths, leaf.domains, strict=True)):
            if domain is not None and path is not None:
                domain.leaves.pop(leaf, None)
                if not domain.leaves:
                    self._domains.pop((level, path), None)


def _gpus(node_info: NodeInfo) -> tuple[int, int]:
    """(GPUs in use, free ones)"""
    used = node_info.own_in_use
    return used, node_info.inventory.packed.bit_count() - used
