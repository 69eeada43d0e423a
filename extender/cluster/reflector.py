"""List and watch of one kind: lists in pages, bookmarks, back-off, and after 410 a new list with implied deletions.

The back-off is that of client-go: the delay doubles per failure, has jitter, and resets after a quiet time. After a 404
discovery says whether the API server does not serve the kind.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from sys import intern

import structlog

from extender.api.fields import Json
from extender.base.berth_errors import WireError
from extender.base.text_limits import one_line
from extender.cluster.api_errors import (
    ClusterError,
    Forbidden,
    Gone,
    NotFound,
    NotServed,
    TooLong,
    TooMany,
    Unavailable,
)
from extender.cluster.client import ApiClient, decode_json

_MAX_EXPONENT = 30  # avoids a float overflow


@dataclass(frozen=True, slots=True)
class Delays:
    """In seconds: the delay after the first failure, the longest delay, and the time without failures that resets."""

    first: float
    most: float
    reset: float = 120.0


class Backoff:
    """The back-off of one repeated operation."""

    def __init__(self, delays: Delays, clock: Callable[[], float] = time.monotonic) -> None:
        self._delays = delays
        self._clock = clock
        self._failures = 0
        self._last = float("-inf")

    @property
    def failures(self) -> int:
        """Consecutive failures; 0 if the last one is more than `reset` seconds ago."""
        return self._failures if self._clock() - self._last <= self._delays.reset else 0

    def reset(self) -> None:
        """The operation made progress: the next failure counts as the first one."""
        self._failures = 0

    def next(self) -> float:
        """Count a failure. Returns the seconds to wait: random, between half of the delay and the full delay."""
        self._failures = self.failures + 1
        self._last = self._clock()
        delay = min(self._delays.most, self._delays.first * 2.0 ** min(self._failures - 1, _MAX_EXPONENT))
        return delay * random.uniform(0.5, 1.0)  # noqa: S311 - jitter needs no secure randomness


_PAGE_OBJECTS = 200  # objects per list request; client-go's 500 fragments the memory (6 MiB of 140 MiB)
_WATCH_SECONDS = (300, 600)  # range of the random watch timeout, as in client-go
_SHORT_SECONDS = 10.0  # a watch that ends sooner counts as failed
_MAX_SHOWN = 200  # characters of a problem text


@dataclass(frozen=True, slots=True)
class WatchedResource:
    """A kind to list and watch. `apply(key, object)` receives the raw object, or None for a deletion.

    `list_kind` is the kind of its lists, such as PodList.
    """

    name: str
    list_kind: str
    path: str
    apply: Callable[[str, Json | None], None]
    field_selector: str = ""
    optional: bool = False  # a server without this API counts as one without objects
    listed: Callable[[str, Json | None], None] | None = None  # replaces `apply` for objects of a list
    older: tuple[str, ...] = ()  # paths of older API versions, tried in this order if the server does not serve `path`

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths of the kind, the newest API version first."""
        return (self.path, *self.older)


