"""The taints that DeviceTaintRules add to the devices of a slice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from extender.model import Slice, TaintRule


def tainted(slice_: Slice, rules: Iterable[TaintRule]) -> Slice:
    """The slice with the taints of all matching rules; the same object if no rule matches."""
    matching = [rule for rule in rules if rule.matches_pool(slice_.pool)]  # most rules are about other pools
    if not matching:
        return slice_
    added = {
        device.name: tuple(rule.taint for rule in matching if rule.matches(slice_.pool, device.name))
        for device in slice_.devices
    }
    if not any(added.values()):
        return slice_
    devices = tuple(
        replace(device, taints=device.taints + added[device.name]) if added[device.name] else device
        for device in slice_.devices
    )
    return replace(slice_, devices=devices)
