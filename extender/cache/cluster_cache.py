"""The cluster cache: it applies watch events, keeps reservations and creates snapshots, as `extender.cache` explains.

Only one thread may use it, and no method blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping
from contextlib import contextmanager
from math import inf

from extender.allocation import Features, Snapshot
from extender.allocation.nodes import ChangeLog
from extender.api.device_classes import DeviceClass, extended_resources
from extender.api.nodes import Node
from extender.api.object_meta import ObjectKey
from extender.api.pod_groups import GroupKey, GroupPolicy
from extender.api.pods import Pod
from extender.api.resource_claims import Claim, Reservation, ReservationState, Result
from extender.api.resource_slices import PoolKey, Slice, TaintRule
from extender.cache.allocated_devices import CLAIM, AllocatedDevices, Channels, Holder, ReservationEvent, Reservations
from extender.cache.fleet_baseline import FleetBaselineCounter, RequestMixEstimator
from extender.cache.node_infos import NodeInfoBuilder, NodeInfos
from extender.cache.object_index import ObjectIndex
from extender.cache.slice_index import ALL_NODES, TOO_OFTEN, CacheTimers, SliceIndex, TimerKind, set_or_drop

_MAX_SHOWN = 200  # characters of an error text
_MAX_REMEMBERED_CHANGES = 4096  # changed nodes in the log; a ranking that is further behind reads all nodes


class CacheListener:
    """Receives events of the cache, and ignores them. A method of a subclass must not call or change the cache."""

    def freed(self) -> None:
        """Devices may be free: a reservation ended, or slices that waited are used."""

    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        """A pod without a node changed. `after` is None when it left the watch: it was bound or deleted."""

    def claim_changed(self, key: ObjectKey, after: Claim | None) -> None:
        """A claim changed. `after` is None when it was deleted."""


class ClusterCache:
    """The objects of the watches, and reservations. Events only mark nodes; `snapshot` rebuilds the marked nodes.

    All times are in seconds of the service's clock.
    """

    def __init__(self, features: Features | None = None) -> None:
        self.listeners: list[CacheListener] = []
        self.timers = CacheTimers()
        self.channels = Channels()
        self.allocated_devices = AllocatedDevices(self._put_channels)
        self.slices = SliceIndex(self.timers)
        self.store = ObjectIndex(self.allocated_devices, self.slices)
        self.reservations = Reservations(self.allocated_devices, self.timers)
        self.builder = NodeInfoBuilder(features or Features(), self.slices, self.allocated_devices)
        self._node_infos = NodeInfos()
        self._fleet = FleetBaselineCounter()
        self._request_mix = RequestMixEstimator()
        self._changes, self._gains = ChangeLog(known_since=0), ChangeLog(known_since=0)
        self._gained: dict[str, None] = {}  # nodes that gained room in the current rebuild
        self.version = 0  # of the last snapshot, or of a later `rebuild`
        # Node to the error of its last build, which a change of its objects or of their use repeats: equal objects give
        # an equal result. The node keeps its previous NodeInfo.
        self.failed_nodes: dict[str, str] = {}
        self._extended_resources: dict[str, str] = {}
        self._snapshot: Snapshot | None = None

    # -- events: None deletes an object ----------------------------------------------------------------------

    def apply_slice(self, name: str, new: Slice | None, now: float = 0.0) -> None:
        """Apply a slice. An event of a node's fabric slice counts as a report of its agent."""
        for pool in self.slices.put(name, new, now):
            self.store.index_groups_on(pool)
        self.builder.forget_slice(name)
        self._snapshot = None

    def apply_rule(self, name: str, new: TaintRule | None) -> None:
        self.slices.put_rule(name, new)
        self._snapshot = None

    def apply_class(self, name: str, new: DeviceClass | None) -> None:
        self.store.put_class(name, new)
        self._extended_resources = extended_resources(self.store.classes.values())
        self._snapshot = None

    def apply_claim(self, key: ObjectKey, new: Claim | None, *, listed: bool = False) -> None:
        """Apply a claim, by list or watch. A new allocation confirms the claim's reservation.

        A hold of a claim that stays allocated is for the time after its undo (GangPlans.keep).
        """
        old = self.store.put_claim(key, new, listed=listed)
        gone = old.uid if old is not None and (new is None or new.uid != old.uid) else ""
        known = old.allocation if old is not None and not gone else None
        if new is not None and new.allocation is not None and new.allocation != known:
            self.confirm(new.uid)
        if gone:
            self._freed(self.reservations.apply(ReservationEvent.CLAIM_DELETED, gone))
        if new is not None:
            self._request_mix.observe(new)
        for listener in self.listeners:
            listener.claim_changed(key, new)
        self._snapshot = None

    def apply_node(self, name: str, new: Node | None) -> None:
        """Apply a node. A new node may find an old fabric slice of its name: its agent counts as silent."""
        self.store.put_node(name, new)
        self.channels.put_node(name, new)
        self._snapshot = None

    def apply_pod(self, uid: str, new: Pod | None) -> None:
        """Apply a pod by UID. A bound, deleted, terminating or ended pod loses its holds."""
        if new is None or new.node_name or new.deleting or new.ended:
            self._freed(self.reservations.release(self.reservations.held_by(uid)))
        before = self.store.pods.get(uid)
        self.store.put_pod(uid, new)
        for listener in self.listeners:
            listener.pod_changed(before, new)
        self._snapshot = None

    def apply_group_policy(self, key: GroupKey, new: GroupPolicy | None) -> None:
        """Apply the policy of a group's object. Pods of its tree of groups may be members of another gang now."""
        self.store.put_group_policy(key, new)
        self._snapshot = None

    def apply_namespace(self, name: str, labels: dict[str, str] | None) -> None:
        set_or_drop(self.store.namespaces, name, labels)
        self._snapshot = None

    # -- reservations: see the table in allocated_devices.py --------------------------------------------------

    def hold(self, held: Mapping[str, Reservation]) -> None:
        """Hold devices for claims, by UID. Raises InvalidTransition if one is held already."""
        touched = [self.reservations.apply(ReservationEvent.HOLD, uid, new) for uid, new in held.items()]
        self._touch(set[PoolKey]().union(*touched))

    def assume(self, claim_uid: str, pod_uid: str, node: str, results: tuple[Result, ...]) -> None:
        """A bind starts to write these results into a claim. Raises InvalidTransition if another bind writes it."""
        new = Reservation(pod_uid, node, results, inf, ReservationState.BINDING)
        self._touch(self.reservations.apply(ReservationEvent.ASSUME, claim_uid, new))
        self._snapshot = None

    def confirm(self, claim_uid: str) -> None:
        """End the reservation of a claim that the watch showed allocated, and free the devices that the claim lacks."""
        reservation = self.reservations.by_claim.get(claim_uid)
        kept = {result.device for result in self.allocated_devices.results((CLAIM, claim_uid))}
        frees = reservation is not None and any(result.device not in kept for result in reservation.results)
        (self._freed if frees else self._touch)(self.reservations.apply(ReservationEvent.CONFIRM, claim_uid))
        self._snapshot = None

    def forget(self, claim_uid: str) -> None:
        """End the reservation of a claim whose bind failed. The watch may have confirmed the write before."""
        self._freed(self.reservations.apply(ReservationEvent.FORGET, claim_uid))
        self._snapshot = None

    def release(self, *pod_uids: str) -> bool:
        """End the holds of pods before their next filter requests. Returns whether that freed devices.

        If so, the caller must call `freed` after the filter request.
        """
        held = self.reservations.held_by(*pod_uids)
        return bool(held) and self._touch(self.reservations.release(held))

    def release_claim(self, claim_uid: str) -> None:
        """End the hold of a claim before its bind, which may choose another node on the newest snapshot."""
        self._freed(self.reservations.release([claim_uid]))

    def release_node(self, node: str, kept: Container[str] = ()) -> None:
        """End the holds on a node, except those of the pods `kept`, by UID.

        A bind takes precedence over holds that may never be used.
        """
        self._freed(self.reservations.release(self.reservations.held_on(node, kept)))

    @contextmanager
    def without_holds(self, node: str, kept: Container[str] = ()) -> Iterator[Snapshot]:
        """The snapshot that `release_node` would lead to. It is valid while the context lasts."""
        with self.reservations.without_holds(node, kept) as touched:
            self._touch(touched)
            try:
                yield self.snapshot()
            finally:
                self._touch(touched)

    def freed(self) -> None:
        """Tell the listeners about the devices that `release` freed."""
        for listener in self.listeners:
            listener.freed()

    def _freed(self, pools: set[PoolKey]) -> None:
        if self._touch(pools):
            self.freed()

    def _touch(self, pools: set[PoolKey]) -> bool:
        if not pools:
            return False
        self.slices.touch_pools(pools)
        self._snapshot = None
        return True

    def _put_channels(self, holder: Holder, results: tuple[Result, ...]) -> None:
        self.channels.put_results(holder, self.store.compute_domain_of(holder[1]), results)

    # -- time ------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Do what is due: end holds, use changes that waited, mark silent agents."""
        touched, frees = set[PoolKey](), False
        for kind, name in self.timers.due(now):
            match kind:
                case TimerKind.HOLD:
                    touched |= self.reservations.apply(ReservationEvent.EXPIRE, name)
                case TimerKind.AGENT:
                    if self.slices.agents.expire(name, exists=name in self.store.nodes):
                        self.slices.dirty[name] = None
                case _:
                    self.slices.end_wait(kind, name, now)
                    frees = True
            self._snapshot = None
        if self._touch(touched) or frees:
            self.freed()

    # -- snapshots -------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The cluster now, valid until the caller awaits or changes the cache. No change returns the same object."""
        if self._snapshot is None:
            self._rebuild()
            self._snapshot = self._new_snapshot()
        return self._snapshot

    @property
    def agent_problems(self) -> Mapping[str, tuple[str, ...]]:
        """Contradictions in the data of node agents and drivers, by node, as of the last snapshot."""
        found = dict.fromkeys(self.slices.node_changes.waiting, (TOO_OFTEN,))
        for problems in (self.slices.rejected, self.builder.agent_problems, self.builder.driver_problems):
            found |= {node: (*found.get(node, ()), *sentences) for node, sentences in problems.items()}
        return found

    @property
    def backlog(self) -> int:
        """The most slices and nodes that the next snapshot must compute again.

        A slice with new taints may mark each node.
        """
        slices, to_taint = self.slices, len(self.slices.to_taint)
        if to_taint or ALL_NODES in slices.dirty:
            return to_taint + len(self.store.nodes)
        return len(slices.dirty) + len(slices.dirty_use)

    def rebuild(self, most: int) -> None:
        """Compute up to `most` slices or nodes of the backlog again, so that the next snapshot has less to do."""
        if self.slices.compute_taints(most):
            return
        dirty, used = self.slices.take_some_dirty_nodes(most, self.store.nodes)
        for name in dirty:
            self._rebuild_node(name, only_use=False)
        for name in used:
            self._rebuild_node(name, only_use=name not in self.failed_nodes)
        self._note([*dirty, *used])

    def _rebuild(self) -> None:
        dirty, used, pools = self.slices.take_dirty_nodes(self.store.nodes)
        if not dirty and not used and not pools:
            return
        if pools:
            used.update(dict.fromkeys(sorted(self._node_infos.nodes_to_build(pools))))
        dirty.update({name: None for name in used if name in self.failed_nodes})
        changed = dirty | used
        for name in changed:
            self._rebuild_node(name, only_use=name not in dirty)
        if pools:  # move the nodes that see these pools to the states with their current use
            moved, gained = self._node_infos.use_shared(pools, self.builder)
            changed.update(dict.fromkeys(moved))
            self._gained.update(dict.fromkeys(gained))
        self._note(changed)

    def _note(self, changed: Collection[str]) -> None:
        """Note the nodes that changed in the logs, as a new version."""
        self.version += 1
        for log, nodes in ((self._changes, changed), (self._gains, self._gained)):
            log.note(self.version, nodes, _MAX_REMEMBERED_CHANGES)
        self._gained.clear()

    def _rebuild_node(self, name: str, *, only_use: bool) -> None:
        node_infos = self._node_infos
        node, old = self.store.nodes.get(name), node_infos.get(name)
        if node is None:
            self.failed_nodes.pop(name, None)
            self.builder.forget(name)
            node_infos.put(name, None)
            self._fleet.replace(old, None)
            return
        try:
            new = self.builder.build(node, old, only_use=only_use)
        except Exception as error:  # noqa: BLE001 - a fault in one node's objects must not stop the other nodes
            self.failed_nodes[name] = f"{type(error).__name__}: {error}"[:_MAX_SHOWN]
            return
        self.failed_nodes.pop(name, None)
        node_infos.put(name, new)
        if old is None or new.gained(old):
            self._gained[name] = None
        self._fleet.replace(old, new)

    def _new_snapshot(self) -> Snapshot:
        store = self.store
        return Snapshot(
            self.version,
            self._node_infos,
            store.classes,
            store.claims,
            store.pods,
            store.namespaces,
            self._fleet.fleet(self._request_mix, store.classes),
            store.classes_version,
            self._changes,
            self._gains,
            self._extended_resources,
            store.special_claims,
            self.reservations.by_claim,
            store.domains,
            store.of_groups.claims,
            store.of_groups.users,
            self._node_infos.states,
            store.claims_on,
            store.members,
            store.group_policies,
            store.bound_members,
            self.channels.by_clique,
            store.soft_tainted,
            store.claimed_cpu,
        )
