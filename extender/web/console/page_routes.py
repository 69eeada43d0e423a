"""The static files of the page: document, style sheet and scripts. All are part of this package."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from importlib import resources
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

_SCRIPTS = ("text", "graph", "fleet", "details", "lists", "page")
PATHS = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript") for name in _SCRIPTS},
}
# The browser loads and runs only these files, even if a name from the cluster has HTML in it.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def router() -> APIRouter:
    """The routes of the static files."""
    routes = APIRouter()
    for path, (name, kind) in PATHS.items():
        content = resources.files("extender.web").joinpath("assets", name).read_bytes()
        routes.add_api_route(path, _sender(content, kind), include_in_schema=False)
    return routes


def _sender(content: bytes, kind: str) -> Callable[[], Coroutine[Any, Any, Response]]:
    async def send() -> Response:
        return Response(content, media_type=f"{kind}; charset=utf-8", headers=_HEADERS)

    return send
