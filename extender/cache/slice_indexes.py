"""Indexes of slices: by pool, by the labels of the nodes that they matter for, and by the node that they name.

A node must not read the slices of all other nodes, and each change of a node costs time that grows with its devices:
`NodeSlices` limits them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable
from dataclasses import replace

from extender.allocation.nodes import WholePool
from extender.model import Allocation, Claim, Node, NodeSelection, PoolKey, Slice, TaintRule, is_complete


class PoolSlices:
    """A driver decides how many slices a pool has, so an event of a slice or claim reads the nodes, not the slices."""

    def __init__(self) -> None:
        self.by_pool: dict[PoolKey, dict[str, Slice]] = {}  # slices by name
        self._nodes: dict[PoolKey, dict[str, int]] = {}  # name, or '' for slices without one, to number of slices
        self.with_counters: dict[PoolKey, dict[str, Slice]] = {}  # slices with counter sets, by name
        self._whole: dict[PoolKey, WholePool] = {}  # of pools that were asked for since their last change

    def put(self, new: Slice) -> None:
        """Add a slice. Its name must be unknown."""
        self._whole.pop(new.pool, None)
        self.by_pool.setdefault(new.pool, {})[new.name] = new
        if new.counter_sets:
            self.with_counters.setdefault(new.pool, {})[new.name] = new
        nodes, node = self._nodes.setdefault(new.pool, {}), new.selection.node_name
        nodes[node] = nodes.get(node, 0) + 1

    def remove(self, old: Slice) -> None:
        """Remove a slice."""
        self._whole.pop(old.pool, None)
        slices, nodes, node = self.by_pool[old.pool], self._nodes[old.pool], old.selection.node_name
        del slices[old.name]
        if old.counter_sets:
            self.with_counters[old.pool].pop(old.name)
        nodes[node] -= 1
        if not nodes[node]:
            del nodes[node]
        if not slices:
            del self.by_pool[old.pool], self._nodes[old.pool]
            self.with_counters.pop(old.pool, None)

    def nodes(self, pool: PoolKey) -> Collection[str]:
        """The nodes that the slices of a pool name; '' for slices without a node name."""
        return self._nodes.get(pool, {}).keys()

    def node_of(self, claim: Claim) -> str:
        """The node of a claim's devices: that of its allocation, if one of the pools names it.

        Else the only node that a pool names; '' without one. A driver may add slices of other nodes to any pool.
        """
        allocation = claim.allocation or Allocation()
        named = allocation.node_selector.node if allocation.node_selector is not None else None
        pools = [self.nodes(PoolKey(result.device.driver, result.device.pool)) for result in allocation.results]
        if named and any(named in nodes for nodes in pools):
            return named
        return next((node for nodes in pools if len(nodes) == 1 for node in nodes if node), "")

    def whole(self, pool: PoolKey) -> WholePool:
        """All slices of a pool. The same object until one of them changes, unless one slice is all of the pool."""
        found = self._whole.get(pool)
        if found is None:
            slices = tuple(self.by_pool.get(pool, {}).values())
            found = WholePool(slices)
            if slices and (len(slices) > 1 or not is_complete(slices)):  # nearly all pools have one slice
                self._whole[pool] = found
        return found


_NAME = "metadata.name"
_Label = tuple[str, str]  # key and value; the key is _NAME for the name of a node


class SharedSlices:
    """Slices without a node name, by name."""

    def __init__(self) -> None:
        self._everywhere: dict[str, Slice] = {}  # slices that may matter for any node
        self._by_label: dict[_Label, dict[str, Slice]] = {}  # slices that matter only for nodes with one of some labels

    def put(self, new: Slice) -> None:
        """Add a slice. Its name must be unknown."""
        for table in self._tables(new):
            table[new.name] = new

    def remove(self, old: Slice) -> None:
        """Remove a slice."""
        for table in self._tables(old):
            del table[old.name]
        for label in _labels_of_slice(old) or ():
            if not self._by_label[label]:
                del self._by_label[label]

    def _tables(self, slice_: Slice) -> list[dict[str, Slice]]:
        labels = _labels_of_slice(slice_)
        return [self._everywhere] if labels is None else [self._by_label.setdefault(label, {}) for label in labels]

    def of(self, node: Node) -> list[Slice]:
        """The slices that may matter for a node, sorted by name."""
        found = dict(self._everywhere)
        for label in ((_NAME, node.name), *node.labels.items()) if self._by_label else ():
            found |= self._by_label.get(label, {})
        return [found[name] for name in sorted(found)]


def _labels_of_slice(slice_: Slice) -> set[_Label] | None:
    """Labels of which each node that a slice matters for has one; None if it may matter for any node."""
    if slice_.counter_sets:
        return None
    if slice_.selection.is_set or not slice_.per_device:
        return _labels(slice_.selection)
    found = set[_Label]()
    for device in slice_.devices:
        labels = _labels(device.selection)
        if labels is None:
            return None
        found |= labels
    return found


def _labels(selection: NodeSelection) -> set[_Label] | None:
    """The same for a node selection."""
    if selection.node_name:
        return {(_NAME, selection.node_name)}
    if selection.all_nodes:
        return None
    found = set[_Label]()
    for term in selection.selector.terms if selection.selector is not None else ():
        named = next((one for one in term.fields if (one.key, one.operator) == (_NAME, "In")), None)
        wanted = named or next((one for one in term.expressions if one.operator == "In" and one.key != _NAME), None)
        if wanted is not None:
            found.update((wanted.key, value) for value in wanted.values)
        elif term.fields or term.expressions:  # an empty term matches no node
            return None
    return found


MAX_NODE_DEVICES = 8192  # see _size; a node with SR-IOV may have 2,048 devices, and twice as many during an update
_COUNTERS = 8  # that a device consumes and that count as one more device; MIG devices consume some 20
_POOL = 8  # devices that take as much time as a pool; a driver may publish each slice in a pool of its own
_NAMED = 32  # of the pools that are left out
TOO_MANY = f"the node has more than {MAX_NODE_DEVICES} devices: Berth leaves out its largest pools"


class NodeSlices:
    """The slices that name one node. If they have too many devices, the largest pools are left out.

    The other pools stay: one driver must not take the devices of others from their pods. The time of each method is
    limited, however many slices and pools a driver publishes.
    """

    def __init__(self) -> None:
        self._pools: dict[PoolKey, dict[str, Slice]] = {}  # slices by name
        self._sizes: dict[PoolKey, int] = {}
        self._sorted: list[tuple[int, PoolKey]] = []  # size and pool, the smallest first

    def __bool__(self) -> bool:
        return bool(self._pools)

    def put(self, new: Slice) -> None:
        """Add a slice. Its name must be unknown."""
        self._pools.setdefault(new.pool, {})[new.name] = new
        self._resize(new.pool, _size(new))

    def remove(self, old: Slice) -> None:
        """Remove a slice."""
        del self._pools[old.pool][old.name]
        if not self._pools[old.pool]:
            del self._pools[old.pool]
        self._resize(old.pool, -_size(old))

    def _resize(self, pool: PoolKey, by: int) -> None:
        before = self._sizes.pop(pool, 0)
        if before:
            del self._sorted[bisect_left(self._sorted, (before, pool))]
        if pool in self._pools:
            self._sizes[pool] = (before or _POOL) + by
            insort(self._sorted, (self._sizes[pool], pool))

    def kept(self) -> dict[PoolKey, dict[str, Slice]]:
        """The slices of the pools that are not left out, by pool and name."""
        found, left = dict[PoolKey, dict[str, Slice]](), MAX_NODE_DEVICES + _POOL  # one pool is free
        for size, pool in self._sorted:
            left -= size
            if left < 0:
                break
            found[pool] = self._pools[pool]
        return found

    def left_out(self, kept: int) -> list[PoolKey]:
        """The largest pools that are left out, sorted by key; `kept` is the number of those that are not."""
        return sorted(pool for _, pool in self._sorted[max(kept, len(self._sorted) - _NAMED) :])

    def __contains__(self, pool: object) -> bool:
        """Whether a slice of the pool names the node."""
        return pool in self._pools


def _size(slice_: Slice) -> int:
    """The number of devices, plus what takes about as much time: the slice itself, and counters."""
    consumed = sum(len(use.counters) for device in slice_.devices for use in device.consumes)
    counters = sum(len(one.counters) for one in slice_.counter_sets)
    return 1 + len(slice_.devices) + counters + consumed // _COUNTERS


def tainted(slice_: Slice, rules: Iterable[TaintRule]) -> Slice:
    """The slice with the taints of all matching rules; the same object if no rule matches."""
    matching = [rule for rule in rules if rule.matches_pool(slice_.pool)]  # most rules are about other pools
    if not matching:
        return slice_
    added = {
        device.name: tuple(rule.taint for rule in matching if rule.matches(slice_.pool, device.name))
        for device in slice_.devices
    }
    if not any(added.values()):
        return slice_
    devices = tuple(
        replace(device, taints=device.taints + added[device.name]) if added[device.name] else device
        for device in slice_.devices
    )
    return replace(slice_, devices=devices)
