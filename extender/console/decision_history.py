"""The last decisions about bound pods, for the page: read from the API server when a pod has left the watch.

The watch of pods has those without a node. A pod of Berth's scheduler leaves it when it is bound or deleted, so the
console then reads the pod once: if it has a node, its annotation and its claims show the decision. The annotation is
only text, since users may change it: the devices are those of the claims. A restart of the console loses the list; each
bound pod keeps its annotation. Beside each decision, `SetComparer` shows the GPUs that first fit would have taken.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from heapq import nlargest

import structlog

from extender.allocation import NodeInfo, Snapshot
from extender.allocation.what_if import with_devices_released
from extender.api.object_meta import ObjectKey
from extender.api.pods import DECISION_ANNOTATION, SCHEDULER, Pod
from extender.api.resource_claims import Claim, Result
from extender.base.deadline import Deadline
from extender.base.fair_lru import FairLRU
from extender.cache import CacheListener, ClusterCache
from extender.cluster import ClusterError, NotFound
from extender.console.fair_queue import FairQueue
from extender.explain import ComparedSets, compare_sets
from extender.scheduling import Evaluator
from extender.scheduling.decision import Decision, ScoredNode, parse_decision
from extender.topology.score_parts import product_gbps
from extender.topology.sets import bandwidth

_MAX_PODS = 2048  # decisions; each has the texts of an annotation, of 4 KiB at most
_MAX_WAITING = 512  # pods to read; those beyond are left out
_MAX_READS = 5  # of one pod: the watch of claims may be later than that of pods
_LATE_SECONDS = 0.2  # before the next read of the same pod
_MAX_DEVICES = 64  # names of devices that an entry keeps
_MAX_COMPARED = 256  # decisions that wait to be compared; those beyond are not
_COMPARE_SECONDS = 0.05  # of one comparison
_PAUSE_FACTOR = 4.0  # pause after a comparison, as a multiple of the time that it took
_LATER_SECONDS = 1.0  # before the comparisons: decisions about pods that were bound a moment later come meanwhile


@dataclass(slots=True)
class DecidedPod:
    """The decision about a bound pod. `sets` are its GPUs and those of first fit; None until they are compared.

    `ended`: none of its claims is reserved for it any more.
    """

    pod: ObjectKey
    uid: str
    decision: Decision
    claims: tuple[ObjectKey, ...] = ()
    sets: ComparedSets | None = None
    ended: bool = False
    version: int = 0  # of the history when this entry last changed


class DecisionHistory:
    """Decisions by pod UID, at most 2,048. Beyond it, the namespace with the most loses its oldest one.

    `since` is the start of the history, as RFC 3339.
    """

    def __init__(self, since: str = "") -> None:
        self.since = since
        self._entries: FairLRU[str, DecidedPod] = FairLRU(_MAX_PODS)
        self.version = 0  # grows with every change
        self.joined = 0  # pods bound with two GPUs or more
        self.joined_share = 0.0  # sum of their berth_bandwidth_ratio: ring bandwidth to the best one in the fleet

    def record_decision(self, pod: ObjectKey, uid: str, decision: Decision, claims: Iterable[ObjectKey] = ()) -> None:
        """Add the decision about a bound pod with these claims."""
        chosen = decision.chosen
        if chosen.best_gbps:
            self.joined += 1
            self.joined_share += chosen.ring_gbps / chosen.best_gbps
        self.version += 1
        self._entries.put(pod.namespace, uid, DecidedPod(pod, uid, decision, tuple(claims), version=self.version))

    def record_sets(self, uid: str, sets: ComparedSets) -> None:
        """Add the comparison with first fit to a decision, unless the entry is dropped already."""
        entry = self._entries.get(uid)
        if entry is not None:
            self.version += 1
            entry.sets, entry.version = sets, self.version

    def find_ended(self, snapshot: Snapshot, count: int) -> None:
        """Mark those of the last `count` pods that have ended, or are deleted: no claim is reserved for them."""
        for entry in self.recent(count):
            used = (_is_used(snapshot.claims.get(key), entry.uid) for key in entry.claims)
            if entry.claims and not entry.ended and not any(used):
                self.version += 1
                entry.ended, entry.version = True, self.version

    def entry(self, uid: str) -> DecidedPod | None:
        """The decision about a pod by UID."""
        return self._entries.get(uid)

    def pods_named(self, name: str) -> set[ObjectKey]:
        """Pods of this name in all namespaces."""
        return {entry.pod for entry in self._entries.values() if entry.pod.name == name}

    def recent(self, count: int, since: int = 0) -> list[DecidedPod]:
        """The entries that changed last, newest first: at most `count`, and only those newer than version `since`."""
        newer = (entry for entry in self._entries.values() if entry.version > since)
        return nlargest(count, newer, key=lambda entry: entry.version)


class DecisionReader(CacheListener):
    """A background task of the console. A pod that leaves the watch is only queued; `run` reads it.

    `decided` gets each decision, and `bound` each pod, with the claims of the pod. See CacheRefresh.wait for
    `refreshed`.
    """

    def __init__(
        self,
        cache: ClusterCache,
        history: DecisionHistory,
        read_pod: Callable[[ObjectKey], Awaitable[Pod]],
        refreshed: Callable[[], Awaitable[None]],
        decided: Callable[[DecidedPod, list[Claim]], None],
        bound: Callable[[Pod, list[Claim], Snapshot], None] = lambda *_: None,
    ) -> None:
        self._cache = cache
        self._bound = bound
        self._history = history
        self._read_pod = read_pod
        self._refreshed = refreshed
        self._decided = decided
        self._queue: FairQueue[str, tuple[ObjectKey, int]] = FairQueue(
            _MAX_WAITING
        )  # pod UID to pod and number of reads
        self._log = structlog.get_logger("berth.decisions")

    @property
    def left_out(self) -> int:
        """Pods that were not read: too many left the watch at once."""
        return self._queue.left_out

    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        if after is None and before is not None and _may_be_bound(before):
            self._queue.put(before.key.namespace, before.uid, (before.key, 0))

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            uid, (key, reads) = await self._queue.take()
            if not await self._read(key, uid) and reads + 1 < _MAX_READS:
                self._queue.put_later(_LATE_SECONDS, key.namespace, uid, (key, reads + 1))

    async def _read(self, key: ObjectKey, uid: str) -> bool:
        """Read one pod. Returns whether the result is final: the watch shows its claims, or the pod is not bound."""
        try:
            pod = await self._read_pod(key)
        except NotFound:
            return True
        except ClusterError as error:
            self._log.info("a pod that left the watch cannot be read", pod=str(key), problem=str(error))
            return False
        if pod.uid != uid or not pod.node_name:
            return True
        await self._refreshed()
        snapshot = self._cache.snapshot()
        decision = decision_of(pod, snapshot)
        if decision is None:
            return False
        claims = _claims_of(pod, snapshot)
        self._bound(pod, claims, snapshot)
        self._history.record_decision(key, uid, decision, (claim.key for claim in claims))
        entry = self._history.entry(uid)
        if entry is not None:
            self._decided(entry, claims)
        return True


def decision_of(pod: Pod, snapshot: Snapshot) -> Decision | None:
    """The decision about a bound pod of Berth's scheduler, by its annotation and its claims.

    None if no claim has devices yet. The Binding has no annotation if all of them were allocated before, for another
    pod. The bandwidths are those of the node as it is now.
    """
    claims = _claims_of(pod, snapshot)
    results = _results(claims)
    if pod.scheduler != SCHEDULER or not results:
        return None
    at = max(claim.allocation.timestamp for claim in claims if claim.allocation is not None)
    devices = tuple(str(one.device) for one in results[:_MAX_DEVICES])
    note, node_info = pod.annotations.get(DECISION_ANNOTATION), snapshot.node_infos.get(pod.node_name)
    if note is None:
        return Decision(at, ScoredNode(pod.node_name, 0.0, (), 0.0, 0.0, "", (), devices))
    noted = parse_decision(note)
    ring, best, source = _ring(node_info, results) if node_info is not None else (0.0, 0.0, "")
    chosen = ScoredNode(
        pod.node_name, noted.score, devices, ring, best, source, noted.parts, (), *noted.pairs, noted.clique
    )
    return Decision(at, chosen, noted.runner_up, noted.margin)


def _claims_of(pod: Pod, snapshot: Snapshot) -> list[Claim]:
    """The pod's claims that are reserved for it or for its PodGroup."""
    keys = set(pod.claim_keys)
    if pod.extended_claim:
        keys.add(ObjectKey(pod.key.namespace, pod.extended_claim))
    found = [snapshot.claims.get(key) for key in sorted(keys)]
    return [claim for claim in found if claim is not None and (claim.group or claim.is_reserved_for(pod.uid))]


