"""What filter remembers for each pod: the scores of the nodes that passed, or that the pod fitted no node."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping

from extender.api.pods import Pod
from extender.base.fair_lru import FairLRU
from extender.scheduling import PodRequirements

MAX_PODS = 4096


class UnschedulablePods:
    """Pods that fitted no node in their last filter request, by equivalence class.

    The pods of a class fit on the same nodes, and belong to one namespace, which pays for their evaluations. At most
    `limit` pods, see FairLRU: the namespace with the most loses the one that was rejected longest ago.

    A pod with large claims counts as several: its requirements keep the claims after their deletion.
    """

    def __init__(self, limit: int = MAX_PODS) -> None:
        # UID to equivalence class; the pods of one class have claims of one size.
        self._pods: FairLRU[str, Hashable] = FairLRU(limit, lambda key: self._classes[key][0].counts_as)
        self.searched: dict[str, int] = {}  # version of the snapshot that the last search covered, by namespace
        # Key of the equivalence class to the requirements of one of its pods, and the UIDs of all its pods.
        self._classes: dict[Hashable, tuple[PodRequirements, dict[str, None]]] = {}

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, uid: str) -> bool:
        return uid in self._pods

    def add(self, uid: str, requirements: PodRequirements, version: int) -> None:
        """Remember a pod that fits on no node of the snapshot `version`.

        If no other pod of its namespace waits, the next search starts there.
        """
        if requirements.namespace not in self.namespaces:
            self.searched[requirements.namespace] = version
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


RunnerUp = tuple[str, float]
"""The best node that was not chosen, and how much lower it scored than the chosen one; ('', 0.0) without one."""


class ShortlistScores:
    """The nodes that passed the last filter request of a pod; prioritize and bind read their scores.

    Node names with scores, the best first, for at most `limit` pods, see FairLRU."""

    def __init__(self, limit: int) -> None:
        self._known: FairLRU[str, Mapping[str, float]] = FairLRU(limit)  # by pod UID

    def __len__(self) -> int:
        return len(self._known)

    def put(self, pod: Pod, scores: Mapping[str, float]) -> None:
        """Remember the nodes of a filter request, in place of those of an earlier one."""
        self._known.put(pod.key.namespace, pod.uid, scores)

    def scores(self, uid: str, names: Collection[str]) -> Mapping[str, float] | None:
        """The scores of the pod's nodes; None if a node in `names` is not one of them."""
        known = self._known.get(uid)
        return known if known is not None and known.keys() >= set(names) else None

    def runner_up(self, uid: str, node: str, last: Collection[str] = ()) -> RunnerUp:
        """The best node of the pod other than `node` and those in `last`, which are no choice whatever their score."""
        known = self._known.get(uid) or {}
        others = [(score, name) for name, score in known.items() if name != node and name not in last]
        if node not in known or not others:
            return "", 0.0
        score, name = max(others, key=lambda other: other[0])
        return name, known[node] - score

    def forget(self, uid: str) -> None:
        """Drop the scores of a pod that is bound or deleted."""
        self._known.pop(uid)
