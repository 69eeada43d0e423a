"""Fragmentation against expected demand: how much free GPU the typical job can no longer use (FGD, USENIX ATC'23).

A host is what it has left: CPU, memory and free GPU per card in thousandths. A shape is a kind of job with its share of
the demand. The expected fragment of a host is the free GPU that a job drawn from the demand could not use there; a
placement is judged by how much it adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from extender.model import WHOLE, RequestShape

STEP = 0.08  # GPUs: gradients closer than this are equal, and what follows in the rank decides (docs/quality.md)


class Host(NamedTuple):
    """What a node has left. `gpus` is sorted: cards are interchangeable. `model` names the kind of GPU."""

    model: str
    cpu: int
    memory: int
    gpus: tuple[int, ...]


class Rank(NamedTuple):
    """How good a placement is; the least is best."""

    gradient: int  # added fragment, in STEPs
    scarcity: float  # how much others insist on this model
    gpu_left: int
    cpu_left: int


def scarcity(demand: Iterable[tuple[RequestShape, float]], capacity: Mapping[str, int]) -> dict[str, float]:
    """By model, how much of its GPUs is expected to be asked for by jobs that name models."""
    found = dict.fromkeys(capacity, 0.0)
    for shape, share in demand:
        for model in shape.models & capacity.keys():
            found[model] += share * shape.gpus * shape.milli / len(shape.models) / capacity[model]
    return found


def quantised(gradient: float) -> float:
    """The gradient, in thousandths, in STEPs."""
    return round(gradient / WHOLE / STEP) * STEP * WHOLE


def rank(before: float, after: float, host: Host, shape: RequestShape, scarce: Mapping[str, float]) -> Rank:
    """The rank of a placement that leaves `host`; fragments before and after in thousandths."""
    free_choice = shape.gpus and host.model not in shape.models
    return Rank(
        round((after - before) / WHOLE / STEP),
        scarce.get(host.model, 0.0) if free_choice else 0.0,
        sum(host.gpus),
        host.cpu,
    )


def fits(host: Host, shape: RequestShape) -> bool:
    """Whether the host can take the job."""
    if shape.cpu > host.cpu or shape.memory > host.memory:
        return False
    if shape.gpus and shape.models and host.model not in shape.models:
        return False
    return sum(free >= shape.milli for free in host.gpus) >= shape.gpus


def fragment(host: Host, demand: Iterable[tuple[RequestShape, float]]) -> float:
    """The expected unusable part of the free GPUs, in thousandths."""
    free = sum(host.gpus)
    expected = 0.0
    for shape, share in demand:
        if not shape.gpus or not fits(host, shape):
            expected += share * free
        else:
            expected += share * sum(left for left in host.gpus if left < shape.milli)
    return expected


def placements(host: Host, shape: RequestShape) -> list[Host]:
    """The distinct hosts that result from taking the job; empty where it does not fit."""
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
