"""How much evaluation the pods of one namespace may cause: a token bucket of seconds for each namespace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cachetools import LRUCache

from extender.model import CallBudget


@dataclass(frozen=True, slots=True)
class EvaluationLimits:
    """Bounds of evaluation; the seconds of one call are a setting of the policy."""

    steps: int = 100_000  # of one call, see Budget
    share: float = 0.1  # of the time, for a namespace whose demands are heavy
    burst: float = 5.0  # whole calls that such a namespace may make before
    retry_seconds: float = 5.0  # until a demand that spent its budget is tried again
    slice_seconds: float = 0.002  # of work between two calls
    rest: float = 9.0  # times as long as such a slice took
    namespaces: int = 1024  # remembered; the one asked for longest ago goes first


@dataclass(slots=True)
class _Bucket:
    """A token is a second of evaluation; below zero is debt."""

    tokens: float
    at: float


class EvaluationThrottle:
    """Gives budgets and takes what was used of them from the namespace's bucket."""

    def __init__(self, limits: EvaluationLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._buckets: LRUCache[str, _Bucket] = LRUCache(limits.namespaces)
        self.exhausted = 0  # budgets that ended before the work did

    def __len__(self) -> int:
        """Namespaces that are remembered."""
        return len(self._buckets)

    def budget(self, namespace: str, seconds: float, most: float) -> CallBudget:
        """A budget of so many `seconds` and of no more than the namespace has left; `most` is that of a whole call."""
        return CallBudget(min(seconds, self._tokens(namespace, most)), self._limits.steps, self._clock)

    def has_tokens(self, namespace: str, most: float) -> bool:
        """Whether the namespace may evaluate now."""
        return self._tokens(namespace, most) > 0

    def charge(self, namespace: str, budget: CallBudget, most: float) -> None:
        """The work with a budget is over. Work that came to its end is remembered and not done again, so it leaves the
        bucket as it is: a namespace with many kinds of honest claims is not slowed down when Berth starts."""
        if not budget.exhausted:
            return
        self.exhausted += 1
        now = self._clock()
        self._buckets[namespace] = _Bucket(self._tokens(namespace, most) - (now - budget.began), now)

    def _tokens(self, namespace: str, most: float) -> float:
        full, bucket = self._limits.burst * most, self._buckets.get(namespace)
        if bucket is None:
            return full
        return min(full, bucket.tokens + (self._clock() - bucket.at) * self._limits.share)
