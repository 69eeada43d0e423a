"""What keeps one cache up to date: a reflector for each kind of watched_kinds.py (`Informers`, which say how they are).

Tasks beside them end holds (`HoldExpirer`), build changed nodes in time slices (`CacheRefresh`), and wait for events
(`WatchProgress`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from itertools import islice

import structlog

from extender.api.fields import Json
from extender.cache import ClusterCache
from extender.cluster import ApiClient, Reflector, WatchedResource
from extender.runtime.gc_policy import run_gc_policy
from extender.runtime.supervisor import Supervisor, TimerWait
from extender.runtime.watched_kinds import watched_resources


class HoldExpirer:
    """A background task that does what is due in the cache. `clock` returns seconds."""

    def __init__(self, cache: ClusterCache, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._clock = clock
        self._wait = TimerWait(cache.timers, clock)

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self._cache.expire(self._clock())
            await self._wait.until_due()


_SLICE_SECONDS = 0.005
_NODES_AT_ONCE = 4  # nodes or slices between two reads of the clock
_MAX_AT_ONCE = 8  # changed nodes that a snapshot builds at once


class CacheRefresh:
    """A caller of `wait` builds the remaining nodes, and yields to the event loop after each time slice.

    Without a caller nothing is built: the next snapshot builds everything at once. `clock` returns seconds.
    """

    def __init__(self, cache: ClusterCache, clock: Callable[[], float] = time.perf_counter) -> None:
        self._cache = cache
        self._clock = clock
        self._building = asyncio.Lock()
        self._computed = 0  # nodes and slices since the start

    async def wait(self) -> None:
        """Wait until the next snapshot has to build only a few nodes. Call it before work that takes a snapshot.

        While changes come faster than their nodes are built, the wait ends after as many nodes as had to be built when
        it began. The snapshot then builds the rest at once.
        """
        backlog = self._cache.backlog
        if backlog <= _MAX_AT_ONCE:
            return
        enough = self._computed + backlog
        async with self._building:  # one caller builds, so that a time slice is all that other tasks wait for
            while self._cache.backlog > _MAX_AT_ONCE and self._computed < enough:
                until = self._clock() + _SLICE_SECONDS
                while self._cache.backlog > _MAX_AT_ONCE and self._clock() < until:
                    self._cache.rebuild(_NODES_AT_ONCE)
                    self._computed += _NODES_AT_ONCE
                await asyncio.sleep(0)


NOT_READY = "berth is not ready, "  # with the kinds that are missing: the error of a request


class WatchProgress:
    """A condition variable that every applied watch event notifies.

    A condition must be cheap and must not raise: `notify` checks it in place of the waiting task.
    """

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}

    def __len__(self) -> int:
        """How many tasks wait."""
        return len(self._waiting)

    def notify(self) -> None:
        """Wake the tasks whose condition holds: an event was applied."""
        for woken, condition in self._waiting.items():
            if not woken.done() and condition():
                woken.set_result(None)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds. It is checked after every event."""
        while not condition():
            woken = asyncio.get_running_loop().create_future()
            self._waiting[woken] = condition
            try:
                await woken  # the condition may not hold any more when this task runs
            finally:
                del self._waiting[woken]

    async def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """As `until`, but at most `seconds`. Returns whether the condition holds.

        The end of the wait proves no time of another clock than the loop's: uvloop's timers may be a millisecond early.
        """
        try:
            async with asyncio.timeout(seconds):
                await self.until(condition)
        except TimeoutError:
            return condition()
        return True


_SILENT_SECONDS = 180.0  # twice the time after which a reflector reopens a silent watch
_MAX_NAMED = 8  # nodes, and objects of each kind, that the warnings name


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
        self._expirer = HoldExpirer(cache, clock)
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
        self._supervisor.start("hold-expiry", self._expirer.run)
        self._supervisor.start("garbage-collection", partial(run_gc_policy, self._listed_and_built))

    @property
    def claims_version(self) -> str:
        """The resourceVersion that the watch of claims has reached, bookmarks included; '' during a list."""
        return self.reflectors["resourceclaims"].version

    def is_served(self, resource: str) -> bool:
        """Whether the API server serves an optional kind."""
        return self.reflectors[resource].served

    async def listed(self) -> None:
        """Wait until every kind is listed."""
        await self.progress.until(lambda: not self.not_ready)

    async def _listed_and_built(self) -> None:
        """Wait until every kind is listed, and build the first snapshot."""
        await self.listed()
        self._cache.snapshot()
        self._log.info("ready", nodes=len(self._cache.store.nodes), slices=len(self._cache.slices.published))

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
        found += [
            f"the NodeInfo of node {name} cannot be built: {why}" for name, why in islice(failed.items(), _MAX_NAMED)
        ]
        found += [f"and of {len(failed) - _MAX_NAMED} more nodes"] if len(failed) > _MAX_NAMED else []
        for kind, reflector in self.reflectors.items():
            unreadable = reflector.unreadable
            first = islice(unreadable.items(), _MAX_NAMED)
            found += [f"{kind} {key} cannot be read: {one.problem}" for key, one in first]
            found += [f"and {len(unreadable) - _MAX_NAMED} more {kind}"] if len(unreadable) > _MAX_NAMED else []
        return found


def _observed(kind: WatchedResource, after: Callable[[str], None]) -> WatchedResource:
    apply = kind.apply

    def and_after(key: str, obj: Json | None) -> None:
        apply(key, obj)
        after(kind.name)

    return replace(kind, apply=and_after)
