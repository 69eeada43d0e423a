"""The device requirements of a pod, in a form that equal pods share.

`requirements_of` returns one of four results: Skip (the pod requests no devices), ErrorStatus (kube-scheduler must ask
again), UnschedulableAndUnresolvable (no node can serve the pod now, with the reason), or PodRequirements.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple

from extender.allocation import NodeInfo, Snapshot
from extender.api.claim_specs import MAX_ALTERNATIVES, ClaimSpec, DeviceRequest, Request
from extender.api.device_classes import IMPLICIT_RESOURCE_PREFIX, DeviceClass
from extender.api.nodes import Node, NodeSelector, lacks_label_or_has, only_node
from extender.api.object_meta import ObjectKey
from extender.api.pod_annotations import PodIntent, intent_of
from extender.api.pod_groups import GroupKey, GroupSource, Membership
from extender.api.pods import MAX_CLAIMS, Container, Pod
from extender.api.reasons import Code, Reason
from extender.api.resource_claims import Allocation, Claim, ReservationState, Result
from extender.base.bits import union
from extender.base.deadline import NO_DEADLINE, Deadline
from extender.base.text_limits import cut
from extender.policy import Policy
from extender.scheduling.node_selection import SelectedNodes
from extender.vendors import CLIQUE_LABEL, COMPUTE_DOMAIN_LABEL, compute_domain

ADMIN_LABEL = "resource.kubernetes.io/admin-access"


def too_many_claims(pod: Pod, claims: Iterable[Claim]) -> Reason | None:
    """The reason for which Berth refuses a pod with so many claims, or with so many alternatives in these claims."""
    if len(pod.claims) > MAX_CLAIMS:
        return Reason(Code.TOO_MANY_CLAIMS, (f"{MAX_CLAIMS} claims",))
    left = MAX_ALTERNATIVES
    for claim in claims:  # the rest is not counted
        left -= sum(len(request.alternatives) for request in claim.spec.requests)
        if left < 0:
            text = f"{MAX_ALTERNATIVES} device requests in its claims, all alternatives counted"
            return Reason(Code.TOO_MANY_CLAIMS, (text,))
    return None


def leftover_claims(pod: Pod, snapshot: Snapshot) -> list[ObjectKey]:
    """The special claims that earlier binds of the pod left. The pod's own claim list does not name them."""
    special = snapshot.special_claims.get((pod.key.namespace, pod.uid), ())
    return [key for key in special if not pod.names(key.name)]


def unresolvable_reason(claim: Claim, pod: Pod, snapshot: Snapshot) -> Reason | None:
    """Why no node can serve the pod with this claim; None if one may."""
    if claim.problem:
        return Reason(Code.INVALID, (f"claim {cut(str(claim.key))}: {claim.problem}",))
    if claim.deleting and not claim.is_reserved_for(pod.uid):
        return Reason(Code.INVALID, (f"claim {cut(str(claim.key))} is being deleted",))
    if claim.allocation is None:
        asks = any(a.admin_access for r in claim.spec.requests for a in r.alternatives)
        if asks and snapshot.namespaces.get(claim.key.namespace, {}).get(ADMIN_LABEL) != "true":
            return Reason(Code.ADMIN_ACCESS, (claim.key.namespace,))
        return None
    if not claim.reservations_left and needs_reservation(claim, pod):
        return Reason(Code.CLAIM_FULL, (str(claim.key),))
    return None


def needs_reservation(claim: Claim, pod: Pod) -> bool:
    """Whether a bind of the pod adds a consumer to the claim: not if it has the pod or the pod's PodGroup already."""
    if not claim.reserved_for:
        return True
    groups = (one.name for one in claim.reserved_for if one.resource == "podgroups")
    return not (claim.is_reserved_for(pod.uid) or (pod.group and pod.group in groups))


class Readiness(Enum):
    """The state of a claim's allocated devices, by their binding conditions."""

    READY = "ready"
    WAITING = "waiting"
    FAILED = "failed"


