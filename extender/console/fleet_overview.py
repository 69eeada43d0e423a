"""The data of the page: one row per node, built once per change of the node and shared by all open pages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from cachetools import LRUCache

from extender.allocation import NodeInfo
from extender.cache import ClusterCache
from extender.console.decision_history import DecisionHistory, PodHistory
from extender.console.explainer import Explainer
from extender.diagnosis import claim_rows, claims_on, node_detail, row, totals
from extender.model import SCHEDULER, ObjectKey, counted

Json = dict[str, Any]
_PERIOD_SECONDS = 1.0  # between two updates to a page
_DECISIONS = 100  # decisions in one update
_EXPLAINED = 2  # pods that are explained in one period, for their nearest miss
_WORK_SECONDS = 0.1  # of one explanation
_PENDING = 50  # waiting pods that are listed; `waiting` counts all
MOST_WATCHERS = 64
_LIFE_SECONDS = 600.0  # of one stream of updates; a client that never reads may take all that a quiet fleet sends


class FleetOverview:
    """Rows of all nodes, and a stream of their changes. `clock` returns seconds."""

    def __init__(
        self,
        cache: ClusterCache,
        history: DecisionHistory,
        explainer: Explainer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache = cache
        self._history = history
        self._explainer = explainer
        self._clock = clock
        self._refreshed_at = float("-inf")  # time of the last refresh, which all open pages share
        self._refreshes = 0  # changes that refreshes found
        self._unrecorded: list[ObjectKey] = []  # waiting pods that the history does not have
        self._rows: dict[str, tuple[NodeInfo, Json]] = {}
        # Pod UID to (version of its history, nearest miss).
        self._nearest: LRUCache[str, tuple[int, str]] = LRUCache(_PENDING)
        self._watchers = 0

    def fleet(self) -> Json:
        """The whole fleet, for a page that opens."""
        self._find_unrecorded()
        snapshot = self._cache.snapshot()
        rows = [self._row(snapshot.node_infos[name]) for name in sorted(snapshot.node_infos)]
        for name in self._rows.keys() - snapshot.node_infos.keys():
            del self._rows[name]
        known = {"version": snapshot.version, "nodes": rows, "totals": totals(rows), **self._pods(0)}
        return {**known, "remembered_since": self._history.since}

    def node(self, name: str) -> Json | None:
        """All details of one node; None if the node is unknown."""
        snapshot = self._cache.snapshot()
        node_info = snapshot.node_infos.get(name)
        return node_detail(node_info, claims_on([node_info], snapshot)) if node_info is not None else None

    def claims(self) -> list[Json]:
        """One row for each claim."""
        return claim_rows(self._cache.snapshot())

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of pages is open."""
        return self._watchers >= MOST_WATCHERS

    async def updates(self) -> AsyncIterator[Json]:
        """Yield the changes once a second, if there are any. Ends after 10 minutes; the page then opens it again."""
        self._watchers += 1
        ends = self._clock() + _LIFE_SECONDS
        try:
            version, told, refreshes = self._cache.snapshot().version, self._history.version, self._refreshes
            waiting: Json = {}
            while self._clock() < ends:
                await asyncio.sleep(_PERIOD_SECONDS)
                self._refresh()
                snapshot = self._cache.snapshot()
                if (snapshot.version, self._history.version, self._refreshes) == (version, told, refreshes):
                    continue
                changed = snapshot.changed_since(version)
                names = changed if changed is not None else snapshot.node_infos.keys() | self._rows.keys()
                rows = [
                    self._row(node_info)
                    for name in sorted(names)
                    if (node_info := snapshot.node_infos.get(name)) is not None
                ]
                gone = [name for name in sorted(names) if name not in snapshot.node_infos]
                pods = self._pods(told)
                same = {name: pods[name] for name in ("pending", "waiting")} == waiting
                waiting = {name: pods.pop(name) for name in ("pending", "waiting")}
                version, told, refreshes = snapshot.version, self._history.version, self._refreshes
                yield {"nodes": rows, "gone": gone, **pods, **({} if same else waiting)}
        finally:
            self._watchers -= 1

    def _refresh(self) -> None:
        """Find the waiting pods and the nearest miss of a few, once in a period, however many pages are open."""
        if self._clock() - self._refreshed_at < _PERIOD_SECONDS:
            return
        self._refreshed_at = self._clock()
        self._find_unrecorded()
        waiting = self._unschedulable()[:_PENDING]
        todo = [entry for entry in waiting if self._nearest.get(entry.uid, (0, ""))[0] != entry.version]
        for entry in todo[:_EXPLAINED]:
            found = self._explainer.known(entry.pod, work_seconds=_WORK_SECONDS) or {}
            self._nearest[entry.uid] = entry.version, next(iter(found.get("misses") or ()), "")
            self._refreshes += 1

    def _find_unrecorded(self) -> None:
        """Find the waiting pods without records: serve called filter for them before the console started, or never."""
        found = [
            pod.key
            for uid, pod in self._cache.store.pods.items()
            if pod.scheduler == SCHEDULER and pod.may_need_devices and self._history.entry(uid) is None
        ]
        if found != self._unrecorded:
            self._unrecorded = found
            self._refreshes += 1

    def _unschedulable(self) -> list[PodHistory]:
        return self._history.unschedulable(self._cache.store.pods)

    def _row(self, node_info: NodeInfo) -> Json:
        known = self._rows.get(node_info.node.name)
        if known is None or known[0] is not node_info:
            known = self._rows[node_info.node.name] = (node_info, row(node_info))
        return known[1]

    def _pods(self, since: int) -> Json:
        recent = self._history.recent(_DECISIONS, since)
        decided = [_decision(entry) for entry in recent if entry.decision is not None]
        waiting = self._unschedulable()
        pending = [_pending(entry, self._nearest.get(entry.uid, (0, ""))[1]) for entry in waiting[:_PENDING]]
        start = f" since {self._history.since}" if self._history.since else ""
        sentence = f"no filter request is remembered{start}"
        pending += [
            {"pod": str(pod), "since": "", "sentence": sentence, "nearest": ""}
            for pod in self._unrecorded[: _PENDING - len(pending)]
        ]
        return {"pending": pending, "waiting": len(waiting) + len(self._unrecorded), "decisions": decided}


def _pending(entry: PodHistory, nearest: str) -> Json:
    last = entry.attempts[-1] if entry.attempts else None
    reasons = [f"{text} on {counted(count, 'node')}" for text, count in last.reasons] if last is not None else []
    return {
        "pod": str(entry.pod),
        "since": entry.attempts[0].at if last else "",
        "sentence": "; ".join(reasons),
        "nearest": nearest,
    }


def _decision(entry: PodHistory) -> Json:
    """A decision in brief; explain has the parts of the score."""
    assert entry.decision is not None
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
    }
