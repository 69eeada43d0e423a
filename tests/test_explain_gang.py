"""The explanation of a gang, on worlds of data: members, plans, and changes that really make it fit."""

from __future__ import annotations

import random
from math import inf
from typing import Any

import pytest

from extender.diagnosis import GangExplanation, PlannerCaches, explain_gang, groups_named
from extender.diagnosis.gang_question import where
from extender.model import UNLIMITED, CallBudget, GroupPolicy, Result
from extender.scheduling import Attempt
from extender.wire import decode_pod
from tests.gang_worlds import CLIQUE, GPU, POLICY, RACK, GangWorld, key
from tests.running_berth import claim, pod

CORE = {"schedulingGroup": {"podGroupName": "job"}}


def members(world: GangWorld, size: int, gpus: int = 8, minimum: int = 0, **notes: str) -> None:
    """Pods p0, p1, ... of the group job, with a claim each."""
    wanted = {"berth.dev/group": "job", "berth.dev/group-min": str(minimum or size)}
    wanted |= {f"berth.dev/group-{name}": value for name, value in notes.items()}
    for i in range(size):
        world.add_claim(claim(f"p{i}", gpus))
        apply(world, f"p{i}", f"p{i}", annotations=wanted)


def apply(world: GangWorld, name: str, *claims: str, **fields: Any) -> None:
    """A pod without a node."""
    obj = pod(name, *claims, **fields)
    obj["metadata"]["uid"] = name
    world.cache.apply_pod(name, decode_pod(obj))


def occupy(
    world: GangWorld,
    name: str,
    node: str,
    first: int,
    count: int = 1,
    group: str = "",
    pods: tuple[str, ...] = (),
    claim_name: str = "",
) -> None:
    """A pod of this name, or `pods` that share a claim, with devices of a node, from `first` on."""
    obj = claim(claim_name or f"{name}-gpus", count)
    obj["metadata"]["annotations"] = {"berth.dev/group": group} if group else {}
    devices = [f"gpu-{i}" for i in range(first, first + count)]
    results = [{"request": "gpu", "driver": GPU, "pool": node, "device": device} for device in devices]
    obj["status"] = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": one, "uid": one} for one in pods or (name,)],
    }
    world.add_claim(obj)


def hold(world: GangWorld, name: str, node: str, count: int, first: int = 0) -> None:
    """Hold devices of a node for the claim and pod of this name."""
    places = world.cache.snapshot().node_infos[node].inventory.places[first : first + count]
    world.cache.hold(name, name, node, tuple(Result("gpu", place.id) for place in places), inf)


def free(world: GangWorld, name: str) -> None:
    world.cache.apply_claim(key(f"{name}-gpus"), None)


def explained(
    world: GangWorld, budget: CallBudget = UNLIMITED, attempts: dict[str, list[Attempt]] | None = None
) -> GangExplanation:
    snapshot = world.cache.snapshot()
    ((group, pods),) = groups_named(snapshot, "default", "job").items()
    context = world.evaluator.evaluation_context(snapshot, budget)
    caches = PlannerCaches(world.rankings, world.memory)
    return explain_gang(group, pods, snapshot, POLICY, context, caches, attempts or {})


def sentences(found: GangExplanation) -> tuple[str, ...]:
    return tuple(miss.sentence for miss in found.misses)


def racks(world: GangWorld, *nodes: str) -> None:
    """Nodes a1, a2, b1, ... of 8 GPUs: the letter is the rack."""
    for name in nodes:
        world.add_node(name, "a100-pcie-8-bridged", {RACK: f"rack-{name[0]}", CLIQUE: f"clique-{name[0]}"})


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
    told = {"p0": [Attempt("2026-11-23T10:00:00Z", 0, 1, (("waits until all pods of group job exist", 1),))]}
    found = explained(world, attempts=told)
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


def test_pods_whose_end_makes_it_fit_are_the_fewest_and_do_make_it_fit() -> None:
    """b2 has one pod with all devices, and a2 has two: the end of the one is the cheaper change."""
    world = GangWorld()
    racks(world, "a1", "a2", "b1", "b2")
    occupy(world, "small", "a2", 0, 1)
    occupy(world, "middle", "a2", 1, 4)
    occupy(world, "large", "b2", 0, 8)
    members(world, 2, topology="required")
    found = explained(world)
    assert found.outcome == "refused"
    assert found.room == 1
    assert sentences(found) == (
        "fits with topology preferred instead of required, across the cluster",
        f"fits in {CLIQUE}=clique-b without default/large (8 devices on b2)",
        f"fits in {CLIQUE}=clique-a without default/middle (4 devices on a2) and default/small (1 device on a2)",
    )
    assert found.sentence == (
        "group default/job fits nowhere: no domain has room for 2 pods together; "
        f"the most room is in {CLIQUE}=clique-a, for 1; it {sentences(found)[0]}"
    )
    assert not found.cut_short
    assert [(one.node, one.devices, one.pods, one.state) for one in found.holders] == [
        ("a2", 4, ("default/middle",), "allocated"),
        ("a2", 1, ("default/small",), "allocated"),
    ]
    free(world, "large")
    assert explained(world).domain == "clique-b"
    occupy(world, "large", "b2", 0, 8)
    free(world, "small")
    assert explained(world).outcome == "refused", "both must end"
    free(world, "middle")
    assert explained(world).domain == "clique-a"


