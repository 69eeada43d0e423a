"""The reasons against a plan of a gang, and against a bind of its pods without a plan."""

from __future__ import annotations

from collections.abc import Callable

from extender.cache import ClusterCache
from extender.extension.gangs.bound_members import BoundMembers
from extender.gangs.gang import difference, gang_minimum, is_incomplete, lacks_pod_group, may_terminate, placed_members
from extender.gangs.gang_problem import MOST_TOGETHER
from extender.model import Code, GroupKey, GroupSource, Membership, Pod, Reason

INVALID = (Code.INVALID, Code.GANG_TOO_LARGE)  # only an edit of the pods or of their group's object can help


class GangChecks:
    """`is_served` tells whether the API server serves the PodGroups of a source.

    `must_read` is called if bound members must be read.
    """

    def __init__(
        self,
        cache: ClusterCache,
        bound_members: BoundMembers,
        is_served: Callable[[GroupSource], bool],
        must_read: Callable[[], None],
    ) -> None:
        self._cache = cache
        self._bound_members = bound_members
        self._is_served = is_served
        self._must_read = must_read

    def problem(self, pod: Pod, membership: Membership) -> Reason | None:
        """Why the gang of a pod without a plan cannot be planned now.

        None also for a pod in no gang. Some members may be bound without a claim that shows it, or may terminate with
        one, so they are read now and then.
        """
        key, snapshot = membership.key, self._cache.snapshot()
        invalid = membership.problem or difference(pod, membership, snapshot)
        if invalid:
            return Reason(Code.INVALID, (invalid,))
        minimum = gang_minimum(membership, snapshot)
        if not minimum:
            lacks = lacks_pod_group(membership, snapshot) and self._is_served(key.source)
            return Reason(Code.GANG_UNKNOWN, (key.name,)) if lacks else None
        if minimum > MOST_TOGETHER:
            return Reason(Code.GANG_TOO_LARGE, (key.name, str(MOST_TOGETHER)))
        if is_incomplete(membership, minimum, snapshot):
            self._want_bound_members(key)
            return Reason(Code.GANG_INCOMPLETE, (key.name, str(minimum)))
        is_new = pod.uid not in snapshot.members.get(key, {})  # the known members may be those of an earlier gang
        if may_terminate(key, minimum, snapshot) or (is_new and placed_members(key, snapshot)):
            self._want_bound_members(key)
            return Reason(Code.GANG_UNREAD, (key.name,))
        return None

    def _want_bound_members(self, key: GroupKey) -> None:
        if self._bound_members.want(key):
            self._must_read()
