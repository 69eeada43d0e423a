"""When Python's garbage collector works. What Berth keeps has hardly any cycles, so there is next to nothing for it to
find, and a full round over all objects would pause requests for tens of milliseconds.
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


async def run_gc_policy(listed: Callable[[], Awaitable[None]]) -> None:
    """Until cancelled. What exists once everything is listed is taken out of the orphan collector's sight."""
    before = gc.get_threshold()
    gc.set_threshold(*_LISTING)
    loop = asyncio.get_running_loop()
    try:
        await listed()
        gc.collect()
        gc.freeze()
        _give_back_memory()
        last = loop.time()
        while True:
            await asyncio.sleep(_PERIOD_SECONDS)
            if loop.time() - last > _FULL_SECONDS:
                gc.collect()
                last = loop.time()
            elif gc.get_count()[0] > _NEW_OBJECTS:
                gc.collect(0)
    finally:
        gc.set_threshold(*before)


def _give_back_memory() -> None:
    """What lists left in the C library's heap, 10 MiB of 147 with 5,000 nodes, goes back to the system. Only glibc can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