def readiness(claim: Claim) -> Readiness:
    """The state of all allocated devices of the claim.

    FAILED: a failure condition of a device with binding conditions is true. READY: every binding condition of every
    device is true, or the claim has no allocation. WAITING: all other cases.
    """
    if claim.allocation is None:
        return Readiness.READY
    waiting = False
    for result in claim.allocation.results:
        if not result.binding_conditions:
            continue
        true = _true_conditions(claim, result)
        if true & set(result.binding_failure_conditions):
            return Readiness.FAILED
        waiting = waiting or not set(result.binding_conditions) <= true
    return Readiness.WAITING if waiting else Readiness.READY


def _true_conditions(claim: Claim, result: Result) -> set[str]:
    for status in claim.devices:
        if status.device == result.device and status.share_id == result.share_id:
            return {name for name, value in status.conditions if value == "True"}
    return set()


@dataclass(frozen=True, slots=True)
class ErrorStatus:
    """The cache lacks an object that the pod needs. kube-scheduler must ask again."""

    message: str


@dataclass(frozen=True, slots=True)
class UnschedulableAndUnresolvable:
    """No node can serve the pod, independent of its devices."""

    reason: Reason


class Skip:
    """The pod requests no devices."""


SKIP = Skip()


SPECIAL_NAME = "<extended-resources>"
_RESULT_BYTES, _ASKED_BYTES = 512, 512  # of a device; of a container's request, with that of the special claim
MAX_EXTENDED_REQUESTS = 64  # a claim has at most 32 requests, one for each long-lived container and resource


@dataclass(frozen=True, slots=True, eq=False)
class ExtendedResources:
    """Extended resources of a pod that DeviceClasses provide. The subset that needs a claim differs by node."""

    pod: Pod
    classes: Mapping[str, str]  # resource name to DeviceClass name
    variants: dict[frozenset[str], PodRequirements] = field(default_factory=dict)  # by needed resources; a cache

    def needed(self, node: Node) -> frozenset[str]:
        """The resources that no device plugin of this node provides; they need a claim."""
        return frozenset(name for name in self.classes if name not in node.allocatable)


