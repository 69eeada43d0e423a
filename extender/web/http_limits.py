"""Limits of an HTTP server, the rate of requests, and the log of rejected requests and connections."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from extender.base.timers import TokenBuckets

_LINES_AT_ONCE, _LINE_SECONDS = 5, 10.0  # of the log, for each cause of a rejection


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of one listening address. Sizes are bytes, times are seconds."""

    connections: int = 512  # each concurrent bind needs one; a process often has 1024 file descriptors
    head_bytes: int = 16 * 1024  # request line and headers; kube-scheduler's take 200 bytes
    # An unfinished handshake takes 80 KB and does not count as a connection. kube-scheduler's takes some ms.
    handshakes: int = 256
    handshake_seconds: float = 2.0
    # In which a client sends the head of its next request. Longer than the 90 s after which kube-scheduler closes idle
    # connections: no request meets a closed socket.
    idle_seconds: float = 120.0
    body_seconds: float = 10.0  # until a body has arrived; kube-scheduler itself times out after 5
    bodies_bytes: int = 64 * 1024 * 1024  # of all incomplete bodies together
    unsent_bytes: int = 256 * 1024 * 1024  # of all answers that their clients have not taken yet, beside the newest
    write_seconds: float = 30.0  # in which a client takes nothing of an answer
    end_seconds: int = 20  # for running requests at shutdown; a pod gets 30 s to terminate
    # New connections and requests of one client address in a second; as many more in a burst. A request beyond them
    # gets 429; a connection is closed at once, so that others do not wait for their turn.
    per_client: int | None = None


VERBS = HttpLimits()
# kubelet and a Prometheus send one request in a second each, at most.
PROBES = HttpLimits(connections=64, bodies_bytes=1024 * 1024, per_client=100)
# Pages end after 1 s: a page asks again.
# The claims of 5,000 full nodes of 8 GPUs have 9 MB. The users of one port forward share an address.
PAGES = HttpLimits(
    connections=256, bodies_bytes=16 * 1024 * 1024, unsent_bytes=64 * 1024 * 1024, end_seconds=1, per_client=200
)


class RejectionLog:
    """Logs rejected requests and connections at a limited rate for each cause.

    `left_out` of a line counts the lines of its cause that were suppressed before it. `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._log = structlog.get_logger("berth.web")
        self._lines: TokenBuckets[str] = TokenBuckets(_LINES_AT_ONCE, _LINE_SECONDS, remembered=64)
        self._left_out: Counter[str] = Counter()

    def note(self, cause: str, **facts: object) -> None:
        """Log a rejection. `cause` must be a constant, so that there are few buckets. `facts` are more log fields."""
        if not self._lines.take(cause, self._clock()):
            self._left_out[cause] += 1
            return
        self._log.warning("rejected", because=cause, left_out=self._left_out.pop(cause, 0), **facts)
