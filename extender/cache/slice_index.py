"""The ResourceSlices with the taints that rules add, and indexes by pool, node and label for the build of a node.

A node must not read the slices of all other nodes, and each change of a node costs time that grows with its devices.
So slices are indexed by pool (`PoolSlices`), by the node that they name (`NodeSlices`, which also limits a node's
devices), and by the labels of the nodes that they matter for (`SharedSlices`). Slices of node agents are apart: they
describe the GPUs of other drivers and have no devices to allocate. `GpuPublishers` says whose GPUs those are.

The index also knows which nodes must be built again. A driver or an agent that writes too often has to wait: see
`Cooldown`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from enum import StrEnum
from itertools import accumulate, islice
from typing import Any

from extender.allocation.nodes import WholePool
from extender.api.nodes import Node, NodeSelection
from extender.api.resource_claims import Allocation, Claim
from extender.api.resource_slices import PoolKey, Slice, TaintRule, is_complete
from extender.base.timers import Cooldown, Timers
from extender.topology.agent_slices import DRIVER as FABRIC_DRIVER
from extender.topology.sources import agent_slice
from extender.vendors import whole_identity

ALL_NODES = "*"
_MAX_AGENT_SLICES = 8  # that are read of a node, the first by name; an agent publishes one
# Changes of one node's slices. After each, every waiting template may need a long search on the node: 1,024 GPUs of
# ever new products, written 20 times a second, left pods with matchAttribute 13 % of their rate. New links of its agent
# may cost a search for rings of 75 ms. A driver that starts writes all its slices at once.
NODE_BURST, NODE_SECONDS = 16, 5.0
TOO_OFTEN = f"its agent or a driver changes slices too often: Berth uses one change in {NODE_SECONDS:.0f} s"
# Changes of pools that other nodes see, by the slices of one node: one of many nodes, or some with so many nodes
# together. The driver of a node may publish a slice in the name of a pool that all nodes see, and to build 4,000 nodes
# takes 0.3 s. 20 writes a second in the name of a rack's pool took a quarter of the time.
POOL_SECONDS, _LARGE_POOL_NODES, _NODES_TOGETHER = 5.0, 64, 512
MAX_NODE_DEVICES = 8192  # see _size; a node with SR-IOV may have 2,048 devices, and twice as many during an update
_COUNTERS_PER_DEVICE = 8  # that a device consumes and that count as one more device; MIG devices consume some 20
_DEVICES_PER_POOL = 8  # devices that take as much time as a pool; a driver may publish each slice in a pool of its own
_MAX_NAMED = 32  # of the pools that are left out
TOO_MANY = f"the node has more than {MAX_NODE_DEVICES} devices: Berth leaves out its largest pools"
_LIVE_MEMORY_SECONDS = 900.0  # until `AgentReports.use_seconds` is called
_NAME = "metadata.name"
_Label = tuple[str, str]  # key and value; the key is _NAME for the name of a node


class TimerKind(StrEnum):
    """What is due; the name of a timer is a claim UID, or a node."""

    HOLD = "hold"
    NODE_CHANGES = "node changes"
    SHARED_POOLS = "shared pools"
    AGENT = "agent"


CacheTimers = Timers[tuple[TimerKind, str]]


class SliceIndex:
    """All slices as of the last event, and marks on the nodes that a slice, a claim or a node object changed.

    `dirty` are the nodes whose NodeInfo must be built again, `dirty_use` those where only the allocated devices
    changed. `dirty_pools` are the pools of several nodes whose allocated devices changed. After a change of a rule,
    `take_dirty_nodes` computes the taints. Until then, the indexes have the taints of the old rules.

    The marks have an order, which events alone decide: the states of nodes get their numbers in it, and equal histories
    must lead to equal decisions.
    """

    def __init__(self, timers: CacheTimers) -> None:
        self.published: dict[str, Slice] = {}  # by name, without the taints of rules that the other indexes have
        self.deleted: set[str] = set()  # names of slices that changed or were deleted, until the caller clears it
        self.rules: dict[str, TaintRule] = {}
        self.to_taint: dict[str, None] = {}  # names of the slices that a changed rule may match
        self.pools = PoolSlices()
        self.by_node: dict[str, NodeSlices] = {}
        self.shared = SharedSlices()
        self.publishers = GpuPublishers()
        self.fabric: dict[str, Slice] = {}  # the chosen slice of each node's agent, by node
        self._agent_slices: dict[str, list[str]] = {}  # names of the slices of agents, sorted, by node
        self.rejected: dict[str, tuple[str, ...]] = {}  # why other slices of agents were rejected, by node
        self.agents = AgentReports(timers)
        self.node_changes = Cooldown(timers, TimerKind.NODE_CHANGES, NODE_BURST, NODE_SECONDS)
        self._pool_changes = Cooldown(timers, TimerKind.SHARED_POOLS, 1.0, POOL_SECONDS)
        self.waiting_pools: set[PoolKey] = set()  # other nodes than the slice's keep their view of these pools
        self.dirty: dict[str, None] = {}
        self.dirty_use: dict[str, None] = {}
        self.dirty_pools: set[PoolKey] = set()

    # -- events ----------------------------------------------------------------------------------------------

    def put(self, name: str, new: Slice | None, now: float = 0.0) -> list[PoolKey]:
        """Put a slice; None deletes it. Returns the pools that name other nodes now, but for those that many nodes see.

        `now` is in seconds of the service's clock. A slice of a node's agent counts as its report.
        """
        old = self._effective(name)
        both = [one for one in (old, new) if one is not None]
        named = {one.pool: set(self.pools.nodes(one.pool)) for one in both}
        if old is not None:
            self.deleted.add(name)
            self._remove(old)
            del self.published[name]
        if new is not None:
            self.published[name] = new
            self._add(new if _is_of_agent(new) else tainted(new, self.rules.values()))
        self._touch_nodes(both, now)
        doubted = self.publishers.changed.difference(self.dirty)  # - keys() would look at each dirty node
        self._mark(node for node in doubted if self.node_changes.try_accept(node, now))
        if new is not None and _is_of_agent(new):
            self.agents.report(new.selection.node_name, now)
        elif old is not None and _is_of_agent(old) and old.selection.node_name not in self.fabric:
            self.agents.forget(old.selection.node_name)
        return [pool for pool, before in named.items() if self._is_elsewhere(pool, before)]

    def _is_elsewhere(self, pool: PoolKey, before: set[str]) -> bool:
        """Whether a pool names other nodes than before. A shared pool does not: it may have thousands of claims."""
        nodes = self.pools.nodes(pool)
        return nodes != before and not ("" in nodes and "" in before)

    def _effective(self, name: str) -> Slice | None:
        """The slice of a name as the other indexes have it: with taints, unless it is of an agent."""
        published = self.published.get(name)
        return (
            published
            if published is None or _is_of_agent(published)
            else self.pools.by_pool[published.pool][published.name]
        )

    def _add(self, new: Slice) -> None:
        node = new.selection.node_name
        if _is_of_agent(new):
            insort(self._agent_slices.setdefault(node, []), new.name)
            self._choose_agent_slice(node)
            return
        self.pools.put(new)
        if node:
            found = (whole_identity(device, new.pool.driver) for device in new.devices)
            self.publishers.put(new.name, node, filter(None, found))
            self.by_node.setdefault(node, NodeSlices()).put(new)
        else:
            self.shared.put(new)

    def _remove(self, old: Slice) -> None:
        node = old.selection.node_name
        if _is_of_agent(old):
            names = self._agent_slices[node]
            del names[bisect_left(names, old.name)]
            if not names:
                del self._agent_slices[node]
            self._choose_agent_slice(node)
            return
        self.pools.remove(old)
        if not node:
            self.shared.remove(old)
            return
        self.publishers.remove(old.name, node)
        self.by_node[node].remove(old)
        if not self.by_node[node].pools:
            del self.by_node[node]

    def _choose_agent_slice(self, node: str) -> None:
        names = self._agent_slices.get(node, [])[:_MAX_AGENT_SLICES]
        chosen, problems = agent_slice([self.published[name] for name in names], node)
        set_or_drop(self.fabric, node, chosen)
        set_or_drop(self.rejected, node, problems or None)

    def _touch_nodes(self, changed: list[Slice], now: float) -> None:
        """Mark the nodes of the pools of slices: a slice of one node can complete or break a pool that others see."""
        named = {one.selection.node_name or ("" if _is_of_agent(one) else ALL_NODES) for one in changed}
        new = named.difference(self.dirty)
        self._mark(node for node in new if node == ALL_NODES or self.node_changes.try_accept(node, now))
        for pool in dict.fromkeys(one.pool for one in changed if not _is_of_agent(one)):
            nodes = self.nodes_of([pool]) - named
            is_large = ALL_NODES in nodes or len(nodes) >= _LARGE_POOL_NODES
            cost = 1.0 if is_large else len(nodes) / _NODES_TOGETHER
            if ALL_NODES in named or not nodes or self._pool_changes.try_accept("", now, cost):
                self._mark(nodes)
            else:
                self.waiting_pools.add(pool)

    def put_rule(self, name: str, new: TaintRule | None) -> None:
        """Put a rule; None deletes it. Marks the slices that the old or the new rule may match."""
        old = self.rules.get(name)
        set_or_drop(self.rules, name, new)
        for rule in (old, new):
            if rule is not None:
                self.to_taint.update(dict.fromkeys(self._slices_of(rule)))

    def _slices_of(self, rule: TaintRule) -> Iterable[str]:
        """Names of the slices of the rule's driver and pool."""
        by_pool = self.pools.by_pool
        if rule.driver and rule.pool:
            return by_pool.get(PoolKey(rule.driver, rule.pool), ())
        return [name for pool, slices in by_pool.items() if rule.matches_pool(pool) for name in slices]

    def node_appeared(self, node: str) -> None:
        """A node is new. If an old slice of its agent is there, the agent counts as silent until it reports."""
        if node in self.fabric:
            self.agents.node_appeared(node)

    def node_deleted(self, node: str) -> None:
        """Forget what a deleted node, and its agent, did before."""
        self.agents.forget(node)
        self.node_changes.forget(node)

    def end_wait(self, kind: TimerKind, key: str, now: float) -> None:
        """The timer of a cooldown is due: mark the nodes whose newest slices are used from now on."""
        if kind is TimerKind.SHARED_POOLS:
            self._pool_changes.ended(key, now)
            self._mark(self.nodes_of(self.waiting_pools))
            self.waiting_pools = set()
        else:
            self.node_changes.ended(key, now)
            self.dirty[key] = None

    # -- marks -----------------------------------------------------------------------------------------------

    def _mark(self, nodes: Iterable[str]) -> None:
        self.dirty.update(dict.fromkeys(sorted(nodes)))

    def nodes_of(self, keys: Iterable[PoolKey]) -> set[str]:
        """The nodes whose slices are in these pools; ALL_NODES for slices without a node name."""
        return {node or ALL_NODES for key in keys for node in self.pools.nodes(key)}

    def touch_pools(self, keys: Iterable[PoolKey]) -> None:
        """Mark the nodes of these pools: the use of their devices changed."""
        for key in sorted(keys):
            for node in self.pools.nodes(key):
                if node:
                    self.dirty_use[node] = None
                else:
                    self.dirty_pools.add(key)

    def take_dirty_nodes(self, nodes: Collection[str]) -> tuple[dict[str, None], dict[str, None], set[PoolKey]]:
        """Return and clear the marks: nodes to build again, nodes where only the use changed, and `dirty_pools`.

        `nodes` are all nodes.
        """
        if self.to_taint:
            self.compute_taints(len(self.to_taint))
        dirty, used, pools = self._all_dirty(nodes), self.dirty_use, self.dirty_pools
        self.dirty, self.dirty_use, self.dirty_pools = {}, {}, set()
        return dirty, {node: None for node in used if node not in dirty}, pools

    def take_some_dirty_nodes(self, most: int, nodes: Collection[str]) -> tuple[list[str], list[str]]:
        """Return up to `most` nodes, and clear their marks: nodes to build again, and nodes where only the use changed.

        None is left if there are fewer. `nodes` are all nodes.
        """
        dirty = self.dirty = self._all_dirty(nodes)
        names = [dirty.popitem()[0] for _ in range(min(most, len(dirty)))]
        for name in names:
            self.dirty_use.pop(name, None)
        return names, [self.dirty_use.popitem()[0] for _ in range(min(most - len(names), len(self.dirty_use)))]

    def _all_dirty(self, nodes: Collection[str]) -> dict[str, None]:
        if ALL_NODES not in self.dirty:
            return self.dirty
        return {node: None for node in (*self.dirty, *nodes) if node != ALL_NODES}

    def compute_taints(self, most: int) -> int:
        """Compute the taints of up to `most` slices after a change of rules; returns how many are left."""
        for name in list(islice(self.to_taint, most)):
            del self.to_taint[name]
            before = self._effective(name)
            if before is None or _is_of_agent(before):
                continue
            now = tainted(self.published[name], self.rules.values())
            if now != before:
                self.deleted.add(name)
                self._remove(before)
                self._add(now)
                self._mark(self.nodes_of([now.pool]))
        return len(self.to_taint)