@dataclass(slots=True, eq=False)  # Final fields, see docs/architecture.md
class PodRequirements:
    """The claims of a pod by state, and everything else that its node and devices depend on.

    Pending claims need devices. Allocated claims have them. Promised claims are reserved: a filter or bind request of a
    pod that shares the claim chose node and devices. With extended resources, `for_node` gives the requirements on a
    node; there the last pending claim can be the special claim.
    """

    namespace: Final[str]  # of the pod
    pending_claims: Final[tuple[Claim, ...]]
    allocated_claims: Final[tuple[Claim, ...]]
    promised_claims: Final[tuple[Claim, ...]]  # each with its expected allocation
    # The pod's own names for the pending claims: pods of one template have equal names, so they share reason texts.
    claim_names: Final[tuple[str, ...]]
    specs: Final[tuple[ClaimSpec, ...]]  # of the pending claims
    classes: Final[Mapping[str, DeviceClass]]  # by name
    intent: Final[PodIntent]
    key: Final[tuple[object, ...]]  # equal keys give equal statuses on every node
    policy: Final[Policy]  # with the overrides for this pod
    group: Final[GroupKey | None] = None
    membership: Final[Membership | None] = None
    compute_domain: Final[str] = ""  # UID of the ComputeDomain whose channel the pod's claims request; '' for none
    claim_selectors: Final[tuple[NodeSelector, ...]] = ()  # of the nodes of the allocated and promised claims
    # These, and that of the ComputeDomain: a node must match all. The driver does not prepare a channel on a node that
    # is labelled for another ComputeDomain.
    node_selectors: Final[tuple[NodeSelector, ...]] = ()
    extended: Final[ExtendedResources | None] = None
    mappings: Final[tuple[RequestMapping, ...]] = ()  # of the special claim
    cpu: Final[int] = 0  # that the pod requests, in thousandths of a core

    def for_node(self, node: Node) -> PodRequirements:
        """The requirements on this node, with the special claim if the node needs one."""
        if self.extended is None:
            return self
        needed = self.extended.needed(node)
        found = self.extended.variants.get(needed)
        if found is None:
            found = self.extended.variants[needed] = self._with_special(self.extended, needed)
        return found

    def _with_special(self, extended: ExtendedResources, needed: frozenset[str]) -> PodRequirements:
        key = (*self.key, needed)
        if not needed:
            return replace(self, extended=None, key=key)
        pod = extended.pod
        spec, mappings = special_claim(pod.containers, {name: extended.classes[name] for name in needed})
        claim = Claim(ObjectKey(pod.key.namespace, SPECIAL_NAME), f"extended/{pod.uid}", spec=spec, extended=True)
        return replace(
            self,
            pending_claims=(*self.pending_claims, claim),
            claim_names=(*self.claim_names, SPECIAL_NAME),
            specs=(*self.specs, spec),
            extended=None,
            mappings=mappings,
            key=key,
        )

    @property
    def claims(self) -> tuple[Claim, ...]:
        return (*self.pending_claims, *self.allocated_claims, *self.promised_claims)

    @property
    def estimated_bytes(self) -> int:
        """The estimated memory of the claims and of the requests of containers, in bytes."""
        claims = self.claims
        results = sum(len(claim.allocation.results) for claim in claims if claim.allocation is not None)
        containers = self.extended.pod.containers if self.extended is not None else ()
        asked = sum(1 + len(container.requests) for container in containers)
        specs = sum(claim.spec.estimated_bytes for claim in claims)
        return specs + results * _RESULT_BYTES + asked * _ASKED_BYTES

    @property
    def counts_as(self) -> int:
        """How many pods with usual claims take as much memory, see FairLRU."""
        return 1 + sum(len(claim.spec.content) for claim in self.claims) // 2048  # bytes of JSON

    def crowded_cliques(self, snapshot: Snapshot) -> frozenset[str]:
        """The NVLink cliques in which other ComputeDomains have channels, and the pod's has none yet."""
        own = self.compute_domain
        if not own or self.policy.compute_domains == "ignore":
            return frozenset()
        return frozenset(clique for clique, domains in snapshot.compute_domains.items() if own not in domains)

    def shared_clique(self, node: Node, snapshot: Snapshot) -> str:
        """Of a pod with a ComputeDomain: the node's NVLink clique if another one has channels in it, too; else ''.

        The pod's own hold is a channel, so that its clique is no more one of `crowded_cliques` when it is bound.
        """
        if self.policy.compute_domains == "ignore":
            return ""
        clique, own = node.labels.get(CLIQUE_LABEL, ""), self.compute_domain
        return clique if any(one != own for one in snapshot.compute_domains.get(clique, ())) else ""

    def mismatch(self, node: Node, snapshot: Snapshot) -> Code | None:
        """Why the pod must not use the node, whatever devices it has; None if it may, as all without node selectors."""
        return next((code for code, names in self.mismatches([node], snapshot).items() if names), None)

    def mismatches(
        self,
        nodes: Iterable[Node],
        snapshot: Snapshot,
        selected: SelectedNodes | None = None,
        deadline: Deadline = NO_DEADLINE,
    ) -> dict[Code, list[str]]:
        """The names of the nodes that do not match `node_selectors`, or are in a forbidden clique, by the reason.

        `selected` are the nodes that match `claim_selectors`, as far as they are known. Raises DeadlineExceeded.
        """
        matching, elsewhere = (selected or SelectedNodes(self.claim_selectors)).split(nodes, deadline)
        found: dict[Code, list[str]] = {Code.ELSEWHERE: elsewhere, Code.COMPUTE_DOMAIN: [], Code.CLIQUE: []}
        domain = self.node_selectors[len(self.claim_selectors) :]
        forbidden = self.crowded_cliques(snapshot) if self.policy.compute_domains == "require" else ()
        for node in matching if domain else ():
            if not all(one.matches(node.name, node.labels) for one in domain):
                found[Code.COMPUTE_DOMAIN].append(node.name)
            elif node.labels.get(CLIQUE_LABEL) in forbidden:
                found[Code.CLIQUE].append(node.name)
        return found

    def devices_on(self, node_info: NodeInfo) -> int:
        """Mask of the devices that the allocated and promised claims have on a node, without those of admin access."""
        claims, index = (*self.allocated_claims, *self.promised_claims), node_info.inventory.index
        results = (one for claim in claims if claim.allocation is not None for one in claim.allocation.results)
        found = (index.get(one.device) for one in results if not one.admin_access)
        return union([1 << bit for bit in set(found) if bit is not None])


