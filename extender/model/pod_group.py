"""Pod groups: how a pod names its group, and the objects that say how large a group is.

A group with a minimum of two or more members is a gang: Berth places and binds that many members together, or none.
For the members of a group without a minimum, Berth only prefers nodes that are near each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class GroupSource(Enum):
    """The field, label or annotation by which a pod names its group. The first one that a pod has counts.

    The last one is the driver of a claim with a `domainID`: such a group has no minimum.
    """

    BERTH = "berth.dev/group"
    CORE = "spec.schedulingGroup"
    SCHEDULER_PLUGINS = "scheduling.x-k8s.io/pod-group"
    KUEUE = "kueue.x-k8s.io/pod-group-name"
    LEADER_WORKER_SET = "leaderworkerset.sigs.k8s.io/group-key"
    JOB_SET = "jobset.sigs.k8s.io/jobset-name"
    JOB = "batch.kubernetes.io/job-name"
    COMPUTE_DOMAIN = "compute-domain.nvidia.com"


class GroupKey(NamedTuple):
    """A group. Groups that pods name in different ways are different groups, even if the names are equal."""

    namespace: str
    source: GroupSource
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def on_claims(self) -> str:
        """How the annotation `berth.dev/group` of a claim names the group of its pod."""
        return self.name if self.source is GroupSource.BERTH else f"{self.source.value}={self.name}"


def name_on_claims(text: str) -> str:
    """The name of the group that GroupKey.on_claims gave."""
    prefix = next((f"{source.value}=" for source in GroupSource if text.startswith(f"{source.value}=")), "")
    return text.removeprefix(prefix)


@dataclass(frozen=True, slots=True)
class Membership:
    """The facts that a pod states about its group. The group's object may have the minimum, see GroupPolicy."""

    key: GroupKey
    minimum: int = 0  # members that must be placed together; 0 if the pod does not set it
    rank: int | None = None  # the pod's index in its group; None if unknown
    topology: str = ""  # required, preferred or none; '' if the pod does not set it
    timeout_seconds: float = 0.0  # how long the members may wait for each other at bind; 0 if the pod does not set it
    problem: str = ""  # which annotation is invalid, with its value; '' if none
    owner: str = ""  # name of the object that has the GroupPolicy: the group's, or the LeaderWorkerSet's

    @property
    def policy_key(self) -> GroupKey:
        """The key of the group's policy in the cache."""
        return self.key._replace(name=self.owner)


@dataclass(frozen=True, slots=True)
class GroupPolicy:
    """The policy of a group's object: a PodGroup (scheduling.k8s.io, scheduling.x-k8s.io) or a LeaderWorkerSet."""

    minimum: int = 0  # 0: the object names no minimum, so the group is no gang
    topology_label: str = ""  # all members must be on nodes with one value of this label; '' for no such constraint
    timeout_seconds: float = 0.0  # 0 if the object does not set it
    sequential: bool = False  # whether members are created only after others run: never a gang
