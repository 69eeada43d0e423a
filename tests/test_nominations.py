"""Nominated nodes: for which pods Berth writes them, in which order, and what it does when they are of no use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from benchmarks.fleet import Fleet
from extender.cluster import ClusterError, Conflict, Forbidden, NotFound, Unavailable, Writer
from extender.entry.serve_process import application
from extender.extension.nominator import Nominator
from extender.model import Pod
from extender.policy import Policy
from extender.runtime import Rebuilds
from extender.sandbox import Scheduler
from extender.sandbox.apiserver.registry import RESOURCES
from tests.eventually import eventually
from tests.running_berth import Berthing, Json, berthing, claim, pod

pytestmark = pytest.mark.loopback

LEFT = [f"p{i}" for i in range(1, 5)]  # the head of the queue, after the pod of the filter request
TAINT = {"key": "team", "effect": "NoSchedule"}
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}


@asynccontextmanager
async def cluster(nominate: int = 100, nodes: Iterable[str] = ("n1", "n2")) -> AsyncIterator[Berthing]:
    async with berthing(dict.fromkeys(nodes, "hgx-h100-8"), Policy(nominate=nominate)) as b:
        yield b


def create(b: Berthing, *names: str, claims: bool = True, **spec: Any) -> None:
    """Pods that each need a GPU."""
    for name in names:
        if claims:
            b.cluster.apply(claim(name))
        b.cluster.apply(pod(name, name, **spec))


def patch(b: Berthing, name: str, status: Json) -> None:
    b.cluster.api.registry.patch(
        RESOURCES["", "pods"], ("default", name), {"status": status}, "status", strategic=False
    )


def nominated(b: Berthing) -> dict[str, str]:
    """The nominated nodes by pod."""
    pods = b.cluster.store.all("pods")
    found = {p["metadata"]["name"]: p["status"].get("nominatedNodeName", "") for p in pods}
    return {name: node for name, node in found.items() if node}


async def nominated_for(b: Berthing, *names: str) -> dict[str, str]:
    """The nominated nodes once these pods, and no others, have one."""
    await eventually(lambda: set(nominated(b)) == set(names), lambda: f"{nominated(b)} has exactly {names}")
    await eventually(lambda: b.app.service.nominator.nominated == len(names))
    await b.settled()
    return nominated(b)


async def ask(b: Berthing, name: str = "p0") -> list[str]:
    await b.settled()
    return (await b.filter(name))["NodeNames"]


async def test_pods_behind_the_head_of_the_queue_get_the_node_that_filter_then_passes() -> None:
    async with cluster() as b:
        create(b, *(f"p{i}" for i in range(9)))
        await ask(b)
        found = await nominated_for(b, "p5", "p6", "p7", "p8")
        service = b.app.service
        assert len(service.cache.held_for(b.pod("p8")["metadata"]["uid"])) == 1
        for name, node in found.items():
            assert (await b.filter(name, [node]))["NodeNames"] == [node]
            assert await b.bind(name, node) == ""
            assert b.node_of(name) == node
        assert len(set(b.held())) == 4
        await b.metrics('berth_nominations_total{result="written"} 4')


async def test_by_default_no_node_is_nominated() -> None:
    async with berthing({"n1": "hgx-h100-8"}) as b:
        create(b, *(f"p{i}" for i in range(8)))
        scheduler = Scheduler(b.cluster.store, str(b.client.base_url))
        task = asyncio.create_task(scheduler.run())
        await eventually(lambda: all(b.node_of(f"p{i}") for i in range(8)))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not b.app.service.nominator.results


async def test_a_drain_with_nominated_nodes_binds_every_pod_once() -> None:
    """Twelve pods wait for 16 GPUs; two pods of another scheduler are left alone."""
    async with cluster() as b:
        names = [f"p{i}" for i in range(12)]
        create(b, *names)
        create(b, "x1", "x2", schedulerName="other")
        await ask(b)
        await nominated_for(b, *names[5:])
        scheduler = Scheduler(b.cluster.store, str(b.client.base_url))
        task = asyncio.create_task(scheduler.run())
        await eventually(lambda: all(map(b.node_of, names)))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert len(set(b.held())) == len(names)
        await eventually(lambda: b.app.service.nominator.nominated == 0, "the nominations of bound pods are forgotten")
        assert not nominated(b)


async def test_so_many_pods_at_most_have_a_nominated_node() -> None:
    async with cluster(nominate=2) as b:
        create(b, *(f"p{i}" for i in range(9)))
        await ask(b)
        found = await nominated_for(b, "p5", "p6")
        assert await b.bind("p5", found["p5"]) == ""
        await nominated_for(b, "p6", "p7")


async def test_the_order_is_that_of_kube_scheduler() -> None:
    async with cluster(nominate=2) as b:
        create(b, "p0", *LEFT, priority=1)
        create(b, *(f"urgent{i}" for i in range(5)), priority=7)
        await ask(b)
        await nominated_for(b, "urgent4", "p1")


SKIPPED: dict[str, Json] = {
    "gated": {"schedulingGates": [{"name": "g"}]},
    "of another scheduler": {"schedulerName": "other"},
}


@pytest.mark.parametrize("spec", SKIPPED.values(), ids=SKIPPED)
async def test_pods_that_kube_scheduler_does_not_try_are_skipped(spec: Json) -> None:
    async with cluster() as b:
        create(b, "p0", *LEFT)
        create(b, "odd", **spec)
        create(b, "last")
        await ask(b)
        await nominated_for(b, "last")


STATUSES: dict[str, Json] = {
    "unschedulable": {"conditions": [UNSCHEDULABLE]},
    "of a failed attempt": {"conditions": [{**UNSCHEDULABLE, "reason": "SchedulerError"}]},
}


@pytest.mark.parametrize("status", STATUSES.values(), ids=STATUSES)
async def test_pods_that_kube_scheduler_has_tried_are_skipped(status: Json) -> None:
    """The Cluster Autoscaler takes an unschedulable pod with a nominated node for one that waits for preemption."""
    async with cluster() as b:
        create(b, "p0", *LEFT, "odd", "last")
        patch(b, "odd", status)
        await ask(b)
        await nominated_for(b, "last")


async def test_a_node_that_preemption_nominated_stays() -> None:
    async with cluster() as b:
        create(b, "p0", *LEFT, "odd", "last")
        patch(b, "odd", {"nominatedNodeName": "by-preemption"})
        await ask(b)
        await eventually(lambda: "last" in nominated(b))
        assert nominated(b)["odd"] == "by-preemption"


async def test_pods_without_devices_or_without_their_claim_are_skipped() -> None:
    async with cluster() as b:
        create(b, "p0", *LEFT)
        b.cluster.apply(pod("no-devices"))
        create(b, "no-claim", claims=False)
        create(b, "last")
        await ask(b)
        await nominated_for(b, "last")


async def test_a_pod_that_fits_nowhere_is_skipped() -> None:
    async with cluster() as b:
        create(b, "p0", *LEFT)
        b.cluster.apply(claim("big", 9))
        b.cluster.apply(pod("big", "big"))
        await ask(b, "big")
        create(b, "last")
        await ask(b)
        await nominated_for(b, "last")


def member(b: Berthing, minimum: int = 1) -> None:
    b.cluster.apply(claim("odd"))
    notes = {"berth.dev/group": "job", "berth.dev/group-min": str(minimum)}
    b.cluster.apply(pod("odd", "odd", annotations=notes))


def sharing(b: Berthing) -> None:
    create(b, "odd")
    b.cluster.apply(pod("another", "odd", schedulerName="other"))


def extended(b: Berthing) -> None:
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    b.cluster.apply(pod("odd", containers=[{"name": "main", "image": "pause", "resources": limits}]))


def unknown(b: Berthing) -> None:
    b.cluster.apply(claim("odd", 2))
    b.cluster.apply(pod("odd", "odd"))


TIED = {"of a group": member, "of a shared claim": sharing, "of extended resources": extended, "never asked": unknown}


async def test_a_gang_without_all_members_is_skipped() -> None:
    """The in-tree gang scheduling does not try such a pod until the other members come."""
    async with cluster() as b:
        create(b, "p0", *LEFT)
        member(b, 2)
        create(b, "last")
        await ask(b)
        await nominated_for(b, "last")


@pytest.mark.parametrize("create_odd", TIED.values(), ids=TIED)
async def test_no_nomination_overtakes_a_pod_whose_devices_are_not_chosen_yet(create_odd: Any) -> None:
    """Else the devices of the pod before could be held for one behind it."""
    async with cluster() as b:
        create(b, "p0", *LEFT, "p5")
        create_odd(b)
        create(b, "last")
        await ask(b)
        await nominated_for(b, "p5")
        patch(b, "odd", {"conditions": [UNSCHEDULABLE]})
        await nominated_for(b, "p5", "last")


async def test_a_standby_nominates_nothing() -> None:
    """kube-scheduler asks only the replica beside it."""
    async with cluster() as b, both_of(b) as standby:
        create(b, *(f"p{i}" for i in range(7)))
        await ask(b)
        await nominated_for(b, "p5", "p6")
        await eventually(lambda: len(standby.cache.store.scheduling_queue) == len(["p0", *LEFT]))
        assert not standby.nominator.results


@asynccontextmanager
async def both_of(b: Berthing) -> AsyncIterator[Any]:
    """A second replica at the same API server."""
    async with application(b.api, Policy(nominate=100)) as app:
        await eventually(lambda: not app.service.informers.not_ready)
        yield app.service


async def test_nodes_that_the_pod_cannot_use_are_not_nominated() -> None:
    """Taints, cordons and node selectors: kube-scheduler's own filters would reject the node."""
    async with cluster(nodes=("n1", "n2", "n3")) as b:
        nodes = RESOURCES["", "nodes"]
        for name, change in (("n1", {"spec": {"unschedulable": True}}), ("n2", {"spec": {"taints": [TAINT]}})):
            b.cluster.api.registry.patch(nodes, ("", name), change, "", strategic=False)
        create(b, "p0", *LEFT, "p5")
        create(b, "tolerates", tolerations=[TAINT], nodeSelector={"kubernetes.io/hostname": "n2"})
        create(b, "wants-n1", nodeSelector={"kubernetes.io/hostname": "n1"})
        create(b, "last")
        await ask(b)
        found = await nominated_for(b, "p5", "tolerates", "last")
        assert found == {"p5": "n3", "tolerates": "n2", "last": "n3"}


