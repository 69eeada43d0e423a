"""Large answers of the pages are built one after the other, and other requests go in between."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from extender.web.console.console_app import ConsoleApp
from tests.worlds.running_berth import berthing


async def _asked(app: ConsoleApp, url: str, answered: list[tuple[str, int]]) -> None:
    path, _, query = url.partition("?")

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError("nothing sets the event")

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answered.append((url, message["status"]))

    headers = [(b"host", b"localhost")]
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": query.encode(),
        "root_path": "", "headers": headers, "http_version": "1.1", "scheme": "http", "server": ("localhost", 80),
        "client": ("127.0.0.1", 1), "asgi": {"version": "3.0"},
    }  # fmt: skip
    await app(scope, receive, send)


@pytest.mark.parametrize("path", ["/v1/fleet", "/v1/claims", "/v1/nodes/n1", "/v1/audit"])
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


async def test_few_questions_about_free_devices_wait_for_their_turn() -> None:
    """Each compares all claims: 8 ms with 5,000. They were all compared at once."""
    url = "/v1/explain/default/p?free=default/x"
    async with berthing({"n1": "t4-4"}) as b:
        app, answered = ConsoleApp(b.console), list[tuple[str, int]]()
        async with asyncio.timeout(60):
            await asyncio.gather(*(_asked(app, one, answered) for one in [*[url] * 30, "/livez"]))
    assert answered.count((url, 400)) <= 7
    assert {status for one, status in answered if one == url} == {400, 429}