def set_or_drop(table: dict[Any, Any], key: object, new: object | None) -> None:
    """Set an entry of a table; None drops it."""
    if new is None:
        table.pop(key, None)
    else:
        table[key] = new


def discard(table: dict[Any, dict[Any, Any]], key: object, name: object) -> None:
    """Drop an entry of an inner table, and the inner table with its last entry."""
    inner = table.get(key)
    if inner is not None:
        inner.pop(name, None)
        if not inner:
            del table[key]


def _is_of_agent(slice_: Slice) -> bool:
    """Whether a node agent of Berth published the slice."""
    return slice_.pool.driver == FABRIC_DRIVER


class AgentReports:
    """An agent that does not report for `seconds` is silent: its memory data is too old.

    `silent` are the nodes of silent agents.
    """

    def __init__(self, timers: CacheTimers) -> None:
        self._timers = timers
        self._seconds = _LIVE_MEMORY_SECONDS
        self.silent: set[str] = set()
        self._reported: OrderedDict[str, float] = OrderedDict()  # node to time of last slice, oldest first

    def use_seconds(self, seconds: float) -> None:
        """Change the time until an agent is silent."""
        self._seconds = seconds
        for node, at in self._reported.items():
            self._timers.at((TimerKind.AGENT, node), at + seconds)

    def report(self, node: str, now: float) -> None:
        """The agent of a node has reported: it is not silent."""
        self._reported[node] = now
        self._reported.move_to_end(node)
        self.silent.discard(node)
        self._timers.at((TimerKind.AGENT, node), now + self._seconds)

    def forget(self, node: str) -> None:
        """Forget an agent: its slice or its node was deleted."""
        self._reported.pop(node, None)
        self.silent.discard(node)
        self._timers.cancel((TimerKind.AGENT, node))

    def node_appeared(self, node: str) -> None:
        """A new node has an old slice of an agent: the agent counts as silent until it reports."""
        if node not in self._reported:
            self.silent.add(node)

    def expire(self, node: str, *, exists: bool) -> bool:
        """The agent has become silent, unless its node does not exist. Returns whether it has."""
        del self._reported[node]
        if exists:
            self.silent.add(node)
        return exists

    def oldest(self, now: float) -> float:
        """Seconds since the oldest last report among agents that are not silent; 0 without agents."""
        return now - next(iter(self._reported.values()), now)


