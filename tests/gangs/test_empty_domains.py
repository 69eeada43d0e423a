"""The planner decides if a gang could run in a domain after the other workloads there end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from extender.base.deadline import NO_DEADLINE, Deadline
from extender.gangs.domains import Domain
from extender.gangs.gang_problem import GangMember, GangProblem
from extender.policy import Policy
from extender.sandbox import carried_machines, fabric_slice
from extender.scheduling import EvaluationContext, RankingCache
from extender.serve.gangs.gang_collecting import EmptyDomains, domains_by_room
from tests.worlds.dra_worlds import H100, use_memory
from tests.worlds.gang_pods import key
from tests.worlds.gang_worlds import CLIQUE, RACK, SPINE, GangWorld, allocated, nvl72
from tests.worlds.running_berth import claim


class Chooser:
    """Tries the domains of a gang and counts the budgets that it uses."""

    def __init__(
        self,
        world: GangWorld,
        members: Sequence[GangMember],
        deadline: Callable[[], Deadline] = lambda: NO_DEADLINE,
    ) -> None:
        self._world = world
        self._deadline = deadline
        self.problem = GangProblem(tuple(members), (CLIQUE, RACK, SPINE), "preferred")
        self.emptied = EmptyDomains(key(), self.problem, self._evaluation)
        self.budgets = 0

    def _evaluation(self) -> EvaluationContext:
        self.budgets += 1
        return self._world.evaluator.evaluation_context(self._world.cache.snapshot(), self._deadline())

    def domains(self) -> list[Domain]:
        snapshot = self._world.cache.snapshot()
        context = self._world.evaluator.evaluation_context(snapshot)
        return domains_by_room(self.problem, snapshot, context, RankingCache())

    def holding(self, domain: Domain) -> frozenset[str]:
        *_, found = self.emptied.holding(domain, self._world.cache.snapshot)
        assert found is not None
        return found

    def chosen(self) -> tuple[str, str, list[str]] | None:
        """Level and name of the first domain that could hold the gang, and its nodes."""
        for domain in self.domains():
            nodes = self.holding(domain)
            if nodes:
                return domain.level, domain.name, sorted(nodes)
        return None


def spine(world: GangWorld, *busy: str) -> None:
    """Two racks of four trays, of 4 GPUs each."""
    nvl72(world, trays=4, busy=busy)


def test_the_nearest_level_and_in_it_the_domain_with_the_most_free_room() -> None:
    world = GangWorld()
    spine(world, "a-1", "a-2", "a-3", "b-1", "b-2")
    found = Chooser(world, world.gang(3, 4)).chosen()
    assert found == (CLIQUE, "clique-b", ["b-1", "b-2", "b-3", "b-4"])


def test_a_gang_that_fits_on_one_node_collects_one_node() -> None:
    world = GangWorld()
    spine(world, *(f"{rack}-{tray}" for rack in "ab" for tray in range(1, 5)))
    found = Chooser(world, world.gang(2, 2)).chosen()
    assert found == ("node", "a-1", ["a-1"])


def test_all_nodes_without_a_common_label_are_no_domain() -> None:
    world = GangWorld()
    spine(world, "a-1", "b-1")
    assert Chooser(world, world.gang(7, 4)).chosen() is None


def test_the_devices_of_the_gang_itself_stay_in_use() -> None:
    world = GangWorld()
    spine(world, "a-2", "a-3", "b-1")
    allocated(world, "running", "b-4", "gpu-0")
    members = world.gang(4, 4)
    assert Chooser(world, members).chosen() == (CLIQUE, "clique-b", ["b-1", "b-2", "b-3", "b-4"])
    allocated(world, "running", "b-4", "gpu-0", group="job")
    assert Chooser(world, members).chosen() == (CLIQUE, "clique-a", ["a-1", "a-2", "a-3", "a-4"])


def test_only_nodes_that_a_member_could_use_are_kept() -> None:
    world = GangWorld()
    spine(world, "a-1", "a-2", "b-1", "b-2", "b-3")
    world.add_node("a-cpu", "", {CLIQUE: "clique-a"})
    world.add_node("a-small", "t4-4", {CLIQUE: "clique-a"})
    members = [
        replace(member, nodes=frozenset({"a-1", "a-2", "a-3", "b-1", "b-2", "b-3", "a-cpu"}))
        for member in world.gang(3, 4)
    ]
    assert Chooser(world, members).chosen() == (CLIQUE, "clique-a", ["a-1", "a-2", "a-3"])


def test_the_domain_has_the_nodes_of_members_that_can_use_one_only() -> None:
    world = GangWorld()
    spine(world, "a-1", "a-2", "a-3", "b-1", "b-2", "b-3")
    first, second, third = world.gang(3, 4)
    for rack in "ab":
        members = [
            replace(first, nodes=frozenset({f"{rack}-1"})),
            replace(second, nodes=frozenset({f"{rack}-3"})),
            third,
        ]
        nodes = [f"{rack}-{i}" for i in (1, 2, 3, 4)]
        assert Chooser(world, members).chosen() == (CLIQUE, f"clique-{rack}", nodes)


def test_the_use_of_pools_that_nodes_share_stays() -> None:
    world = GangWorld()
    spine(world, "a-1", "a-2", "a-3", "a-4", "b-1", "b-2", "b-3", "b-4")
    world.add_class(
        {"metadata": {"name": "nic"}, "spec": {"selectors": [{"cel": {"expression": "device.driver == 'nic'"}}]}}
    )
    pool = {"name": "nics", "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": "nic-0"}, {"name": "nic-1"}]
    world.add_slice(
        {"metadata": {"name": "nics"}, "spec": {"driver": "nic", "allNodes": True, "pool": pool, "devices": devices}}
    )
    for i in range(2):
        wanted = claim(f"w-{i}", 4)
        wanted["spec"]["devices"]["requests"].append({"name": "nic", "exactly": {"deviceClassName": "nic", "count": 1}})
        world.add_claim(wanted)
        world.add_pod(f"w-{i}", f"w-{i}")
    members = [world.member(f"w-{i}", i) for i in range(2)]
    found = Chooser(world, members).chosen()
    assert found is not None
    assert found[:2] == (CLIQUE, "clique-a")
    world.use("nics", ["nic-0"], "nic")
    assert Chooser(world, members).chosen() is None, "one free device is left for two members"


def test_of_equal_domains_that_are_too_small_only_one_is_planned() -> None:
    world = GangWorld()
    nvl72(world, racks=8, trays=2, busy=[f"{rack}-{tray}" for rack in "abcdefgh" for tray in (1, 2)])
    chooser = Chooser(world, world.gang(3, 4))
    assert len([domain for domain in chooser.domains() if domain.level == CLIQUE]) == 8
    assert chooser.chosen() is None
    assert chooser.budgets == 2, "one node, and one rack"


def test_a_domain_whose_plan_takes_too_many_budgets_counts_as_too_small() -> None:
    world = GangWorld()
    spine(world, "a-1", "b-1")
    spent = [0]

    def deadline() -> Deadline:
        spent[0] += 1
        return Deadline(0.0, lambda: 0.0)

    chooser = Chooser(world, world.gang(4, 4), deadline=deadline)
    domain = next(domain for domain in chooser.domains() if domain.level == CLIQUE)
    assert not chooser.holding(domain)
    assert 1 < chooser.budgets < 100


@pytest.mark.parametrize(("claimed", "fits"), [(8, True), (4, False)])
def test_memory_in_use_is_drift_only_without_a_claim(claimed: int, fits: bool) -> None:
    world = GangWorld()
    world.add_node("n", H100, busy=claimed)
    report = fabric_slice("n", carried_machines()[H100])
    use_memory(*range(8), mib=20_000)(report["spec"]["devices"])
    world.add_slice(report)
    strict = Policy(drift="filter")
    members = [replace(member, requirements=replace(member.requirements, policy=strict)) for member in world.gang(2, 4)]
    assert (Chooser(world, members).chosen() == ("node", "n", ["n"])) is fits