def _is_used(claim: Claim | None, uid: str) -> bool:
    """Whether a claim is reserved for the pod, or for its PodGroup, which does not tell when one pod ends."""
    return claim is not None and any(one.uid == uid or one.resource != "pods" for one in claim.reserved_for)


def _ring(node_info: NodeInfo, results: list[Result]) -> tuple[float, float, str]:
    """The ring bandwidth of these GPUs, the best of equal size if the node is free (in GB/s), the source of links."""
    bits = [node_info.inventory.index.get(result.device) for result in results if not result.admin_access]
    positions = node_info.positions(sum(1 << bit for bit in {*bits} if bit is not None))
    if node_info.fabric is None or positions.bit_count() <= 1:
        return 0.0, 0.0, ""
    ring = bandwidth(node_info.fabric.graph, positions)
    return ring, max(ring, product_gbps(node_info, positions)), node_info.fabric.source.value


def _may_be_bound(pod: Pod) -> bool:
    return pod.scheduler == SCHEDULER and pod.may_need_devices and not pod.deleting


# -- beside first fit -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Queued:
    """A decision with its claims, and with the node as it was then: it may show devices of pods bound `later`."""

    decided: DecidedPod
    claims: list[Claim]
    node_info: NodeInfo
    later: list[Claim] = field(default_factory=list)
    lacks_later: bool = False  # a later pod found the queue full, so `later` is not complete


