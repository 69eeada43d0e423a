"""One pod on its way to one node: what a bind can end with, and how it judges what servers answered."""

from __future__ import annotations

from dataclasses import dataclass

from extender.extension.undo_stack import UndoStack
from extender.model import DECISION_ANNOTATION, Allocation, BerthError, Claim, Consumer, Pod, PodGroup, cut
from extender.scheduling import ScoredNode

_NOTE_BYTES = 4096  # of the annotation: 32 devices and every part of a score; all annotations of a pod share 256 KiB


@dataclass(frozen=True, slots=True)
class BindingCycle:
    """What one bind is about, and what takes back its writes."""

    pod: Pod
    node: str
    started: float  # when the call began, by the loop's clock in seconds
    undo: UndoStack
    pod_group: PodGroup | None = None  # where the pod has claims that may be the PodGroup's

    def consumer(self, claim: Claim) -> Consumer:
        """The entry of status.reservedFor for a claim: the pod, or its PodGroup where that owns the claim or lists
        it."""
        own = Consumer(self.pod.uid, self.pod.key.name)
        if self.pod_group is None:
            return own
        listed = any(c.claim_name == claim.key.name and c in self.pod.claims for c in self.pod_group.claims)
        return self.pod_group.consumer if listed or claim.owner_group == self.pod_group.consumer else own

    def is_of_group(self, claim: Claim) -> bool:
        """Whether a claim is reserved for the pod's PodGroup: other members may rely on its allocation and write
        nothing."""
        return self.consumer(claim).uid != self.pod.uid


class BindError(BerthError):
    """The bind did not happen; the text goes to the scheduler."""


class UnusableDevices(BindError):
    """No pod can use the devices of a claim: the bind takes its allocation back even where it only found it."""

    def __init__(self, claim: Claim, text: str) -> None:
        super().__init__(text)
        self.claim_uid = claim.uid


class DeviceLost(UnusableDevices):
    """An earlier write holds a device of the claim."""


class ConditionsFailed(UnusableDevices):
    """A driver said that a device of the claim failed, or did not set its binding conditions in time."""


class BindPending(BindError):
    """The devices are allocated and the driver is not done: the scheduler's retry will look again."""


class BindOutcomeUnknown(BindError):
    """The Binding may have landed: nothing may be taken back."""


def decision_annotation(chosen: ScoredNode, runner_up: tuple[str, float]) -> dict[str, str]:
    """The annotation that the Binding puts on the pod: what it got, why this node, and which came second."""
    if not chosen.parts:
        return {}
    got = [f"score {chosen.score:.3f}", f"devices {', '.join(chosen.devices)}"]
    got += [f"{part.name} {part.value:.2f}: {part.sentence}" for part in chosen.parts]
    if runner_up[0]:
        got.append(f"second: {runner_up[0]}, {runner_up[1]:.3f} behind")
    return {DECISION_ANNOTATION: cut("; ".join(got), _NOTE_BYTES)}


def check_stored(sent: Allocation, stored: Claim) -> None:
    """A server drops fields whose feature gate is off; without them the allocation would mean something else."""
    kept = stored.allocation.results if stored.allocation is not None else ()
    for mine, theirs in zip(sent.results, kept, strict=True):
        for field_name in ("share_id", "admin_access", "binding_conditions"):
            if getattr(mine, field_name) and not getattr(theirs, field_name):
                dropped = f"the API server dropped {field_name} of {mine.device}; is its feature gate off?"
                raise BindError(f"claim {stored.key}: {dropped}")


def is_same_write(claim: Claim, allocation: Allocation, consumer: Consumer) -> bool:
    """Whether the claim carries the very write whose reply was lost."""
    return (
        claim.allocation is not None
        and [r.device for r in claim.allocation.results] == [r.device for r in allocation.results]
        and claim.is_reserved_for(consumer.uid)
    )


def unchanged(known: Claim, fresh: Claim, consumer: Consumer | None = None) -> Claim:
    """The claim as it is, if it still has the devices that were decided on, for this consumer. Raises BindError."""
    if fresh.allocation is None or (consumer is not None and not fresh.is_reserved_for(consumer.uid)):
        raise BindError(f"claim {known.key} was taken back in the meantime")
    if fresh.allocation != known.allocation:
        raise BindError(f"claim {known.key} was allocated elsewhere in the meantime")
    return fresh


def same_writer(known: Claim, fresh: Claim, identity: str) -> Claim:
    """The claim as it is, if nothing but a bind of this process has marked it since. Raises BindError."""
    if fresh.writer not in (known.writer, identity):
        raise BindError(f"claim {known.key} was taken over by another process")
    return fresh


def newer(seen: str, written: str) -> bool:
    """Whether a version is at least another. Versions are numbers on every server since etcd 3."""
    return int(seen or 0) >= int(written or 0) if seen.isdigit() and written.isdigit() else seen == written