class PoolSlices:
    """A driver decides how many slices a pool has, so an event of a slice or claim reads the nodes, not the slices."""

    def __init__(self) -> None:
        self.by_pool: dict[PoolKey, dict[str, Slice]] = {}  # slices by name
        # Of pools with several slices: name of a node, or '' for slices without one, to number of slices.
        self._nodes: dict[PoolKey, dict[str, int]] = {}
        self.with_counters: dict[PoolKey, dict[str, Slice]] = {}  # slices with counter sets, by name
        self._whole: dict[PoolKey, WholePool] = {}  # of pools that were asked for since their last change

    def put(self, new: Slice) -> None:
        """Add a slice. Its name must be unknown."""
        self._whole.pop(new.pool, None)
        slices = self.by_pool.setdefault(new.pool, {})
        slices[new.name] = new
        if new.counter_sets:
            self.with_counters.setdefault(new.pool, {})[new.name] = new
        if len(slices) > 1:
            nodes = self._nodes.setdefault(new.pool, {})
            for one in (new,) if nodes else slices.values():
                nodes[one.selection.node_name] = nodes.get(one.selection.node_name, 0) + 1

    def remove(self, old: Slice) -> None:
        """Remove a slice."""
        self._whole.pop(old.pool, None)
        slices, node = self.by_pool[old.pool], old.selection.node_name
        del slices[old.name]
        if old.counter_sets:
            self.with_counters[old.pool].pop(old.name)
        if len(slices) > 1:
            nodes = self._nodes[old.pool]
            nodes[node] -= 1
            if not nodes[node]:
                del nodes[node]
        else:
            self._nodes.pop(old.pool, None)
        if not slices:
            del self.by_pool[old.pool]
            self.with_counters.pop(old.pool, None)

    def nodes(self, pool: PoolKey) -> AbstractSet[str]:
        """The nodes that the slices of a pool name; '' for slices without a node name."""
        known = self._nodes.get(pool)
        if known is not None:
            return known.keys()
        return {slice_.selection.node_name for slice_ in self.by_pool.get(pool, {}).values()}  # of one slice

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


