"""List and watch of one kind: pages, bookmarks, a fresh list after 410 with the deletions it implies, back-off."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import structlog

from extender.cluster.api_errors import ClusterError, Gone, NotFound, TooMany, Unavailable
from extender.cluster.backoff import Backoff, Delays
from extender.cluster.client import ApiClient, decode_json
from extender.cluster.pager import pages
from extender.model import WireError

Json = dict[str, Any]

_PAGE = 200  # objects per list request: larger ones leave their pieces all over the memory, 6 MiB of 140 with client-go's 500
_WATCH_SECONDS = (300, 600)  # the server ends a watch somewhere in between, client-go's range
_SHORT_SECONDS = 10.0  # a watch that ends sooner has failed
_SHOWN = 200  # characters of a problem that are kept


@dataclass(frozen=True, slots=True)
class WatchedResource:
    """What to reflect. `apply(key, object)` gets the raw object, or None for a deletion; it returns nothing."""

    name: str
    path: str
    apply: Callable[[str, Json | None], None]
    field_selector: str = ""
    optional: bool = False  # a server that does not know the kind has none of it
    listed: Callable[[str, Json | None], None] | None = None  # instead of `apply` for what a list shows
    older: tuple[str, ...] = ()  # paths of older versions of its API, tried in this order where `path` is not served

    @property
    def paths(self) -> tuple[str, ...]:
        """Where the kind may be served, the newest version first."""
        return (self.path, *self.older)


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a reflector waits. Bookmarks come about once a minute, but not on every watch: an API server sends none
    of a kind that has not changed since the list. So silence alone is no failure: the reflector opens the watch again,
    from the last version, and only a server that does not accept it has failed."""

    silence_seconds: float = 90.0  # until a watch that says nothing is opened again
    absent_seconds: float = 300.0  # how often to ask again for an API that was not served
    slice_seconds: float = 0.0002  # of applying objects, until other work gets a turn
    delays: Delays = Delays(first=0.5, most=30.0)  # noqa: RUF009 - it is frozen


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A version of an object that could not be applied, and why; the last version that could stays in force."""

    version: str
    problem: str


class Reflector:
    """Keeps one kind up to date. `listed` once the first list is complete; `version` is the last one seen. Where many objects
    come at once, other tasks have their turn in between."""

    def __init__(
        self,
        client: ApiClient,
        kind: WatchedResource,
        on_progress: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        timing: Timing = Timing(),
        page_size: int = _PAGE,
    ) -> None:
        self._page_size = page_size
        self._client = client
        self.kind = kind
        self._on_progress = on_progress
        self._clock = clock
        self._silence_seconds = timing.silence_seconds
        self._absent_seconds = timing.absent_seconds
        self._slice_seconds = timing.slice_seconds
        self._path = kind.path
        self._backoff = Backoff(timing.delays)
        self._worked_since = 0.0
        self._known: set[str] = set()
        self.unreadable: dict[str, Unreadable] = {}  # by key; no more than the server has objects
        self._log = structlog.get_logger("berth.watch").bind(kind=kind.name)
        self.version = ""
        self.listed = False
        self.failures = 0
        self.relists = 0
        self.problem = ""  # why the last list or watch ended, '' while all is well
        self._heard = clock()
        self._served = True

    async def run(self) -> None:
        """Until cancelled. Each run begins with a list: what made the last one fail may have hidden events."""
        self.version = ""
        while True:
            try:
                if not self.version:
                    await self._list()
                await self._watch()
            except Gone as error:
                self.version = ""
                await self._back_off(error)
            except NotFound as error:
                self.version = ""
                if self._try_older():
                    continue
                if self.kind.optional:
                    await self._wait_for_api()
                else:
                    await self._back_off(error)
            except ClusterError as error:
                await self._back_off(error)

    @property
    def silence(self) -> float:
        """Seconds since the server said anything: a list, that it accepted a watch, an event, a bookmark. 0 while it
        does not serve the kind."""
        return self._clock() - self._heard if self._served else 0.0

    def _try_older(self) -> bool:
        """Go on to the next older version of the API. False where all were tried: then the newest comes next."""
        position = self.kind.paths.index(self._path) + 1
        self._path = self.kind.paths[position % len(self.kind.paths)]
        return position < len(self.kind.paths)

    async def _wait_for_api(self) -> None:
        """A server that does not know the kind has none of it, until it is asked again."""
        self._known = {key for key in self._known if not self._apply(key, None, self.kind.apply)}
        self._served, self.listed, self.problem = False, True, ""
        self._on_progress()
        await asyncio.sleep(self._absent_seconds)

    async def _list(self) -> None:
        """Read all pages, apply them, and delete what is no longer there."""
        seen: set[str] = set()
        version = ""
        async for page in pages(self._client, self._path, self._page_size, self._params()):
            for item in page.get("items") or ():
                key = _key(item)
                seen.add(key)
                self._apply(key, item, self.kind.listed or self.kind.apply)
                await self._breathe()
            version = _text(page, "resourceVersion") or version
        self._known = seen | {key for key in self._known - seen if not self._apply(key, None, self.kind.apply)}
        self.version, self.listed, self._served = version, True, True
        self._well()
        self.relists += 1
        self._on_progress()

    async def _watch(self) -> None:
        seconds = str(random.randint(*_WATCH_SECONDS))  # noqa: S311 - spreads load, guards nothing
        params = self._params(
            watch="1", allowWatchBookmarks="true", resourceVersion=self.version, timeoutSeconds=seconds
        )
        began = time.monotonic()
        async with aclosing(self._client.lines(self._path, params, self._silence_seconds)) as lines:
            async for line in lines:
                self._heard = self._clock()
                if line:
                    self._event(await _decode(line))
                    self._well()
                    await self._breathe()
        lasted = time.monotonic() - began
        if lasted < min(_SHORT_SECONDS, self._silence_seconds):
            raise Unavailable(f"the watch ended after {lasted:.1f} s")

    def _well(self) -> None:
        self.failures, self.problem, self._heard = 0, "", self._clock()

    async def _breathe(self) -> None:
        if time.perf_counter() - self._worked_since > self._slice_seconds:
            await asyncio.sleep(0)
            self._worked_since = time.perf_counter()

    def _event(self, event: Json) -> None:
        kind, obj = event.get("type"), event["object"]
        if kind == "ERROR":
            message = str(obj.get("message", obj))
            if obj.get("code") == 410:  # noqa: PLR2004 - Gone
                raise Gone(message)
            self.version = ""  # as client-go: what the server could not send is in the next list
            raise ClusterError(message)
        if kind == "DELETED":
            if self._apply(_key(obj), None, self.kind.apply):
                self._known.discard(_key(obj))
        elif kind != "BOOKMARK":
            self._known.add(_key(obj))
            self._apply(_key(obj), obj, self.kind.apply)
        self.version = _text(obj, "resourceVersion") or self.version
        self._on_progress()

    def _apply(self, key: str, obj: Json | None, apply: Callable[[str, Json | None], None]) -> bool:
        """Whether it could be applied. Where not, the ones after it are applied nevertheless; a deletion that could not
        be applied comes again with the next list."""
        try:
            if obj is not None and not isinstance(obj, dict):
                raise WireError("", f"must be an object, is {type(obj).__name__}")
            apply(key, obj)
        except WireError as error:
            self._cannot_apply(key, obj, str(error), trace=False)
        except Exception as error:  # noqa: BLE001 - a bug that one object shows must not stop the others
            self._cannot_apply(key, obj, f"{type(error).__name__}: {error}", trace=True)
        else:
            self.unreadable.pop(key, None)
            return True
        return False

    def _cannot_apply(self, key: str, obj: Json | None, problem: str, *, trace: bool) -> None:
        """Remember it, and log it once for each version."""
        found = Unreadable(_text(obj, "resourceVersion") if obj is not None else "", " ".join(problem.split())[:_SHOWN])
        if self.unreadable.get(key) != found:
            self.unreadable[key] = found
            self._log.warning("unreadable object", key=key, problem=found.problem, exc_info=trace)

    async def _back_off(self, error: ClusterError) -> None:
        self.failures += 1
        self.problem = str(error).split(f"{self._path}: ", 1)[-1]  # the kind is said beside it; equal causes read alike
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
    """An event of a watch. Raises Unavailable where the line was cut."""
    try:
        event = await decode_json(line)
    except ValueError as error:
        raise Unavailable(f"the watch was cut within an event: {error}") from error
    if not isinstance(event, dict) or not isinstance(event.get("object"), dict):
        raise Unavailable(f"the watch sent no event: {line[:200].decode('utf-8', 'replace')}")
    return event


def _text(obj: object, field: str) -> str:
    """A field of the metadata; '' where it is absent or no text."""
    metadata = obj.get("metadata") if isinstance(obj, dict) else None
    value = metadata.get(field) if isinstance(metadata, dict) else None
    return value if isinstance(value, str) else ""


def _key(obj: object) -> str:
    """namespace/name, or the name; '' where the object has none."""
    namespace, name = _text(obj, "namespace"), _text(obj, "name")
    return f"{namespace}/{name}" if namespace else name
