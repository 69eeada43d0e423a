"""What jobs are expected to ask for: shapes of requests with their shares."""

from __future__ import annotations

from typing import NamedTuple

WHOLE = 1000  # thousandths of a GPU


class RequestShape(NamedTuple):
    """What a job asks for: `gpus` cards of `milli` thousandths each (whole ones when more than one)."""

    cpu: int
    memory: int
    gpus: int
    milli: int
    models: frozenset[str] = frozenset()  # empty: any


RequestMix = tuple[tuple[RequestShape, float], ...]
"""Shapes with the share of jobs that have them; the shares add up to about 1."""


def whole_gpus(count: int) -> RequestShape:
    """So many whole GPUs."""
    return RequestShape(0, 0, count, WHOLE)


# Before anything was learned: every size of job that a machine of eight GPUs is bought for.
DEFAULT_MIX: RequestMix = tuple((whole_gpus(count), 0.25) for count in (1, 2, 4, 8))
