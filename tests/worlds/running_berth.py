"""A sandbox cluster with Berth in front of it, over real HTTP, perhaps with the sandbox's scheduler."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import httpx

from extender.api.object_meta import ObjectKey
from extender.cli.serve_commands import restart_advisor
from extender.cluster import Writer
from extender.console import Console
from extender.entry.all_in_one import both
from extender.policy import Policy
from extender.sandbox import Cluster, Scheduler, carried_machines, listening
from extender.serve import no_span
from extender.serve.bind import Binder
from extender.serve.gangs.gang_barrier import GangBarrier
from extender.serve.telemetry import SpanFactory
from extender.web.console import console_app
from extender.web.console.console_app import ConsoleApp
from extender.web.console.console_routes import routes
from extender.web.serve_app import ServeApp
from tests.worlds.eventually import HANG_SECONDS, eventually, in_background
from tests.worlds.skipping_loop import clock as default_clock

Json = dict[str, Any]
TWO_NODES = {"n1": "t4-4", "n2": "t4-4"}


@dataclass
class Serving:
    """One `berth serve` and its cluster: the parts that tests talk to."""

    cluster: Cluster
    app: ServeApp
    client: httpx.AsyncClient
    api: str  # the sandbox's address

    async def filter(self, pod: str, names: list[str] | None = None) -> Json:
        """Berth's reply for these nodes, or for all. As kube-scheduler does, filter again if Berth needs more time."""
        names = names or [n["metadata"]["name"] for n in self.cluster.store.all("nodes")]

        async def filter_reply() -> Json | None:
            found = await self.filter_once(pod, names)
            texts = found["FailedAndUnresolvableNodes"] or {}
            unfinished = any("takes longer than one call" in text for text in texts.values())
            return None if unfinished or found["Error"].endswith(": retry") else found

        return await eventually(filter_reply, f"Berth has evaluated every node for pod {pod}")

    async def filter_once(self, pod: str, names: list[str]) -> Json:
        reply = await self.client.post("/filter", json={"Pod": self.pod(pod), "Nodes": None, "NodeNames": names})
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def prioritize(self, pod: str, names: list[str]) -> dict[str, int]:
        reply = await self.client.post("/prioritize", json={"Pod": self.pod(pod), "Nodes": None, "NodeNames": names})
        return {entry["Host"]: entry["Score"] for entry in reply.json()}

    async def bind(self, pod: str, node: str, uid: str = "") -> str:
        obj = self.pod(pod)
        body = {"PodName": pod, "PodNamespace": "default", "PodUID": uid or obj["metadata"]["uid"], "Node": node}
        reply = await self.client.post("/bind", json=body)
        assert reply.status_code == 200, reply.text
        return reply.json()["Error"]

    def pod(self, name: str) -> Json:
        """A pod as kube-scheduler sends it: Go writes the fields of metadata in this order."""
        found = self.cluster.store.get("pods", ("default", name))
        assert found is not None
        metadata = found["metadata"]
        first = {field: metadata[field] for field in ("name", "namespace", "uid", "resourceVersion")}
        others = {k: v for k, v in found.items() if k not in ("kind", "apiVersion", "metadata")}
        return {"metadata": first | metadata, **others}

    def node_of(self, pod: str) -> str:
        return self.pod(pod)["spec"].get("nodeName", "")

    def claims(self) -> list[Json]:
        return self.cluster.store.all("resourceclaims")

    def held(self) -> list[tuple[str, str]]:
        """(pool, device) of every allocation."""
        results = [
            r
            for c in self.claims()
            for r in ((c["status"].get("allocation") or {}).get("devices") or {}).get("results") or []
        ]
        return [(r["pool"], r["device"]) for r in results]

    async def metrics(self, words: str) -> str:
        """The first text of serve's /metrics with these words, or of the console's."""

        async def shown() -> str:
            texts = [(await self.client.get(path)).text for path in ("/metrics", "/console/metrics")]
            return next((text for text in texts if words in text), "")

        return await eventually(shown, f"/metrics shows {words!r}")

    async def create(self, *objects: Json) -> None:
        """Apply objects, and wait until Berth has seen them."""
        for one in objects:
            self.cluster.apply(one)
        await self.settled()

    async def settled(self) -> None:
        """Wait until Berth has seen everything the cluster has."""
        reflectors = self.app.service.informers.reflectors
        await eventually(lambda: all(int(r.version or 0) >= self._last(r.kind.name) for r in reflectors.values()))

    def _last(self, resource: str) -> int:
        """The newest version of a kind that Berth's watch will show."""
        shown = (c.version for c in self.cluster.store.changes() if c.resource == resource and not _hidden(c))
        return max(shown, default=0)


