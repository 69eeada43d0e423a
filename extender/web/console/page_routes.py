"""The routes of the page and of the fleet commands: static files, nodes, claims, the audit and the policy.

The static files are part of this package. All else is JSON from the console's cache.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Coroutine
from importlib import resources
from typing import Any

import orjson
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from extender.console import Console, to_json

_MIN_COMPRESSED = 16 * 1024  # bytes; a smaller answer is sent as it is
_SCRIPTS = ("text", "graph", "fleet", "details", "lists", "page")
PATHS = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript") for name in _SCRIPTS},
}
# The browser loads and runs only these files, even if a name from the cluster has HTML in it.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def router(console: Console) -> APIRouter:
    """The routes of the fleet and the policy. Each waits for CacheRefresh.wait: most of them take a snapshot."""

    async def refreshed() -> None:
        await console.refreshed()

    routes = APIRouter(prefix="/v1", dependencies=[Depends(refreshed)])

    @routes.get("/fleet")
    async def fleet(request: Request, since: str = "") -> Response:
        """All nodes with the states of their GPUs, the pods that wait, and the last decisions. With `since`, the
        `cursor` of an earlier reply: only what has changed, and `gone`, the names of deleted nodes, unless `whole`.
        """
        return await _compressed(request, orjson.dumps(console.overview.fleet(since)))

    @routes.get("/nodes/{name}")
    async def node(name: str) -> Response:
        """One node: its devices with their claims and memory, and the links of its GPUs."""
        found = console.overview.node(name)
        return _json(found) if found else _json({"error": f"node {name!r} is not known"}, 404)

    @routes.get("/claims")
    async def claims(request: Request) -> Response:
        """All claims with their devices and pods."""
        return await _compressed(request, orjson.dumps(console.overview.claims()))

    @routes.get("/jobs.jsonl")
    async def jobs(request: Request) -> Response:
        """The jobs that Berth placed and that have ended, the last 10,000 since the start of the console: JSON Lines
        for `berth replay`, without names.
        """
        reply = await _compressed(request, console.jobs.lines(), "application/jsonl")
        reply.headers["Content-Disposition"] = 'attachment; filename="jobs.jsonl"'
        return reply

    @routes.get("/audit")
    async def audit() -> Response:
        """The findings of the last round of the audit. The request starts no round."""
        return _json(to_json(sorted(console.auditor.findings)))

    @routes.get("/policy")
    async def status() -> Response:
        """The policy in force, why a newer file was rejected, and the names in `products` that no GPU has."""
        active, known = console.explainer.policy, console.fleet_sampler.stats
        return _json(
            {
                "generation": console.policy_generation,
                "digest": active.digest,
                "problem": console.policy_problem,
                "unmatched_products": active.unmatched_products(known) if known else [],
                "policy": active.model_dump(mode="json"),
            }
        )

    return routes


async def _compressed(request: Request, content: bytes, kind: str = "application/json") -> Response:
    headers = {}
    if len(content) > _MIN_COMPRESSED and "gzip" in request.headers.get("accept-encoding", ""):
        content = await asyncio.to_thread(gzip.compress, content, 1)  # releases the GIL
        headers["Content-Encoding"] = "gzip"
    return Response(content, media_type=kind, headers=headers)


def _json(found: object, status: int = 200) -> Response:
    return Response(orjson.dumps(found), status, media_type="application/json")


def static_files() -> APIRouter:
    """The routes of the page's document, style sheet and scripts."""
    routes = APIRouter()
    for path, (name, kind) in PATHS.items():
        content = resources.files("extender.web").joinpath("assets", name).read_bytes()
        routes.add_api_route(path, _sender(content, kind), include_in_schema=False)
    return routes


def _sender(content: bytes, kind: str) -> Callable[[], Coroutine[Any, Any, Response]]:
    async def send() -> Response:
        return Response(content, media_type=f"{kind}; charset=utf-8", headers=_HEADERS)

    return send
