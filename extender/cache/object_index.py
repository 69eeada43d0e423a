"""All watched objects except ResourceSlices, with the indexes that snapshots need.

Each kind has one `put` method. It takes the new object, or None for a deletion, from a watch or from a list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from cachetools import LRUCache

from extender.api.device_classes import DeviceClass
from extender.api.label_domains import LabelDomains, label_domains
from extender.api.nodes import Node
from extender.api.object_meta import ObjectKey
from extender.api.pod_groups import GroupKey, GroupPolicy, GroupSource, GroupTrees, Membership
from extender.api.pods import Pod
from extender.api.resource_claims import Claim
from extender.api.resource_slices import DeviceId, PoolKey
from extender.cache.allocated_devices import CLAIM, AllocatedDevices
from extender.cache.slice_index import SliceIndex, discard, set_or_drop
from extender.vendors import compute_domain

_MAX_LABELS = 64  # paths of labels whose domains are remembered
_MAX_GONE_MEMBERS = 4096  # members that terminate: their claims show them as bound


class ObjectIndex:
    """All objects as of the last event.

    The slice index knows the nodes of each pool: a change of a node, or of the devices of a claim, marks nodes there.
    """

    def __init__(self, allocated_devices: AllocatedDevices, slices: SliceIndex) -> None:
        self._allocated_devices = allocated_devices
        self._slices = slices
        self.nodes: dict[str, Node] = {}
        self.nodes_version = 0
        self.soft_tainted: set[str] = set()  # names of the nodes with a PreferNoSchedule taint
        # The labels come from pods and PodGroups, so any tenant can name a new one.
        self._domains: LRUCache[tuple[str, ...], tuple[int, LabelDomains]] = LRUCache(_MAX_LABELS)
        self.classes: dict[str, DeviceClass] = {}
        self.classes_version = 0
        self.namespaces: dict[str, dict[str, str]] = {}
        self.claims: dict[ObjectKey, Claim] = {}
        self._key_of: dict[str, ObjectKey] = {}  # by UID
        self.without_consumer: set[ObjectKey] = set()  # allocated claims, and special ones, without a consumer
        # Namespace and UID of a pod to its special claims.
        self.special_claims: dict[tuple[str, str], dict[ObjectKey, None]] = {}
        # Claim UID to the resourceVersion of its allocation; only for allocations that a watch event showed.
        self.allocated_at: dict[str, int] = {}
        self.of_groups = GroupClaims()
        self.claimed_cpu: dict[str, int] = {}  # node to the CPU of the pods with claims there, in thousandths of a core
        self.pods: dict[str, Pod] = {}  # by UID
        self.deleted_pods: set[str] = set()  # UIDs, until the caller clears it
        self.waited_for: Counter[ObjectKey] = Counter()  # number of waiting pods by claim
        # Pods of each group that have no node, by UID; without pods that are deleted or have scheduling gates.
        self.members: dict[GroupKey, dict[str, Pod]] = {}
        self.group_policies: dict[GroupKey, GroupPolicy] = {}
        self._trees = GroupTrees(self.group_policies)
        self._of_pod_groups: dict[GroupKey, dict[str, Pod]] = {}  # the pods of PodGroups by UID, as decoded
        self.bound_members: dict[GroupKey, Mapping[str, str]] = {}  # UID to node, from a recent read
        self.gone_members: LRUCache[str, None] = LRUCache(
            _MAX_GONE_MEMBERS
        )  # UIDs that some read showed as terminating or gone
        self.changed_members: dict[GroupKey, set[str]] = {}  # UIDs, since the last `take_changed_groups`
        # Groups with other members or another minimum, or whose members may use other nodes or have other annotations.
        # False if nothing happened but that members wait no more.
        self.resized_groups: dict[GroupKey, bool] = {}

    # -- nodes, classes, namespaces --------------------------------------------------------------------------

    def put_node(self, name: str, new: Node | None) -> None:
        if new is None:
            self._slices.node_deleted(name)
        elif name not in self.nodes:
            self._slices.node_appeared(name)
        if self.nodes.get(name) != new:
            self._slices.dirty[name] = None
            self.nodes_version += 1
            set_or_drop(self.nodes, name, new)
            (self.soft_tainted.add if new is not None and new.soft_taints else self.soft_tainted.discard)(name)

    def domains(self, labels: tuple[str, ...]) -> LabelDomains:
        """The domains by `path_labels`. Computed on demand, and again after a change of the nodes."""
        known = self._domains.get(labels)
        if known is None or known[0] != self.nodes_version:
            nodes = ((name, node.labels) for name, node in self.nodes.items())
            known = self._domains[labels] = self.nodes_version, label_domains(nodes, labels)
        return known[1]

    def put_class(self, name: str, new: DeviceClass | None) -> None:
        if self.classes.get(name) == new:
            return  # the wake-up annotation is not part of a DeviceClass
        self.classes_version += 1
        set_or_drop(self.classes, name, new)

    # -- claims ----------------------------------------------------------------------------------------------

    def put_claim(self, key: ObjectKey, new: Claim | None, *, listed: bool) -> Claim | None:
        """Put a claim; returns the old one.

        A list (`listed`) does not show when an allocation was written. If it shows another version than the cache has,
        the allocation may be a new one.
        """
        old = self.claims.get(key)
        if old is not None and (new is None or new.uid != old.uid):
            self._slices.touch_pools(self._allocated_devices.put((CLAIM, old.uid), ()))
            self.allocated_at.pop(old.uid, None)
            self._key_of.pop(old.uid, None)
        set_or_drop(self.claims, key, new)
        if any(one is not None and one.extended for one in (old, new)):
            self._index_special(key, old, new)
        self._index_group(old, new)
        self._count_cpu(old, -1)
        self._count_cpu(new, 1)
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
            self._slices.touch_pools(self._allocated_devices.put((CLAIM, new.uid), results))
        return old

    def claims_on(self, pool: PoolKey) -> list[Claim]:
        """The claims that have devices of a pool."""
        return [self.claims[self._key_of[uid]] for uid in self._allocated_devices.claims(pool)]

    def compute_domain_of(self, claim_uid: str) -> str:
        """UID of the ComputeDomain that a claim is for; '' for none."""
        claim = self.claims.get(self._key_of[claim_uid]) if claim_uid in self._key_of else None
        return compute_domain(claim.spec) if claim is not None else ""

    def _index_special(self, key: ObjectKey, old: Claim | None, new: Claim | None) -> None:
        """Two processes that bind one pod make two special claims for it."""
        if old is not None:
            discard(self.special_claims, (key.namespace, old.special_for), key)
        if new is not None and new.special_for:
            self.special_claims.setdefault((key.namespace, new.special_for), {})[key] = None

    def _count_cpu(self, claim: Claim | None, sign: int) -> None:
        if claim is None or not claim.cpu or claim.allocation is None or claim.allocation.node_selector is None:
            return
        node = claim.allocation.node_selector.node
        if node is not None:
            set_or_drop(self.claimed_cpu, node, self.claimed_cpu.get(node, 0) + sign * claim.cpu or None)

    def _index_group(self, old: Claim | None, new: Claim | None) -> None:
        self.of_groups.put(old, new, self._slices.pools.node_of(new) if new is not None and new.group else "")

    def index_groups_on(self, pool: PoolKey) -> None:
        """Find the nodes of the claims of a pool again: a claim may be listed before the slice that names its node."""
        for claim in self.claims_on(pool):
            self._index_group(claim, claim)

    # -- pods and groups -------------------------------------------------------------------------------------

    def in_tree(self, pod: Pod) -> Pod:
        """The pod as a member of the gang of its tree of groups; the pod itself if its group is in no tree."""
        own = pod.membership
        found = self._trees.membership(own) if own is not None else None
        return pod if found is own else replace(pod, membership=found)

    def members_in_trees(self, found: Mapping[GroupKey, Mapping[str, str]]) -> dict[GroupKey, dict[str, str]]:
        """UID to node of the members of each gang, by those of the groups that the pods name."""
        together = dict[GroupKey, dict[str, str]]()
        for key, members in found.items():
            together.setdefault(self._trees.membership(Membership(key)).key, {}).update(members)
        return together

    def put_pod(self, uid: str, new: Pod | None) -> None:
        """Put a pod as it was decoded."""
        old = self.pods.get(uid)
        if old is not None and old.group:
            discard(self._of_pod_groups, _pod_group(old), uid)
        if new is not None and new.group:
            self._of_pod_groups.setdefault(_pod_group(new), {})[uid] = new
            new = self.in_tree(new)
        for key in old.claim_keys if old is not None else ():
            self.waited_for[key] -= 1
            if not self.waited_for[key]:
                del self.waited_for[key]
        self.waited_for.update(new.claim_keys if new is not None else ())
        self._index_member(uid, old, new)
        set_or_drop(self.pods, uid, new)
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
        """A pod is no waiting member of a group any more: the watch shows it, or this process bound it."""
        discard(self.members, key, uid)

    def use_bound_members(self, key: GroupKey, members: Mapping[str, str] | None) -> None:
        """Use the bound members of a group as just read, UID to node; None forgets them."""
        if members is None:
            self.bound_members.pop(key, None)
        else:
            self.bound_members[key] = members
            self.gone_members.update((uid, None) for uid, node in members.items() if not node)

    def put_group_policy(self, key: GroupKey, new: GroupPolicy | None) -> None:
        old = self.group_policies.get(key)
        if old == new:
            return
        self.resized_groups[key] = True
        for group in self._trees.put(key, old, new, lambda: set_or_drop(self.group_policies, key, new)):
            for pod in list(self._of_pod_groups.get(group, {}).values()):
                if self.pods[pod.uid].membership != self.in_tree(pod).membership:
                    self.put_pod(pod.uid, pod)

    def is_shared(self, claim: ObjectKey) -> bool:
        """Whether more than one waiting pod asks for the claim."""
        return self.waited_for.get(claim, 0) > 1

    def take_changed_groups(self) -> tuple[dict[GroupKey, set[str]], dict[GroupKey, bool]]:
        """Return and clear `changed_members` and `resized_groups`."""
        found = self.changed_members, self.resized_groups
        self.changed_members, self.resized_groups = {}, {}
        return found


def _pod_group(pod: Pod) -> GroupKey:
    return GroupKey(pod.key.namespace, GroupSource.CORE, pod.group)


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
