"""The features of the DRA API that the cluster has enabled, and their Kubernetes feature gates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from extender.model import DeviceRequest, InvalidClaim

_GATES = {
    "DRAAdminAccess": "admin_access",
    "DRAPrioritizedList": "prioritized_list",
    "DRAPartitionableDevices": "partitionable",
    "DRADeviceTaints": "taints",
    "DRADeviceBindingConditions+DRAResourceClaimDeviceStatus": "binding_conditions",
    "DRAConsumableCapacity": "consumable_capacity",
    "DRAListTypeAttributes": "list_attributes",
    "DRAFractionalCapacityRange": "fractional_ranges",
    "1.38": "corrected",
}


@dataclass(frozen=True, slots=True)
class Features:
    """Features of the API server. All are on by default, because a server drops the fields of a disabled feature.

    `fractional_ranges` has no field of its own: before 1.37 the in-tree scheduler rounds ranges up to whole units.
    `corrected` is no feature: without it, admin access needs free counters and capacity, and a node may use an old
    generation of a pool. So it was in the in-tree scheduler of 1.36, whose answers the recorded cases have.
    """

    admin_access: bool = True
    prioritized_list: bool = True
    partitionable: bool = True
    taints: bool = True
    binding_conditions: bool = True
    consumable_capacity: bool = True
    list_attributes: bool = True
    fractional_ranges: bool = True
    corrected: bool = True

    def pays(self, request: DeviceRequest) -> bool:
        """Whether the request takes counters and capacity of its devices."""
        return not (request.admin_access and self.corrected)

    def check(self, request: DeviceRequest, where: str) -> None:
        """Raises InvalidClaim if the request needs a disabled feature. `where` names claim and request."""
        if "/" in request.name and not self.prioritized_list:
            raise InvalidClaim(f"{where}: has subrequests, but the DRAPrioritizedList feature is disabled")
        if request.capacity is not None and not self.consumable_capacity:
            raise InvalidClaim(f"{where}: has capacity requests, but the DRAConsumableCapacity feature is disabled")
        if request.admin_access and not self.admin_access:
            raise InvalidClaim(f"{where}: admin access is requested, but the feature is disabled")


def from_gates(names: Iterable[str]) -> Features:
    """Features with only the named gates on; "1.38" is for `corrected`. Unknown names are ignored."""
    on = {_GATES[name] for name in names if name in _GATES}
    return Features(**{field.name: field.name in on for field in fields(Features)})
