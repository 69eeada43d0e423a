"""Waiting gangs after a change of nodes: only a node that gained room for a member leads to a plan, and no room is
missed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, cycle, islice, pairwise

import pytest

from extender.api.device_classes import decode_class
from extender.api.group_topology import AskedTopology
from extender.api.nodes import Taint, Toleration, decode_node
from extender.api.pod_groups import GroupKey, GroupSource, Membership
from extender.api.pods import Pod
from extender.api.resource_claims import Reservation, Result
from extender.api.resource_slices import DeviceId
from extender.base.deadline import NO_DEADLINE
from extender.gangs.gang import gang_of
from extender.policy import Policy
from extender.sandbox.machines import gpu_slice, node_object
from extender.scheduling.shortlist import CollectedDomain
from extender.serve.gangs.gang_planning import GangPlanning
from extender.serve.gangs.gang_state import GangNeeds, PlannedGang
from tests.worlds.evaluation_worlds import MACHINES
from tests.worlds.filled_caches import put
from tests.worlds.gang_fleet import CountedPlanning, Gangs
from tests.worlds.gang_worlds import CLIQUE

GPU = "gpu.nvidia.com"
RACK = "topology.kubernetes.io/rack"
SMALL, LARGE = "n0", "n1"  # with 4 GPUs and with 8


def told(pod: Pod, topology: str) -> Membership:
    assert pod.membership is not None
    return replace(pod.membership, topology=AskedTopology(topology))


class Waiting(Gangs):
    """A fleet with gangs that wait for room, and the events that change it."""

    planning_class = CountedPlanning

    def wait(
        self, gangs: int, size: int, counts: Sequence[int] = (5,), topology: str = "", namespace: str = ""
    ) -> list[list[Pod]]:
        """Gangs that fit nowhere, and whose needs are known. Their members need so many GPUs in turn."""
        found = []
        for gang in range(gangs):
            pods = [self.pod(namespace or f"ns{gang}", count=count) for count in islice(cycle(counts), size)]
            members = [replace(pod, membership=told(pod, topology)) for pod in self.joined(f"g{gang}", pods)]
            for pod in members:
                self.cache.apply_pod(pod.uid, pod)
            found.append(members)
        self.reject(found)
        self.relabel(LARGE, "first")
        assert not self.finds()
        CountedPlanning.plans = 0
        return found

    def reject(self, gangs: list[list[Pod]]) -> None:
        """A filter request about each gang, with the nodes without taint."""
        self.clock.now += 100.0
        names = [name for name, node in self.cache.store.nodes.items() if not node.taints]
        for members in gangs:
            assert not self.gangs.filter(members[0], names).passed

    def take(self, name: str, node: str, gpus: Sequence[int]) -> None:
        """Another pod takes devices, or gives back those that it does not take any more."""
        self.cache.release(name)
        results = tuple(Result("r", DeviceId(GPU, node, f"gpu-{gpu}")) for gpu in gpus)
        if results:
            self.cache.hold({f"claim-{name}": Reservation(name, node, results, deadline=1e9)})

    def relabel(self, node: str, value: str) -> None:
        machine = MACHINES[int(node[1:]) % self.kinds]
        self.cache.apply_node(node, decode_node(node_object(node, machine, {CLIQUE: value})))

    def finds(self) -> bool:
        self.clock.now += 100.0
        return any(list(self.hints.find_schedulable(namespace))[-1] for namespace in self.gangs.admission.namespaces)

    def steps(self) -> Iterator[bool]:
        """The steps of the searches of all namespaces."""
        return chain.from_iterable(map(self.hints.find_schedulable, self.gangs.admission.namespaces))

    def fits(self, members: list[Pod]) -> bool:
        """Whether a process that remembers nothing has a plan."""
        self.clock.now += 100.0
        membership, planning = members[0].membership, GangPlanning(self.cache, self.filter_service)
        assert membership is not None
        gang = gang_of(members[0], membership, self.cache.snapshot())
        return isinstance(planning.plan(gang, members[0], None, {}, None, NO_DEADLINE), PlannedGang)


def test_a_change_without_room_for_a_member_plans_no_gang() -> None:
    fleet = Waiting(nodes=12)
    gangs = fleet.wait(20, size=9)
    for change in range(10):
        fleet.take(f"other-{change}", LARGE, [change % 8])
        fleet.relabel(SMALL, str(change))
        assert not fleet.finds()
    assert not CountedPlanning.plans
    version = fleet.cache.snapshot().version
    assert not any(fleet.gangs.admission.without_room(one, version) for one in fleet.gangs.admission.namespaces), (
        "all are known to lack room now"
    )
    assert not any(fleet.fits(members) for members in gangs)


def test_a_node_that_gained_room_for_a_member_has_its_gang_planned_once() -> None:
    fleet = Waiting(nodes=12)
    fleet.take("other", LARGE, range(4))
    gangs = fleet.wait(3, size=9)  # two members lack room; the node will count for one
    fleet.relabel("n2", "second")
    assert not fleet.finds()
    assert not CountedPlanning.plans
    fleet.take("other", LARGE, ())
    assert not fleet.finds(), "eight members would fit"
    assert CountedPlanning.plans == len(gangs)
    fleet.take("other", LARGE, [0])
    assert not fleet.finds()
    assert CountedPlanning.plans == len(gangs)


def test_a_gang_is_planned_after_as_many_nodes_gained_room_as_members_lack_it() -> None:
    fleet = Waiting(nodes=12)
    for node in ("n1", "n2", "n4", "n5"):
        fleet.take(f"other-{node}", node, range(4))
    fleet.wait(2, size=8)
    for node in ("n1", "n2", "n4"):
        fleet.take(f"other-{node}", node, ())
        assert not fleet.finds()
    assert not CountedPlanning.plans
    fleet.take("other-n5", "n5", ())
    assert fleet.finds()


def test_a_node_without_its_taint_makes_room() -> None:
    fleet = Waiting(nodes=12)
    node = fleet.cache.store.nodes["n4"]
    fleet.cache.apply_node("n4", replace(node, taints=(Taint("x", "", "NoSchedule"),)))
    fleet.wait(2, size=8)
    fleet.cache.apply_node("n4", node)
    assert fleet.finds()


def test_a_search_has_steps_of_one_evaluation() -> None:
    fleet = Waiting(nodes=12)
    fleet.wait(6, size=9)
    for node in fleet.names:
        fleet.take(f"other-{node}", node, range(5))
        fleet.cache.snapshot()
        fleet.take(f"other-{node}", node, range(4))  # a new state of the node, which no member fits
    rankings = fleet.filter_service.rankings
    counts = [rankings.evaluations, *(rankings.evaluations for _ in fleet.steps())]
    assert counts[-1] > counts[0]
    assert max(after - before for before, after in pairwise(counts)) == 1
    assert not CountedPlanning.plans


def test_a_step_makes_one_plan() -> None:
    fleet = Waiting(nodes=12)
    fleet.take("other", LARGE, range(4))
    gangs = fleet.wait(3, size=9)
    fleet.relabel("n2", "second")
    fleet.take("other", LARGE, ())
    fleet.clock.now += 100.0
    CountedPlanning.calls = 0
    counts = [0, *(CountedPlanning.calls for _ in fleet.steps())]
    assert max(after - before for before, after in pairwise(counts)) == 1
    assert counts[-1] == 2 * len(gangs)


def test_a_bug_with_one_gang_hides_no_room_of_others() -> None:
    class Buggy(CountedPlanning):
        def still_needs(self, pod: Pod, needs: GangNeeds) -> bool:
            if pod.membership is not None and pod.membership.key.name == "g0":
                raise KeyError("a bug")
            return super().still_needs(pod, needs)

    class Fleet(Waiting):
        planning_class = Buggy

    fleet = Fleet(nodes=12)
    fleet.take("other", LARGE, range(4))
    fleet.wait(3, size=8, namespace="ns")
    fleet.relabel(SMALL, "second")
    with pytest.raises(KeyError, match="a bug"):
        fleet.finds()
    fleet.take("other", LARGE, ())
    fleet.clock.now += 100.0
    found = list[bool]()
    with pytest.raises(KeyError, match="a bug"):
        found.extend(fleet.steps())
    assert found[-1], "the bug is raised after the fit"


# -- what else makes room ------------------------------------------------------------------------------------------


def test_a_gang_whose_members_changed_is_planned_after_any_change_of_nodes() -> None:
    fleet = Waiting(nodes=12)
    members = fleet.wait(1, size=9)[0]
    fleet.cache.apply_pod(members[0].uid, replace(members[0], tolerations=(Toleration(key="x", value="y"),)))
    fleet.monitor.pods_changed(*fleet.cache.store.take_changed_groups())
    fleet.relabel(SMALL, "second")
    assert not fleet.finds()
    assert CountedPlanning.plans == 1


@pytest.mark.parametrize("change", ["class", "policy", "collected", "claim"])
def test_a_gang_is_planned_after_any_change_of_nodes_if_its_plan_would_read_something_else(change: str) -> None:
    fleet = Waiting(nodes=12)
    members = fleet.wait(1, size=9)[0]
    match change:
        case "class":
            spec = {"selectors": [{"cel": {"expression": "true"}}]}
            fleet.cache.apply_class(GPU, decode_class({"metadata": {"name": GPU}, "spec": spec}))
        case "policy":
            fleet.filter_service.use_policy(Policy(hold_seconds=20))
        case "collected":
            other = GroupKey("x", GroupSource.BERTH, "another")
            fleet.filter_service.collected = CollectedDomain(other, "node", SMALL, frozenset({SMALL}), 0.0)
        case "claim":
            claim = fleet.cache.store.claims[members[0].key]
            fleet.cache.apply_claim(claim.key, replace(claim, uid="made again"))
    fleet.relabel(SMALL, "second")
    assert not fleet.finds()
    assert CountedPlanning.plans >= 1


@pytest.mark.parametrize("seed", range(24))
def test_no_gang_that_fits_is_missed(seed: int) -> None:
    """Random changes of a small fleet: whenever a process that remembers nothing has a plan, the search finds it."""
    rng = random.Random(seed)
    fleet = Waiting(nodes=6)
    fill(fleet, range(8))
    counts = rng.choice(((2,), (3,), (5,), (2, 4), (1, 8)))
    gangs = fleet.wait(2, rng.randint(2, 5), counts, rng.choice(("none", "preferred", "required")))
    for step in range(40):
        for _ in range(rng.randint(1, 3)):
            change(fleet, rng)
            if rng.random() < 0.5:
                fleet.cache.snapshot()  # other requests see states that the search does not
        fits = any(fleet.fits(members) for members in gangs)
        assert fleet.finds() == fits, step
        if fits:
            fill(fleet, rng.sample(range(8), 7))
            fleet.reject(gangs)


def fill(fleet: Waiting, gpus: Sequence[int]) -> None:
    for node in fleet.names:
        fleet.take(f"a-{node}", node, gpus)


def change(fleet: Waiting, rng: random.Random) -> None:
    node = rng.choice(fleet.names)
    match rng.randrange(10):
        case 0 | 1:
            fleet.relabel(node, str(rng.randrange(3)))
        case 2:
            fleet.cache.apply_node(node, None)
        case 3:
            put(fleet.cache, gpu_slice(node, rng.choice(MACHINES)))
        case _:
            fleet.take(f"{rng.choice('ab')}-{node}", node, rng.sample(range(8), rng.choice((0, 2, 4, 6, 8))))
