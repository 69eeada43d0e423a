"""GET and POST /v1/explain: why a pod or a gang waits, why a pod got its node, or which node a hypothetical pod would
get."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from extender.api.documents import json_value
from extender.api.fields import Json
from extender.api.object_meta import ObjectKey
from extender.api.pod_groups import GroupKey, GroupPolicy
from extender.base.berth_errors import BerthError
from extender.console import Console, ForkedCallFailed, TooManyQuestions, UnknownGroup, UnknownPod, WhatIf
from extender.explain.scenario import Scenario, scenario_of
from extender.manifests import Hypothetical, hypothetical
from extender.policy import Policy, faults_of, load_policy
from extender.web.asgi import Answer, BodyReader, Receive, Scope, TooLarge, TooManyBodies, problem

_MAX_BODY = 1024 * 1024  # bytes; etcd stores objects of at most 1.5 MiB
_MAX_PODS = 200  # of one question; the explanation of a pod has about 3 KB
_MAX_OBJECTS = 5000  # of one question, with claims and templates; pydantic keeps 700 bytes for each wrong one
_MAX_NAMES = 1000  # in a list of nodes or pods


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


def router(console: Console) -> APIRouter:
    """The routes of GET. POST is not here, as its body has a limit: see explain_hypothetical."""
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


def restart_router(console: Console) -> APIRouter:
    """The routes of the advice on restarts."""
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
