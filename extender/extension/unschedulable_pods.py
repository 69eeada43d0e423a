"""Pods whose last filter was refused, by equivalence class: pods of one class are helped by the same nodes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from extender.scheduling import PodRequirements

_PODS = 4096


class UnschedulablePods:
    """A bounded memory of pods; the one rejected longest ago goes first."""

    def __init__(self, limit: int = _PODS) -> None:
        self._limit = limit
        self._pods: OrderedDict[str, Hashable] = OrderedDict()  # UID to class, the longest waiting first
        self._classes: dict[
            Hashable, tuple[PodRequirements, dict[str, None]]
        ] = {}  # a demand of the class, and its pods

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, uid: str) -> bool:
        return uid in self._pods

    def add(self, uid: str, requirements: PodRequirements) -> None:
        """The pod was refused on every node."""
        self.remove(uid)
        key = requirements.key, requirements.node_selectors
        self._pods[uid] = key
        self._classes.setdefault(key, (requirements, {}))[1][uid] = None
        if len(self._pods) > self._limit:
            self.remove(next(iter(self._pods)))

    def remove(self, uid: str) -> None:
        """The pod fits now, is bound or gone."""
        key = self._pods.pop(uid, None)
        if key is None:
            return
        pods = self._classes[key][1]
        del pods[uid]
        if not pods:
            del self._classes[key]

    def uids(self) -> list[str]:
        """The longest waiting first."""
        return list(self._pods)

    def classes(self) -> list[Hashable]:
        """Keys of the classes that wait."""
        return list(self._classes)

    def demand(self, key: Hashable) -> PodRequirements | None:
        """A demand of a class; None where no pod of it waits any more."""
        found = self._classes.get(key)
        return found[0] if found is not None else None

    def pods(self, key: Hashable) -> list[str]:
        """UIDs of the pods of a class."""
        return list(self._classes[key][1]) if key in self._classes else []
