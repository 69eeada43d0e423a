"""Why a node cannot serve a pod: a closed list of codes. Prose is made here and nowhere else.

Text that reaches kube-scheduler must be the same for the same cause on every node and every attempt: a text that
varies wakes the pod again at once (docs/reasons.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from extender.model.text_limits import REASON_BYTES, USER_BYTES, cut


class Code(Enum):
    """Code to sentence; `{0}` and `{1}` are names that do not vary between attempts."""

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
    OUT_OF_BUDGET = "gave up searching: the claims allow too many combinations"
    UNFINISHED = "gave up for now with {0} of {1} nodes judged; the work goes on while the pod exists: ask again"
    INVALID = "{0}"
    TOPOLOGY = "no free device set has the required topology"
    BANDWIDTH = "no free device set has the required bandwidth"
    CLAIM_IN_FLIGHT = "claim {0} is being allocated for another pod"
    CLAIM_FULL = "claim {0} has no reservation left"
    NODE_UNKNOWN = "node is not known yet"
    EXTENDED_STALE = "the extended-resource claim of an earlier attempt is being removed"
    ADMIN_ACCESS = "namespace {0} does not allow adminAccess"


_SENTENCES = (Code.INVALID, Code.POOL_INVALID)  # their parameter names object, field and value

DESCRIPTIONS = {
    Code.NO_DEVICES: "No ResourceSlice offers anything on this node. Is the driver running there?",
    Code.NO_MATCH: "Devices exist, but class and request selectors pass none of them.",
    Code.TOO_FEW: "Fewer devices pass the selectors than the request counts, whether free or not.",
    Code.IN_USE: "Enough devices match, but other claims hold them.",
    Code.HELD: "The devices are promised to a pod whose bind is on its way; the pod is tried again by itself.",
    Code.TAINTED: "The matching devices carry NoSchedule or NoExecute taints that the request does not tolerate.",
    Code.CAPACITY: "The devices that match have less unclaimed capacity than the request asks for.",
    Code.TOO_SMALL: "No matching device of this node has that much, even empty. A card sold as 80 GB has 79.6Gi.",
    Code.PARTITION: "Fabric Manager joins GPUs only within its partitions; the driver would refuse any other set.",
    Code.COUNTERS: "Partitions already allocated use the counters that this one needs.",
    Code.COMPATIBILITY_GROUPS: "Berth cannot tell yet which of these partitions go together (alpha). It leaves them out.",
    Code.NODE_ALLOCATABLE: "The devices take CPU or memory of the node (alpha). Berth cannot count that yet: left out.",
    Code.CONSTRAINT: "matchAttribute or distinctAttribute leaves no combination of free devices.",
    Code.COMBINATION: "Each request fits alone, but not all of them at once.",
    Code.POOL_UPDATING: "Slices of the pool's newest generation are still missing.",
    Code.POOL_INVALID: "The driver's slices contradict each other; the text names what is wrong.",
    Code.ELSEWHERE: "A claim of the pod is allocated already, and its devices are not on this node.",
    Code.OUT_OF_BUDGET: "The search used up its steps. Whether a solution exists is not known.",
    Code.UNFINISHED: "The call worked for `evaluation_seconds`. It is the error of a filter call: no node is refused.",
    Code.INVALID: "The claim, class or slice is wrong; the text names the object and the field.",
    Code.TOPOLOGY: "The pod's annotation requires NVLink between its GPUs; no free set of this node has it.",
    Code.BANDWIDTH: "The pod's annotation requires a ring bandwidth that no free set of this node reaches.",
    Code.CLAIM_IN_FLIGHT: "Another pod that shares the claim is being bound; the pod is tried again by itself.",
    Code.CLAIM_FULL: "A claim can be reserved for 256 pods; this one is full.",
    Code.NODE_UNKNOWN: "kube-scheduler knows the node before Berth's watch does; this passes.",
    Code.EXTENDED_STALE: "A bind ended half way; its special claim is deleted, which wakes the pod.",
    Code.ADMIN_ACCESS: 'adminAccess needs the label resource.kubernetes.io/admin-access: "true" on the namespace.',
}


@dataclass(frozen=True, slots=True)
class Reason:
    """A code with its parameters, which are cut: to USER_BYTES where they are names, to REASON_BYTES where they are sentences."""

    code: Code
    params: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        most = REASON_BYTES if self.code in _SENTENCES else USER_BYTES
        object.__setattr__(self, "params", tuple(cut(param, most) for param in self.params))

    def __str__(self) -> str:
        return cut(self.code.value.format(*self.params), REASON_BYTES)
