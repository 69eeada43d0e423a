"""A plan does not depend on the order of nodes, the planner's memory, or the number of calls, and ends in time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from extender.base.deadline import Deadline, DeadlineExceeded
from extender.gangs.gang_planner import plan_gang
from extender.gangs.gang_problem import GangMember, GangPlan, GangProblem, GangShortage
from extender.gangs.node_rooms import GangMemory
from tests.worlds.evaluation_worlds import TICK, Clock, steps
from tests.worlds.gang_oracle import problem_of, random_cluster, world_of
from tests.worlds.gang_worlds import CLIQUE, RACK, SPINE, GangWorld, cluster, nets, shuffled, without_memory
from tests.worlds.running_berth import claim

MACHINES = ("hgx-h100-8", "a100-pcie-8-bridged", "dgx1-v100")
LIMIT_BYTES = 6_000  # of a memory that several evaluations fill


def mixed_fleet(nodes: int = 18) -> GangWorld:
    """Cliques of 3 nodes, racks of 6, half of the GPUs in use."""
    world, rng = GangWorld(), random.Random(7)
    for i in range(nodes):
        labels = {CLIQUE: f"c{i // 3}", RACK: f"r{i // 6}", SPINE: "s"}
        world.add_node(f"n{i}", MACHINES[i % 3], labels)
        change(world, rng, f"n{i}")
    return world


def change(world: GangWorld, rng: random.Random, node: str) -> None:
    world.use(node, [f"gpu-{gpu}" for gpu in range(8) if rng.random() < 0.5] or ["gpu-0"])


def pairs(world: GangWorld, members: int = 14) -> GangProblem:
    """Members that need two GPUs joined by NVLink each: their room is known only by evaluating each node."""
    return GangProblem(world.gang(members, 2, topology="required"), (CLIQUE, RACK, SPINE), "preferred")


# -- the order of nodes --------------------------------------------------------------------------------------------


def test_the_order_of_nodes_changes_no_plan() -> None:
    for seed in range(60):
        cluster = random_cluster(random.Random(seed))
        world = world_of(cluster)
        problem, snapshot, rng = problem_of(cluster, world), world.cache.snapshot(), random.Random(seed)
        first = without_memory(world, problem)
        order = list(snapshot.node_infos)
        rng.shuffle(order)
        other = shuffled(snapshot, order)
        context = world.evaluator.evaluation_context(other)
        assert plan_gang(problem, other, context) == first, f"seed {seed}"


def test_the_order_in_which_members_are_named_changes_no_plan() -> None:
    world = mixed_fleet()
    problem = pairs(world)
    mixed = list(problem.members)
    random.Random(5).shuffle(mixed)
    assert without_memory(world, replace(problem, members=tuple(mixed))) == without_memory(world, problem)


# -- memory --------------------------------------------------------------------------------------------------------


def test_the_planner_s_memory_changes_no_plan() -> None:
    """Claims come and go between plans of two shapes."""
    world, rng = mixed_fleet(), random.Random(11)
    problems = [pairs(world, 6), GangProblem(world.gang(3, 3, "v"), (CLIQUE, RACK, SPINE), "preferred")]
    levels = set()
    for number in range(12):
        change(world, rng, f"n{rng.randrange(18)}")
        found = world.plan_problem(problems[number % 2])
        assert found == without_memory(world, problems[number % 2])
        levels.add(found.level)
    assert len(levels) > 1


def test_the_memory_is_bounded_in_bytes() -> None:
    """A plan that needs more memory than it may use drops the oldest entries, and stays the same."""
    world = mixed_fleet()
    problem = pairs(world)
    expected = world.plan_problem(problem)
    assert world.memory.estimated_bytes > 2 * LIMIT_BYTES
    entries = len(world.memory)
    world.memory = GangMemory(LIMIT_BYTES)
    assert world.plan_problem(problem) == expected
    assert LIMIT_BYTES / 2 < world.memory.estimated_bytes <= LIMIT_BYTES
    assert 0 < len(world.memory) < entries


def test_the_evaluations_of_one_namespace_do_not_replace_those_of_others() -> None:
    """The plan of a gang that takes several calls would never end."""
    memory = GangMemory(4_000)
    for number in range(3):
        memory.put("honest", number, number)
    for number in [*range(50), *range(50)]:
        memory.put("hostile", number, number)
    assert [memory.get("honest", number) for number in range(3)] == [0, 1, 2]
    assert (len(memory), memory.estimated_bytes, memory.get("hostile", 49)) == (10, 4_000, 49)


# -- deadline --------------------------------------------------------------------------------------------------------


def small_budget() -> Deadline:
    """It ends after its first step, but lets one piece of work end."""
    return steps(1, ends_one=True)


def in_small_calls(world: GangWorld, problem: GangProblem, most: int) -> tuple[GangPlan | GangShortage, int]:
    """The plan, and the number of calls whose deadline ended before it."""
    for spent in range(most):
        try:
            return world.plan_problem(problem, small_budget()), spent
        except DeadlineExceeded:
            continue
    raise AssertionError(f"no plan after {most} calls")


@pytest.mark.parametrize("members", [14, 200])
def test_a_plan_that_takes_longer_than_a_call_continues_and_ends(members: int) -> None:
    """Also for a gang that does not fit."""
    world = mixed_fleet()
    problem = pairs(world, members)
    expected = without_memory(world, problem)
    assert isinstance(expected, GangPlan) == (members == 14)
    found, calls = in_small_calls(world, problem, 1_000)
    assert found == expected
    assert calls > 10


def test_a_plan_with_a_complete_search_continues_and_ends() -> None:
    """Clusters of the oracle: pools that all nodes share, counters, alternatives, several kinds of members."""
    total = 0
    for seed in range(12):
        cluster = random_cluster(random.Random(seed))
        world = world_of(cluster)
        problem = problem_of(cluster, world)
        found, calls = in_small_calls(world, problem, 3_000)
        assert found == without_memory(world, problem), f"seed {seed}"
        total += calls
    assert total > 50


def sharing(world: GangWorld, shared: str) -> GangProblem:
    """Pairs of members, each with a claim for one GPU and one for two: all but the last pair share the `shared` one of
    them ("one" or "two"), and the last pair the other one.
    """
    members: list[GangMember] = []
    for pair in range(4):
        kept = shared if pair < 3 else {"one": "two", "two": "one"}[shared]
        for i in range(2):
            name, own = f"{shared}-{len(members)}", f"{shared}-{pair}-{i}"
            names = {size: f"{shared}-{pair}-{size}" if size == kept else f"{own}-{size}" for size in ("one", "two")}
            world.add_claim(claim(names["one"], 1))
            world.add_claim(claim(names["two"], 2))
            world.add_pod(name, names["one"], names["two"], topology="required")
            members.append(world.member(name, len(members)))
    return GangProblem(tuple(members), (CLIQUE, RACK, SPINE), "preferred")


def chosen(plan: GangPlan | GangShortage) -> dict[str, tuple[str, list[list[int]]]]:
    """The node and the devices of each member. The scores of remembered placements compare with an earlier fleet."""
    assert isinstance(plan, GangPlan), plan
    return {
        uid: (node, [[pick.bit for pick in picks] for picks in placement.solution.picks])
        for uid, (node, placement) in plan.placements.items()
    }


def test_a_plan_with_shared_claims_continues_and_ends() -> None:
    """The evaluation of pairs that share one claim is not used for equal members that share another claim."""
    world = mixed_fleet(12)
    for shared in ("one", "two"):
        problem = sharing(world, shared)
        found, calls = in_small_calls(world, problem, 1_000)
        assert chosen(found) == chosen(without_memory(world, problem))
        assert calls > 5


READINGS = 100  # of the clock, in the time of these tests


def classes(world: GangWorld, size: int, number: int, device_class: str = "gpu.nvidia.com") -> tuple[GangMember, ...]:
    """Members with a device each, in so many equivalence classes."""
    for i in range(size):
        obj = claim(f"w-{i}")
        asked = {
            "deviceClassName": device_class,
            "selectors": [{"cel": {"expression": f"{i % number} == {i % number}"}}],
        }
        obj["spec"]["devices"]["requests"][0]["exactly"] = asked
        world.add_claim(obj)
        world.add_pod(f"w-{i}", f"w-{i}")
    return tuple(world.member(f"w-{i}", i) for i in range(size))


def filled() -> tuple[GangWorld, tuple[GangMember, ...]]:
    world = cluster("s/r/c:8 s/r/d:8 s/q/e:8")
    return world, classes(world, 90, 30)


def many_domains() -> tuple[GangWorld, tuple[GangMember, ...]]:
    world = cluster(" ".join(f"s{i}/r{i}/c{i}:2" for i in range(80)))
    return world, classes(world, 9, 1)


def searched() -> tuple[GangWorld, tuple[GangMember, ...]]:
    """All nodes share the devices, so the planner searches them together; there is one too few."""
    world = cluster("s/r/c:4")
    nets(world, 20)
    return world, classes(world, 21, 7, "net")


@pytest.mark.parametrize("made", [filled, many_domains, searched])
def test_a_plan_whose_evaluations_are_all_known_ends_in_time(
    made: Callable[[], tuple[GangWorld, tuple[GangMember, ...]]],
) -> None:
    """Attack: stall scheduling with a gang whose plan needs a long search."""
    world, members = made()
    problem = GangProblem(members, (CLIQUE, RACK, SPINE), "preferred")
    found = world.plan_problem(problem)
    clock = Clock()
    with pytest.raises(DeadlineExceeded):
        world.plan_problem(problem, Deadline(READINGS * TICK, clock))
    assert clock.now <= (READINGS + 2) * TICK
    again = world.plan_problem(problem, Deadline(100.0, Clock()))
    assert isinstance(again, GangPlan) == isinstance(found, GangPlan)
    assert not isinstance(again, GangShortage) or again == found
