"""The assignment problem, and requests in the order in which their devices belong together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_DIGITS = re.compile(r"([0-9]{1,9})$")
_FAR_AWAY = 1 << 80


class Slot(NamedTuple):
    """A device that a pod asks for: position of the claim, names of claim and request, devices that it could be.

    Or one that the pod has already: position -1, and this device.
    """

    claim: int
    claim_name: str
    request: str
    eligible: int

    @property
    def is_own(self) -> bool:
        """Whether the pod has the device already."""
        return self.claim < 0

    def accepts(self, bit: int) -> bool:
        """Whether the slot could have the device at a bit."""
        return bool(self.eligible >> bit & 1)


def own_slot(bit: int) -> Slot:
    """The slot of a device that the pod has already."""
    return Slot(-1, "", "", 1 << bit)


def in_order(slots: Sequence[Slot]) -> list[Slot]:
    """The slots by the number at the end of their names if each has its own (gpu-0, gpu-1), else in the given order.

    Devices that the pod has already come last.
    """
    own = [slot for slot in slots if slot.is_own]
    asked = [slot for slot in slots if not slot.is_own] if own else list(slots)
    numbers = [_DIGITS.search(slot.request) or _DIGITS.search(slot.claim_name) for slot in asked]
    if any(number is None for number in numbers) or len({int(n[1]) for n in numbers if n}) < len(asked):
        return [*asked, *own]
    return [*(slot for _, slot in sorted(zip([int(n[1]) for n in numbers if n], asked, strict=True))), *own]


def slots_for(devices: list[int], slots: list[Slot]) -> list[int] | None:
    """The position of a slot for each device that accepts it; None if there are no such slots for all of them."""
    if len({slot.eligible for slot in slots}) == 1:
        return list(range(len(devices)))
    slot_of: dict[int, int] = {}  # slot to device

    def place(device: int, seen: set[int]) -> bool:
        accepted = [i for i, slot in enumerate(slots) if i not in seen and slot.accepts(devices[device])]
        for slot in sorted(accepted, key=lambda slot: slot in slot_of):
            seen.add(slot)
            if slot not in slot_of or place(slot_of[slot], seen):
                slot_of[slot] = device
                return True
        return False

    if not all(place(device, set()) for device in range(len(devices))):
        return None
    return [slot for _, slot in sorted((device, slot) for slot, device in slot_of.items())]


def assigned(table: list[list[int]]) -> list[int]:
    """The column of each row, so that the sum of the entries is the largest. There are at least as many columns.

    If the largest entries of the rows are in different columns, no other choice has a larger sum. Else the Hungarian
    method with potentials finds it (Kuhn 1955, Jonker and Volgenant 1987).
    """
    largest = [entries.index(max(entries)) for entries in table]
    return largest if len(set(largest)) == len(table) else _hungarian(table)


def _hungarian(table: list[list[int]]) -> list[int]:
    columns = len(table[0])
    row_of = [-1] * (columns + 1)  # the last column is the virtual start of each path
    potential, offset = [0] * len(table), [0] * (columns + 1)
    for row in range(len(table)):
        row_of[columns] = row
        at, slack, way, done = columns, [_FAR_AWAY] * columns, [columns] * columns, [False] * (columns + 1)
        while row_of[at] >= 0:
            done[at] = True
            entries, base = table[row_of[at]], potential[row_of[at]]
            step, ahead = _FAR_AWAY, -1
            for column in range(columns):
                if done[column]:
                    continue
                cost = -entries[column] - base - offset[column]
                if cost < slack[column]:
                    slack[column], way[column] = cost, at
                if slack[column] < step:
                    step, ahead = slack[column], column
            for column in range(columns):
                if done[column]:
                    potential[row_of[column]] += step
                    offset[column] -= step
                else:
                    slack[column] -= step
            potential[row] += step
            at = ahead
        while at != columns:
            row_of[at] = row_of[way[at]]
            at = way[at]
    column_of = {row: column for column, row in enumerate(row_of[:columns]) if row >= 0}
    return [column_of[row] for row in range(len(table))]