async def test_a_node_that_kube_scheduler_rejects_is_not_nominated_for_a_while() -> None:
    """Its CPU is in use, say: then only the other nodes come with the filter request."""
    async with cluster(nominate=1) as b:
        create(b, *(f"p{i}" for i in range(7)))
        await ask(b)
        ((name, node),) = (await nominated_for(b, "p5")).items()
        (other,) = {"n1", "n2"} - {node}
        assert (await b.filter(name, [other]))["NodeNames"] == [other]
        assert await b.bind(name, other) == ""
        assert await nominated_for(b, "p6") == {"p6": other}
        assert b.app.service.nominator.avoided == {node}
        await b.metrics('berth_nominations_total{result="rejected"} 1')


async def test_a_cleared_nomination_is_written_again_for_another_node() -> None:
    """kube-scheduler clears it where it preempts pods for one with a higher priority."""
    async with cluster() as b:
        create(b, *(f"p{i}" for i in range(6)))
        await ask(b)
        node = (await nominated_for(b, "p5"))["p5"]
        patch(b, "p5", {"nominatedNodeName": None})
        await eventually(lambda: nominated(b).get("p5", node) != node)
        assert b.app.service.nominator.results["cleared"] == 1


async def test_holds_of_nominations_give_way_to_a_pod_with_a_higher_priority() -> None:
    async with cluster(nodes=("n1",)) as b:
        create(b, *(f"p{i}" for i in range(8)), priority=1)
        await ask(b)
        await nominated_for(b, "p5", "p6", "p7")
        b.cluster.apply(claim("urgent", 7))
        b.cluster.apply(pod("urgent", "urgent", priority=2))
        assert await ask(b, "urgent") == ["n1"]
        assert await b.bind("urgent", "n1") == ""


