"""Pod requirements whose evaluation did not finish within a budget, kept as long as one of their pods exists."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from extender.model import FairCache
from extender.scheduling import PodRequirements


@dataclass(slots=True)
class UnfinishedEvaluation:
    """Pod requirements whose evaluation is not finished."""

    requirements: PodRequirements
    namespace: str
    retry_at: float = 0.0  # seconds of the clock; no filter request evaluates the requirements before
    gave_up: bool = False  # True: some nodes are not evaluated. False: all are, and some scores are out of date
    pods: dict[str, None] = field(default_factory=dict)  # UIDs


class UnfinishedEvaluations:
    """Unfinished evaluations in the order in which they continue, for at most `limit` pods, see FairCache.
    A pod with large claims counts as several.

    The key includes the namespace, so the spent budget of one namespace does not delay equal requirements of another.
    """

    def __init__(self, limit: int) -> None:
        self._evaluations: OrderedDict[Hashable, UnfinishedEvaluation] = OrderedDict()
        self._keys: FairCache[str, Hashable] = FairCache(limit)  # pod UID to key

    def __len__(self) -> int:
        return len(self._evaluations)

    def get(self, requirements: PodRequirements) -> UnfinishedEvaluation | None:
        """The unfinished evaluation of these requirements, if there is one."""
        return self._evaluations.get(_key(requirements))

    def add(self, requirements: PodRequirements, uid: str) -> UnfinishedEvaluation:
        """Remember that a call for the pod `uid` did not finish the evaluation of its requirements."""
        key = _key(requirements)
        if self._keys.get(uid) != key:
            self.forget_pod(uid)
        found = self._evaluations.get(key)
        if found is None:
            found = self._evaluations[key] = UnfinishedEvaluation(requirements, requirements.namespace)
        found.pods[uid] = None
        for dropped in self._keys.put(requirements.namespace, uid, key, requirements.counts_as):
            self._drop(*dropped)
        return found

    def next(self, may_go_on: Callable[[UnfinishedEvaluation], bool]) -> UnfinishedEvaluation | None:
        """The first evaluation that `may_go_on` accepts, moved to the end of the order; None if there is none."""
        key = next((key for key, one in self._evaluations.items() if may_go_on(one)), None)
        if key is None:
            return None
        self._evaluations.move_to_end(key)
        return self._evaluations[key]

    def done(self, requirements: PodRequirements) -> None:
        """Forget an evaluation that is finished."""
        found = self._evaluations.pop(_key(requirements), None)
        for uid in found.pods if found is not None else ():
            self._keys.pop(uid)

    def forget_pod(self, uid: str) -> None:
        """Forget a pod that is bound or deleted, or whose requirements changed, and an evaluation without pods."""
        key = self._keys.pop(uid)
        if key is not None:
            self._drop(uid, key)

    def _drop(self, uid: str, key: Hashable) -> None:
        found = self._evaluations[key]
        del found.pods[uid]
        if not found.pods:
            del self._evaluations[key]

    def clear(self) -> None:
        """Drop all unfinished evaluations."""
        self._evaluations.clear()
        self._keys.clear()


def _key(requirements: PodRequirements) -> Hashable:
    return requirements.namespace, requirements.key
