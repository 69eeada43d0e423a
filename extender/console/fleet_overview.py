"""The data of the page, and the figures of the fleet for /metrics.

`FleetOverview` has one row per node, built once per change of the node and shared by all open pages. A page asks again
and again, and gets only what has changed since its last reply: no page keeps a connection. `FleetSampler` computes the
figures of the whole fleet in the background, and keeps a trend of two of them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Hashable, Iterator
from itertools import count
from math import inf
from secrets import token_hex
from typing import NamedTuple

from cachetools import LRUCache

from extender import __version__
from extender.allocation import NodeInfo, Snapshot
from extender.api.fields import Json
from extender.api.pods import SCHEDULER, Pod
from extender.cache import ClusterCache
from extender.cluster import now_rfc3339
from extender.console.decision_history import DecidedPod, DecisionHistory
from extender.console.explainer import Explainer, last_attempt_failed, to_json
from extender.explain.fleet_rows import (
    FleetStats,
    claim_rows,
    fleet_stats,
    group_rows,
    large_jobs,
    node_detail,
    node_row,
    totals,
)

_REFRESH_SECONDS = 1.0  # between two searches for waiting pods and groups
_MAX_DECISIONS = 100  # decisions in one reply
_MAX_EXPLAINED = 2  # pods that are explained in one period, for their nearest miss
_WORK_SECONDS = 0.1  # of one explanation
_MAX_GROUPS = 30  # rows of groups
_MAX_PENDING = 50  # rows of waiting pods; `waiting` counts all pods
_CURSOR_NUMBERS = 4  # after the epoch, see _Seen
_SAMPLE_SECONDS = 5.0  # between two samples of the fleet
_POINT_SECONDS = 75.0  # between two points of the trend
_MAX_POINTS = 480  # of the trend: the last 10 hours, and as many as an open page keeps


class TrendPoint(NamedTuple):
    """The fleet at one time, in seconds of the console's clock."""

    at: float
    free: int  # GPUs without an allocation, share or hold
    largest_set: int  # size of the largest set of free GPUs that links join on one node


class FleetSampler:
    """`stats` maps a GPU product to its figures, which are at most 5 s old. `clock` returns seconds."""

    def __init__(
        self, cache: ClusterCache, refreshed: Callable[[], Awaitable[None]], clock: Callable[[], float]
    ) -> None:
        self._cache = cache
        self._refreshed = refreshed
        self._clock = clock
        self._version = -1
        self.stats: dict[str, FleetStats] = {}
        self.trend: deque[TrendPoint] = deque(maxlen=_MAX_POINTS)

    async def run(self) -> None:
        """Run until cancelled. See CacheRefresh.wait for `refreshed`."""
        while True:
            await self._refreshed()
            self.sample()
            await asyncio.sleep(_SAMPLE_SECONDS)

    def sample(self) -> None:
        """Compute the figures, if the cache changed, and add a point to the trend."""
        snapshot = self._cache.snapshot()
        if snapshot.version != self._version:
            self.stats = fleet_stats(snapshot)
            self._version = snapshot.version
        products = self.stats.values()
        largest, now = max((stats.largest_set for stats in products), default=0), self._clock()
        if not self.trend or now - self.trend[-1].at >= _POINT_SECONDS:
            self.trend.append(TrendPoint(now, sum(stats.free for stats in products), largest))


# -- the page -------------------------------------------------------------------------------------------------------


class _Seen(NamedTuple):
    """What a page has seen: the versions of the cache, the history and the lists, and the time of its last reply."""

    epoch: str
    version: int
    recorded: int
    refreshes: int
    sampled_ms: int  # of the console's clock

    @property
    def text(self) -> str:
        return "-".join(map(str, self))


class _Nearest(NamedTuple):
    """The nearest miss of a pod, with the versions of the pod and of the snapshot that it is about."""

    pod_version: str = ""
    snapshot_version: int = -1
    text: str = ""


