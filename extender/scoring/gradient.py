"""Fragmentation for an expected mix of jobs: the free GPU capacity that jobs can no longer use (FGD, USENIX ATC'23).

A Host is the free CPU, memory and GPU capacity of a node; GPU capacity is in thousandths per GPU. A request mix has
shapes of jobs with their shares. The expected fragment of a host is the free GPU capacity that an average job of the
mix cannot use there. The gradient of a placement is the fragment that it adds; less is better.
"""

from __future__ import annotations

from typing import NamedTuple

from extender.model import WHOLE, RequestMix, RequestShape

STEP = 0.08  # GPUs; gradients are rounded to this, so that nearly equal ones count as equal (docs/quality.md)


class Host(NamedTuple):
    """The free capacity of a node. `gpus` are thousandths of each GPU, sorted; CPU and memory as in RequestShape."""

    model: str
    cpu: int
    memory: int
    gpus: tuple[int, ...]


def quantised(gradient: float) -> float:
    """The gradient, in thousandths, rounded to a multiple of STEP."""
    return round(gradient / WHOLE / STEP) * STEP * WHOLE


def fits(host: Host, shape: RequestShape) -> bool:
    """Whether the job fits on the host."""
    if shape.cpu > host.cpu or shape.memory > host.memory:
        return False
    if shape.gpus and shape.models and host.model not in shape.models:
        return False
    return sum(free >= shape.milli for free in host.gpus) >= shape.gpus


def fragment(host: Host, mix: RequestMix) -> float:
    """The expected unusable part of the free GPU capacity, in thousandths of a GPU."""
    free = sum(host.gpus)
    expected = 0.0
    for shape, share in mix:
        if not shape.gpus or not fits(host, shape):
            expected += share * free
        else:
            expected += share * sum(left for left in host.gpus if left < shape.milli)
    return expected
