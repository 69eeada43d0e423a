"""Which requests one device may serve, by features of the API server, taints and consumable capacity.

Amounts are nanos (10^-9). Sources: KEP-5055 for taints; KEP-5075 and k8s.io/dynamic-resource-allocation for capacity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from extender.api.claim_specs import DeviceRequest
from extender.api.nodes import Taint, Toleration
from extender.api.quantity import BINARY_SI, MAX_INT64, NANO, Quantity
from extender.api.resource_slices import Capacities, Capacity, Device, RequestPolicy, own_name
from extender.base.berth_errors import InvalidClaim

Amounts = Mapping[str, int]
NOTHING: Amounts = {}
_MILLI = NANO // 1000
_BLOCKING = frozenset({"NoSchedule", "NoExecute"})  # other effects do not block

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
    "1.37": "config_once",
}


@dataclass(frozen=True, slots=True)
class Features:
    """Features of the API server. All are on by default, because a server drops the fields of a disabled feature.

    `fractional_ranges` has no field of its own: before 1.37 the in-tree scheduler rounds ranges up to whole units.
    `corrected` is no feature: without it, admin access needs free counters and capacity, and a node may use an old
    generation of a pool. So it was in the in-tree scheduler of 1.36, whose answers the recorded cases have.
    `config_once` is no feature: without it, the config of an allocation has the form of 1.36, as in recorded cases.
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
    config_once: bool = True

    @classmethod
    def from_gates(cls, names: Iterable[str]) -> Features:
        """Features with only the named gates on; "1.37" is for `config_once`, "1.38" for `corrected`. Unknown names are
        ignored.
        """
        on = {_GATES[name] for name in names if name in _GATES}
        return cls(**{field.name: field.name in on for field in fields(cls)})

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


def consumption(
    device: Device, driver: str, wanted: Mapping[str, Quantity] | None, features: Features
) -> dict[str, Quantity] | None:
    """The amount that a request consumes of each capacity of the device, rounded by the policies of the device.

    None if the device lacks a requested capacity, or if its policy forbids the amount. Raises InvalidClaim.
    """
    asked = {own_name(name, driver): amount for name, amount in (wanted or {}).items()}
    if wanted is not None and len(asked) < len(wanted):
        twice = next(name for name in asked if name in wanted and f"{driver}/{name}" in wanted)
        raise InvalidClaim(f"capacity {twice} is requested as {twice} and as {driver}/{twice}")
    if any(name not in device.capacity for name in asked):
        return None
    taken: dict[str, Quantity] = {}
    for name, capacity in device.capacity.items():
        unit = _unit(capacity.policy) if features.fractional_ranges and capacity.policy is not None else NANO
        amount = _rounded(asked.get(name), capacity, unit)
        if capacity.policy is not None and _violates(amount, capacity.policy, unit):
            return None
        taken[name] = amount
    return taken


def published(device: Device, driver: str, taken: Mapping[str, Quantity]) -> dict[str, Quantity]:
    """The amounts under the names that the driver publishes, which it looks up in the allocation."""
    return {f"{driver}/{name}" if device.capacity[name].qualified else name: taken[name] for name in taken}


def refusal(
    have: Capacities, driver: str, wanted: Mapping[str, Quantity] | None, features: Features, *, pays: bool = True
) -> str:
    """Why a free device with these capacities cannot serve a request, as a clause; '' if it can.

    `pays`: the request takes the amounts, see Features.pays.
    """
    asked = {own_name(name, driver): amount for name, amount in (wanted or {}).items()}
    for name in sorted(asked):
        if name not in have:
            return f"a device has no capacity {name}" + (f", but {', '.join(sorted(have))}" if have else "")
    for name, capacity in sorted(have.items()):
        policy = capacity.policy
        unit = _unit(policy) if features.fractional_ranges and policy is not None else NANO
        amount = _rounded(asked.get(name), capacity, unit)
        if policy is not None and _violates(amount, policy, unit):
            return f"one request may have {_allowed(policy, name)}, not {asked.get(name, amount)}"
        if pays and amount > capacity.value:
            rounded = f", and {asked[name]} is rounded up to" if asked.get(name, amount) != amount else ", not"
            return f"a device has {capacity.value} of {name}{rounded} {amount}"
    return ""


