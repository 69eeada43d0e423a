"""What one address takes from those who connect to it, and the log of what it refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

_BURST = 5  # lines at once for one cause
_LINE_SECONDS = 10.0  # for each further line


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of one listening address. Sizes are bytes, times are seconds."""

    connections: int = 512  # a burst of binds has one each; a process often has no more than 1024 descriptors
    head_bytes: int = 16 * 1024  # request line and headers; kube-scheduler's take 200 bytes
    head_seconds: float = 10.0  # from the first byte of a request to the end of its headers, and for a TLS handshake
    # kube-scheduler closes idle connections after 90: ours live longer, or a request meets a closing socket.
    idle_seconds: float = 120.0
    body_seconds: float = 10.0  # for a body to arrive; kube-scheduler itself gives up after 5
    bodies_bytes: int = 64 * 1024 * 1024  # of all bodies that have arrived in part
    write_seconds: float = 30.0  # for a client to take an answer
    end_seconds: int = 20  # for answers under way when the process ends; a pod gets 30 s to terminate


VERBS = HttpLimits()
PROBES = HttpLimits(connections=64, bodies_bytes=1024 * 1024)
RECORDS = HttpLimits(connections=64, bodies_bytes=16 * 1024 * 1024)
PAGES = HttpLimits(connections=256, bodies_bytes=16 * 1024 * 1024, end_seconds=1)  # an open page never ends by itself


class RefusalLog:
    """Warnings about refused requests and connections, at a limited rate: a token bucket for each cause. A line says
    how many of its cause were left out before it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._log = structlog.get_logger("berth.web")
        self._buckets: dict[str, _Bucket] = {}

    def note(self, cause: str, **facts: object) -> None:
        """A refusal. Causes are texts of the code, so that there are few buckets; facts are for the line."""
        now = self._clock()
        bucket = self._buckets.setdefault(cause, _Bucket(_BURST, now))
        bucket.tokens = min(bucket.tokens + (now - bucket.filled) / _LINE_SECONDS, _BURST)
        bucket.filled = now
        if bucket.tokens < 1:
            bucket.left_out += 1
            return
        bucket.tokens -= 1
        self._log.warning("refused", because=cause, left_out=bucket.left_out, **facts)
        bucket.left_out = 0


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled: float  # when tokens were added last
    left_out: int = 0
