"""GET /v1/updates: no reader keeps one of the 64 streams without end."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from dataclasses import replace

import pytest

from extender.console import MAX_WATCHERS
from extender.console.fleet_overview import FleetOverview, FleetTrend
from extender.sandbox import carried_machines
from extender.web.console.console_app import ConsoleApp
from extender.web.http_limits import PAGES
from tests.eventually import HANG_SECONDS, eventually
from tests.http_worlds import SOON, listening, status
from tests.running_berth import berthing

pytestmark = pytest.mark.loopback

UPDATES = b"GET /v1/updates HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def test_a_new_reader_gets_the_place_of_one_that_never_reads() -> None:
    limits = replace(PAGES, write_seconds=SOON)
    async with berthing({"n": "t4-4"}) as b, listening(ConsoleApp(b.console), limits) as (_, port):
        with ExitStack() as stack:
            for _ in range(MAX_WATCHERS):
                reader = stack.enter_context(socket.socket())
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the kernel makes it a few KiB
                reader.connect(("127.0.0.1", port))
                reader.send(UPDATES)
            await eventually(lambda: b.console.overview.is_full)
            assert await status(port, UPDATES) == 503
            added = 0

            async def has_room() -> bool:
                nonlocal added
                added += 100
                for n in range(100):  # more than the kernel takes for a client that does not read
                    b.cluster.add_node(f"more-{added}-{n}", carried_machines()["t4-4"])
                await asyncio.sleep(SOON)
                return await status(port, UPDATES) == 200

            await eventually(has_room)


async def test_a_stream_of_updates_ends_on_a_quiet_fleet() -> None:
    """On a quiet fleet the kernel buffers all bytes for a client that never reads, so no write blocks."""
    now = 0.0
    async with berthing({"n": "t4-4"}) as b:
        console = b.console
        overview = FleetOverview(
            console.cache, console.history, console.explainer, FleetTrend(), lambda: now, console.refreshed
        )
        readers = [asyncio.ensure_future(anext(overview.updates(), None)) for _ in range(MAX_WATCHERS)]
        await eventually(lambda: overview.is_full)
        too_many = anext(overview.updates(), None)  # its request came while there was room
        assert await asyncio.wait_for(too_many, HANG_SECONDS) is None
        now = 600.0
        assert await asyncio.wait_for(asyncio.gather(*readers), HANG_SECONDS) == [None] * MAX_WATCHERS
        assert not overview.is_full


async def test_a_stream_has_changes_from_before_its_first_read() -> None:
    """A page opens the stream, and then asks for the fleet: it must not miss what happens in between."""
    async with berthing({"n": "t4-4"}) as b:
        stream = b.console.overview.updates()
        known = b.console.overview.fleet()["revision"]
        b.cluster.add_node("later", carried_machines()["t4-4"])
        await b.settled()
        update = await asyncio.wait_for(anext(stream), HANG_SECONDS)
        while not update["nodes"]:
            update = await asyncio.wait_for(anext(stream), HANG_SECONDS)
        assert [row["name"] for row in update["nodes"]] == ["later"]
        assert update["revision"] > known
