"""A client that takes its answer too slowly is cut off. A test with a socket does not show this: the kernel has a limit
as well, but a client that takes a few bytes now and then never reaches that one.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from extender.entry.listening import server
from extender.web.asgi import HttpLimits
from tests.worlds.skipping_loop import in_virtual_time

LIMITS = HttpLimits(write_seconds=30.0, idle_seconds=1000.0)


class Full(asyncio.Transport):
    """Its buffer is full: the client reads less than the server writes."""

    aborted = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        del name
        return default

    def get_write_buffer_size(self) -> int:
        return 1

    def abort(self) -> None:
        self.aborted = True


@pytest.mark.parametrize("reads_after", [29.0, 31.0])
def test_an_answer_is_paused_for_a_limited_time(reads_after: float) -> None:
    async def aborted() -> bool:
        web = server(None, ("127.0.0.1", 0), LIMITS)
        one, transport = web.connection(), Full()
        one.connection_made(transport)
        one.pause_writing()
        await asyncio.sleep(reads_after)
        await web.on_tick(1)
        one.resume_writing()
        await asyncio.sleep(LIMITS.write_seconds)
        await web.on_tick(1)
        return transport.aborted

    assert in_virtual_time(aborted()) == (reads_after > LIMITS.write_seconds)
