"""The parts of a node's signatures, as short values that can be compared."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from hashlib import blake2b

from extender.allocation import Inventory, Pool, PoolUse
from extender.cache.allocated_devices import AllocatedDevices
from extender.model import DeviceId, PoolKey

_PARTITION_SIZES = (1, 2, 4, 8)  # attributes partition1..8 of the NVIDIA driver


def counter_amounts(pool: Pool) -> bytes:
    """The amounts of the pool's counters. Nodes with equal devices can differ in them."""
    sets = sorted((name, sorted(counters.items())) for name, counters in pool.counter_sets.items())
    return digest(sets) if sets else b""


def mask_of(bits: Iterable[int]) -> int:
    """The mask of these bits; -1 stands for none."""
    return sum(1 << bit for bit in bits if bit >= 0)


def held_mask(found: Inventory, pools: Container[PoolKey], allocated_devices: AllocatedDevices) -> int:
    """The devices of these pools that only holds keep in use, as a bit mask."""
    mask = 0
    for first, part in found.parts:
        if part.key in pools:
            mask |= part.mask(allocated_devices.only_held(part.key)) << first
    return mask


def share_digest(found: Inventory, pools: Mapping[PoolKey, PoolUse]) -> bytes:
    """A digest of the allocated shares of each device."""
    shares = [
        (bit, sorted(amounts.items()))
        for key, use in pools.items()
        for device, amounts in use.shares.items()
        if (bit := found.index.get(DeviceId(*key, device))) is not None
    ]
    return digest(sorted(shares)) if shares else b""


def sorted_shares(use: PoolUse) -> list[tuple[str, list[tuple[str, int]]]]:
    """The allocated shares of the devices of one pool, in one order."""
    return [(device, sorted(amounts.items())) for device, amounts in sorted(use.shares.items())]


def digest(amounts: object) -> bytes:
    """A short key for amounts: a MIG node has hundreds of them, and keys stay in memory."""
    return blake2b(repr(amounts).encode(), digest_size=16).digest()


def partitions_of(found: Inventory, gpu_bits: tuple[int, ...]) -> tuple[int, ...] | None:
    """Masks of GPU positions that Fabric Manager can join; None if no GPU names a partition."""
    sets: dict[tuple[int, object], int] = {}
    for position, bit in enumerate(gpu_bits):
        attributes = found.devices[bit].device.attributes if bit >= 0 else {}
        for size in _PARTITION_SIZES:
            number = attributes.get(f"gpu.nvidia.com/partition{size}")
            if number is not None:
                sets[size, number] = sets.get((size, number), 0) | 1 << position
    return tuple(sorted(mask for (size, _), mask in sets.items() if mask.bit_count() == size)) if sets else None
