"""The HTTP client of the commands that ask a running `berth console`.

A reply that does not have Berth's shape raises an error; no command prints it.
"""

from __future__ import annotations

from typing import Annotated, Any

import httpx
import orjson
import typer
from pydantic import BaseModel, TypeAdapter, ValidationError

from extender.api.documents import json_value
from extender.api.fields import Json
from extender.base.berth_errors import BerthError, WireError
from extender.base.text_limits import one_line
from extender.cli.options import parse_url

Server = Annotated[str, typer.Option(envvar="BERTH_SERVER", help="The URL of berth console.")]
Token = Annotated[str, typer.Option(envvar="BERTH_TOKEN", help="The token of the console's pages, if they need one.")]
SERVER = "http://127.0.0.1:8889"
_SECONDS = 30.0
_ERROR_BYTES = 1024  # of an error's text


class OtherDevicesReply(BaseModel):
    """The number of devices of one driver on a node, and how many of them are free."""

    driver: str
    free: int
    devices: int


class NodeReply(BaseModel):
    """A node of the fleet. `gpus` has one letter per GPU: f free, h held, u allocated, 1 to 9 tenths of the memory
    allocated in shares, d in use without a claim (drift), x unhealthy. `others` has the devices that
    are no GPUs.
    """

    name: str
    product: str
    gpus: str
    others: list[OtherDevicesReply] = []
    zone: str = ""
    rack: str = ""
    clique: str = ""


class PlaceReply(BaseModel):
    """The PCIe roots and NUMA nodes of a device, the first one counts. Each comes from driver, agent, its GPU, or its
    PCIe root: then another device there says the NUMA node.
    """

    roots: list[str]
    roots_from: str
    numa: list[int]
    numa_from: list[str]


class BesideReply(BaseModel):
    """The nearest free devices of another driver: at most 4 names, and the number of those that are as near."""

    driver: str
    devices: list[str]
    more: int
    nearness: str


class DeviceReply(BaseModel):
    """A device of a node. Only a free GPU has `beside`."""

    name: str
    state: str
    claims: list[str]
    place: PlaceReply
    beside: list[BesideReply]


class NodeDetailReply(NodeReply):
    """The reply to GET /v1/nodes/{name}."""

    devices: list[DeviceReply]


class WaitingPodReply(BaseModel):
    """A pod that waits, with the reason, and the number of pods of its group with the same reason."""

    pod: str
    sentence: str
    pods: int = 1


class DecidedPodReply(BaseModel):
    """A pod that serve has bound. Bandwidths are in GB/s."""

    at: str
    pod: str
    node: str
    devices: int
    ring_gbps: float
    best_gbps: float


class FleetReply(BaseModel):
    """The reply to GET /v1/fleet."""

    nodes: list[NodeReply]
    waiting: int
    pending: list[WaitingPodReply]
    decisions: list[DecidedPodReply]


class ClaimReply(BaseModel):
    """One claim in the reply to GET /v1/claims. Devices are driver/pool/device. `ours`: a Berth process allocated it;
    `problem`: the part of it that is invalid.
    """

    claim: str
    devices: list[str]
    pods: list[str]
    ours: bool
    problem: str


class PolicyStatusReply(BaseModel):
    """The reply to GET /v1/policy. `problem` says why a newer policy was rejected; it is empty if none was.

    `unmatched_products` are names in `products` that are in no product name of the fleet.
    """

    generation: int
    problem: str
    unmatched_products: list[str]
    policy: Json


class ScorePartReply(BaseModel):
    """One part of a score, between 0 and 1, with its sentence."""

    name: str
    value: float
    sentence: str


class DevicePairReply(BaseModel):
    """Two devices that a pod uses together, such as a GPU and its NIC. `note` says why they are not nearer, if that
    is known.
    """

    device: str
    other: str
    nearness: str
    note: str


class ScoredNodeReply(BaseModel):
    """A node with the devices that a pod has there, or would get. Bandwidths are in GB/s.

    `reused` are the devices of claims that were allocated before. `pairs` has at most 8, `more_pairs` is the number of
    the others. `network` is the predicted bandwidth of the NICs, where it was measured for such a machine. `clique` is
    the node's NVLink clique if another ComputeDomain has channels in it.
    """

    node: str
    score: float
    devices: list[str]
    reused: list[str]
    ring_gbps: float
    best_gbps: float
    source: str
    parts: list[ScorePartReply]
    pairs: list[DevicePairReply] = []
    more_pairs: int = 0
    network: str = ""
    clique: str = ""


class DecisionReply(BaseModel):
    """The decision by which a pod was bound. `margin` is the score's lead over the runner-up."""

    at: str
    chosen: ScoredNodeReply
    runner_up: str
    margin: float


def ask(server: str, token: str, path: str, shape: Any, body: bytes | None = None) -> Any:
    """Send GET, or POST when there is a `body`, and return the decoded JSON of the reply.

    `shape` is the pydantic type that the reply must have. Raises BerthError.
    """
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
        # Loading certificate authorities takes longer than the request; plain HTTP needs none.
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
    """Return the text of an error: Berth's own, or the beginning of another server's body."""
    try:
        found = orjson.loads(reply.content)
    except orjson.JSONDecodeError:
        return one_line(reply.text, _ERROR_BYTES)
    message = found.get("error") if isinstance(found, dict) else None
    return one_line(message if isinstance(message, str) else reply.text, _ERROR_BYTES)
