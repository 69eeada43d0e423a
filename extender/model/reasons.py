"""The closed list of reasons why a node cannot serve a pod. Only this module has their texts.

The text for kube-scheduler must be the same for the same cause on every node and at every attempt. kube-scheduler
requeues a pod at once if the text varies (docs/reasons.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from extender.model.text_limits import REASON_BYTES, USER_BYTES, cut, one_line


class Code(Enum):
    """Codes with their texts. `{0}` and `{1}` are parameters that do not vary between attempts."""

    NO_DEVICES = "node has no devices for claims"
    NO_MATCH = "no device matches request {0}"
    TOO_FEW = "too few devices match request {0}"
    IN_USE = "matching devices are in use for request {0}"
    HELD = "matching devices are held by a pod being scheduled"
    TAINTED = "matching devices are tainted for request {0}"
    CAPACITY = "not enough capacity left for request {0}"
    TOO_SMALL = "{0} asked for, the largest matching device has {1}"
    PARTITION = "no free set of {0} GPUs is a partition of Fabric Manager"
    COUNTERS = "shared counters are used up for request {0}"
    COMPATIBILITY_GROUPS = "devices for request {0} draw on counters with {1}, which is not supported yet"
    NODE_ALLOCATABLE = "devices for request {0} have {1}, which is not supported yet"
    CONSTRAINT = "no free devices agree on {0}"
    COMBINATION = "requests cannot be served together"
    POOL_UPDATING = "resource pool is being updated"
    POOL_INVALID = "resource pool is invalid: {0}"
    ELSEWHERE = "claim is allocated for other nodes"
    COMPUTE_DOMAIN = "node is in another ComputeDomain"
    OUT_OF_BUDGET = "gave up searching: the claims allow too many combinations"
    UNFINISHED = "evaluated {0} of {1} nodes within one call; Berth evaluates the rest while the pod exists: retry"
    INVALID = "{0}"
    TOPOLOGY = "no free device set has the required topology"
    BANDWIDTH = "no free device set has the required bandwidth"
    TOO_MANY_CLAIMS = "pod has more than {0}"
    CLAIM_IN_FLIGHT = "claim {0} is being allocated for another pod"
    CLAIM_FULL = "claim {0} has no reservation left"
    NODE_UNKNOWN = "node is not known yet"
    EXTENDED_STALE = "the extended-resource claim of an earlier attempt is being removed"
    ADMIN_ACCESS = "namespace {0} does not allow adminAccess"
    GANG_INCOMPLETE = "waits until at least {1} pods of group {0} and their claims exist"
    GANG_UNKNOWN = "waits for PodGroup {0}, which does not exist"
    GANG_UNREAD = "waits until Berth has read which pods of group {0} run"
    GANG_NO_ROOM = "no domain has room for all pods of group {0} together"
    GANG_NO_DOMAIN = "no node with devices has the label {1} that group {0} needs"
    GANG_GAVE_UP = "gave up planning group {0}: its claims allow too many combinations"
    GANG_UNFINISHED = "planning group {0} takes longer than one call: Berth continues it when the pod is retried"
    GANG_TOO_LARGE = "group {0} has a minimum above {1}: Berth binds no more pods together"
    GANG_FORMING = "waits until the minimum of group {0} is bound"
    GANG_REFUSED = "kube-scheduler accepts no planned node for pod {1} of group {0}: it is planned again after a pause"
    GANG_LATE = "kube-scheduler did not bind pod {1} of group {0} in time: it is planned again after a pause"
    GANG_BIND_FAILED = "group {0} is planned again after a pause: the bind of pod {1} failed: {2}"
    GANG_CHANGED = "group {0} changed while it was being bound: it is planned again after a pause"
    GANG_WAITS = "waits until group {0} is bound: both need the same node"
    GANG_QUEUED = "group {0} waits its turn: too many pods of other groups are waiting for each other at bind"
    HELD_FOR_GANG = "matching devices are held for group {0}"
    COLLECTED_FOR_GANG = "devices are kept for group {0}, which waits for room"


# The last parameter is a sentence, such as one that names object, field and value.
_SENTENCES = (Code.INVALID, Code.POOL_INVALID, Code.GANG_BIND_FAILED)

DESCRIPTIONS = {
    Code.NO_DEVICES: "No ResourceSlice has devices for this node. Check that the DRA driver runs there.",
    Code.NO_MATCH: "The node has devices, but none matches the selectors of the class and of the request.",
    Code.TOO_FEW: "Fewer devices match the selectors than the request needs, counting also the allocated ones.",
    Code.IN_USE: "Enough devices match, but they are allocated to other claims.",
    Code.HELD: "Berth holds the devices for another pod that is being scheduled. This pod is retried automatically.",
    Code.TAINTED: "The matching devices carry NoSchedule or NoExecute taints that the request does not tolerate.",
    Code.CAPACITY: "The matching devices have less unallocated capacity than the request needs.",
    Code.TOO_SMALL: "No matching device of this node has that much in total. An H100 sold as 80 GB has 79.6Gi.",
    Code.PARTITION: "Fabric Manager connects GPUs only within its partitions. The driver rejects any other set.",
    Code.COUNTERS: "Allocated partitions consume the shared counters that the request needs.",
    Code.COMPATIBILITY_GROUPS: "Berth does not support compatibility groups (alpha) and never allocates these devices.",
    Code.NODE_ALLOCATABLE: "The devices consume CPU or memory of the node (alpha). Berth never allocates such devices.",
    Code.CONSTRAINT: "No combination of free devices satisfies matchAttribute or distinctAttribute.",
    Code.COMBINATION: "Each request fits alone, but the node cannot serve all of them together.",
    Code.POOL_UPDATING: "Some ResourceSlices of the pool's newest generation are still missing.",
    Code.POOL_INVALID: "The driver's ResourceSlices contradict each other. The text names the fault.",
    Code.ELSEWHERE: "A claim of the pod is already allocated, and this node cannot use its devices.",
    Code.COMPUTE_DOMAIN: "The pod's channel claim is of another ComputeDomain than the node's label says.",
    Code.OUT_OF_BUDGET: "The search used up its steps. Berth does not know whether a solution exists.",
    Code.UNFINISHED: "The call used up `evaluation_seconds`. This is the error of a filter call, not of a node.",
    Code.INVALID: "The claim, class or slice is not valid. The text names the object and the field.",
    Code.TOPOLOGY: "The pod's annotation requires NVLink between its GPUs. No free set on this node has it.",
    Code.BANDWIDTH: "The pod's annotation requires a ring bandwidth that no free set on this node reaches.",
    Code.TOO_MANY_CLAIMS: "One pod may have 64 claims, and 512 requests in them. Each alternative counts as a request.",
    Code.CLAIM_IN_FLIGHT: "Another pod that shares the claim is being bound. This pod is retried automatically.",
    Code.CLAIM_FULL: "A claim can be reserved for at most 256 pods, and this claim has reached that limit.",
    Code.NODE_UNKNOWN: "kube-scheduler already knows the node, but Berth's watch has not shown it yet.",
    Code.EXTENDED_STALE: "An earlier bind failed. Berth deletes its special claim, and the deletion requeues the pod.",
    Code.GANG_INCOMPLETE: "Fewer exist. They are requeued when the last appears. `berth explain` says how many exist.",
    Code.GANG_UNKNOWN: "The pod names it in a label or in `spec.schedulingGroup`. The pod is requeued when it appears.",
    Code.GANG_UNREAD: "Bound pods of the group may terminate. Berth lists the namespace, at most 16 s later.",
    Code.GANG_NO_ROOM: "All pods of the group are placed together, or none. See `berth explain group`.",
    Code.GANG_NO_DOMAIN: "The group must be in one domain of a label that only nodes without devices have, or none.",
    Code.GANG_GAVE_UP: "The planner used up its steps. Berth does not know whether the group fits.",
    Code.GANG_UNFINISHED: "The call used up `evaluation_seconds`. After a few seconds Berth requeues the pods.",
    Code.GANG_TOO_LARGE: "Each bind of the minimum waits for the others, and keeps a connection meanwhile.",
    Code.GANG_FORMING: "The minimum of the group is being bound. The pods beyond the minimum follow.",
    Code.GANG_REFUSED: "Devices fit, but CPU, memory, ports or affinity of a node did not. See the events of that pod.",
    Code.GANG_LATE: "The other pods of the group waited for its bind request. See the events of that pod.",
    Code.GANG_BIND_FAILED: "No pod of the group was bound. `berth explain group` shows this text, too.",
    Code.GANG_CHANGED: "A pod of the group was deleted, or its minimum changed. Berth retries after a second.",
    Code.GANG_WAITS: "Two groups are never bound at the same time on one node. This one is retried automatically.",
    Code.GANG_QUEUED: "Each bind of a group keeps a connection until the others have come. Berth limits their number.",
    Code.HELD_FOR_GANG: "Berth holds the devices for a group that is being bound. This pod is retried automatically.",
    Code.COLLECTED_FOR_GANG: "The group collects devices (`gang_collect_seconds`). This pod is retried afterwards.",
    Code.ADMIN_ACCESS: 'adminAccess needs the label resource.kubernetes.io/admin-access: "true" on the namespace.',
}


@dataclass(frozen=True, slots=True)
class Reason:
    """A code with its parameters. A name is cut to USER_BYTES, a sentence and the whole text to REASON_BYTES."""

    code: Code
    params: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        most = REASON_BYTES if self.code in _SENTENCES else USER_BYTES
        object.__setattr__(self, "params", tuple(one_line(param, most) for param in self.params))

    def __str__(self) -> str:
        return cut(self.code.value.format(*self.params), REASON_BYTES)