class SetComparer:
    """A background task of the console. `bound` queues a decision with the node as it is then; `run` compares it.

    The devices of pods that are bound later count as free: `bound` notes them in the queued decisions of the node. See
    CacheRefresh.wait for `refreshed`.
    """

    def __init__(
        self,
        cache: ClusterCache,
        evaluator: Evaluator,
        history: DecisionHistory,
        refreshed: Callable[[], Awaitable[None]],
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._evaluator = evaluator
        self._history = history
        self._refreshed = refreshed
        self._clock = clock
        self._queue: deque[_Queued] = deque()
        self._queued = asyncio.Event()
        self.left_out = 0  # not compared: the queue was full for the decision, or for a later one of its node

    def bound(self, decided: DecidedPod, claims: list[Claim]) -> None:
        """Queue the decision of a bind, if it gave the pod devices. `claims` are those of the pod."""
        chosen = decided.decision.chosen
        if not chosen.devices:
            return
        is_full = len(self._queue) >= _MAX_COMPARED
        for earlier in self._queue:
            if earlier.decided.decision.chosen.node == chosen.node:
                earlier.lacks_later |= is_full
                earlier.later += [] if is_full else claims
        if is_full:
            self.left_out += 1
            return
        node_info = self._cache.snapshot().node_infos.get(chosen.node)
        has_all = len(_results(claims)) == len(chosen.devices)  # the decision names some devices only
        if node_info is not None and has_all and all(claim.is_reserved_for(decided.uid) for claim in claims):
            self._queue.append(_Queued(decided, claims, node_info))
            self._queued.set()

    async def run(self) -> None:
        """Run until cancelled. A pause several times as long follows each comparison."""
        while True:
            await self._queued.wait()
            await asyncio.sleep(_LATER_SECONDS)
            self._queued.clear()
            while self._queue:
                await self._refreshed()
                began = self._clock()
                self._compare(self._queue.popleft())
                await asyncio.sleep(_PAUSE_FACTOR * (self._clock() - began))

    def _compare(self, one: _Queued) -> None:
        """Compare one decision, unless the result could be wrong."""
        if one.lacks_later:
            self.left_out += 1
            return
        snapshot, own = self._cache.snapshot(), {claim.key for claim in one.claims}
        context = self._evaluator.evaluation_context(snapshot, Deadline(_COMPARE_SECONDS, self._clock))
        later = _results(claim for claim in one.later if claim.key not in own)
        node_info = with_devices_released(one.node_info, later, idle=False)
        found = compare_sets(node_info, one.claims, snapshot.classes, context)
        if found is not None:
            self._history.record_sets(one.decided.uid, found)


def _results(claims: Iterable[Claim]) -> list[Result]:
    return [result for claim in claims if claim.allocation is not None for result in claim.allocation.results]
