"""GET /v1/policy: the policy in force, and why a newer one was rejected."""

from __future__ import annotations

import orjson
from fastapi import APIRouter
from fastapi.responses import Response

from extender.console import Console


def router(console: Console) -> APIRouter:
    """The routes of the policy."""
    routes = APIRouter(prefix="/v1/policy")

    @routes.get("")
    async def status() -> Response:
        """The policy in force, and why a newer file was rejected."""
        return _json(
            {
                "generation": console.policy_generation,
                "digest": console.explainer.policy.digest,
                "problem": console.policy_problem,
                "policy": console.explainer.policy.model_dump(mode="json"),
            }
        )

    return routes


def _json(found: object) -> Response:
    return Response(orjson.dumps(found), media_type="application/json")