def _allowed(policy: RequestPolicy, name: str) -> str:
    """The amounts of a capacity that one request may have, as text."""
    if not policy.has_range:
        *others, last = map(str, policy.valid_values)
        return f"{', '.join(others)} or {last} of {name}" if others else f"{last} of {name}"
    low, most, step = policy.range_min, policy.range_max, policy.range_step
    steps = f", in steps of {step}" if step is not None and step.nanos else ""
    if most is None:
        return f"{name}{steps}"
    if step is not None and step.nanos:
        start = low.nanos if low is not None else 0
        most = Quantity(start + (most.nanos - start) // step.nanos * step.nanos, most.form)
    return f"{most} of {name} at most{steps}"


def fits(device: Device, taken: Mapping[str, Quantity], used: Amounts, using: Amounts) -> bool:
    """Whether the device has the amounts `taken` besides `used` (allocated) and `using` (consumed by this search)."""
    return all(
        used.get(name, 0) + using.get(name, 0) + amount.nanos <= device.capacity[name].value.nanos
        for name, amount in taken.items()
    )


def _unit(policy: RequestPolicy) -> int:
    """The unit of the policy's range, in nanos: 1, or 1/1000 if an amount of the range is fractional.

    The feature gate is DRAFractionalCapacityRange, which is on from 1.37.
    """
    amounts = [amount.nanos for amount in (policy.range_min, policy.range_max, policy.range_step) if amount is not None]
    exact = all(nanos % _MILLI == 0 and nanos // _MILLI <= MAX_INT64 for nanos in amounts)
    return _MILLI if exact and any(nanos % NANO for nanos in amounts) else NANO


def _units(amount: Quantity, unit: int) -> int:
    """The amount in units, rounded up."""
    return -(-amount.nanos // unit)


def _rounded(asked: Quantity | None, capacity: Capacity, unit: int) -> Quantity:
    policy = capacity.policy
    if asked is None:
        return policy.default if policy is not None and policy.default is not None else capacity.value
    if policy is None:
        return asked
    if policy.range_min is not None:
        return _in_range(asked, policy, unit)
    return next((value for value in policy.valid_values if asked <= value), asked)


def _in_range(asked: Quantity, policy: RequestPolicy, unit: int) -> Quantity:
    low, step = policy.range_min, policy.range_step
    assert low is not None
    if asked < low:
        return low
    if step is None or not step.nanos:
        return asked
    start, width = _units(low, unit), _units(step, unit)
    steps = -(-(_units(asked, unit) - start) // width)
    form = BINARY_SI if unit == NANO else step.form  # the reference prints them in this format
    return Quantity((start + width * steps) * unit, form, 0 if unit == NANO else -3)


def _violates(amount: Quantity, policy: RequestPolicy, unit: int) -> bool:
    if policy.default is not None and amount == policy.default:
        return False
    if policy.has_range:
        too_much = policy.range_max is not None and amount > policy.range_max
        return too_much or _off_step(amount, policy, unit)
    return bool(policy.valid_values) and amount not in policy.valid_values


def _off_step(amount: Quantity, policy: RequestPolicy, unit: int) -> bool:
    step = policy.range_step
    if step is None or not step.nanos:
        return False
    low = _units(policy.range_min, unit) if policy.range_min is not None else 0
    return (_units(amount, unit) - low) % _units(step, unit) != 0


def short_of(device: Device, taken: Mapping[str, Quantity], used: Amounts, using: Amounts) -> str:
    """The first capacity of which too little is available, as text; '' if all are sufficient."""
    for name, amount in taken.items():
        have = device.capacity[name].value
        left = have.nanos - used.get(name, 0) - using.get(name, 0)
        if amount.nanos > left:
            return f"{name}: asks for {amount}, has {Quantity(max(left, 0), have.form)} of {have}"
    return ""
