"""The real kubectl, of BERTH_KUBE_BIN or of the PATH, against the sandbox. test_kubectl_requests.py makes
the same requests without it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from extender.sandbox import Cluster, carried_machines, write_kubeconfig
from tests.worlds.manifests import KUBECTL, NO_GC, needs_kubectl
from tests.worlds.running_berth import claim, pod

pytestmark = needs_kubectl


@dataclass
class Kubectl:
    """kubectl in a folder with own.yaml and other manifests."""

    folder: Path
    kubeconfig: Path

    async def start(self, words: str) -> asyncio.subprocess.Process:
        env = {**os.environ, **NO_GC, "KUBECONFIG": str(self.kubeconfig), "HOME": str(self.folder)}  # HOME: its cache
        pipe, out = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
        command = (str(KUBECTL), *words.split())
        return await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=out, env=env, cwd=self.folder)

    async def run(self, words: str) -> tuple[int, str]:
        """Exit code and output."""
        process = await self.start(words)
        text, _ = await process.communicate()
        return process.returncode or 0, " ".join(text.decode().split())


@pytest.fixture
async def kubectl(tmp_path: Path) -> AsyncIterator[Kubectl]:
    cluster = Cluster(bookmark_seconds=0.5)
    cluster.add_node("n1", carried_machines()["t4-4"])
    wrong = claim("wrong")
    wrong["spec"]["devices"]["requests"][0]["exactly"]["count"] = "two"
    changed = pod("own", "own")
    changed["spec"]["containers"][0]["image"] = "other"
    misspelt = pod("misspelt", "own")
    misspelt["spec"]["containers"][0]["imag"] = "other"
    items = {"apiVersion": "v1", "kind": "List", "items": [claim("in-list"), pod("in-list", "in-list")]}
    group = {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "g"}}
    core_group = {**group, "apiVersion": "scheduling.k8s.io/v1beta1"}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {}}
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "pause"}]}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}}
    job["spec"] = {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": template}
    for name, objects in (
        ("own", [claim("own"), pod("own", "own")]), ("changed", [changed]), ("wrong", [wrong]),
        ("misspelt", [misspelt]), ("list", [items]), ("bad-list", [{**items, "items": [misspelt]}]),
        ("groups", [core_group, group]), ("deployment", [deployment]), ("job", [job]),
    ):  # fmt: skip
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump_all(objects))
    async with cluster.serving() as url:
        yield Kubectl(tmp_path, write_kubeconfig(tmp_path, url))


# In one cluster, in this order: words, exit code, part of the output.
SESSION = (
    ("version", 0, "Server Version: v1.36.0-sandbox"),
    ("cluster-info", 0, "control plane is running at http://127.0.0.1:"),
    ("api-resources", 0, "resourceclaims resource.k8s.io/v1 true ResourceClaim"),
    ("api-versions", 0, "resource.k8s.io/v1"),
    ("get nodes", 0, "NAME STATUS VERSION AGE n1 Ready"),
    ("get no -o wide", 0, "AGE MACHINE n1"),
    ("get nodes -o jsonpath={.items[*].metadata.name}", 0, "n1"),
    ("get pods", 0, "No resources found in default namespace."),
    ("apply -f own.yaml --dry-run=client", 0, "pod/own created (dry run)"),
    ("apply -f own.yaml --dry-run=server", 0, "pod/own created (server dry run)"),
    ("get pods -A", 0, "No resources found"),
    ("apply -f own.yaml", 0, "resourceclaim.resource.k8s.io/own created pod/own created"),
    ("apply -f own.yaml", 0, "resourceclaim.resource.k8s.io/own unchanged pod/own unchanged"),
    ("diff -f changed.yaml", 1, "+ - image: other"),
    ("apply -f changed.yaml", 0, "pod/own configured"),
    ("get pod own -o yaml", 0, "image: other"),
    ("apply -f wrong.yaml", 1, "spec.devices.requests[0].exactly.count: must be an integer, is 'two'"),
    ("apply -f misspelt.yaml", 1, 'strict decoding error: unknown field "spec.containers[0].imag"'),
    ("apply -f misspelt.yaml --validate=warn", 0, 'Warning: unknown field "spec.containers[0].imag"'),
    ("delete -f misspelt.yaml", 0, 'pod "misspelt" deleted'),
    ("apply -f list.yaml", 0, "resourceclaim.resource.k8s.io/in-list created pod/in-list created"),
    ("apply -f list.yaml", 0, "resourceclaim.resource.k8s.io/in-list unchanged pod/in-list unchanged"),
    ("delete -f list.yaml", 0, 'pod "in-list" deleted'),
    ("apply -f bad-list.yaml", 1, 'strict decoding error: unknown field "spec.containers[0].imag"'),
    ("apply -f groups.yaml", 0, "podgroup.scheduling.k8s.io/g created podgroup.scheduling.x-k8s.io/g created"),
    ("get podgroups.scheduling.x-k8s.io -o name", 0, "podgroup.scheduling.x-k8s.io/g"),
    ("delete -f groups.yaml", 0, 'podgroup.scheduling.k8s.io "g" deleted'),
    ("apply -f deployment.yaml", 1, 'no matches for kind "Deployment" in version "apps/v1"'),
    ("apply -f job.yaml", 0, "job.batch/j created"),
    ("apply -f job.yaml", 0, "job.batch/j unchanged"),
    ("get jobs", 0, "NAME STATUS COMPLETIONS AGE j Running 0/2"),
    ("get pods -l job-name=j -o name", 0, "pod/j-0-"),
    ("delete -f job.yaml", 0, 'job.batch "j" deleted'),
    ("get pods -l job-name=j", 0, "No resources found"),
    ("apply --server-side -f own.yaml", 1, "use kubectl apply without --server-side"),
    ("create -f own.yaml", 1, 'pods "own" already exists'),
    ("get pods -o wide", 0, "NAME READY STATUS RESTARTS AGE NODE NOMINATED NODE own 0/1 Pending 0"),
    ("get resourceclaims", 0, "NAME STATE AGE own pending"),
    ("get all", 0, "own 0/1 Pending"),
    ("get resourceslices", 0, "NAME NODE DRIVER POOL AGE 00000-gpu.nvidia.com-n1 n1 gpu.nvidia.com n1"),
    ("get deviceclasses", 0, "gpu.nvidia.com"),
    ("label pod own a=b", 0, "pod/own labeled"),
    ("get pods -l a=b -o name", 0, "pod/own"),
    ("get pods --field-selector spec.nodeName=n1", 0, "No resources found"),
    ("annotate pod own x=y", 0, "pod/own annotated"),
    ('patch pod own -p {"metadata":{"labels":{"a":null}}}', 0, "pod/own patched"),
    ("get pods -l a=b", 0, "No resources found"),
    ("cordon n1", 0, "node/n1 cordoned"),
    ("get nodes", 0, "n1 Ready,SchedulingDisabled"),
    ("uncordon n1", 0, "node/n1 uncordoned"),
    ("describe pod own", 0, "Name: own"),
    ("describe node n1", 0, "Name: n1"),
    ("describe resourceclaim own", 0, "Device Class Name: gpu.nvidia.com"),
    ("logs own", 1, "the sandbox runs no containers, so a pod has no logs"),
    ("exec own -- ls", 1, "the sandbox runs no containers"),
    ("create namespace team", 1, "write the object as YAML and apply it"),
    ("get events", 0, "No resources found"),
    ("run more --image=pause", 0, "pod/more created"),
    ("wait --for=jsonpath={.status.phase}=Pending pod/more --timeout=60s", 0, "pod/more condition met"),
    ("wait --for=condition=PodScheduled pod/more --timeout=1s", 1, "timed out"),
    ("delete pod more --wait=false", 0, 'pod "more" deleted'),
    ("wait --for=delete pod/more --timeout=60s", 0, ""),
    ("delete -f own.yaml", 0, 'pod "own" deleted'),
    ("delete pods --all", 0, "No resources found"),
)


async def test_a_session(kubectl: Kubectl) -> None:
    for words, code, part in SESSION:
        found, said = await kubectl.run(words)
        assert found == code, (words, said)
        assert part in said, (words, said)


async def test_get_watch_prints_every_change(kubectl: Kubectl) -> None:
    await kubectl.run("apply -f own.yaml")
    watch = await kubectl.start("get pods -w --output-watch-events")
    assert watch.stdout is not None
    seen = [line.decode().split()[:2] for line in [await watch.stdout.readline(), await watch.stdout.readline()]]
    for words in ("label pod own a=b", "delete pod own"):
        await kubectl.run(words)
        seen.append((await watch.stdout.readline()).decode().split()[:2])
    watch.kill()
    await watch.communicate()
    assert seen == [["EVENT", "NAME"], ["ADDED", "own"], ["MODIFIED", "own"], ["DELETED", "own"]]
