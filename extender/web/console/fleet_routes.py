"""Routes for the page and the fleet commands: nodes, claims, details of a node, and updates as server-sent events."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator

import orjson
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response, StreamingResponse

from extender.console import MAX_WATCHERS, Console, to_json

_LEAST_COMPRESSED = 16 * 1024  # bytes; a smaller answer is sent as it is


def router(console: Console) -> APIRouter:
    """The routes of the fleet. Each waits for Rebuilds.done: most of them take a snapshot."""

    async def rebuilt() -> None:
        await console.rebuilt()

    routes = APIRouter(prefix="/v1", dependencies=[Depends(rebuilt)])

    @routes.get("/fleet")
    async def fleet(request: Request) -> Response:
        """All nodes with the states of their GPUs, the pods that wait, and the last decisions."""
        return await _compressed(request, orjson.dumps(console.overview.fleet()))

    @routes.get("/nodes/{name}")
    async def node(name: str) -> Response:
        """One node: its devices with their claims and memory, and the links of its GPUs."""
        found = console.overview.node(name)
        return (
            Response(orjson.dumps(found), media_type="application/json")
            if found
            else _problem(404, f"node {name!r} is not known")
        )

    @routes.get("/claims")
    async def claims(request: Request) -> Response:
        """All claims with their devices and pods."""
        return await _compressed(request, orjson.dumps(console.overview.claims()))

    @routes.get("/audit")
    async def audit() -> Response:
        """The findings of the last round of the audit. The request starts no round."""
        return Response(orjson.dumps(to_json(sorted(console.auditor.findings))), media_type="application/json")

    @routes.get("/updates")
    async def updates() -> Response:
        """Changes of the fleet as server-sent events (`text/event-stream`), each with the fields of /v1/fleet that
        changed, and `gone`: the names of deleted nodes. Ends after 10 minutes: then open it again.
        """
        if console.overview.is_full:
            return _problem(503, f"{MAX_WATCHERS} pages are open already")
        events = _events(console.overview.updates())
        return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    return routes


async def _events(stream: AsyncIterator[object]) -> AsyncIterator[bytes]:
    yield b": connected\n\n"
    async for update in stream:
        yield b"data: " + orjson.dumps(update) + b"\n\n"


async def _compressed(request: Request, content: bytes) -> Response:
    headers = {}
    if len(content) > _LEAST_COMPRESSED and "gzip" in request.headers.get("accept-encoding", ""):
        content = await asyncio.to_thread(gzip.compress, content, 1)  # releases the GIL
        headers["Content-Encoding"] = "gzip"
    return Response(content, media_type="application/json", headers=headers)


def _problem(status: int, text: str) -> Response:
    return Response(orjson.dumps({"error": text}), status, media_type="application/json")
