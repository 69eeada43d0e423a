"""Reports about devices with fields that Berth does not support yet. Berth never allocates such devices."""

from __future__ import annotations

from extender.allocation.inventory import Inventory
from extender.allocation.search_observer import Observer
from extender.model import members


def field_of(inventory: Inventory, bit: int) -> str:
    """The API name of the unsupported field of a device."""
    return inventory.devices[bit].device.node_allocatable


def report(inventory: Inventory, request: str, devices: int, observer: Observer) -> None:
    """Report the unsupported devices of a mask. The request matches them, but cannot have them."""
    for cause, mask in inventory.unsupported:
        for bit in members(devices & mask):
            observer.rejected(request, bit, cause, field_of(inventory, bit))
