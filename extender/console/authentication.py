"""Authenticates serve processes: the API server reviews the bearer tokens of their requests."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from cachetools import LRUCache, TTLCache
from pydantic import BaseModel, ValidationError

from extender.cluster import ApiClient, ClusterError

_PATH = "/apis/authentication.k8s.io/v1/tokenreviews"
_MOST_TOKEN = 8192  # characters
_SECONDS = 3.0  # time-out of a review; serve waits 5 s for the answer to its request


class ReviewResult(Enum):
    """The result of a review; the value is the sentence for the sender."""

    ALLOWED = "allowed"
    UNAUTHENTICATED = "the token is not valid for this console"
    FORBIDDEN = "the account of the token may not send records"
    BUSY = "too many tokens are being reviewed: try again"
    UNAVAILABLE = "the API server cannot review the token now: try again"


class Review(NamedTuple):
    """A result with a detail for the log. The sender does not get the detail."""

    result: ReviewResult
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ReviewLimits:
    """Limits of the reviews. Times are in seconds."""

    allowed_seconds: float = 60.0  # how long an allowed token is remembered
    rejected_seconds: float = 5.0  # how long a rejected token is remembered
    tokens: int = 256  # remembered, of each result
    sources: int = 1024  # addresses with a rate limit of their own
    in_flight: int = 16  # concurrent reviews
    in_flight_per_source: int = 4
    burst: float = 20.0  # reviews of unknown tokens in a burst, per source
    per_second: float = 5.0  # reviews of unknown tokens on average, per source


@dataclass(slots=True)
class _Source:
    """The reviews that one source address caused."""

    left: float  # reviews of unknown tokens, from 0 to `ReviewLimits.burst`
    refilled: float  # time of the last refill, in seconds of the clock
    in_flight: int = 0


class _User(BaseModel):
    username: str = ""


class _Status(BaseModel):
    authenticated: bool = False
    user: _User = _User()
    audiences: list[str] = []
    error: str = ""


class _TokenReview(BaseModel):
    status: _Status


class TokenReviewer:
    """Reviews tokens. A token is allowed if it is for `audience` and belongs to one of the `users`.

    A user is for example `system:serviceaccount:berth-system:berth`. `clock` returns seconds. The limits bound the
    load that senders of unknown tokens cause on the API server. Each source address has a rate and a share of the
    concurrent reviews, so a stranger on another address cannot block serve. Serve's token is unknown after a restart
    of the console and after a rotation. Tokens that were allowed before do not count against the rate.
    """

    def __init__(
        self,
        client: ApiClient,
        audience: str,
        users: frozenset[str],
        clock: Callable[[], float],
        limits: ReviewLimits | None = None,
    ) -> None:
        self._client = client
        self._audience = audience
        self._users = users
        self._clock = clock
        self._limits = limits = limits or ReviewLimits()
        self._allowed: TTLCache[bytes, Review] = TTLCache(limits.tokens, limits.allowed_seconds, clock)
        self._rejected: TTLCache[bytes, Review] = TTLCache(limits.tokens, limits.rejected_seconds, clock)
        self._known: LRUCache[bytes, None] = LRUCache(limits.tokens)  # tokens that were allowed before
        self._sources: LRUCache[str, _Source] = LRUCache(limits.sources)  # by address
        self._in_flight = 0

    @property
    def remembered(self) -> int:
        """How many tokens are remembered."""
        return len(self._allowed) + len(self._rejected)

    @property
    def sources(self) -> int:
        """How many source addresses are remembered."""
        return len(self._sources)

    async def review(self, token: str, source: str) -> Review:
        """Review whether the sender with this token, at the address `source`, may send records."""
        if not token or len(token) > _MOST_TOKEN:
            return Review(ReviewResult.UNAUTHENTICATED, "no token, or no bearer token")
        digest = hashlib.sha256(token.encode()).digest()
        found = self._allowed.get(digest) or self._rejected.get(digest)
        if found is not None:
            return found
        sender = self._source(source)
        if (
            self._in_flight >= self._limits.in_flight
            or sender.in_flight >= self._limits.in_flight_per_source
            or not (digest in self._known or self._take_one(sender))
        ):
            return Review(ReviewResult.BUSY)
        self._in_flight += 1
        sender.in_flight += 1
        try:
            found = await self._ask(token)
        finally:
            self._in_flight -= 1
            sender.in_flight -= 1
        self._remember(digest, found)
        return found

    def _remember(self, digest: bytes, review: Review) -> None:
        if review.result is ReviewResult.ALLOWED:
            self._allowed[digest], self._known[digest] = review, None
        elif review.result is not ReviewResult.UNAVAILABLE:
            self._rejected[digest] = review
            self._known.pop(digest, None)

    def _source(self, address: str) -> _Source:
        source = self._sources.get(address)
        if source is None:
            source = self._sources[address] = _Source(self._limits.burst, self._clock())
        return source

    def _take_one(self, source: _Source) -> bool:
        """Take a unit from the source's rate limit of unknown tokens. False if none is left."""
        now, limits = self._clock(), self._limits
        source.left = min(limits.burst, source.left + (now - source.refilled) * limits.per_second)
        source.refilled = now
        if source.left < 1:
            return False
        source.left -= 1
        return True

    async def _ask(self, token: str) -> Review:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [self._audience]},
        }
        try:
            async with asyncio.timeout(_SECONDS):
                status = _TokenReview.model_validate(await self._client.post(_PATH, body)).status
        except (ClusterError, TimeoutError) as error:
            return Review(ReviewResult.UNAVAILABLE, str(error) or f"no answer within {_SECONDS:g} s")
        except ValidationError as error:
            return Review(ReviewResult.UNAVAILABLE, f"the answer is no TokenReview: {error}")
        return self._evaluate(status)

    def _evaluate(self, status: _Status) -> Review:
        if not status.authenticated or self._audience not in status.audiences:
            detail = status.error or "it is not for the audience of the console"
            return Review(ReviewResult.UNAUTHENTICATED, detail)
        if status.user.username not in self._users:
            return Review(ReviewResult.FORBIDDEN, status.user.username)
        return Review(ReviewResult.ALLOWED, status.user.username)
