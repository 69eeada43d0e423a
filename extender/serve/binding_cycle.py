"""One bind: its pod, its node, what it has done with each claim, and the errors that can end it.

The class of the error tells what the undo must do. After BindPending and BindOutcomeUnknown all writes stay: the next
call continues, or the API server may have stored the Binding. After any other BerthError each write is undone. After
UnusableDevices the allocation itself ends, too, even if another bind wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from extender.api.object_meta import ObjectKey
from extender.api.pod_groups import PodGroup, decode_pod_group
from extender.api.pods import Pod
from extender.api.resource_claims import Claim, Consumer
from extender.base.berth_errors import BerthError
from extender.cluster import Writer
from extender.serve.gangs.gang_state import FormingGang


class BindError(BerthError):
    """The bind failed. kube-scheduler gets the text."""


class UnusableDevices(BindError):
    """No pod can use the devices of a claim. The bind deallocates the claim, even if it did not allocate it itself."""

    def __init__(self, claim: Claim, text: str) -> None:
        super().__init__(text)
        self.claim_uid = claim.uid


class DeviceLost(UnusableDevices):
    """An earlier write has allocated a device of the claim to another claim."""


class ConditionsFailed(UnusableDevices):
    """A driver reported that a device of the claim failed, or did not set the binding conditions in time."""


class BindPending(BindError):
    """The devices are allocated, and a driver is still preparing them. The next call of kube-scheduler checks again."""


class BindOutcomeUnknown(BindError):
    """The API server may have stored the Binding. The bind must not undo any write."""


class Step(Enum):
    """What a bind did with a claim, for the undo."""

    CREATED = auto()  # it created the special claim of the pod
    ALLOCATED = auto()
    FOUND = auto()  # the claim was allocated before
    RESERVED = auto()  # it adds the consumer to such a claim


@dataclass(frozen=True, slots=True)
class BindingCycle:
    """The pod and the node of one bind, and its steps."""

    pod: Pod
    node: str
    started: float  # when the call began, by the loop's clock in seconds
    forming: FormingGang | None = None  # the gang with which the pod is bound
    pod_group: PodGroup | None = None  # set if the pod has claims that may belong to its PodGroup
    steps: dict[str, list[tuple[Step, Claim]]] = field(default_factory=dict)  # by UID of the claim, in their order

    def note(self, step: Step, claim: Claim) -> None:
        """Note a step for the undo, with the claim as it is known."""
        self.steps.setdefault(claim.uid, []).append((step, claim))

    def consumer(self, claim: Claim) -> Consumer:
        """The entry for status.reservedFor of a claim: the pod, or its PodGroup if that owns or lists the claim."""
        own = Consumer(self.pod.uid, self.pod.key.name)
        if self.pod_group is None:
            return own
        listed = any(c.claim_name == claim.key.name and c in self.pod.claims for c in self.pod_group.claims)
        return self.pod_group.consumer if listed or claim.owner_group == self.pod_group.consumer else own

    def is_of_group(self, claim: Claim) -> bool:
        """Whether a claim is reserved for the pod's PodGroup.

        Other members may use such an allocation without a write of their own.
        """
        return self.consumer(claim).uid != self.pod.uid


async def pod_group_of(writer: Writer, pod: Pod, claims: Mapping[ObjectKey, Claim]) -> PodGroup | None:
    """Read the PodGroup of a pod that has one, if one of its claims may belong to it; None otherwise.

    `claims` are those that the cache has. Raises BindError if the owner of a claim is a group that does not exist. A
    tenant can write such an owner, and the claim controller would remove such a group from the consumers.
    """
    own = (claims[key] for key in sorted(pod.claim_keys) if key in claims)  # an error always names the same one
    owned = [claim for claim in own if claim.owner_group is not None and claim.owner_group.name == pod.group]
    if not (owned or any(entry.claim_name for entry in pod.claims)):
        return None
    found = await writer.read_pod_group(ObjectKey(pod.key.namespace, pod.group))
    group = None if found is None else decode_pod_group(found)
    for claim in owned:
        if claim.owner_group is not None and (group is None or claim.owner_group != group.consumer):
            uid = claim.owner_group.uid
            raise BindError(f"owner of claim {claim.key}: PodGroup {pod.group} with UID {uid} does not exist")
    return group
