"""Reads the bound members of groups from the API server: the cache has only their claims.

A member without devices has no claim, so a gang of which some members are bound may seem incomplete. A claim does not
show that its pod terminates. And if no pod of a group waits, only a bound pod has the minimum.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from extender.cache import ClusterCache
from extender.cluster import ClusterError
from extender.gangs.gang import gang_minimum, is_incomplete, may_terminate, members_with_claims, placed_members
from extender.model import GroupKey, Membership, ObjectKey, Pod

ReadPod = Callable[[ObjectKey], Awaitable[Pod]]
ReadBound = Callable[[str], Awaitable[Mapping[GroupKey, Mapping[str, str]]]]


class BoundMemberReader:
    """`read_bound` takes a namespace and returns, for each group, UID to node. `refreshed`: see CacheRefresh.wait."""

    def __init__(
        self,
        cache: ClusterCache,
        read_pod: ReadPod | None,
        read_bound: ReadBound | None,
        refreshed: Callable[[], Awaitable[None]],
    ) -> None:
        self._cache = cache
        self._read_pod = read_pod
        self._read_bound = read_bound
        self._refreshed = refreshed

    @asynccontextmanager
    async def known(self, groups: Mapping[GroupKey, Sequence[Pod]]) -> AsyncIterator[dict[GroupKey, Membership]]:
        """Read the bound members of those groups whose claims may not show all. The cache has them until the exit.

        `groups` has the pods of each group without a node. Yields, for each group with no such pod, the membership of
        a bound pod.
        """
        lacking = [key for key, pods in groups.items() if not pods or self._must_read(pods[0])]
        known, used = self._cache.store.bound_members, dict[GroupKey, Mapping[str, str]]()
        earlier = {key: known.get(key) for key in lacking}  # serve may share the cache, and may have read them
        if lacking and self._read_bound is not None:
            with suppress(ClusterError):
                snapshot = self._cache.snapshot()
                # A pod that has a claim before the list, and that is not in the list, is gone or terminates.
                before = {key: dict.fromkeys(members_with_claims(key, snapshot), "") for key in lacking}
                placed = await self._read_bound(lacking[0].namespace)
                used = {key: {**before[key], **placed.get(key, {})} for key in lacking}
                for key, members in used.items():
                    self._cache.store.use_bound_members(key, members)
        try:
            yield {key: found for key, pods in groups.items() if not pods and (found := await self._membership(key))}
        finally:
            for key, members in used.items():
                if known.get(key) is members:
                    self._cache.store.use_bound_members(key, earlier[key])

    def _must_read(self, pod: Pod) -> bool:
        snapshot, membership = self._cache.snapshot(), pod.membership
        minimum = gang_minimum(membership, snapshot) if membership is not None else 0
        if membership is None or not minimum:
            return False
        return is_incomplete(membership, minimum, snapshot) or may_terminate(membership.key, minimum, snapshot)

    async def _membership(self, key: GroupKey) -> Membership | None:
        """The membership of a bound pod of the group that runs; None if no such pod can be read."""
        await self._refreshed()
        snapshot = self._cache.snapshot()
        claims, running = (
            [snapshot.claims[claim] for claim in snapshot.claims_of_group(key)],
            placed_members(key, snapshot),
        )
        users = [(one.name, one.uid) for claim in claims for one in claim.reserved_for if one.uid in running]
        if not users or self._read_pod is None:
            return None
        name, uid = min(users)
        try:
            pod = await self._read_pod(ObjectKey(key.namespace, name))
        except ClusterError:
            return None
        found = pod.membership
        return found if found is not None and (found.key, pod.uid) == (key, uid) else None