class GpuPublishers:
    """The nodes whose drivers publish a GPU, by its UUID. The order in which their slices came does not matter.

    A node's agent may not describe a GPU that only another node's driver publishes. So the builder asks about the GPUs
    that an agent names and the node's own driver does not; in an honest fleet it asks nothing. Questions are kept until
    the node asks anew: `changed` are the nodes for which an answer may have changed.
    """

    def __init__(self) -> None:
        self.changed: set[str] = set()
        self._nodes: dict[
            str, tuple[str, ...]
        ] = {}  # by UUID: the node of each slice that publishes it, nearly always one
        self._gpus: dict[str, tuple[str, ...]] = {}  # UUIDs by slice name
        self._questions: dict[str, set[str]] = {}  # UUIDs by the node that asked
        self._askers: dict[str, set[str]] = {}  # the reverse

    def put(self, name: str, node: str, uuids: Iterable[str]) -> None:
        """Add a slice of a node's driver. Its name must be unknown."""
        self._gpus[name] = gpus = tuple(dict.fromkeys(uuids))
        alone = (node,)  # one object for all GPUs of the slice
        for uuid in gpus:
            known = self._nodes.get(uuid)
            self._nodes[uuid] = alone if known is None else known + alone
        self._note(gpus)

    def remove(self, name: str, node: str) -> None:
        """Remove a slice of a node's driver."""
        gpus = self._gpus.pop(name)
        for uuid in gpus:
            rest = list(self._nodes.pop(uuid))
            rest.remove(node)
            if rest:
                self._nodes[uuid] = tuple(rest)
        self._note(gpus)

    def _note(self, gpus: Iterable[str]) -> None:
        if self._askers:
            self.changed.update(*(self._askers[uuid] for uuid in gpus if uuid in self._askers))

    def ask(self, node: str, uuid: str) -> str:
        """The first other node by name whose driver publishes a UUID, or ''. The question is kept."""
        self._questions.setdefault(node, set()).add(uuid)
        self._askers.setdefault(uuid, set()).add(node)
        return min((one for one in self._nodes.get(uuid, ()) if one != node), default="")

    def forget_questions(self, node: str) -> None:
        """Drop the questions of a node: it is deleted, or asks anew."""
        self.changed.discard(node)
        for uuid in self._questions.pop(node, ()):
            self._askers[uuid].discard(node)
            if not self._askers[uuid]:
                del self._askers[uuid]


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


