"""The steps of a search that a look at one device costs. A step stands for some 3 us."""

from __future__ import annotations

from extender.model import Device, DeviceRequest

_TOLERATED_PER_STEP = 32  # pairs of a taint and a toleration
_COUNTERS_PER_STEP = 8


def more_steps(device: Device, request: DeviceRequest) -> int:
    """The steps beside the first one; 0 for the devices of real drivers, or a few."""
    found = device.capacity.steps
    if device.taints:
        found += len(device.taints) * len(request.tolerations) // _TOLERATED_PER_STEP
    if device.consumes:
        found += sum(len(use.counters) for use in device.consumes) // _COUNTERS_PER_STEP
    return found
