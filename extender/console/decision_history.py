"""The last decisions about bound pods, for the page: read from the API server when a pod has left the watch.

The watch of pods has those without a node. A pod of Berth's scheduler leaves it when it is bound or deleted, so the
console then reads the pod once: if it has a node, its annotation and its claims show the decision. The annotation is
only text, since users may change it: the devices are those of the claims. A restart of the console loses the list; each
bound pod keeps its annotation. Beside each decision, `SetComparer` shows the GPUs that first fit would have taken on
the same node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest

import structlog

from extender.allocation import NodeInfo, Search, Snapshot
from extender.allocation.what_if import claims_problem, with_devices_released
from extender.api.device_classes import DeviceClass
from extender.api.object_meta import ObjectKey
from extender.api.pods import DECISION_ANNOTATION, SCHEDULER, Pod
from extender.api.resource_claims import Claim, Result
from extender.base.berth_errors import InvalidClaim, OutOfSteps
from extender.base.bits import members
from extender.base.deadline import Deadline, DeadlineExceeded
from extender.base.fair_lru import FairLRU
from extender.cache import CacheListener, ClusterCache
from extender.cluster import ClusterError, NotFound
from extender.console.fair_queue import FairQueue
from extender.console.job_history import JobHistory
from extender.explain.fleet_rows import link_digits
from extender.scheduling import EvaluationContext, Evaluator
from extender.scheduling.decision import Decision, ScoredNode, parse_decision
from extender.topology.score_parts import product_gbps
from extender.topology.sets import bandwidth, is_joined

_MAX_PODS = 2048  # decisions; each has the texts of an annotation, of 4 KiB at most
_MAX_WAITING = 512  # pods to read; those beyond are left out
_MAX_READS = 5  # of one pod: the watch of claims may be later than that of pods
_LATE_SECONDS = 0.2  # before the next read of the same pod
_MAX_DEVICES = 64  # names of devices that an entry keeps
_MAX_COMPARED = 256  # decisions that wait to be compared; those beyond are not
_COMPARE_SECONDS = 0.05  # of one comparison
_PAUSE_FACTOR = 4.0  # pause after a comparison, as a multiple of the time that it took


@dataclass(frozen=True, slots=True)
class GpuSet:
    """GPUs of one node. `gbps` is the predicted bandwidth of their ring in GB/s, 0 for fewer than two GPUs."""

    gpus: tuple[int, ...]  # indexes in ComparedSets.names
    gbps: float
    is_joined: bool  # by their links alone


@dataclass(frozen=True, slots=True)
class ComparedSets:
    """The set that Berth chose and the set of first fit, both on the node as it was without the pod.

    First fit takes the first devices that fit, in the order of the in-tree allocator. `links`, `switch` and `link` are
    those of the node's row in the fleet overview.
    """

    names: tuple[str, ...]  # of the node's GPUs
    busy: tuple[int, ...]  # GPUs that other pods had
    chosen: GpuSet
    first_fit: GpuSet
    links: str = ""
    switch: str = ""
    link: str = ""
    in_group: bool = False  # whether the pod names a group


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

    See CacheRefresh.wait for `refreshed`.
    """

    def __init__(
        self,
        cache: ClusterCache,
        history: DecisionHistory,
        jobs: JobHistory,
        comparer: SetComparer,
        read_pod: Callable[[ObjectKey], Awaitable[Pod]],
        refreshed: Callable[[], Awaitable[None]],
    ) -> None:
        self._cache = cache
        self._history = history
        self._jobs = jobs
        self._comparer = comparer
        self._read_pod = read_pod
        self._refreshed = refreshed
        # Pod UID to pod and number of reads.
        self._queue: FairQueue[str, tuple[ObjectKey, int]] = FairQueue(_MAX_WAITING)
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
        self._jobs.bound(pod, claims, snapshot)
        self._history.record_decision(key, uid, decision, (claim.key for claim in claims))
        self._comparer.bound(pod, claims, snapshot, self._is_later)
        return True

    def _is_later(self, uid: str) -> bool:
        """Whether a pod that has devices already is not read yet: the watch of claims may be ahead of that of pods."""
        return uid in self._cache.store.pods or uid in self._queue


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
    positions = _positions(node_info, results)
    if node_info.fabric is None or positions.bit_count() <= 1:
        return 0.0, 0.0, ""
    ring = bandwidth(node_info.fabric.graph, positions)
    return ring, max(ring, product_gbps(node_info, positions)), node_info.fabric.source.value


