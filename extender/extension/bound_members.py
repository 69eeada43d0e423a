"""Reads the bound members of gangs whose claims do not show all of them.

A pod without devices has no claim, and the watch shows no bound pods. So a gang of which some members are bound may
seem incomplete. Then the namespace's pods are listed, for each gang at most once in a while.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from math import inf

import structlog

from extender.cache import ClusterCache
from extender.cluster import ClusterError
from extender.model import GroupKey

_SECONDS = 30.0  # until the bound members of a gang are forgotten, and may be read again


class BoundMembers:
    """Puts the bound members into the cache. `read` returns UID to node. `clock` returns seconds."""

    def __init__(
        self,
        cache: ClusterCache,
        read: Callable[[GroupKey], Awaitable[Mapping[str, str]]],
        clock: Callable[[], float],
        seconds: float = _SECONDS,
    ) -> None:
        self._cache = cache
        self._read = read
        self._clock = clock
        self._seconds = seconds
        self._wanted: set[GroupKey] = set()
        self._until: dict[GroupKey, float] = {}  # groups that were read, and until when the result counts
        self._log = structlog.get_logger("berth.gangs")

    def want(self, key: GroupKey) -> bool:
        """Read the bound members of a group soon. False if they were read a moment ago."""
        if key in self._until:
            return False
        self._wanted.add(key)
        return True

    def expire(self) -> None:
        """Forget what was read too long ago."""
        for key in [key for key, until in self._until.items() if until <= self._clock()]:
            del self._until[key]
            self._cache.use_bound_members(key, None)

    @property
    def next_deadline(self) -> float:
        """The earliest time at which `expire` has work; infinite if there is none."""
        return min(self._until.values(), default=inf)

    async def read_wanted(self, done: Callable[[GroupKey], None]) -> None:
        """Read the bound members of the wanted groups, and call `done` after each."""
        while self._wanted:
            key = self._wanted.pop()
            try:
                members = await self._read(key)
            except ClusterError as error:
                self._log.warning("could not read the bound pods of a group", group=str(key), problem=str(error))
                members = {}
            self._cache.use_bound_members(key, members)
            self._until[key] = self._clock() + self._seconds
            done(key)
