"""What can be restarted: pods that go together, the devices that become free meanwhile, and what that costs.

The cost of an advice is in GPU-hours, the sum of

* the GPU-hours of each pod since its start: work that may be lost (none for a pod of a ReplicaSet, which serves),
* POD_COST for each pod, for the start of its program,
* WAIT_COST for each GPU of pods that find no place again; for all GPUs of a group if one of its pods finds none.

The search and the proof count alike: `Restart.waiting_gpus` has the last part. `Packing` bounds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from math import inf

from extender.api.nodes import Taint, Toleration
from extender.api.pod_amounts import Amounts
from extender.api.pod_groups import GroupKey, GroupPolicy
from extender.api.pods import Pod
from extender.api.resource_claims import Claim, PodClaim, Result
from extender.vendors import GPU, driver_of

POD_COST = 1.0
WAIT_COST = 24.0  # a day
RESERVED = Taint("berth.dev/defrag", effect="NoSchedule")  # of nodes that become free for the wanted pods
TOLERATION = Toleration(RESERVED.key, "Exists")
Sizes = tuple[tuple[int, ...], bool]  # see sizes_of
_MAX_PACKED = 8  # nodes with free GPUs for which all ways are compared to fill them
_MAX_PACKINGS = 1 << 16  # of one search, that are remembered
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
    is_whole: bool = False  # a group or a JobSet, which does no work before all its pods run
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

    def waiting_gpus(self, waiting: Collection[Pod]) -> int:
        """The GPUs that wait with these pods, of those of `again`."""
        if self.is_whole and waiting:
            return self.gpus
        lacking = {key for pod in waiting for key in pod.claim_keys}
        return sum(gpus_of(claim) for claim in self.claims if claim.key in lacking)


@dataclass(frozen=True, slots=True)
class Asked:
    """Pods without a node that want places, with the claims that do not exist yet.

    `is_new`: they are all pods of their group. Otherwise others of it may be bound. `is_started`: the minimum of their
    gang has places already, so each is placed alone.
    """

    text: str
    pods: tuple[Pod, ...]
    claims: tuple[Claim, ...] = ()
    requests: Mapping[str, Amounts] = field(default_factory=dict)  # by UID
    policies: Mapping[GroupKey, GroupPolicy] = field(default_factory=dict)  # of groups that do not exist yet
    is_new: bool = True
    is_started: bool = False

    def amounts(self, pod: Pod) -> Amounts:
        """What a pod asks of a node besides devices."""
        return self.requests.get(pod.uid, Amounts(pods=1))

    def holding(self, nodes: Mapping[str, str]) -> frozenset[str]:
        """Of these nodes, by UID, those of pods that may have devices there: others need no node that becomes free."""
        return frozenset(nodes[pod.uid] for pod in self.pods if pod.uid in nodes and pod.may_need_devices)

    def after(self, placed: Container[str]) -> Asked | None:
        """Those that still want places, after those with these UIDs got theirs; None if all of them did.

        The cluster with these places has the claims: those that a placed pod shares have devices there.
        """
        left = tuple(pod for pod in self.pods if pod.uid not in placed)
        return replace(self, pods=left, claims=(), is_started=True) if left else None


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
            group_part="",
            extended=False,
            owner_pod_uid=renewed.get(claim.owner_pod_uid, claim.owner_pod_uid),
        )
        for claim in restart.claims
    )
    pods = tuple(_without_node(pod, renewed[pod.uid]) for pod in restart.pods)
    requests = {renewed[uid]: amounts for uid, amounts in restart.requests.items()}
    return Asked(restart.name, pods, claims, requests)


def _without_node(pod: Pod, uid: str) -> Pod:
    membership = replace(pod.membership, pod_uid=uid) if pod.membership is not None else None
    found = replace(pod, uid=uid, node_name="", phase="Pending", membership=membership)
    if not pod.extended_claim:
        return found
    special = PodClaim("extended-resources", claim_name=pod.extended_claim)
    return replace(found, claims=(*pod.claims, special), containers=(), extended_claim="")


def gpus_of(claim: Claim) -> int:
    """GPUs of a claim; a part of one counts as one."""
    results = claim.allocation.results if claim.allocation is not None else ()
    return len({one.device for one in results if not one.admin_access and driver_of(one.device.driver).kind == GPU})


def sizes_of(restart: Restart) -> Sizes:
    """The GPUs of each claim, the most first, and whether all of them wait if one does."""
    return tuple(sorted(map(gpus_of, restart.claims), reverse=True)), restart.is_whole


def deletion_order(restarts: Iterable[Restart]) -> tuple[Restart, ...]:
    """The order in which pods end and are created again: the largest first, those of one namespace together."""
    found: dict[str, list[Restart]] = {}
    for one in sorted(restarts, key=lambda one: (-one.gpus, one.name)):
        found.setdefault(one.pods[0].key.namespace, []).append(one)
    return tuple(chain.from_iterable(found.values()))


def cost_of(restarts: Iterable[Restart]) -> float:
    """The cost of these restarts without that of waiting."""
    return sum(one.cost for one in restarts)


def disruptions(restarts: Iterable[Restart]) -> Counter[str]:
    """The pods that each PodDisruptionBudget protects of these."""
    found = Counter[str]()
    for one in restarts:
        found.update(one.budgets)
    return found


def within(budgets: Mapping[str, int], restarts: Collection[Restart]) -> bool:
    """Whether PodDisruptionBudgets allow these restarts together. `budgets` are the disruptions that each allows."""
    return all(budgets.get(name, 0) >= pods for name, pods in disruptions(restarts).items())


class Packing:
    """How few GPUs of restarted pods find no place, wherever the pods go. It remembers what it found.

    `free` counts nodes by their free GPUs, `wanted` the pods by theirs that get places in any case. For few nodes with
    free GPUs, all ways are compared, up to a number of them. For more, all pods together may lack GPUs, and pods of one
    size and larger ones may lack nodes that have as many free.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[int, ...], tuple[Sizes, ...]], int] = {}

    def least_waiting(self, free: Mapping[int, int], wanted: Mapping[int, int], restarts: Iterable[Sizes]) -> float:
        """Infinite if the wanted pods have no room."""
        sizes = sorted(restarts, reverse=True)
        nodes = sum(number for gpus, number in free.items() if gpus)
        if nodes > _MAX_PACKED:
            return _least_by_numbers(free, Counter(chain.from_iterable(own for own, _ in sizes)) + Counter(wanted))
        each = tuple(sorted(chain.from_iterable([gpus] * number for gpus, number in free.items() if gpus)))
        first = [gpus for gpus, number in wanted.items() for _ in range(number)]
        return min((self._least(left, tuple(sizes)) for left in _packed(each, first)), default=inf)

    def _least(self, free: tuple[int, ...], restarts: tuple[Sizes, ...]) -> int:
        lacking = max(sum(sum(own) for own, _ in restarts) - sum(free), 0)
        if not restarts or len(self._known) >= _MAX_PACKINGS:
            return lacking
        known = self._known.get((free, restarts))
        if known is None:
            known = self._known[free, restarts] = self._least_of(free, restarts, lacking)
        return known

    def _least_of(self, free: tuple[int, ...], restarts: tuple[Sizes, ...], lacking: int) -> int:
        (own, is_whole), others = restarts[0], restarts[1:]
        found = sum(own) + self._least(free, others)
        for number in range(len(own), len(own) - 1 if is_whole else 0, -1):
            for placed in set(combinations(own, number)):
                for left in _packed(free, placed):
                    if found <= lacking:
                        return found
                    found = min(found, sum(own) - sum(placed) + self._least(left, others))
        return found


def _packed(free: tuple[int, ...], sizes: Iterable[int]) -> set[tuple[int, ...]]:
    """What nodes have free, sorted, after these were placed, in each way."""
    found = {free}
    for size in filter(None, sizes):
        found = {
            tuple(sorted((*one[:node], one[node] - size, *one[node + 1 :])))
            for one in found
            for node in range(len(one))
            if one[node] >= size
        }
    return found


def _least_by_numbers(free: Mapping[int, int], pods: Mapping[int, int]) -> int:
    found = max(gpus_in(pods) - gpus_in(free), 0)
    for gpus in filter(None, pods):
        places = sum(of_node // gpus * nodes for of_node, nodes in free.items())
        larger = sum(number for other, number in pods.items() if other >= gpus)
        found = max(found, (larger - places) * gpus)
    return found


def gpus_in(counted: Mapping[int, int]) -> int:
    """The GPUs of nodes or pods, which are counted by their GPUs."""
    return sum(gpus * number for gpus, number in counted.items())
