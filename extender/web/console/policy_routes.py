"""GET /v1/policy: the policy in force, and why a newer one was rejected."""

from __future__ import annotations

import orjson
from fastapi import APIRouter
from fastapi.responses import Response

from extender.console import Console


def router(console: Console) -> APIRouter:
    """The routes of the policy."""
    routes = APIRouter(prefix="/v1/policy")
    active = console.policy

    @routes.get("")
    async def status() -> Response:
        """The policy in force, and why a newer file was rejected."""
        return _json(
            {
                "generation": active.generation,
                "digest": active.policy.digest,
                "problem": active.problem,
                "policy": active.policy.model_dump(mode="json"),
            }
        )

    return routes


def _json(found: object) -> Response:
    return Response(orjson.dumps(found), media_type="application/json")
