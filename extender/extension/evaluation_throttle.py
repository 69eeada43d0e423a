"""Limits the evaluation time that the pods of one namespace cause: a token bucket of seconds for each namespace.

The sum over all namespaces has a limit, too: many namespaces may belong to one tenant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cachetools import LRUCache

from extender.model import CallBudget

_COUNT_SECONDS = 1.0  # between two counts of the buckets that are not full


@dataclass(frozen=True, slots=True)
class EvaluationLimits:
    """Limits of evaluation. The policy sets the seconds of one call (`evaluation_seconds`)."""

    steps: int = 100_000  # of one call, see CallBudget
    share: float = 0.05  # of the time: the refill rate of a bucket
    total_share: float = 0.15  # of the time: the sum of these rates; buckets that are not full get equal parts
    burst: float = 2.0  # full budgets of a call: tokens of a full bucket
    finished_burst: float = 3.0  # full budgets of a call: tokens of a full bucket that only finished work may use
    wasted_burst: float = 5.0  # full budgets of a call: wasted work of all namespaces at once, see `_is_crowded_out`
    most_wasted: float = 40.0  # full budgets of a call: a bound pod earns beside the sum, which must not grow for ever
    crowded_tokens: float = 1.5  # full budgets of a call: tokens that a namespace then needs
    free_seconds: float = 0.0005  # of a call that finishes its work; a step of a search has none
    bound_seconds: float = 0.02  # that a namespace earns when a pod of it is bound with new devices
    retry_seconds: float = 5.0  # until a filter request evaluates requirements again that spent their budget
    stretch_seconds: float = 0.002  # of background evaluation at a time
    rest: float = 9.0  # pause after a stretch, as a multiple of the time that it took
    namespaces: int = 1024  # remembered; the least recently used bucket is dropped first


@dataclass(slots=True)
class _Bucket:
    """A token is one second of evaluation. A negative number of tokens is debt."""

    tokens: float
    finished: float  # tokens that only finished work may use
    earned: float  # by any bucket that was not full, from the start until the numbers were true


class EvaluationThrottle:
    """Gives out budgets, and takes the time of the work from the bucket of its namespace."""

    def __init__(self, limits: EvaluationLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._buckets: LRUCache[str, _Bucket] = LRUCache(limits.namespaces)
        self._earned = 0.0  # tokens that a bucket got that was never full
        self._earned_at = self._counted_at = clock()
        self._filling = 1  # buckets that were not full at the last count
        self._wasted = 0.0  # seconds of wasted work of all namespaces that the sum of the shares has not paid for yet
        self.exhausted = 0  # how many budgets ended before their work did

    def __len__(self) -> int:
        """How many namespaces are remembered."""
        return len(self._buckets)

    def budget(
        self, namespace: str, seconds: float, most: float, *, on_credit: bool = False, known: bool = False
    ) -> CallBudget:
        """A budget of `seconds`, or of the namespace's tokens if fewer. `most` is the seconds of a full call.

        It counts the tokens of finished work, a full call at most: the work may come to its end. If it does not, the
        namespace owes them. With `on_credit`, the namespace may owe the tokens of a full bucket. While all namespaces
        together wasted too much, only those with tokens for a full call get time: a tenant may have many namespaces.
        This does not concern `known` requirements, whose last evaluation ended. Otherwise one costly pod of a namespace
        would stop all its others.
        """
        bucket = self._bucket(namespace, most)
        if not known and self._is_crowded_out(bucket, most):
            return CallBudget(0.0, self._limits.steps, self._clock)
        credit = self._limits.burst * most if on_credit else min(bucket.finished, most)
        return CallBudget(min(seconds, bucket.tokens + credit), self._limits.steps, self._clock)

    def has_tokens(self, namespace: str, seconds: float, most: float) -> bool:
        """Whether the namespace may evaluate for `seconds` now; for 0, whether it may evaluate at all."""
        bucket = self._bucket(namespace, most)
        return bucket.tokens > 0 and bucket.tokens >= seconds and not self._is_crowded_out(bucket, most)

    def charge(self, namespace: str, budget: CallBudget, most: float, *, is_step: bool = False) -> None:
        """Take the time of a budget from the namespace's bucket.

        The first `free_seconds` of finished work are free, but not in a step of a search: one changed node causes a
        step for each waiting pod. The rest uses the tokens of finished work first: a namespace with many different
        claims must not be slowed down when Berth starts. Work that is not finished, or was in vain, pays for all its
        time: a plan of a gang that failed is made again. A call that got no time wasted none.
        """
        free = 0.0 if is_step else self._limits.free_seconds
        spent = self._clock() - budget.began
        wasted = budget.seconds > 0 and (budget.exhausted or budget.in_vain)
        self.exhausted += budget.exhausted
        if not wasted and spent <= free:
            return
        bucket = self._bucket(namespace, most)
        if not wasted:
            spent -= free
            covered = min(spent, bucket.finished)
            bucket.finished -= covered
            spent -= covered
        if wasted:
            self._wasted = min(self._wasted + spent, self._limits.most_wasted * most)
        bucket.tokens -= spent
        self._buckets[namespace] = bucket

    def earn(self, namespace: str, most: float) -> None:
        """Give the namespace `bound_seconds`, because a pod of it is bound with new devices."""
        if namespace in self._buckets:
            self._buckets[namespace] = self._bucket(namespace, most, self._limits.bound_seconds)

    def _is_crowded_out(self, bucket: _Bucket, most: float) -> bool:
        """Whether the namespace has to wait: all wasted too much time, and it has no tokens for a full call either."""
        return self._wasted > self._limits.wasted_burst * most and bucket.tokens < self._limits.crowded_tokens * most

    def _bucket(self, namespace: str, most: float, more: float = 0.0) -> _Bucket:
        """A copy of the namespace's bucket, filled up to now and with `more`: first the tokens of all work."""
        full, finished = self._limits.burst * most, self._limits.finished_burst * most
        self._refill(full + finished)
        known = self._buckets.get(namespace)
        if known is None:
            return _Bucket(full, finished, self._earned)
        tokens = known.tokens + self._earned - known.earned + more
        left = max(0.0, tokens - full)
        return _Bucket(min(full, tokens), min(finished, known.finished + left), self._earned)

    def _refill(self, full: float) -> None:
        """Let all buckets earn tokens until now. `full` is the sum of both kinds of tokens in a full one."""
        now, limits = self._clock(), self._limits
        passed = now - self._earned_at
        self._earned += passed * min(limits.share, limits.total_share / self._filling)
        self._wasted = max(0.0, self._wasted - passed * limits.total_share)
        self._earned_at = now
        if now - self._counted_at >= _COUNT_SECONDS:
            self._counted_at = now
            below = full - self._earned
            filling = sum(one.tokens + one.finished - one.earned < below for one in self._buckets.values())
            self._filling = max(1, filling)
