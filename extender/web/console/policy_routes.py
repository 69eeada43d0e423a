"""GET /v1/policy and /v1/policy/diff: the policies, their problems, and the decisions a candidate would change."""

from __future__ import annotations

import orjson
from fastapi import APIRouter
from fastapi.responses import Response

from extender.console import Console, to_json


def router(console: Console) -> APIRouter:
    """The routes of the policy."""
    routes = APIRouter(prefix="/v1/policy")
    active, shadow = console.policy, console.shadow

    @routes.get("")
    async def status() -> Response:
        """The policy in force, the candidate, and why a file was rejected."""
        return _json(
            {
                "generation": active.generation,
                "digest": active.policy.digest,
                "problem": active.problem,
                "policy": active.policy.model_dump(mode="json"),
                "processes": [to_json(stream) for stream in console.ingest.streams()],
                "candidate": shadow.policy.model_dump(mode="json") if shadow.policy is not None else None,
                "candidate_problem": shadow.problem,
            }
        )

    @routes.get("/diff")
    async def diff() -> Response:
        """The last decisions that the candidate policy would change."""
        known = shadow.comparisons()
        return _json(
            {
                "candidate": shadow.policy is not None,
                "problem": shadow.problem,
                "compared": len(known),
                "left_out": shadow.left_out,
                "changed": [to_json(one) for one in known if one.differs],
            }
        )

    return routes


def _json(found: object) -> Response:
    return Response(orjson.dumps(found), media_type="application/json")
