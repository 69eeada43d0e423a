"""Limits of an HTTP server, the rate of requests, and the log of rejected requests and connections."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from cachetools import LRUCache

_MOST_CLIENTS = 1024  # addresses with a rate of their own; a client that is forgotten begins with a full bucket
_BURST = 5  # lines in a burst, per cause
_LINE_SECONDS = 10.0  # per line after a burst


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of one listening address. Sizes are bytes, times are seconds."""

    connections: int = 512  # each concurrent bind needs one; a process often has 1024 file descriptors
    head_bytes: int = 16 * 1024  # request line and headers; kube-scheduler's take 200 bytes
    head_seconds: float = 10.0  # from the first byte of a request to the end of its headers
    # An unfinished handshake takes 80 KB and does not count as a connection. kube-scheduler's takes some ms.
    handshakes: int = 256
    handshake_seconds: float = 2.0
    # Longer than the 90 s after which kube-scheduler closes idle connections: no request meets a closed socket.
    idle_seconds: float = 120.0
    body_seconds: float = 10.0  # until a body has arrived; kube-scheduler itself times out after 5
    bodies_bytes: int = 64 * 1024 * 1024  # of all incomplete bodies together
    unsent_bytes: int = 256 * 1024 * 1024  # of all answers that their clients have not taken yet, beside the newest
    write_seconds: float = 30.0  # in which a client takes nothing of an answer
    end_seconds: int = 20  # for running requests at shutdown; a pod gets 30 s to terminate
    requests_per_second: int | None = None  # of one client address; as many more in a burst
    # The same for its connections: more are closed at once, so that others do not wait for their turn.
    connections_per_second: int | None = None


VERBS = HttpLimits()
# kubelet and a Prometheus send one request in a second each, at most. 20 take 0.3 % of the event loop's time.
PROBES = HttpLimits(connections=64, bodies_bytes=1024 * 1024, requests_per_second=20, connections_per_second=100)
# Pages end after 1 s, since the stream of an open page does not end by itself.
# The claims of 5,000 full nodes of 8 GPUs have 9 MB. The users of one port forward share an address.
PAGES = HttpLimits(
    connections=256,
    bodies_bytes=16 * 1024 * 1024,
    unsent_bytes=64 * 1024 * 1024,
    end_seconds=1,
    requests_per_second=100,
    connections_per_second=100,
)


class ClientRates:
    """Limits the requests or connections of each client address, with a token bucket for each address.

    One client's flood takes no token of another: kubelet must get its answers, or it restarts the container. `clock`
    returns seconds.
    """

    def __init__(self, per_second: int, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._clock = clock
        self._buckets: LRUCache[str, _Bucket] = LRUCache(_MOST_CLIENTS)

    def __len__(self) -> int:
        """How many addresses are remembered."""
        return len(self._buckets)

    def take(self, client: str) -> bool:
        """Count a request or connection of this address. False if it is one too many."""
        now, bucket = self._clock(), self._buckets.get(client)
        if bucket is None:
            bucket = self._buckets[client] = _Bucket(self._per_second, now)
        return bucket.take(now, self._per_second, self._per_second)


class RejectionLog:
    """Logs rejected requests and connections at a limited rate, with a token bucket for each cause.

    `left_out` of a line counts the lines of its cause that were suppressed before it. `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._log = structlog.get_logger("berth.web")
        self._buckets: dict[str, _Bucket] = {}

    def note(self, cause: str, **facts: object) -> None:
        """Log a rejection. `cause` must be a constant, so that there are few buckets. `facts` are more log fields."""
        now = self._clock()
        bucket = self._buckets.setdefault(cause, _Bucket(_BURST, now))
        if not bucket.take(now, 1 / _LINE_SECONDS, _BURST):
            bucket.left_out += 1
            return
        self._log.warning("rejected", because=cause, left_out=bucket.left_out, **facts)
        bucket.left_out = 0


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled: float  # time of the last refill, in seconds of the clock
    left_out: int = 0

    def take(self, now: float, per_second: float, most: float) -> bool:
        """Refill the bucket up to `most` and take a token. False if none is left."""
        self.tokens = min(self.tokens + (now - self.filled) * per_second, most)
        self.filled = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True
