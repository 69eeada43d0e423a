"""Questions to a running Berth. An answer of another shape than Berth's is told, not shown."""

from __future__ import annotations

from typing import Annotated, Any

import httpx
import orjson
import typer
from pydantic import BaseModel, TypeAdapter, ValidationError

from extender.cli.addresses import parse_url
from extender.model import BerthError, WireError, one_line
from extender.wire import json_value

Server = Annotated[str, typer.Option(envvar="BERTH_SERVER", help="Where berth console listens.")]
Token = Annotated[str, typer.Option(envvar="BERTH_TOKEN", help="The token that Berth asks for, if it does.")]
SERVER = "http://127.0.0.1:8889"
_SECONDS = 30.0
_MOST_TOLD = 1024  # bytes of an error's text
Json = dict[str, Any]


class NodeReply(BaseModel):
    """A node of the fleet."""

    name: str
    product: str
    gpus: str
    zone: str = ""
    rack: str = ""
    clique: str = ""


class WaitingPodReply(BaseModel):
    """A pod that waits."""

    pod: str
    sentence: str


class DecidedPodReply(BaseModel):
    """A pod that was placed."""

    at: str
    pod: str
    node: str
    devices: int
    ring_gbps: float
    best_gbps: float


class FleetReply(BaseModel):
    """GET /v1/fleet."""

    nodes: list[NodeReply]
    waiting: int
    pending: list[WaitingPodReply]
    decisions: list[DecidedPodReply]


class ClaimReply(BaseModel):
    """One of GET /v1/claims."""

    claim: str
    devices: list[str]
    pods: list[str]
    ours: bool
    problem: str


class PolicyStatusReply(BaseModel):
    """GET /v1/policy."""

    generation: int
    problem: str
    policy: Json
    candidate: Json | None
    candidate_problem: str


class ScorePartReply(BaseModel):
    """One part of a score."""

    name: str
    value: float
    sentence: str


class ScoredNodeReply(BaseModel):
    """A node with the devices that a pod got there, or would get."""

    node: str
    score: float
    devices: list[str]
    ring_gbps: float
    best_gbps: float
    source: str
    parts: list[ScorePartReply]


class ComparisonReply(BaseModel):
    """A decision that the candidate policy would have made otherwise."""

    pod: str
    active: ScoredNodeReply
    candidate: ScoredNodeReply | None


class PolicyDiffReply(BaseModel):
    """GET /v1/policy/diff."""

    candidate: bool
    problem: str
    compared: int
    left_out: int
    changed: list[ComparisonReply]


class NodeGroupReply(BaseModel):
    """Nodes refused for one reason."""

    nodes: int
    reason: str
    examples: list[str]
    causes: list[str]


class AttemptReply(BaseModel):
    """One answer of filter."""

    at: str
    fitting: int
    asked: int
    reasons: list[tuple[str, int]]


class DecisionReply(BaseModel):
    """How a pod was placed."""

    at: str
    chosen: ScoredNodeReply
    runner_up: str
    margin: float


class ExplanationReply(BaseModel):
    """One of POST /v1/explain."""

    pod: str
    outcome: str
    sentence: str = ""
    best: list[ScoredNodeReply] = []
    groups: list[NodeGroupReply] = []
    misses: list[str] = []
    terms: list[str] = []
    narration: list[str] = []
    change: str | None = None
    attempts: list[AttemptReply] = []
    decision: DecisionReply | None = None


def ask(server: str, token: str, path: str, shape: Any, body: bytes | None = None) -> Any:
    """The answer of a running Berth as it came, which has this shape. Raises BerthError."""
    if not (token.isascii() and token.isprintable()):
        raise WireError("--token", "must be visible ASCII characters")
    headers = [
        (b"Content-Type", b"application/json"),
        *([(b"Authorization", f"Bearer {token}".encode())] if token else []),
    ]
    server = parse_url(server, "--server")
    address = one_line(server)
    try:
        method = "GET" if body is None else "POST"
        # Plain HTTP needs no authorities, and to load them takes longer than all the rest.
        tls = not server.startswith("http://")
        reply = httpx.request(method, f"{server}{path}", content=body, headers=headers, timeout=_SECONDS, verify=tls)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        reason = one_line(str(error)) or type(error).__name__
        raise WireError("--server", f"{address} does not answer ({reason}); is `berth console` there?") from error
    if reply.status_code != 200:  # noqa: PLR2004 - OK
        raise BerthError(f"{address}{path} answers {reply.status_code}: {_problem(reply)}")
    try:
        found = json_value(reply.content, f"{address}{path}")
        TypeAdapter(shape).validate_python(found)
    except (WireError, ValidationError) as error:
        raise WireError(
            "--server", f"{address}{path} does not answer as Berth does; is `berth console` there?"
        ) from error
    return found


def _problem(reply: httpx.Response) -> str:
    """The text of an error: Berth's own, or the beginning of what another server said."""
    try:
        found = orjson.loads(reply.content)
    except orjson.JSONDecodeError:
        return one_line(reply.text, _MOST_TOLD)
    told = found.get("error") if isinstance(found, dict) else None
    return one_line(told if isinstance(told, str) else reply.text, _MOST_TOLD)
