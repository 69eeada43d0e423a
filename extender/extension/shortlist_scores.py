"""The nodes that passed the last filter request of a pod. Prioritize and bind read their scores."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from extender.model import FairLRU, Pod

RunnerUp = tuple[str, float]
"""The best node that was not chosen, and how much lower it scored than the chosen one; ('', 0.0) without one."""


class ShortlistScores:
    """Node names with scores, the best first, for at most `limit` pods, see FairLRU."""

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

    def runner_up(self, uid: str, node: str) -> RunnerUp:
        """The best node of the pod other than `node`."""
        known = self._known.get(uid) or {}
        others = [(score, name) for name, score in known.items() if name != node]
        if node not in known or not others:
            return "", 0.0
        score, name = max(others, key=lambda other: other[0])
        return name, known[node] - score

    def forget(self, uid: str) -> None:
        """Drop the scores of a pod that is bound or deleted."""
        self._known.pop(uid)
