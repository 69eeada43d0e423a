"""Sets of devices as bit masks."""

from __future__ import annotations


def members(mask: int) -> list[int]:
    """The positions in a mask, ascending."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


def lowest(mask: int) -> int:
    """The lowest position in a mask that is not empty."""
    return (mask & -mask).bit_length() - 1


def union(masks: list[int]) -> int:
    """The positions of all masks."""
    found = 0
    for mask in masks:
        found |= mask
    return found
