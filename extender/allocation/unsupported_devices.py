"""Devices with fields that Berth does not support yet: never allocated, and told by name where a request wants them."""

from __future__ import annotations

from extender.allocation.pools import Inventory
from extender.allocation.search_observer import Observer
from extender.model import members


def field_of(inventory: Inventory, bit: int) -> str:
    """The field because of which a device is left out, as the API names it."""
    return inventory.places[bit].device.node_allocatable or "compatibilityGroups"


def report(inventory: Inventory, request: str, devices: int, observer: Observer) -> None:
    """Tell an observer of the devices, given as a mask, that a request matches and cannot have."""
    for cause, mask in inventory.unsupported:
        for bit in members(devices & mask):
            observer.rejected(request, bit, cause, field_of(inventory, bit))
