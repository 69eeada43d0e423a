"""Taints and tolerations of devices (KEP-5055); those of nodes have the same meaning."""

from __future__ import annotations

from extender.model import Device, Taint, Toleration

_BLOCKING = frozenset({"NoSchedule", "NoExecute"})  # other effects do not block


def blocking_taint(device: Device, tolerations: tuple[Toleration, ...]) -> Taint | None:
    """The first taint that blocks the device and that no toleration covers, or None."""
    for taint in device.taints:
        if taint.effect in _BLOCKING and not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether a toleration covers a taint. An empty effect or key covers all effects or keys."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    match toleration.operator:
        case "" | "Equal":
            return toleration.value == taint.value
        case "Exists":
            return True
        case _:
            return False
