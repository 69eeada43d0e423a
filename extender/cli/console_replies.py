"""The shapes of a console's replies, as far as the commands print them."""

from __future__ import annotations

from pydantic import BaseModel

from extender.api.fields import Json


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
