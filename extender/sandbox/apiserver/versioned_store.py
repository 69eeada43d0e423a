"""Objects with versions, and the history for watches. A write replaces a stored object and never changes it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
Key = tuple[str, str]  # namespace, name

_MAX_EVENTS = 20_000  # events; a watch from an older version gets 410


@dataclass(frozen=True, slots=True)
class Change:
    """One event. A watch with a field selector needs `old` to see that an object leaves its selection."""

    version: int
    resource: str
    kind: str  # ADDED, MODIFIED, DELETED
    obj: Json
    old: Json | None


@dataclass(slots=True, eq=False)
class Watcher:
    """A queue of the changes of one resource after version `since`; None ends the watch."""

    resource: str
    since: int
    queue: asyncio.Queue[Change | None] = field(default_factory=asyncio.Queue)


class ObjectStore:
    """All objects of the cluster. Every write increments `version`."""

    def __init__(self, history: int = _MAX_EVENTS) -> None:
        self._objects: dict[str, dict[Key, Json]] = {}
        self._history: deque[Change] = deque(maxlen=history)
        self._forgotten = 0  # the newest version that is no longer in the history
        self._watchers: dict[Watcher, None] = {}  # in order, so that a test repeats
        self._listeners: list[Callable[[Change], None]] = []
        self.version = 1

    def get(self, resource: str, key: Key) -> Json | None:
        return self._objects.get(resource, {}).get(key)

    def __getitem__(self, at: tuple[str, Key]) -> Json:
        """An object that is there, by (resource, key). Raises KeyError."""
        resource, key = at
        return self._objects[resource][key]

    def all(self, resource: str, namespace: str = "") -> list[Json]:
        """Return the objects in key order; those of one namespace if it is given."""
        table = self._objects.get(resource, {})
        return [table[key] for key in sorted(table) if not namespace or key[0] == namespace]

    def put(self, resource: str, key: Key, obj: Json) -> Json:
        """Store an object under the next version."""
        self.version += 1
        stored = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        table = self._objects.setdefault(resource, {})
        old = table.get(key)
        table[key] = stored
        self._publish(Change(self.version, resource, "ADDED" if old is None else "MODIFIED", stored, old))
        return stored

    def remove(self, resource: str, key: Key) -> Json:
        """Delete an object. Raises KeyError if it does not exist."""
        self.version += 1
        old = self._objects[resource].pop(key)
        last = {**old, "metadata": {**old["metadata"], "resourceVersion": str(self.version)}}
        self._publish(Change(self.version, resource, "DELETED", last, old))
        return last

    def copy(self) -> ObjectStore:
        """Return a store with the same objects, without history, watches and listeners: for a dry run."""
        found = ObjectStore(0)
        found._objects = {resource: dict(table) for resource, table in self._objects.items()}
        found.version = self.version
        return found

    def listen(self, listener: Callable[[Change], None]) -> None:
        """Call `listener` with every change, in order."""
        self._listeners.append(listener)

    def watch(self, resource: str, since: int) -> tuple[Watcher, list[Change]] | None:
        """Return a watcher and the changes after version `since`; None if the history does not reach back to it."""
        if since < self._forgotten:
            return None
        missed = [change for change in self.changes(since) if change.resource == resource]
        watcher = Watcher(resource, since)
        self._watchers[watcher] = None
        return watcher, missed

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)

    def cut_watches(self) -> None:
        """End every watch, as a restarting server does."""
        for watcher in self._watchers:
            watcher.queue.put_nowait(None)

    def restore(self, backup: ObjectStore) -> None:
        """Go back to a copy, as etcd does: a watch from a later version shows nothing until that version is over."""
        self.cut_watches()
        self._objects = backup.copy()._objects  # noqa: SLF001 - of its own class
        self.version = backup.version
        self.forget_history()

    def forget_history(self) -> None:
        """Drop the history, as compaction does: a watch from an older version gets 410."""
        self._history.clear()
        self._forgotten = self.version

    def changes(self, since: int = 0) -> Iterator[Change]:
        """The remembered changes after a version, oldest first."""
        return (change for change in self._history if change.version > since)

    def _publish(self, change: Change) -> None:
        if self._history and len(self._history) == self._history.maxlen:
            self._forgotten = self._history[0].version
        self._history.append(change)
        for watcher in self._watchers:
            if watcher.resource == change.resource and watcher.since < change.version:
                watcher.queue.put_nowait(change)
        for listener in self._listeners:
            listener(change)
