"""The objects of the watches, with the indexes that snapshots need.

Each kind has one `put` method. It takes the new object, or None for a deletion, from a watch or from a list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from cachetools import LRUCache

from extender.allocation.nodes import gpu_uuid
from extender.cache.allocated_devices import CLAIM, AllocatedDevices
from extender.cache.slice_indexes import NodeSlices, PoolSlices, SharedSlices, tainted
from extender.cache.timers import Cooldown, TimerKind, Timers
from extender.model import (
    Claim,
    DeviceClass,
    DeviceId,
    GroupKey,
    GroupPolicy,
    Node,
    ObjectKey,
    Pod,
    PoolKey,
    Slice,
    TaintRule,
)
from extender.topology.agent_slices import DRIVER as FABRIC_DRIVER
from extender.topology.agent_slices import hardware_facts
from extender.topology.sources import agent_slice

ALL_NODES = "*"
_LABELS = 64  # whose nodes are remembered
_GONE = 4096  # members that terminate: their claims show them as bound
_MAX_AGENT_SLICES = 8  # per node; an agent publishes one
# Changes of one node's slices. After each, every waiting template may need a long search on the node: 1,024 GPUs of
# ever new products, written 20 times a second, left pods with matchAttribute 13 % of their rate. A driver that starts
# writes all its slices at once.
NODE_BURST, NODE_SECONDS = 16, 5.0
# Changes of the links and GPUs in the slice of a node's agent: one may cost a search for rings of 75 ms.
LINK_BURST, LINK_SECONDS = 4, 15.0
LINKS_TOO_OFTEN = f"its agent changes links or GPUs too often: Berth uses one change in {LINK_SECONDS:.0f} s"
# Changes of pools that other nodes see, by the slices of one node: one of many nodes, or some with so many nodes
# together. The driver of a node may publish a slice in the name of a pool that all nodes see, and to build 4,000 nodes
# takes 0.3 s. 20 writes a second in the name of a rack's pool took a quarter of the time.
POOL_SECONDS, _FEW_NODES, _NODES_TOGETHER = 5.0, 64, 512


class ObjectIndex:
    """All objects as of the last event.

    `dirty` are the nodes whose NodeInfo must be built again, `dirty_use` those where only the allocated devices
    changed. `dirty_pools` are the pools of several nodes whose allocated devices changed. After a change of a rule,
    `take_dirty_nodes` computes the taints. Until then, the indexes of slices have the taints of the old rules.
    """

    def __init__(self, allocated_devices: AllocatedDevices, timers: Timers | None = None) -> None:
        self._allocated_devices = allocated_devices
        timers = timers or Timers()
        self.node_changes = Cooldown(timers, TimerKind.NODE_CHANGES, NODE_BURST, NODE_SECONDS)
        self.link_changes = Cooldown(timers, TimerKind.LINK_CHANGES, LINK_BURST, LINK_SECONDS)
        self._pool_changes = Cooldown(timers, TimerKind.SHARED_POOLS, 1.0, POOL_SECONDS)
        self.waiting_pools: set[PoolKey] = set()  # other nodes than the slice's keep their view of these pools
        self.slices: dict[str, Slice] = {}  # as published
        self._names: dict[str, dict[str, set[str]]] = {}  # names of the published slices by driver and pool
        self.rules: dict[str, TaintRule] = {}
        self._effective: dict[str, Slice] = {}  # with the taints of rules; all other indexes use these
        self._to_taint: dict[str, None] = {}  # names of the slices that a changed rule may match
        self.pool_slices = PoolSlices()
        self.pools = self.pool_slices.by_pool
        self.by_node: dict[str, NodeSlices] = {}
        self.shared_slices = SharedSlices()
        self.fabric: dict[str, Slice] = {}  # the chosen fabric slice of each node's agent, by node
        self._agent_slices: dict[str, dict[str, Slice]] = {}  # all fabric slices, by node and name
        self.rejected_slices: dict[str, tuple[str, ...]] = {}  # why other fabric slices were rejected, by node
        self.publishers: dict[str, str] = {}  # UUID of a whole GPU to the node whose driver publishes it
        self.silent_agents: set[str] = set()  # nodes whose fabric slice is too old for its memory data
        self.of_groups = GroupClaims()
        self.nodes_version = 0
        # The labels come from pods and PodGroups, so any tenant can name a new one.
        self._by_label: LRUCache[str, tuple[int, Mapping[str, frozenset[str]]]] = LRUCache(_LABELS)
        self.classes: dict[str, DeviceClass] = {}
        self.claims: dict[ObjectKey, Claim] = {}
        self._key_of: dict[str, ObjectKey] = {}  # by UID
        self.without_consumer: set[ObjectKey] = set()  # allocated claims, and special ones, without a consumer
        # Namespace and UID of a pod to its special claims.
        self.special_claims: dict[tuple[str, str], dict[ObjectKey, None]] = {}
        # Claim UID to the resourceVersion of its allocation; only for allocations that a watch event showed.
        self.allocated_at: dict[str, int] = {}
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}  # by UID
        # Pods of each group that have no node, by UID; without pods that are deleted or have scheduling gates.
        self.members: dict[GroupKey, dict[str, Pod]] = {}
        self.group_policies: dict[GroupKey, GroupPolicy] = {}
        self.bound_members: dict[GroupKey, Mapping[str, str]] = {}  # UID to node, from a recent read
        self.gone_members: LRUCache[str, None] = LRUCache(_GONE)  # UIDs that some read showed as terminating or gone
        self.changed_members: dict[GroupKey, set[str]] = {}  # UIDs, since the last `take_changed_groups`
        # Groups with other members or another minimum, or whose members may use other nodes or have other annotations.
        # False if nothing happened but that members wait no more.
        self.resized_groups: dict[GroupKey, bool] = {}
        self.waited_for: Counter[ObjectKey] = Counter()  # number of waiting pods by claim
        self.namespaces: dict[str, dict[str, str]] = {}
        self.classes_version = 0
        self.dirty: set[str] = set()
        self.dirty_use: set[str] = set()
        self.dirty_pools: set[PoolKey] = set()
        self.deleted_slices: set[str] = set()  # names
        self.deleted_pods: set[str] = set()  # UIDs

    def touch_pools(self, keys: Iterable[PoolKey]) -> None:
        """Mark the nodes of these pools: the use of their devices changed."""
        for key in keys:
            nodes = self.pool_slices.nodes(key)
            self.dirty_use.update(filter(None, nodes))
            if "" in nodes:
                self.dirty_pools.add(key)

    def nodes_of(self, keys: Iterable[PoolKey]) -> set[str]:
        """The nodes whose slices are in these pools; ALL_NODES for slices without a node name."""
        return {node or ALL_NODES for key in keys for node in self.pool_slices.nodes(key)}

    @property
    def backlog(self) -> int:
        """The most slices and nodes that must be computed again. A slice with new taints may mark every node."""
        everything = ALL_NODES in self.dirty or self._to_taint
        return len(self._to_taint) + (len(self.nodes) if everything else len(self.dirty) + len(self.dirty_use))

    def take_dirty_nodes(self) -> tuple[set[str], set[str], set[PoolKey]]:
        """Return and clear the marks: nodes to build again, nodes where only the use changed, and `dirty_pools`."""
        self.compute_taints(len(self._to_taint))
        dirty, used, pools = self._all_dirty(), self.dirty_use, self.dirty_pools
        self.dirty, self.dirty_use, self.dirty_pools = set(), set(), set()
        return dirty, used - dirty, pools

    def take_some_dirty_nodes(self, most: int) -> tuple[list[str], list[str]]:
        """Return up to `most` nodes, and clear their marks: nodes to build again, and nodes where only the use changed.

        None is left if there are fewer.
        """
        dirty = self.dirty = self._all_dirty()
        names = [dirty.pop() for _ in range(min(most, len(dirty)))]
        self.dirty_use.difference_update(names)
        return names, [self.dirty_use.pop() for _ in range(min(most - len(names), len(self.dirty_use)))]

    def _all_dirty(self) -> set[str]:
        return (self.dirty | self.nodes.keys()) - {ALL_NODES} if ALL_NODES in self.dirty else self.dirty

    def compute_taints(self, most: int) -> int:
        """Compute the taints of up to `most` slices after a change of rules; returns how many are left."""
        for name in list(islice(self._to_taint, most)):
            del self._to_taint[name]
            slice_ = self.slices.get(name)
            if slice_ is not None and tainted(slice_, self.rules.values()) != self._effective[name]:
                self.put_slice(name, slice_, only_taints=True)
                self.dirty |= self.nodes_of([slice_.pool]) | {slice_.selection.node_name or ALL_NODES}
        return len(self._to_taint)

    def take_changed_groups(self) -> tuple[dict[GroupKey, set[str]], dict[GroupKey, bool]]:
        """Return and clear `changed_members` and `resized_groups`."""
        found = self.changed_members, self.resized_groups
        self.changed_members, self.resized_groups = {}, {}
        return found

    # -- put: one method per kind, with the new object or None ----------------------------------------------

    def put_rule(self, name: str, new: TaintRule | None) -> None:
        """Put a rule, and mark the slices that the old or the new rule may match."""
        old = self.rules.get(name)
        _replace(self.rules, name, new)
        for rule in (old, new):
            self._to_taint.update(dict.fromkeys(self._slices_of(rule)) if rule is not None else {})

    def _forget_name(self, old: Slice) -> None:
        driver, pool = old.pool
        self._names[driver][pool].discard(old.name)
        if not self._names[driver][pool]:
            del self._names[driver][pool]
        if not self._names[driver]:
            del self._names[driver]

    def _slices_of(self, rule: TaintRule) -> Iterator[str]:
        """Names of the slices of the rule's driver and pool."""
        for driver in (rule.driver,) if rule.driver else self._names:
            pools = self._names.get(driver, {})
            for pool in (rule.pool,) if rule.pool else pools:
                yield from pools.get(pool, ())

    def put_slice(self, name: str, new: Slice | None, now: float = 0.0, *, only_taints: bool = False) -> None:
        old = self._effective.pop(name, None)
        ours = [one.selection.node_name for one in (old, new) if one is not None and one.pool.driver == FABRIC_DRIVER]
        before = {node: self.fabric.get(node) for node in ours}
        nodes = {one.pool: set(self.pool_slices.nodes(one.pool)) for one in (old, new) if one is not None}
        if old is not None:
            self._unindex(old)
            self.deleted_slices.add(name)
            self._forget_name(old)
        _replace(self.slices, name, new)
        if new is not None:
            self._names.setdefault(new.pool.driver, {}).setdefault(new.pool.name, set()).add(name)
            self._effective[name] = effective = tainted(new, self.rules.values())
            self._index(name, effective)
        if not only_taints:  # else the caller marks the nodes
            self._touch_nodes([one for one in (old, new) if one is not None], now)
        for pool, named_before in nodes.items():
            named = self.pool_slices.nodes(pool)
            is_shared = "" in named and "" in named_before  # such a pool may have thousands of claims
            if named != named_before and not is_shared:
                self._index_groups_on(pool)
        for node, slice_ in before.items():
            if hardware_facts(slice_) != hardware_facts(self.fabric.get(node)):
                self.link_changes.allows(node, now)  # if not, the builder keeps the last slice

    def _touch_nodes(self, changed: list[Slice], now: float) -> None:
        """Mark the nodes of the pools of slices: a slice of one node can complete or break a pool that others see."""
        named = {slice_.selection.node_name or ALL_NODES for slice_ in changed if slice_.pool.driver != FABRIC_DRIVER}
        named |= {slice_.selection.node_name for slice_ in changed if slice_.pool.driver == FABRIC_DRIVER}
        self.dirty |= {node for node in named - self.dirty if node == ALL_NODES or self.node_changes.allows(node, now)}
        for pool in {slice_.pool for slice_ in changed if slice_.pool.driver != FABRIC_DRIVER}:
            nodes = self.nodes_of([pool]) - named
            is_large = ALL_NODES in nodes or len(nodes) >= _FEW_NODES
            cost = 1.0 if is_large else len(nodes) / _NODES_TOGETHER
            if ALL_NODES in named or not nodes or self._pool_changes.allows("", now, cost):
                self.dirty |= nodes
            else:
                self.waiting_pools.add(pool)

    def end_wait(self, kind: TimerKind, key: str, now: float) -> None:
        """The timer of a cooldown is due: mark the nodes whose newest slices are used from now on."""
        if kind is TimerKind.SHARED_POOLS:
            self._pool_changes.ended(key, now)
            self.dirty |= self.nodes_of(self.waiting_pools)
            self.waiting_pools = set()
        else:
            (self.node_changes if kind is TimerKind.NODE_CHANGES else self.link_changes).ended(key, now)
            self.dirty.add(key)

    def _index(self, name: str, new: Slice) -> None:
        node = new.selection.node_name
        if new.pool.driver == FABRIC_DRIVER:
            kept = self._agent_slices.setdefault(node, {})
            if len(kept) < _MAX_AGENT_SLICES:
                kept[name] = new
            self._choose_agent_slice(node)
            return
        if node:
            self.publishers.update((uuid, node) for device in new.devices if (uuid := gpu_uuid(device)))
        self.pool_slices.put(new)
        if node:
            self.by_node.setdefault(node, NodeSlices()).put(new)
        else:
            self.shared_slices.put(new)

    def _unindex(self, old: Slice) -> None:
        node = old.selection.node_name
        if old.pool.driver == FABRIC_DRIVER:
            _discard(self._agent_slices, node, old.name)
            self._choose_agent_slice(node)
            return
        for device in old.devices:
            if self.publishers.get(uuid := gpu_uuid(device)) == node:
                del self.publishers[uuid]
        self.pool_slices.remove(old)
        if node:
            self.by_node[node].remove(old)
            if not self.by_node[node]:
                del self.by_node[node]
        else:
            self.shared_slices.remove(old)

    def _choose_agent_slice(self, node: str) -> None:
        chosen, problems = agent_slice(self._agent_slices.get(node, {}).values(), node)
        _replace(self.fabric, node, chosen)
        _replace(self.rejected_slices, node, problems or None)

    def put_class(self, name: str, new: DeviceClass | None) -> None:
        if self.classes.get(name) == new:
            return  # the wake-up annotation is not part of a DeviceClass
        self.classes_version += 1
        _replace(self.classes, name, new)

    def put_claim(self, key: ObjectKey, new: Claim | None, *, listed: bool) -> Claim | None:
        """Put a claim; returns the old one.

        A list (`listed`) does not show when an allocation was written. If it shows another version than the cache has,
        the allocation may be a new one.
        """
        old = self.claims.get(key)
        if old is not None and (new is None or new.uid != old.uid):
            self.touch_pools(self._allocated_devices.drop((CLAIM, old.uid)))
            self.allocated_at.pop(old.uid, None)
            self._key_of.pop(old.uid, None)
        _replace(self.claims, key, new)
        self._index_special(key, old, new)
        self._index_group(old, new)
        if new is not None and (new.allocation is not None or new.extended) and not new.reserved_for:
            self.without_consumer.add(key)
        else:
            self.without_consumer.discard(key)
        if new is not None:
            self._key_of[new.uid] = key
            results = new.allocation.results if new.allocation is not None else ()
            if new.allocation is None or (listed and (old is None or old.resource_version != new.resource_version)):
                self.allocated_at.pop(new.uid, None)
            elif not listed and (old is None or old.uid != new.uid or old.allocation is None):
                version = new.resource_version
                if version.isascii() and version.isdigit():
                    self.allocated_at.setdefault(new.uid, int(version))
            self.touch_pools(self._allocated_devices.put((CLAIM, new.uid), results))
        return old

    def claims_on(self, pool: PoolKey) -> list[Claim]:
        """The claims that have devices of a pool."""
        return [self.claims[self._key_of[uid]] for uid in self._allocated_devices.claims(pool)]

    def _index_special(self, key: ObjectKey, old: Claim | None, new: Claim | None) -> None:
        """Two processes that bind one pod make two special claims for it."""
        if old is not None:
            _discard(self.special_claims, (key.namespace, old.special_for), key)
        if new is not None and new.special_for:
            self.special_claims.setdefault((key.namespace, new.special_for), {})[key] = None

    def _index_group(self, old: Claim | None, new: Claim | None) -> None:
        self.of_groups.put(old, new, self.pool_slices.node_of(new) if new is not None and new.group else "")

    def _index_groups_on(self, pool: PoolKey) -> None:
        """Claims may be listed before the slice that says which node their devices belong to."""
        for claim in self.claims_on(pool):
            self._index_group(claim, claim)

    def put_node(self, name: str, new: Node | None) -> None:
        if self.nodes.get(name) != new:
            self.dirty.add(name)
            self.nodes_version += 1
            _replace(self.nodes, name, new)
            if new is None:
                self.node_changes.forget(name)

    @property
    def remembered_labels(self) -> int:
        """The number of labels in the cache of `nodes_by_label`."""
        return len(self._by_label)

    def nodes_by_label(self, label: str) -> Mapping[str, frozenset[str]]:
        """Node names by the value of a label. Computed on demand, and again after a change of the nodes."""
        known = self._by_label.get(label)
        if known is None or known[0] != self.nodes_version:
            found: dict[str, set[str]] = {}
            for name, node in self.nodes.items():
                if label in node.labels:
                    found.setdefault(node.labels[label], set()).add(name)
            known = self._by_label[label] = (
                self.nodes_version,
                {value: frozenset(names) for value, names in found.items()},
            )
        return known[1]

    def is_shared(self, claim: ObjectKey) -> bool:
        """Whether more than one waiting pod asks for the claim."""
        return self.waited_for.get(claim, 0) > 1

    def put_pod(self, uid: str, new: Pod | None) -> None:
        old = self.pods.get(uid)
        for key in old.claim_keys if old is not None else ():
            self.waited_for[key] -= 1
            if not self.waited_for[key]:
                del self.waited_for[key]
        self.waited_for.update(new.claim_keys if new is not None else ())
        self._index_member(uid, old, new)
        _replace(self.pods, uid, new)
        if new is None:
            self.deleted_pods.add(uid)

    def _index_member(self, uid: str, old: Pod | None, new: Pod | None) -> None:
        for pod in (old, new):
            if pod is not None and pod.membership is not None:
                self.changed_members.setdefault(pod.membership.key, set()).add(uid)
        before = old.membership.key if old is not None and old.membership is not None and old.is_waiting else None
        after = new.membership.key if new is not None and new.membership is not None and new.is_waiting else None
        if before is not None and before != after:
            self.forget_member(before, uid)
        if new is not None and after is not None:
            self.members.setdefault(after, {})[uid] = new
        if before != after or _planned(old) != _planned(new):
            for key in (before, after):
                if key is not None:
                    self.resized_groups[key] = key == after or self.resized_groups.get(key, False)

    def forget_member(self, key: GroupKey, uid: str) -> None:
        """A pod is no waiting member of a group any more."""
        _discard(self.members, key, uid)

    def put_group_policy(self, key: GroupKey, new: GroupPolicy | None) -> None:
        if self.group_policies.get(key) != new:
            self.resized_groups[key] = True
        _replace(self.group_policies, key, new)

    def put_namespace(self, name: str, new: dict[str, str] | None) -> None:
        _replace(self.namespaces, name, new)


