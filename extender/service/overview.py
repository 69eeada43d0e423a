"""The overview kept up to date: rows are made once per change of a node, and everybody who looks shares them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from typing import Any

from extender.allocation.view import NodeView, Snapshot
from extender.mirror.mirror import Mirror
from extender.service.explaining import Explainer, UnknownPod
from extender.service.journal import Entry, Journal
from extender.service.judge import Judge
from extender.service.turns import Turns
from extender.verdict.nearest import claims_on
from extender.verdict.overview import claim_rows, node_detail, row, totals

Json = dict[str, Any]
_STEP = 5  # nodes between two looks at who else is waiting
_PERIOD_SECONDS = 1.0  # between two updates to a page
_DECISIONS = 100  # told in one update
_EXPLAINED = 2  # pods whose nearest miss is looked for in one period
_WORK_SECONDS = 0.1  # for one of them
_PENDING = 50  # pods listed; the count says how many more there are
MOST_WATCHERS = 64


class Overview:
    """Rows of all nodes, and what changes from second to second."""

    def __init__(self, mirror: Mirror, judge: Judge, journal: Journal, explainer: Explainer, turns: Turns) -> None:
        self._turns = turns
        self._mirror = mirror
        self._judge = judge
        self._journal = journal
        self._rows: dict[str, tuple[NodeView, Json]] = {}
        self._explainer = explainer
        self._nearest: OrderedDict[str, tuple[int, str]] = OrderedDict()  # pod UID to journal version and nearest miss
        self._watchers = 0

    async def fleet(self) -> Json:
        """Everything a page starts with."""
        return await self._turns.run(self._everything(self._mirror.snapshot()))

    def _everything(self, snapshot: Snapshot) -> Iterator[Json | None]:
        rows: list[Json] = []
        for position, name in enumerate(sorted(snapshot.views)):
            rows.append(self._row(snapshot.views[name]))
            if position % _STEP == 0:
                yield None
        for name in self._rows.keys() - snapshot.views.keys():
            del self._rows[name]
        yield {"version": snapshot.version, "nodes": rows, "totals": totals(rows), **self._pods(0)}

    async def node(self, name: str) -> Json | None:
        """One node in full; None for a node that is not known."""
        snapshot = self._mirror.snapshot()
        view = snapshot.views.get(name)
        if view is None:
            return None
        return node_detail(view, await self._turns.run(claims_on([view], snapshot)))

    def claims(self) -> list[Json]:
        return claim_rows(self._mirror.snapshot())

    @property
    def full(self) -> bool:
        """Whether so many pages are open that another would cost the scheduler."""
        return self._watchers >= MOST_WATCHERS

    async def updates(self) -> AsyncIterator[Json]:
        """What changed, once a second, and only when something did."""
        self._watchers += 1
        try:
            version, told = self._mirror.present().version, self._journal.version
            waiting: Json = {}
            while True:
                await asyncio.sleep(_PERIOD_SECONDS)
                news = await self._explain_some()
                snapshot = self._mirror.snapshot()
                if snapshot.version == version and self._journal.version == told and not news:
                    continue
                changed = snapshot.changed_since(version)
                names = changed if changed is not None else snapshot.views.keys() | self._rows.keys()
                rows = [self._row(view) for name in sorted(names) if (view := snapshot.views.get(name)) is not None]
                gone = [name for name in sorted(names) if name not in snapshot.views]
                pods = self._pods(told)
                same = {name: pods[name] for name in ("pending", "waiting")} == waiting
                waiting = {name: pods.pop(name) for name in ("pending", "waiting")}
                yield {"nodes": rows, "gone": gone, **pods, **({} if same else waiting)}
                version, told = snapshot.version, self._journal.version
        finally:
            self._watchers -= 1

    async def _explain_some(self) -> bool:
        """Find the nearest miss of a few pods that have none yet; whether there was one."""
        todo = [
            entry
            for uid in self._judge.rejected()[:_PENDING]
            if (entry := self._journal.entry(uid)) is not None and self._nearest.get(uid, (0, ""))[0] != entry.noted
        ]
        for entry in todo[:_EXPLAINED]:
            try:
                found = await self._explainer.pod(entry.pod, work_seconds=_WORK_SECONDS)
            except UnknownPod:
                continue
            self._nearest[entry.uid] = entry.noted, next(iter(found.get("misses") or ()), "")
            if len(self._nearest) > _PENDING:
                self._nearest.popitem(last=False)
        return bool(todo)

    def _row(self, view: NodeView) -> Json:
        known = self._rows.get(view.node.name)
        if known is None or known[0] is not view:
            known = self._rows[view.node.name] = (view, row(view))
        return known[1]

    def _pods(self, since: int) -> Json:
        recent = self._journal.recent(_DECISIONS, since)
        decided = [_decision(entry) for entry in recent if entry.decision is not None]
        waiting = self._judge.rejected()
        pending = [_pending(entry, self._nearest.get(uid, (0, ""))[1]) for uid in waiting[:_PENDING] if (entry := self._journal.entry(uid)) is not None]
        return {"pending": pending, "waiting": len(waiting), "decisions": decided}


def _pending(entry: Entry, nearest: str) -> Json:
    last = entry.attempts[-1] if entry.attempts else None
    reasons = [f"{text} on {count} nodes" for text, count in last.reasons] if last is not None else []
    return {"pod": str(entry.pod), "since": entry.attempts[0].at if last else "", "sentence": "; ".join(reasons), "nearest": nearest}


def _decision(entry: Entry) -> Json:
    """Enough for a line; explain has the parts of the score."""
    assert entry.decision is not None
    chosen = entry.decision.chosen
    return {
        "pod": str(entry.pod), "at": entry.decision.at, "node": chosen.node, "devices": len(chosen.devices),
        "ring_gbps": round(chosen.ring_gbps), "best_gbps": round(chosen.best_gbps),
        "runner_up": entry.decision.runner_up, "margin": round(entry.decision.margin, 3),
    }
