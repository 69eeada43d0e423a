"""What keeps one cache up to date: a reflector for each of `watched_resources` (`Informers`, which say how they are).

Tasks beside them end holds (`expire_holds`), build changed nodes in time slices (`CacheRefresh`), and wait for events
(`WatchProgress`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import structlog

from extender.api.device_classes import decode_class
from extender.api.fields import Json, get, need
from extender.api.nodes import decode_node
from extender.api.object_meta import ObjectKey, decode_labels
from extender.api.pod_groups import GROUP_OBJECTS, GroupKey, GroupObject
from extender.api.pods import decode_pod
from extender.api.resource_claims import decode_claim
from extender.api.resource_slices import Slice, SliceDecoder, decode_taint_rule
from extender.cache import ClusterCache
from extender.cluster import ApiClient, Reflector, WatchedResource
from extender.runtime.gc_policy import run_gc_policy
from extender.runtime.supervisor import Supervisor, TimerWait

_CORE, _DRA = "/api/v1", "/apis/resource.k8s.io/v1"
_OLD_RULES = ("/apis/resource.k8s.io/v1beta2/devicetaintrules",)


def watched_resources(cache: ClusterCache, clock: Callable[[], float] = lambda: 0.0) -> list[WatchedResource]:
    """All kinds that must be listed before Berth is ready. `clock` returns seconds, for the age of agents' slices."""
    slices = SliceDecoder()

    def apply_slice(name: str, new: Slice | None) -> None:
        cache.apply_slice(name, new, clock())

    return [
        _watched("ResourceSlice", _DRA, _plain(apply_slice, slices.decode)),
        # v1 and on by default since Kubernetes 1.37, v1beta2 and off in 1.36. Without either there are no rules.
        _watched("DeviceTaintRule", _DRA, _plain(cache.apply_rule, decode_taint_rule), optional=True, older=_OLD_RULES),
        _watched("DeviceClass", _DRA, _plain(cache.apply_class, decode_class)),
        _watched("ResourceClaim", _DRA, _claims(cache, listed=False), listed=_claims(cache, listed=True)),
        _watched("Node", _CORE, _plain(cache.apply_node, decode_node)),
        _watched("Namespace", _CORE, _plain(cache.apply_namespace, decode_labels)),
        *(_group_objects(cache, one) for one in GROUP_OBJECTS),
        # Only unbound pods: a bound pod leaves this watch as a deletion, and its claims show the devices it uses.
        _watched("Pod", _CORE, _Pods(cache), field_selector="spec.nodeName="),
    ]


def _watched(kind: str, api: str, apply: Callable[[str, Json | None], None], **more: Any) -> WatchedResource:
    plural = kind.lower() + ("es" if kind.endswith("s") else "s")
    return WatchedResource(plural, f"{kind}List", f"{api}/{plural}", apply, **more)


def object_appliers(cache: ClusterCache, clock: Callable[[], float] = lambda: 0.0) -> dict[str, Callable[[Json], None]]:
    """By kind, what puts an object of a file into the cache. Raises WireError.

    Without the kinds of groups, two of which have one name: group_policy_of reads these.
    """
    groups = {one.resource for one in GROUP_OBJECTS}
    kinds = (kind for kind in watched_resources(cache, clock) if kind.name not in groups)
    return {kind.list_kind.removesuffix("List"): partial(_apply_object, kind) for kind in kinds}


def _apply_object(kind: WatchedResource, obj: Json) -> None:
    metadata = get(obj, "metadata", dict, "", {})
    name, namespace = need(metadata, "name", ".metadata"), metadata.get("namespace")
    kind.apply(f"{namespace}/{name}" if namespace else name, obj)


def _plain(put: Callable[..., None], decode: Callable[[Json], object]) -> Callable[[str, Json | None], None]:
    return lambda key, obj: put(key, None if obj is None else decode(obj))


def _claims(cache: ClusterCache, *, listed: bool) -> Callable[[str, Json | None], None]:
    def apply(key: str, obj: Json | None) -> None:
        namespace, _, name = key.rpartition("/")
        claim = decode_claim(obj) if obj is not None else None
        cache.apply_claim(claim.key if claim is not None else ObjectKey(namespace, name), claim, listed=listed)

    return apply


def _group_objects(cache: ClusterCache, of: GroupObject) -> WatchedResource:
    newest, *older = (f"/apis/{of.api}/{version}/{of.plural}" for version in of.versions)

    def apply(key: str, obj: Json | None) -> None:
        namespace, _, name = key.partition("/")
        cache.apply_group_policy(GroupKey(namespace, of.source, name), None if obj is None else of.decode(obj))

    return WatchedResource(of.resource, f"{of.kind}List", newest, apply, optional=True, older=tuple(older))


class _Pods:
    """Applies events of pods. The cache keys pods by UID, but events name them: a recreated pod is another pod."""

    def __init__(self, cache: ClusterCache) -> None:
        self._cache = cache
        self._uids: dict[str, str] = {}

    def __call__(self, key: str, obj: Json | None) -> None:
        known = self._uids.get(key)
        pod = decode_pod(obj) if obj is not None else None
        if known is not None and (pod is None or pod.uid != known):
            self._cache.apply_pod(known, None)
            del self._uids[key]
        if pod is not None:
            self._uids[key] = pod.uid
            self._cache.apply_pod(pod.uid, pod)


async def expire_holds(cache: ClusterCache, clock: Callable[[], float]) -> None:
    """A background task that does what is due in the cache, until cancelled. `clock` returns seconds."""
    wait = TimerWait(cache.timers, clock)
    while True:
        cache.expire(clock())
        await wait.until_due()


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
        self._clock = clock
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
        self._supervisor.start("hold-expiry", partial(expire_holds, self._cache, self._clock))
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