def test_all_pods_of_several_nodes_must_end() -> None:
    world = GangWorld()
    racks(world, "a1", "a2", "a3")
    for node in ("a1", "a2", "a3"):
        occupy(world, f"first-{node}", node, 0, 4)
        occupy(world, f"second-{node}", node, 4, 4)
    members(world, 6, gpus=4)
    found = explained(world)
    (miss,) = found.misses
    assert (miss.pods, miss.devices) == (6, 24)
    assert miss.sentence.endswith("and default/first-a2 (4 devices on a2) and 2 more"), miss.sentence
    assert {pod for holder in miss.holders for pod in holder.pods} == {
        f"default/{which}-{node}" for which in ("first", "second") for node in ("a1", "a2", "a3")
    }
    for holder in miss.holders:
        for name in holder.pods:
            assert explained(world).outcome == "refused"
            free(world, name.removeprefix("default/"))
    assert explained(world).outcome == "fits"


def test_members_of_different_sizes_need_different_nodes() -> None:
    """The room of each node for some member says too little: the large member needs a whole node."""
    world = GangWorld()
    racks(world, "a1", "b1", "b2")
    occupy(world, "half", "a1", 0, 4)
    for node in ("b1", "b2"):
        occupy(world, f"first-{node}", node, 0, 4)
        occupy(world, f"second-{node}", node, 4, 4)
    notes = {"berth.dev/group": "job", "berth.dev/group-min": "2", "berth.dev/group-topology": "required"}
    for name, gpus in (("p0", 4), ("p1", 8)):
        world.add_claim(claim(name, gpus))
        apply(world, name, name, annotations=notes)
    miss = next(miss for miss in explained(world).misses if miss.holders)
    assert (miss.pods, miss.devices) == (3, 12)
    assert {holder.node for holder in miss.holders} == {"b1", "b2"}


def test_one_large_pod_is_named_rather_than_two() -> None:
    world = GangWorld()
    racks(world, "a1", "a2")
    occupy(world, "large", "a1", 0, 6)
    occupy(world, "small", "a1", 6, 2)
    occupy(world, "other", "a2", 0, 8)
    members(world, 2, gpus=1, topology="required")
    world.cache.apply_pod("p1", None)  # one member with one GPU, and one that needs two
    world.add_claim(claim("p9", 2))
    apply(world, "p9", "p9", annotations={"berth.dev/group": "job", "berth.dev/group-min": "2"})
    found = explained(world)
    assert [miss for miss in sentences(found) if "without" in miss] == [
        "fits on node a1 without default/large (6 devices on a1)"
    ]


def test_a_smaller_minimum_that_fits() -> None:
    world = GangWorld()
    racks(world, "a1", "a2", "a3")
    members(world, 5)
    found = explained(world)
    assert (found.room, found.level, found.domain) == (3, "", "")
    assert sentences(found) == ("fits with a minimum of 3 instead of 5 members",)
    assert "the most room is across the cluster, for 3" in found.sentence
    members(world, 5, minimum=3)
    assert explained(world).outcome == "fits"


def test_a_minimum_of_one_is_not_proposed() -> None:
    world = GangWorld()
    racks(world, "a1")
    members(world, 2)
    assert sentences(explained(world)) == ()


def test_a_constraint_to_one_value_of_a_label() -> None:
    world = GangWorld()
    racks(world, "a1", "b1")
    for i in range(2):
        world.add_claim(claim(f"p{i}", 8))
        apply(world, f"p{i}", f"p{i}", **CORE)
    membership = world.cache.snapshot().pods["p0"].membership
    assert membership is not None
    world.cache.apply_group_policy(membership.policy_key, GroupPolicy(2, RACK))
    found = explained(world)
    assert (found.source, found.topology_label) == ("spec.schedulingGroup", RACK)
    assert sentences(found) == (f"fits without the constraint to one value of {RACK}, across the cluster",)


