"""What pods take of a node besides devices, as NodeResourcesFit of kube-scheduler counts it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from extender.api.fields import Json, amount, inner, many, string
from extender.api.quantity import NANO
from extender.base.berth_errors import WireError


class Amounts(NamedTuple):
    """CPU in thousandths of a core, memory in bytes, and pods."""

    cpu: int = 0
    ram: int = 0
    pods: int = 0

    def plus(self, other: Amounts) -> Amounts:
        """Both together."""
        return Amounts(self.cpu + other.cpu, self.ram + other.ram, self.pods + other.pods)

    def minus(self, other: Amounts) -> Amounts:
        """These amounts less the other ones. One may be below zero: kube-scheduler evicts no running pod for it."""
        return Amounts(self.cpu - other.cpu, self.ram - other.ram, self.pods - other.pods)

    def has(self, asked: Amounts) -> bool:
        """Whether a pod that asks for these amounts fits."""
        enough = (not asked.cpu or self.cpu >= asked.cpu) and (not asked.ram or self.ram >= asked.ram)
        return enough and self.pods >= asked.pods


MAX_CPU = 10**9 - 1  # thousandths of a core of a node or a pod: a tenant may write any number
NO_LIMIT = Amounts(1 << 62, 1 << 62, 1 << 62)  # of a node that does not say what it has
_FACTORS = {"cpu": 1000, "memory": 1, "pods": 1}


def requests_of(pod: Json) -> Amounts:
    """What a pod requests of a node, and its place there. Raises WireError."""
    spec = inner(pod, "spec", "")
    own, overhead = inner(spec, "resources", "spec"), inner(spec, "overhead", "spec")
    asked, limits = (inner(own, kind, "spec.resources") for kind in ("requests", "limits"))  # of the pod as a whole
    init = many(
        spec,
        "initContainers",
        "spec",
        lambda one, path: (_asked(one, path), string(one, "restartPolicy", path) == "Always"),
    )
    containers = many(spec, "containers", "spec", _asked)

    def requested(name: str) -> int:
        of_containers = _of_containers(name, init, containers) or _amount_of(limits, name)
        return (_amount_of(asked, name) if name in asked else of_containers) + _amount_of(overhead, name)

    return Amounts(requested("cpu"), requested("memory"), 1)


def _of_containers(name: str, init: Iterable[tuple[Json, bool]], containers: Iterable[Json]) -> int:
    """The most that the containers have at a time.

    Init containers run one after the other, before all others, and only sidecars among them run on.
    """
    most = sidecars = 0
    for asked, is_sidecar in init:
        own = _amount_of(asked, name)
        most = max(most, sidecars + own)
        sidecars += own if is_sidecar else 0
    return max(most, sidecars + sum(_amount_of(asked, name) for asked in containers))


def allocatable_of(node: Json) -> Amounts:
    """What a node offers to pods. An amount that it does not say has no limit. Raises WireError."""
    offered = inner(inner(node, "status", ""), "allocatable", "status")
    return Amounts(
        *(
            _amount(offered[name], name) if name in offered else most
            for name, most in zip(_FACTORS, NO_LIMIT, strict=True)
        )
    )


def readable_cpu(amounts_of: Callable[[Json], Amounts], obj: Json) -> int:
    """The CPU that `requests_of` or `allocatable_of` finds, from 0 to MAX_CPU. 0 if it says none, or is not readable.

    Only the order of nodes depends on it, so it must not make a pod or a node unreadable.
    """
    try:
        cpu = amounts_of(obj).cpu
    except WireError:
        return 0
    return 0 if cpu == NO_LIMIT.cpu else min(max(cpu, 0), MAX_CPU)


def _amount(value: object, name: str) -> int:
    return amount(value, name).nanos * _FACTORS[name] // NANO


def _amount_of(amounts: Json, name: str) -> int:
    return _amount(amounts[name], name) if name in amounts else 0


def _asked(obj: Json, path: str) -> Json:
    """The requests of a container. A limit without a request becomes one in the API server."""
    resources = inner(obj, "resources", path)
    return inner(resources, "limits", f"{path}.resources") | inner(resources, "requests", f"{path}.resources")
