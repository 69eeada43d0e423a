"""Informers: one reflector per kind keeps one cache up to date. Their state is reported in sentences.

The heartbeat detects a stalled event loop, for the liveness probe. A blocked event loop answers no probe. An overloaded
one may still answer a probe; the heartbeat then reports the delay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from itertools import islice

import structlog

from extender.cache import ClusterCache
from extender.cluster import ApiClient, Reflector, WatchedResource
from extender.runtime.cache_tasks import WatchProgress
from extender.runtime.gc_policy import run_gc_policy
from extender.runtime.supervisor import Supervisor
from extender.runtime.watched_kinds import watched_resources
from extender.wire import Json

_PERIOD_SECONDS = 1.0
_LATE_SECONDS = 15.0  # three times kube-scheduler's time-out for a filter request


class Heartbeat:
    """A background task that stores the time once a second. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = clock()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self._last = self._clock()
            await asyncio.sleep(_PERIOD_SECONDS)

    @property
    def stalled(self) -> str:
        """A sentence if the heartbeat is more than 15 s late, else ''."""
        age = self._clock() - self._last
        return f"the event loop has not turned for {age:.0f} s" if age > _LATE_SECONDS else ""


_SILENT_SECONDS = 180.0  # twice the time after which a reflector reopens a silent watch
_NAMED = 8  # nodes, and objects of each kind, that the warnings name


class Informers:
    """Keeps a cache up to date with the cluster.

    `after(kind)` is called after each applied event of the kinds in `observed`. `clock` returns seconds.
    """

    def __init__(
        self,
        client: ApiClient,
        cache: ClusterCache,
        clock: Callable[[], float],
        supervisor: Supervisor,
        after: Callable[[str], None],
        observed: Collection[str],
    ) -> None:
        self._cache = cache
        self._supervisor = supervisor
        self.progress = WatchProgress()
        self.heartbeat = Heartbeat(clock)
        self.reflectors = {
            kind.name: Reflector(
                client, _observed(kind, after) if kind.name in observed else kind, self.progress.notify, clock=clock
            )
            for kind in watched_resources(cache, clock)
        }
        self._log = structlog.get_logger("berth.informers")

    def start(self) -> None:
        """Start the background tasks."""
        for name, reflector in self.reflectors.items():
            self._supervisor.start(f"watch-{name}", reflector.run)
        self._supervisor.start("heartbeat", self.heartbeat.run)
        self._supervisor.start("garbage-collection", partial(run_gc_policy, self._listed_and_built))

    async def listed(self) -> None:
        """Wait until every kind is listed."""
        await self.progress.until(lambda: not self.not_ready)

    async def _listed_and_built(self) -> None:
        """Wait until every kind is listed, and build the first snapshot."""
        await self.listed()
        self._cache.snapshot()
        self._log.info("ready", nodes=len(self._cache.store.nodes), slices=len(self._cache.store.slices))

    @property
    def not_ready(self) -> str:
        """'' once every kind is listed, else the kinds that are missing, with the reasons."""
        missing: dict[str, list[str]] = {}  # problem to kinds: often all kinds have the same problem
        for name, reflector in self.reflectors.items():
            if not reflector.listed:
                missing.setdefault(reflector.problem, []).append(name)
        if not missing:
            return ""
        parts = [", ".join(names) + (f" ({problem})" if problem else "") for problem, names in missing.items()]
        hint = "; run berth doctor for a remedy" if any(missing) else ""
        return f"not listed yet: {', '.join(parts)}{hint}"

    @property
    def not_ready_text(self) -> str:
        """'' once every kind is listed, else the error sentence for a request."""
        missing = self.not_ready
        return f"berth is not ready, {missing}" if missing else ""

    @property
    def degraded(self) -> str:
        """'' while no watch is silent, else a sentence that names the silent watches.

        Berth still answers requests: the write barrier of a bind detects a watch that lags.
        """
        silent = [
            f"the watch of {name} has been silent for {reflector.silence:.0f} s"
            + (f" ({reflector.problem})" if reflector.problem else "")
            for name, reflector in self.reflectors.items()
            if reflector.listed and reflector.silence > _SILENT_SECONDS
        ]
        return "; ".join(silent)

    @property
    def warnings(self) -> list[str]:
        """Faults that do not make Berth unready, one sentence each: at most 8 nodes, and 8 objects of each kind."""
        failed = self._cache.failed_nodes
        found = [f"task {name} keeps failing: {problem}" for name, problem in self._supervisor.failing.items()]
        found += [f"the NodeInfo of node {name} cannot be built: {why}" for name, why in islice(failed.items(), _NAMED)]
        found += [f"and of {len(failed) - _NAMED} more nodes"] if len(failed) > _NAMED else []
        for kind, reflector in self.reflectors.items():
            unreadable = reflector.unreadable
            first = islice(unreadable.items(), _NAMED)
            found += [f"{kind} {key} cannot be read: {one.problem}" for key, one in first]
            found += [f"and {len(unreadable) - _NAMED} more {kind}"] if len(unreadable) > _NAMED else []
        return found


def _observed(kind: WatchedResource, after: Callable[[str], None]) -> WatchedResource:
    apply = kind.apply

    def and_after(key: str, obj: Json | None) -> None:
        apply(key, obj)
        after(kind.name)

    return replace(kind, apply=and_after)
