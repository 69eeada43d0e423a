"""The cache: applies events, keeps the reservations, hands out snapshots. Single-threaded; nothing here waits."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Mapping
from itertools import islice
from math import inf
from types import MappingProxyType
from typing import Protocol

from extender.allocation import ChangeLog, Features, NodeInfo, NodeState, Snapshot
from extender.cache.allocated_devices import AllocatedDevices
from extender.cache.node_info_builder import FleetBaselineCounter, NodeInfoBuilder
from extender.cache.object_index import ObjectIndex
from extender.cache.request_mix_estimator import RequestMixEstimator
from extender.cache.reservations import Reservations
from extender.fabric import DRIVER as FABRIC_DRIVER
from extender.model import (
    Claim,
    DeviceClass,
    Node,
    ObjectKey,
    Pod,
    PoolKey,
    RequestMix,
    Reservation,
    ReservationState,
    Result,
    Slice,
    TaintRule,
)

_RETRIED = 4  # nodes whose view could not be built, tried again with each new snapshot
_SHOWN = 200  # characters of an error that are kept
_REMEMBERED_CHANGES = 4096  # nodes that may change before followers who lag behind start over
_VACANT_STATES = 1024  # of about 2 KB; a state that no node is in often returns


class MirrorListener(Protocol):
    """What follows changes of the cache; its methods must not call the cache."""

    def freed(self) -> None:
        """A reservation ended and left devices free."""

    def sooner(self) -> None:
        """`next_deadline` is earlier than before."""

    def reservation_changed(self, claim_uid: str, new: Reservation | None) -> None:
        """The claim has another reservation, or none any more."""


class NoListener:
    """For a cache that is only read."""

    def freed(self) -> None:
        """Nothing follows."""

    def sooner(self) -> None:
        """Nothing follows."""

    def reservation_changed(self, claim_uid: str, new: Reservation | None) -> None:
        """Nothing follows."""


class ClusterCache:
    """The one picture. `snapshot()` folds all events since the last one and is free when nothing happened."""

    def __init__(
        self,
        features: Features | None = None,
        builder: NodeInfoBuilder | None = None,
        remembered_changes: int = _REMEMBERED_CHANGES,
        vacant_states: int = _VACANT_STATES,
        listener: MirrorListener | None = None,
    ) -> None:
        self._listener = listener or NoListener()
        self.allocated_devices = AllocatedDevices()
        self.store = ObjectIndex(self.allocated_devices)
        self.reservations = Reservations(self.allocated_devices, self._listener.reservation_changed)
        self._builder = builder or NodeInfoBuilder(features or Features())
        self._node_infos: dict[str, NodeInfo] = {}
        self._states: dict[int, NodeState] = {}  # by number, those that some node is in
        self._vacated: OrderedDict[int, NodeState] = OrderedDict()  # those left last: they often return
        self._vacant_states = vacant_states
        self._fleet = FleetBaselineCounter()
        self._request_mix = RequestMixEstimator()
        self._agent_heard: OrderedDict[str, float] = OrderedDict()  # node to when its agent was heard of, oldest first
        self._live_memory_seconds = 900.0
        self._changes = ChangeLog(known_since=0)
        self._remembered_changes = remembered_changes
        self._version = 0
        self.failed_nodes: dict[
            str, str
        ] = {}  # node to why its view could not be built; it keeps the view it had before
        self._snapshot: Snapshot | None = None

    # -- events ----------------------------------------------------------------------------------------------

    def apply_slice(self, name: str, new: Slice | None, now: float = 0.0) -> None:
        """A slice as the watch shows it at a time, in seconds of the service's clock. An agent is heard by its fabric
        slice."""
        old = self.store.slices.get(name)
        self.store.put_slice(name, new)
        if new is not None and new.pool.driver == FABRIC_DRIVER:
            self._agent_reported(new.selection.node_name, now)
        elif old is not None and old.pool.driver == FABRIC_DRIVER and old.selection.node_name not in self.store.fabric:
            self._agent_heard.pop(old.selection.node_name, None)
            self.store.silent_agents.discard(old.selection.node_name)
        self._snapshot = None

    def _agent_reported(self, node: str, now: float) -> None:
        first = not self._agent_heard
        self._agent_heard[node] = now
        self._agent_heard.move_to_end(node)
        self.store.silent_agents.discard(node)  # its slice changed: the view is built again anyway
        if first:
            self._listener.sooner()

    def apply_rule(self, name: str, new: TaintRule | None) -> None:
        self.store.put_rule(name, new)
        self._snapshot = None

    def apply_class(self, name: str, new: DeviceClass | None) -> None:
        self.store.put_class(name, new)
        self._snapshot = None

    def apply_claim(self, key: ObjectKey, new: Claim | None, *, listed: bool = False) -> None:
        """A claim as list or watch show it. Once it shows an allocation, the bind that wrote it has arrived."""
        old = self.store.put_claim(key, new, listed=listed)
        gone = old.uid if old is not None and (new is None or new.uid != old.uid) else ""
        if new is not None and new.allocation is not None:
            self.confirm(new.uid)
        if gone:
            self._freed(self.reservations.claim_deleted(gone))
        if new is not None:
            self._request_mix.observe(new)
        self._snapshot = None

    def apply_node(self, name: str, new: Node | None) -> None:
        """A node as the watch shows it. Its agent is forgotten with it; one whose slice is still there when a node of
        that name comes again was not heard of since."""
        if new is None:
            self._agent_heard.pop(name, None)
            self.store.silent_agents.discard(name)
        elif name not in self.store.nodes and name in self.store.fabric and name not in self._agent_heard:
            self.store.silent_agents.add(name)
        self.store.put_node(name, new)
        self._snapshot = None

    def apply_pod(self, uid: str, new: Pod | None) -> None:
        """A pod that is bound, finished or gone needs no hold any more."""
        if new is None or new.node_name or new.deleting:
            self._freed(self.reservations.release(uid))
        self.store.put_pod(uid, new)
        self._snapshot = None

    def apply_namespace(self, name: str, labels: dict[str, str] | None) -> None:
        self.store.put_namespace(name, labels)
        self._snapshot = None

    @property
    def mix(self) -> RequestMix:
        """The request mix in force."""
        return self.snapshot().baseline.request_mix

    def use_mix(self, mix: RequestMix) -> None:
        """From now on this is the request mix: another process learned it."""
        if mix != self.mix:
            self._request_mix.use(mix)
            self._snapshot = None

    # -- reservations ----------------------------------------------------------------------------------------

    def hold(self, claim_uid: str, pod_uid: str, node: str, results: tuple[Result, ...], deadline: float) -> None:
        """See Reservations.hold."""
        before = self.reservations.next_deadline
        self._touch(self.reservations.hold(claim_uid, pod_uid, node, results, deadline))
        if self.reservations.next_deadline < before:
            self._listener.sooner()

    def held_for(self, pod_uid: str) -> tuple[Result, ...]:
        """The devices that filter holds for a pod."""
        return self.reservations.held_for(pod_uid)

    def release(self, pod_uid: str) -> bool:
        """End the holds of a pod, which is about to choose anew; whether that left devices free. The caller calls
        `freed` when the pod has chosen."""
        return self._touch(self.reservations.release(pod_uid))

    def freed(self) -> None:
        """What `release` left free may be free for others now."""
        self._listener.freed()

    def release_claim(self, claim_uid: str) -> None:
        """End the hold of a claim, which is about to be allocated, perhaps on another node."""
        self._freed(self.reservations.release_claim(claim_uid))

    def release_node(self, node: str) -> None:
        """End all holds on a node."""
        self._freed(self.reservations.release_node(node))

    def assume(self, claim_uid: str, pod_uid: str, node: str, results: tuple[Result, ...]) -> None:
        """See Reservations.assume."""
        self._touch(self.reservations.assume(claim_uid, pod_uid, node, results))
        self._snapshot = None

    def confirm(self, claim_uid: str) -> None:
        """The watch has shown the claim allocated: by our bind, or by another process while we held devices for it."""
        touch = self._freed if self.reservations.state(claim_uid) is ReservationState.HELD else self._touch
        touch(self.reservations.confirm(claim_uid))
        self._snapshot = None

    def forget(self, claim_uid: str) -> None:
        """The bind failed."""
        self._freed(self.reservations.forget(claim_uid))
        self._snapshot = None

    # -- time ------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Time passes: holds end, and agents that were not heard of for long are no longer believed about memory."""
        self._freed(self.reservations.expire(now))
        while self._agent_heard and next(iter(self._agent_heard.values())) + self._live_memory_seconds <= now:
            node, _ = self._agent_heard.popitem(last=False)
            if node in self.store.nodes:
                self.store.silent_agents.add(node)
                self.store.dirty.add(node)
                self._snapshot = None

    @property
    def next_deadline(self) -> float:
        """When `expire` has something to do: no earlier than this, in seconds of the service's clock; infinite for
        never."""
        agent = next(iter(self._agent_heard.values()), inf) + self._live_memory_seconds
        return min(self.reservations.next_deadline, agent)

    def believe_agents_for(self, seconds: float) -> None:
        """From now on an agent's word on memory counts for so long after it was heard."""
        self._live_memory_seconds = seconds
        self._listener.sooner()

    def oldest_agent(self, now: float) -> float:
        """Seconds since the agent was heard of that has been quiet longest, among those still believed."""
        return now - next(iter(self._agent_heard.values()), now)

    def _freed(self, pools: set[PoolKey]) -> None:
        if self._touch(pools):
            self._listener.freed()

    def _touch(self, pools: set[PoolKey]) -> bool:
        if not pools:
            return False
        self.store.touch_pools(pools)
        self._snapshot = None
        return True

    @property
    def agent_problems(self) -> Mapping[str, tuple[str, ...]]:
        """What a node's agent says that cannot be, by node; as of the last snapshot."""
        refused, wrong = self.store.refused_slices, self._builder.agent_problems
        return {node: (*refused.get(node, ()), *wrong.get(node, ())) for node in refused.keys() | wrong.keys()}

    def interned(self) -> dict[str, int]:
        """See NodeInfoBuilder.interned."""
        return self._builder.interned()

    # -- snapshots -------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The cluster now, valid until the caller awaits or changes the cache. Equal states give the same object."""
        if self._snapshot is None:
            self._rebuild()
            self._snapshot = self._make()
        return self._snapshot

    def _rebuild(self) -> None:
        dirty, used = self.store.take_dirty_nodes()
        if not dirty and not used:
            return
        dirty.update(islice(list(self.failed_nodes), _RETRIED), used & self.failed_nodes.keys())
        for name in dirty:
            self._rebuild_node(name, only_use=False)
        for name in used - dirty:
            self._rebuild_node(name, only_use=True)
        self._version += 1
        self._changes.note(self._version, dirty | used)
        self._changes.forget(self._remembered_changes)

    def _rebuild_node(self, name: str, *, only_use: bool) -> None:
        node_infos = self._node_infos
        node, old = self.store.nodes.get(name), node_infos.get(name)
        self.failed_nodes.pop(name, None)
        if node is None:
            self._builder.forget(name)
            node_infos.pop(name, None)
            self._move_state(name, old, None)
            self._fleet.replace(old, None)
            return
        try:
            new = self._builder.build(node, self.store, self.allocated_devices, old, only_use=only_use)
        except Exception as error:  # noqa: BLE001 - a fault in one node's objects must not stop the other nodes
            self.failed_nodes[name] = f"{type(error).__name__}: {error}"[:_SHOWN]
            return
        node_infos[name] = new
        self._move_state(name, old, new)
        self._fleet.replace(old, new)

    def _move_state(self, name: str, old: NodeInfo | None, new: NodeInfo | None) -> None:
        """Nodes are listed by their states."""
        before, after = old.state if old is not None else None, new.state if new is not None else None
        if before is after:
            return
        if before is not None:
            del before.names[bisect_left(before.names, name)]
            if not before.names:
                self._vacated[before.number] = self._states.pop(before.number)
                if len(self._vacated) > self._vacant_states:
                    self._vacated.popitem(last=False)
        if after is not None:
            insort(after.names, name)
            if len(after.names) == 1:
                self._states[after.number] = after
                self._vacated.pop(after.number, None)

    def _make(self) -> Snapshot:
        store = self.store
        return Snapshot(
            self._version,
            MappingProxyType(self._node_infos),
            store.classes,
            store.claims,
            store.pods,
            store.namespaces,
            self._fleet.fleet(self._request_mix),
            store.classes_version,
            self._changes,
            store.extended_resources(),
            store.special_claims,
            self.reservations.by_claim,
            store.nodes_by,
            store.groups,
            self._states,
            store.claims_on,
        )
