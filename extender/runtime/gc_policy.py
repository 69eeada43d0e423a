"""When Python's garbage collector works, and when freed memory goes back to the system.

What Berth keeps has hardly any cycles, so there is next to nothing for the collector to find, and a full round over all
objects would pause requests for tens of milliseconds. The C library keeps freed memory for later: sixty claims of 640 KB
that are gone leave some 100 MiB behind.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Awaitable, Callable

_LISTING = (50_000, 1_000, 1_000)  # while everything is listed: Python's own would take a third of that time
_PERIOD_SECONDS = 0.1
_NEW_OBJECTS = 1_000  # looked at in one young round, some 0.3 ms
_FULL_SECONDS = 900.0  # between full rounds
_TRIM_SECONDS = 60.0  # between two looks at what the C library keeps
_KEPT_BYTES = 32 << 20  # that it may keep


async def run_gc_policy(listed: Callable[[], Awaitable[None]]) -> None:
    """Until cancelled. What exists once everything is listed is taken out of the collector's sight."""
    before = gc.get_threshold()
    gc.set_threshold(*_LISTING)
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
                await asyncio.to_thread(give_back_memory, _KEPT_BYTES)
                trimmed = loop.time()
    finally:
        gc.set_threshold(*before)


def give_back_memory(kept_bytes: int = 0) -> bool:
    """Give freed memory back to the system where the C library keeps more than so many bytes of it; whether that was
    so. It takes some 4 ms for 100 MiB. Only glibc can, and tells how much it keeps since 2.33."""
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
    """struct mallinfo2 of glibc: bytes and counts, all size_t."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )
