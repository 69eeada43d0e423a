"""One bind of one pod to one node: its data, the errors that it ends with, and checks of what the API server stored."""

from __future__ import annotations

from dataclasses import dataclass

from extender.extension.gang_state import FormingGang
from extender.extension.shortlist_scores import RunnerUp
from extender.extension.undo_stack import UndoStack
from extender.model import DECISION_ANNOTATION, Allocation, BerthError, Claim, Consumer, Pod, PodGroup, cut
from extender.scheduling import ScoredNode

_NOTE_BYTES = 4096  # of the annotation: room for 32 devices and all score parts; a pod may have 256 KiB of annotations


@dataclass(frozen=True, slots=True)
class BindTimes:
    """Seconds that one bind call may take beyond `binding_wait_seconds` of the policy.

    httpTimeout of the scheduler's bind entry is at least 10 s longer than that wait (docs/policy.md). The rest of the
    10 s is for the undo.
    """

    claims: float = 5.0  # until the Binding is sent
    binding: float = 3.0  # then, until the outcome of the Binding is known


@dataclass(frozen=True, slots=True)
class BindingCycle:
    """The pod and the node of one bind, and its undo stack."""

    pod: Pod
    node: str
    started: float  # when the call began, by the loop's clock in seconds
    undo: UndoStack
    forming: FormingGang | None = None  # the gang with which the pod is bound
    pod_group: PodGroup | None = None  # set if the pod has claims that may belong to its PodGroup

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
    """The API server may have stored the Binding. The bind must not take back any write."""


def decision_annotation(chosen: ScoredNode, runner_up: RunnerUp) -> dict[str, str]:
    """The annotation that the Binding writes on the pod; none if all devices were allocated before."""
    text = chosen.annotation(*runner_up)
    return {DECISION_ANNOTATION: cut(text, _NOTE_BYTES)} if text else {}


def check_stored(sent: Allocation, stored: Claim) -> None:
    """Raise BindError if the API server dropped a field of the allocation.

    The API server drops fields whose feature gate is off. Without them the allocation would have another meaning.
    """
    kept = stored.allocation.results if stored.allocation is not None else ()
    for sent_result, stored_result in zip(sent.results, kept, strict=True):
        for field_name in ("share_id", "admin_access", "binding_conditions"):
            if getattr(sent_result, field_name) and not getattr(stored_result, field_name):
                device = sent_result.device
                dropped = f"the API server dropped {field_name} of {device}; is its feature gate off?"
                raise BindError(f"claim {stored.key}: {dropped}")


def is_same_write(claim: Claim, allocation: Allocation, consumer: Consumer) -> bool:
    """Whether the claim has this allocation and consumer: then the write whose reply was lost succeeded."""
    return (
        claim.allocation is not None
        and [r.device for r in claim.allocation.results] == [r.device for r in allocation.results]
        and claim.is_reserved_for(consumer.uid)
    )


def unchanged(known: Claim, fresh: Claim, consumer: Consumer | None = None) -> Claim:
    """Return `fresh` if it still has the allocation of `known`, and is reserved for `consumer` if one is given.

    Raises BindError otherwise.
    """
    if fresh.allocation is None or (consumer is not None and not fresh.is_reserved_for(consumer.uid)):
        raise BindError(f"claim {known.key} was taken back in the meantime")
    if fresh.allocation != known.allocation:
        raise BindError(f"claim {known.key} was allocated elsewhere in the meantime")
    return fresh


def same_writer(known: Claim, fresh: Claim, identity: str) -> Claim:
    """Return `fresh`. Raises BindError if another process marked the claim after `known` was read."""
    if fresh.writer not in (known.writer, identity):
        raise BindError(f"claim {known.key} was taken over by another process")
    return fresh


def newer(seen: str, written: str) -> bool:
    """Whether resourceVersion `seen` is `written` or later. With etcd 3, both are integers as text, of any length."""
    if all(version.isascii() and version.isdigit() for version in (seen, written)):
        seen, written = seen.lstrip("0"), written.lstrip("0")
        return (len(seen), seen) >= (len(written), written)
    return seen == written