PreFilterResult = Skip | ErrorStatus | UnschedulableAndUnresolvable | PodRequirements


def requirements_of(pod: Pod, snapshot: Snapshot, policy: Policy) -> PreFilterResult:
    """The requirements of a pod on a snapshot, or the reason why it has none now."""
    if pod.problem:
        return UnschedulableAndUnresolvable(Reason(Code.INVALID, (f"pod {pod.problem}",)))
    if (too_many := too_many_claims(pod, ())) is not None:
        return UnschedulableAndUnresolvable(too_many)
    extended = _extended_resources(pod, snapshot) if pod.containers else {}
    if not pod.claims and not extended:
        return SKIP
    if extended and (count := _count_extended_requests(pod, extended)) > MAX_EXTENDED_REQUESTS:
        text = f"its containers have {count} requests for extended resources, more than {MAX_EXTENDED_REQUESTS}"
        return UnschedulableAndUnresolvable(Reason(Code.INVALID, (text,)))
    if extended and leftover_claims(pod, snapshot):
        return UnschedulableAndUnresolvable(Reason(Code.EXTENDED_STALE))
    claims = _claims(pod, snapshot)
    if isinstance(claims, ErrorStatus):
        return claims
    if (too_many := too_many_claims(pod, claims.values())) is not None:
        return UnschedulableAndUnresolvable(too_many)
    for claim in claims.values():
        reason = unresolvable_reason(claim, pod, snapshot)
        if reason is not None:
            return UnschedulableAndUnresolvable(reason)
    return _requirements(pod, claims, extended, snapshot, policy)


def _count_extended_requests(pod: Pod, extended: Mapping[str, str]) -> int:
    """The number of container requests for extended resources. The cost of the special claim grows with its square."""
    return sum(name in extended and amount > 0 for container in pod.containers for name, amount in container.requests)


def _extended_resources(pod: Pod, snapshot: Snapshot) -> dict[str, str]:
    """Resource name to DeviceClass name, for every container resource that a DeviceClass provides."""
    found: dict[str, str] = {}
    for container in pod.containers:
        for name, amount in container.requests:
            class_name = class_of_resource(name, snapshot.classes, snapshot.extended_resources) if amount else None
            if class_name is not None:
                found[name] = class_name
    return found


def _claims(pod: Pod, snapshot: Snapshot) -> dict[str, Claim] | ErrorStatus:
    """The pod's claims by the pod's own names, in pod order, each claim once."""
    found: dict[ObjectKey, tuple[str, Claim]] = {}
    for entry in pod.claims:
        name: str | None = entry.claim_name
        if not name:
            if entry.name not in pod.claim_statuses:
                where = f"kubectl -n {pod.key.namespace} get resourceclaimtemplate {entry.template_name}"
                text = f"claim {entry.name} is not created from template {entry.template_name} yet; if it stays so, "
                return ErrorStatus(f"pod {pod.key}: {text}check that the template exists: {where}")
            name = pod.claim_statuses[entry.name]
            if name is None:
                continue
        key = ObjectKey(pod.key.namespace, name)
        claim = snapshot.claims.get(key)
        if claim is None:
            return ErrorStatus(f"pod {pod.key}: claim {key} is not known yet")
        of_group = claim.owner_group is not None and claim.owner_group.name == pod.group
        is_own = claim.owner_pod_uid == pod.uid or of_group
        if entry.template_name and not is_own and not claim.problem:  # no owner is known of a claim with a problem
            owner = f"the pod or its PodGroup {pod.group}" if pod.group else "the pod"
            return ErrorStatus(f"pod {pod.key}: claim {key} is not owned by {owner}")
        found.setdefault(key, (entry.name, claim))
    return dict(found.values())