def test_what_is_held_for_another_gang() -> None:
    world = GangWorld()
    racks(world, "a1", "a2")
    members(world, 2)
    notes = {"berth.dev/group": "rival", "berth.dev/group-min": "2"}
    world.add_claim(claim("r0", 8))
    apply(world, "r0", "r0", annotations=notes)
    hold(world, "r0", "a1", 8)
    found = explained(world)
    assert sentences(found) == (f"fits in {CLIQUE}=clique-a without default/r0 (8 devices on a1, held, group rival)",)
    assert [(one.pods, one.state, one.group) for one in found.holders] == [(("default/r0",), "held", "rival")]


def test_a_plan_of_serve_is_told_with_its_begin() -> None:
    world = GangWorld()
    racks(world, "a1", "a2")
    members(world, 2)
    for name, node in (("p0", "a1"), ("p1", "a2")):
        hold(world, name, node, 8)
    refusal, answer = ("no domain has room for all pods of group job together", 2), "2026-11-23T10:05:00Z"
    told = {
        "p0": [Attempt("2026-11-23T10:00:00Z", 0, 2, (refusal,)), Attempt(answer, 1, 2)],
        "p1": [Attempt("2026-11-23T10:06:00Z", 1, 2)],
    }
    found = explained(world, attempts=told)
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


@pytest.mark.parametrize("steps", range(0, 400, 7))
def test_a_budget_that_ends_leaves_what_was_found(steps: int) -> None:
    world = GangWorld()
    racks(world, "a1", "a2", "b1", "b2")
    occupy(world, "middle", "a2", 1, 4)
    occupy(world, "large", "b2", 0, 8)
    members(world, 2, topology="required")
    budget = CallBudget(1.0, steps, lambda: 0.0)
    budget.mark_progress()
    found, whole = explained(world, budget), explained(world)
    assert found.outcome in ("unfinished", "refused")
    assert set(found.misses) <= set(whole.misses)
    if found.outcome == "refused" and found.misses != whole.misses:
        assert found.cut_short
    assert len(found.members) == 2


class RandomWorld:
    """A cluster and a gang, made again by each call of `build`."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def build(self, topology: str = "", minimum: int = 0) -> GangWorld:
        rng, world = random.Random(self._seed), GangWorld()
        nodes = [f"{rack}{i}" for rack in "ab" for i in range(rng.randint(1, 3))]
        racks(world, *nodes)
        for node in nodes:
            first = 0
            while first < 8:
                count = min(rng.choice((1, 2, 4, 8)), 8 - first)
                if rng.random() < 0.8:
                    self._use(world, rng, node, first, count)
                first += count
        sizes = [rng.choice((1, 4, 4, 8)) for _ in range(rng.randint(2, 5))]
        wanted = topology or rng.choice(("required", "preferred", "none"))
        notes = {"group": "job", "group-min": str(minimum or len(sizes)), "group-topology": wanted}
        for i, gpus in enumerate(sizes):
            world.add_claim(claim(f"p{i}", gpus))
            apply(world, f"p{i}", f"p{i}", annotations={f"berth.dev/{name}": text for name, text in notes.items()})
        return world

    def _use(self, world: GangWorld, rng: random.Random, node: str, first: int, count: int) -> None:
        name = f"{node}-{first}"
        kind = rng.choice(("one", "one", "two claims", "shared", "held"))
        if kind == "held":
            world.add_claim(claim(name, count))
            apply(world, name, name)
            hold(world, name, node, count, first)
        elif kind == "two claims" and count > 1:
            occupy(world, name, node, first, 1)
            occupy(world, name, node, first + 1, count - 1, claim_name=f"{name}-more")
        else:
            occupy(world, name, node, first, count, pods=(name, f"{name}-too") if kind == "shared" else ())


@pytest.mark.parametrize("seed", range(60))
def test_every_change_makes_a_random_gang_fit(seed: int) -> None:
    """In the cluster itself, and not only in the planner's copy of it."""
    made = RandomWorld(seed)
    found = explained(made.build())
    assert found.outcome in ("fits", "refused")
    assert [(miss.pods, miss.devices) for miss in found.misses] == sorted(
        (miss.pods, miss.devices) for miss in found.misses
    )
    for miss in found.misses:
        if "minimum" in miss.sentence:
            changed = made.build(minimum=int(miss.sentence.split()[5]))
        elif "preferred" in miss.sentence:
            changed = made.build(topology="preferred")
        else:
            changed = made.build()
            pods = [pod for holder in miss.holders for pod in (holder.pods or ("",))]
            assert len(pods) == miss.pods
            for holder in miss.holders:
                for name in holder.claims:
                    changed.cache.apply_claim(key(name.removeprefix("default/")), None)
                for name in holder.pods if holder.state == "held" else ():
                    changed.cache.release(name.removeprefix("default/"))
        after = explained(changed)
        assert after.outcome == "fits", miss.sentence
        assert where(after.level, after.domain) in miss.sentence or "minimum" in miss.sentence
