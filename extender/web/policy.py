"""GET /v1/policy and /v1/policy/diff: what is in force, what is wrong, and what a candidate would change."""

from __future__ import annotations

import orjson
from fastapi import APIRouter
from fastapi.responses import Response

from extender.service.explaining import plain
from extender.service.service import Service


def router(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1/policy")
    judge, shadow = service.judge, service.shadow

    @routes.get("")
    async def status() -> Response:
        return _json({
            "generation": judge.policy_generation, "problem": judge.policy_problem,
            "policy": judge.policy.model_dump(mode="json"),
            "candidate": shadow.policy.model_dump(mode="json") if shadow.policy is not None else None,
            "candidate_problem": shadow.problem,
        })

    @routes.get("/diff")
    async def diff() -> Response:
        known = shadow.comparisons()
        return _json({
            "candidate": shadow.policy is not None, "problem": shadow.problem, "compared": len(known), "left_out": shadow.left_out,
            "changed": [plain(one) for one in known if one.differs],
        })

    return routes


def _json(found: object) -> Response:
    return Response(orjson.dumps(found), media_type="application/json")
