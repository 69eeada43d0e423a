"""Garbage at every HTTP entry point: the status is below 500 and the text is one sentence, never a traceback.

`make fuzz` runs it for long.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import orjson
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from extender.policy import MAX_POLICY_BYTES
from tests.worlds.bad_values import FILES, bomb, contents
from tests.worlds.fuzzing import no_faults_logged, profile
from tests.worlds.running_berth import Berthing, berthing, claim, pod

WEB = Path(__file__).parents[2] / "extender" / "web"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "X" * 40)


async def entry_points(client: httpx.AsyncClient) -> list[str]:
    """Every path that the code of the web package names, and every route that the framework knows."""
    found = set((await client.get("/openapi.json")).json()["paths"])
    for path in WEB.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and node.value.startswith("/")
                and " " not in node.value
            ):
                found.add(node.value)
    return sorted(found | {"/v1/explain", "/v1/explain/default/p", "/nowhere", "/%2e%2e/etc/passwd", "/%ff"})


async def knock(client: httpx.AsyncClient, method: str, path: str, **options: Any) -> None:
    reply = await client.request(method, path, **options)
    body = reply.content
    assert reply.status_code < 500, (method, path, options, reply.status_code, body[:500])
    assert b"Traceback" not in body, body
    if reply.status_code >= 400 and reply.headers.get("content-type") == "application/json" and b'"error"' in body:
        message = orjson.loads(body)["error"]
        assert len(message.encode()) < 4096, message
        assert "\n" not in message, message


@contextmanager
def no_traceback(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with no_faults_logged():
        yield
    assert not [record for record in caplog.records if record.exc_info], caplog.records


@pytest.fixture
async def berth() -> AsyncIterator[Berthing]:
    async with berthing({"n1": "t4-4"}) as made:
        made.cluster.apply(claim("c"))
        made.cluster.apply(pod("p", "c"))
        await made.settled()
        yield made


def questions(berth: Berthing) -> dict[str, object]:
    """A valid body for each entry point that takes a body."""
    waiting = berth.pod("p")
    args = {"Pod": waiting, "Nodes": None, "NodeNames": ["n1"]}
    return {
        "/filter": args,
        "/prioritize": args,
        "/preempt": {"Pod": waiting, "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "u"}]}}},
        "/bind": {"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "n2"},
        "/v1/explain": {
            "objects": [pod("x", "c"), claim("d")],
            "policy": "weights: {link: 3}",
            "without": [],
            "free": [],
            "narrate": "",
        },
    }


async def test_bytes_that_no_entry_point_can_use(berth: Berthing, caplog: pytest.LogCaptureFixture) -> None:
    """Attack: crash an entry point with garbage."""
    bodies = {*questions(berth), "/v1/fleet", "/nowhere"}  # a path that takes no body reads none
    with no_traceback(caplog):
        for path in await entry_points(berth.client):
            for method in METHODS:
                await knock(berth.client, method, path)
            for content in FILES.values() if path in bodies else ():
                await knock(berth.client, "POST", path, content=content)
            for query in ("?a=%ff", "?without=x&free=y", "?without=%00", "?" + "a" * 5000, "?free=" + quote("é" * 300)):
                await knock(berth.client, "GET", path + query)
            await knock(berth.client, "GET", path + "/%ff%00/" + "x" * 3000)
            await knock(
                berth.client,
                "POST",
                path,
                content=b"{}",
                headers={"Content-Type": "text/html", "Accept-Encoding": "gzip, x", "Authorization": b"Bearer \xe9"},
            )


async def test_bodies_that_are_nearly_right(berth: Berthing, caplog: pytest.LogCaptureFixture) -> None:
    """In one loop with the server, so hypothesis only makes the bodies."""
    with no_traceback(caplog):
        for path, question in questions(berth).items():
            for body in drawn(contents(question)):
                await knock(berth.client, "POST", path, content=body)


async def test_policies_of_a_question(berth: Berthing) -> None:
    """An alias bomb, a text that is too long, and values of every kind: rejected, while filter is answered."""
    too_long = "# " + "x" * MAX_POLICY_BYTES
    for policy, words in (
        (bomb(), "aliases stand for more values"),
        (too_long, "is larger than 16384 bytes"),
        ("weights: {link: 3}", ""),
    ):
        body = {"objects": [pod("x", "c")], "policy": policy}
        reply, answer = await asyncio.gather(berth.client.post("/v1/explain", json=body), berth.filter("p"))
        assert answer["NodeNames"] == ["n1"]
        if words:
            assert reply.status_code == 400, reply.text
            assert words in reply.json()["error"], reply.text
        else:
            assert reply.status_code == 200, reply.text
    reply = await berth.client.post(
        "/v1/explain", json={"objects": [], "policy": "weights: {link: [" + "x, " * 4000 + "x]}"}
    )
    assert reply.status_code == 400, "text from the input is cut"
    assert len(reply.content) < 1000, "text from the input is cut"
    reply = await berth.client.post("/v1/explain", json={"o" * 100_000: 1, **{f"x{i}": 1 for i in range(1000)}})
    assert reply.status_code == 400, "text from the input is cut"
    assert len(reply.content) < 2000, "text from the input is cut"


def drawn(strategy: st.SearchStrategy[bytes]) -> list[bytes]:
    """Examples of a strategy, made outside of a property: the server's loop is running."""
    found: list[bytes] = []

    @settings(profile(), phases=[Phase.generate])
    @given(strategy)
    def collect(value: bytes) -> None:
        found.append(value)

    collect()
    return found
