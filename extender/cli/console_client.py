"""Asks a console: its client, and the shapes of its replies, as far as the commands print them.

A reply that does not have Berth's shape raises an error; no command prints it.
"""

from __future__ import annotations

from typing import Any

import httpx
import orjson
from pydantic import BaseModel, TypeAdapter, ValidationError

from extender.api.documents import json_value
from extender.api.fields import Json
from extender.base.berth_errors import BerthError, WireError
from extender.base.text_limits import one_line

ANSWER_SECONDS = 30.0
_ERROR_BYTES = 1024  # of an error's text
_OK, _BAD_REQUEST, _UNAUTHORIZED, _NOT_FOUND = 200, 400, 401, 404


class NotKnown(BerthError):
    """The console does not know the object of the question."""


class ConsoleClient:
    """Asks the console at a URL.

    `namespace` is the default namespace of the context that leads to it; '' without a context. `address` and
    `token_from` are for messages.
    """

    def __init__(self, address: str, token: str, namespace: str = "") -> None:
        self.address, self.token, self.namespace = address, token, namespace
        self.token_from = "--token or BERTH_TOKEN" if token else ""

    def attempts(self, pod: str) -> str:  # noqa: ARG002 - InstalledConsole reads them
        """How often kube-scheduler did not place the pod NAMESPACE/NAME; '' if this way shows no Events, as a URL."""
        return ""

    def send(self, path: str, body: bytes | None) -> httpx.Response:
        """The reply to GET, or to POST when there is a `body`. Raises BerthError."""
        # Loading certificate authorities takes longer than the request; plain HTTP needs none.
        tls = not self.address.startswith("http://")
        try:
            return httpx.request(**self.request(f"{self.address}{path}", body), timeout=ANSWER_SECONDS, verify=tls)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            reason = one_line(str(error)) or type(error).__name__
            address = one_line(self.address)
            raise WireError("--server", f"{address} does not answer ({reason}); is `berth console` there?") from error

    def request(self, url: str, body: bytes | None) -> dict[str, Any]:
        """The arguments of httpx for a request."""
        headers = {
            "Content-Type": "application/json",
            **({"Authorization": f"Bearer {self.token}"} if self.token else {}),
        }
        return {"method": "GET" if body is None else "POST", "url": url, "content": body, "headers": headers}

    def ask(self, path: str, shape: Any, body: bytes | None = None) -> Any:
        """Send GET, or POST when there is a `body`, and return the decoded JSON of the reply.

        `shape` is the pydantic type that the reply must have. Raises BerthError; NotKnown for 404.
        """
        reply, address = self.send(path, body), one_line(self.address)
        if reply.status_code == _UNAUTHORIZED:
            raise BerthError(_rejected(address, self.token_from))
        problem = _own_problem(reply) if reply.status_code != _OK else ""
        if reply.status_code == _NOT_FOUND and problem:
            raise NotKnown(problem)
        if reply.status_code == _BAD_REQUEST and problem:  # it names the part of the question
            raise BerthError(problem)
        if reply.status_code != _OK:
            problem = problem or one_line(reply.text, _ERROR_BYTES)
            raise BerthError(f"{address}{path} answers {reply.status_code}: {problem}")
        try:
            found = json_value(reply.content, f"{address}{path}")
            TypeAdapter(shape).validate_python(found)
        except (WireError, ValidationError) as error:
            raise WireError(
                "--server", f"{address}{path} does not answer as Berth does; is `berth console` there?"
            ) from error
        return found


def _rejected(address: str, token_from: str) -> str:
    if not token_from:
        return f"{address} needs a token: give --token, or set BERTH_TOKEN"
    later = "; it reads a changed Secret within two minutes" if token_from.startswith("Secret") else ""
    return f"{address} rejects the token of {token_from}{later}"


def _own_problem(reply: httpx.Response) -> str:
    """The text of Berth's own error; '' if the body has none."""
    try:
        found = orjson.loads(reply.content)
    except orjson.JSONDecodeError:
        return ""
    message = found.get("error") if isinstance(found, dict) else None
    return one_line(message, _ERROR_BYTES) if isinstance(message, str) else ""


# -- the shapes of replies -------------------------------------------------------------------------------------------


class OtherDevicesReply(BaseModel):
    """The number of devices of one driver on a node, and how many of them are free."""

    driver: str
    free: int
    devices: int


class NodeReply(BaseModel):
    """A node of the fleet. `gpus` has one letter per GPU: f free, c closed, h held, u allocated, 1 to 9 tenths of the
    memory allocated in shares, d in use without a claim (drift), x unhealthy. A closed GPU is free, but tainted, or its
    node takes no pods. `others` has the devices that are no GPUs.
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


class FleetChangeReply(BaseModel):
    """The reply to GET /v1/fleet?since=CURSOR, as far as a watch of nodes reads it."""

    nodes: list[NodeReply]
    cursor: str


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
