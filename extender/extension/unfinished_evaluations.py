"""Pod requirements whose evaluation did not finish within a budget, kept as long as one of their pods exists."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from extender.model import FairCache
from extender.scheduling import PodRequirements

_Key = tuple[str, Hashable]
"""The namespace and the requirements key of an evaluation."""


@dataclass(slots=True)
class UnfinishedEvaluation:
    """Pod requirements whose evaluation is not finished."""

    requirements: PodRequirements
    namespace: str
    retry_at: float = 0.0  # seconds of the clock; no filter request evaluates the requirements before
    gave_up: bool = False  # True: some nodes are not evaluated. False: all are, and some scores are out of date
    pods: dict[str, None] = field(default_factory=dict)  # UIDs


class UnfinishedEvaluations:
    """Unfinished evaluations, for at most `limit` pods, see FairCache. A pod with large claims counts as several.

    The namespaces take turns, and in each of them its evaluations. The spent budget of one namespace does not delay
    equal requirements of another: these are another evaluation.
    """

    def __init__(self, limit: int) -> None:
        # By namespace and requirements key, each in the order of the turns.
        self._evaluations: OrderedDict[str, OrderedDict[Hashable, UnfinishedEvaluation]] = OrderedDict()
        self._keys: FairCache[str, _Key] = FairCache(limit)  # by pod UID

    def __len__(self) -> int:
        return sum(map(len, self._evaluations.values()))

    def get(self, requirements: PodRequirements) -> UnfinishedEvaluation | None:
        """The unfinished evaluation of these requirements, if there is one."""
        own = self._evaluations.get(requirements.namespace)
        return own.get(requirements.key) if own is not None else None

    def add(self, requirements: PodRequirements, uid: str) -> UnfinishedEvaluation:
        """Remember that a call for the pod `uid` did not finish the evaluation of its requirements."""
        namespace, key = requirements.namespace, requirements.key
        if self._keys.get(uid) != (namespace, key):
            self.forget_pod(uid)
        own = self._evaluations.setdefault(namespace, OrderedDict())
        found = own.get(key)
        if found is None:
            found = own[key] = UnfinishedEvaluation(requirements, namespace)
        found.pods[uid] = None
        for dropped in self._keys.put(namespace, uid, (namespace, key), requirements.counts_as):
            self._drop(*dropped)
        return found

    def next(self, may_go_on: Callable[[UnfinishedEvaluation], bool]) -> UnfinishedEvaluation | None:
        """The first evaluation that `may_go_on` accepts; None if there is none. It and its namespace have had their
        turn then."""
        for namespace, own in self._evaluations.items():
            key = next((key for key, one in own.items() if may_go_on(one)), None)
            if key is not None:
                self._evaluations.move_to_end(namespace)
                own.move_to_end(key)
                return own[key]
        return None

    def done(self, requirements: PodRequirements) -> None:
        """Forget an evaluation that is finished."""
        found = self.get(requirements)
        if found is not None:
            self._remove((requirements.namespace, requirements.key))
            for uid in found.pods:
                self._keys.pop(uid)

    def forget_pod(self, uid: str) -> None:
        """Forget a pod that is bound or deleted, or whose requirements changed, and an evaluation without pods."""
        key = self._keys.pop(uid)
        if key is not None:
            self._drop(uid, key)

    def _drop(self, uid: str, key: _Key) -> None:
        found = self._evaluations[key[0]][key[1]]
        del found.pods[uid]
        if not found.pods:
            self._remove(key)

    def _remove(self, key: _Key) -> None:
        own = self._evaluations[key[0]]
        del own[key[1]]
        if not own:
            del self._evaluations[key[0]]

    def clear(self) -> None:
        """Drop all unfinished evaluations."""
        self._evaluations.clear()
        self._keys.clear()
