"""The routes of the console: explain, the advice on restarts, the fleet, the policy, and the files of the page.

POST /v1/explain is not among them, as its body has a limit: see explain_hypothetical. The static files are part of this
package. All else is JSON from the console's cache.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from importlib import resources
from typing import Any

import orjson
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from extender import __version__
from extender.api.documents import json_value
from extender.api.fields import Json
from extender.api.object_meta import ObjectKey
from extender.api.pod_groups import GroupKey, GroupPolicy
from extender.base.berth_errors import BerthError
from extender.console import Console, ForkedCallFailed, TooManyQuestions, UnknownGroup, UnknownPod, WhatIf, to_json
from extender.explain.scenario import Scenario, scenario_of
from extender.manifests import Hypothetical, hypothetical
from extender.policy import Policy, faults_of, load_policy
from extender.web.asgi import Answer, BodyReader, Receive, Scope, TooLarge, TooManyBodies, problem

_MAX_BODY = 1024 * 1024  # bytes; etcd stores objects of at most 1.5 MiB
_MAX_PODS = 200  # of one question; the explanation of a pod has about 3 KB
_MAX_OBJECTS = 5000  # of one question, with claims and templates; pydantic keeps 700 bytes for each wrong one
_MAX_NAMES = 1000  # in a list of nodes or pods
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


def routes(console: Console) -> FastAPI:
    """The pages and the JSON of the console."""
    app = FastAPI(title="Berth", version=__version__, docs_url=None, redoc_url=None)

    @app.exception_handler(404)
    async def no_path(_: Request, __: Exception) -> Response:
        return JSONResponse({"error": "the console has no such path"}, 404)

    @app.exception_handler(405)
    async def no_method(_: Request, error: Exception) -> Response:
        headers = getattr(error, "headers", None)  # Allow: the methods of the path
        return JSONResponse({"error": "the path does not take this method"}, 405, headers)

    @app.get("/version")
    async def version() -> Response:
        """The release."""
        return JSONResponse({"version": __version__})

    app.include_router(_explain_routes(console))
    app.include_router(_restart_routes(console))
    app.include_router(_fleet_routes(console))
    for path, (name, kind) in PATHS.items():
        content = resources.files("extender.web").joinpath("assets", name).read_bytes()
        app.add_api_route(path, _sender(content, kind), include_in_schema=False)
    return app


# -- explain -------------------------------------------------------------------------------------------------------


class Question(BaseModel):
    """The body of POST /v1/explain."""

    model_config = ConfigDict(extra="forbid")

    objects: list[dict[str, Any]] = Field(
        [], max_length=_MAX_OBJECTS, description="pods or workloads, with their claims and claim templates"
    )
    pod: str | None = Field(None, description="a pod that exists, as namespace/name, instead of objects")
    policy: str | None = Field(None, description="a policy as YAML of at most 16 KiB; by default the active policy")
    without: list[str] = Field([], max_length=_MAX_NAMES, description="nodes to leave out")
    free: list[str] = Field(
        [], max_length=_MAX_NAMES, description="pods, as namespace/name, whose devices count as free"
    )
    narrate: str = Field("", description="a node whose search is explained step by step")


def _explain_routes(console: Console) -> APIRouter:
    routes = APIRouter(prefix="/v1/explain")

    @routes.get("/{namespace}/{pod}")
    async def explain_pod(namespace: str, pod: str, without: str = "", free: str = "") -> Response:
        """Explain a pod that waits or was bound, as if the nodes `without` were absent and the devices of the pods
        `free` (NAMESPACE/NAME) were free. Both are lists with commas.
        """
        return _response(await _answer(_pod(console, ObjectKey(namespace, pod), without, free)))

    @routes.get("/group/{namespace}/{name}")
    async def explain_group(namespace: str, name: str, without: str = "", free: str = "") -> Response:
        """Explain each group of this name, with the same what-if parameters. With `-` as its namespace, the name must
        be that of groups in one namespace.
        """
        return _response(await _answer(_groups(console, ObjectKey(namespace, name), without, free)))

    return routes


def _restart_routes(console: Console) -> APIRouter:
    routes = APIRouter(prefix="/v1/restarts")

    @routes.get("/{namespace}/{pod}")
    async def restarts_for_pod(namespace: str, pod: str) -> Response:
        """Which pods to restart, so that a waiting pod or its gang fits: what `berth defrag --output json` prints."""
        return _response(await _answer(console.restarts.advice(ObjectKey(namespace, pod), is_group=False)))

    @routes.get("/group/{namespace}/{name}")
    async def restarts_for_group(namespace: str, name: str) -> Response:
        """The same for a gang."""
        return _response(await _answer(console.restarts.advice(ObjectKey(namespace, name), is_group=True)))

    return routes


async def explain_hypothetical(console: Console, bodies: BodyReader, scope: Scope, receive: Receive) -> Answer:
    """The answer to POST /v1/explain, whose body is a Question."""
    return await _answer(_explained_body(console, bodies, scope, receive))


async def _pod(console: Console, key: ObjectKey, without: str, free: str) -> Json:
    scenario = await _scenario(console, _words(without), _words(free))
    return await console.questions.pod(key, WhatIf(scenario))


async def _groups(console: Console, key: ObjectKey, without: str, free: str) -> list[Json]:
    if key.namespace == "-":  # no name of a namespace
        key = await console.questions.in_turn(lambda: console.explainer.named_group(key.name))
    return await console.questions.group(key, await _scenario(console, _words(without), _words(free)))


async def _explained_body(console: Console, bodies: BodyReader, scope: Scope, receive: Receive) -> list[Json]:
    questions, body = console.questions, await bodies.read(scope, receive, _MAX_BODY)
    known = dict(console.explainer.cache.store.group_policies)
    question, policy, given = await questions.read(partial(_read, body, known))
    what_if = WhatIf(await _scenario(console, question.without, question.free), policy, question.narrate)
    if given is not None:
        return await questions.hypothetical(given, what_if)
    name = question.pod or ""
    key = console.explainer.named(name, console.history.pods_named(name))
    return [await questions.pod(key, what_if)]


async def _answer(explanation: Awaitable[Json | list[Json]]) -> Answer:
    """The explanation as JSON, or the status and the text of its error."""
    try:
        return Answer(200, orjson.dumps(await explanation))
    except (UnknownPod, UnknownGroup) as error:
        return problem(404, str(error))
    except TooManyQuestions as error:
        return problem(429, str(error))
    except ValidationError as error:
        return problem(400, faults_of(error, {}))
    except TooLarge as error:
        return problem(413, str(error))
    except (TooManyBodies, ForkedCallFailed) as error:
        return problem(503, str(error))
    except BerthError as error:
        return problem(400, str(error))


def _response(answer: Answer) -> Response:
    return Response(answer.body, answer.status, media_type="application/json")


def _read(body: bytes, known: Mapping[GroupKey, GroupPolicy]) -> tuple[Question, Policy | None, Hypothetical | None]:
    """Parse a body: the question, its policy, and the hypothetical pods of its objects unless it names a pod.

    `known` has the policies of groups in the cluster. Runs in a thread, as a body may be long. Raises ValidationError
    or BerthError.
    """
    question = Question.model_validate(json_value(body, "body"))
    policy = load_policy(question.policy) if question.policy is not None else None
    return question, policy, hypothetical(question.objects, known, _MAX_PODS) if question.pod is None else None


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


async def _scenario(console: Console, without: list[str], free: list[str]) -> Scenario:
    """In turn, because `free` compares each claim of the cluster."""
    if not without and not free:
        return Scenario()
    return await console.questions.in_turn(lambda: scenario_of(console.cache.snapshot(), without, free))


# -- the fleet and the page -----------------------------------------------------------------------------------------


def _fleet_routes(console: Console) -> APIRouter:
    """Each waits for CacheRefresh.wait: most of them take a snapshot."""

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


def _sender(content: bytes, kind: str) -> Callable[[], Coroutine[Any, Any, Response]]:
    async def send() -> Response:
        return Response(content, media_type=f"{kind}; charset=utf-8", headers=_HEADERS)

    return send
