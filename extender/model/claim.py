"""Claims, classes and allocations (resource.k8s.io/v1), and the core/v1 objects that refer to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from extender.model.device import DeviceId, Taint, own_name
from extender.model.node_selector import NodeSelector
from extender.model.pod_group import GroupKey, Membership
from extender.model.quantity import Quantity

MAX_RESULTS = 32  # resource.k8s.io AllocationResultsMaxSize
MAX_CONFIG = 64  # entries of an allocation; resource.k8s.io has no name for it
MAX_CONSUMERS = 256  # of one claim: ResourceClaimReservedForMaxSize of resource.k8s.io
MAX_CLAIMS = 64  # of one pod; the API has no limit, and a claim may have 256 alternatives
MAX_ALTERNATIVES = 512  # of all requests of one pod's claims; a request without alternatives counts as one
SCHEDULING_GROUP = "scheduling.k8s.io"
FINALIZER = "resource.kubernetes.io/delete-protection"
RELEASE_SUFFIX = "/take-back"  # of the allocator while a process is about to release the allocation
ALLOCATOR_ANNOTATION = "berth.dev/allocator"  # on a claim: the Berth process that allocated it
SCHEDULER = "berth-scheduler"  # the schedulerName of the pods that Berth places
DECISION_ANNOTATION = "berth.dev/decision"  # on a pod: written with its Binding
MARKER_CLASS = "berth.dev"  # the DeviceClass that Berth updates so that kube-scheduler retries waiting pods
COMPUTE_DOMAIN_DRIVER = "compute-domain.nvidia.com"
COMPUTE_DOMAIN_LABEL = "resource.nvidia.com/computeDomain"  # on a node: the UID of the only domain that can use it
GROUP_ANNOTATION = "berth.dev/group"  # names a pod's group; Berth writes it to the claims of all groups' pods
EXTENDED_CLAIM_ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
IMPLICIT_RESOURCE_PREFIX = "deviceclass.resource.kubernetes.io/"
GENERATED_PREFIX = 58  # characters of metadata.generateName that the API server keeps
_GENERATED_SUFFIX = 5  # characters that the API server appends


class ObjectKey(NamedTuple):
    """Namespace and name of an object. The namespace is empty for cluster-scoped objects."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration of device taints (resource.k8s.io DeviceToleration) or of node taints (core/v1)."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    seconds: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """One way to satisfy a request: the `exactly` form, or one alternative of `firstAvailable`.

    `name` is the name that allocation results use: 'req', or 'req/sub' for an alternative.
    """

    name: str
    class_name: str
    selectors: tuple[str, ...] = ()
    mode: str = "ExactCount"
    count: int = 1
    admin_access: bool = False
    tolerations: tuple[Toleration, ...] = ()
    capacity: Mapping[str, Quantity] | None = None
    derived: tuple[tuple[str, str], ...] = ()  # (attribute name, CEL expression) for the claim's constraints (KEP-6080)


@dataclass(frozen=True, slots=True)
class Request:
    """A named request. Only the `firstAvailable` form has more than one alternative."""

    name: str
    alternatives: tuple[DeviceRequest, ...]
    prioritized: bool = False


def _covers(names: tuple[str, ...], request: str) -> bool:
    """Whether a list of requests names this request or its parent. An empty list names all."""
    return not names or request in names or request.partition("/")[0] in names


@dataclass(frozen=True, slots=True)
class Constraint:
    """A matchAttribute or distinctAttribute constraint. Empty `requests` means all requests of the claim."""

    kind: str  # "match", "distinct", "both" (the API server rejects it), or "" for a kind that is not supported
    attribute: str = ""
    requests: tuple[str, ...] = ()

    def covers(self, request: str) -> bool:
        """Whether the constraint applies to this request ('req' or 'req/sub')."""
        return _covers(self.requests, request)


