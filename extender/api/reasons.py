"""The closed list of reasons why a node cannot serve a pod. Only this module has their texts.

The text for kube-scheduler must be the same for the same cause on every node and at every attempt. kube-scheduler
requeues a pod at once if the text varies (docs/reasons.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from extender.base.text_limits import REASON_BYTES, USER_BYTES, cut, one_line


class Code(Enum):
    """Codes, each with its text for kube-scheduler and a description for the documentation.

    `{0}`, `{1}` and `{2}` in the text are parameters that do not vary between attempts.
    """

    def __init__(self, text: str, description: str) -> None:
        self.text = text
        self.description = description

    NO_DEVICES = (
        "node has no devices for claims",
        "No ResourceSlice has devices for this node. Check that the DRA driver runs there.",
    )
    NO_MATCH = (
        "no device matches request {0}",
        "The node has devices, but none matches the selectors of the class and of the request.",
    )
    TOO_FEW = (
        "too few devices match request {0}",
        "Fewer devices match the selectors than the request needs, counting also the allocated ones.",
    )
    TOO_FEW_TOGETHER = (
        "too few devices match request {0} and the requests that match the same devices",
        "Each request alone has enough devices, but together they need more than there are on the node.",
    )
    IN_USE = (
        "matching devices are in use for request {0}",
        "Enough devices match, but they are allocated to other claims.",
    )
    HELD = (
        "matching devices are held by a pod being scheduled",
        "This pod is retried automatically.",
    )
    DRIFT = (
        "memory of matching devices is in use without a claim for request {0}",
        "A process outside of DRA uses these GPUs, and the policy has `drift: filter`.",
    )
    TAINTED = (
        "matching devices are tainted for request {0}",
        "They carry NoSchedule or NoExecute taints that the request does not tolerate.",
    )
    CAPACITY = (
        "not enough capacity left for request {0}",
        "The matching devices have less unallocated capacity than the request needs.",
    )
    TOO_SMALL = (
        "{0} asked for, the largest matching device has {1}",
        "No matching device of this node has that much in total. An H100 sold as 80 GB has 79.6Gi.",
    )
    REFUSED_AMOUNT = (
        "{0} could serve request {1}, even on an empty node: {2}",
        "No wait helps. {0} is 'no device' or 'too few devices'. Others lack a capacity, or their policy forbids it.",
    )
    NO_ATTRIBUTE = (
        "request {1} matches {0} with the attribute {2}",
        "No wait helps. {0} is 'no device' or 'too few devices'. A constraint of the claim compares this attribute.",
    )
    PARTITION = (
        "no partition of {0} is free",
        "The GPUs of a claim must be a partition of Fabric Manager, or its driver does not prepare the claim.",
    )
    NO_PARTITION = (
        "the node has no partition of {0}",
        "No wait helps. The GPUs of a claim must be a partition of Fabric Manager, such as 1, 2, 4 or 8 GPUs.",
    )
    COUNTERS = (
        "shared counters are used up for request {0}",
        "Allocated partitions consume the shared counters that the request needs.",
    )
    COMPATIBILITY_GROUPS = (
        "devices for request {0} have no compatibility group in common with the devices in use",
        "Devices of one counter set are in use together only if all have one of their compatibilityGroups in common.",
    )
    NODE_ALLOCATABLE = (
        "devices for request {0} have {1}, which is not supported yet",
        "The devices consume CPU or memory of the node (alpha). Berth never allocates such devices.",
    )
    CONSTRAINT = (
        "no free devices satisfy the constraint on {0}",
        "No combination of free devices satisfies matchAttribute or distinctAttribute.",
    )
    COMBINATION = (
        "requests cannot be served together",
        "Each request fits alone, but the node cannot serve all of them together.",
    )
    POOL_UPDATING = (
        "resource pool is being updated",
        "Some ResourceSlices of the pool's newest generation are still missing.",
    )
    POOL_INVALID = (
        "resource pool is invalid: {0}",
        "The driver's ResourceSlices contradict each other. The text names the fault.",
    )
    NODE_CONSTRAINTS = (
        "node selector, node affinity, a taint or a cordon excludes the node",
        "Only explanations and replays have this reason: kube-scheduler checks these before it asks Berth.",
    )
    ELSEWHERE = (
        "claim is allocated for other nodes",
        "A claim of the pod is already allocated, and this node cannot use its devices.",
    )
    COMPUTE_DOMAIN = (
        "node is in another ComputeDomain",
        "The pod's channel claim is of another ComputeDomain than the node's label says.",
    )
    CLIQUE = (
        "another ComputeDomain has channels in the node's NVLink clique",
        "Two of them in one clique can break each other (`compute_domains: require`). The pod waits for the other.",
    )
    GROUP_DOMAIN = (
        "node is outside of the domain in which the pod's group runs",
        "The group must be in one domain, such as one rack. A pod beyond its minimum follows there, or waits.",
    )
    OUT_OF_BUDGET = (
        "gave up searching: the claims allow too many combinations",
        "The search used up its steps. Berth does not know whether a solution exists.",
    )
    UNFINISHED = (
        "evaluated {0} of {1} nodes within one call; Berth evaluates the rest while the pod exists: retry",
        "The call used up `evaluation_seconds`. This is the error of a filter call, not of a node.",
    )
    INVALID = (
        "{0}",
        "A claim, class, slice or annotation is not valid. The text names the object and the field.",
    )
    TOPOLOGY = (
        "no free device set has the required topology",
        "The pod's annotation requires NVLink between its GPUs. No free set on this node has it.",
    )
    BANDWIDTH = (
        "no free device set has the required bandwidth",
        "The pod's annotation requires a ring bandwidth that no free set on this node reaches.",
    )
    TOO_MANY_CLAIMS = (
        "pod has more than {0}",
        "One pod may have 64 claims, and 512 requests in them. Each alternative counts as a request.",
    )
    CLAIM_IN_FLIGHT = (
        "claim {0} is being allocated for another pod",
        "This pod shares the claim, and is retried automatically.",
    )
    CLAIM_FULL = (
        "claim {0} has no reservation left",
        "A claim can be reserved for at most 256 pods.",
    )
    NODE_UNKNOWN = (
        "node is not known yet",
        "kube-scheduler already knows the node, but Berth's watch has not shown it yet.",
    )
    NO_RESOURCE = (
        "no node and no DeviceClass provides {0}",
        "Only explanations have this reason: kube-scheduler says `Insufficient`, and does not ask Berth.",
    )
    EXTENDED_STALE = (
        "the extended-resource claim of an earlier attempt is being removed",
        "An earlier bind failed. Berth deletes its claim, which requeues the pod some seconds later.",
    )
    ADMIN_ACCESS = (
        "namespace {0} does not allow adminAccess",
        'adminAccess needs the label resource.kubernetes.io/admin-access: "true" on the namespace.',
    )
    GANG_INCOMPLETE = (
        "waits until at least {1} pods of group {0} and their claims exist",
        "Fewer exist. They are requeued when the last appears. `berth explain` says how many exist.",
    )
    GANG_UNKNOWN = (
        "waits for {0}, which does not exist",
        "The pod names a PodGroup, or that names a CompositePodGroup. The pod is requeued when it appears.",
    )
    GANG_UNREAD = (
        "waits until Berth has read which pods of group {0} run",
        "Bound pods of the group may terminate. Berth lists them, mostly within a second, and requeues the pod.",
    )
    GANG_NO_ROOM = (
        "no domain has room for all pods of group {0} together",
        "All pods of the group are placed together, or none. See `berth explain group`.",
    )
    GANG_DOMAIN_FULL = (
        "group {0} runs {1}, where its other pods have no room",
        "The group must be in one domain, so a replaced pod returns to the domain of those that run, or waits.",
    )
    GANG_NO_DOMAIN = (
        "no node with devices has the label {1} that group {0} needs",
        "The group must be in one domain of a label that only nodes without devices have, or none.",
    )
    GANG_GAVE_UP = (
        "gave up planning group {0}: its claims allow too many combinations",
        "The planner used up its steps. Berth does not know whether the group fits.",
    )
    GANG_UNFINISHED = (
        "planning group {0} takes longer than one call: Berth continues it when the pod is retried",
        "The call used up `evaluation_seconds`. After a few seconds Berth requeues the pods.",
    )
    GANG_TOO_LARGE = (
        "group {0} has a minimum above {1}: Berth binds no more pods together",
        "Each bind of the minimum waits for the others, and keeps a connection meanwhile.",
    )
    GANG_CLAIM_FULL = (
        "claim {1} has {2} of 256 reservations left, too few for group {0}",
        "A claim can be reserved for at most 256 pods, and the group's waiting pods that share it need more.",
    )
    GANG_FORMING = (
        "waits until the minimum of group {0} is bound",
        "The minimum of the group is being bound. The pods beyond the minimum follow.",
    )
    GANG_REFUSED = (
        "kube-scheduler accepts no planned node for pod {1} of group {0}: it is planned again after a pause",
        "Devices fit, but CPU, memory, ports or affinity of a node did not. See the events of that pod.",
    )
    GANG_LATE = (
        "kube-scheduler did not bind pod {1} of group {0} in time: it is planned again after a pause",
        "The other pods of the group waited for its bind request. See the events of that pod.",
    )
    GANG_BIND_FAILED = (
        "group {0} is planned again after a pause: the bind of pod {1} failed: {2}",
        "No pod of the group was bound. `berth explain group` shows this text, too.",
    )
    GANG_CHANGED = (
        "group {0} changed while it was being bound: it is planned again after a pause",
        "A pod of the group was deleted, or its minimum changed. Berth retries after a second.",
    )
    GANG_WAITS = (
        "waits until group {0} is bound: both need the same node",
        "Two groups are never bound at the same time on one node. This one is retried automatically.",
    )
    GANG_QUEUED = (
        "group {0} waits its turn: too many pods of other groups are waiting for each other at bind",
        "Each bind of a group keeps a connection until the others have come. Berth limits their number.",
    )
    HELD_FOR_GANG = (
        "matching devices are held for group {0}",
        "That group is being bound. This pod is retried automatically.",
    )
    COLLECTED_FOR_GANG = (
        "devices are kept for group {0}, which waits for room",
        "The group collects devices (`gang_collect_seconds`). This pod is retried afterwards.",
    )


FREEABLE_CODES = frozenset(
    {
        Code.IN_USE,
        Code.HELD,
        Code.TAINTED,  # devices without the taint may be in use
        Code.COUNTERS,
        Code.CAPACITY,
        Code.CONSTRAINT,
        Code.COMBINATION,
        Code.PARTITION,
        Code.TOPOLOGY,
        Code.BANDWIDTH,
    }
)
"""The reasons that the end of other pods can remove."""

# The last parameter is a sentence, such as one that names object, field and value.
_SENTENCES = (Code.INVALID, Code.POOL_INVALID, Code.GANG_BIND_FAILED)


@dataclass(frozen=True, slots=True)
class Reason:
    """A code with its parameters. A name is cut to USER_BYTES, a sentence and the whole text to REASON_BYTES."""

    code: Code
    params: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        most = REASON_BYTES if self.code in _SENTENCES else USER_BYTES
        object.__setattr__(self, "params", tuple(one_line(param, most) for param in self.params))

    def __str__(self) -> str:
        return cut(self.code.text.format(*self.params), REASON_BYTES)
