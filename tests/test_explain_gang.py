"""The explanation of a gang, on clusters as data: members, plans, and the causes if there is no plan."""

from __future__ import annotations

from extender.diagnosis import groups_named
from extender.scheduling import Attempt
from tests.explained_gangs import apply, explained, hold, members, occupy, racks
from tests.gang_worlds import CLIQUE, GPU, GangWorld, key
from tests.running_berth import claim

CORE = {"schedulingGroup": {"podGroupName": "job"}}


def test_a_gang_that_fits_has_a_plan() -> None:
    world = GangWorld()
    racks(world, "a1", "a2", "b1")
    members(world, 2)
    found = explained(world)
    assert (found.outcome, found.source, found.minimum, found.missing) == ("fits", "berth.dev/group", 2, 2)
    assert (found.level, found.domain, found.room) == (CLIQUE, "clique-a", 2)
    assert [(one.pod, one.node, len(one.devices)) for one in found.plan] == [
        ("default/p0", "a1", 8),
        ("default/p1", "a2", 8),
    ]
    assert found.sentence.startswith(f"group default/job fits: 2 pods in {CLIQUE}=clique-a")
    assert [(one.pod, one.state) for one in found.members] == [("default/p0", "waiting"), ("default/p1", "waiting")]


def test_members_that_are_missing_gated_and_refused() -> None:
    world = GangWorld()
    racks(world, "a1")
    members(world, 2, minimum=4)
    notes = {"berth.dev/group": "job", "berth.dev/group-min": "4"}
    apply(world, "g", annotations=notes, schedulingGates=[{"name": "quota"}])
    apply(world, "z", annotations=notes, schedulerName="default-scheduler")
    history = {"p0": [Attempt("2026-11-23T10:00:00Z", 0, 1, (("waits until all pods of group job exist", 1),))]}
    found = explained(world, attempts=history)
    assert found.outcome == "waiting"
    assert found.sentence == (
        "group default/job waits for 2 pods: 2 of at least 4 exist, and 1 more with scheduling gates"
    )
    assert [(one.pod, one.state, one.reason, one.since) for one in found.members] == [
        ("default/p0", "waiting", "waits until all pods of group job exist", "2026-11-23T10:00:00Z"),
        ("default/p1", "waiting", "", ""),
        ("default/g", "gated", "", ""),
        ("default/z", "not-ours", "", ""),
    ]
    assert found.since == "2026-11-23T10:00:00Z"


def test_the_explanation_has_the_plan_of_serve_with_its_begin() -> None:
    world = GangWorld()
    racks(world, "a1", "a2")
    members(world, 2)
    for name, node in (("p0", "a1"), ("p1", "a2")):
        hold(world, name, node, 8)
    refusal, answer = ("no domain has room for all pods of group job together", 2), "2026-11-23T10:05:00Z"
    history = {
        "p0": [Attempt("2026-11-23T10:00:00Z", 0, 2, (refusal,)), Attempt(answer, 1, 2)],
        "p1": [Attempt("2026-11-23T10:06:00Z", 1, 2)],
    }
    found = explained(world, attempts=history)
    assert found.outcome == "planned"
    assert found.sentence == f"group default/job is planned: 2 pods with devices held on a1, a2, since {answer}"
    assert found.since == answer
    assert [(one.pod, one.node, len(one.devices)) for one in found.plan] == [
        ("default/p0", "a1", 8),
        ("default/p1", "a2", 8),
    ]
    assert {one.state for one in found.members} == {"held"}


def test_a_gang_whose_minimum_runs_and_one_that_is_bound() -> None:
    world = GangWorld()
    racks(world, "a1", "a2")
    members(world, 3, minimum=2)
    for name, node in (("p0", "a1"), ("p1", "a2")):
        occupy(world, name, node, 0, 8, group="job")
        world.cache.apply_pod(name, None)
    found = explained(world)
    assert (found.outcome, found.bound, found.missing) == ("runs", 2, 0)
    assert [(one.pod, one.state, one.node) for one in found.members] == [
        ("default/p0", "bound", "a1"),
        ("default/p1", "bound", "a2"),
        ("default/p2", "waiting", ""),
    ]
    world.cache.apply_pod("p2", None)
    found = explained(world)
    assert (found.outcome, found.source, found.bound) == ("runs", "berth.dev/group", 2)
    assert found.sentence == "group default/job: 2 pods with devices bound, and no pod waits"


def test_groups_that_are_no_gang_or_invalid() -> None:
    world = GangWorld()
    racks(world, "a1")
    apply(world, "p0", annotations={"berth.dev/group": "job"})
    assert explained(world).outcome == "no-gang"
    apply(world, "p0", annotations={"berth.dev/group": "job", "berth.dev/group-min": "many"})
    found = explained(world)
    assert found.outcome == "blocked"
    assert "berth.dev/group-min" in found.sentence
    members(world, 2)
    world.cache.apply_claim(key("p1"), None)
    found = explained(world)
    assert found.outcome == "waiting"
    assert "claim default/p1 is not known yet" in found.sentence


def test_a_planner_that_gave_up_does_not_say_that_the_gang_is_impossible() -> None:
    """More different members than the planner compares."""
    world = GangWorld()
    racks(world, *(f"a{i}" for i in range(9)))
    notes = {"berth.dev/group": "job", "berth.dev/group-min": "65"}
    for i in range(65):
        world.add_claim(claim(f"p{i}", 1, f"device.driver == '{GPU}' && {i} == {i}"))
        apply(world, f"p{i}", f"p{i}", annotations=notes)
    found = explained(world)
    assert found.outcome == "gave-up"
    assert found.sentence == (
        "group default/job: the planner gave up, because its claims allow too many combinations: a plan may exist"
    )


def test_two_groups_of_one_name() -> None:
    world = GangWorld()
    members(world, 2)
    apply(world, "c0", **CORE)
    found = groups_named(world.cache.snapshot(), "default", "job")
    assert {group.source.value: len(pods) for group, pods in found.items()} == {
        "berth.dev/group": 2,
        "spec.schedulingGroup": 1,
    }
    assert not groups_named(world.cache.snapshot(), "default", "none")
