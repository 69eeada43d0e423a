"""Bit masks: bit i of a mask stands for the device (or GPU) at position i."""

from __future__ import annotations

_MAX_LOOP_BITS = 256  # bits; beyond, the loop over the lowest bits takes longer, because its time grows with the square


def members(mask: int) -> list[int]:
    """The positions of the bits that are set, ascending."""
    if mask.bit_count() > _MAX_LOOP_BITS:
        return [position for position, bit in enumerate(reversed(f"{mask:b}")) if bit == "1"]
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


def lowest(mask: int) -> int:
    """The position of the lowest bit that is set. The mask must not be 0."""
    return (mask & -mask).bit_length() - 1


def union(masks: list[int]) -> int:
    """The mask of all positions that some mask has."""
    found = 0
    for mask in masks:
        found |= mask
    return found
