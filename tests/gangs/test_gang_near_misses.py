"""Near misses of a gang: changes that make it fit, the cheapest ones first."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from extender.api.nodes import Taint
from extender.api.pod_groups import GroupPolicy, group_policy_of
from extender.api.pods import decode_pod
from extender.api.resource_slices import TaintRule
from extender.explain.gang_question import Holder, where
from tests.worlds.explained_gangs import (
    NIC,
    apply,
    explained,
    free,
    gang,
    hold,
    members,
    nics,
    occupy,
    racked,
    racks,
    sentences,
)
from tests.worlds.gang_worlds import CLIQUE, GPU, RACK, SPINE, GangWorld, key
from tests.worlds.group_trees import composite, pod_group
from tests.worlds.running_berth import claim, pod

CORE = {"schedulingGroup": {"podGroupName": "job"}}


def test_pods_whose_end_makes_it_fit_are_the_fewest_and_do_make_it_fit() -> None:
    """b2 has one pod with all devices, and a2 has two: the end of the one is the cheaper change."""
    world = racked("a1", "a2", "b1", "b2")
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
        f"the most room is now on node b1, for 1; it {sentences(found)[0]}"
    )
    assert not found.cut_short
    held = [(one.node, one.devices, one.pods, one.state) for one in found.holders]
    assert held == [("b2", 8, ("default/large",), "allocated")]
    free(world, "large")
    assert explained(world).domain == "clique-b"
    occupy(world, "large", "b2", 0, 8)
    free(world, "small")
    assert explained(world).outcome == "refused", "both must end"
    free(world, "middle")
    assert explained(world).domain == "clique-a"


def test_all_pods_of_several_nodes_must_end() -> None:
    world = racked("a1", "a2", "a3")
    for node in ("a1", "a2", "a3"):
        occupy(world, f"first-{node}", node, 0, 4)
        occupy(world, f"second-{node}", node, 4, 4)
    members(world, 6, gpus=4)
    found = explained(world)
    (miss,) = found.misses
    assert (miss.pods, miss.devices) == (6, 24)
    named = {f"default/{which}-{node}" for which in ("first", "second") for node in ("a1", "a2", "a3")}
    assert [name for name in named if name not in miss.sentence] == [], "all must end, so all are named"
    assert {pod for holder in miss.holders for pod in holder.pods} == {
        f"default/{which}-{node}" for which in ("first", "second") for node in ("a1", "a2", "a3")
    }
    for holder in miss.holders:
        for name in holder.pods:
            assert explained(world).outcome == "refused"
            free(world, name.removeprefix("default/"))
    assert explained(world).outcome == "fits"


def test_the_end_of_very_many_pods_is_not_called_the_least() -> None:
    """To leave out each of them would take a plan each."""
    world = GangWorld()
    names = [f"a{i}" for i in range(7)]
    racks(world, *names)
    for node in names:
        for i in range(8):
            occupy(world, f"on-{node}-{i}", node, i)
    members(world, 7)
    (miss,) = explained(world).misses
    assert miss.pods == 56
    assert miss.sentence.endswith("and 48 more (gave up: the end of fewer may do)")


def test_members_of_different_sizes_need_different_nodes() -> None:
    """The room of each node for some member says too little: the large member needs a whole node."""
    world = racked("a1", "b1", "b2")
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
    world = racked("a1", "a2")
    occupy(world, "large", "a1", 0, 6)
    occupy(world, "small", "a1", 6, 2)
    occupy(world, "other", "a2", 0, 8)
    members(world, 2, gpus=1, topology="required")
    world.cache.apply_pod("p1", None)  # one member with one GPU, and one that needs two
    world.add_claim(claim("p9", 2))
    notes = {"berth.dev/group": "job", "berth.dev/group-min": "2", "berth.dev/group-topology": "required"}
    apply(world, "p9", "p9", annotations=notes)
    found = explained(world)
    assert [miss for miss in sentences(found) if "without" in miss] == [
        "fits on node a2 without default/other (8 devices on a2)"
    ]


def test_a_smaller_minimum_that_fits() -> None:
    world = gang(5, "a1", "a2", "a3")
    found = explained(world)
    assert (found.room, found.level, found.domain) == (3, CLIQUE, "clique-a")
    assert sentences(found) == ("fits with a minimum of 3 instead of 5 members",)
    assert found.sentence == (
        "group default/job does not fit in this fleet: even if all other pods ended, the most room would be in "
        f"{CLIQUE}=clique-a, for 3 of 5 pods; it fits with a minimum of 3 instead of 5 members"
    )
    assert found.room_if_empty == 3
    members(world, 5, minimum=3)
    assert explained(world).outcome == "fits"


def test_a_minimum_of_one_is_not_proposed() -> None:
    world = gang(2, "a1")
    assert sentences(explained(world)) == ()


def test_a_constraint_to_one_value_of_a_label() -> None:
    world = racked("a1", "b1")
    for i in range(2):
        world.add_claim(claim(f"p{i}", 8))
        apply(world, f"p{i}", f"p{i}", **CORE)
    membership = world.cache.snapshot().pods["p0"].membership
    assert membership is not None
    world.cache.apply_group_policy(membership.policy_key, GroupPolicy(2, RACK))
    found = explained(world)
    assert (found.source, found.topology_label) == ("spec.schedulingGroup", RACK)
    assert sentences(found) == (f"fits without the constraint to one value of {RACK}, across the cluster",)


def test_a_tree_of_groups_does_not_fit_with_a_smaller_minimum() -> None:
    """The PodGroup a needs 3 pods in one rack, and each rack has 2 nodes: only without its level it fits."""
    world = racked("a1", "a2", "b1", "b2")
    for obj in (composite("root", 2), pod_group("a", "root", 3, CLIQUE), pod_group("b", "root", 1)):
        for group, policy in group_policy_of(obj).items():
            world.cache.apply_group_policy(group, policy)
    for name in ("a0", "a1", "a2", "b0"):
        world.add_claim(claim(name, 8))
        apply(world, name, name, schedulingGroup={"podGroupName": name[0]})
    found = explained(world, name="root")
    assert sentences(found) == ("fits without its slices and sub-groups, across the cluster",)
    assert "sub-group a needs 3 pods in one domain of" in found.sentence


def test_a_domain_that_no_node_belongs_to() -> None:
    world = GangWorld()
    for name in ("n1", "n2"):
        world.add_node(name, "a100-pcie-8-bridged")
    members(world, 2, topology="required")
    found = explained(world)
    assert found.outcome == "refused"
    assert found.sentence == (
        f"group default/job fits nowhere: no node with devices has the label {CLIQUE} that group job needs; "
        "the most room is now on node n1, for 1; "
        "it fits with topology preferred instead of required, across the cluster"
    )


def test_the_label_is_only_on_nodes_that_the_gang_cannot_use() -> None:
    """A node without devices, and one whose devices are of another kind."""
    world = GangWorld()
    for name in ("n1", "n2"):
        world.add_node(name, "a100-pcie-8-bridged")
    world.add_node("cpu", labels={CLIQUE: "c"})
    members(world, 2, topology="required")
    missing = f"no node with devices has the label {CLIQUE} that group job needs"
    assert f"fits nowhere: {missing}" in explained(world).sentence
    world.add_node("t4", "t4-4", {CLIQUE: "c"})
    found = explained(world)
    assert found.sentence == (
        "group default/job does not fit in this fleet: "
        "even if all other pods ended, the most room would be on node n1, for 1 of 2 pods; "
        f"2 of 2 nodes with devices for its pods have no label {CLIQUE}, which it needs; "
        "it fits with topology preferred instead of required, across the cluster"
    )
    assert not found.holders


def test_a_gang_that_is_larger_than_the_fleet_names_no_holders() -> None:
    world = racked("a1", "a2", "b1")
    occupy(world, "other", "a1", 0, 8)
    occupy(world, "small", "b1", 0, 1)
    members(world, 9, gpus=8)
    found = explained(world)
    assert (found.outcome, found.room, found.room_if_empty) == ("refused", 1, 3)
    assert found.sentence == (
        "group default/job does not fit in this fleet: even if all other pods ended, the most room would be across the "
        "cluster, for 3 of 9 pods; the most room is now on node a2, for 1"
    )
    assert (found.misses, found.holders, found.held_in) == ((), (), "")


def test_a_gang_that_is_larger_than_its_domain_would_fit_elsewhere_only_after_others_end() -> None:
    world = racked("a1", "a2", "b1", "b2")
    for node in ("a1", "a2", "b1", "b2"):
        occupy(world, f"on-{node}", node, 0, 8)
    members(world, 3, topology="required")
    assert explained(world).sentence == (
        "group default/job does not fit in this fleet: even if all other pods ended, "
        f"the most room would be in {CLIQUE}=clique-a, for 2 of 3 pods; "
        "now no node that it may use has room even for one of them; "
        "with topology preferred instead of required it would fit, but only after other pods end"
    )


ELSEWHERE = f"it fits without the constraint to one value of {RACK}, across the cluster"


@pytest.mark.parametrize(
    ("nodes", "room_if_empty", "sentence"),
    [
        (
            ("a1", "b1", "b2"),
            0,
            (
                "does not fit where it runs: even if all other pods ended, no node that it may use would have room for "
                f"one of its pods; group job runs in {RACK}=rack-a, where its other pods have no room; "
                f"now no node that it may use has room even for one of them; {ELSEWHERE}"
            ),
        ),
        (
            ("a1", "a2", "b1", "b2"),
            1,
            (
                "does not fit where it runs: even if all other pods ended, the most room would be in "
                f"{CLIQUE}=clique-a, for 1 of 2 pods; group job runs in {RACK}=rack-a, where its other pods have "
                f"no room; now no node that it may use has room even for one of them; {ELSEWHERE}"
            ),
        ),
    ],
    ids=["its rack is too small", "another pod is there"],
)
def test_free_nodes_outside_of_the_domain_of_a_running_gang_are_not_denied(
    nodes: tuple[str, ...], room_if_empty: int, sentence: str
) -> None:
    world = racked(*nodes)
    occupy(world, "m0", "a1", 0, 8, group="job")
    if "a2" in nodes:
        occupy(world, "other", "a2", 0, 8)
    members(world, 2, minimum=3, required="rack")
    found = explained(world)
    assert (found.outcome, found.room_if_empty) == ("refused", room_if_empty)
    assert found.sentence == f"group default/job {sentence}"


def test_a_label_that_no_node_has_is_the_cause_and_not_the_room() -> None:
    world = racked("a1", "a2")
    members(world, 2, required="spine")
    assert explained(world).sentence == (
        f"group default/job fits nowhere: no node with devices has the label {SPINE} that group job needs; "
        f"it fits without the constraint to one value of {SPINE}, in {CLIQUE}=clique-a"
    )


def test_only_holders_of_devices_that_the_gang_could_use_are_named() -> None:
    world = racked("a1", "a2")
    world.add_node("t4", "t4-4")
    occupy(world, "other", "t4", 0, 4)
    occupy(world, "large", "a1", 0, 8)
    members(world, 2)
    found = explained(world)
    assert [one.pods for one in found.holders] == [("default/large",)]
    assert found.held_in == "across the cluster"


def test_the_end_of_pods_with_other_devices_is_not_proposed() -> None:
    """NICs of another driver; and a GPU with a taint, which is not free for the gang without its pod either."""
    world = racked("a1")
    nics(world, "a1")
    for i in range(4):
        occupy(world, f"web{i}", "a1", i, driver=NIC)
    for i in range(8):
        occupy(world, f"job{i}", "a1", i)
    world.cache.apply_rule("r", TaintRule("r", Taint("sick", effect="NoSchedule"), driver=GPU, device="gpu-0"))
    members(world, 2, gpus=1)
    found = explained(world)
    assert sentences(found) == (
        "fits on node a1 without default/job1 (1 device on a1) and default/job2 (1 device on a1)",
    )
    assert [one.pods for one in found.holders] == [(f"default/job{i}",) for i in range(1, 8)]


def test_devices_of_a_pool_that_nodes_share_do_not_count_as_never_free() -> None:
    """They are not released, so the empty fleet proves nothing."""
    world = racked("a1", "a2")
    slice_ = {
        "metadata": {"name": "shared", "uid": "shared"},
        "spec": {
            "driver": GPU,
            "pool": {"name": "shared", "generation": 1, "resourceSliceCount": 1},
            "allNodes": True,
            "devices": [{"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}}],
        },
    }
    world.add_slice(slice_)
    obj = claim("user", 1)
    obj["status"] = {
        "allocation": {
            "devices": {"results": [{"request": "gpu", "driver": GPU, "pool": "shared", "device": "gpu-0"}]}
        },
        "reservedFor": [{"resource": "pods", "name": "user", "uid": "user"}],
    }
    world.add_claim(obj)
    members(world, 17, gpus=1)
    found = explained(world)
    assert (found.outcome, found.room, found.room_if_empty) == ("refused", 16, None)
    assert any("without default/user" in sentence for sentence in sentences(found))


def test_devices_held_for_another_gang() -> None:
    world = gang(2, "a1", "a2")
    notes = {"berth.dev/group": "rival", "berth.dev/group-min": "2"}
    world.add_claim(claim("r0", 8))
    apply(world, "r0", "r0", annotations=notes)
    hold(world, "r0", "a1", 8)
    found = explained(world)
    assert sentences(found) == (f"fits in {CLIQUE}=clique-a without default/r0 (8 devices on a1, held, group rival)",)
    assert [(one.pods, one.state, one.group) for one in found.holders] == [(("default/r0",), "held", "rival")]


def test_groups_in_the_way_are_named_as_users_know_them() -> None:
    """Not by the label that their pods have: a LeaderWorkerSet by its name and the index of the group."""
    world = gang(2, "a1", "a2")
    occupy(world, "vllm-1", "a1", 0, 8, group="leaderworkerset.sigs.k8s.io/group-key=vllm-1")
    labels = {"group-key": "5ba93c9db0cff93f", "name": "vllm", "group-index": "2"}
    world.add_claim(claim("w0", 8))
    made = pod("vllm-2", "w0", annotations={"leaderworkerset.sigs.k8s.io/size": "2"})
    made["metadata"] |= {
        "uid": "w0",
        "labels": {f"leaderworkerset.sigs.k8s.io/{name}": text for name, text in labels.items()},
    }
    world.cache.apply_pod("w0", decode_pod(made))
    hold(world, "w0", "a2", 8)
    found = explained(world)
    others = "default/vllm-1 (8 devices on a1, group vllm-1) and default/vllm-2 (8 devices on a2, held, group vllm-2)"
    assert sentences(found) == (f"fits in {CLIQUE}=clique-a without {others}",)
    assert {one.group for one in found.holders} == {"vllm-1", "vllm-2"}


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
            nics(world, node)
            for i in range(4):
                if rng.random() < 0.5:
                    occupy(world, f"{node}-nic-{i}", node, i, driver=NIC)
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

    def without(self, holders: Sequence[Holder]) -> GangWorld:
        """The cluster once the pods of these holders end."""
        world = self.build()
        for holder in holders:
            for name in holder.claims:
                world.cache.apply_claim(key(name.removeprefix("default/")), None)
            for name in holder.pods if holder.state == "held" else ():
                world.cache.release(name.removeprefix("default/"))
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


@pytest.mark.parametrize("seed", range(30))
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
            pods = [pod for holder in miss.holders for pod in (holder.pods or ("",))]
            assert len(pods) == miss.pods
            changed = made.without(miss.holders)
            for holder in miss.holders:
                part = made.without([one for one in miss.holders if one is not holder])
                assert explained(part).outcome == "refused", f"{miss.sentence}: not needed: {holder}"
        after = explained(changed)
        assert after.outcome == "fits", miss.sentence
        assert where(after.level, after.domain) in miss.sentence or "minimum" in miss.sentence


@pytest.mark.parametrize("seed", range(30))
def test_the_room_in_the_empty_fleet_is_that_of_a_random_cluster_without_other_pods(seed: int) -> None:
    made = RandomWorld(seed)
    found, empty = explained(made.build()), made.build()
    snapshot = empty.cache.snapshot()
    for claim_key, one in dict(snapshot.claims).items():
        if one.allocation is not None:
            empty.cache.apply_claim(claim_key, None)
    for reservation in list(snapshot.reservations.values()):
        empty.cache.release(reservation.pod_uid)
    after = explained(empty)
    assert found.outcome == "fits" or found.room_if_empty == (
        after.room if after.outcome == "refused" else found.missing
    )
    assert ("does not fit in this fleet" in found.sentence) == (after.outcome == "refused")


def test_a_member_returns_to_the_domain_of_those_that_run() -> None:
    """The other rack has room, but two members run in this one."""
    world = gang(3, "a1", "a2", "a3", "b1", topology="required")
    for name, node in (("p0", "a1"), ("p1", "a2")):
        occupy(world, name, node, 0, 8, group="job")
        world.cache.apply_pod(name, None)
    occupy(world, "other", "a3", 0, 8)
    found = explained(world)
    assert (found.bound, found.missing) == (2, 1)
    assert sentences(found) == (
        "fits with topology preferred instead of required, across the cluster",
        f"fits in {CLIQUE}=clique-a without default/other (8 devices on a3)",
    )
    assert [one.pods for one in found.holders] == [("default/other",)]
    free(world, "other")
    assert explained(world).plan[0].node == "a3"
