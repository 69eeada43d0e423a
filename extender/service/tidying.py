"""The garbage collector works when nobody calls: by itself it would pause a request, and a full round takes tens of
milliseconds. What Berth keeps has hardly any cycles, so there is next to nothing for it to find: while everything is listed
it would take a third of the time for that.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Awaitable, Callable

from extender.service.turns import Turns

_THRESHOLDS = (50_000, 1_000, 1_000)  # for when this task is late; Python's own are 700, 10, 10
_PERIOD_SECONDS = 0.1
_LULL_SECONDS = 0.005  # longer than kube-scheduler leaves between two calls while it has pods:
_FEW, _MANY = 1_000, 10_000  # new objects that are looked at, in a lull and without; 1,000 take some 0.3 ms
_FULL_SECONDS = 60.0  # between full rounds, if kube-scheduler is silent for so long:
_SILENCE_SECONDS = 2.0
_LATEST_SECONDS = 900.0  # a full round is made at least so often, silence or not


async def tidy(turns: Turns, listed: Callable[[], Awaitable[None]]) -> None:
    """Until cancelled. What exists once everything is listed is taken out of the collector's sight."""
    before = gc.get_threshold()
    gc.set_threshold(*_THRESHOLDS)
    loop = asyncio.get_running_loop()
    try:
        await listed()
        gc.collect()
        gc.freeze()
        _give_back_memory()
        last = loop.time()
        while True:
            await asyncio.sleep(_PERIOD_SECONDS)
            since = loop.time() - last
            if since > _LATEST_SECONDS or (since > _FULL_SECONDS and turns.silence > _SILENCE_SECONDS):
                gc.collect()
                last = loop.time()
            elif gc.get_count()[0] > (_FEW if turns.silence > _LULL_SECONDS else _MANY):
                await turns.pause(chore=True)
                gc.collect(0)
    finally:
        gc.set_threshold(*before)


def _give_back_memory() -> None:
    """What lists left in the C library's heap, 10 MiB of 147 with 5,000 nodes, goes back to the system. Only glibc can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