def _may_be_bound(pod: Pod) -> bool:
    return pod.scheduler == SCHEDULER and pod.may_need_devices and not pod.deleting


# -- beside first fit -----------------------------------------------------------------------------------------------


class SetComparer:
    """A background task of the console. `bound` queues a pod with its node as it was before; `run` compares the sets.

    See CacheRefresh.wait for `refreshed`.
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
        self._queue: FairQueue[str, tuple[list[Claim], NodeInfo]] = FairQueue(_MAX_COMPARED)  # by pod UID

    def bound(self, pod: Pod, claims: list[Claim], snapshot: Snapshot, is_later: Callable[[str], bool]) -> None:
        """Queue a bound pod with its claims. The devices of pods that were bound later, by UID, count as free."""
        node_info = snapshot.node_infos.get(pod.node_name)
        if node_info is None or not all(claim.is_reserved_for(pod.uid) for claim in claims):
            return
        others = {claim.key: claim for pool in node_info.inventory.pools for claim in snapshot.claims_on(pool.key)}
        since = (
            one for one in others.values() if one.reserved_for and all(is_later(by.uid) for by in one.reserved_for)
        )
        before = with_devices_released(node_info, _results(since), idle=False)
        self._queue.put(pod.key.namespace, pod.uid, (claims, before))

    async def run(self) -> None:
        """Run until cancelled. A pause several times as long follows each comparison."""
        while True:
            uid, (claims, node_info) = await self._queue.take()
            await self._refreshed()
            began, snapshot = self._clock(), self._cache.snapshot()
            context = self._evaluator.evaluation_context(snapshot, Deadline(_COMPARE_SECONDS, self._clock))
            found = _compared(node_info, claims, snapshot.classes, context)
            if found is not None:
                self._history.record_sets(uid, found)
            await asyncio.sleep(_PAUSE_FACTOR * (self._clock() - began))


def _compared(
    node_info: NodeInfo, claims: Sequence[Claim], classes: Mapping[str, DeviceClass], context: EvaluationContext
) -> ComparedSets | None:
    """The sets of a pod to which these claims, allocated on this node, belong. None if its devices are no whole GPUs,
    or if first fit finds no devices within its steps or the deadline of the context.
    """
    results = _results(claims)
    before = with_devices_released(node_info, results, idle=False)
    first_fit = first_fit_devices(before, claims, classes, context)
    chosen = _positions(node_info, results)
    if first_fit is None or not chosen or node_info.fabric is None:
        return None
    bits_of_gpus = [bit for bit in node_info.gpu_bits if bit >= 0]
    devices = node_info.inventory.devices
    return ComparedSets(
        tuple(devices[bit].id.device for bit in bits_of_gpus),
        tuple(index for index, bit in enumerate(bits_of_gpus) if before.busy >> bit & 1),
        _set(node_info, chosen),
        _set(node_info, before.positions(first_fit)),
        **link_digits(node_info),
        in_group=any(claim.group for claim in claims),
    )


def first_fit_devices(
    node_info: NodeInfo, claims: Sequence[Claim], classes: Mapping[str, DeviceClass], context: EvaluationContext
) -> int | None:
    """The first devices that fit, as a mask; None if none do, or none are found within the steps and the deadline."""
    named = [(str(claim.key), claim.spec) for claim in claims]
    problem = claims_problem(node_info, named, classes.get, context.masks, context.features, context.deadline)
    try:
        solution = Search(problem, deadline=context.deadline).run()
    except (InvalidClaim, OutOfSteps, DeadlineExceeded):
        return None
    return solution.mask if solution is not None else None


def _set(node_info: NodeInfo, positions: int) -> GpuSet:
    assert node_info.fabric is not None
    shown = [position for position, bit in enumerate(node_info.gpu_bits) if bit >= 0]
    graph, gpus = node_info.fabric.graph, members(positions)
    gbps = bandwidth(graph, positions) if len(gpus) > 1 else 0.0
    return GpuSet(tuple(map(shown.index, gpus)), round(gbps, 1), is_joined(graph, positions))


def _positions(node_info: NodeInfo, results: Iterable[Result]) -> int:
    """The GPUs among these devices, as a mask of positions in the fabric."""
    bits = {node_info.inventory.index.get(result.device) for result in results if not result.admin_access}
    return node_info.positions(sum(1 << bit for bit in bits if bit is not None))


def _results(claims: Iterable[Claim]) -> list[Result]:
    return [result for claim in claims if claim.allocation is not None for result in claim.allocation.results]