@dataclass(frozen=True, slots=True)
class Config:
    """Opaque driver parameters as canonical JSON text, so that the value is hashable."""

    driver: str
    parameters: str
    requests: tuple[str, ...] = ()
    source: str = ""  # FromClass or FromClaim in an allocation, else empty
    known: bool = True  # False: the entry has no `opaque` form

    def covers(self, request: str) -> bool:
        """Whether the parameters are for this request ('req' or 'req/sub')."""
        return _covers(self.requests, request)


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """The spec of a claim. `content` is its JSON; specs with equal content share one evaluation result."""

    requests: tuple[Request, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    config: tuple[Config, ...] = ()
    compute_domain: str = ""  # UID of the ComputeDomain whose channel the claim requests; '' for none
    content: bytes = b""
    estimated_bytes: int = 0  # of memory, for the JSON and its decoded texts


class Result(NamedTuple):
    """One entry of status.allocation.devices.results of a claim."""

    request: str
    device: DeviceId
    admin_access: bool = False
    tolerations: tuple[Toleration, ...] = ()
    share_id: str = ""
    consumed: Mapping[str, Quantity] | None = None
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    skip_node_operations: tuple[str, ...] = ()

    @property
    def amounts(self) -> dict[str, int]:
        """The nanos that a share takes of each capacity, by own name. A stored amount below zero makes no room."""
        driver = self.device.driver
        return {own_name(name, driver): max(amount.nanos, 0) for name, amount in (self.consumed or {}).items()}


@dataclass(frozen=True, slots=True)
class Allocation:
    """status.allocation of a claim."""

    results: tuple[Result, ...] = ()
    config: tuple[Config, ...] = ()
    node_selector: NodeSelector | None = None
    timestamp: str = ""


@dataclass(frozen=True, slots=True)
class Consumer:
    """An entry of status.reservedFor."""

    uid: str
    name: str
    resource: str = "pods"
    api_group: str = ""


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """Conditions that a driver reported for one allocated device (status.devices)."""

    device: DeviceId
    share_id: str = ""
    conditions: tuple[tuple[str, str], ...] = ()  # (type, status)


@dataclass(frozen=True, slots=True)
class Claim:
    """A ResourceClaim, reduced to what allocation and writing need."""

    key: ObjectKey
    uid: str
    resource_version: str = ""
    spec: ClaimSpec = field(default_factory=ClaimSpec)
    allocation: Allocation | None = None
    reserved_for: tuple[Consumer, ...] = ()
    devices: tuple[DeviceStatus, ...] = ()
    finalizers: tuple[str, ...] = ()
    deleting: bool = False
    owner_pod_uid: str = ""
    owner_group: Consumer | None = None  # the PodGroup that controls the claim, as status.reservedFor names it
    allocator: str = ""  # the Berth process that allocated it or took it over; '' for other allocators
    group: str = ""  # group of the pod for which Berth allocated it, as GroupKey.on_claims
    extended: bool = False  # whether it is the special claim of a pod with extended resources
    problem: str = ""  # why Berth cannot use the object, with the field; '' if it can

    @property
    def is_of_berth(self) -> bool:
        """Whether a Berth process allocated it."""
        return bool(self.allocator)

    @property
    def is_being_released(self) -> bool:
        """Whether a Berth process has announced that it releases the allocation."""
        return self.allocator.endswith(RELEASE_SUFFIX)

    def is_reserved_for(self, pod_uid: str) -> bool:
        return any(consumer.uid == pod_uid for consumer in self.reserved_for)

    @property
    def reservations_left(self) -> int:
        """How many consumers it may still get."""
        return max(MAX_CONSUMERS - len(self.reserved_for), 0)

    @property
    def special_for(self) -> str:
        """UID of the pod whose special claim this is, or ''.

        A tenant can forge the annotation, the owner and the generated name. Only a scheduler can write
        status.reservedFor, so it must name exactly that pod.
        """
        if not self.extended or len(self.reserved_for) != 1:
            return ""
        (consumer,) = self.reserved_for
        generated = self.key.name[:-_GENERATED_SUFFIX] == special_claim_prefix(consumer.name)[:GENERATED_PREFIX]
        is_owner = consumer.resource == "pods" and consumer.uid == self.owner_pod_uid
        return consumer.uid if generated and is_owner else ""


def special_claim_prefix(pod_name: str) -> str:
    """metadata.generateName that kube-scheduler gives to the special claim of a pod."""
    return f"{pod_name}-extended-resources-"


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A DeviceClass. `problem` says why Berth cannot use it, or is empty."""

    name: str
    selectors: tuple[str, ...] = ()
    config: tuple[Config, ...] = ()
    extended_resource: str = ""
    created: str = ""
    problem: str = ""


def extended_resources(classes: Iterable[DeviceClass]) -> dict[str, str]:
    """Extended resource name to DeviceClass name: the newest class wins, then the first class name."""
    found: dict[str, DeviceClass] = {}
    for class_ in classes:
        name = class_.extended_resource
        if not name:
            continue
        known = found.get(name)
        if known is None or (class_.created, _reversed(class_.name)) > (known.created, _reversed(known.name)):
            found[name] = class_
    return {name: class_.name for name, class_ in found.items()}


def _reversed(name: str) -> tuple[int, ...]:
    """A sort key that reverses the order of names."""
    return tuple(-ord(char) for char in name)


@dataclass(frozen=True, slots=True)
class Node:
    """A node: name, labels, the names of the extended resources that its kubelet offers, and blocking taints."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    allocatable: frozenset[str] = frozenset()  # names of resources whose amount is above zero
    taints: tuple[Taint, ...] = ()  # with effect NoSchedule or NoExecute; also spec.unschedulable


@dataclass(frozen=True, slots=True)
class PodClaim:
    """An entry of pod.spec.resourceClaims."""

    name: str
    claim_name: str = ""
    template_name: str = ""


@dataclass(frozen=True, slots=True)
class PodGroup:
    """A scheduling.k8s.io PodGroup. A claim entry of a member pod that equals one of `claims` belongs to the group."""

    name: str
    uid: str
    claims: tuple[PodClaim, ...] = ()

    @property
    def consumer(self) -> Consumer:
        """The group as an entry of status.reservedFor."""
        return Consumer(self.uid, self.name, "podgroups", SCHEDULING_GROUP)


@dataclass(frozen=True, slots=True)
class Container:
    """A container and its resource requests: (name, whole units), sorted by name. Native resources count as 0."""

    name: str
    requests: tuple[tuple[str, int], ...] = ()
    init: bool = False
    sidecar: bool = False


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, reduced to what allocation needs."""

    key: ObjectKey
    uid: str
    claims: tuple[PodClaim, ...] = ()  # at most MAX_CLAIMS + 1
    claim_statuses: Mapping[str, str | None] = field(default_factory=dict)
    containers: tuple[Container, ...] = ()  # none if no container requests an extended resource
    annotations: Mapping[str, str] = field(default_factory=dict)  # those that Berth knows, each cut
    node_name: str = ""
    scheduler: str = ""
    phase: str = ""
    deleting: bool = False
    extended_claim: str = ""  # status.extendedResourceClaimStatus.resourceClaimName
    group: str = ""  # spec.schedulingGroup.podGroupName
    resource_version: str = ""
    membership: Membership | None = None  # None: the pod names no group
    jobs: tuple[GroupKey, ...] = ()  # its JobSet and its Job, if it names no group: they are none
    gated: bool = False  # whether the pod has a scheduling gate
    node_selectors: tuple[NodeSelector, ...] = ()  # a node must match all; only of pods with a group or devices
    tolerations: tuple[Toleration, ...] = ()  # of node taints; only of pods with a group or devices
    constraints_are_known: bool = False  # whether these two were read
    unschedulable: str = ""  # why kube-scheduler found no node at the last attempt: condition PodScheduled, cut
    tried: bool = False  # whether kube-scheduler has reported an attempt that failed: PodScheduled is False
    scheduler_error: str = ""  # with which the last attempt ended, such as a failed bind: PodScheduled, cut
    created: str = ""  # metadata.creationTimestamp
    # Whether kube-scheduler may offer it other nodes than equal pods: it has volume claims, is spread over domains, or
    # has constraints on nodes that are too large.
    has_own_nodes: bool = False
    problem: str = ""  # why Berth cannot place the pod, with the field; '' if it can

    def names(self, claim_name: str) -> bool:
        """Whether the pod uses the claim of this name in its namespace, directly or through a template.

        True if the pod has too many claims: Berth does not read all of them.
        """
        if len(self.claims) > MAX_CLAIMS:
            return True
        return claim_name in self.claim_statuses.values() or any(c.claim_name == claim_name for c in self.claims)

    @property
    def claim_keys(self) -> frozenset[ObjectKey]:
        """Keys of the pod's claims whose names are known: a claim from a template has its name once it exists."""
        names = (entry.claim_name or self.claim_statuses.get(entry.name) for entry in self.claims)
        return frozenset(ObjectKey(self.key.namespace, name) for name in names if name)

    @property
    def has_claim_names(self) -> bool:
        """Whether the names of all claims are known. An older version of a pod lacks those of claims from templates."""
        return all(entry.claim_name or entry.name in self.claim_statuses for entry in self.claims)

    @property
    def may_need_devices(self) -> bool:
        """Whether the pod has claims, or a container requests a resource that a DeviceClass may provide."""
        return bool(self.claims or self.problem) or any(
            "/" in name and amount for container in self.containers for name, amount in container.requests
        )

    @property
    def concerns_berth(self) -> bool:
        """Whether the pod may need devices, or names a group. All nodes fit any other pod."""
        return self.membership is not None or self.may_need_devices

    @property
    def is_waiting(self) -> bool:
        """Whether kube-scheduler may still place the pod."""
        return not (self.node_name or self.deleting or self.gated or self.ended)

    @property
    def ended(self) -> bool:
        """Whether the pod never runs again. A pod can fail before it has a node."""
        return self.phase in ("Succeeded", "Failed")


class ReservationState(StrEnum):
    """The state of a claim's reservation."""

    NONE = "none"
    HELD = "held"
    BINDING = "binding"


class Reservation(NamedTuple):
    """The devices that a filter call holds for a claim, or that a bind writes into the claim."""

    pod_uid: str  # UID of the pod of the filter call or bind
    node: str
    results: tuple[Result, ...]
    state: ReservationState
    deadline: float  # end of the hold, in seconds of the service's clock; infinite during a bind
