"""Pods that fitted no node in their last filter request, by equivalence class: its pods fit on the same nodes, and
belong to one namespace, which pays for their evaluations."""

from __future__ import annotations

from collections.abc import Hashable

from extender.model import FairLRU
from extender.scheduling import PodRequirements

_PODS = 4096


class UnschedulablePods:
    """At most `limit` pods, see FairLRU: the namespace with the most loses the one that was rejected longest ago.

    A pod with large claims counts as several: its requirements keep the claims after their deletion.
    """

    def __init__(self, limit: int = _PODS) -> None:
        # UID to equivalence class; the pods of one class have claims of one size.
        self._pods: FairLRU[str, Hashable] = FairLRU(limit, lambda key: self._classes[key][0].counts_as)
        # Key of the equivalence class to the requirements of one of its pods, and the UIDs of all its pods.
        self._classes: dict[Hashable, tuple[PodRequirements, dict[str, None]]] = {}

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, uid: str) -> bool:
        return uid in self._pods

    def add(self, uid: str, requirements: PodRequirements) -> None:
        """Remember a pod that fits on no node."""
        self.remove(uid)
        key = requirements.namespace, requirements.key, requirements.node_selectors
        self._classes.setdefault(key, (requirements, {}))[1][uid] = None
        for dropped in self._pods.put(requirements.namespace, uid, key):
            self._remove_pod(*dropped)

    def remove(self, uid: str) -> None:
        """Forget a pod that fits now, or that is bound or deleted."""
        key = self._pods.pop(uid)
        if key is not None:
            self._remove_pod(uid, key)

    def _remove_pod(self, uid: str, key: Hashable) -> None:
        pods = self._classes[key][1]
        del pods[uid]
        if not pods:
            del self._classes[key]

    def uids(self) -> list[str]:
        """UIDs of the pods, the namespaces in turn, the longest waiting of each first."""
        return [uid for uid, _ in self._pods.items()]

    @property
    def namespaces(self) -> list[str]:
        """The namespaces with waiting pods."""
        return self._pods.namespaces

    def waiting(self, requirements: PodRequirements) -> list[str]:
        """UIDs of the waiting pods with these requirements."""
        return self.pods((requirements.namespace, requirements.key, requirements.node_selectors))

    def keys(self, namespace: str) -> list[Hashable]:
        """Keys of the equivalence classes of a namespace that have waiting pods, the longest waiting first."""
        return list(dict.fromkeys(key for _, key in self._pods.of(namespace)))

    def requirements(self, key: Hashable) -> PodRequirements | None:
        """The requirements of one pod of an equivalence class; None if no pod of it waits."""
        found = self._classes.get(key)
        return found[0] if found is not None else None

    def pods(self, key: Hashable) -> list[str]:
        """UIDs of the waiting pods of an equivalence class."""
        return list(self._classes[key][1]) if key in self._classes else []
