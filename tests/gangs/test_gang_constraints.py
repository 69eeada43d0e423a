"""Members of a gang that require something of each other: pod affinity and anti-affinity, and topology spread."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml

from extender.gangs.gang_problem import GangPlan, GangShortage
from extender.gangs.member_limits import MAX_TERMS
from tests.worlds.constrained_gangs import (
    HOSTNAME,
    compare,
    compare_preference,
    problem_of,
    required,
    spread,
    term,
    world_of,
)
from tests.worlds.explained_gangs import apply, explained, occupy, racked, sentences
from tests.worlds.gang_worlds import RACK, nodes_of
from tests.worlds.running_berth import Json, berthing, claim, pod

CASES: list[Json] = yaml.safe_load((Path(__file__).parents[1] / "cases" / "gang_constraints.yaml").read_text())
JOB = {"job": "j"}


def plan_of(case: Json) -> list[int] | None:
    """The number of members on each node; None without a plan."""
    nodes = {f"n{i}": {"zone": zone} for i, zone in enumerate(case["nodes"].split())}
    world = world_of(nodes, dict(zip(nodes, case.get("free", [4] * len(nodes)), strict=True)))
    pods = [{"labels": JOB, "spec": case["spec"], "annotations": case.get("annotations", {})}] * case["size"]
    placed = {name: number for name, number in zip(nodes, case.get("placed", ()), strict=False) if number}
    found = world.plan_problem(problem_of(world, pods, placed=placed))
    if not isinstance(found, GangPlan):
        return None
    numbers = Counter(nodes_of(found))
    return [numbers[name] for name in nodes]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_plan_keeps_what_members_require_of_each_other(case: Json) -> None:
    assert plan_of(case) == case["expected"]


@pytest.mark.parametrize("block", range(4))
def test_kube_scheduler_accepts_every_plan_and_none_is_missed(block: int) -> None:
    for number in range(60):
        assert compare(block * 1_000_000 + number) == ""


@pytest.mark.parametrize("block", range(2))
def test_of_plans_with_the_fewest_nodes_the_preferred_one(block: int) -> None:
    for number in range(60):
        assert compare_preference(block * 1_000_000 + number) == ""


def test_more_different_terms_than_count_are_no_obstacle() -> None:
    """kube-scheduler alone checks the others."""
    world = world_of({"n0": {}}, {"n0": 4})
    terms = [term(HOSTNAME, {"job": f"j{i}"}) for i in range(MAX_TERMS)]
    pods = [{"labels": JOB, "spec": required("podAntiAffinity", *terms, term(HOSTNAME, JOB))}] * 2
    assert nodes_of(world.plan_problem(problem_of(world, pods))) == ["n0", "n0"]


def test_too_few_domains_are_no_room_and_not_a_search_that_gave_up() -> None:
    nodes = {f"n{i}": {"zone": f"z{i // 10}"} for i in range(60)}
    world = world_of(nodes, {})
    pods = [{"labels": JOB, "spec": required("podAntiAffinity", term("zone", JOB))}] * 7
    found = world.plan_problem(problem_of(world, pods))
    assert found == GangShortage(7), "not gave_up"


@pytest.mark.loopback
async def test_with_a_required_spread_members_exchange_their_nodes() -> None:
    """kube-scheduler offers the nodes with the fewest members, in its own order of the pods."""
    async with berthing({f"n{i}": "a100-pcie-8-bridged" for i in range(2)}) as b:
        notes, found = {"berth.dev/group": "job", "berth.dev/group-min": "4"}, dict[str, str]()
        for i in range(4):
            b.cluster.apply(claim(f"p{i}-gpu", 1))
            made = pod(f"p{i}", f"p{i}-gpu", annotations=notes, **spread(HOSTNAME, JOB))
            made["metadata"]["labels"] = JOB
            b.cluster.apply(made)
        await b.settled()
        for name, offered in (("p0", ["n0", "n1"]), ("p1", []), ("p2", ["n0", "n1"]), ("p3", [])):
            last = list(found.values())[-1:]
            names = offered or [node for node in ("n0", "n1") if node not in last]
            (found[name],) = (await b.filter(name, names))["NodeNames"]
        assert Counter(found.values()) == {"n0": 2, "n1": 2}
        assert b.app.service.gangs.counts.plans == 1
        devices = [result for one in b.app.service.cache.reservations.by_claim.values() for result in one.results]
        assert len({result.device for result in devices}) == 4


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (required("podAntiAffinity", term(HOSTNAME, {})), "anti-affinity to each other"),
        (spread(RACK, {}), "topology spread"),
    ],
)
def test_explain_says_without_which_constraint_the_gang_fits(spec: Json, words: str) -> None:
    world = racked("a1", "b1")
    occupy(world, "other", "b1", 0, 8)
    for i in range(3):
        world.add_claim(claim(f"p{i}", 1))
        apply(world, f"p{i}", f"p{i}", annotations={"berth.dev/group": "job", "berth.dev/group-min": "3"}, **spec)
    found = explained(world)
    assert found.outcome == "refused"
    assert f"fits without the pods' {words}, on node a1" in sentences(found)
