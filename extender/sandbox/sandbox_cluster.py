"""The sandbox cluster: store, API server, claim controller and nodes, served on a local port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import orjson
import uvicorn

from extender.api.fields import Json
from extender.cluster import CONSOLE_EXTENSION
from extender.sandbox.apiserver.api_server import ApiServer
from extender.sandbox.apiserver.registry import RESOURCES
from extender.sandbox.apiserver.versioned_store import ObjectStore
from extender.sandbox.controllers import ClaimController, JobController
from extender.sandbox.machines import GPU_DRIVER, NIC_DRIVER, Machine, MachineNode, machine_objects
from extender.web.http_server import listen_on

_KINDS = {resource.kind: resource for resource in reversed(RESOURCES.values())}  # the first of a kind
_KINDS_OF_GROUPS = {(resource.group, resource.kind): resource for resource in RESOURCES.values()}


def _device_class(name: str, expression: str, **spec: str) -> Json:
    selectors = [{"cel": {"expression": expression}}]
    about = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}}
    return {**about, "spec": {"selectors": selectors, **spec}}


_IS_GPU = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"
GPU_CLASS = _device_class("gpu.nvidia.com", _IS_GPU, extendedResourceName="nvidia.com/gpu")
NIC_CLASS = _device_class("dranet.net", f"device.driver == '{NIC_DRIVER}'")  # as in DRANET's examples
MARKER_CLASS = _device_class("berth.dev", "false")
DEVICE_CLASSES = (GPU_CLASS, NIC_CLASS, MARKER_CLASS)


class Cluster:
    """The sandbox cluster. Callers write to `store` directly, or over HTTP while `serving`."""

    def __init__(self, *, bookmark_seconds: float = 5.0) -> None:
        self.store = ObjectStore()
        self.api = ApiServer(self.store, bookmark_seconds=bookmark_seconds)
        self.controller = ClaimController(self.api.registry)
        self.jobs = JobController(self.api.registry)
        self.apply({"kind": "Namespace", "metadata": {"name": "default"}})
        for one in DEVICE_CLASSES:
            self.apply(one)

    def apply(self, obj: Json) -> Json:
        """Create an object. Raises ValueError for a kind that the sandbox does not serve, and ApiError."""
        kind, group = str(obj.get("kind")), str(obj.get("apiVersion") or "").rpartition("/")[0]
        resource = _KINDS_OF_GROUPS.get((group, kind)) or _KINDS.get(kind)
        if resource is None:
            raise ValueError(f"the sandbox does not serve kind {obj.get('kind')!r}")
        namespace = (obj.get("metadata") or {}).get("namespace") or "default"
        return self.api.registry.create(resource, namespace, obj)

    def delete_pod(self, namespace: str, name: str) -> None:
        """Delete a pod, if it is there, and with it the claims that it owns."""
        if self.store.get("pods", (namespace, name)) is not None:
            self.api.registry.delete(RESOURCES["", "pods"], (namespace, name))

    def add_node(self, name: str, machine: Machine, labels: Mapping[str, str] | None = None) -> None:
        """Add a node with the slices of its GPUs and NICs, and the agent's fabric slice."""
        for obj in machine_objects(MachineNode(name, machine, labels or {})):
            self.apply(obj)

    def occupy(self, node: str, gpus: Sequence[int]) -> None:
        """Add a pod that runs on a node and holds these GPUs, as if another scheduler had placed it."""
        name = f"running-{node}"
        template = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": len(gpus)}}
        self.apply({"kind": "ResourceClaim", "metadata": {"name": name}, "spec": {"devices": {"requests": [template]}}})
        containers = [
            {"name": "main", "image": "registry.k8s.io/pause:3.10", "resources": {"claims": [{"name": "gpu"}]}}
        ]
        claims = [{"name": "gpu", "resourceClaimName": name}]
        spec = {"nodeName": node, "resourceClaims": claims, "containers": containers}
        pod = self.apply({"kind": "Pod", "metadata": {"name": name}, "spec": spec})
        results = [{"request": "gpu", "driver": GPU_DRIVER, "pool": node, "device": f"gpu-{i}"} for i in gpus]
        consumer = {"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}
        status = {"allocation": {"devices": {"results": results}}, "reservedFor": [consumer]}
        for kind, written in (("ResourceClaim", status), ("Pod", {"phase": "Running"})):
            key, change = ("default", name), {"status": written}
            self.api.registry.patch(_KINDS[kind], key, change, "status", strategic=False)

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[str]:
        """Serve the API over HTTP and yield its URL. Raises WireError if the address is in use."""
        async with listening(self.api, "127.0.0.1", port, "--api-port") as url:
            try:
                yield url
            finally:
                self.store.cut_watches()


@asynccontextmanager
async def listening(app: Any, host: str, port: int, option: str = "--listen") -> AsyncIterator[str]:
    """Serve an ASGI application and yield its URL. Port 0 takes a free port.

    Raises WireError that names the option and the address if the address cannot be bound.
    """

    async def until_the_end(scope: Any, receive: Any, send: Any) -> None:
        with suppress(asyncio.CancelledError):  # uvicorn would print it
            await app(scope, receive, send)

    listener, *others = listen_on(option, host, port)
    config = uvicorn.Config(until_the_end, log_level="error", access_log=False, lifespan="off", date_header=False)
    async with running(uvicorn.Server(config), [listener, *others]):
        yield f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


@asynccontextmanager
async def running(server: uvicorn.Server, sockets: list[socket.socket]) -> AsyncIterator[None]:
    """Run a server without lifespan events on bound sockets. At the end, close its connections and cancel its requests.

    uvicorn's own serve() catches signals. At its end it waits for open watches, in steps of 0.1 s.
    """
    server.config.load()
    await server.on_tick(0)  # sets the headers of all responses
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup(sockets)
    try:
        yield
    finally:
        for bound in sockets:
            asyncio.get_running_loop().remove_reader(bound)
        for _ in range(2):  # asyncio makes a transport of each connection that it has accepted, and then its protocol
            await asyncio.sleep(0)
        for listener in server.servers:
            listener.close()
        for connection in server.server_state.connections:
            connection.transport.abort()
        requests = server.server_state.tasks
        for request in requests:
            request.cancel()
        if requests:
            await asyncio.wait(requests)
        while server.server_state.connections:  # noqa: ASYNC110 - uvicorn offers no event
            await asyncio.sleep(0)


_NAME = "berth-sandbox"


def write_kubeconfig(folder: Path, api_url: str, console_url: str = "") -> Path:
    """Write a kubeconfig without credentials into a folder, and return its path. JSON is YAML.

    Its context names the console at `console_url`, which no pod of the sandbox has.
    """
    context: Json = {"cluster": _NAME, "user": _NAME}
    if console_url:
        context["extensions"] = [{"name": CONSOLE_EXTENSION, "extension": {"server": console_url}}]
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": _NAME, "cluster": {"server": api_url}}],
        "users": [{"name": _NAME, "user": {}}],
        "contexts": [{"name": _NAME, "context": context}],
        "current-context": _NAME,
    }
    path = folder / "kubeconfig"
    path.write_bytes(orjson.dumps(config, option=orjson.OPT_INDENT_2))
    return path
