"""Facts that lower the score of a device: faults that drivers and agents report, and live memory use.

Live memory shows GPUs in use that no claim holds (drift), and shares that use more than they claim (overuse). It never
decides whether a claim fits, because it changes between the decision and the start of a container.
"""

from __future__ import annotations

from extender.allocation.inventory import Inventory
from extender.allocation.problem import UNUSED, AllocatedState
from extender.model import NANO, Fabric, GpuState, amount_of_memory

_MIB = 1 << 20
_FLOOR_BYTES = 512 * _MIB  # use of an idle GPU; the agent publishes in steps of 256 MiB
_UNKNOWN_FLOOR_BYTES = 2048 * _MIB  # the same if the driver does not report the memory that it reserves
_FLOOR_SHARE = 100  # use below 1/100 of the memory also counts as idle
_STEP_BYTES = 8 << 30  # overuse is rounded up to steps, so that similar nodes share one node state


def troubled(found: Inventory, fabric: Fabric | None, gpu_bits: tuple[int, ...]) -> int:
    """Mask of the devices that have a taint with effect None or are unhealthy GPUs. Both only lower the score."""
    mask = 0
    for first, part in found.parts:
        mask |= part.warned << first
    for state, bit in zip(fabric.gpus, gpu_bits, strict=True) if fabric is not None else ():
        if bit >= 0 and not state.healthy:
            mask |= 1 << bit
    return mask


Uses = tuple[int, ...]


def uses_of(fabric: Fabric | None) -> Uses:
    """Bytes in use on each GPU, in the order of the fabric; () if no GPU is in use or the agent does not report it."""
    found = tuple(_used(state) for state in fabric.gpus) if fabric is not None else ()
    return found if any(found) else ()


def live_use(
    found: Inventory, use: AllocatedState, uses: Uses, gpu_bits: tuple[int, ...], busy: int
) -> tuple[int, dict[int, int]]:
    """(mask of GPUs in use without a claim, bit of a shared GPU to the bytes in use beyond its claims)."""
    drift, overuse = 0, {}
    for used, bit in zip(uses, gpu_bits, strict=True) if uses else ():
        if not used or bit < 0 or busy >> bit & 1:
            continue
        pool_device = found.devices[bit]
        shares = use.pools.get(found.pools[pool_device.pool].key, UNUSED).shares.get(pool_device.id.device)
        if shares is None:
            drift |= 1 << bit
        else:
            beyond = used - (amount_of_memory(shares) or 0) // NANO
            if beyond > 0:
                overuse[bit] = -(-beyond // _STEP_BYTES) * _STEP_BYTES
    return drift, overuse


def _used(state: GpuState) -> int:
    """Bytes in use, or 0 if the GPU looks idle or the agent does not report its memory."""
    if state.memory_free_bytes is None or not state.memory_total_bytes:
        return 0
    reserved, floor = state.memory_reserved_bytes, _FLOOR_BYTES
    if reserved is None:
        reserved, floor = 0, _UNKNOWN_FLOOR_BYTES
    used = state.memory_total_bytes - state.memory_free_bytes - reserved
    return used if used > max(floor, state.memory_total_bytes // _FLOOR_SHARE) else 0
