"""Controls when Python's garbage collector runs, and when freed memory returns to the system.

Berth's objects have few reference cycles, so the collector finds little. A full collection of all objects would delay
requests by tens of milliseconds. The C library keeps freed memory for later use: after the deletion of sixty claims of
640 KB, it keeps about 100 MiB.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Awaitable, Callable

_READING = (50_000, 1_000, 1_000)  # thresholds while many objects are read; Python's defaults take a third of the time
_PERIOD_SECONDS = 0.1
_NEW_OBJECTS = 1_000  # that start a collection of the young generation, about 0.3 ms
_FULL_SECONDS = 900.0  # between full collections
_TRIM_SECONDS = 60.0  # between two checks of the freed memory that the C library keeps
_MAX_KEPT_BYTES = 32 << 20  # of freed memory that the C library may keep


async def run_gc_policy(listed: Callable[[], Awaitable[None]]) -> None:
    """Run until cancelled. Objects that exist after the first lists are frozen: the collector no longer visits them."""
    before = gc.get_threshold()
    collect_seldom()
    loop = asyncio.get_running_loop()
    try:
        await listed()
        gc.collect()
        gc.freeze()
        give_back_memory()
        collected = trimmed = loop.time()
        while True:
            await asyncio.sleep(_PERIOD_SECONDS)
            if loop.time() - collected > _FULL_SECONDS:
                gc.collect()
                collected = loop.time()
            elif gc.get_count()[0] > _NEW_OBJECTS:
                gc.collect(0)
            if loop.time() - trimmed > _TRIM_SECONDS:
                await asyncio.to_thread(give_back_memory, _MAX_KEPT_BYTES)
                trimmed = loop.time()
    finally:
        gc.set_threshold(*before)


def collect_seldom() -> None:
    """Set thresholds for reading many objects that stay. A command that reads a cluster keeps them to its end."""
    gc.set_threshold(*_READING)


def give_back_memory(kept_bytes: int = 0) -> bool:
    """Return freed memory to the system, if the C library keeps more than `kept_bytes`. True if it did.

    This takes about 4 ms for 100 MiB. Only glibc has the function, and since 2.33 it reports how much it keeps.
    """
    library = ctypes.CDLL(None)
    trim, tell = getattr(library, "malloc_trim", None), getattr(library, "mallinfo2", None)
    if trim is None:
        return False
    if kept_bytes and tell is not None:
        tell.restype = _MallInfo
        if tell().fordblks <= kept_bytes:
            return False
    trim(0)
    return True


class _MallInfo(ctypes.Structure):
    """struct mallinfo2 of glibc: ten counts and bytes, of which `fordblks` are the bytes that are free."""

    _fields_ = (("before", 8 * ctypes.c_size_t), ("fordblks", ctypes.c_size_t), ("keepcost", ctypes.c_size_t))
