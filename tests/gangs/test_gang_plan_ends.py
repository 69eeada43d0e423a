"""Plans that end, or change: no member is bound alone afterwards, and the reasons are true."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from extender.base.berth_errors import BerthError
from extender.policy import Policy
from extender.sandbox import ApiError
from extender.sandbox.apiserver.registry import RESOURCES
from extender.serve.gangs.gang_state import FormingGang
from tests.worlds.eventually import eventually
from tests.worlds.explain_worlds import group_explained as explained
from tests.worlds.explain_worlds import refused
from tests.worlds.gang_fleet import Gangs
from tests.worlds.gang_pods import (
    NODES,
    annotate,
    bind_all,
    create_gang,
    delete,
    ended,
    gets_a_node,
    member,
    planned,
    reasons,
    say_unschedulable,
    two_binds_of_three,
)
from tests.worlds.running_berth import Berthing, berthing, bug_after, claim, pod

pytestmark = pytest.mark.loopback

CPU = "0/3 nodes are available: 3 Insufficient cpu."
LABEL = "scheduling.x-k8s.io/pod-group"
GROUPS = {
    "scheduling.x-k8s.io/v1alpha1": {"minMember": 3},
    "scheduling.k8s.io/v1beta1": {"schedulingPolicy": {"gang": {"minCount": 3}}},
}


def pod_with_group(name: str, version: str) -> dict[str, Any]:
    obj = pod(name, f"{name}-gpus")
    if version.startswith("scheduling.x-k8s.io"):
        obj["metadata"]["labels"] = {LABEL: "job"}
    else:
        obj["spec"]["schedulingGroup"] = {"podGroupName": "job"}
    return obj


@pytest.mark.parametrize("version", GROUPS)
async def test_a_late_bind_after_the_pod_group_was_deleted(version: str) -> None:
    async with berthing(NODES) as b:
        b.cluster.apply(
            {"apiVersion": version, "kind": "PodGroup", "metadata": {"name": "job", "namespace": "default"}}
            | {"spec": GROUPS[version]}
        )
        for i in range(3):
            b.cluster.apply(claim(f"p{i}-gpus", 8))
            b.cluster.apply(pod_with_group(f"p{i}", version))
        await b.settled()
        nodes = await planned(b, "p0", "p1", "p2")
        b.cluster.api.registry.delete(RESOURCES[version.split("/", maxsplit=1)[0], "podgroups"], ("default", "job"))
        delete(b, "pods", "p2")
        await ended(b)
        for name in ("p0", "p1"):
            assert "has no plan for pod" in await b.bind(name, nodes[name])
            assert not b.node_of(name)
        assert not b.held()


def other_minimum(b: Berthing) -> None:
    for i in range(3):
        annotate(b, f"p{i}", {"berth.dev/group-min": "4"})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda b: delete(b, "pods", "p2"), "pod default/p2 of group job was deleted"),
        (lambda b: say_unschedulable(b, "p2", CPU), "Insufficient cpu"),
        (lambda b: annotate(b, "p2", {"berth.dev/group": "other"}), "pod default/p2 left group job"),
        (lambda b: annotate(b, "p2", {"berth.dev/group": None, "berth.dev/group-min": None}), "left group job"),
        (other_minimum, "the minimum of group job is 4 now"),
    ],
    ids=["deleted", "no node", "another group", "no group", "another minimum"],
)
async def test_a_change_ends_the_plan_and_the_binds_that_wait(change: Callable[[Berthing], object], why: str) -> None:
    async with berthing(NODES) as b:
        nodes, waiting = await two_binds_of_three(b)
        change(b)
        for bind in waiting:
            assert why in await bind
        assert "group job has no plan for pod default/p0" in await b.bind("p0", nodes["p0"])
        assert not any(b.node_of(name) for name in nodes if b.cluster.store.get("pods", ("default", name)))
        assert not b.held()
        assert not b.app.service.cache.reservations.holds


async def test_the_reason_after_a_bind_that_failed_names_the_pod_and_the_error() -> None:
    async with berthing(NODES) as b:
        await create_gang(b, 3)
        nodes = await planned(b, "p0", "p1", "p2")

        async def refuse(method: str, path: str) -> ApiError | None:
            no = method == "PATCH" and path.endswith("resourceclaims/p2-gpus/status")
            return ApiError(403, "Forbidden", "no") if no else None

        b.cluster.api.intercept = refuse
        assert all(await bind_all(b, nodes))
        text = "group job is planned again after a pause: the bind of pod default/p2 failed: no"
        assert await reasons(b, "p2") == {text}
        await refused(b, "p2", text)
        found = await explained(b)
        assert found["sentence"].endswith(f" was: {text}")
        assert {one["pod"]: one["reason"] for one in found["members"]}["default/p2"] == text


@pytest.mark.parametrize(
    ("fault", "seen"), [(KeyError("a bug"), KeyError), (asyncio.CancelledError(), BerthError)], ids=["bug", "cancelled"]
)
async def test_a_bug_in_the_bind_of_a_member_ends_the_plan_at_once(fault: BaseException, seen: type[Exception]) -> None:
    """Not only at the deadline: here the clock of the plans stands still."""
    async with berthing(NODES, clock=lambda: 1000.0) as b:
        nodes, others = await two_binds_of_three(b)
        with pytest.raises(seen):
            await bug_after("write barrier", b, "p2", nodes["p2"], fault)
        why = f"the bind of pod default/p2 failed: {type(fault).__name__}: {fault}".removesuffix(": ")
        assert all(why in answer for answer in await asyncio.gather(*others))
        assert await reasons(b, "p0") == {f"group job is planned again after a pause: {why}"}
        if seen is KeyError:  # the claim of a cancelled bind stays for the pod's next bind
            assert not b.held()
            assert not b.app.service.cache.reservations.by_claim


def test_a_plan_whose_binds_end_ends_at_once_if_its_members_have_taken_too_long() -> None:
    """While all binds of the minimum write their claims, a plan may last until its deadline."""
    fleet = Gangs(nodes=3, kinds=1, policy=Policy(gang_seconds=120))
    job = fleet.joined("job", [fleet.pod("a") for _ in range(2)])
    nodes = {one.uid: str(fleet.gangs.filter(one, fleet.names).passed) for one in job}
    (plan,) = fleet.gangs.forming.values()
    for uid, node in nodes.items():
        plan.arrive(uid, node, fleet.clock.now)
    fleet.clock.now = plan.deadline - 1.0
    fleet.monitor.expire()
    assert fleet.gangs.forming, "the claims are written"
    fleet.gangs.plans.bind_ended(plan, job[0].uid)
    fleet.monitor.expire()
    assert not fleet.gangs.forming


FOUR = NODES | {"n3": "a100-pcie-8-bridged"}


def forming(b: Berthing) -> FormingGang:
    return next(iter(b.app.service.gangs.forming.values()))


async def test_members_with_equal_devices_and_different_nodes() -> None:
    """A leader and its workers: kube-scheduler offers each of them other nodes."""
    async with berthing(NODES) as b:
        for name in ("p0", "p1", "p2"):
            member(b, name)
            spec = {"nodeSelector": {"kubernetes.io/hostname": "n0"} if name == "p0" else {}}
            registry = b.cluster.api.registry
            registry.patch(RESOURCES["", "pods"], ("default", name), {"spec": spec}, "", strategic=True)
        await b.settled()
        offered = {"p1": list(NODES), "p0": ["n0"], "p2": list(NODES)}
        nodes = {}
        for name, names in offered.items():
            answer = await b.filter(name, names)
            assert len(answer["NodeNames"] or ()) == 1, (name, answer)
            nodes[name] = answer["NodeNames"][0]
        assert nodes["p0"] == "n0"
        assert await bind_all(b, nodes) == ["", "", ""]


@pytest.mark.parametrize("is_deleted", [True, False])
async def test_a_surplus_member_that_is_gone_or_has_no_node_gives_its_devices_back(is_deleted: bool) -> None:
    async with berthing(NODES) as b:
        await create_gang(b, 3, minimum=2, timeout="24h")
        nodes = await planned(b, "p0", "p1", "p2")
        assert await bind_all(b, {name: nodes[name] for name in ("p0", "p1")}) == ["", ""]
        assert b.app.service.gangs.forming
        delete(b, "pods", "p2") if is_deleted else say_unschedulable(b, "p2", CPU)
        await ended(b)
        await b.create(claim("single", 8), pod("alone", "single"))
        assert (await b.filter("alone"))["NodeNames"]


async def test_later_members_do_not_end_the_holds_of_each_other() -> None:
    async with berthing(NODES) as b:
        await create_gang(b, 2)
        assert await bind_all(b, await planned(b, "p0", "p1")) == ["", ""]
        for name in ("p2", "p3"):
            member(b, name, minimum=2)
        await b.settled()
        await eventually(lambda: gets_a_node(b, "p2"), "the bound pods are read, and p2 gets the last node")
        assert not (await b.filter("p3"))["NodeNames"], "the last node is held for p2"


async def test_a_member_that_kube_scheduler_could_not_place_before_makes_the_plan_short() -> None:
    """Attack: keep devices with a member that no node takes."""
    async with berthing(NODES) as b:
        member(b, "p1", minimum=2, timeout="24h")
        say_unschedulable(b, "p1", "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.")
        await b.settled()
        member(b, "p0", minimum=2, timeout="24h")
        await b.settled()
        await planned(b, "p0")
        plan = forming(b)
        assert plan.doubtful
        assert plan.ends_at - plan.progress_at < 60, "the tenant's time-out does not count while no bind comes"


async def test_an_error_of_the_scheduler_ends_no_plan() -> None:
    async with berthing(NODES) as b:
        await create_gang(b, 3)
        nodes = await planned(b, "p0", "p1", "p2")
        say_unschedulable(b, "p1", 'Post "http://127.0.0.1:8888/filter": connection reset by peer', "SchedulerError")
        await b.settled()
        assert await bind_all(b, nodes) == ["", "", ""]


@pytest.mark.parametrize("offered", [["n0"], list(NODES)])
async def test_a_nominated_node_is_tried_for_its_pod_alone(offered: list[str]) -> None:
    async with berthing(NODES) as b:
        await create_gang(b, 3)
        nodes = {"p0": (await b.filter("p0", offered))["NodeNames"][0]}
        nodes |= await planned(b, "p1", "p2")
        assert len(set(nodes.values())) == 3
        assert await bind_all(b, nodes) == ["", "", ""]


def not_accepted(name: str) -> set[str]:
    told = "kube-scheduler accepts no planned node for pod default/{} of group job: it is planned again after a pause"
    return {told.format(name)}


def late(name: str) -> set[str]:
    return {f"kube-scheduler did not bind pod default/{name} of group job in time: it is planned again after a pause"}


async def test_a_pod_for_which_kube_scheduler_finds_no_node() -> None:
    async with berthing(NODES) as b:
        await create_gang(b, 3)
        await planned(b, "p0", "p1")
        say_unschedulable(b, "p2", CPU)
        await ended(b)
        for i in range(3):
            assert await reasons(b, f"p{i}") == not_accepted("p2")


@pytest.mark.parametrize("found_no_node", [False, True])
async def test_a_pod_whose_bind_does_not_come(found_no_node: bool) -> None:
    """If kube-scheduler had found no node for a pod before the plan, that pod is the one to look at."""
    now = [0.0]
    async with berthing(NODES, clock=lambda: now[0]) as b:
        for i in range(3):
            member(b, f"p{i}")
        if found_no_node:
            say_unschedulable(b, "p2", CPU)
        await b.settled()
        nodes = await planned(b, "p0")
        bind = asyncio.create_task(b.bind("p0", nodes["p0"]))
        plan = next(iter(b.app.service.gangs.forming.values()))
        await eventually(lambda: plan.arrived, "the bind arrived")
        now[0] = plan.deadline
        assert await reasons(b, "p0") == (not_accepted("p2") if found_no_node else late("p1"))
        assert "2 of 3 pods of group job did not reach bind in time" in await bind


async def test_of_equal_pods_the_same_one_is_named_after_each_attempt() -> None:
    """kube-scheduler retries a pod whose reason changes, and refuses the pod that it tries last."""
    now = [0.0]
    async with berthing(NODES, clock=lambda: now[0]) as b:
        member(b, "launcher", gpus=1)
        await create_gang(b, 2, minimum=3)
        told = []
        for number, last in enumerate(("p1", "p0", "launcher", "p1")):
            await planned(b, *{"launcher", "p0", "p1"} - {last})
            say_unschedulable(b, last, f"attempt {number}: {CPU}")
            await ended(b)
            told.append(await reasons(b, "p0"))
            now[0] += 60.0
        assert told == [not_accepted(name) for name in ("p1", "p1", "launcher", "p1")]


ZONES = {f"{zone}{i}": "a100-pcie-8-bridged" for zone in "ab" for i in range(8)}


def spread_member(b: Berthing, name: str, minimum: int, **spec: Any) -> None:
    notes = {"berth.dev/group": "job", "berth.dev/group-min": str(minimum)}
    b.cluster.apply(claim(f"{name}-gpus", 8))
    b.cluster.apply(pod(name, f"{name}-gpus", annotations=notes, **spec))


SPREAD = {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
VOLUME = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}


@pytest.mark.parametrize("size", [6, 12])
@pytest.mark.parametrize("spec", [{"topologySpreadConstraints": [SPREAD]}, {"volumes": [VOLUME]}], ids=str)
async def test_members_that_alternate_between_two_zones_are_planned(spec: dict[str, Any], size: int) -> None:
    async with berthing(ZONES) as b:
        for i in range(size):
            spread_member(b, f"w{i}", size, **spec)
        await b.settled()
        placed = Counter[str]()
        for i in range(size):
            names = [name for name in ZONES if placed[name[0]] <= min(placed["a"], placed["b"])]
            answer = await b.filter(f"w{i}", names)
            assert answer["NodeNames"], (i, answer)
            placed[answer["NodeNames"][0][0]] += 1
        assert set(placed.values()) == {size // 2}


async def test_a_limit_of_one_member_that_berth_does_not_see() -> None:
    """The offered nodes have no room for the others, which kube-scheduler would offer more."""
    async with berthing(ZONES) as b:
        await create_gang(b, 12, prefix="w")
        (first,) = (await b.filter("w0"))["NodeNames"]
        zone = "b" if first[0] == "a" else "a"
        offered = [name for name in ZONES if name[0] == zone]
        (planned,) = (await b.filter("w1"))["NodeNames"]
        if planned[0] != zone:
            (planned,) = (await b.filter("w1", offered))["NodeNames"]
        assert planned[0] == zone


async def test_the_reason_after_all_offered_nodes_were_used_names_kube_scheduler() -> None:
    async with berthing({"a0": "a100-pcie-8-bridged", "b0": "a100-pcie-8-bridged"}) as b:
        await create_gang(b, 2, prefix="w")
        (first,) = (await b.filter("w0"))["NodeNames"]
        answer = await b.filter("w1", [first])
        assert set(answer["FailedAndUnresolvableNodes"].values()) == not_accepted("w1")