def _requirements(
    pod: Pod, claims: dict[str, Claim], extended: dict[str, str], snapshot: Snapshot, policy: Policy
) -> PodRequirements | UnschedulableAndUnresolvable:
    pending, allocated, promised = dict[str, Claim](), list[Claim](), list[Claim]()
    for name, claim in claims.items():
        found = snapshot.reservations.get(claim.uid)
        if claim.allocation is not None:
            allocated.append(claim)
        elif found is None or (found.state is ReservationState.HELD and found.pod_uid == pod.uid):
            pending[name] = claim
        else:  # for another pod, or by a bind of this pod
            expected = Allocation(found.results, node_selector=only_node(found.node))
            promised.append(replace(claim, allocation=expected))
    names, specs = tuple(pending), tuple(claim.spec for claim in pending.values())
    classes = {name: snapshot.classes[name] for name in extended.values()}
    for claim in pending.values():
        for request in claim.spec.requests:
            for alternative in request.alternatives:
                class_ = snapshot.classes.get(alternative.class_name)
                if class_ is None:
                    text = (
                        f"claim {cut(str(claim.key))}, request {cut(alternative.name)}: "
                        f"device class {cut(alternative.class_name)} does not exist"
                    )
                    return UnschedulableAndUnresolvable(Reason(Code.INVALID, (text,)))
                classes[class_.name] = class_
    policy = policy.effective(pod.key.namespace, frozenset(classes))
    try:
        intent = intent_of(pod.annotations, policy.defaults.topology)
    except ValueError as error:
        return UnschedulableAndUnresolvable(Reason(Code.INVALID, (str(error),)))
    asked = tuple((c.requests, c.init, c.sidecar) for c in pod.containers) if extended else ()
    contents = tuple(spec.content for spec in specs)
    key = (names, contents, snapshot.classes_version, intent, policy, asked)
    resources = ExtendedResources(pod, extended) if extended else None
    with_domains = (claim.spec for claim in claims.values() if claim.spec.domains)  # few claims have any
    domain = next((uid for spec in with_domains if (uid := compute_domain(spec))), "")
    used = (claim.allocation for claim in (*allocated, *promised))
    selectors = tuple(one.node_selector for one in used if one is not None and one.node_selector is not None)
    group = GroupKey(pod.key.namespace, GroupSource.COMPUTE_DOMAIN, domain) if domain else None
    return PodRequirements(
        namespace=pod.key.namespace,
        pending_claims=tuple(pending.values()),
        allocated_claims=tuple(allocated),
        promised_claims=tuple(promised),
        claim_names=names,
        specs=specs,
        classes=classes,
        intent=intent,
        key=key,
        policy=policy,
        group=pod.membership.key if pod.membership is not None else group,
        membership=pod.membership,
        compute_domain=domain,
        claim_selectors=selectors,
        node_selectors=(*selectors, lacks_label_or_has(COMPUTE_DOMAIN_LABEL, domain)) if domain else selectors,
        extended=resources,
        cpu=pod.cpu,
    )


# -- extended resources ----------------------------------------------------------------------------------------
# Those that a DeviceClass provides (KEP-5004), and the requests of the pod's special claim. Source: the in-tree plugin,
# 1.36. The container index counts init containers first. Each long-lived container (regular or sidecar) gets its own
# request. An init container that ends reuses the devices of later long-lived containers. If several init containers
# need more devices than that, only the largest remainder becomes a request.


class RequestMapping(NamedTuple):
    """The request for one resource of one container (pod status, extendedResourceClaimStatus.requestMappings)."""

    container: str
    resource: str
    request: str


