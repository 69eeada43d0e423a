"""The sandbox's scheduler treats an extender as kube-scheduler does, where gangs depend on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from extender.cluster import Delays
from extender.runtime.supervisor import Supervisor
from extender.sandbox import Cluster, Scheduler, carried_machines, listening
from extender.sandbox.apiserver.registry import RESOURCES
from tests.worlds.eventually import eventually
from tests.worlds.running_berth import claim, pod, scheduling

CLASSES = RESOURCES["resource.k8s.io", "deviceclasses"]


class Extender:
    """Accepts and binds pods.

    `feasible` says whether a pod fits. No bind ends before `wanted_binds` binds have arrived. `filtered` has the pod of
    each filter request.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.feasible: Callable[[str], bool] = lambda _: True
        self.wanted_binds = 1
        self.filtered: list[str] = []
        self.faulty: list[str] = []  # paths that give an answer that is no object, each once
        self._arrived = 0
        self._all_arrived = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = orjson.loads(await request.body())
        await (await self._answer(request.url.path, body))(scope, receive, send)

    async def _answer(self, path: str, body: dict) -> Response:
        if path in self.faulty:
            self.faulty.remove(path)
            return JSONResponse(0)
        if path == "/filter":
            name = body["Pod"]["metadata"]["name"]
            self.filtered.append(name)
            names = body["NodeNames"] if self.feasible(name) else []
            return JSONResponse({"NodeNames": names, "FailedNodes": {}, "Error": ""})
        if path == "/prioritize":
            return JSONResponse([])
        self._arrived += 1
        if self._arrived == self.wanted_binds:
            self._all_arrived.set()
        await self._all_arrived.wait()
        target = {"metadata": {"uid": body["PodUID"]}, "target": {"name": body["Node"]}}
        self._cluster.api.registry.bind((body["PodNamespace"], body["PodName"]), target)
        return JSONResponse({"Error": ""})


def cluster_with(pods: int) -> Cluster:
    cluster = Cluster()
    cluster.add_node("n", carried_machines()["t4-4"])
    for i in range(pods):
        cluster.apply(claim(f"p{i}"))
        cluster.apply(pod(f"p{i}", f"p{i}"))
    return cluster


def bound(cluster: Cluster) -> int:
    return sum(bool(p["spec"].get("nodeName")) for p in cluster.store.all("pods"))


async def test_binds_of_different_pods_run_beside_each_other() -> None:
    """The bind of a gang's member ends only after the binds of the others began."""
    cluster = cluster_with(4)
    extender = Extender(cluster)
    extender.wanted_binds = 4
    async with scheduling(cluster, extender) as scheduler:
        await eventually(lambda: bound(cluster) == 4, "all pods are bound")
        assert not scheduler.last_errors


async def test_an_event_during_the_filter_request_requeues_the_pod() -> None:
    """The last member of a gang may appear, and Berth requeue the others, while one of them is being rejected."""
    cluster = cluster_with(1)
    extender = Extender(cluster)

    def reject_once(name: str) -> bool:
        if extender.filtered.count(name) > 1:
            return True
        change = {"metadata": {"annotations": {"berth.dev/wake": "1"}}}
        cluster.api.registry.patch(CLASSES, ("", "berth.dev"), change, "", strategic=False)
        return False

    extender.feasible = reject_once
    async with scheduling(cluster, extender):
        await eventually(lambda: bound(cluster) == 1, "the pod is retried and bound")


async def test_a_rejected_pod_waits_for_an_event() -> None:
    cluster = cluster_with(2)
    extender = Extender(cluster)
    extender.feasible = lambda name: name != "p0" or bound(cluster) > 0
    async with scheduling(cluster, extender):
        await eventually(lambda: bound(cluster) == 2, "the bound pod requeues the rejected one")
        assert extender.filtered.count("p0") == 2


async def test_a_rejected_pod_gets_the_reasons_as_its_condition() -> None:
    cluster = cluster_with(1)
    extender = Extender(cluster)
    extender.feasible = lambda _: False
    async with scheduling(cluster, extender):
        (found,) = await eventually(
            lambda: cluster.store["pods", ("default", "p0")].get("status", {}).get("conditions")
        )
    assert (found["type"], found["status"], found["reason"]) == ("PodScheduled", "False", "Unschedulable")
    assert found["message"].startswith("0/1 nodes are available: ")


