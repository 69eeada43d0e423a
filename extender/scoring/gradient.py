"""Fragmentation for an expected mix of jobs: the free GPU capacity that jobs can no longer use (FGD, USENIX ATC'23).

A Host is the free CPU, memory and GPU capacity of a node; GPU capacity is in thousandths per GPU. A request mix has
shapes of jobs with their shares. The expected fragment of a host is the free GPU capacity that an average job of the
mix cannot use there. The gradient of a placement is the fragment that it adds; less is better.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from extender.model import WHOLE, RequestShape

STEP = 0.08  # GPUs; gradients are rounded to this, then the next fields of Rank decide (docs/quality.md)


class Host(NamedTuple):
    """The free capacity of a node. `gpus` are thousandths of each GPU, sorted; CPU and memory as in RequestShape."""

    model: str
    cpu: int
    memory: int
    gpus: tuple[int, ...]


class Rank(NamedTuple):
    """The rank of a placement. The smallest is best."""

    gradient: int  # added fragment, as a number of STEPs
    scarcity: float  # demand of other jobs for this GPU model, see `scarcity`
    gpu_left: int
    cpu_left: int


def scarcity(demand: Iterable[tuple[RequestShape, float]], capacity: Mapping[str, int]) -> dict[str, float]:
    """GPU model to the expected demand of jobs that name models, relative to the number of its GPUs."""
    found = dict.fromkeys(capacity, 0.0)
    for shape, share in demand:
        for model in shape.models & capacity.keys():
            found[model] += share * shape.gpus * shape.milli / len(shape.models) / capacity[model]
    return found


def quantised(gradient: float) -> float:
    """The gradient, in thousandths, rounded to a multiple of STEP."""
    return round(gradient / WHOLE / STEP) * STEP * WHOLE


def rank(before: float, after: float, host: Host, shape: RequestShape, scarce: Mapping[str, float]) -> Rank:
    """The rank of a placement. `host` is the rest after it; fragments `before` and `after` are in thousandths."""
    free_choice = shape.gpus and host.model not in shape.models
    return Rank(
        round((after - before) / WHOLE / STEP),
        scarce.get(host.model, 0.0) if free_choice else 0.0,
        sum(host.gpus),
        host.cpu,
    )


def fits(host: Host, shape: RequestShape) -> bool:
    """Whether the job fits on the host."""
    if shape.cpu > host.cpu or shape.memory > host.memory:
        return False
    if shape.gpus and shape.models and host.model not in shape.models:
        return False
    return sum(free >= shape.milli for free in host.gpus) >= shape.gpus


def fragment(host: Host, demand: Iterable[tuple[RequestShape, float]]) -> float:
    """The expected unusable part of the free GPU capacity, in thousandths of a GPU."""
    free = sum(host.gpus)
    expected = 0.0
    for shape, share in demand:
        if not shape.gpus or not fits(host, shape):
            expected += share * free
        else:
            expected += share * sum(left for left in host.gpus if left < shape.milli)
    return expected


def placements(host: Host, shape: RequestShape) -> list[Host]:
    """The distinct possible rests of the host after the job; [] if the job does not fit."""
    if not fits(host, shape):
        return []
    cpu, memory = host.cpu - shape.cpu, host.memory - shape.memory
    if not shape.gpus:
        return [Host(host.model, cpu, memory, host.gpus)]
    if shape.milli == WHOLE:
        left = list(host.gpus)
        for _ in range(shape.gpus):
            left[left.index(WHOLE)] = 0
        return [Host(host.model, cpu, memory, tuple(sorted(left)))]
    found = []
    for amount in sorted({free for free in host.gpus if free >= shape.milli}):
        left = list(host.gpus)
        left[left.index(amount)] -= shape.milli
        found.append(Host(host.model, cpu, memory, tuple(sorted(left))))
    return found
