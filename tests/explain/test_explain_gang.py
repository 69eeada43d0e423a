"""The explanation of a gang, on clusters as data: members, plans, and the causes if there is no plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from extender.api.group_topology import AskedTopology
from extender.api.nodes import Taint, decode_node
from extender.api.pod_groups import GroupKey, GroupPolicy, GroupSource, Membership
from extender.api.pods import decode_pod
from extender.api.resource_slices import TaintRule
from extender.explain import groups_named
from extender.sandbox import carried_machines
from extender.sandbox.machines import node_object
from tests.worlds.explained_gangs import NIC, apply, explained, gang, hold, members, occupy, racked
from tests.worlds.filled_caches import device_slice
from tests.worlds.gang_worlds import CLIQUE, GPU, GangWorld, key
from tests.worlds.running_berth import claim, pod

LWS = {"group-key": "5ba93c9db0cff93f52b521d7420e43f6eda2784f", "name": "vllm", "group-index": "1"}
CORE = {"schedulingGroup": {"podGroupName": "job"}}


def told(world: GangWorld, name: str, **facts: Any) -> None:
    """Change facts of a pod that waits."""
    world.cache.apply_pod(name, replace(world.cache.store.pods[name], **facts))


def test_a_gang_that_fits_has_a_plan() -> None:
    world = gang(2, "a1", "a2", "b1")
    found = explained(world)
    assert (found.outcome, found.source, found.minimum, found.missing) == ("fits", "berth.dev/group", 2, 2)
    assert (found.level, found.domain, found.room) == (CLIQUE, "clique-a", 2)
    assert [(one.pod, one.node, len(one.devices)) for one in found.plan] == [
        ("default/p0", "a1", 8),
        ("default/p1", "a2", 8),
    ]
    assert found.sentence.startswith(f"group default/job fits: 2 pods in {CLIQUE}=clique-a")
    assert [(one.pod, one.state) for one in found.members] == [("default/p0", "waiting"), ("default/p1", "waiting")]


def test_a_gang_that_fits_shows_its_last_answer() -> None:
    """The plan knows nothing of CPU: kube-scheduler may reject each plan."""
    world = gang(2, "a1", "a2")
    told(world, "p1", unschedulable="2 Insufficient cpu")
    found = explained(world)
    assert found.outcome == "fits"
    assert found.sentence.endswith("; the last answer of kube-scheduler was: 2 Insufficient cpu")


def test_members_that_are_missing_gated_and_refused() -> None:
    world = gang(2, "a1", minimum=4)
    notes = {"berth.dev/group": "job", "berth.dev/group-min": "4"}
    apply(world, "g", annotations=notes, schedulingGates=[{"name": "quota"}])
    apply(world, "z", annotations=notes, schedulerName="default-scheduler")
    why = "waits until at least 4 pods of group job and their claims exist"
    told(world, "p0", unschedulable=why, created="2026-11-23T09:00:00Z")
    found = explained(world)
    assert found.outcome == "waiting"
    assert found.sentence == (
        "group default/job waits for 2 pods: 2 of at least 4 exist, and 1 more with scheduling gates, "
        "and 1 more without schedulerName berth-scheduler"
    )
    assert [(one.pod, one.state, one.reason, one.since) for one in found.members] == [
        ("default/p0", "waiting", why, "2026-11-23T09:00:00Z"),
        ("default/p1", "waiting", "", ""),
        ("default/g", "gated", "", ""),
        ("default/z", "not-ours", "", ""),
    ]
    assert found.since == "2026-11-23T09:00:00Z"


def test_a_complete_gang_waits_since_its_last_pod_was_created() -> None:
    world = gang(2, "a1")
    early, later = "2026-11-23T10:00:00Z", "2026-11-23T10:01:00Z"
    told(world, "p0", created=early)
    told(world, "p1", created=later)
    found = explained(world)
    assert (found.since, found.since_event, [one.since for one in found.members]) == (
        later,
        "all pods exist",
        [early, later],
    )


def test_the_explanation_has_the_plan_of_serve() -> None:
    world = gang(2, "a1", "a2")
    for name, node in (("p0", "a1"), ("p1", "a2")):
        hold(world, name, node, 8)
    found = explained(world)
    assert (found.outcome, found.level, found.domain) == ("planned", CLIQUE, "clique-a")
    place = f"in {CLIQUE}=clique-a"
    assert found.sentence == f"group default/job is planned: 2 pods with devices held on a1, a2 {place}"
    assert [(one.pod, one.node, len(one.devices)) for one in found.plan] == [
        ("default/p0", "a1", 8),
        ("default/p1", "a2", 8),
    ]
    assert {one.state for one in found.members} == {"held"}


def test_a_gang_whose_minimum_runs_and_one_that_is_bound() -> None:
    world = gang(3, "a1", "a2", minimum=2)
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
    assert found.sentence == (
        f"group default/job has its minimum of 2 pods bound in {CLIQUE}=clique-a; each other pod is placed alone"
    )


def test_a_bound_pod_explains_a_group_of_which_no_pod_waits() -> None:
    world = racked("a1", "b1")
    for name, node in (("p0", "a1"), ("p1", "b1")):
        occupy(world, name, node, 0, 8, group="job")
    found = explained(world)
    assert (found.outcome, found.source, found.bound, found.minimum) == ("bound", "berth.dev/group", 2, 0)
    have = "group default/job has 2 pods bound, and no pod waits"
    assert found.sentence == f"{have}; its minimum is not known here"
    said = Membership(GroupKey("default", GroupSource.BERTH, "job"), 2, topology=AskedTopology("none"))
    found = explained(world, bound_member=said)
    assert (found.outcome, found.minimum, found.topology, found.missing) == ("runs", 2, "none", 0)
    assert found.sentence == (
        "group default/job runs: 2 pods bound across the cluster; its minimum is 2, and no pod waits"
    )
    found = explained(world, bound_member=replace(said, minimum=3))
    assert (found.outcome, found.minimum, found.missing) == ("waiting", 3, 1)
    assert found.sentence == (
        "group default/job has 2 of at least 3 pods bound, and no pod waits: "
        "the others do not exist, have ended, or are bound without devices"
    )
    assert explained(world, bound_member=replace(said, minimum=0)).outcome == "no-gang"


def test_the_object_of_a_group_names_the_minimum_of_bound_pods() -> None:
    world = racked("a1")
    occupy(world, "p0", "a1", 0, 8, group=f"{GroupSource.CORE.value}=job")
    key = GroupKey("default", GroupSource.CORE, "job")
    assert explained(world).outcome == "bound"
    world.cache.apply_group_policy(key, GroupPolicy(2))
    assert (explained(world).outcome, explained(world).minimum) == ("waiting", 2)


@pytest.mark.parametrize(
    ("notes", "why"),
    [({"berth.dev/group-min": "1"}, "its minimum is 1, and a gang has at least 2"), ({}, "no minimum is known")],
)
def test_a_group_that_is_no_gang_says_why(notes: dict[str, str], why: str) -> None:
    world = racked("a1")
    obj = pod("p1", annotations={"berth.dev/group": "job", **notes})
    obj["metadata"]["uid"] = "p1"
    world.cache.apply_pod("p1", decode_pod(obj))
    advice = "" if notes else "; the annotation berth.dev/group-min on its pods would make it a gang"
    assert explained(world).sentence == f"group default/job is no gang: {why}, so each pod is placed alone{advice}"


def test_a_group_of_a_leader_worker_set_has_the_name_of_its_leader() -> None:
    world = racked("a1")
    obj = pod("vllm-1", annotations={"leaderworkerset.sigs.k8s.io/size": "3"})
    obj["metadata"]["labels"] = {f"leaderworkerset.sigs.k8s.io/{name}": text for name, text in LWS.items()}
    obj["metadata"]["uid"] = "vllm-1"
    world.cache.apply_pod("vllm-1", decode_pod(obj))
    (group,) = groups_named(world.cache.snapshot(), "default", "vllm-1")
    assert str(group) == "default/vllm-1"
    assert [*groups_named(world.cache.snapshot(), "default", "vllm")] == [group], "by the name of the LeaderWorkerSet"
    found = explained(world, name="vllm-1")
    assert found.sentence == (
        "group default/vllm-1 is no gang: LeaderWorkerSet vllm is not known, so each pod is placed alone"
    )
    world.cache.apply_group_policy(group._replace(name="vllm"), GroupPolicy(3, sequential=True))
    assert "(startupPolicy LeaderReady or exclusive-topology)" in explained(world, name="vllm-1").sentence
    world.cache.apply_group_policy(group._replace(name="vllm"), GroupPolicy(3))
    assert explained(world, name="vllm-1").sentence == "group default/vllm-1 waits for 2 pods: 1 of at least 3 exist"


def test_the_cause_of_an_invalid_group_comes_first() -> None:
    world = gang(1, "a1", minimum=2)
    apply(world, "p1", annotations={"berth.dev/group": "job", "berth.dev/group-min": "many"})
    start = "group default/job is rejected: "
    assert explained(world).sentence == (
        f"{start}pod default/p1: pod annotation berth.dev/group-min: 'many' is not a number from 1 to 100000"
    )
    apply(world, "a0", annotations={"berth.dev/group": "job"})
    world.cache.apply_pod("p1", None)
    found = explained(world)
    assert found.outcome == "blocked"
    assert found.sentence == (
        f"{start}the pods of group job disagree about their minimum (berth.dev/group-min): "
        "default/a0 has none, default/p0 has 2"
    )
    world.cache.apply_pod("a0", None)
    members(world, 1, minimum=401)
    assert explained(world).sentence == (f"{start}group job has a minimum above 400: Berth binds no more pods together")


def test_five_thousand_members_are_explained_by_their_minimum() -> None:
    world = gang(5000, "a1", "a2", "b1", gpus=1, minimum=16)
    found = explained(world)
    assert (found.outcome, len(found.plan), len(found.members)) == ("fits", 16, 5000)
    assert found.sentence.startswith(f"group default/job fits: 16 pods in {CLIQUE}=clique-a")


def test_a_planner_that_gave_up_does_not_say_that_the_gang_is_impossible() -> None:
    """More different members than the planner compares."""
    world = racked(*(f"a{i}" for i in range(9)))
    notes = {"berth.dev/group": "job", "berth.dev/group-min": "65"}
    for i in range(65):
        world.add_claim(claim(f"p{i}", 1, f"device.driver == '{GPU}' && {i} == {i}"))
        apply(world, f"p{i}", f"p{i}", annotations=notes)
    found = explained(world)
    assert found.outcome == "gave-up"
    assert found.sentence == (
        "group default/job: the planner gave up, because its claims allow too many combinations: a plan may exist; "
        f"the most room that was found is now in {CLIQUE}=clique-a, for 64; "
        "it fits with a minimum of 64 instead of 65 members"
    )


def test_a_mistake_is_told_before_that_others_wait() -> None:
    """The class of p1 does not exist; p2 and the claim of p0 do not exist yet."""
    world = gang(2, "a1", "a2", minimum=3)
    world.cache.apply_claim(key("p0"), None)
    world.add_claim(claim("p1", deviceClassName="none"))
    mistake = "pod default/p1: claim default/p1, request gpu: device class none does not exist"
    incomplete = "group default/job waits for 1 pod: 2 of at least 3 exist"
    assert explained(world).sentence == f"{incomplete}; {mistake}"
    members(world, 2)
    world.cache.apply_claim(key("p0"), None)
    world.add_claim(claim("p1", deviceClassName="none"))
    found = explained(world)
    assert (found.outcome, found.sentence) == ("blocked", f"group default/job fits nowhere: {mistake}")
    world.add_claim(claim("p1"))
    found = explained(world)
    assert found.outcome == "waiting"
    assert "claim default/p0 is not known yet" in found.sentence


NEVER, NOWHERE = "does not fit in this fleet: even if all other pods ended, ", "fits nowhere: no domain has room for "
UPDATING, TAINTED = "resource pool is being updated", "matching devices are tainted for request gpu"


def _node(world: GangWorld, name: str, **spec: Any) -> None:
    """A node without devices."""
    made = node_object(name, carried_machines()["t4-4"], {CLIQUE: f"clique-{name[0]}"})
    world.cache.apply_node(name, decode_node({**made, "spec": spec}))


def _devices(world: GangWorld, node: str, count: int, lacking: int = 0, driver: str = GPU) -> None:
    """A slice with devices; `lacking` are the slices of its pool that are missing."""
    word, kind = ("gpu", {"type": {"string": "gpu"}}) if driver == GPU else ("nic", {})
    devices = [{"name": f"{word}-{i}", "attributes": kind} for i in range(count)]
    obj = device_slice(node, driver, devices)
    obj["spec"]["pool"]["resourceSliceCount"] += lacking
    world.add_slice(obj)


def _taint(world: GangWorld, device: str = "") -> None:
    world.cache.apply_rule("r", TaintRule("r", Taint("maintenance", effect="NoSchedule"), driver=GPU, device=device))


def _pool_of_the_only_node(world: GangWorld) -> None:
    _node(world, "a1")
    _devices(world, "a1", 2, lacking=1)


def _pool_of_another_node(world: GangWorld) -> None:
    _pool_of_the_only_node(world)
    _node(world, "a2")
    _devices(world, "a2", 2)


def _pool_beside_one_of_nics(world: GangWorld) -> None:
    """The status of the node is 'no device matches'."""
    _pool_of_the_only_node(world)
    _devices(world, "a1", 2, driver=NIC)


def _all_tainted(world: GangWorld) -> None:
    _node(world, "a1")
    _devices(world, "a1", 4)
    _taint(world)


def _some_tainted(world: GangWorld) -> None:
    """One member fits: the cause stands in no status."""
    _node(world, "a1")
    _devices(world, "a1", 4)
    _taint(world, device="gpu-0")


def _too_few_even_without_taints(world: GangWorld) -> None:
    _node(world, "a1")
    _devices(world, "a1", 2)
    _taint(world)


def _cordoned(world: GangWorld) -> None:
    for name in ("a1", "a2"):
        _node(world, name, unschedulable=name == "a2")
        _devices(world, name, 2)


def _not_ready(world: GangWorld) -> None:
    _cordoned(world)
    _node(world, "a2", taints=[{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}])


def _dedicated(world: GangWorld) -> None:
    _cordoned(world)
    _node(world, "a2", taints=[{"key": "team", "value": "other", "effect": "NoSchedule"}])


@pytest.mark.parametrize(
    ("build", "says", "more"),
    [
        (_pool_of_the_only_node, NOWHERE, f"pod default/p0: {UPDATING} on 1 of 1 node"),
        (_pool_of_another_node, NOWHERE, f"for 1; pod default/p0: {UPDATING} on 1 of 2 nodes"),
        (_pool_beside_one_of_nics, NOWHERE, f"; {UPDATING} on 1 of 1 node"),
        (_all_tainted, NOWHERE, f"pod default/p0: {TAINTED} on 1 of 1 node"),
        (
            _some_tainted,
            NOWHERE,
            "the most room is now on node a1, for 1; without taints of devices it would fit",
        ),
        (
            _too_few_even_without_taints,
            NOWHERE,
            f"{TAINTED} on 1 of 1 node; even without taints and other pods, the most",
        ),
        (_cordoned, NOWHERE, "cordons leave 1 of 2 nodes to pod default/p0"),
        (_not_ready, NOWHERE, "cordons leave 1 of 2 nodes to pod default/p0"),
        (_dedicated, NEVER, "cordons leave 1 of 2 nodes to pod default/p0"),
    ],
)
def test_a_state_that_passes_is_not_called_impossible(build: Callable[[GangWorld], None], says: str, more: str) -> None:
    """Two pods that need two GPUs each."""
    world = GangWorld()
    build(world)
    members(world, 2, gpus=2)
    found = explained(world)
    assert found.outcome == "refused"
    assert found.sentence.startswith(f"group default/job {says}")
    assert more in found.sentence
    assert (UPDATING in found.sentence) == (UPDATING in more)
    assert not found.misses


def test_the_label_of_a_domain_may_be_on_nodes_whose_pools_are_being_updated() -> None:
    world = GangWorld()
    _pool_of_the_only_node(world)
    members(world, 2, topology="required")
    assert explained(world).sentence.startswith(f"group default/job {NOWHERE}")


def test_the_reason_of_a_member_stands_in_the_sentence_of_its_gang() -> None:
    world = gang(2, "a1", "a2")
    world.add_claim(claim("p1", 8, "device.attributes['gpu.nvidia.com'].productName == 'none'"))
    found = explained(world)
    assert found.sentence == (
        "group default/job does not fit in this fleet: even if all other pods ended, the most room would be "
        "on node a1, for 1 of 2 pods; pod default/p1: no device matches request gpu on 2 of 2 nodes"
    )


@pytest.mark.parametrize(
    ("nodes", "busy", "size", "room", "if_empty", "sentence"),
    [
        ((2,), 0, 2, 1, 1, f"{NEVER}the most room would be on node a0, for 1 of 2 pods"),
        ((3, 3), 0, 3, 2, 2, f"{NEVER}the most room would be on node a0, for 2 of 3 pods; it fits with a minimum of 2"),
        (
            (3,),
            1,
            2,
            1,
            2,
            f"{NOWHERE}2 pods together; the most room is now on node a0, for 1; it fits on node a0 without",
        ),
        (
            (4, 3),
            2,
            3,
            2,
            3,
            f"{NOWHERE}3 pods together; the most room is now on node a1, for 2; it fits with a minimum",
        ),
        (
            (1, 1),
            0,
            2,
            0,
            0,
            f"{NEVER}no node that it may use would have room for one of its pods; now no node that it may use",
        ),
    ],
)
def test_a_part_of_the_members_that_share_a_claim_has_room(
    nodes: tuple[int, ...], busy: int, size: int, room: int, if_empty: int, sentence: str
) -> None:
    """Each member needs a GPU of its own besides the one that all share, and so all must be on one node."""
    world = GangWorld()
    for i, count in enumerate(nodes):
        _node(world, f"a{i}")
        _devices(world, f"a{i}", count)
    for i in range(busy):
        occupy(world, f"other{i}", "a0", i)
    world.add_claim(claim("shared"))
    for i in range(size):
        world.add_claim(claim(f"own{i}"))
        notes = {"berth.dev/group": "job", "berth.dev/group-min": str(size)}
        apply(world, f"p{i}", "shared", f"own{i}", annotations=notes)
    found = explained(world)
    assert (found.outcome, found.room, found.room_if_empty) == ("refused", room, if_empty)
    assert found.sentence.startswith(f"group default/job {sentence}")


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
