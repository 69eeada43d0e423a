"""The agent with the rights of its manifest, on a real API server and garbage collector; NVML is the fake."""

from __future__ import annotations

import asyncio
import ssl

import pytest
import yaml

from extender.agent.agent import Agent
from extender.agent.reader import Reader
from extender.cluster.client import ApiClient
from extender.cluster.credentials import Credentials
from extender.fabric.slices import fabric_of
from extender.sandbox.machines import carried_machines, node_object
from extender.wire.slices import SliceDecoder
from tests.e2e.control_plane import ROOT, ControlPlane, missing
from tests.fakes.nvml import FakeNvml

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing() or "-"), pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")]

CLUSTER_WIDE = {"ClusterRole", "ClusterRoleBinding"}
ACCOUNT = "/api/v1/namespaces/kube-system/serviceaccounts/berth-agent"


def apply(plane: ControlPlane) -> None:
    """POST every object of the manifest; unknown fields are errors."""
    for obj in yaml.safe_load_all((ROOT / "manifests" / "agent.yaml").read_text()):
        base = "/api/v1" if obj["apiVersion"] == "v1" else f"/apis/{obj['apiVersion']}"
        scope = "" if obj["kind"] in CLUSTER_WIDE else "/namespaces/kube-system"
        plane.request("POST", f"{base}{scope}/{obj['kind'].lower()}s?fieldValidation=Strict", obj)


def slices(plane: ControlPlane) -> list[dict]:
    return plane.get("/apis/resource.k8s.io/v1/resourceslices")["items"]


async def rounds(plane: ControlPlane, token: str, nvml: FakeNvml, count: int) -> Agent:
    tls = ssl.create_default_context(cafile=str(plane.folder / "certs" / "apiserver.crt"))
    async with ApiClient(Credentials(plane.url, tls, lambda: token)) as client:
        agent = Agent(client, "gpu-worker", Reader(nvml, nvml.numa_of).read)
        for _ in range(count):
            await agent.step()
        return agent


def test_manifest_gives_the_agent_what_it_needs(tmp_path) -> None:
    machine = carried_machines()["dgx1-v100"]
    with ControlPlane(tmp_path) as plane:
        plane.wait(lambda: plane.get("/api/v1/namespaces/kube-system"), 30)
        apply(plane)
        plane.create(node_object("gpu-worker", machine, {}))
        token = plane.request("POST", f"{ACCOUNT}/token", {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})["status"]["token"]
        agent = asyncio.run(rounds(plane, token, FakeNvml(machine), 3))
        assert agent.writes == 1, "three rounds without a change write once"
        (found,) = slices(plane)
        fabric = fabric_of(SliceDecoder().decode(found).devices)
        assert fabric is not None and fabric.graph.size == machine.count
        degraded = FakeNvml(machine)
        degraded.down.add((0, 0))
        assert asyncio.run(rounds(plane, token, degraded, 1)).writes == 1, "a link that went down is written"
        plane.request("DELETE", "/api/v1/nodes/gpu-worker")
        plane.wait(lambda: not slices(plane), 60)
