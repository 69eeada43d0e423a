"""Informers: one reflector per kind, all into one mirror; and how far they are, in sentences."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from itertools import islice

import structlog

from extender.cache import ClusterCache
from extender.cluster import ApiClient, Json, Reflector, WatchedResource
from extender.runtime.gc_policy import run_gc_policy
from extender.runtime.heartbeat import Heartbeat
from extender.runtime.supervisor import Supervisor
from extender.runtime.watch_progress import WatchProgress
from extender.runtime.watched_resources import watched_resources

_SILENT_SECONDS = 180.0  # a reflector opens a silent watch again every 90 s, which a healthy API server accepts at once
_NAMED = 8  # nodes named in a warning


class Informers:
    """Keeps a cache up to date with the cluster. `after` is called after each event of the kinds that it names."""

    def __init__(
        self,
        client: ApiClient,
        cache: ClusterCache,
        clock: Callable[[], float],
        supervisor: Supervisor,
        after: Callable[[str], None] = lambda _: None,
        observed: Collection[str] = (),
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
        """Start the tasks."""
        for name, reflector in self.reflectors.items():
            self._supervisor.start(f"watch-{name}", reflector.run)
        self._supervisor.start("heartbeat", self.heartbeat.run)
        self._supervisor.start("garbage-collection", partial(run_gc_policy, self._settle))

    async def listed(self) -> None:
        """Return once every kind has been listed."""
        await self.progress.wait_for(lambda: not self.not_ready, float("inf"))

    async def _settle(self) -> None:
        await self.listed()
        self._cache.snapshot()
        self._log.info("ready", nodes=len(self._cache.store.nodes), slices=len(self._cache.store.slices))

    @property
    def not_ready(self) -> str:
        """'' when every kind has been listed, else what is missing and why."""
        missing: dict[str, list[str]] = {}  # by what stands in the way, as one cause often does for all
        for name, reflector in self.reflectors.items():
            if not reflector.listed:
                missing.setdefault(reflector.problem, []).append(name)
        if not missing:
            return ""
        told = [", ".join(names) + (f" ({problem})" if problem else "") for problem, names in missing.items()]
        hint = "; berth doctor names what mends it" if any(missing) else ""
        return f"not listed yet: {', '.join(told)}{hint}"

    @property
    def refusal(self) -> str:
        """'' when every kind has been listed, else the sentence that answers a request."""
        missing = self.not_ready
        return f"berth is not ready, {missing}" if missing else ""

    @property
    def degraded(self) -> str:
        """'' while every watch is heard of, else the silent ones. Requests are answered nevertheless: a bind ends only
        once the watch has shown what it wrote."""
        silent = [
            f"the watch of {name} has been silent for {reflector.silence:.0f} s"
            + (f" ({reflector.problem})" if reflector.problem else "")
            for name, reflector in self.reflectors.items()
            if reflector.listed and reflector.silence > _SILENT_SECONDS
        ]
        return "; ".join(silent)

    @property
    def warnings(self) -> list[str]:
        """What is wrong although Berth is ready, a sentence each; nodes and objects of a kind are named, at most _NAMED
        of each."""
        unbuilt = self._cache.failed_nodes
        told = [f"task {name} keeps failing: {problem}" for name, problem in self._supervisor.failing.items()]
        told += [f"the view of node {name} cannot be built: {why}" for name, why in islice(unbuilt.items(), _NAMED)]
        told += [f"and of {len(unbuilt) - _NAMED} more nodes"] if len(unbuilt) > _NAMED else []
        for kind, reflector in self.reflectors.items():
            found = reflector.unreadable
            told += [f"{kind} {key} cannot be read: {one.problem}" for key, one in islice(found.items(), _NAMED)]
            told += [f"and {len(found) - _NAMED} more {kind}"] if len(found) > _NAMED else []
        return told


def _observed(kind: WatchedResource, after: Callable[[str], None]) -> WatchedResource:
    apply = kind.apply

    def and_after(key: str, obj: Json | None) -> None:
        apply(key, obj)
        after(kind.name)

    return replace(kind, apply=and_after)