def special_claim(
    containers: tuple[Container, ...], classes: dict[str, str]
) -> tuple[ClaimSpec, tuple[RequestMapping, ...]]:
    """The spec of the special claim for `classes` (resource name to DeviceClass name), and its request mappings."""
    requests: list[DeviceRequest] = []
    mappings: list[RequestMapping] = []
    for resource in sorted(classes):
        made, mapped = _one_resource(containers, resource, classes[resource])
        requests += made
        mappings += mapped
    ordered = sorted(requests, key=lambda request: request.name)
    return ClaimSpec(tuple(Request(request.name, (request,)) for request in ordered)), tuple(mappings)


def _one_resource(
    containers: tuple[Container, ...], resource: str, class_name: str
) -> tuple[list[DeviceRequest], list[RequestMapping]]:
    long_lived: dict[int, DeviceRequest] = {}
    mappings: list[RequestMapping] = []
    for index, container in enumerate(containers):
        if container.init and not container.sidecar:
            continue
        count = dict(container.requests).get(resource, 0)
        if count:
            long_lived[index] = _request(index, container, resource, class_name, count)
            mappings.append(RequestMapping(container.name, resource, long_lived[index].name))
    init_requests, init_mappings = _init_requests(containers, resource, class_name, long_lived)
    return [*init_requests, *long_lived.values()], mappings + init_mappings


def _init_requests(
    containers: tuple[Container, ...], resource: str, class_name: str, long_lived: dict[int, DeviceRequest]
) -> tuple[list[DeviceRequest], list[RequestMapping]]:
    """The request and the mappings of the init containers that end."""
    remainders: list[DeviceRequest] = []
    mappings: list[RequestMapping] = []
    for index, container in enumerate(containers):
        wanted = dict(container.requests).get(resource, 0) if container.init and not container.sidecar else 0
        for later in sorted(i for i in long_lived if i >= index):
            if wanted <= 0:
                break
            mappings.append(RequestMapping(container.name, resource, long_lived[later].name))
            wanted -= long_lived[later].count
        if wanted > 0:
            remainders.append(_request(index, container, resource, class_name, wanted))
            mappings.append(RequestMapping(container.name, resource, remainders[-1].name))
    if not remainders:
        return [], mappings
    largest = max(remainders, key=lambda request: request.count)
    names = {request.name for request in remainders}
    return [largest], [
        mapping._replace(request=largest.name) if mapping.request in names else mapping for mapping in mappings
    ]


def _request(index: int, container: Container, resource: str, class_name: str, count: int) -> DeviceRequest:
    position = [name for name, _ in container.requests].index(resource)
    return DeviceRequest(f"container-{index}-request-{position}", class_name, count=count)


def class_of_resource(name: str, classes: Collection[str], resources: Mapping[str, str]) -> str | None:
    """The name of the DeviceClass that provides an extended resource, by its explicit or implicit name.

    `classes` are the names of all classes, `resources` those of the classes with an explicit name, by that name.
    """
    if name.startswith(IMPLICIT_RESOURCE_PREFIX):
        implicit = name.removeprefix(IMPLICIT_RESOURCE_PREFIX)
        return implicit if implicit in classes else None
    return resources.get(name)


def unprovided_resource(pod: Pod, snapshot: Snapshot) -> str:
    """The first resource of the pod that no node offers and no DeviceClass provides, such as a misspelt one; or ''.

    kube-scheduler refuses the pod before it asks Berth, unless its configuration leaves the resource to an extender.
    """
    asked = sorted({name for container in pod.containers for name, amount in container.requests if amount})
    unknown = [name for name in asked if class_of_resource(name, snapshot.classes, snapshot.extended_resources) is None]
    if not unknown:
        return ""  # as nearly always: no node is read
    offered = frozenset[str]().union(*(one.node.allocatable for one in snapshot.node_infos.values()))
    return next((name for name in unknown if name not in offered), "")
