"""The explanation of a gang, on clusters as data: members, plans, and the causes if there is no plan."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from extender.api.group_topology import AskedTopology
from extender.api.nodes import Taint, decode_node
from extender.api.pod_groups import GroupKey, GroupPolicy, GroupSource, Membership
from extender.api.pods import decode_pod
from extender.api.resource_slices import TaintRule
from extender.base.deadline import Deadline
from extender.explain import explain, groups_named
from extender.explain.gang_question import ExplainedSubGroup
from extender.sandbox import carried_machines
from extender.sandbox.machines import node_object
from tests.worlds.evaluation_worlds import steps
from tests.worlds.explained_gangs import NIC, apply, explained, gang, hold, members, occupy, racked, sentences
from tests.worlds.filled_caches import device_slice
from tests.worlds.gang_worlds import CLIQUE, GPU, POLICY, RACK, GangWorld, key
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


def fleet(
    nodes: dict[str, int], *, lacking: int = 0, nics: int = 0, tainted: str | None = None, **spec: Any
) -> GangWorld:
    """Nodes with so many GPUs. The pool of a1 lacks so many slices, and it has NICs; the last node has the spec.

    `tainted` is a device with a taint, '' stands for all.
    """
    world, last = GangWorld(), [*nodes][-1]
    for name, count in nodes.items():
        made = node_object(name, carried_machines()["t4-4"], {CLIQUE: f"clique-{name[0]}"})
        world.cache.apply_node(name, decode_node({**made, "spec": spec if name == last else {}}))
        devices = [{"name": f"gpu-{i}", "attributes": {"type": {"string": "gpu"}}} for i in range(count)]
        obj = device_slice(name, GPU, devices)
        obj["spec"]["pool"]["resourceSliceCount"] += lacking if name == "a1" else 0
        world.add_slice(obj)
    if nics:
        world.add_slice(device_slice("a1", NIC, [{"name": f"nic-{i}"} for i in range(nics)]))
    if tainted is not None:
        taint = Taint("maintenance", effect="NoSchedule")
        world.cache.apply_rule("r", TaintRule("r", taint, driver=GPU, device=tainted))
    return world


NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}
DEDICATED = {"key": "team", "value": "other", "effect": "NoSchedule"}
LEFT = "cordons leave 1 of 2 nodes to pod default/p0"


@pytest.mark.parametrize(
    ("world", "says", "more"),
    [
        (fleet({"a1": 2}, lacking=1), NOWHERE, f"pod default/p0: {UPDATING} on 1 of 1 node"),
        (fleet({"a1": 2, "a2": 2}, lacking=1), NOWHERE, f"for 1; pod default/p0: {UPDATING} on 1 of 2 nodes"),
        # The status of the node is 'no device matches'.
        (fleet({"a1": 2}, lacking=1, nics=2), NOWHERE, f"; {UPDATING} on 1 of 1 node"),
        (fleet({"a1": 4}, tainted=""), NOWHERE, f"pod default/p0: {TAINTED} on 1 of 1 node"),
        # One member fits: the cause stands in no status.
        (fleet({"a1": 4}, tainted="gpu-0"), NOWHERE, "for 1; without taints and cordons it would fit"),
        (fleet({"a1": 2}, tainted=""), NOWHERE, f"{TAINTED} on 1 of 1 node; even without taints and other pods, the"),
        (fleet({"a1": 2, "a2": 2}, unschedulable=True), NOWHERE, LEFT),
        (fleet({"a1": 2, "a2": 2}, taints=[NOT_READY]), NOWHERE, LEFT),
        (fleet({"a1": 2, "a2": 2}, taints=[DEDICATED]), NEVER, LEFT),
    ],
)
def test_a_state_that_passes_is_not_called_impossible(world: GangWorld, says: str, more: str) -> None:
    """Two pods that need two GPUs each."""
    members(world, 2, gpus=2)
    found = explained(world)
    assert found.outcome == "refused"
    assert found.sentence.startswith(f"group default/job {says}")
    assert more in found.sentence
    assert (UPDATING in found.sentence) == (UPDATING in more)
    assert not found.misses


def test_the_label_of_a_domain_may_be_on_nodes_whose_pools_are_being_updated() -> None:
    world = fleet({"a1": 2}, lacking=1)
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
    world = fleet({f"a{i}": count for i, count in enumerate(nodes)})
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


# -- the end of one pod of a gang wastes the whole gang: it counts as all of it and is proposed last ----------------


def job(world: GangWorld, *places: tuple[str, int]) -> None:
    """A bound gang `llm` with a pod of four GPUs on each of these nodes, from this device on."""
    for i, (node, first) in enumerate(places):
        occupy(world, f"llm-{i}", node, first, 4, group="llm")


def test_pods_without_a_group_are_named_before_one_pod_of_a_gang() -> None:
    """On a2 one pod must end, which belongs to a gang of four; on b2 two pods must end."""
    world = racked("a1", "a2", "b1", "b2", "c1")
    job(world, ("a2", 0), ("c1", 0), ("c1", 4))
    occupy(world, "one", "b2", 0, 2)
    occupy(world, "two", "b2", 4, 2)
    members(world, 2, topology="required")
    found = explained(world)
    assert sentences(found) == (
        "fits with topology preferred instead of required, across the cluster",
        f"fits in {CLIQUE}=clique-b without default/one (2 devices on b2) and default/two (2 devices on b2)",
        f"fits in {CLIQUE}=clique-a without default/llm-0 (4 devices on a2, group llm of 3 pods)",
    )
    assert [miss.pods for miss in found.misses] == [0, 2, 3]


def test_a_domain_offers_pods_without_a_group_first_and_a_gang_counts_once() -> None:
    world = racked("a1", "a2", "a3")
    job(world, ("a1", 0), ("a1", 4), ("a3", 0))
    occupy(world, "last", "a3", 4, 4)
    occupy(world, "one", "a2", 0, 4)
    occupy(world, "two", "a2", 4, 4)
    members(world, 2, gpus=4, topology="none")
    (miss,) = explained(world).misses
    assert not any(one.group for one in miss.holders)
    assert miss.pods == 2
    world = racked("a1")
    job(world, ("a1", 0), ("a1", 4))
    members(world, 2, gpus=4, topology="none")
    (miss,) = explained(world).misses
    assert (miss.pods, len(miss.holders)) == (2, 2)


def test_the_explanation_of_a_pod_names_pods_of_gangs_last_and_with_the_gang() -> None:
    world = racked("a1", "b1")
    job(world, ("a1", 0), ("a1", 4))
    occupy(world, "large", "b1", 0, 7)
    world.add_claim(claim("wanted", 4))
    apply(world, "p", "wanted")
    snapshot = world.cache.snapshot()
    asked = decode_pod(pod("p", "wanted"))
    found = explain(asked, snapshot, POLICY, world.evaluator.evaluation_context(snapshot))
    freed = [text for text in found.misses if text.startswith("fits on")]
    assert ["b1" in text for text in freed] == [True, False], freed
    assert "held by pod default/large, were free" in freed[0]
    assert "held by pod default/llm-0 of group llm, were free" in freed[1]


# -- slices and sub-groups ------------------------------------------------------------------------------------------


SLICES: dict[str, Any] = {"slice-size": "2", "slice-level": "rack"}


def racks(layout: str, busy: str = "") -> GangWorld:
    """Racks by "name:nodes", with nodes of 8 GPUs such as a0. The nodes `busy` have none free."""
    world = GangWorld()
    for part in layout.split():
        rack, _, number = part.partition(":")
        for i in range(int(number)):
            name = f"{rack}{i}"
            world.add_node(name, "a100-pcie-8-bridged", {RACK: rack, CLIQUE: rack}, 8 if name in busy.split() else 0)
    return world


def test_each_slice_has_its_domain() -> None:
    world = racks("a:2 b:2")
    members(world, 4, **SLICES)
    found = explained(world)
    assert found.outcome == "fits"
    assert found.parts == (ExplainedSubGroup("slice 0", 2, RACK, "a", 2), ExplainedSubGroup("slice 1", 2, RACK, "b", 2))


def test_a_slice_that_has_no_room_now_is_named() -> None:
    world = racks("a:2 b:2", busy="a0 b0")
    members(world, 4, **SLICES)
    found = explained(world)
    assert found.outcome == "refused"
    assert f"slice 0 needs 2 pods in one domain of {RACK}: now the most room is in a, for 1" in found.sentence
    assert found.parts[0] == ExplainedSubGroup("slice 0", 2, RACK, "a", 1)


@pytest.mark.parametrize(
    ("layout", "busy", "notes", "says"),
    [
        (
            "a:2 b:2",
            "a0",
            {"slice-size": "4"},
            f"in this fleet: .*; slice 0 needs 4 pods in one domain of {RACK}: even then the most room is in a, for 2",
        ),
        ("a:3 b:1", "", {}, "; it fits without its slices and sub-groups, across the cluster"),
        (
            "a:2 b:2",
            "",
            {"slice-size": "4,2", "slice-level": "rack,node"},
            "; slice 0.0 needs 2 pods in one node: even then the most room is in a0, for 1",
        ),
    ],
    ids=["never", "without slices", "slices in slices"],
)
def test_what_is_said_of_slices(layout: str, busy: str, notes: dict[str, str], says: str) -> None:
    world = racks(layout, busy)
    members(world, 4, **{**SLICES, **notes})
    assert re.search(says, explained(world).sentence), explained(world).sentence


def test_only_a_minimum_of_whole_slices_is_advised() -> None:
    """Three racks of 3 nodes have room for 8 pods, but a minimum of 8 is no multiple of 3."""
    world = racks("a:3 b:3 c:2")
    members(world, 9, **{**SLICES, "slice-size": "3"})
    said = [one.sentence for one in explained(world).misses]
    assert any("fits with a minimum of 6 instead of 9 members" in one for one in said), said


# -- a deadline that ends somewhere leaves what was found before ----------------------------------------------------


@pytest.mark.parametrize("number", range(0, 400, 7))
def test_a_budget_that_ends_leaves_the_near_misses_found_before(number: int) -> None:
    world = racked("a1", "a2", "b1", "b2")
    occupy(world, "middle", "a2", 1, 4)
    occupy(world, "large", "b2", 0, 8)
    members(world, 2, topology="required")
    deadline = steps(number)
    found, whole = explained(world, deadline), explained(world)
    assert found.outcome in ("unfinished", "refused")
    assert set(found.misses) <= set(whole.misses)
    if found.outcome == "refused" and found.misses != whole.misses:
        assert found.cut_short
    assert len(found.members) == 2


class EndsAt(Deadline):
    """Its seconds end at a check of the time, counted from 1."""

    __slots__ = ("checks", "last")

    def __init__(self, last: int) -> None:
        self.checks, self.last = 0, last
        super().__init__(1.0, lambda: float(self.checks >= self.last))

    def check_time(self) -> None:
        self.checks += 1
        super().check_time()


@pytest.mark.parametrize("nodes", [("a1", "a2", "b1", "b2"), ("a1", "b1")], ids=["other pods in the way", "never"])
def test_seconds_that_end_at_any_check_leave_out_a_part_of_the_explanation(nodes: tuple[str, ...]) -> None:
    world = racked("c1", *nodes)
    occupy(world, "large", "b1", 0, 8)
    notes = {"berth.dev/group": "job", "berth.dev/group-min": "2", "berth.dev/group-topology": "required"}
    for name in ("p0", "p1"):
        world.add_claim(claim(name, 8))
        apply(world, name, name, annotations=notes, nodeSelector={RACK: "rack-b"})
    whole, outcomes = explained(world), list[str]()
    while "all checks passed" not in outcomes:
        deadline = EndsAt(len(outcomes) + 1)
        found = explained(world, deadline)
        assert len(found.members) == 2
        assert set(found.misses) <= set(whole.misses)
        assert deadline.checks >= deadline.last or found == whole
        outcomes.append(found.outcome if deadline.checks >= deadline.last else "all checks passed")
    assert outcomes == sorted(outcomes, reverse=True), "the plan comes first"
    assert {"unfinished", "refused"} <= set(outcomes)
