"""The agent with the rights of its manifest, on a real API server and garbage collector; NVML is the stand-in."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from extender.agent.slice_publisher import SlicePublisher
from extender.api.resource_slices import SliceDecoder
from extender.cluster import ApiClient, ClusterError, Credentials
from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import Machine, node_object
from extender.topology.agent_slices import DRIVER, fabric_of
from tests.e2e.control_plane import ROOT, ControlPlane, on_real_server
from tests.fakes.nvml import Library, reading

pytestmark = on_real_server(seconds=300)

CLUSTER_WIDE = {
    "ClusterRole",
    "ClusterRoleBinding",
    "Namespace",
    "PriorityClass",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}
PLURALS = {
    "NetworkPolicy": "networkpolicies",
    "PriorityClass": "priorityclasses",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
}
ACCOUNT = "/api/v1/namespaces/berth-system/serviceaccounts/berth-agent"


def apply(plane: ControlPlane) -> None:
    """POST every object of the agent's manifests; unknown fields are errors."""
    for file in ("namespace.yaml", "agent.yaml", "agent-own-slice.yaml"):
        for obj in yaml.safe_load_all((ROOT / "manifests" / "base" / file).read_text()):
            base = "/api/v1" if obj["apiVersion"] == "v1" else f"/apis/{obj['apiVersion']}"
            scope = "" if obj["kind"] in CLUSTER_WIDE else "/namespaces/berth-system"
            plural = PLURALS.get(obj["kind"], f"{obj['kind'].lower()}s")
            plane.request("POST", f"{base}{scope}/{plural}?fieldValidation=Strict", obj)


def slices(plane: ControlPlane) -> list[dict]:
    return plane.get("/apis/resource.k8s.io/v1/resourceslices")["items"]


async def rounds(plane: ControlPlane, token: str, nvml: Library, count: int) -> SlicePublisher:
    tls = ssl.create_default_context(cafile=str(plane.folder / "certs" / "apiserver.crt"))
    async with ApiClient(Credentials(plane.url, tls, lambda: token)) as client:
        agent = SlicePublisher(client, "gpu-worker", reading(nvml))
        for _ in range(count):
            await agent.step()
        return agent


async def refused_elsewhere(plane: ControlPlane, token: str, machine: Machine) -> bool:
    """Whether the agent's token cannot write the slice of another node. (A new policy takes a moment to be in
    force.)"""
    tls = ssl.create_default_context(cafile=str(plane.folder / "certs" / "apiserver.crt"))
    async with ApiClient(Credentials(plane.url, tls, lambda: token)) as client:
        agent = SlicePublisher(client, "other", reading(Library(machine)))
        await agent.step()
    for slice_ in slices(plane):
        plane.request("DELETE", f"/apis/resource.k8s.io/v1/resourceslices/{slice_['metadata']['name']}")
    return not agent.writes


def hostile(machine: Machine) -> dict[str, dict]:
    """Slices of gpu-worker that its agent must not write, by their fault."""
    name = f"{DRIVER}-gpu-worker"

    def says(attribute: str, **value: object) -> Callable[[dict], None]:
        return lambda body: body["spec"]["devices"][-1]["attributes"].update({attribute: value})

    changes: dict[str, Callable[[dict], None]] = {
        "name": lambda body: body["metadata"].update(name="another"),
        "pool": lambda body: body["spec"]["pool"].update(name="other"),
        "node": lambda body: body["spec"].update(nodeName="other"),
        "driver": lambda body: body["spec"].update(driver="gpu.nvidia.com"),
        "links": says("links", string="1:" + "9" * 50),
        "digits": says("links", string="\u00b2:1"),
        "no text": says("links", int=1),
        "rate": says("linkMBps", int=10**12),
        "negative": says("switchLinks", int=-1),
        "no integer": says("linkMBps", string="26562"),
        "negative memory": says("memoryFreeMiB", int=-5),
        "memory as a version": says("memoryReservedMiB", version="1.2.3"),
        "own domain": says(f"{DRIVER}/linkMBps", int=10**9),
        "other domain": says("x.example/linkMBps", int=10**9),
        "harmless name of another domain": says("x.example/colour", string="green"),
    }
    found = {}
    for what, change in changes.items():
        body = fabric_slice("gpu-worker", machine)
        body["metadata"] = {"name": name}
        change(body)
        found[what] = body
    return found


async def hostile_slices_are_denied(plane: ControlPlane, token: str, machine: Machine) -> None:
    tls = ssl.create_default_context(cafile=str(plane.folder / "certs" / "apiserver.crt"))
    async with ApiClient(Credentials(plane.url, tls, lambda: token)) as client:
        answers = {}
        for what, body in hostile(machine).items():
            with pytest.raises(ClusterError) as found:  # a slice that the policy admits already exists
                await client.post("/apis/resource.k8s.io/v1/resourceslices?dryRun=All", body)
            answers[what] = str(found.value)
        assert {what: text for what, text in answers.items() if "berth-agent-own-slice" not in text} == {}


def change_owners(plane: ControlPlane, known: dict, owners: list[dict] | None) -> list[dict]:
    """Write the owners of a slice. The answer has those that are known."""
    path = f"/apis/resource.k8s.io/v1/resourceslices/{known['metadata']['name']}"
    plane.request("PATCH", path, {"metadata": {"ownerReferences": owners}}, "application/merge-patch+json")
    return known["metadata"]["ownerReferences"]


def test_the_manifest_gives_the_agent_its_rights(tmp_path: Path) -> None:
    """Attack: write another node's slice, or impossible values."""
    machine = carried_machines()["dgx1-v100"]
    with ControlPlane(tmp_path, strict=True) as plane:
        plane.wait(lambda: plane.get("/api/v1/namespaces/kube-system"), 30)
        apply(plane)
        node = plane.create(node_object("gpu-worker", machine, {}))
        plane.create(node_object("other", machine, {}))
        # As kubelet's tokens do, this one names the node that it is for.
        bound = {
            "boundObjectRef": {"kind": "Node", "apiVersion": "v1", "name": "gpu-worker", "uid": node["metadata"]["uid"]}
        }
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": bound}
        token = plane.request("POST", f"{ACCOUNT}/token", request)["status"]["token"]
        plane.wait(lambda: asyncio.run(refused_elsewhere(plane, token, machine)), 30)
        agent = asyncio.run(rounds(plane, token, Library(machine), 3))
        assert agent.writes == 1, "three rounds without a change write once"
        (found,) = slices(plane)
        fabric = fabric_of(SliceDecoder().decode(found).devices)
        assert fabric is not None
        assert fabric.graph.size == machine.count
        degraded = Library(machine)
        degraded.down.add((0, 0))
        assert asyncio.run(rounds(plane, token, degraded, 1)).writes == 1, "a link that went down is written"
        owners = change_owners(plane, found, None)  # as of a slice that was there before its node
        assert asyncio.run(rounds(plane, token, Library(machine), 1)).writes == 1, "it leaves the owners as they are"
        change_owners(plane, found, owners)
        asyncio.run(hostile_slices_are_denied(plane, token, machine))
        plane.request("DELETE", "/api/v1/nodes/gpu-worker")
        plane.wait(lambda: not slices(plane), 60)