async def test_a_pod_with_a_nameless_claim_does_not_stop_the_scheduler() -> None:
    """A real API server would refuse this pod."""
    cluster = Cluster()
    cluster.add_node("n", carried_machines()["t4-4"])
    bad = pod("bad", "c")
    bad["spec"]["resourceClaims"] = [{}]
    for obj in (bad, claim("good"), pod("good", "good")):
        cluster.apply(obj)
    async with scheduling(cluster, Extender(cluster)):
        await eventually(lambda: bound(cluster) == 1, "the other pod is bound")


async def test_a_failed_loop_and_a_failed_bind_are_counted_and_the_pod_is_bound_later() -> None:
    """The extender's first answers to filter and bind are no objects, which kube-scheduler would call errors."""
    cluster = cluster_with(1)
    extender, supervisor = Extender(cluster), Supervisor(Delays(0.0, 0.0))
    extender.faulty = ["/filter", "/bind"]
    async with listening(extender, "127.0.0.1", 0) as url:
        supervisor.start("scheduler", Scheduler(cluster.store, url).run)
        try:
            await eventually(lambda: bound(cluster) == 1, "the pod is bound")
        finally:
            await supervisor.stop()
    assert supervisor.failures["scheduler"] == 2


async def test_a_pod_waits_for_a_resource_that_no_node_and_no_class_provides() -> None:
    """As NodeResourcesFit: a misspelt name, a class that is absent, and a device plugin's resource that is used up."""
    cluster = cluster_with(0)
    cluster.add_node("m", carried_machines()["t4-4"])
    offers = {"status": {"allocatable": {"x.dev/plugin": "2"}}}
    cluster.api.registry.patch(RESOURCES["", "nodes"], ("", "m"), offers, "status", strategic=False)

    def asks(name: str, resource: str, count: int = 1) -> None:
        limits = {"limits": {resource: str(count)}}
        cluster.apply(pod(name, containers=[{"name": "main", "image": "pause", "resources": limits}]))

    async with scheduling(cluster, Extender(cluster)) as scheduler:
        for resource in ("x.dev/plugins", "deviceclass.resource.kubernetes.io/absent"):
            asks(resource.partition("/")[2], resource)
            waits = {f"Insufficient {resource}": 2}
            name = f"default/{resource.partition('/')[2]}"
            await eventually(lambda n=name, w=waits: scheduler.pending().get(n) == w, scheduler.pending)
        asks("first", "x.dev/plugin", 2)
        await eventually(lambda: bound(cluster) == 1, "the pod is bound to the node that offers the resource")
        assert cluster.store["pods", ("default", "first")]["spec"]["nodeName"] == "m"
        asks("second", "x.dev/plugin")
        await eventually(lambda: "default/second" in scheduler.pending(), scheduler.pending)
        asks("implicit", "deviceclass.resource.kubernetes.io/gpu.nvidia.com")
        await eventually(lambda: bound(cluster) == 2, "a DeviceClass provides the resource")


async def test_pods_go_only_to_nodes_that_their_spec_admits() -> None:
    """As NodeAffinity and TaintToleration, also for a pod without devices."""
    cluster = cluster_with(0)
    cluster.add_node("m", carried_machines()["t4-4"], {"of": "m"})
    cluster.api.registry.patch(
        RESOURCES["", "nodes"], ("", "n"), {"spec": {"unschedulable": True}}, "", strategic=False
    )
    for name, labels in (("any", {}), ("none", {"of": "n"})):
        obj = pod(name)
        cluster.apply({**obj, "spec": {**obj["spec"], "nodeSelector": labels}})
    async with scheduling(cluster, Extender(cluster)) as scheduler:
        await eventually(lambda: bound(cluster) == 1, "one pod is bound")
        waits = {"default/none": {"node selector, node affinity, a taint or a cordon excludes the node": 2}}
        await eventually(lambda: scheduler.pending() == waits, scheduler.pending)
    assert cluster.store["pods", ("default", "any")]["spec"]["nodeName"] == "m"
