"""What the page and the fleet commands read: nodes, claims, one node in full, and updates as server-sent events."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import Any

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from extender.service.explaining import plain
from extender.service.overview import MOST_WATCHERS
from extender.service.service import Service

Json = dict[str, Any]
_ROWS = 50  # of the fleet encoded between two looks at who else is waiting
_WORTH_PACKING = 16 * 1024  # bytes


def router(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1")

    @routes.get("/fleet")
    async def fleet(request: Request) -> Response:
        if service.not_ready:
            return _problem(503, f"berth is not ready, {service.not_ready}")
        found = await service.overview.fleet()
        return await _packed(request, await service.turns.run(_encoded(found)))

    @routes.get("/nodes/{name}")
    async def node(name: str) -> Response:
        found = await service.overview.node(name)
        return Response(orjson.dumps(found), media_type="application/json") if found else _problem(404, f"node {name!r} is not known")

    @routes.get("/claims")
    async def claims(request: Request) -> Response:
        return await _packed(request, orjson.dumps(service.overview.claims()))

    @routes.get("/audit")
    async def audit() -> Response:
        return Response(orjson.dumps(plain(sorted(service.auditor.findings))), media_type="application/json")

    @routes.get("/updates")
    async def updates() -> Response:
        if service.overview.full:
            return _problem(503, f"{MOST_WATCHERS} pages are open already")
        events = _events(service.overview.updates())
        return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    return routes


async def _events(stream: AsyncIterator[object]) -> AsyncIterator[bytes]:
    yield b": connected\n\n"
    async for update in stream:
        yield b"data: " + orjson.dumps(update) + b"\n\n"


def _encoded(found: Json) -> Iterator[bytes | None]:
    """Steps that end with the JSON of the fleet."""
    parts, left = [], iter(found.pop("nodes"))
    while some := list(islice(left, _ROWS)):
        parts.append(orjson.dumps(some)[1:-1])
        yield None
    yield b'{"nodes":[' + b",".join(parts) + b"]," + orjson.dumps(found)[1:]


async def _packed(request: Request, content: bytes) -> Response:
    headers = {}
    if len(content) > _WORTH_PACKING and "gzip" in request.headers.get("accept-encoding", ""):
        content, headers = await asyncio.to_thread(gzip.compress, content, 1), {"Content-Encoding": "gzip"}  # it leaves the interpreter to others
    return Response(content, media_type="application/json", headers=headers)


def _problem(status: int, text: str) -> Response:
    return Response(orjson.dumps({"error": text}), status, media_type="application/json")
