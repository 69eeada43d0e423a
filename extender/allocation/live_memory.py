"""What speaks against devices without forbidding them: trouble that drivers and agents report, and what live memory says
against the claims (GPUs that are used and held by nobody, shares that use too much).

Memory never decides whether a claim fits: it changes between the decision and the start of a container.
"""

from __future__ import annotations

from extender.allocation.pools import Inventory
from extender.allocation.problem import UNUSED, AllocatedState
from extender.model import NANO, Fabric, GpuState

_MIB = 1 << 20
_FLOOR_BYTES = 512 * _MIB  # an idle card is not empty; the agent publishes in steps of 256 MiB
_UNKNOWN_FLOOR_BYTES = 2048 * _MIB  # where the driver does not tell what it keeps for itself
_FLOOR_SHARE = 100  # or one part in so many of the whole
_STEP_BYTES = 8 << 30  # overuse is told in steps, so that equal nodes stay equal
_MEMORY = ("memory", "gpu.nvidia.com/memory")


def troubled(found: Inventory, fabric: Fabric | None, gpu_bits: tuple[int, ...]) -> int:
    """Devices that something speaks against without forbidding them, as a mask: taints without effect, unhealthy GPUs."""
    mask = 0
    for bit, place in enumerate(found.places):
        if any(taint.effect == "None" for taint in place.device.taints):
            mask |= 1 << bit
    for state, bit in zip(fabric.gpus, gpu_bits, strict=True) if fabric is not None else ():
        if bit >= 0 and not state.healthy:
            mask |= 1 << bit
    return mask


Uses = tuple[int, ...]


def uses_of(fabric: Fabric | None) -> Uses:
    """Bytes in use on each GPU of a fabric; () where none is in use or nobody knows."""
    found = tuple(_used(state) for state in fabric.gpus) if fabric is not None else ()
    return found if any(found) else ()


def live_use(
    found: Inventory, use: AllocatedState, uses: Uses, gpu_bits: tuple[int, ...], busy: int
) -> tuple[int, dict[int, int]]:
    """(drifting GPUs as a mask, bit of a shared GPU to the bytes it uses beyond its claims)."""
    drift, overuse = 0, {}
    for used, bit in zip(uses, gpu_bits, strict=True) if uses else ():
        if not used or bit < 0 or busy >> bit & 1:
            continue
        place = found.places[bit]
        shares = use.pools.get(found.pools[place.pool].key, UNUSED).shares.get(place.id.device)
        if shares is None:
            drift |= 1 << bit
        else:
            beyond = used - max(shares.get(name, 0) for name in _MEMORY) // NANO
            if beyond > 0:
                overuse[bit] = -(-beyond // _STEP_BYTES) * _STEP_BYTES
    return drift, overuse


def _used(state: GpuState) -> int:
    """Bytes in use beyond what an idle card shows; 0 where the agent does not know."""
    if state.memory_free_bytes is None or not state.memory_total_bytes:
        return 0
    reserved, floor = state.memory_reserved_bytes, _FLOOR_BYTES
    if reserved is None:
        reserved, floor = 0, _UNKNOWN_FLOOR_BYTES
    used = state.memory_total_bytes - state.memory_free_bytes - reserved
    return used if used > max(floor, state.memory_total_bytes // _FLOOR_SHARE) else 0