class NodeSlices:
    """The slices that name one node. If they have too many devices, the largest pools are left out.

    The other pools stay: one driver must not take the devices of others from their pods.
    """

    __slots__ = ("_size", "pools")

    def __init__(self) -> None:
        self.pools: dict[PoolKey, dict[str, Slice]] = {}  # by name
        self._size = 0

    def put(self, new: Slice) -> None:
        """Add a slice. Its name must be unknown."""
        self.pools.setdefault(new.pool, {})[new.name] = new
        self._size += _size(new)

    def remove(self, old: Slice) -> None:
        """Remove a slice."""
        discard(self.pools, old.pool, old.name)
        self._size -= _size(old)

    def kept(self) -> tuple[dict[PoolKey, dict[str, Slice]], list[PoolKey]]:
        """The slices of the pools that are not left out, by pool and name; and the largest of the other pools."""
        most = MAX_NODE_DEVICES + _DEVICES_PER_POOL  # one pool is free
        if self._size + _DEVICES_PER_POOL * len(self.pools) <= most:
            return self.pools, []
        sizes = sorted((_DEVICES_PER_POOL + sum(map(_size, of.values())), pool) for pool, of in self.pools.items())
        kept = sum(total <= most for total in accumulate(size for size, _ in sizes))
        left_out = [pool for _, pool in sizes[max(kept, len(sizes) - _MAX_NAMED) :]]
        return {pool: self.pools[pool] for _, pool in sizes[:kept]}, sorted(left_out)


def _size(slice_: Slice) -> int:
    """The number of devices, plus what takes about as much time: the slice itself, and counters."""
    consumed = sum(len(use.counters) for device in slice_.devices for use in device.consumes)
    counters = sum(len(one.counters) for one in slice_.counter_sets)
    return 1 + len(slice_.devices) + counters + consumed // _COUNTERS_PER_DEVICE


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
