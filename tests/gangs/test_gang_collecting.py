"""A gang that waits for room may collect the freed devices of one domain: one gang, one domain, for a limited time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from extender.policy import Policy
from extender.sandbox import carried_machines
from extender.sandbox.apiserver.registry import RESOURCES
from tests.worlds.eventually import eventually
from tests.worlds.gang_pods import (
    NO_ROOM,
    bind_all,
    create_gang,
    delete,
    gets_a_node,
    member,
    planned,
    reasons,
    requeues,
    say_unschedulable,
)
from tests.worlds.running_berth import Berthing, berthing, claim, patient, pod

pytestmark = pytest.mark.loopback

RACK = "topology.kubernetes.io/rack"
KEPT = "devices are kept for group job, which waits for room"
ON = Policy(gang_collect_seconds=3600)


@asynccontextmanager
async def racks(
    policy: Policy | None, *sizes: int, clock: Callable[[], float] | None = None
) -> AsyncIterator[Berthing]:
    """A cluster with racks a, b, ... of so many nodes a0, a1, ... with 8 GPUs each."""
    async with berthing({}, policy, clock=clock) as b:
        for rack, size in zip("abcdef", sizes, strict=False):
            for i in range(size):
                b.cluster.add_node(f"{rack}{i}", carried_machines()["a100-pcie-8-bridged"], {RACK: rack})
        await b.settled()
        yield b


async def run_alone(b: Berthing, name: str, node: str, gpus: int = 8) -> None:
    """A pod in no group that runs on a node."""
    await b.create(claim(f"{name}-gpus", gpus), pod(name, f"{name}-gpus"))
    assert (await b.filter(name, [node]))["NodeNames"] == [node]
    assert await b.bind(name, node) == ""


async def ask_alone(b: Berthing, name: str, gpus: int = 8) -> dict[str, str] | list[str]:
    """The nodes for a pod in no group, or the reasons if there are none."""
    if b.cluster.store.get("pods", ("default", name)) is None:
        await b.create(claim(f"{name}-gpus", gpus), pod(name, f"{name}-gpus"))
    found = await b.filter(name)
    return sorted(found["NodeNames"]) or found["FailedAndUnresolvableNodes"]


async def end(b: Berthing, *names: str) -> None:
    """These pods end, and their claims go with them."""
    for name in names:
        delete(b, "pods", name)
        delete(b, "resourceclaims", f"{name}-gpus")
    await b.settled()


async def gang(b: Berthing, size: int, group: str = "job", topology: str = "preferred") -> list[str]:
    """The names of the members of a new gang, each of which needs a whole node."""
    return await create_gang(b, size, group, prefix=f"{group}-", topology=topology)


async def collecting_gang(b: Berthing) -> list[str]:
    """The names of a gang of two that collects the devices of rack a, where a pod runs alone on a0."""
    await run_alone(b, "x", "a0")
    names = await gang(b, 2)
    assert await reasons(b, names[0]) == {NO_ROOM}
    assert await collecting(b) == {"a0", "a1"}
    return names


def kept(b: Berthing) -> set[str]:
    """The nodes that are kept for a gang."""
    collected = b.app.service.filter_service.collected
    return set(collected.nodes) if collected is not None else set()


async def collecting(b: Berthing) -> set[str]:
    return await eventually(lambda: kept(b), "a gang collects")


async def planned_in_the_end(b: Berthing, *names: str) -> dict[str, str]:
    """The nodes of the members, once the pause of their gang is over."""
    await eventually(lambda: gets_a_node(b, names[0]), "the gang has a plan")
    return await planned(b, *names)


async def test_by_default_smaller_pods_take_freed_devices() -> None:
    async with racks(None, 2) as b:
        await run_alone(b, "x0", "a0")
        await run_alone(b, "x1", "a1")
        names = await gang(b, 2)
        assert await reasons(b, names[0]) == {NO_ROOM}
        for i in range(2):
            await end(b, f"x{i}")
            await run_alone(b, f"y{i}", f"a{i}")
            assert await reasons(b, names[0]) == {NO_ROOM}
        assert not kept(b)


async def test_the_devices_of_one_domain_are_kept_for_a_gang_until_it_runs() -> None:
    async with racks(ON, 2, 2) as b:
        for node in ("a0", "a1", "b0"):
            await run_alone(b, f"x-{node}", node)
        names = await gang(b, 2)
        assert await reasons(b, names[0]) == {NO_ROOM}
        assert await collecting(b) == {"b0", "b1"}, "the rack with the most room"
        await b.metrics("berth_gang_collecting 2.0")
        assert await ask_alone(b, "small", 1) == {
            "a0": "matching devices are in use for request gpu",
            "a1": "matching devices are in use for request gpu",
            "b0": "matching devices are in use for request gpu",
            "b1": KEPT,
        }
        await end(b, "x-a0")
        assert await ask_alone(b, "small") == ["a0"], "another rack stays usable"
        async with requeues(b, "the gang is requeued"):
            await end(b, "x-b0")
        nodes = await planned_in_the_end(b, *names)
        assert set(nodes.values()) == {"b0", "b1"}
        async with requeues(b, "the rejected pods are requeued"):
            assert await bind_all(b, nodes) == ["", ""]
            assert not kept(b)


async def test_collecting_ends_after_its_time_and_others_run_in_between() -> None:
    """Attack: keep a domain from others with gangs that wait for room."""
    now = [0.0]
    async with racks(Policy(gang_collect_seconds=1), 2, clock=lambda: now[0]) as b:
        await collecting_gang(b)
        assert await ask_alone(b, "small") == {"a0": "matching devices are in use for request gpu", "a1": KEPT}
        async with requeues(b, "the rejected pods are requeued"):
            now[0] = 1.0
            await eventually(lambda: not kept(b), "the time is over")

        async def runs() -> bool:
            return await ask_alone(b, "small") == ["a1"]

        await eventually(runs, "others run in between")


async def test_one_gang_collects_at_a_time_and_the_one_that_waits_longest_is_first() -> None:
    """Attack: keep a domain from others with gangs that wait for room."""
    async with racks(ON, 2, 2) as b:
        for node in ("a0", "a1", "b0", "b1"):
            await run_alone(b, f"x-{node}", node)
        first, second = await gang(b, 2), await gang(b, 2, "later")
        assert await reasons(b, first[0]) == {NO_ROOM}
        assert await reasons(b, second[0]) == {"no domain has room for all pods of group later together"}
        assert await collecting(b) == {"a0", "a1"}
        await end(b, "x-a0", "x-a1")

        async def told() -> bool:
            return await reasons(b, second[0]) == {KEPT}

        await eventually(told, "the devices are not for the other gang")
        assert kept(b) == {"a0", "a1"}
        assert await bind_all(b, await planned_in_the_end(b, *first)) == ["", ""]
        assert not kept(b)
        assert await reasons(b, second[0]) == {"no domain has room for all pods of group later together"}
        await collecting(b)
        collected = b.app.service.filter_service.collected
        assert collected is not None
        assert collected.key.name == "later"


async def test_a_pod_goes_on_where_it_has_devices_or_was_offered_them() -> None:
    async with racks(ON, 2) as b:
        await run_alone(b, "x", "a0")
        assert await ask_alone(b, "offered", 4) == ["a1"]
        b.cluster.apply(pod("sharing", "x-gpus"))
        names = await gang(b, 2)
        assert await reasons(b, names[0]) == {NO_ROOM}
        await collecting(b)
        assert await b.bind("offered", "a1") == ""
        assert (await b.filter("sharing"))["NodeNames"] == ["a0"]


async def test_a_pod_that_takes_no_devices_may_use_the_domain() -> None:
    async with racks(ON, 2) as b:
        labels = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
        b.cluster.api.registry.patch(RESOURCES["", "namespaces"], ("", "default"), labels, "", strategic=False)
        b.cluster.apply(claim("monitor", 8, adminAccess=True))
        b.cluster.apply(pod("monitor", "monitor"))
        await collecting_gang(b)
        assert sorted((await b.filter("monitor"))["NodeNames"]) == ["a0", "a1"]


async def test_nodes_on_which_no_member_may_run_are_not_kept() -> None:
    async with racks(ON, 2, 2, 2) as b:
        for node in ("a0", "b0", "b1", "c0", "c1"):
            await run_alone(b, f"x-{node}", node)
        b.cluster.api.registry.patch(
            RESOURCES["", "nodes"], ("", "a1"), {"spec": {"unschedulable": True}}, "", strategic=False
        )
        wanted = {"key": RACK, "operator": "NotIn", "values": ["b"]}
        required = {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}
        }
        for i in range(2):
            annotations = {"berth.dev/group": "job", "berth.dev/group-min": "2"}
            b.cluster.apply(claim(f"job-{i}-gpus", 8))
            affinity = {"nodeAffinity": required}
            b.cluster.apply(pod(f"job-{i}", f"job-{i}-gpus", annotations=annotations, affinity=affinity))
        await b.settled()
        found = await b.filter("job-0", ["a0", "c0", "c1"])
        assert set(found["FailedAndUnresolvableNodes"].values()) == {NO_ROOM}
        assert await collecting(b) == {"c0", "c1"}, "a1 is cordoned, and the gang may not use rack b"


async def test_other_gangs_are_planned_outside_of_the_domain_or_wait() -> None:
    async with racks(Policy(gang_collect_seconds=3600, group_levels=(RACK,)), 2, 3) as b:
        for node in ("a0", "b0", "b1"):
            await run_alone(b, f"x-{node}", node)
        names = await gang(b, 2, topology="required")
        assert await reasons(b, names[0]) == {NO_ROOM}
        assert await collecting(b) == {"a0", "a1"}
        await end(b, "x-b0")
        others = await gang(b, 2, "other")
        nodes = await planned(b, *others)
        assert set(nodes.values()) == {"b0", "b2"}
        assert await bind_all(b, nodes) == ["", ""]
        await create_gang(b, 2, "third", gpus=4, prefix="third-")
        assert await reasons(b, "third-0") == {KEPT}, "both would fit on a1"
        await end(b, "x-a0")
        nodes = await planned_in_the_end(b, *names)
        assert set(nodes.values()) == {"a0", "a1"}


async def test_a_rejection_from_before_the_plan_does_not_end_the_plan() -> None:
    async with racks(ON, 2) as b:
        await collecting_gang(b)
        await create_gang(b, 2, "other", gpus=4, prefix="other-")
        assert await reasons(b, "other-0") == {KEPT}
        b.app.service.use_policy(patient())
        await planned_in_the_end(b, "other-0")
        say_unschedulable(b, "other-1", f"0/2 nodes are available: 2 {KEPT}.")
        await b.settled()
        assert set((await planned(b, "other-0", "other-1")).values()) == {"a1"}
        assert not b.app.service.gangs.counts.failed


async def test_a_replaced_pod_returns_to_its_running_gang() -> None:
    async with racks(ON, 2) as b:
        running = await gang(b, 2, "running")
        assert await bind_all(b, await planned(b, *running)) == ["", ""]
        names = await gang(b, 2)
        assert await reasons(b, names[0]) == {NO_ROOM}
        assert await collecting(b) == {"a0", "a1"}
        node = b.node_of("running-1")
        await end(b, "running-1")
        member(b, "running-2", "running", 2)
        await b.settled()
        await eventually(lambda: gets_a_node(b, "running-2"), "the bound pods are read")
        assert await planned(b, "running-2") == {"running-2": node}


async def test_a_gang_that_no_domain_could_hold_does_not_collect_and_the_next_one_does() -> None:
    """Attack: keep a domain with a gang that could never run there."""
    async with racks(ON, 2, 2) as b:
        for node in ("a0", "a1", "b0", "b1"):
            await run_alone(b, f"x-{node}", node)
        large = await gang(b, 3, "large")
        assert await reasons(b, large[0]) == {"no domain has room for all pods of group large together"}
        names = await gang(b, 2)
        assert await reasons(b, names[0]) == {NO_ROOM}
        await collecting(b)
        collected = b.app.service.filter_service.collected
        assert collected is not None
        assert collected.key.name == "job"


@pytest.mark.parametrize("is_deleted", [True, False], ids=["a deleted gang", "a new policy"])
async def test_collecting_ends_before_its_time(is_deleted: bool) -> None:
    async with racks(ON, 2) as b:
        names = await collecting_gang(b)
        assert await ask_alone(b, "small") == {"a0": "matching devices are in use for request gpu", "a1": KEPT}
        async with requeues(b, "the rejected pods are requeued"):
            if is_deleted:
                delete(b, "pods", names[1])
            else:
                b.app.service.use_policy(patient())
            await eventually(lambda: not kept(b), "no gang collects")
        assert await ask_alone(b, "small") == ["a1"]


async def test_a_policy_that_allows_it_begins_collecting() -> None:
    async with racks(None, 2) as b:
        await run_alone(b, "x", "a0")
        names = await gang(b, 2)
        assert await reasons(b, names[0]) == {NO_ROOM}
        b.app.service.use_policy(ON)
        assert await collecting(b) == {"a0", "a1"}


async def test_the_whole_cluster_is_never_kept() -> None:
    async with racks(ON, 1, 1, 1) as b:
        await run_alone(b, "x", "a0")
        large = await gang(b, 3, "large")
        assert await reasons(b, large[0]) == {"no domain has room for all pods of group large together"}
        names = [f"job-{i}" for i in range(2)]
        for name in names:
            member(b, name, minimum=2, gpus=6)
        await b.settled()
        assert set((await planned(b, *names)).values()) == {"b0", "c0"}
        assert not kept(b)
