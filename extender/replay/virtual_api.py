"""A virtual API server: it stores the writes of serve as objects in serve's own cache, without HTTP and without JSON.

Each write is stored at once, and the watches show it at once. One process writes, so no write conflicts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import cast

from extender.api.asked_subgroups import PodMark
from extender.api.claim_specs import ClaimSpec
from extender.api.object_meta import ObjectKey
from extender.api.pod_groups import GroupKey
from extender.api.pods import Pod
from extender.api.resource_claims import (
    FINALIZER,
    GENERATED_PREFIX,
    Allocation,
    Claim,
    Consumer,
    special_claim_prefix,
)
from extender.cache import ClusterCache
from extender.cluster import ApiClient, NotFound, Writer
from extender.runtime.informers import WatchProgress
from extender.runtime.supervisor import Supervisor

_IDENTITY = "berth-replay"


class VirtualApi(Writer):
    """The objects of a replay, and the writes of serve to them.

    It has the writes for claims and Bindings, and no PodGroups: claims are reserved for their pods. `connect` comes
    before any use.
    """

    def __init__(self, bound: Callable[[str, str], None], touched: Callable[[], None]) -> None:
        """`bound` is told the UID and the node of a pod with a Binding, `touched` that rejected pods are due."""
        super().__init__(cast("ApiClient", None), _IDENTITY)  # no method that is left needs a client
        self._bound = bound
        self._touched = touched
        self._version = self._special = 0
        self._pods: dict[ObjectKey, Pod] = {}

    def connect(self, cache: ClusterCache, applied: Callable[[str], None], progress: WatchProgress) -> None:
        """Store the objects in this cache. See `Decisions` of extender/serve/service.py for `applied`."""
        self._cache, self._applied, self._progress = cache, applied, progress

    # -- the objects of jobs ---------------------------------------------------------------------------------

    def create(self, pod: Pod, claims: Iterable[Claim]) -> None:
        """Create a pod and its claims. Two pods may share one."""
        for claim in claims:
            if claim.key not in self._cache.store.claims:
                self._store(claim)
        self.put_pod(pod)

    def put_pod(self, pod: Pod) -> None:
        """Create or change a pod without a node."""
        self._pods[pod.key] = pod
        self._cache.apply_pod(pod.uid, pod)
        self._shown("pods")

    def know_bound(self, pod: Pod) -> None:
        """A pod is bound already."""
        self._pods[pod.key] = pod

    def delete(self, pod: Pod, claim: ObjectKey | None) -> None:
        """Delete a pod and its claim, with its allocation."""
        if not self._pods.pop(pod.key).node_name:
            self._cache.apply_pod(pod.uid, None)
            self._shown("pods")
        if claim is not None:
            self._cache.apply_claim(claim, None)
            self._shown("resourceclaims")

    def _store(self, claim: Claim) -> Claim:
        self._version += 1
        stored = replace(claim, resource_version=self.version)
        self._cache.apply_claim(stored.key, stored)
        self._shown("resourceclaims")
        return stored

    def _shown(self, kind: str) -> None:
        self._applied(kind)
        self._progress.notify()

    @property
    def version(self) -> str:
        """The resourceVersion of the last write."""
        return str(self._version)

    # -- the writes of serve ---------------------------------------------------------------------------------

    async def read_claim(self, key: ObjectKey) -> Claim:
        return self._claim(key)

    async def read_pod(self, key: ObjectKey) -> Pod:
        if key not in self._pods:
            raise NotFound(f"pod {key} does not exist")
        return self._pods[key]

    async def read_bound_members(self, namespace: str) -> dict[GroupKey, dict[str, str]]:
        found: dict[GroupKey, dict[str, str]] = {}
        for pod in self._pods.values():
            if pod.node_name and pod.membership is not None and pod.key.namespace == namespace:
                found.setdefault(pod.membership.key, {})[pod.uid] = pod.node_name
        return found

    async def read_extended_resources(self) -> set[str]:
        return set(self._cache.snapshot().extended_resources)

    async def read_pod_group(self, _: ObjectKey) -> None:
        return None

    async def create_special_claim(self, pod: Pod, spec: ClaimSpec) -> Claim:
        self._special += 1
        key = ObjectKey(pod.key.namespace, f"{special_claim_prefix(pod.key.name)[:GENERATED_PREFIX]}{self._special:05}")
        made = Claim(key, f"special-{self._special}", spec=spec, finalizers=(FINALIZER,), owner_pod_uid=pod.uid)
        return self._store(replace(made, allocator=self.identity, extended=True))

    async def map_special_claim(self, pod: Pod, claim: Claim, _: Iterable[tuple[str, str, str]]) -> None:
        self.put_pod(replace(await self.read_pod(pod.key), extended_claim=claim.key.name))

    async def delete_claim(self, claim: Claim) -> None:
        self._cache.apply_claim(claim.key, None)
        self._shown("resourceclaims")

    async def add_finalizer(self, claim: Claim, mark: PodMark) -> Claim:
        finalizers = tuple(dict.fromkeys((*claim.finalizers, FINALIZER)))
        return self._change(claim, finalizers=finalizers, allocator=self.identity, **mark._asdict())

    async def take_over(self, claim: Claim) -> Claim:
        return self._change(claim, allocator=self.identity)

    async def announce_release(self, claim: Claim) -> Claim:
        return self._change(claim, allocator=self.releasing_identity)

    async def allocate(self, claim: Claim, allocation: Allocation, consumer: Consumer) -> Claim:
        return self._change(claim, allocation=allocation, reserved_for=(*claim.reserved_for, consumer))

    async def add_consumers(self, claim: Claim, consumers: Iterable[Consumer]) -> Claim:
        added = [one for one in consumers if not claim.is_reserved_for(one.uid)]
        return self._change(claim, reserved_for=(*claim.reserved_for, *added))

    async def deallocate(self, claim: Claim) -> Claim:
        return self._change(claim, allocation=None, reserved_for=(), devices=())

    async def remove_consumer(self, claim: Claim, pod_uid: str) -> None:
        self._change(claim, reserved_for=tuple(one for one in claim.reserved_for if one.uid != pod_uid))

    async def bind_pod(self, key: ObjectKey, uid: str, node: str, _: dict[str, str]) -> None:
        if key not in self._pods:
            raise NotFound(f"pod {key} does not exist")
        self._pods[key] = replace(self._pods[key], node_name=node)
        self._cache.apply_pod(uid, None)  # serve watches the pods without a node
        self._shown("pods")
        self._bound(uid, node)

    async def touch_class(self, *_: str) -> None:
        self._touched()

    def _change(self, claim: Claim, **fields: object) -> Claim:
        self._claim(claim.key)
        return self._store(replace(claim, **fields))  # type: ignore[arg-type]  # the fields of a Claim

    def _claim(self, key: ObjectKey) -> Claim:
        found = self._cache.store.claims.get(key)
        if found is None:
            raise NotFound(f"claim {key} does not exist")
        return found


class VirtualWatches:
    """The watches of a VirtualApi, which show every write at once."""

    def __init__(self, api: VirtualApi, expire: Callable[[], Awaitable[None]], supervisor: Supervisor) -> None:
        self.progress = WatchProgress()
        self.not_ready = ""
        self._api = api
        self._expire = expire
        self._supervisor = supervisor

    @property
    def claims_version(self) -> str:
        return self._api.version

    def start(self) -> None:
        """Start the task that ends holds."""
        self._supervisor.start("hold-expiry", self._expire)

    async def listed(self) -> None:
        """Nothing: the cache has all objects."""

    def is_served(self, resource: str) -> bool:
        """No: jobs name their groups by annotations."""
        return resource == ""
