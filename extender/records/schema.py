"""The record types. A record describes one event. A batch has the records of one process, in order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from extender.model import ObjectKey, RequestMix, ReservationState, Result
from extender.records.limits import MAX_DEVICES
from extender.scheduling import Attempt, Decision


class Attempted(NamedTuple):
    """`berth serve` answered a filter request for a pod, or a bind failed that ended the plan of the pod's gang."""

    pod: ObjectKey
    uid: str
    attempt: Attempt


class Bound(NamedTuple):
    """`berth serve` bound a pod."""

    pod: ObjectKey
    uid: str
    decision: Decision


def shortened(decision: Decision) -> Decision:
    """The decision with as many devices as a record has. A pod may share 64 claims with 32 devices each, and thousands
    of records may wait for the console."""
    chosen = decision.chosen
    devices, reused = chosen.devices[:MAX_DEVICES], chosen.reused[: max(MAX_DEVICES - len(chosen.devices), 0)]
    return replace(decision, chosen=replace(chosen, devices=devices, reused=reused))


class Reserved(NamedTuple):
    """`berth serve` reserved devices for a claim: `state` is HELD (by filter) or BINDING (a bind writes the claim)."""

    claim_uid: str
    pod_uid: str
    node: str
    results: tuple[Result, ...]  # only request, device, admin_access, share_id and consumed are sent
    state: ReservationState
    seconds: float  # seconds until the hold ends; infinite in state BINDING


class Released(NamedTuple):
    """The reservation of a claim ended: the hold ended, the watch showed the allocation, or the bind was undone."""

    claim_uid: str


Record = Attempted | Bound | Reserved | Released


@dataclass(frozen=True, slots=True)
class PolicyState:
    """The policy in force in a process."""

    generation: int  # number of policies that the process loaded
    digest: str  # digest of the policy's values; equal policies have equal digests
    problem: str = ""  # why the newest policy file is not in force


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one process, in order. An empty batch shows that the process is alive."""

    replica: str  # name of the pod or machine, for display
    epoch: str  # UUID of this start of the process
    sequence: int  # sequence number of the first record; the first record of an epoch has 1
    number: int  # of the batch, from 1; a batch that is sent again has a new number
    lost: int  # records of this epoch that the process dropped unsent
    policy: PolicyState
    mix: RequestMix  # the request mix in force, see extender.model.request_mix
    records: tuple[Record, ...] = ()
