"""Pods that fitted no node in their last filter request, by equivalence class: a class fits on the same nodes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from extender.scheduling import PodRequirements

_PODS = 4096


class UnschedulablePods:
    """At most `limit` pods. At the limit, the pod that was rejected longest ago is dropped."""

    def __init__(self, limit: int = _PODS) -> None:
        self._limit = limit
        self._pods: OrderedDict[str, Hashable] = OrderedDict()  # UID to class, the longest waiting first
        # Key of the class to the requirements of one of its pods, and the UIDs of all its pods.
        self._classes: dict[Hashable, tuple[PodRequirements, dict[str, None]]] = {}

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, uid: str) -> bool:
        return uid in self._pods

    def add(self, uid: str, requirements: PodRequirements) -> None:
        """The pod fits on no node."""
        self.remove(uid)
        key = requirements.key, requirements.node_selectors
        self._pods[uid] = key
        self._classes.setdefault(key, (requirements, {}))[1][uid] = None
        if len(self._pods) > self._limit:
            self.remove(next(iter(self._pods)))

    def remove(self, uid: str) -> None:
        """The pod fits now, or is bound or deleted."""
        key = self._pods.pop(uid, None)
        if key is None:
            return
        pods = self._classes[key][1]
        del pods[uid]
        if not pods:
            del self._classes[key]

    def uids(self) -> list[str]:
        """UIDs of the pods, the longest waiting first."""
        return list(self._pods)

    def classes(self) -> list[Hashable]:
        """Keys of the classes that have waiting pods."""
        return list(self._classes)

    def requirements(self, key: Hashable) -> PodRequirements | None:
        """The requirements of one pod of a class; None if no pod of the class waits."""
        found = self._classes.get(key)
        return found[0] if found is not None else None

    def pods(self, key: Hashable) -> list[str]:
        """UIDs of the waiting pods of a class."""
        return list(self._classes[key][1]) if key in self._classes else []
