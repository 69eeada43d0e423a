"""Reads the bound members of gangs whose claims do not tell which of them run.

The watch shows no bound pods. A bound member without devices has no claim, so its gang may seem incomplete. A
terminating member keeps its claims, so a gang that was created again may seem to run. Berth knows the members that it
has just bound itself; for the others it lists the pods of the namespace.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from math import inf

import structlog

from extender.api.pod_groups import GroupKey
from extender.cache import ClusterCache
from extender.cluster import ClusterError
from extender.serve.gangs.gang_state import GangTimer, GangTimers

MAX_GROUPS = 1024  # of a namespace whose bound members are read together; the others wait for the next read
MAX_READS = 2  # namespaces that are read at a time
REMEMBERED_SECONDS = 30.0  # until the bound members of a namespace are forgotten
# Seconds between two reads of a namespace, for any tenant can cause reads all the time. Each read doubles the pause for
# its groups until their pods change, or until the result is forgotten.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 16.0
PAUSE_FACTOR = 20  # least pause as a multiple of the last read's time: a large namespace has thousands of pods
Members = Mapping[str, str]
"""UID to node of the members of a group; '' for a member that terminates or is gone."""

Read = Callable[[str], Awaitable[Mapping[GroupKey, Members]]]


@dataclass(frozen=True, slots=True)
class _LastRead:
    """The last read of a namespace, and the members bound by this process. Times are in seconds of the clock."""

    groups: dict[GroupKey, float]  # with the pause until the group is read again; 0 if its pods changed
    until: float  # when the result is forgotten
    ended: float = -inf
    rest: float = 0.0  # pause until any group is read


class BoundMembers:
    """Puts the bound members into the cache.

    `read` takes a namespace and returns, for each group, UID to node. `clock` returns seconds.
    """

    def __init__(self, cache: ClusterCache, read: Read, timers: GangTimers, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._read = read
        self._timers = timers
        self._clock = clock
        self._wanted: dict[str, set[GroupKey]] = {}  # by namespace
        self._due: dict[str, None] = {}  # the namespaces to read next
        self._known: dict[str, _LastRead] = {}  # by namespace
        # The groups that are read now, by namespace, each with the members that were bound meanwhile; without those
        # whose waiting pods changed meanwhile.
        self._reading: dict[str, dict[GroupKey, dict[str, str]]] = {}
        self._log = structlog.get_logger("berth.gangs")

    def want(self, key: GroupKey) -> None:
        """Read the bound members of a group after the pause of its namespace."""
        wanted = self._wanted.setdefault(key.namespace, set())
        if key not in wanted and len(wanted) < MAX_GROUPS:
            wanted.add(key)
            self._set_timer(key.namespace)

    def _set_timer(self, namespace: str) -> None:
        """When the wanted groups of the namespace may be read. The end of a read sets the timer of its namespace."""
        last, wanted = self._known.get(namespace), self._wanted.get(namespace)
        if not wanted or namespace in self._reading:
            return
        pauses = (last.groups.get(key, 0.0) for key in wanted) if last is not None else ()
        at = last.ended + max(last.rest, min(pauses)) if last is not None else -inf
        self._timers.at((GangTimer.READ, namespace), at)

    def _know(self, namespace: str, read: _LastRead) -> None:
        self._known[namespace] = read
        self._timers.at((GangTimer.READ_FORGOTTEN, namespace), read.until)

    def bound(self, key: GroupKey, uid: str, node: str) -> None:
        """This process has bound a member: it runs."""
        if key.namespace not in self._known:
            self._know(key.namespace, _LastRead({}, self._clock() + REMEMBERED_SECONDS))
        last = self._known[key.namespace]
        if key in last.groups or len(last.groups) < MAX_GROUPS:
            last.groups.setdefault(key, 0.0)
            known = self._cache.store.bound_members.get(key, {})
            self._cache.store.use_bound_members(key, {**known, uid: node})
        self._reading.get(key.namespace, {}).get(key, {})[uid] = node

    def forget(self, key: GroupKey) -> None:
        """Forget the bound members of a group with another waiting pod: they may be members of an earlier gang."""
        self._reading.get(key.namespace, {}).pop(key, None)
        last, gone = self._known.get(key.namespace), self._gone(key)
        if last is not None and key in last.groups:
            last.groups[key] = 0.0
            if not gone and key not in self._cache.store.members:
                del last.groups[key]
            self._set_timer(key.namespace)
        if key in self._cache.store.bound_members:
            self._cache.store.use_bound_members(key, gone or None)

    def expire(self, namespace: str) -> None:
        """Forget the last read, which is too old, but not which members terminate: these pods never run again.

        A group with terminating members is read again while some of its pods wait.
        """
        for key in self._known.pop(namespace).groups:
            gone = self._gone(key)
            self._cache.store.use_bound_members(key, gone or None)
            if gone:
                self.want(key)
        self._set_timer(namespace)

    def _gone(self, key: GroupKey) -> dict[str, str]:
        """UID to '' of each member that terminates or is gone, and for which a claim is still reserved."""
        snapshot = self._cache.snapshot()
        read = snapshot.bound_members.get(key, {})
        if key not in snapshot.members:
            return {}
        return {uid: "" for uid in snapshot.users_of_group(key) if read.get(uid) == ""}

    def pause_ended(self, namespace: str) -> None:
        """The wanted groups of the namespace may be read."""
        if namespace in self._wanted and namespace not in self._reading:
            self._due[namespace] = None

    def take_due(self) -> dict[str, set[GroupKey]]:
        """The groups to read now, by namespace. The caller must `read` each of these namespaces."""
        found = dict[str, set[GroupKey]]()
        for namespace in list(self._due)[: max(MAX_READS - len(self._reading), 0)]:
            del self._due[namespace]
            found[namespace] = self._with_last(namespace, self._wanted.pop(namespace))
            self._reading[namespace] = {key: {} for key in found[namespace]}
        return found

    async def read(self, namespace: str, keys: set[GroupKey], done: Callable[[GroupKey, Members], None]) -> None:
        """Read groups of a namespace that `take_due` returned.

        `done` is called for each group, and gets its members of the last read.
        """
        snapshot, began = self._cache.snapshot(), self._clock()
        # A pod that is bound and has a claim before the list, and that is not in the list, is gone or terminates.
        before = {
            key: dict.fromkeys(snapshot.users_of_group(key).keys() - snapshot.members.get(key, {}).keys(), "")
            for key in keys
        }
        try:
            found = self._cache.store.members_in_trees(await self._read(namespace))
        except ClusterError as error:
            self._log.warning("could not read the bound pods", namespace=namespace, problem=str(error))
            found, before = {}, {key: self._gone(key) for key in keys}
        except Exception:
            for key in keys:
                self.want(key)
            raise
        finally:
            unchanged = self._reading.pop(namespace)
            self._know(namespace, self._read_now(namespace, began, keys, unchanged))
            for waiting in (namespace, *islice(self._due, 1)):  # there is room for the next read
                self._set_timer(waiting)
        for key in keys - unchanged.keys():
            self.want(key)
        for key, meanwhile in unchanged.items():
            known = self._cache.store.bound_members.get(key, {})
            self._cache.store.use_bound_members(key, before[key] | dict(found.get(key, {})) | meanwhile)
            done(key, known)

    def _with_last(self, namespace: str, keys: set[GroupKey]) -> set[GroupKey]:
        """`keys`, and up to the limit the groups of the last read that still wait. Forgets the other groups."""
        last = self._known.get(namespace)
        for key in last.groups.keys() - keys if last is not None else ():
            if len(keys) < MAX_GROUPS and key in self._cache.store.members:
                keys.add(key)
            else:
                self._cache.store.use_bound_members(key, self._gone(key) or None)
        return keys

    def _read_now(
        self, namespace: str, began: float, keys: set[GroupKey], unchanged: Mapping[GroupKey, object]
    ) -> _LastRead:
        now, last = self._clock(), self._known.get(namespace)
        pauses = last.groups if last is not None else {}
        # Groups with members that were bound meanwhile stay.
        groups = {key: pauses[key] for key in pauses.keys() - keys if key in self._cache.store.bound_members}
        for key in keys:
            pause = min(max(2 * pauses.get(key, 0.0), _FIRST_PAUSE), _LONGEST_PAUSE)
            groups[key] = pause if key in unchanged else 0.0
        rest = min(max(_FIRST_PAUSE, PAUSE_FACTOR * (now - began)), _LONGEST_PAUSE)
        return _LastRead(groups, now + REMEMBERED_SECONDS, now, rest)
