"""Which parts of the DRA API the cluster has: the names of Kubernetes' feature gates, as the allocator sees them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

_GATES = {
    "DRAAdminAccess": "admin_access",
    "DRAPrioritizedList": "prioritized_list",
    "DRAPartitionableDevices": "partitionable",
    "DRADeviceTaints": "taints",
    "DRADeviceBindingConditions+DRAResourceClaimDeviceStatus": "binding_conditions",
    "DRAConsumableCapacity": "consumable_capacity",
    "DRAListTypeAttributes": "list_attributes",
    "DRAFractionalCapacityRange": "fractional_ranges",
}


@dataclass(frozen=True, slots=True)
class Features:
    """All on: a server where a gate is off drops its fields, so that nothing asks for them. Only fractional ranges are
    fields of every version: before 1.37 the in-tree scheduler rounds them up to whole units."""

    admin_access: bool = True
    prioritized_list: bool = True
    partitionable: bool = True
    taints: bool = True
    binding_conditions: bool = True
    consumable_capacity: bool = True
    list_attributes: bool = True
    fractional_ranges: bool = True


def from_gates(names: Iterable[str]) -> Features:
    """Only the named gates are on; names Berth does not know are ignored."""
    on = {_GATES[name] for name in names if name in _GATES}
    return Features(**{field.name: field.name in on for field in fields(Features)})
