"""Limits the evaluation time that the pods of one namespace cause: a token bucket of seconds for each namespace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cachetools import LRUCache

from extender.model import CallBudget


@dataclass(frozen=True, slots=True)
class EvaluationLimits:
    """Limits of evaluation. The policy sets the seconds of one call (`evaluation_seconds`)."""

    steps: int = 100_000  # of one call, see CallBudget
    share: float = 0.1  # of the time: the refill rate of a bucket
    burst: float = 2.0  # full budgets of a call: the size of a bucket
    retry_seconds: float = 5.0  # until a filter request evaluates requirements again that spent their budget
    slice_seconds: float = 0.002  # of background evaluation at a time
    rest: float = 9.0  # pause after a slice, as a multiple of the time that the slice took
    namespaces: int = 1024  # remembered; the least recently used bucket is dropped first


@dataclass(slots=True)
class _Bucket:
    """A token is one second of evaluation. A negative number of tokens is debt."""

    tokens: float
    at: float  # when `tokens` was true, in seconds of the clock


class EvaluationThrottle:
    """Gives out budgets, and takes the time of exhausted budgets from the bucket of their namespace."""

    def __init__(self, limits: EvaluationLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._buckets: LRUCache[str, _Bucket] = LRUCache(limits.namespaces)
        self.exhausted = 0  # how many budgets ended before their work did

    def __len__(self) -> int:
        """How many namespaces are remembered."""
        return len(self._buckets)

    def budget(self, namespace: str, seconds: float, most: float) -> CallBudget:
        """A budget of `seconds`, or of the namespace's tokens if fewer. `most` is the seconds of a full call."""
        return CallBudget(min(seconds, self._tokens(namespace, most)), self._limits.steps, self._clock)

    def has_tokens(self, namespace: str, most: float) -> bool:
        """Whether the namespace may evaluate now."""
        return self._tokens(namespace, most) > 0

    def charge(self, namespace: str, budget: CallBudget, most: float) -> None:
        """Take the time of an exhausted budget from the namespace's bucket.

        Finished work costs no tokens: its result is remembered, so it is not done again. Otherwise a namespace with
        many different claims would be slowed down when Berth starts. The exception is work that takes longer than a
        full bucket: the planner of gangs checks its budget only before evaluations, and repeats a plan that failed.
        """
        now = self._clock()
        if not budget.exhausted and now - budget.began <= self._limits.burst * most:
            return
        self.exhausted += budget.exhausted
        self._buckets[namespace] = _Bucket(self._tokens(namespace, most) - (now - budget.began), now)

    def _tokens(self, namespace: str, most: float) -> float:
        full, bucket = self._limits.burst * most, self._buckets.get(namespace)
        if bucket is None:
            return full
        return min(full, bucket.tokens + (self._clock() - bucket.at) * self._limits.share)