@dataclass
class Berthing(Serving):
    """The same with the console in the same process."""

    console: Console


class AtOneAddress:
    """Serve and console behind one client; serve answers the paths that it has."""

    def __init__(self, serve: ServeApp, console: ConsoleApp) -> None:
        self._serve = serve
        self._console = console

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        if path == "/console/metrics":
            await self._console({**scope, "path": "/metrics"}, receive, send)
        elif path in ("/filter", "/prioritize", "/bind", "/preempt", "/livez", "/readyz", "/metrics"):
            await self._serve(scope, receive, send)
        else:
            await self._console(scope, receive, send)


class _LatePages:
    """The pages of a console, made at the first request: they take a third of the start, and few tests ask for any."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._made: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self._made = self._made or routes(self._console)
        await self._made(scope, receive, send)


@asynccontextmanager
async def _both(api: str, policy: Policy, clock: Callable[[], float]) -> AsyncIterator[tuple[ServeApp, ConsoleApp]]:
    async with AsyncExitStack() as stack:
        with patch.object(console_app, "routes", _LatePages):
            found = await stack.enter_async_context(both(api, policy, clock, restart_advisor))
        yield found


def _hidden(change: Any) -> bool:
    """Events of pods that were bound before: outside the field selector."""
    bound = [bool((o or {}).get("spec", {}).get("nodeName")) for o in (change.obj, change.old)]
    return change.resource == "pods" and (all(bound) or (change.old is None and bound[0]))


def cluster_of(nodes: Mapping[str, str], bookmark_seconds: float = 0.5) -> Cluster:
    """A sandbox cluster; nodes: name to machine."""
    cluster = Cluster(bookmark_seconds=bookmark_seconds)
    for name, machine in nodes.items():
        cluster.add_node(name, carried_machines()[machine])
    return cluster


def client_at(url: str, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=HANG_SECONDS, verify=False, **options)


def patient(policy: Policy | None = None) -> Policy:
    """The policy with the largest budget of a call, unless it sets one: on a busy machine the default may be short."""
    policy = policy or Policy()
    if "evaluation_seconds" in policy.model_fields_set:
        return policy
    return Policy.model_validate({**policy.model_dump(exclude_unset=True), "evaluation_seconds": 2})


@asynccontextmanager
async def berthing(
    nodes: dict[str, str],
    policy: Policy | None = None,
    bookmark_seconds: float = 0.5,
    clock: Callable[[], float] | None = None,
) -> AsyncIterator[Berthing]:
    """nodes: name to machine. The policy is made `patient`. A test of a deadline gives a clock that stands still; the
    default is skipping_loop.clock."""
    cluster = cluster_of(nodes, bookmark_seconds)
    async with (
        cluster.serving() as api,
        _both(api, patient(policy), clock or default_clock()) as (app, console),
        listening(AtOneAddress(app, console), "127.0.0.1", 0) as url,
    ):
        await eventually(lambda: not app.service.informers.not_ready, lambda: app.service.informers.not_ready)
        async with client_at(url, headers={"Content-Type": "application/json"}) as client:
            yield Berthing(cluster, app, client, api, console.console)


@asynccontextmanager
async def one_node(*objects: Json) -> AsyncIterator[Berthing]:
    """The node n1 has four GPUs, and Berth has seen these objects."""
    async with berthing({"n1": "t4-4"}) as b:
        await b.create(*objects)
        yield b


@asynccontextmanager
async def scheduling(cluster: Cluster, extender: Any) -> AsyncIterator[Scheduler]:
    """The scheduler, which asks the extender, an ASGI application, over HTTP."""
    async with listening(extender, "127.0.0.1", 0) as url:
        scheduler = Scheduler(cluster.store, url)
        async with in_background(scheduler.run()):
            yield scheduler


@asynccontextmanager
async def served(cluster: Cluster) -> AsyncIterator[tuple[str, Scheduler]]:
    """The address of the API server, and the scheduler, which asks serve."""
    async with cluster.serving() as api, both(api, patient(), clock=default_clock()) as (app, _):
        await eventually(lambda: not app.service.informers.not_ready)
        async with scheduling(cluster, app) as scheduler:
            yield api, scheduler


def drop_fields(cluster: Cluster, drop: Callable[[str, dict], None]) -> None:
    """Let `drop(resource, object)` take fields out of each object that is stored, as a gate that is off does."""
    put = cluster.store.put

    def put_the_rest(resource: str, key: tuple[str, str], obj: dict) -> dict:
        rest = copy.deepcopy(obj)
        drop(resource, rest)
        return put(resource, key, rest)

    cluster.store.put = put_the_rest  # type: ignore[method-assign]  # in front of the store, as a gate is


def binder_of(b: Serving, span: SpanFactory = no_span) -> Binder:
    """A second binder on the cache of a service, whose errors a test sees as they are."""
    s = b.app.service
    writer, gangs = Writer(s.client, "test"), GangBarrier(s.gangs, s.informers.progress, s.clock)
    return Binder(s.cache, s.filter_service, writer, s.informers, gangs, s.supervisor, span=span)


async def bug_after(step: str, b: Serving, pod: str, node: str, fault: BaseException | None = None) -> None:
    """Bind the pod with a binder that raises the fault, or a KeyError, after this step."""

    @contextmanager
    def buggy(_: str, name: str) -> Iterator[None]:
        yield
        if name == step:
            raise fault or KeyError("a bug")

    await binder_of(b, span=buggy).bind(ObjectKey("default", pod), b.pod(pod)["metadata"]["uid"], node)


def claim(name: str, count: int = 1, selector: str = "", **exactly: Any) -> Json:
    request: Json = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": count, **exactly}
    if selector:
        request["selectors"] = [{"cel": {"expression": selector}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": request}]}},
    }


def jobs(**gpus: int) -> list[Json]:
    """A pod of each name, and a claim of its own for so many GPUs."""
    return [one for name, count in gpus.items() for one in (claim(name, count), pod(name, name))]


def pod(name: str, *claims: str, annotations: dict[str, str] | None = None, **spec: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations or {}},
        "spec": {
            "schedulerName": "berth-scheduler",
            "resourceClaims": [{"name": f"c{i}", "resourceClaimName": c} for i, c in enumerate(claims)],
            "containers": [{"name": "main", "image": "pause"}],
            **spec,
        },
    }


def pinned(node: str) -> Json:
    """The node selector of an allocation on this node."""
    return {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}


def status_in_use(results: Sequence[Json], users: Mapping[str, str], node: str = "") -> Json:
    """The status of a claim with these devices, perhaps on one node. `users`: pods, name to UID."""
    allocation: Json = {"devices": {"results": list(results)}}
    if node:
        allocation["nodeSelector"] = pinned(node)
    reserved = [{"resource": "pods", "name": name, "uid": uid} for name, uid in users.items()]
    return {"allocation": allocation, "reservedFor": reserved}
