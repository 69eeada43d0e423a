"""Demands whose evaluation is not at its end, each for as long as one of its pods exists."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from extender.scheduling import PodRequirements


@dataclass(slots=True)
class UnfinishedEvaluation:
    """A demand that a call left before the end."""

    requirements: PodRequirements
    namespace: str
    retry_at: float = 0.0  # when a call may go on with it
    gave_up: bool = False  # False: every node is judged, and only scores are of older facts
    pods: dict[str, None] = field(default_factory=dict)  # UIDs


class UnfinishedEvaluations:
    """By namespace and key of the demand, in the order in which their turn comes; bounded by the number of pods. An equal
    demand of another namespace is not held back by this one's budget."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._demands: OrderedDict[Hashable, UnfinishedEvaluation] = OrderedDict()
        self._keys: OrderedDict[str, Hashable] = OrderedDict()  # pod UID to key

    def __len__(self) -> int:
        return len(self._demands)

    def get(self, requirements: PodRequirements) -> UnfinishedEvaluation | None:
        """What is known of a demand."""
        return self._demands.get(_key(requirements))

    def add(self, requirements: PodRequirements, uid: str) -> UnfinishedEvaluation:
        """A call for this pod left the demand before the end."""
        key = _key(requirements)
        if self._keys.get(uid) != key:
            self.forget_pod(uid)
        found = self._demands.get(key)
        if found is None:
            found = self._demands[key] = UnfinishedEvaluation(requirements, requirements.namespace)
        found.pods[uid] = None
        self._keys[uid] = key
        if len(self._keys) > self._limit:
            self.forget_pod(next(iter(self._keys)))
        return found

    def next(self, may_go_on: Callable[[UnfinishedEvaluation], bool]) -> UnfinishedEvaluation | None:
        """The next in turn of those that may go on; it is the last from now on."""
        key = next((key for key, one in self._demands.items() if may_go_on(one)), None)
        if key is None:
            return None
        self._demands.move_to_end(key)
        return self._demands[key]

    def done(self, requirements: PodRequirements) -> None:
        """The demand came to its end."""
        found = self._demands.pop(_key(requirements), None)
        for uid in found.pods if found is not None else ():
            del self._keys[uid]

    def forget_pod(self, uid: str) -> None:
        """The pod is bound or gone, or asks for something else. Without pods there is nothing to go on for."""
        key = self._keys.pop(uid, None)
        if key is None:
            return
        found = self._demands[key]
        del found.pods[uid]
        if not found.pods:
            del self._demands[key]

    def clear(self) -> None:
        """Nothing is under way any more."""
        self._demands.clear()
        self._keys.clear()


def _key(requirements: PodRequirements) -> Hashable:
    return requirements.namespace, requirements.key
