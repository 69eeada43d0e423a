"""Consumable capacity: what a request takes from a device, and whether it is left.

Amounts are nanos (10^-9). Source: k8s.io/dynamic-resource-allocation consumable capacity (KEP-5075).
"""

from __future__ import annotations

from collections.abc import Mapping

from extender.model.device import Capacity, Device, RequestPolicy
from extender.model.quantity import BINARY_SI, Quantity, from_int

Amounts = Mapping[str, int]
NOTHING: Amounts = {}


def consumption(device: Device, wanted: Mapping[str, Quantity] | None) -> dict[str, Quantity] | None:
    """What a request takes of every capacity of the device, rounded by its policies.

    None where the device cannot serve it: a name it does not have, or an amount its policy forbids.
    """
    asked = wanted or {}
    if any(name not in device.capacity for name in asked):
        return None
    taken: dict[str, Quantity] = {}
    for name, capacity in device.capacity.items():
        amount = _rounded(asked.get(name), capacity)
        if capacity.policy is not None and _violates(amount, capacity.policy):
            return None
        taken[name] = amount
    return taken


def fits(device: Device, taken: Mapping[str, Quantity], used: Amounts, using: Amounts) -> bool:
    """Whether the amounts are left after what is allocated and what this attempt takes already."""
    return all(
        used.get(name, 0) + using.get(name, 0) + amount.nanos <= device.capacity[name].value.nanos
        for name, amount in taken.items()
    )


def _rounded(asked: Quantity | None, capacity: Capacity) -> Quantity:
    policy = capacity.policy
    if asked is None:
        return policy.default if policy is not None and policy.default is not None else capacity.value
    if policy is None:
        return asked
    if policy.range_min is not None:
        return _in_range(asked, policy)
    return next((value for value in policy.valid_values if asked <= value), asked)


def _in_range(asked: Quantity, policy: RequestPolicy) -> Quantity:
    low, step = policy.range_min, policy.range_step
    assert low is not None
    if asked < low:
        return low
    if step is None or step.ceil() == 0:
        return asked
    steps = -(-(asked.ceil() - low.ceil()) // step.ceil())
    return from_int(low.ceil() + step.ceil() * steps, BINARY_SI)


def _violates(amount: Quantity, policy: RequestPolicy) -> bool:
    if policy.default is not None and amount == policy.default:
        return False
    if policy.has_range:
        too_much = policy.range_max is not None and amount > policy.range_max
        return too_much or _off_step(amount, policy)
    return bool(policy.valid_values) and amount not in policy.valid_values


def _off_step(amount: Quantity, policy: RequestPolicy) -> bool:
    step = policy.range_step
    if step is None or step.ceil() == 0:
        return False
    low = policy.range_min.ceil() if policy.range_min is not None else 0
    return (amount.ceil() - low) % step.ceil() != 0
