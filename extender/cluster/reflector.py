"""List and watch of one kind: pages, bookmarks, a fresh list after 410 with the deletions it implies, back-off."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson
import structlog

from extender.cluster.client import ApiClient
from extender.cluster.errors import ClusterError, Gone, NotFound, TooMany
from extender.model.errors import WireError

Json = dict[str, Any]

_PAGE = 200  # objects per list request: larger ones leave their pieces all over the memory, 6 MiB of 140 with client-go's 500
_WATCH_SECONDS = (300, 600)  # the server ends a watch somewhere in between, client-go's range
_SILENCE_SECONDS = 90.0  # bookmarks come about once a minute; longer silence means a dead connection
_BACKOFF_SECONDS = (0.25, 30.0)
_ABSENT_SECONDS = 300.0  # how often to ask again for an API that was not served
_SLICE_SECONDS = 0.0002  # of applying objects, until other work gets a turn


@dataclass(frozen=True, slots=True)
class Kind:
    """What to reflect. `apply(key, object)` gets the raw object, or None for a deletion; it returns nothing."""

    name: str
    path: str
    apply: Callable[[str, Json | None], None]
    field_selector: str = ""
    optional: bool = False  # a server that does not know the kind has none of it
    listed: Callable[[str, Json | None], None] | None = None  # instead of `apply` for what a list shows


class Reflector:
    """Keeps one kind up to date. `listed` once the first list is complete; `version` is the last one seen. Where many objects
    come at once, `give_way` is awaited between them."""

    def __init__(
        self, client: ApiClient, kind: Kind, on_progress: Callable[[], None], give_way: Callable[[], Awaitable[None]]
    ) -> None:
        self._client = client
        self.kind = kind
        self._on_progress = on_progress
        self._give_way = give_way
        self._worked_since = 0.0
        self._known: set[str] = set()
        self._log = structlog.get_logger("berth.watch").bind(kind=kind.name)
        self.version = ""
        self.listed = False
        self.failures = 0
        self.relists = 0
        self.problem = ""  # why the last list or watch ended, '' while all is well
        self._heard = time.monotonic()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                if not self.version:
                    await self._list()
                await self._watch()
            except Gone:
                self.version = ""
            except NotFound as error:
                if not self.kind.optional:
                    await self._back_off(error)
                    continue
                self.listed = True
                self._on_progress()
                await asyncio.sleep(_ABSENT_SECONDS)
            except ClusterError as error:
                await self._back_off(error)

    @property
    def silence(self) -> float:
        """Seconds since the server said anything; bookmarks come about once a minute."""
        return time.monotonic() - self._heard

    async def _list(self) -> None:
        """Read all pages, apply them, and delete what is no longer there."""
        seen: set[str] = set()
        token, version = "", ""
        while True:
            page = await self._client.get(self.kind.path, self._params(limit=str(_PAGE), **({"continue": token} if token else {})))
            metadata = page.get("metadata") or {}
            for item in page.get("items") or ():
                seen.add(self._apply(item, self.kind.listed or self.kind.apply))
                await self._breathe()
            version = str(metadata.get("resourceVersion") or version)
            token = metadata.get("continue") or ""
            if not token:
                break
        for key in self._known - seen:
            self.kind.apply(key, None)
        self._known = seen
        self.version, self.listed, self.failures, self.problem = version, True, 0, ""
        self._heard = time.monotonic()
        self.relists += 1
        self._on_progress()

    async def _watch(self) -> None:
        seconds = str(random.randint(*_WATCH_SECONDS))  # noqa: S311 - spreads load, guards nothing
        params = self._params(
            watch="1", allowWatchBookmarks="true", resourceVersion=self.version, timeoutSeconds=seconds
        )
        async for line in self._client.lines(self.kind.path, params, _SILENCE_SECONDS):
            self._event(orjson.loads(line))
            self.failures, self.problem, self._heard = 0, "", time.monotonic()
            await self._breathe()

    async def _breathe(self) -> None:
        if time.perf_counter() - self._worked_since > _SLICE_SECONDS:
            await self._give_way()
            self._worked_since = time.perf_counter()

    def _event(self, event: Json) -> None:
        kind, obj = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            message = str(obj.get("message", obj))
            if obj.get("code") == 410:  # noqa: PLR2004 - Gone
                raise Gone(message)
            raise ClusterError(message)
        if kind == "DELETED":
            key = _key(obj)
            self._known.discard(key)
            self.kind.apply(key, None)
        elif kind != "BOOKMARK":
            self._known.add(self._apply(obj, self.kind.apply))
        self.version = str((obj.get("metadata") or {}).get("resourceVersion") or self.version)
        self._on_progress()

    def _apply(self, obj: Json, apply: Callable[[str, Json | None], None]) -> str:
        key = _key(obj)
        try:
            apply(key, obj)
        except WireError as error:
            # An object that cannot even be named must not stop the ones after it.
            self._log.warning("unreadable object", key=key, problem=str(error))
        return key

    async def _back_off(self, error: ClusterError) -> None:
        self.failures += 1
        self.problem = str(error).split(f"{self.kind.path}: ", 1)[-1]  # the kind is said beside it; equal causes read alike
        low, high = _BACKOFF_SECONDS
        delay = min(high, low * 2 ** min(self.failures, 10))
        if isinstance(error, TooMany):
            delay = max(delay, error.retry_after)
        self._log.warning("watch failed", error=str(error), failures=self.failures)
        await asyncio.sleep(delay * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load, guards nothing

    def _params(self, **extra: str) -> dict[str, str]:
        if self.kind.field_selector:
            extra["fieldSelector"] = self.kind.field_selector
        return extra


def _key(obj: Json) -> str:
    metadata = obj.get("metadata") or {}
    namespace, name = metadata.get("namespace") or "", metadata.get("name") or ""
    return f"{namespace}/{name}" if namespace else str(name)
