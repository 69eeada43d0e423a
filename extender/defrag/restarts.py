"""What can be restarted: pods that go together, the devices that become free meanwhile, and what that costs.

The cost of an advice is in GPU-hours, the sum of

* the GPU-hours of each pod since its start: work that may be lost (none for a pod of a ReplicaSet, which serves),
* POD_COST for each pod, for the start of its program,
* WAIT_COST for each GPU of pods that find no place again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from extender.api.nodes import Taint, Toleration
from extender.api.pod_amounts import Amounts
from extender.api.pod_groups import GroupKey, GroupPolicy
from extender.api.pods import Pod
from extender.api.resource_claims import Claim, PodClaim, Result

POD_COST = 1.0
WAIT_COST = 24.0  # a day
RESERVED = Taint("berth.dev/defrag", effect="NoSchedule")  # of nodes that become free for the wanted pods
TOLERATION = Toleration(RESERVED.key, "Exists")
_AGAIN = "again/"  # before the UID of a pod that is restarted: the pod that replaces it has another one


@dataclass(frozen=True, slots=True)
class Restart:
    """Pods that are restarted together: one pod, the pods that share a claim, or a whole gang. `pods` are bound."""

    name: str
    pods: tuple[Pod, ...]
    claims: tuple[Claim, ...]  # of these pods alone, with devices
    gpus: int
    gpu_hours: float
    priority: int = 0  # the highest of the pods
    owner: str = ""  # what creates the pods again, such as ReplicaSet llm
    is_gang: bool = False
    budgets: Mapping[str, int] = field(default_factory=dict)  # PodDisruptionBudget to the number of pods it protects
    requests: Mapping[str, Amounts] = field(default_factory=dict)  # by UID
    # A search reads these millions of times.
    cost: float = field(init=False)  # without that of waiting
    results: tuple[Result, ...] = field(init=False)  # the devices that become free
    nodes: frozenset[str] = field(init=False)  # of the pods

    def __post_init__(self) -> None:
        found = (claim.allocation.results for claim in self.claims if claim.allocation is not None)
        results = tuple(result for result in chain.from_iterable(found) if not result.admin_access)
        object.__setattr__(self, "cost", self.gpu_hours + POD_COST * len(self.pods))
        object.__setattr__(self, "results", results)
        object.__setattr__(self, "nodes", frozenset(pod.node_name for pod in self.pods))

    @property
    def order(self) -> tuple[float, int, str]:
        """Sorts equal costs: those of the lowest priority first."""
        return self.cost, self.priority, self.name


@dataclass(frozen=True, slots=True)
class Asked:
    """Pods without a node that want places, with the claims that do not exist yet.

    `is_new`: they are all pods of their group. Otherwise others of it may be bound. `is_whole`: a part of a gang, even
    its minimum, is not enough.
    """

    text: str
    pods: tuple[Pod, ...]
    claims: tuple[Claim, ...] = ()
    requests: Mapping[str, Amounts] = field(default_factory=dict)  # by UID
    policies: Mapping[GroupKey, GroupPolicy] = field(default_factory=dict)  # of groups that do not exist yet
    is_new: bool = True
    is_whole: bool = False

    def amounts(self, pod: Pod) -> Amounts:
        """What a pod asks of a node besides devices."""
        return self.requests.get(pod.uid, Amounts(pods=1))


def again(restart: Restart) -> Asked:
    """The pods as their owners create them again: with new UIDs and without nodes, and with claims without devices.

    The claim of a pod with extended resources becomes one that the pod names.
    """
    renewed = {pod.uid: f"{_AGAIN}{pod.uid}" for pod in restart.pods}
    claims = tuple(
        replace(
            claim,
            uid=f"{_AGAIN}{claim.uid}",
            allocation=None,
            reserved_for=(),
            devices=(),
            allocator="",
            group="",
            part="",
            extended=False,
            owner_pod_uid=renewed.get(claim.owner_pod_uid, claim.owner_pod_uid),
        )
        for claim in restart.claims
    )
    pods = tuple(_without_node(pod, renewed[pod.uid]) for pod in restart.pods)
    requests = {renewed[uid]: amounts for uid, amounts in restart.requests.items()}
    return Asked(restart.name, pods, claims, requests, is_whole=True)


def _without_node(pod: Pod, uid: str) -> Pod:
    membership = replace(pod.membership, pod_uid=uid) if pod.membership is not None else None
    found = replace(pod, uid=uid, node_name="", phase="Pending", membership=membership)
    if not pod.extended_claim:
        return found
    special = PodClaim("extended-resources", claim_name=pod.extended_claim)
    return replace(found, claims=(*pod.claims, special), containers=(), extended_claim="")


def cost_of(restarts: Iterable[Restart]) -> float:
    """The cost of these restarts without that of waiting."""
    return sum(one.cost for one in restarts)


def within(budgets: Mapping[str, int], restarts: Collection[Restart]) -> bool:
    """Whether PodDisruptionBudgets allow these restarts together. `budgets` are the disruptions that each allows."""
    used = Counter[str]()
    for one in restarts:
        used.update(one.budgets)
    return all(budgets.get(name, 0) >= pods for name, pods in used.items())