async def test_after_a_restart_nominated_pods_are_placed_as_before() -> None:
    """The holds are lost with the process. A nomination that remains costs at most a filter request of all nodes."""
    async with cluster() as b:
        create(b, *(f"p{i}" for i in range(7)))
        patch(b, "p5", {"nominatedNodeName": "n1"})
        patch(b, "p6", {"nominatedNodeName": "n9"})
        await b.settled()
        scheduler = Scheduler(b.cluster.store, str(b.client.base_url))
        task = asyncio.create_task(scheduler.run())
        await eventually(lambda: all(b.node_of(f"p{i}") for i in range(7)))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert b.node_of("p5") == "n1"


class Failing(Writer):
    """A writer whose nominations fail with the first errors of a list."""

    def __init__(self, *errors: ClusterError) -> None:
        self._errors = list(errors)
        self.written: list[tuple[str, str]] = []

    async def nominate(self, pod: Pod, node: str) -> None:
        """See Writer."""
        if self._errors:
            raise self._errors.pop(0)
        self.written.append((pod.uid, node))


@asynccontextmanager
async def nominating(fleet: Fleet, writer: Failing, **kwargs: Any) -> AsyncIterator[Nominator]:
    fleet.filter_service.use_policy(Policy(nominate=100))
    nominator = Nominator(fleet.cache, fleet.filter_service, writer, lambda: fleet.now, **kwargs)
    task = asyncio.create_task(nominator.run(Rebuilds(fleet.cache).done))
    try:
        yield nominator
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def request(fleet: Fleet, nominator: Nominator, one: Pod) -> None:
    nominator.filtering(one, list(fleet.devices))
    assert fleet.filter(one).passed


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (Conflict("it changed"), "late"),
        (NotFound("it is deleted"), "late"),
        (Unavailable("it is down"), "failed"),
        (Forbidden("no right"), "failed"),
    ],
)
async def test_a_write_that_fails_ends_the_hold_and_is_made_again(error: ClusterError, result: str) -> None:
    fleet, writer = Fleet("mixed"), Failing(error)
    fleet.fill(1, 0.0)
    pods = [fleet.pod(f"p{i}", 1, 1) for i in range(6)]
    async with nominating(fleet, writer) as nominator:
        request(fleet, nominator, pods[0])
        await eventually(lambda: nominator.results[result])
        nominator.pods_changed()
        await eventually(lambda: writer.written)
        assert writer.written == [("p5", "node-000001")]
        assert nominator.nominated == 1
        assert fleet.cache.reservations.holds == 2, "of p0 and p5"


def nominated_pod(uid: str, node: str) -> Json:
    return {
        "metadata": {"namespace": "x", "name": uid, "uid": uid, "resourceVersion": "2"},
        "spec": {"resourceClaims": [{"name": "g", "resourceClaimName": uid}]},
        "status": {"nominatedNodeName": node},
    }
