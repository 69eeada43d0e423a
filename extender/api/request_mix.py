"""The expected mix of jobs: shapes of requests with their shares."""

from __future__ import annotations

from typing import NamedTuple

WHOLE = 1000  # thousandths of a GPU


class RequestShape(NamedTuple):
    """The resources of a job: `gpus` GPUs of `milli` thousandths each; 1000 if `gpus` is above 1."""

    cpu: int
    memory: int
    gpus: int
    milli: int
    models: frozenset[str] = frozenset()  # GPU models that the job accepts; empty: any


RequestMix = tuple[tuple[RequestShape, float], ...]
"""(shape, share of all jobs) pairs. The shares add up to about 1."""


def whole_gpus(count: int) -> RequestShape:
    """The shape of a job with `count` whole GPUs."""
    return RequestShape(0, 0, count, WHOLE)


# The mix before Berth has seen any job: the usual sizes on a machine with eight GPUs.
DEFAULT_MIX: RequestMix = tuple((whole_gpus(count), 0.25) for count in (1, 2, 4, 8))
