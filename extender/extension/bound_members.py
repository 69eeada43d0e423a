"""Reads the bound members of gangs whose claims do not show all of them.

A pod without devices has no claim, and the watch shows no bound pods. So a gang of which some members are bound may
seem incomplete. Then Berth lists the namespace's pods, at most every 30 s for each namespace.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from math import inf

import structlog

from extender.cache import ClusterCache
from extender.cluster import ClusterError
from extender.model import GroupKey

_MOST_GROUPS = 1024  # of a namespace whose bound members are read together; the others wait for the next read
_SECONDS = 30.0  # until the bound members of a namespace are forgotten, and may be read again
Read = Callable[[str], Awaitable[Mapping[GroupKey, Mapping[str, str]]]]


class BoundMembers:
    """Puts the bound members into the cache.

    `read` takes a namespace and returns, for each group, UID to node. `clock` returns seconds.
    """

    def __init__(
        self,
        cache: ClusterCache,
        read: Read,
        clock: Callable[[], float],
        seconds: float = _SECONDS,
        groups: int = _MOST_GROUPS,
    ) -> None:
        self._most_groups = groups
        self._cache = cache
        self._read = read
        self._clock = clock
        self._seconds = seconds
        self._wanted: dict[str, set[GroupKey]] = {}  # by namespace
        self._known: dict[str, tuple[float, set[GroupKey]]] = {}  # when what was read expires, and its groups
        self._log = structlog.get_logger("berth.gangs")

    def want(self, key: GroupKey) -> bool:
        """Read the bound members of a group soon. False if nothing is read soon, because of a read within 30 s."""
        known = self._known.get(key.namespace)
        if known is not None and key in known[1]:
            return False
        wanted = self._wanted.setdefault(key.namespace, set())
        if len(wanted) < self._most_groups:
            wanted.add(key)
        return known is None

    def expire(self) -> None:
        """Forget what was read too long ago."""
        now = self._clock()
        for namespace in [name for name, (until, _) in self._known.items() if until <= now]:
            for key in self._known.pop(namespace)[1]:
                self._cache.use_bound_members(key, None)

    @property
    def next_deadline(self) -> float:
        """The earliest time at which `expire` has work; infinite if there is none."""
        return min((until for until, _ in self._known.values()), default=inf)

    async def read_wanted(self, done: Callable[[GroupKey], None]) -> None:
        """Read the wanted groups of namespaces that were not read a moment ago, and call `done` for each group."""
        for namespace in self._wanted.keys() - self._known.keys():
            keys = self._wanted.pop(namespace)
            try:
                found = await self._read(namespace)
            except ClusterError as error:
                self._log.warning("could not read the bound pods", namespace=namespace, problem=str(error))
                found = {}
            self._known[namespace] = self._clock() + self._seconds, keys
            for key in keys:
                self._cache.use_bound_members(key, found.get(key, {}))
                done(key)