def _replace(table: dict[Any, Any], key: object, new: object | None) -> None:
    if new is None:
        table.pop(key, None)
    else:
        table[key] = new


def _discard(table: dict[Any, dict[Any, Any]], key: object, name: object) -> None:
    inner = table.get(key)
    if inner is not None:
        inner.pop(name, None)
        if not inner:
            del table[key]


def _planned(pod: Pod | None) -> tuple[object, ...]:
    """The parts of a member that a plan of its gang reads, and that can change."""
    if pod is None or pod.membership is None:
        return (None,)
    return pod.membership, pod.node_selectors, pod.tolerations


Name = tuple[str, str]
"""Namespace and GroupKey.on_claims of a group."""


class GroupClaims:
    """Tables by group: `claims` to their node, and `users`, which counts each (UID, node) of a pod that uses a claim.

    64 claims may be reserved for 256 pods each, and each filter request of a gang's member asks for these pods.
    """

    def __init__(self) -> None:
        self.claims: dict[Name, dict[ObjectKey, str]] = {}
        self.users: dict[Name, Counter[tuple[str, str]]] = {}

    def put(self, old: Claim | None, new: Claim | None, node: str) -> None:
        """Replace a claim. `node` is where the new one has devices; '' if no slice says it.

        Then a claim with the same devices keeps its node: an update of a driver deletes its slices for a while, and a
        driver may publish slices of other nodes in any pool. A claim without a node counts for no group.
        """
        known = self._remove(old) if old is not None else ""
        if known and not node and old is not None and new is not None and _devices(old) == _devices(new):
            node = known
        if new is not None and new.group and node:
            name = new.key.namespace, new.group
            self.claims.setdefault(name, {})[new.key] = node
            self.users.setdefault(name, Counter()).update(_users(new, node))

    def _remove(self, old: Claim) -> str:
        """Returns the node of the claim; '' if it counted for no group."""
        name = old.key.namespace, old.group
        node = self.claims.get(name, {}).pop(old.key, "")
        if not node:
            return ""
        users = self.users[name]
        for user in _users(old, node):
            users[user] -= 1
            if not users[user]:
                del users[user]
        if not self.claims[name]:
            del self.claims[name], self.users[name]
        return node


def _devices(claim: Claim) -> list[DeviceId]:
    return [result.device for result in claim.allocation.results] if claim.allocation is not None else []


def _users(claim: Claim, node: str) -> Iterator[tuple[str, str]]:
    return ((consumer.uid, node) for consumer in claim.reserved_for if consumer.resource == "pods")
