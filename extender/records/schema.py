"""The records themselves. One record tells one event; a batch tells in which order, and of which process."""

from __future__ import annotations

from dataclasses import dataclass

from extender.model import ObjectKey, RequestMix, ReservationState, Result
from extender.scheduling import Attempt, Decision


@dataclass(frozen=True, slots=True)
class Attempted:
    """Serve answered a filter request for a pod."""

    pod: ObjectKey
    uid: str
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Bound:
    """Serve bound a pod."""

    pod: ObjectKey
    uid: str
    decision: Decision


@dataclass(frozen=True, slots=True)
class Reserved:
    """Serve reserved devices for a claim: `state` is HELD (by filter) or BINDING (a bind writes them)."""

    claim_uid: str
    pod_uid: str
    node: str
    results: tuple[Result, ...]  # only request, device, admin_access, share_id and consumed travel
    state: ReservationState
    seconds: float  # until the hold ends; infinite while a bind writes


@dataclass(frozen=True, slots=True)
class Released:
    """The reservation of a claim ended: the hold ended, the watch showed the allocation, or the bind was undone."""

    claim_uid: str


Record = Attempted | Bound | Reserved | Released


@dataclass(frozen=True, slots=True)
class PolicyState:
    """By which policy a process decides."""

    generation: int
    digest: str  # of the policy's values: equal policies have equal digests
    problem: str = ""  # why the newest policy file is not in force


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one process in their order. An empty batch says that the process lives."""

    replica: str  # name of the pod or machine, for people
    epoch: str  # UUID that the process made at its start
    sequence: int  # number of the first record: 1 for the first since the start, then one more for each
    lost: int  # records of this epoch that the process dropped before they were sent
    policy: PolicyState
    mix: RequestMix  # the request mix in force, see extender.model.request_mix
    records: tuple[Record, ...] = ()