@dataclass(frozen=True, slots=True)
class Timing:
    """Time-outs and delays of a reflector.

    Silence is not a failure: an API server sends about one bookmark per minute, but none for a kind without changes
    since the list. So the reflector opens a silent watch again from the last version. If the server does not accept
    that watch, it counts as failed. Watches without events and bookmarks may also come from a proxy that holds them
    back, so after `blind_seconds` of them the reflector lists the kind.

    A kind that was served counts as absent after `absent_checks` rounds of requests in a row found it neither at its
    paths nor in discovery. With the delays below these rounds take 30 to 60 s, and up to 4 minutes right after other
    failures, because these have made the delay longer.
    """

    silence_seconds: float = 90.0  # silence after which a watch is opened again
    blind_seconds: float = 300.0  # a kind without changes costs the API server one list in this time
    absent_checks: int = 8
    absent_seconds: float = 300.0  # delay before the next check for an API that the server does not serve
    time_slice_seconds: float = 0.0002  # time for applying objects before other tasks may run
    delays: Delays = Delays(first=0.5, most=30.0)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A version of an object that `apply` rejected. The cache keeps the last accepted version."""

    version: str
    problem: str


class Reflector:
    """Keeps one kind up to date by list and watch.

    `listed` is true after the first complete list; `version` is the last resourceVersion. The reflector lets other
    tasks run between objects. `on_progress` is called after each event and list. `clock` returns seconds.
    """

    def __init__(
        self,
        client: ApiClient,
        kind: WatchedResource,
        on_progress: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        timing: Timing = Timing(),
    ) -> None:
        self._client = client
        self.kind = kind
        self._on_progress = on_progress
        self._clock = clock
        self._timing = timing
        self._short_seconds = min(_SHORT_SECONDS, timing.silence_seconds / 2)
        self._path = kind.path
        self._backoff = Backoff(timing.delays, clock)
        self._worked_since = 0.0
        self._known: dict[str, str] = {}  # key to the resourceVersion that was applied; '' if that failed
        self.unreadable: dict[str, Unreadable] = {}  # by key; at most one per object of the server
        self._log = structlog.get_logger("berth.watch").bind(kind=kind.name)
        self.version = ""
        self.listed = False
        self.failures = 0
        self.lists = 0  # complete ones, the first included
        self.problem = ""  # the last failure; '' after a success
        self._heard = clock()
        self._shown = clock()  # when a list, an event or a bookmark last showed the state of the kind
        self._accepted = math.inf  # when the server accepted the watch that is open
        self.served = True  # whether the server serves the kind, as far as known
        self._not_found = 0  # API versions in a row that the server does not have
        self._absences = 0  # rounds in a row that found the kind absent

    async def run(self) -> None:
        """List and watch until cancelled. Each run starts with a list, because the last run may have missed events."""
        self.version = ""
        while True:
            try:
                if not self.version:
                    await self._list()
                elif self._clock() - self._shown > self._timing.blind_seconds:
                    await self._list_again()
                await self._watch()
            except Gone as error:
                self.version = ""
                await self._back_off(error)
            except (NotFound, NotServed) as error:
                self.version = ""
                if not self._try_next_version():
                    await self._not_served(error)
            except ClusterError as error:
                await self._back_off(error)

    @property
    def silence(self) -> float:
        """Seconds since the last event or bookmark, or since the start of a watch that lasts.

        A list counts only if it is the first: after it, lists without watches are a fault. 0 if the server does not
        serve the kind.
        """
        return self._clock() - self._last_heard() if self.served else 0.0

    def _try_next_version(self) -> bool:
        """Select the next older API version, after the oldest the newest. False if the server has none of them."""
        paths = self.kind.paths
        self._path = paths[(paths.index(self._path) + 1) % len(paths)]
        self._not_found += 1
        return self._not_found % len(paths) != 0

    async def _not_served(self, error: ClusterError) -> None:
        """Wait before the next attempt. The objects stay while the absence of the kind is not certain."""
        absent = False
        if self.kind.optional:
            try:
                absent = await is_absent(self._client, self.kind.paths)
            except ClusterError as unclear:
                error = unclear
        self._absences = self._absences + 1 if absent else 0
        was_served = self.served and self.lists > 0
        if self._absences >= (self._timing.absent_checks if was_served else 1):
            await self._wait_for_api()
        else:
            await self._back_off(error)

    async def _wait_for_api(self) -> None:
        """Delete all objects of a kind that the server does not serve, and wait before the next check."""
        if self._known:
            self._log.warning("the API server no longer serves the kind", deleted=len(self._known))
        await self._delete_all(self._known)
        self.served, self.listed, self.failures, self.problem = False, True, 0, ""
        self._on_progress()
        await asyncio.sleep(self._timing.absent_seconds)

    async def _list(self) -> None:
        """List all pages, apply their objects, and delete objects that the list does not have."""
        seen: set[str] = set()
        version = ""
        async for page in pages(self._client, self._path, self.kind.list_kind, _PAGE_OBJECTS, self._params()):
            for item in page.get("items") or ():
                key = _key(item)
                seen.add(key)
                if not self._is_known(key, item):
                    self._put(key, item, self.kind.listed or self.kind.apply)
                await self._let_others_run()
            version = version or _text(page, "resourceVersion")  # as in client-go, if pages show different versions
        await self._delete_all(self._known.keys() - seen)
        self._shown = self._clock()
        if not (self.listed and self.served):
            self._heard = self._shown
        self.version, self.listed, self.served = version, True, True
        self._succeeded()
        self.lists += 1
        self._on_progress()

    async def _list_again(self) -> None:
        """List a kind of which nothing was heard for long. If the list fails, the watch goes on without it."""
        try:
            await self._list()
        except (Gone, NotFound, NotServed):
            raise
        except ClusterError as error:
            self._log.warning("list failed", error=str(error))

    async def _watch(self) -> None:
        # No event can end the entry of an object without a name.
        self.unreadable = {key: one for key, one in self.unreadable.items() if key.rpartition("/")[2]}
        seconds = str(random.randint(*_WATCH_SECONDS))  # noqa: S311 - jitter needs no secure randomness
        params = self._params(
            watch="1", allowWatchBookmarks="true", resourceVersion=self.version, timeoutSeconds=seconds
        )
        before = self.version
        try:
            async with aclosing(self._client.lines(self._path, params, self._timing.silence_seconds)) as lines:
                async for line in lines:
                    if not line:
                        self._accepted, self._not_found = self._clock(), 0
                        continue
                    self._event(await _decode(line))
                    self._succeeded()
                    self._heard = self._shown = self._clock()
                    await self._let_others_run()
            lasted = self._clock() - self._accepted
            if lasted < self._short_seconds:
                raise Unavailable(f"the watch ended after {lasted:.1f} s")
            self._succeeded()
        except Unavailable:
            if self.version != before:  # a proxy that cuts every watch after some events must not delay the next ones
                self._backoff.reset()
            raise
        finally:
            self._heard, self._accepted = self._last_heard(), math.inf

    def _last_heard(self) -> float:
        """The time of the last event, or of the start of the watch once it has lasted for some seconds."""
        lasts = self._clock() - self._accepted >= self._short_seconds
        return max(self._heard, self._accepted) if lasts else self._heard

    def _succeeded(self) -> None:
        self.failures, self.problem, self._absences = 0, "", 0

    async def _let_others_run(self) -> None:
        if time.perf_counter() - self._worked_since > self._timing.time_slice_seconds:
            await asyncio.sleep(0)
            self._worked_since = time.perf_counter()

    def _event(self, event: Json) -> None:
        kind, obj = event.get("type"), event["object"]
        if kind == "ERROR":
            message = one_line(str(obj.get("message", obj)), _MAX_SHOWN)
            if obj.get("code") == 410:  # noqa: PLR2004 - Gone
                raise Gone(message)
            self.version = ""  # as in client-go: the next list has the missing objects
            raise ClusterError(message)
        key = _key(obj)
        if kind == "DELETED":
            self._delete(key)
        elif kind in ("ADDED", "MODIFIED"):
            self._put(key, obj, self.kind.apply)
        elif kind != "BOOKMARK":
            self.version = ""  # as in client-go: the next list has the objects that such an event may be about
            raise ClusterError(f"the watch sent an event of an unknown type: {str(kind)[:_MAX_SHOWN]}")
        self.version = _text(obj, "resourceVersion") or self.version
        self._on_progress()

    def _is_known(self, key: str, obj: object) -> bool:
        """Whether this version was applied before. If a list applied it again, it would look like news of an agent."""
        version = _text(obj, "resourceVersion")
        return bool(version) and self._known.get(key) == version

    def _put(self, key: str, obj: Json, apply: Callable[[str, Json | None], None]) -> None:
        self._known[key] = _text(obj, "resourceVersion") if self._apply(key, obj, apply) else ""

    def _delete(self, key: str) -> None:
        if self._apply(key, None, self.kind.apply):
            self._known.pop(key, None)

    async def _delete_all(self, keys: Iterable[str]) -> None:
        for key in list(keys):
            self._delete(key)
            await self._let_others_run()

    def _apply(self, key: str, obj: Json | None, apply: Callable[[str, Json | None], None]) -> bool:
        """Apply one object; returns False if that failed. A failed deletion is repeated after the next list."""
        try:
            if obj is not None and not isinstance(obj, dict):
                raise WireError("", f"must be an object, is {type(obj).__name__}")
            apply(key, obj)
        except WireError as error:
            self._record_unreadable(key, obj, str(error), trace=False)
        except Exception as error:  # noqa: BLE001 - a bug with one object must not stop the others
            self._record_unreadable(key, obj, f"{type(error).__name__}: {error}", trace=True)
        else:
            self.unreadable.pop(key, None)
            return True
        return False

    def _record_unreadable(self, key: str, obj: Json | None, problem: str, *, trace: bool) -> None:
        """Record the failure, and log it once per version and problem."""
        found = Unreadable(
            _text(obj, "resourceVersion") if obj is not None else "", " ".join(problem.split())[:_MAX_SHOWN]
        )
        if self.unreadable.get(key) != found:
            self.unreadable[key] = found
            self._log.warning("unreadable object", key=key, problem=found.problem, exc_info=trace)

    async def _back_off(self, error: ClusterError) -> None:
        self.failures += 1
        self.problem = str(error).split(f"{self._path}: ", 1)[-1]  # readers show the kind beside it
        delay = self._backoff.next()
        if isinstance(error, TooMany):
            delay = max(delay, error.retry_after)
        self._log.warning("watch failed", error=str(error), failures=self.failures)
        await asyncio.sleep(delay)

    def _params(self, **extra: str) -> dict[str, str]:
        if self.kind.field_selector:
            extra["fieldSelector"] = self.kind.field_selector
        return extra


async def _decode(line: bytes) -> Json:
    """An event of a watch. Raises Unavailable for a line that is cut, and Gone for a complete line that is no event:
    only a list can show what it was about."""
    try:
        event = await decode_json(line)
    except ValueError as error:
        problem = str(error)
    else:
        if isinstance(event, dict) and isinstance(event.get("object"), dict):
            return event
        problem = one_line(line[:_MAX_SHOWN].decode("utf-8", "replace"))
    if not line.endswith(b"\n"):
        raise Unavailable(f"the watch was cut within an event: {problem}")
    raise Gone(f"the watch sent no event: {problem}")


def _text(obj: object, field: str) -> str:
    """A string field of the metadata; '' if it is absent or not a string."""
    metadata = obj.get("metadata") if isinstance(obj, dict) else None
    value = metadata.get(field) if isinstance(metadata, dict) else None
    return value if isinstance(value, str) else ""


def _key(obj: object) -> str:
    """namespace/name, or the name of a cluster-scoped object; '' without a name."""
    namespace, name = _text(obj, "namespace"), _text(obj, "name")
    return f"{namespace}/{name}" if namespace else intern(name)  # slices and claims name nodes


async def is_absent(client: ApiClient, paths: Iterable[str]) -> bool:
    """Whether the discovery documents have none of these paths, each /apis/GROUP/VERSION/RESOURCE.

    A 404 alone is no proof: a load balancer may have sent it. A client without the right to read discovery has no
    other proof, so for it all paths are absent. Raises ClusterError.
    """
    try:
        groups = await _entries(client, "/apis", "APIGroupList", "groups")
        served = {str(version.get("groupVersion")) for group in groups for version in _objects(group.get("versions"))}
        for path in paths:
            version, _, resource = path.removeprefix("/apis/").rpartition("/")
            if version in served:
                entries = await _entries(client, f"/apis/{version}", "APIResourceList", "resources")
                if resource in {str(entry.get("name")) for entry in entries}:
                    return False
    except Forbidden:
        pass
    return True


async def _entries(client: ApiClient, path: str, kind: str, field: str) -> list[Json]:
    document = await client.get(path)
    if document.get("kind") != kind or not isinstance(document.get(field), list):
        raise Unavailable(f"{path}: the response is no {kind}")
    return _objects(document[field])


def _objects(values: object) -> list[Json]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


# -- lists in pages ------------------------------------------------------------------------------------------


# Bytes of a page, unless a single object is larger. Decoded, small texts and empty objects take 20 times as much,
# and to decode 2 MiB of them blocks the event loop for 40 ms.
_PAGE_BYTES = 2 << 20
_SLICES = "ResourceSliceList"  # no tenant writes these, and one has up to 100 KiB
_SLICES_BYTES = 8 << 20
_MAX_KIND_SHOWN = 100  # characters of a wrong kind
_MAX_PAGES = 10_000  # two million objects of a kind; Kubernetes supports 150,000 pods in a cluster


async def pages(
    client: ApiClient, path: str, kind: str, page_size: int, params: Mapping[str, str] | None = None
) -> AsyncGenerator[Json, None]:
    """The pages of a list, with at most `page_size` objects each. Raises ClusterError, also for an invalid response.

    A page is emptied when the caller asks for the next one, so that two are never kept. A page that is too long is
    asked for again with half of the objects, and the next page may have twice as many: a tenant may create hundreds of
    claims of a megabyte. `kind` is that of the list, such as PodList. A list with more than 10,000 pages counts as one
    that does not end.
    """
    size, token, seen = page_size, "", set[str]()
    most_bytes = _SLICES_BYTES if kind == _SLICES else _PAGE_BYTES
    for _ in range(_MAX_PAGES):
        more = {"continue": token} if token else {}
        try:
            wanted = {**(params or {}), "limit": str(size), **more}
            page = await (client.get(path, wanted, most_bytes) if size > 1 else client.get(path, wanted))
        except TooLong:
            if size == 1:
                raise
            size = size // 2
            continue
        problem = _problem(page, kind)
        if problem:
            raise Unavailable(f"list {path}: {problem}")
        size = min(2 * size, page_size)
        token = str(page["metadata"].get("continue") or "")
        yield page
        page.clear()
        if not token:
            return
        if token in seen:
            raise Unavailable(f"list {path}: the list does not end; two pages have the same continue token")
        seen.add(token)
    raise Unavailable(f"list {path}: the list does not end; it has more than {_MAX_PAGES} pages")


def _problem(page: Json, kind: str) -> str:
    """Why a response is no page of such a list; '' if it is one. The API server sends no items as null or []."""
    found, items, metadata = page.get("kind"), page.get("items"), page.get("metadata")
    if found != kind:
        return f"the response is no {kind}; its kind is {str(found)[:_MAX_KIND_SHOWN]}"
    if items is not None and not isinstance(items, list):
        return f"items are of type {type(items).__name__}"
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    return "" if version and isinstance(version, str) else "the response has no resourceVersion"
