"""The expected mix of jobs: shapes of requests with their shares."""

from __future__ import annotations

from typing import NamedTuple

WHOLE = 1000  # thousandths of a GPU


class RequestShape(NamedTuple):
    """What a job asks for: `gpus` GPUs of `milli` thousandths each; 1000 if `gpus` is above 1."""

    gpus: int
    milli: int


RequestMix = tuple[tuple[RequestShape, float], ...]
"""(shape, share of all jobs) pairs. The shares add up to about 1."""


def whole_gpus(count: int) -> RequestShape:
    """The shape of a job with `count` whole GPUs."""
    return RequestShape(count, WHOLE)


# The mix before Berth has seen any job: the usual sizes on a machine with eight GPUs.
DEFAULT_MIX: RequestMix = tuple((whole_gpus(count), 0.25) for count in (1, 2, 4, 8))
