"""Large answers of the pages are built one after the other, and other requests go in between."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from extender.web.console.console_app import ConsoleApp
from tests.running_berth import berthing


async def _asked(app: ConsoleApp, path: str, answered: list[tuple[str, int]]) -> None:
    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError("nothing sets the event")

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answered.append((path, message["status"]))

    headers = [(b"host", b"localhost")]
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "root_path": "", "query_string": b"",
        "headers": headers, "http_version": "1.1", "scheme": "http", "server": ("localhost", 80),
        "client": ("127.0.0.1", 1), "asgi": {"version": "3.0"},
    }  # fmt: skip
    await app(scope, receive, send)


@pytest.mark.parametrize("path", ["/v1/fleet", "/v1/claims", "/v1/nodes/n1", "/v1/audit", "/v1/policy/diff"])
async def test_probes_are_answered_before_a_flood_of_requests_for_large_answers(path: str) -> None:
    """240 requests for the claims of 5,000 nodes once kept kubelet waiting for 6 s, and it ends such a console."""
    async with berthing({"n1": "t4-4"}) as b:
        app, answered = ConsoleApp(b.console), list[tuple[str, int]]()
        async with asyncio.timeout(60):
            await asyncio.gather(*(_asked(app, one, answered) for one in [*[path] * 10, "/livez"]))
            assert answered.index(("/livez", 200)) <= 1
            assert answered.count((path, 200)) == 10
            await asyncio.gather(*(_asked(app, path, answered) for _ in range(30)))
        assert 16 <= answered[11:].count((path, 200)) <= 17
        assert {status for _, status in answered[11:]} == {200, 429}
