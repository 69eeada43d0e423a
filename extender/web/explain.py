"""GET and POST /v1/explain: why a pod waits, where it went, or where one that does not exist yet would go."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import parse_qsl

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from extender.model.claim import ObjectKey, Result
from extender.model.errors import BerthError, WireError
from extender.model.text import shown
from extender.policy import Policy, faults_of, load_policy
from extender.service.explaining import UnknownPod
from extender.service.service import Service
from extender.verdict.imagined import Changes, devices_of
from extender.web.asgi import Answer, Bodies, Receive, Scope, TooLarge, TooMany, problem
from extender.wire.documents import json_value
from extender.wire.manifests import imagined_pods

Json = dict[str, Any]
_MAX_BODY = 1024 * 1024  # bytes; etcd takes objects of at most 1.5 MiB


class Question(BaseModel):
    """The body of POST /v1/explain."""

    model_config = ConfigDict(extra="forbid")

    objects: list[dict[str, Any]] = Field([], description="pods or workloads, with their claims and claim templates")
    pod: str | None = Field(None, description="a pod that exists, as namespace/name, instead of objects")
    policy: str | None = Field(
        None, description="a policy to decide by, as YAML of at most 16 KiB; the active one where absent"
    )
    without: list[str] = Field([], description="nodes to leave out")
    free: list[str] = Field([], description="pods, as namespace/name, whose devices count as free")
    narrate: str = Field("", description="a node whose search is told line by line")


async def explain_pod(service: Service, namespace: str, pod: str, query: bytes) -> Answer:
    """The answer to GET /v1/explain/NAMESPACE/POD, given the query string."""
    missing = service.not_ready
    if missing:
        return problem(503, f"berth is not ready, {missing}")
    options = dict(parse_qsl(query.decode("utf-8", "replace")))
    try:
        changes = _changes(service, _words(options.get("without", "")), _words(options.get("free", "")))
        found = await service.explainer.pod(ObjectKey(namespace, pod), changes)
        await service.turns.pause()
        return Answer(200, orjson.dumps(found))
    except UnknownPod as error:
        return problem(404, str(error))
    except BerthError as error:
        return problem(400, str(error))


async def explain_imagined(service: Service, bodies: Bodies, scope: Scope, receive: Receive) -> Answer:
    """The answer to POST /v1/explain, whose body is a Question."""
    missing = service.not_ready
    if missing:
        return problem(503, f"berth is not ready, {missing}")
    try:
        question, policy = await asyncio.to_thread(_read, await bodies.read(scope, receive, _MAX_BODY))
        changes = _changes(service, question.without, question.free)
        if question.pod is not None:
            found = [await service.explainer.pod(service.explainer.named(question.pod), changes, policy, question.narrate)]
        else:
            pods = imagined_pods(question.objects)
            found = [await service.explainer.imagined(pod, claims, changes, policy, question.narrate) for pod, claims in pods]
        return Answer(200, orjson.dumps(found))
    except UnknownPod as error:
        return problem(404, str(error))
    except ValidationError as error:
        return problem(400, faults_of(error, {}))
    except TooLarge as error:
        return problem(413, str(error))
    except TooMany as error:
        return problem(503, str(error))
    except BerthError as error:
        return problem(400, str(error))


def _read(body: bytes) -> tuple[Question, Policy | None]:
    """The question of a body and its policy, in a thread: it may be long. Raises ValidationError or BerthError."""
    question = Question.model_validate(json_value(body, "body"))
    return question, load_policy(question.policy) if question.policy is not None else None


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _changes(service: Service, without: list[str], free: list[str]) -> Changes:
    snapshot = service.mirror.snapshot()
    for name in without:
        if name not in snapshot.views:
            raise WireError("without", f"node {shown(name)} is not known")
    given_back: list[Result] = []
    for text in free:
        given_back += devices_of(snapshot, text)
    return Changes(frozenset(without), tuple(given_back))
