"""Claims, classes and allocations (resource.k8s.io/v1), and the core/v1 objects that refer to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from extender.model.device import DeviceId
from extender.model.node_selector import NodeSelector
from extender.model.quantity import Quantity

MAX_RESULTS = 32  # resource.k8s.io AllocationResultsMaxSize
MAX_RESERVATIONS = 256  # resource.k8s.io ResourceClaimReservedForMaxSize
SCHEDULING_GROUP = "scheduling.k8s.io"
FINALIZER = "resource.kubernetes.io/delete-protection"
OURS_ANNOTATION = (
    "berth.dev/allocator"  # on claims that Berth allocates: the process that did, written with the finalizer
)
DECISION_ANNOTATION = "berth.dev/decision"  # on a pod, by its Binding
GROUP_ANNOTATION = "berth.dev/group"  # on pods that want to be near each other; copied to their claims
EXTENDED_CLAIM_ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
IMPLICIT_RESOURCE_PREFIX = "deviceclass.resource.kubernetes.io/"
_GENERATED_PREFIX = 58  # characters of metadata.generateName that an API server keeps
_GENERATED_SUFFIX = 5  # characters that it puts behind


class ObjectKey(NamedTuple):
    """Namespace and name of an object."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class Toleration:
    """Which device taints a request accepts."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    seconds: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """One way to satisfy a request: the `exactly` form, or one alternative of `firstAvailable`.

    `name` is as results carry it: 'req', or 'req/sub' for an alternative.
    """

    name: str
    class_name: str
    selectors: tuple[str, ...] = ()
    mode: str = "ExactCount"
    count: int = 1
    admin_access: bool = False
    tolerations: tuple[Toleration, ...] = ()
    capacity: Mapping[str, Quantity] | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """A named request; more than one alternative only in the `firstAvailable` form."""

    name: str
    alternatives: tuple[DeviceRequest, ...]
    prioritized: bool = False


@dataclass(frozen=True, slots=True)
class Constraint:
    """matchAttribute or distinctAttribute over requests; `requests` empty means all."""

    kind: str  # "match", "distinct" or "" for a kind this version does not know
    attribute: str = ""
    requests: tuple[str, ...] = ()

    def covers(self, request: str) -> bool:
        """Whether a result of this request ('req' or 'req/sub') counts."""
        return not self.requests or request in self.requests or request.partition("/")[0] in self.requests


@dataclass(frozen=True, slots=True)
class Config:
    """Opaque driver parameters, kept as canonical JSON text so that they stay hashable."""

    driver: str
    parameters: str
    requests: tuple[str, ...] = ()
    source: str = ""  # FromClass or FromClaim once allocated
    known: bool = True  # False: the entry has no `opaque` form


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """What is asked for. Specs with equal `content`, the JSON they were read from, share one status."""

    requests: tuple[Request, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    config: tuple[Config, ...] = ()
    content: bytes = b""


@dataclass(frozen=True, slots=True)
class Result:
    """One allocated device as it stands in a claim's status."""

    request: str
    device: DeviceId
    admin_access: bool = False
    tolerations: tuple[Toleration, ...] = ()
    share_id: str = ""
    consumed: Mapping[str, Quantity] | None = None
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    skip_node_operations: tuple[str, ...] = ()


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
    conditions: tuple[tuple[str, str], ...] = ()  # type, status


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
    writer: str = ""  # which Berth process allocated it or took it over; '' for other allocators
    group: str = ""  # of the pod that Berth allocated it for
    extended: bool = False  # the special claim of a pod with extended resources
    problem: str = ""  # why the object cannot be used, naming the field

    @property
    def ours(self) -> bool:
        """Whether some Berth allocated it."""
        return bool(self.writer)

    def is_reserved_for(self, pod_uid: str) -> bool:
        return any(consumer.uid == pod_uid for consumer in self.reserved_for)

    @property
    def special_for(self) -> str:
        """UID of the pod that this is the special claim of, or ''. Annotation, owner and generated name say so, and a
        tenant can write all of them; but only a scheduler writes status.reservedFor, which names that pod alone."""
        if not self.extended or len(self.reserved_for) != 1:
            return ""
        (consumer,) = self.reserved_for
        generated = self.key.name[:-_GENERATED_SUFFIX] == special_claim_prefix(consumer.name)[:_GENERATED_PREFIX]
        is_owner = consumer.resource == "pods" and consumer.uid == self.owner_pod_uid
        return consumer.uid if generated and is_owner else ""


def special_claim_prefix(pod_name: str) -> str:
    """metadata.generateName of a pod's special claim, as kube-scheduler has it."""
    return f"{pod_name}-extended-resources-"


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A DeviceClass."""

    name: str
    selectors: tuple[str, ...] = ()
    config: tuple[Config, ...] = ()
    extended_resource: str = ""
    created: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A node's name, labels, and which scalar resources its kubelet offers."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    allocatable: frozenset[str] = frozenset()  # names with an amount above zero


@dataclass(frozen=True, slots=True)
class PodClaim:
    """An entry of pod.spec.resourceClaims."""

    name: str
    claim_name: str = ""
    template_name: str = ""


@dataclass(frozen=True, slots=True)
class PodGroup:
    """A scheduling.k8s.io PodGroup: a pod's claim that equals one of its claims belongs to the group."""

    name: str
    uid: str
    claims: tuple[PodClaim, ...] = ()

    @property
    def consumer(self) -> Consumer:
        """The group as an entry of status.reservedFor."""
        return Consumer(self.uid, self.name, "podgroups", SCHEDULING_GROUP)


@dataclass(frozen=True, slots=True)
class Container:
    """A container's extended-resource demand; `requests` is sorted by name, cpu and memory included."""

    name: str
    requests: tuple[tuple[str, int], ...] = ()
    init: bool = False
    sidecar: bool = False


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, reduced to what allocation needs."""

    key: ObjectKey
    uid: str
    claims: tuple[PodClaim, ...] = ()
    claim_statuses: Mapping[str, str | None] = field(default_factory=dict)
    containers: tuple[Container, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_name: str = ""
    scheduler: str = ""
    phase: str = ""
    deleting: bool = False
    extended_claim: str = ""  # status.extendedResourceClaimStatus.resourceClaimName
    group: str = ""
    resource_version: str = ""

    def names(self, claim_name: str) -> bool:
        """Whether the pod asks for a claim of this name in its own namespace, be it made from a template."""
        return claim_name in self.claim_statuses.values() or any(c.claim_name == claim_name for c in self.claims)

    @property
    def claim_keys(self) -> frozenset[ObjectKey]:
        """The claims that the pod asks for, as far as they exist."""
        names = (entry.claim_name or self.claim_statuses.get(entry.name) for entry in self.claims)
        return frozenset(ObjectKey(self.key.namespace, name) for name in names if name)

    @property
    def may_need_devices(self) -> bool:
        """Whether it has claims, or some container asks for a resource that a DeviceClass may stand for."""
        return bool(self.claims) or any(
            "/" in name and amount for container in self.containers for name, amount in container.requests
        )
