"""Clusters and gangs for tests of the planner, made of API objects, and a check of the plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import count
from types import MappingProxyType
from typing import Any

from extender.allocation import Features, Snapshot
from extender.api.object_meta import ObjectKey
from extender.api.pods import decode_pod
from extender.api.resource_claims import Result
from extender.api.resource_slices import Slice, SliceDecoder
from extender.base.deadline import NO_DEADLINE, Deadline
from extender.cache import ClusterCache
from extender.gangs.gang_planner import plan_gang
from extender.gangs.gang_problem import GangMember, GangPlan, GangProblem, GangShortage
from extender.gangs.member_limits import NodeLimit
from extender.gangs.node_rooms import GangMemory
from extender.policy import Policy
from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import gpu_slice, node_object
from extender.sandbox.sandbox_cluster import GPU_CLASS
from extender.scheduling import Evaluator, NodePreference, PodRequirements, RankingCache, requirements_of
from tests.worlds.filled_caches import class_of_driver, device_slice, put
from tests.worlds.running_berth import Json, claim, pod, status_in_use

CLIQUE, RACK, SPINE = Policy().group_levels
GPU = "gpu.nvidia.com"
TRAY = "gb200-nvl72-tray"
_NONE: Mapping[str, int] = MappingProxyType({})
_DECODER = SliceDecoder()
POLICY = Policy()  # requirements keys compare policies by identity


@lru_cache(1024)
def slices_of(node: str, machine: str) -> tuple[Slice, Slice]:
    """Of the GPUs and of the agent. Thousands of worlds have the same few nodes, and decoding takes long."""
    kind = carried_machines()[machine]
    return _DECODER.decode(gpu_slice(node, kind)), _DECODER.decode(fabric_slice(node, kind))


class GangWorld:
    """A cache, and the objects in it."""

    def __init__(self) -> None:
        self.cache = ClusterCache()
        self.evaluator = Evaluator(Features())
        self.rankings, self.memory = RankingCache(), GangMemory()
        self.pods: dict[str, Json] = {}
        self.add_class(GPU_CLASS)

    def add_class(self, obj: Json) -> None:
        put(self.cache, {"kind": "DeviceClass", **obj})

    def add_slice(self, obj: Json) -> None:
        put(self.cache, {"kind": "ResourceSlice", **obj})

    def add_node(self, name: str, machine: str = "", labels: dict[str, str] | None = None, busy: int = 0) -> None:
        """A node with the devices of a machine, the first few of them in use."""
        kind = carried_machines()[machine or "t4-4"]
        put(self.cache, node_object(name, kind, labels or {}))
        for one in slices_of(name, machine) if machine else ():
            self.cache.apply_slice(one.name, one)
        if busy:
            self.use(name, [f"gpu-{i}" for i in range(busy)])

    def use(self, node: str, devices: Sequence[str], driver: str = GPU) -> None:
        """A claim of another pod on devices of a node's own pool."""
        obj = claim(f"held-{node}", len(devices))
        results = [{"request": "gpu", "driver": driver, "pool": node, "device": device} for device in devices]
        obj["status"] = status_in_use(results, {"x": f"x-{node}"})
        self.add_claim(obj)

    def add_claim(self, obj: Json) -> None:
        obj["metadata"].setdefault("uid", obj["metadata"]["name"])
        put(self.cache, {"kind": "ResourceClaim", **obj})

    def add_pod(self, name: str, *claims: str, **annotations: str) -> None:
        notes = {f"berth.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
        self.pods[name] = pod(name, *claims, annotations=notes)
        self.pods[name]["metadata"]["uid"] = name

    def member(
        self,
        name: str,
        rank: int,
        nodes: frozenset[str] | None = None,
        excluded: frozenset[str] = frozenset(),
        limit: NodeLimit | None = None,
    ) -> GangMember:
        decoded = decode_pod(self.pods[name])
        found = requirements_of(decoded, self.cache.snapshot(), POLICY)
        assert isinstance(found, PodRequirements), found
        prefers = NodePreference(decoded.preferred_nodes, decoded.tolerations)
        return GangMember(name, found, rank, nodes, excluded, () if limit is None else (limit,), prefers)

    def gang(self, size: int, count: int = 1, prefix: str = "w", **annotations: str) -> tuple[GangMember, ...]:
        """Equal pods with one claim each for so many GPUs."""
        for i in range(size):
            self.add_claim(claim(f"{prefix}-{i}", count))
            self.add_pod(f"{prefix}-{i}", f"{prefix}-{i}", **annotations)
        return tuple(self.member(f"{prefix}-{i}", i) for i in range(size))

    def plan(
        self, members: Sequence[GangMember], topology: str = "preferred", **fields: Any
    ) -> GangPlan | GangShortage:
        """The plan, checked. Fields are those of GangProblem."""
        problem = GangProblem(tuple(members), (CLIQUE, RACK, SPINE), topology, **fields)
        return self.plan_problem(problem)

    def plan_problem(self, problem: GangProblem, deadline: Deadline = NO_DEADLINE) -> GangPlan | GangShortage:
        snapshot = self.cache.snapshot()
        context = self.evaluator.evaluation_context(snapshot, deadline)
        found = plan_gang(problem, snapshot, context, self.rankings, self.memory)
        if isinstance(found, GangPlan):
            check(found, problem, snapshot)
        else:
            assert found.members == len(problem.members)
        return found


def cluster(layout: str, machine: str = "t4-4", busy: Mapping[str, int] = _NONE) -> GangWorld:
    """Nodes n0, n1, ... by "spine/rack/clique:nodes", with '-' for a label that they lack.

    `busy` is the number of devices in use, by node.
    """
    world, names = GangWorld(), count()
    for part in layout.split():
        path, _, number = part.partition(":")
        values = zip((SPINE, RACK, CLIQUE), path.split("/"), strict=True)
        labels = {label: value for label, value in values if value != "-"}
        for _ in range(int(number)):
            name = f"n{next(names)}"
            world.add_node(name, machine, labels, busy.get(name, 0))
    return world


def found_in(plan: GangPlan | GangShortage) -> tuple[str, str]:
    """The level and the name of the domain."""
    assert isinstance(plan, GangPlan), plan
    return plan.level, plan.domain


def place(found: GangPlan | GangShortage) -> str:
    """The domain of a plan."""
    if isinstance(found, GangShortage):
        return "no room"
    levels = {CLIQUE: "clique", RACK: "rack", SPINE: "spine", "": "all"}
    return f"{levels.get(found.level, found.level)} {found.domain}".strip()


def nodes_of(plan: GangPlan | GangShortage) -> list[str]:
    """The node of each member, by the order of UIDs as numbers: w-0, w-1, ..."""
    assert isinstance(plan, GangPlan), plan
    uids = sorted(plan.placements, key=lambda uid: (uid.rpartition("-")[0], int(uid.rpartition("-")[2])))
    return [plan.placements[uid][0] for uid in uids]


def check(plan: GangPlan, problem: GangProblem, snapshot: Snapshot) -> None:
    """Every member has devices that nothing else uses, on a node that it may use, in the domain of the plan."""
    assert plan.placements.keys() == {member.uid for member in problem.members}
    claims: dict[str, tuple[str, tuple[Result, ...]]] = {}
    limited = Counter(
        (id(limit), limit.domain(plan.placements[member.uid][0]))
        for member in problem.members
        for limit in member.limits
    )
    for member in problem.members:
        name, placement = plan.placements[member.uid]
        node_info = snapshot.node_infos[name]
        assert member.nodes is None or name in member.nodes
        assert name not in member.excluded
        assert all(limited[id(limit), limit.domain(name)] <= limit.left(name, in_turn=False) for limit in member.limits)
        assert all(one.matches(name, node_info.node.labels) for one in member.requirements.node_selectors)
        if plan.level:
            value = name if plan.level == "node" else node_info.node.labels.get(plan.level)
            assert plan.domain.rpartition("/")[2] == value  # a path where values repeat
        pending = member.requirements.for_node(node_info.node).pending_claims
        held, specs = placement.results(node_info), member.requirements.for_node(node_info.node).specs
        for spec, results, chosen in zip(specs, held, placement.solution.alternatives, strict=True):
            asked = [request.alternatives[option] for request, option in zip(spec.requests, chosen, strict=True)]
            if all(request.mode == "ExactCount" for request in asked):
                assert len(results) == sum(request.count for request in asked)
        for one, results in zip(pending, held, strict=True):
            assert claims.setdefault(one.uid, (name, results)) == (name, results), "claims that members share"
    _check_devices(claims, snapshot)


def _check_devices(claims: dict[str, tuple[str, tuple[Result, ...]]], snapshot: Snapshot) -> None:
    taken: Counter[object] = Counter()
    for name, results in claims.values():
        node_info = snapshot.node_infos[name]
        for result in results:
            if not result.admin_access:
                bit = node_info.inventory.index.get(result.device)
                assert bit is not None
                assert not node_info.busy >> bit & 1, f"{result.device} is in use"
                if not result.share_id:
                    taken[result.device] += 1
    assert set(taken.values()) <= {1}, f"devices taken twice: {taken}"


def nvl72(world: GangWorld, racks: int = 2, trays: int = 18, busy: Sequence[str] = ()) -> None:
    """Racks "rack-a", "rack-b", ... of trays "a-1", "a-2", ...: each rack is one NVLink clique."""
    for rack in "abcdefgh"[:racks]:
        for tray in range(1, trays + 1):
            name = f"{rack}-{tray}"
            labels = {CLIQUE: f"clique-{rack}", RACK: f"rack-{rack}"}
            world.add_node(name, TRAY, labels, busy=4 if name in busy else 0)


def without_memory(world: GangWorld, problem: GangProblem) -> GangPlan | GangShortage:
    """The plan that a fresh process makes."""
    snapshot = world.cache.snapshot()
    return plan_gang(problem, snapshot, Evaluator(Features()).evaluation_context(snapshot))


def shuffled(snapshot: Snapshot, order: Sequence[str]) -> Snapshot:
    """The same snapshot with its nodes in another order."""
    return replace(snapshot, node_infos={name: snapshot.node_infos[name] for name in order})


def allocated(world: GangWorld, name: str, node: str, device: str, group: str = "") -> None:
    """The claim of this name, allocated on a node, for a pod of a group."""
    obj = claim(name)
    obj["metadata"]["annotations"] = {"berth.dev/group": group}
    results = [{"request": "gpu", "driver": GPU, "pool": node, "device": device}]
    obj["status"] = status_in_use(results, {}, node)
    world.add_claim(obj)


def key(name: str) -> ObjectKey:
    return ObjectKey("default", name)


def nets(world: GangWorld, number: int) -> None:
    """Devices that all nodes can use: with them the planner searches all nodes together."""
    devices = [{"name": f"net-{i}"} for i in range(number)]
    world.add_slice(device_slice("net", "net.example.com", devices, nodeName=None, allNodes=True))
    world.add_class(class_of_driver("net.example.com", "net"))
