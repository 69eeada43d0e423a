"""The last decisions about bound pods, for the page: read from the API server when a pod has left the watch.

The watch of pods has those without a node. A pod of Berth's scheduler leaves it when it is bound or deleted, so the
console then reads the pod once: if it has a node, its annotation and its claims show the decision. The annotation is
only text, since users may change it: the devices are those of the claims. A restart of the console loses the list; each
bound pod keeps its annotation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from heapq import nlargest

import structlog

from extender.allocation import NodeInfo, Snapshot
from extender.cache import CacheListener, ClusterCache
from extender.cluster import ClusterError, NotFound
from extender.diagnosis import ComparedSets
from extender.model import DECISION_ANNOTATION, SCHEDULER, Claim, FairLRU, ObjectKey, Pod, Result
from extender.scheduling import Decision, ScoredNode, parse_decision
from extender.topology.sets import bandwidth

_PODS = 2048  # decisions; each has the texts of an annotation, of 4 KiB at most
_WAITING = 512  # pods to read; those beyond are left out
_READS = 5  # of one pod: the watch of claims may be later than that of pods
_LATE_SECONDS = 0.2  # before the next read of the same pods
_DEVICES = 64  # names of devices that an entry keeps


@dataclass(slots=True)
class DecidedPod:
    """The decision about a bound pod. `sets` are its GPUs and those of first fit; None until they are compared."""

    pod: ObjectKey
    uid: str
    decision: Decision
    sets: ComparedSets | None = None
    version: int = 0  # of the history when this entry last changed


class DecisionHistory:
    """Decisions by pod UID, at most `pods`. Beyond it, the namespace with the most loses its oldest one.

    `since` is the start of the history, as RFC 3339.
    """

    def __init__(self, since: str = "", pods: int = _PODS) -> None:
        self.since = since
        self._entries: FairLRU[str, DecidedPod] = FairLRU(pods)
        self.version = 0  # grows with every change
        self.joined = 0  # pods bound with two GPUs or more
        self.joined_share = 0.0  # sum of their ratios of ring bandwidth to the best ring bandwidth in the fleet

    def record_decision(self, pod: ObjectKey, uid: str, decision: Decision) -> None:
        """Add the decision about a bound pod."""
        chosen = decision.chosen
        if chosen.best_gbps:
            self.joined += 1
            self.joined_share += chosen.ring_gbps / chosen.best_gbps
        self.version += 1
        self._entries.put(pod.namespace, uid, DecidedPod(pod, uid, decision, version=self.version))

    def record_sets(self, uid: str, sets: ComparedSets) -> None:
        """Add the comparison with first fit to a decision, unless the entry is dropped already."""
        entry = self._entries.get(uid)
        if entry is not None:
            self.version += 1
            entry.sets, entry.version = sets, self.version

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

    `decided` gets each decision.
    """

    def __init__(
        self,
        cache: ClusterCache,
        history: DecisionHistory,
        read_pod: Callable[[ObjectKey], Awaitable[Pod]],
        decided: Callable[[DecidedPod], None],
        waiting: int = _WAITING,
    ) -> None:
        self._cache = cache
        self._history = history
        self._read_pod = read_pod
        self._decided = decided
        self._queue: FairLRU[str, tuple[ObjectKey, int]] = FairLRU(waiting)  # pod UID to pod and number of reads
        self._queued = asyncio.Event()
        self._log = structlog.get_logger("berth.decisions")
        self.left_out = 0  # pods that were not read: too many left the watch at once

    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        if after is None and before is not None and _may_be_bound(before):
            self._put(before.uid, before.key, 0)

    async def run(self, listed: Callable[[], Awaitable[None]], rebuilt: Callable[[], Awaitable[None]]) -> None:
        """Run until cancelled, once every kind is listed. See Rebuilds.done for `rebuilt`."""
        await listed()
        while True:
            await self._queued.wait()
            self._queued.clear()
            late = []
            while (following := self._queue.take_turn()) is not None:
                uid, (key, reads) = following
                if not await self._read(key, uid, rebuilt) and reads + 1 < _READS:
                    late.append((uid, key, reads + 1))
            if late:
                await asyncio.sleep(_LATE_SECONDS)
                for one in late:
                    self._put(*one)

    def _put(self, uid: str, key: ObjectKey, reads: int) -> None:
        self.left_out += len(self._queue.put(key.namespace, uid, (key, reads)))
        self._queued.set()

    async def _read(self, key: ObjectKey, uid: str, rebuilt: Callable[[], Awaitable[None]]) -> bool:
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
        await rebuilt()
        decision = decision_of(pod, self._cache.snapshot())
        if decision is None:
            return False
        self._history.record_decision(key, uid, decision)
        entry = self._history.entry(uid)
        if entry is not None:
            self._decided(entry)
        return True


def decision_of(pod: Pod, snapshot: Snapshot) -> Decision | None:
    """The decision about a bound pod of Berth's scheduler, by its annotation and its claims.

    None if no claim has devices yet. The Binding has no annotation if all of them were allocated before, for another
    pod. The bandwidths are those of the fleet as it is now.
    """
    allocations = [claim.allocation for claim in _claims_of(pod, snapshot) if claim.allocation is not None]
    results = [result for allocation in allocations for result in allocation.results]
    if pod.scheduler != SCHEDULER or not results:
        return None
    at, devices = max(one.timestamp for one in allocations), tuple(str(one.device) for one in results[:_DEVICES])
    note, node_info = pod.annotations.get(DECISION_ANNOTATION), snapshot.node_infos.get(pod.node_name)
    if note is None:
        return Decision(at, ScoredNode(pod.node_name, 0.0, (), 0.0, 0.0, "", (), devices))
    noted = parse_decision(note)
    ring, best, source = _ring(node_info, results, snapshot) if node_info is not None else (0.0, 0.0, "")
    chosen = ScoredNode(pod.node_name, noted.score, devices, ring, best, source, noted.parts)
    return Decision(at, chosen, noted.runner_up, noted.margin)


def _claims_of(pod: Pod, snapshot: Snapshot) -> list[Claim]:
    """The pod's claims that are reserved for it or for its PodGroup."""
    keys = set(pod.claim_keys)
    if pod.extended_claim:
        keys.add(ObjectKey(pod.key.namespace, pod.extended_claim))
    found = [snapshot.claims.get(key) for key in sorted(keys)]
    return [claim for claim in found if claim is not None and (claim.group or claim.is_reserved_for(pod.uid))]


def _ring(node_info: NodeInfo, results: list[Result], snapshot: Snapshot) -> tuple[float, float, str]:
    """The ring bandwidth of these GPUs, the best of equal size in the fleet (both in GB/s), and the source of links."""
    bits = [node_info.inventory.index.get(result.device) for result in results if not result.admin_access]
    positions = node_info.positions(sum(1 << bit for bit in {*bits} if bit is not None))
    count = positions.bit_count()
    if node_info.fabric is None or count <= 1:
        return 0.0, 0.0, ""
    ring = bandwidth(node_info.fabric.graph, positions)
    return ring, max(ring, snapshot.baseline.best_ring_gbps.get(count, 0.0)), node_info.fabric.source.value


def _may_be_bound(pod: Pod) -> bool:
    return pod.scheduler == SCHEDULER and pod.may_need_devices and not pod.deleting