class FleetOverview:
    """Rows of all nodes, and their changes since an earlier reply. `clock` returns seconds."""

    def __init__(
        self,
        cache: ClusterCache,
        history: DecisionHistory,
        explainer: Explainer,
        sampler: FleetSampler,
        clock: Callable[[], float],
    ) -> None:
        self.cluster = ""  # its name, if the console has been told
        self.docs = ""  # the URL of the documentation, if it has been told
        self._cache = cache
        self._history = history
        self._explainer = explainer
        self._sampler = sampler
        self._clock = clock
        self._refreshed_at = float("-inf")  # time of the last refresh, which all open pages share
        self._refreshes = 0  # changes that refreshes found
        self._groups: list[Json] = []  # rows, as of the last refresh
        self._waiting: list[Pod] = []  # pods that wait, the namespaces in turn, as of the last refresh
        self._rows: dict[str, tuple[NodeInfo, Json]] = {}
        self._nearest: LRUCache[str, _Nearest] = LRUCache(_MAX_PENDING)  # by pod UID
        self._epoch = token_hex(4)  # of this process: versions of another one mean nothing here

    def fleet(self, since: str = "") -> Json:
        """The whole fleet, or only what has changed since the reply with the `cursor` that a page gives back.

        `whole` says which. A cursor that is too old, or of another process, gets the whole fleet.
        """
        seen = self._seen(since)
        if seen is None:
            self._find_waiting()
            self._find_groups()
        else:
            self._refresh()
        snapshot = self._cache.snapshot()
        changed = snapshot.changed_since(seen.version) if seen is not None else None
        if seen is None or changed is None:
            return self._whole(snapshot)
        infos = snapshot.node_infos
        lists = self._lists() if self._refreshes != seen.refreshes else {}
        return {
            **self._times(snapshot, whole=False, since=seen.sampled_ms / 1000),
            "nodes": [self._row(infos[name]) for name in sorted(changed) if name in infos],
            "gone": [name for name in sorted(changed) if name not in infos],
            "decisions": self._decisions(seen.recorded),
            **lists,
        }

    def _whole(self, snapshot: Snapshot) -> Json:
        rows = [self._row(snapshot.node_infos[name]) for name in sorted(snapshot.node_infos)]
        for name in self._rows.keys() - snapshot.node_infos.keys():
            del self._rows[name]
        known = {"version": snapshot.version, "remembered_since": self._history.since, "totals": totals(rows)}
        known |= {"cluster": self.cluster, "docs": self.docs, "release": __version__}
        times = self._times(snapshot, whole=True, since=-inf)
        return {**times, **known, "nodes": rows, "decisions": self._decisions(0), **self._lists()}

    def _times(self, snapshot: Snapshot, *, whole: bool, since: float) -> Json:
        """The part of every reply: its cursor, the time, the trend after `since`, and what a large job finds."""
        now_ms = int(self._clock() * 1000)
        cursor = _Seen(self._epoch, snapshot.version, self._history.version, self._refreshes, now_ms)
        found = {"cursor": cursor.text, "whole": whole, "now": now_rfc3339(), "trend": self._ages(since)}
        return {**found, "large_jobs": [job._asdict() for job in large_jobs(self._sampler.stats)]}

    def _seen(self, cursor: str) -> _Seen | None:
        """What a page has seen; None if it has seen nothing of this process."""
        epoch, *numbers = cursor.split("-")
        is_own = epoch == self._epoch and len(numbers) == _CURSOR_NUMBERS
        if not is_own or not all(number.isdecimal() and len(number) < 20 for number in numbers):  # noqa: PLR2004
            return None
        seen = _Seen(epoch, *map(int, numbers))
        return seen if seen.version <= self._cache.snapshot().version else None

    def node(self, name: str) -> Json | None:
        """All details of one node; None if the node is unknown."""
        snapshot = self._cache.snapshot()
        node_info = snapshot.node_infos.get(name)
        return node_detail(node_info, snapshot) if node_info is not None else None

    def claims(self) -> list[Json]:
        """One row for each claim."""
        return claim_rows(self._cache.snapshot())

    def _refresh(self) -> None:
        """Find the waiting pods and the nearest miss of a few, once in a period, however many pages are open."""
        if self._clock() - self._refreshed_at < _REFRESH_SECONDS:
            return
        self._refreshed_at = self._clock()
        self._find_waiting()
        self._find_groups()
        self._history.find_ended(self._cache.snapshot(), _MAX_DECISIONS)
        for pod in self._outdated()[:_MAX_EXPLAINED]:
            found, version = self._explainer.brief(pod.uid, _WORK_SECONDS), self._cache.snapshot().version
            nearest = found.nearest if found is not None else ""
            self._refreshes += self._nearest_of(pod).text != nearest
            self._nearest[pod.uid] = _Nearest(pod.resource_version, version, nearest)

    def _nearest_of(self, pod: Pod) -> _Nearest:
        found: _Nearest = self._nearest.get(pod.uid, _Nearest())
        return found

    def _outdated(self) -> list[Pod]:
        """The shown pods whose nearest miss may have changed: those never explained first, then the oldest answers."""
        now = self._cache.snapshot().version
        shown = [pod for pod, _ in self._waiting_rows() if pod.tried]
        changed = [pod for pod in shown if self._nearest_of(pod)[:2] != (pod.resource_version, now)]
        return sorted(changed, key=lambda pod: self._nearest_of(pod).snapshot_version)

    def _find_waiting(self) -> None:
        """Find the waiting pods: the oldest of each namespace, then the second oldest of each, and so on.

        So the pods of one namespace hide no others.
        """
        pods = self._cache.store.pods.values()
        found = [pod for pod in pods if pod.scheduler == SCHEDULER and pod.may_need_devices and pod.is_waiting]
        found.sort(key=lambda pod: (not pod.tried, pod.created, pod.key))
        places = defaultdict[str, Iterator[int]](count)
        found.sort(key=lambda pod: next(places[pod.key.namespace]))
        if found != self._waiting:
            self._waiting = found
            self._refreshes += 1

    def _find_groups(self) -> None:
        found = group_rows(self._cache.snapshot(), _MAX_GROUPS, self._cache.store.gone_members)
        if found != self._groups:
            self._groups = found
            self._refreshes += 1

    def _ages(self, after: float) -> list[tuple[float, int, int]]:
        """The points of the trend after a time: seconds ago, free GPUs, largest free set."""
        now = self._clock()
        points = (point for point in self._sampler.trend if point.at > after)
        return [(round(now - point.at, 1), point.free, point.largest_set) for point in points]

    def _waiting_rows(self) -> list[tuple[Pod, int]]:
        """The first waiting pods, with how many each stands for: pods of one group with one reason are one row.

        So a large gang leaves room for others.
        """
        rows: dict[Hashable, tuple[Pod, int]] = {}
        for pod in self._waiting:
            group = self._explainer.group_of(pod.uid)
            key = (group, pod.unschedulable) if group is not None else pod.uid
            first, pods = rows.get(key, (pod, 0))
            if pods or len(rows) < _MAX_PENDING:
                rows[key] = first, pods + 1
        return list(rows.values())

    def _row(self, node_info: NodeInfo) -> Json:
        known = self._rows.get(node_info.node.name)
        if known is None or known[0] is not node_info:
            known = self._rows[node_info.node.name] = (node_info, node_row(node_info))
        return known[1]

    def _decisions(self, since: int) -> list[Json]:
        return [_decision(entry) for entry in self._history.recent(_MAX_DECISIONS, since)]

    def _lists(self) -> Json:
        """The waiting pods and the groups. They change with `_refreshes` alone."""
        pending = [_pending(pod, pods, self._nearest_of(pod).text) for pod, pods in self._waiting_rows()]
        return {"pending": pending, "waiting": len(self._waiting), "groups": self._groups}


def _pending(pod: Pod, pods: int, nearest: str) -> Json:
    sentence = pod.unschedulable if pod.tried else "kube-scheduler has not reported an attempt yet"
    if pod.scheduler_error:
        sentence = last_attempt_failed(pod)
    return {"pod": str(pod.key), "pods": pods, "since": pod.created, "sentence": sentence, "nearest": nearest}


def _decision(entry: DecidedPod) -> Json:
    """A decision in brief; explain has the parts of the score."""
    chosen = entry.decision.chosen
    return {
        "pod": str(entry.pod),
        "at": entry.decision.at,
        "node": chosen.node,
        "devices": len(chosen.all_devices),
        "ring_gbps": round(chosen.ring_gbps),
        "best_gbps": round(chosen.best_gbps),
        "runner_up": entry.decision.runner_up,
        "margin": round(entry.decision.margin, 3),
        "ended": entry.ended,
        "sets": to_json(entry.sets) if entry.sets is not None else None,
    }
